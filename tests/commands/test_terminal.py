"""What a terminal shows, at any width, and what happens when it is closed or Ctrl-C is pressed."""

import dataclasses
import fcntl
import io
import math
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path

import pytest
from rich.console import Console

from actors import PoolStatus
from tests.commands.cli import ENVIRONMENT, TINY, frames, saved_steps, start, wait_until
from training.console import TerminalDisplay, duration, quantity
from training.impala import Progress
from training.signals import stop_on_signals

PROGRESS = Progress(
    steps=2_512_000,
    frames=10_048_000,
    total_frames=12_000_000,
    frames_per_second=12_345.0,
    score=-123.4,
    correct=0.987,
    episodes=4000,
    pool=PoolStatus(alive=2, restarts=1, waiting=0),
)


def shown(progress: Progress | None, width: int) -> list[str]:
    """The lines that a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    display = TerminalDisplay(console, 12_000_000)
    if progress:
        display.update(progress)
    with console.capture() as capture:
        console.print(display)
    return capture.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_progress_fits_the_terminal(width: int) -> None:
    lines = shown(PROGRESS, width)
    assert len(lines) == (1 if width == 160 else 2)
    assert all(len(line.rstrip()) <= width for line in lines), lines
    text = " ".join(lines)
    for field in ("10M/12M frames", "left 2:38", "2.51M steps", "12.3k frames/s", "return -123.4", "correct 98.7 %"):
        assert field in text, text
    assert ("2 actors, 1 restarted" in text) == (width > 80), "the least important goes first"


def test_a_very_narrow_terminal_still_shows_how_far_it_is() -> None:
    lines = shown(PROGRESS, 40)
    assert all(len(line.rstrip()) <= 40 for line in lines), lines
    assert "left" in lines[0]
    assert "2.51M steps" in lines[1]


def test_before_there_is_anything_to_show() -> None:
    assert shown(None, 60) == ["training  waiting for the first unroll"]
    young = dataclasses.replace(PROGRESS, score=math.nan, correct=math.nan, frames_per_second=0.0)
    assert "no episode finished yet" in " ".join(shown(young, 100))


def test_numbers_for_people() -> None:
    assert [quantity(value) for value in (0, 999, 1234, 1.2e6, 5e9, -4321)] == [
        "0",
        "999",
        "1.23k",
        "1.2M",
        "5G",
        "-4.32k",
    ]
    assert [duration(seconds) for seconds in (0, 59.9, 61, 3723, math.inf)] == ["0:00", "0:59", "1:01", "1:02:03", "?"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_a_later_one_acts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with stop_on_signals() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested
            assert stop.signal == number
            os.kill(os.getpid(), number)  # at once: the same wish, told twice
            monkeypatch.setattr("training.signals.SAME_SECONDS", 0.0)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


class Terminal:
    """A terminal of some width and all that was ever written to it; its program is told when it is closed."""

    def __init__(self, columns: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.written = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 4096):
                self.written += data
        except OSError:  # closed
            pass

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = start(
            *arguments,
            output=self.slave,
            stdin=self.slave,
            start_new_session=True,
            env={name: value for name, value in ENVIRONMENT.items() if name != "COLUMNS"} | {"TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(self.slave)
        return process


def test_a_terminal_of_60_columns_that_is_closed(tmp_path: Path) -> None:
    terminal, folder = Terminal(60), tmp_path / "run"
    process = terminal.start("launch", "--local", "--run", folder, "--frames", frames(10_000), *TINY)
    wait_until(lambda: b"frames/s" in terminal.written and len(saved_steps(folder)) > 2, process)
    before = saved_steps(folder)[-1]
    text = terminal.written.decode()
    os.close(terminal.master)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert saved_steps(folder)[-1] >= before > 0
    live = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", text) if "frames/s" in line]
    assert live
    assert all(len(line) <= 60 for line in live), live
