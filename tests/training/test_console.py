"""The clock, what a terminal shows at any width, and signals as requests to stop."""

import io
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from training.console import Busy, LiveLine, counting, duration, playing, program, quantity
from training.loop import Stopped
from training.progress import Clock, Progress, TimeLeft, brief
from training.signals import stop_on_signals, terminated_by_error

TEXTS = ("2.51M steps", "12.3k frames/s", "return -123.4  correct 98.7 %", "2 actors, 1 restarted")
PROGRESS = Progress(10_048_000, 12_000_000, "frames", TEXTS)


def test_scores_of_any_size_have_digits() -> None:
    scores = {
        84.75: "84.8",
        -7.254: "-7.25",
        0.975: "0.975",
        0.0: "0.00",
        9.92e-5: "9.92e-05",
        992187500.0: "9.922e+08",
    }
    assert {score: brief(score) for score in scores} == scores


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

    # 100 in 40 seconds, and then 10 every 5 seconds.
    sleep(40)
    assert clock.idle_fraction() == 0
    clock.mark(1100)
    assert clock.rate == pytest.approx(2.5), "an update longer than the window still counts"
    for count in (1110, 1120, 1130):
        sleep(5)
        clock.mark(count)
    assert clock.rate == pytest.approx(2.0), "older updates do not count"

    # Five seconds beside two pauses, three of them idle.
    clock.idle_fraction()
    with clock.paused():
        sleep(100)
    with suppress(Stopped), clock.paused():
        sleep(100)
        raise Stopped
    with clock.waiting():
        sleep(3)
    sleep(2)
    clock.mark(1140)
    assert clock.rate == pytest.approx(2.0), "pauses do not count"
    assert clock.idle_fraction() == pytest.approx(0.6)
    sleep(1)
    assert clock.idle_fraction() == 0, "since the last call"


def shown(line: LiveLine) -> list[str]:
    """The lines that a terminal shows."""
    with line.console.capture() as capture:
        line.console.print(line)
    return capture.get().rstrip("\n").split("\n")


