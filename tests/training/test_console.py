"""The clock, what a terminal shows at any width, and signals as requests to stop."""

import io
import math
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from training.console import LiveLine, counting, duration, quantity
from training.progress import Clock, Progress
from training.signals import stop_on_signals

TEXTS = ("2.51M steps", "12.3k frames/s", "return -123.4  correct 98.7 %", "2 actors, 1 restarted")
PROGRESS = Progress(10_048_000, 12_000_000, "frames", 12_345.0, TEXTS)


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass on all clocks."""
    time = SimpleNamespace(now=0.0)
    time.monotonic = lambda: time.now
    for module in ("progress", "console"):
        monkeypatch.setattr(f"training.{module}.time", time)

    def sleep(seconds: float) -> None:
        time.now += seconds

    return sleep


def test_the_clock_measures_the_last_seconds_and_idle_time(sleep: Callable[[float], None]) -> None:
    clock = Clock(1000, window=10.0)
    assert clock.rate == 0
    sleep(40)
    clock.mark(1100)
    assert clock.rate == pytest.approx(2.5), "an update longer than the window still counts"
    for count in (1110, 1120, 1130):
        sleep(5)
        clock.mark(count)
    assert clock.rate == pytest.approx(2.0), "older updates do not count"
    clock.idle_fraction()
    with clock.paused():
        sleep(100)
    with clock.waiting():
        sleep(3)
    sleep(2)
    clock.mark(1140)
    assert clock.rate == pytest.approx(2.0), "pauses do not count"
    assert clock.idle_fraction() == pytest.approx(0.6)
    sleep(1)
    assert clock.idle_fraction() == 0, "since the last call"


def shown(progress: Progress | None, width: int, age: float = 60.0) -> list[str]:
    """The lines that a terminal of a width shows, so many seconds after the start."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    line = LiveLine(console, "training", "the first unroll")
    if progress:
        line.started -= age
        line.update(progress)
    with console.capture() as capture:
        console.print(line)
    return capture.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_progress_fits_the_terminal(width: int) -> None:
    lines = shown(PROGRESS, width)
    assert all(len(line.rstrip()) <= width for line in lines), lines
    text = " ".join(lines)
    assert "10M/12M frames  left 2:38" in text
    kept = 2 if width == 40 else 3 if width < 120 else 4
    assert [field in text for field in TEXTS] == [index < kept for index in range(4)], "the least important goes first"
    assert "waiting for the first unroll" in "".join(shown(None, width))
    assert "left ?" in " ".join(shown(PROGRESS._replace(per_second=0.0), 100))
    assert "left ?" in " ".join(shown(PROGRESS, 100, age=5.0)), "the first rates mean nothing"


def test_plain_lines_without_a_terminal(sleep: Callable[[float], None]) -> None:
    """Also of an evaluation: one every 15 seconds, and the last."""
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "evaluating", 40, "episodes") as count:
        for done in (*range(1, 41), 40, 40):
            sleep(1)
            count(done)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["0:01", "2.5", "%", "1/40"],
        ["0:16", "40.0", "%", "16/40"],
        ["0:31", "77.5", "%", "31/40"],
        ["0:40", "100.0", "%", "40/40"],
    ]
    assert lines[1].endswith("episodes  left 0:24")


def test_numbers_for_people() -> None:
    assert [quantity(value) for value in (0, 999, 1234, 1.2e6, 5e9)] == ["0", "999", "1.23k", "1.2M", "5G"]
    assert [duration(seconds) for seconds in (59.9, 61, 3723, math.inf)] == ["0:59", "1:01", "1:02:03", "?"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_a_later_one_acts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ignored one stays ignored."""
    handler: Any = signal.SIG_IGN if number == signal.SIGHUP else signal.default_int_handler
    before = signal.signal(number, handler)
    try:
        with stop_on_signals() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested == (number != signal.SIGHUP)
            os.kill(os.getpid(), number)  # within a second: the same wish
            monkeypatch.setattr("training.signals.SAME_SECONDS", 0.0)
            if stop.requested:
                assert stop.signal == number
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), number)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
