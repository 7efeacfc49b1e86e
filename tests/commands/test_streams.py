"""Standard output and standard error that are closed, or on a full disk: one line at the end, and no lost work."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands import _only_prints, main
from commands.streams import surviving_streams
from tests.commands.cli import SMALL, command
from training.console import say

RUN = Path(__file__).parents[2] / "pretrained" / "small"
CLOSED = "compressive: standard output is closed\n"
FULL = "compressive: standard output: No space left on device\n"


def redirected(where: str, *arguments: object) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command with redirections of a shell."""
    script = f'exec "$@" {where}'
    done = subprocess.run(["sh", "-c", script, "sh", *command(*arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("where", "arguments", "expected"),
    [
        (">/dev/full", ["--help"], (1, "", FULL)),
        (">/dev/full", ["--version"], (1, "", FULL)),
        (">&-", ["--help"], (1, "", CLOSED)),
        (">&-", ["status", str(RUN)], (1, "", CLOSED)),
        (">&- 2>&- <&-", ["--help"], (1, "", "")),
        ("2>/dev/full", ["lunch"], (2, "", "")),
        ("2>&-", ["lunch"], (2, "", "")),
        (">/dev/full 2>/dev/full", ["--help"], (1, "", "")),
    ],
    ids=str,
)
def test_streams_that_cannot_be_written_to(where: str, arguments: list[str], expected: tuple[int, str, str]) -> None:
    assert redirected(where, *arguments) == expected


def ends(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> object:
    """The status with which `work` ends this program if standard output is on a full disk."""
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as stop:
            work()
        assert sys.stdout is full
    return stop.value.code


def test_what_follows_a_lost_line_is_done(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Whatever prints it learns nothing of the loss."""
    done = []

    def work() -> None:
        with surviving_streams():
            for number in range(3):
                say(Console(), "x" * 10_000)
                print("more", flush=True)
                done.append(number)

    assert ends(work, monkeypatch) == 1
    assert done == [0, 1, 2]
    assert capfd.readouterr().err == FULL


@pytest.mark.parametrize("status", [2, "words"])
def test_another_status_is_kept(status: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with surviving_streams():
            print("more", flush=True)
            sys.exit(status)

    assert ends(work, monkeypatch) == status


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("evaluate RUN", True),
        ("text sample RUN", True),
        ("speech evaluate RUN", True),
        ("text train --help", True),
        ("text train", False),
        ("speech sample RUN", False),  # writes a file
        ("launch", False),
    ],
)
def test_what_only_prints(words: str, expected: bool) -> None:
    assert _only_prints(words.split()) == expected


@pytest.mark.parametrize("name", ["status", "runs"])
def test_a_run_is_not_blamed_for_the_output(name: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    assert ends(lambda: main([name, str(RUN)]), monkeypatch) == 1
    assert capfd.readouterr().err == FULL


@pytest.mark.slow
def test_a_training_goes_on_without_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> None:
    words = ["launch", "--local", "--run", str(tmp_path / "run"), "--env=rooms:small", *SMALL, "--frames=256"]
    assert ends(lambda: main(words), monkeypatch) == 1
    assert capfd.readouterr().err.endswith(FULL)
    assert (tmp_path / "run" / "evaluation.json").is_file()
