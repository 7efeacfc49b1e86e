"""What benchmarks share: medians in turns, processes with their memory and CPU time, and options that are refused."""

import functools
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import balanced, causes, common, cores, mutation, recall, text
from benchmarks.common import cpu_seconds, family, in_turns, marked
from storage.errors import UserError

BUSY = "import time\nwhile time.process_time() < .3: pass\ntime.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_rates_are_medians_measured_in_turns() -> None:
    """A second passes with each look at the clock. The first turn, of amounts 0, only warms up."""
    calls = []
    seconds = itertools.count()
    amounts = {"a": [0.0, 1.0, 30.0, 2.0], "b": [0.0, 4.0, 5.0, 6.0]}

    def work(name: str) -> float:
        calls.append(name)
        return amounts[name].pop(0)

    works = {name: functools.partial(work, name) for name in amounts}
    assert in_turns(works, 0, turns=3, clock=lambda: float(next(seconds))) == {"a": 2, "b": 5}
    assert calls == ["a", "b"] * 4


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_family_has_descendants_their_memory_and_cpu_time() -> None:
    mark = f"mark-{os.getpid()}"
    cpu = cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", PARENT], env={**os.environ, "MARK": mark})
    try:
        while len(marked(mark)) < 2 or cpu_seconds() - cpu < 0.25:
            assert child.poll() is None
            time.sleep(0.01)

        # This process, its child and its grandchild.
        before = {process.handle.pid: process for process in family()}
        assert before[os.getpid()].kind == "driver"
        assert before[os.getpid()].memory > before[child.pid].memory > 2**20
        (grandchild,) = (process for process in marked(mark) if process.pid != child.pid)
        assert before[grandchild.pid].handle == grandchild

        # A child that has ended stays in the family until it is waited for.
        grandchild.kill()
        child.kill()
        while {process.handle.pid: process for process in family()}[child.pid].kind != "zombie":
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert not before[child.pid].handle.is_running()


@dataclass
class NoOptions:
    """A benchmark without options."""


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, UserError])
def test_what_a_user_can_correct_is_one_line(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(_: NoOptions) -> dict[str, Any]:
        raise error("--turns: expected at least 1, got 0")

    monkeypatch.setattr(sys, "argv", ["cores.py"])
    with pytest.raises(SystemExit) as ended:
        common.run(measure, NoOptions)
    assert ended.value.code == "--turns: expected at least 1, got 0"


def test_a_figure_that_is_no_number_is_not_printed_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cores.py"])
    with pytest.raises(SystemExit) as ended:
        common.run(lambda _: {"mean": float("nan")}, NoOptions)
    assert "not a number" in str(ended.value.code)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert '"mean": NaN' in printed.err


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (lambda: in_turns({}, 1.0, turns=0), "--turns: expected at least 1, got 0"),
        (lambda: cores.measure(cores.Options(cores=("gru",), turns=0)), "--turns: expected at least 1, got 0"),
        (lambda: recall.main(recall.Options("x", variants=("nope",))), "--variants: expected one of .*, got 'nope'"),
        (lambda: recall.main(recall.Options("x", variants=())), "--variants: expected one value or more, got none"),
        (lambda: recall.main(recall.Options("x", seeds=())), "--seeds: expected one value or more, got none"),
        (lambda: recall.main(recall.Options("x", processes=0)), "--processes: expected at least 1, got 0"),
        (lambda: causes.measure(causes.Options(())), "--runs: expected one value or more, got none"),
        (lambda: causes.measure(causes.Options((Path("x"),), episodes=0)), "--episodes: expected at least 1, got 0"),
        (lambda: balanced.main(balanced.Options(measured=1)), "--measured: expected at least 2, got 1"),
        (
            lambda: mutation.measure(mutation.Options(count=0), Path(), {}, {}),
            "--count: expected at least 1, got 0",
        ),
        (lambda: text.main(text.Options(seeds=())), "--seeds: expected one value or more, got none"),
        (lambda: text.main(text.Options(steps=0)), "--steps: expected at least 1, got 0"),
    ],
)
def test_options_without_a_result_are_refused_before_the_work(measure: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        measure()
