"""The shared measurements: medians in turns, and processes with their memory and CPU time."""

import functools
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common import cpu_seconds, family, in_turns, marked

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