def terminal_line(width: int) -> LiveLine:
    """A line that waits for the first unroll, in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    return LiveLine(console, "training", "the first unroll")


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_progress_fits_the_terminal(width: int, sleep: Callable[[float], None]) -> None:
    line = terminal_line(width)
    assert "waiting for the first unroll" in "".join(shown(line))
    # Two million frames in 20 seconds, and as many are left.
    for done in range(8_000_000, 10_000_001, 100_000):
        line.update(PROGRESS._replace(done=done))
        sleep(1)
    sleep(0.5)
    lines = shown(line)
    assert all(len(text.rstrip()) <= width for text in lines), lines
    text = " ".join(lines)
    assert "10M/12M frames  left 0:18" in text
    kept = {40: 2, 80: 3, 120: 4, 160: 4}[width]
    for index, field in enumerate(TEXTS):
        assert (field in text) == (index < kept), "the least important goes first"
    if width >= 80:
        assert "training  0:21" in text
        sleep(3)
        assert "training  0:24" in " ".join(shown(line)), "the time passes also without progress"


def test_the_time_left_is_that_of_recent_progress(sleep: Callable[[float], None]) -> None:
    """Two minutes of start and slow first seconds do not count, and the time is unknown while little is done."""
    left = TimeLeft()
    left.mark(0.2)  # a resumed run
    sleep(120)

    # Five slow seconds.
    for number in range(1, 6):
        left.mark(0.2 + number / 10_000)
        assert math.isinf(left.seconds())
        sleep(1)

    # At a steady speed of a hundredth a second the estimate is exact, once ten seconds are known.
    share = 0.2005
    for second in range(5, 65):
        share += 0.01
        left.mark(share)
        expected = (1 - share) / 0.01
        if second < 10:
            expected = math.inf
        assert left.seconds() == pytest.approx(expected)
        sleep(1)

    # Without further marks the time passes until 0, and is unknown long after.
    seconds_left = 100 * (1 - share)
    assert seconds_left > 0.6
    sleep(seconds_left - 1.5)  # and one after the last mark
    assert left.seconds() == pytest.approx(0.5)
    sleep(60)
    assert math.isinf(left.seconds()), "it takes longer than it did"


def test_the_time_left_forgets_what_is_ten_minutes_old(sleep: Callable[[float], None]) -> None:
    left = TimeLeft()
    share = 0.0
    for speed, seconds in ((1e-4, 3000), (2e-5, 610)):
        for _ in range(seconds):
            left.mark(share)
            share += speed
            sleep(1)
    left.mark(share)
    assert left.seconds() == pytest.approx((1 - share) / 2e-5)


def test_progress_in_leaps_is_measured_between_them(sleep: Callable[[float], None]) -> None:
    """Episodes of one length end together."""
    left = TimeLeft()
    for second in range(45):
        leaps = second // 8  # of eight seconds' progress, in a phase of 80 seconds
        left.mark(leaps * 8 / 80)
        sleep(1)
    assert left.seconds() == pytest.approx(80 - 45)


def test_a_phase_is_one_line_without_a_terminal_unless_it_is_long(sleep: Callable[[float], None]) -> None:
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "evaluating", 40, "episodes") as count:
        for done in (*range(1, 41), 40, 40):
            sleep(1)
            count(done)
    with counting(console, "writing the video", 40, "frames") as count:
        for done in range(1, 41):
            sleep(0.1)
            count(done)
    with playing(console, "filming", 2) as play:
        for finished, step in ((0, 1), (1, 0), (1, 1), (2, 0)):
            sleep(10)
            play(finished, step)
    with Busy(console, "writing the page"):
        sleep(100)
    assert console.file.getvalue().splitlines() == [
        "    0:15  evaluating   37.5 %  15/40 episodes  left 0:25",
        "    0:30  evaluating   75.0 %  30/40 episodes  left 0:10",
        "    0:40  evaluating  100.0 %  40/40 episodes",
        "    0:04  writing the video  100.0 %  40/40 frames",
        "    0:20  filming   50.0 %  episode 2 of 2  step 0",
        "    0:40  filming  100.0 %  2 episodes",
        "writing the page",
    ]


def test_a_phase_shows_the_text_of_a_run_and_obeys_none_of_it() -> None:
    """Neither control characters nor markup."""
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=200)
    text = "\x1b[2J\x9b\r [bold]name[/red]"
    with LiveLine(console, text, text) as line:
        line.show(0.5, text, [text])
    with Busy(console, text):
        pass
    assert printed.getvalue().count(r"\x1b[2J\x9b\r [bold]name[/red]") >= 3
    assert "\x1b[2J" not in printed.getvalue()


def test_long_phases_have_few_lines(sleep: Callable[[float], None]) -> None:
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "evaluating", 86_401, "episodes") as count:
        for done in range(0, 86_400, 10):
            sleep(10)
            count(done)
    assert 250 < len(console.file.getvalue().splitlines()) < 400, "a day"


def test_numbers_for_people() -> None:
    assert [quantity(value) for value in (0, 999, 1234, 1.2e6, 5e9)] == ["0", "999", "1.23k", "1.2M", "5G"]
    # What is rounded up to the next unit.
    numbers = (999.4, 999.7, 999_499, 999_936, 999_600_000, -999_700)
    assert [quantity(value) for value in numbers] == ["999", "1k", "999k", "1M", "1G", "-1M"]
    assert [duration(seconds) for seconds in (59.9, 61, 3723, math.inf)] == ["0:59", "1:01", "1:02:03", "?"]


def test_a_hang_up_does_not_silence_a_file(tmp_path: Path) -> None:
    """The terminal is gone, a log is still there."""
    program = """
import os, signal
from training.signals import stop_on_signals

with stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGHUP)
    print("stopped", stop.requested, flush=True)
"""
    log = tmp_path / "log"
    with log.open("w") as output:
        done = subprocess.run([sys.executable, "-c", program], stdout=output, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0
    assert log.read_text() == "stopped True\n"
    assert done.stderr == b"", "a pipe, which a terminal may have read, is not written to"


def test_a_program_without_a_name_names_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python is in a terminal."""
    monkeypatch.setattr(sys, "argv", [""])
    assert program() == "compressive"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_program_are_errors(number: int) -> None:
    """As Ctrl-C is, so that temporary files are removed; with the status that shells give. Not if they are ignored."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt) as ended, terminated_by_error():
            os.kill(os.getpid(), number)
        assert ended.value.status == 128 + number  # type: ignore[attr-defined]
        assert signal.getsignal(number) == signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        with terminated_by_error():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_a_later_one_acts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that was ignored before, here SIGHUP, stays ignored."""
    is_ignored = number == signal.SIGHUP
    handler: Any = signal.default_int_handler
    if is_ignored:
        handler = signal.SIG_IGN
    before = signal.signal(number, handler)
    try:
        with stop_on_signals() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested == (not is_ignored)
            os.kill(os.getpid(), number)  # within a second it is the same request
            monkeypatch.setattr("training.signals.SAME_SECONDS", 0.0)
            if is_ignored:
                os.kill(os.getpid(), number)
            else:
                assert stop.signal == number
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), number)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
