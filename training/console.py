"""What commands print while they work: a line for each phase, redrawn in a terminal and added elsewhere."""

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from storage.files import printable
from training.progress import Progress, TimeLeft

PLAIN_SECONDS = 15.0
"""Time between two lines about a phase where the output is not a terminal."""
PLAIN_SHARE = 0.05
"""Later it is this share of the phase's time, up to MOST_PLAIN_SECONDS: the logs of long runs stay short."""
MOST_PLAIN_SECONDS = 300.0


def quantity(value: float) -> str:
    """1234567 as 1.23M; - for NaN."""
    if math.isnan(value):
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        rounded = f"{value / size:.3g}"
        if abs(float(rounded)) >= 1:
            return f"{rounded}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03; ? for infinity and NaN."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def plural(number: int, noun: str) -> str:
    """A number and what it counts: "1 actor", "2 actors"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def program(name: str = "compressive") -> str:
    """The word that starts a program of this installation, for commands that are printed to be copied.

    It is the name where the shell finds that, else the path beside this program, such as .venv/bin/compressive.
    """
    # A virtual environment need not be activated.
    if sys.argv[0]:  # it is empty in an interactive Python
        beside = Path(sys.argv[0]).with_name(name)
        if beside.is_file() and not shutil.which(name):
            return shlex.quote(str(beside))
    return name


class LiveLine:
    """Shows a phase of a command and its progress on a console; a context manager.

    In a terminal two lines are redrawn in place, cut to its width; elsewhere plain lines are added. `activity` names
    the phase, `waiting` what is being waited for before the first progress.
    """

    def __init__(self, console: Console, activity: str, waiting: str) -> None:
        self.console = console
        self.activity = activity
        self.share = 0.0
        self.head = f"waiting for {waiting}"
        self.fields: Sequence[str] = ()
        self.left = TimeLeft()
        self.known_left: float | None = None
        self.started = time.monotonic()
        self.ended: float | None = None
        self.printed: float | None = None
        self.live: Live | None = None
        if console.is_terminal:
            self.live = Live(self, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def update(self, progress: Progress) -> None:
        """Shows the progress of a training."""
        head = f"{quantity(progress.done)}/{quantity(progress.total)} {progress.unit}"
        self.show(progress.done / progress.total, head, progress.texts)

    def show(self, share: float, head: str, fields: Sequence[str] = (), left: float | None = None) -> None:
        """Shows the share done of 1, the same in words, and other fields, the most important first.

        `left`: seconds left, infinity if that is unknown; by default they are estimated from the shares.
        """
        share = min(1.0, share)
        # The end is printed even if it is soon after the line before.
        is_complete = share == 1.0 and self.share < 1.0
        self.share = share
        self.head = head
        self.fields = fields
        self.left.mark(share)
        self.known_left = left
        if is_complete:
            self.ended = time.monotonic()
        if not self.live and (is_complete or self._is_due()):
            self._print()

    def _is_due(self) -> bool:
        """Whether it is time for a plain line. These cannot be redrawn, so there are few."""
        if self.printed is None:
            return True
        now = time.monotonic()
        between = min(MOST_PLAIN_SECONDS, max(PLAIN_SECONDS, PLAIN_SHARE * (now - self.started)))
        return now - self.printed >= between

    def _print(self) -> None:
        """Adds a plain line."""
        self.printed = time.monotonic()
        elapsed = duration(self._elapsed())
        parts = [f"{elapsed:>8}", self.activity, f"{100 * self.share:5.1f} %", self._progress(), *self.fields]
        say(self.console, "  ".join(parts))

    def _elapsed(self) -> float:
        """Seconds that the phase has taken."""
        until = time.monotonic() if self.ended is None else self.ended
        return until - self.started

    def _progress(self) -> str:
        """The progress in words, with the time left if that is known."""
        left = self.left.seconds() if self.known_left is None else self.known_left
        if self.ended is not None or not math.isfinite(left):
            return self.head
        return f"{self.head}  left {duration(left)}"

    def __rich__(self) -> RenderableType:
        # The bar has what the first line leaves; in a narrow terminal there is none.
        elapsed = duration(self._elapsed())
        progress = printable(self._progress())
        activity = printable(self.activity)
        first: list[RenderableType] = []
        words = f"{activity}  {elapsed}    {progress}"
        width = min(24, self.console.width - len(words))
        if width > 0:
            bar = ProgressBar(total=1.0, completed=self.share, width=width)
            first = [Text(activity), elapsed, bar]
        rows = Table.grid(padding=(0, 2))
        rows.add_row(*first, Text(progress, style="bold"))

        # As many fields as the second line has room for.
        second = ""
        for field in self.fields:
            longer = f"{second}  {field}" if second else field
            if len(longer) > self.console.width:
                break
            second = longer
        if not second:
            return rows
        return Group(rows, Text(printable(second)))


@contextmanager
def counting(console: Console, activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` episodes, samples or frames are done; yields what is called with the number.

    Without a terminal, a short phase is one line at its end.
    """
    with LiveLine(console, activity, f"the first {unit}") as line:
        line.printed = line.started

        def count(done: int) -> None:
            # A round of several environments may end more episodes than were asked for.
            shown = min(done, total)
            line.update(Progress(shown, total, unit))

        yield count


@contextmanager
def playing(console: Console, activity: str, episodes: int) -> Iterator[Callable[[int, int], None]]:
    """Shows how far episodes are that are played one after the other; yields what is called after each step with the
    number of finished episodes, and of steps in the present one."""
    with LiveLine(console, activity, "the first step") as line:
        line.printed = line.started

        def count(finished: int, step: int) -> None:
            head = f"episode {finished + 1} of {episodes}  step {step}"
            if finished == episodes:
                head = plural(episodes, "episode")
            line.show(finished / episodes, head)

        yield count


class Busy:
    """Says what a command does while that has no measure of progress, and for how long; a context manager.

    In a terminal it is a line that disappears at the end; elsewhere a line that stays.
    """

    def __init__(self, console: Console, activity: str) -> None:
        self.console = console
        self.activity = activity
        self.started = time.monotonic()
        self.status = console.status(self)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status.start()
        else:
            say(self.console, self.activity)
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()

    def __rich__(self) -> RenderableType:
        elapsed = duration(time.monotonic() - self.started)
        return Text(printable(f"{self.activity}  {elapsed}"))


def say(console: Console, line: str, style: str = "") -> None:
    """Prints a line unchanged: no markup, which paths may contain, and no line breaks, which would spoil a copy.

    Control characters, which the text of a foreign run may have, are escaped.
    """
    console.print(Text(printable(line), style), highlight=False, soft_wrap=True)


def say_skipped(console: Console, skipped: Iterable[str]) -> None:
    """Names newer checkpoints that could not be read."""
    for reason in skipped:
        say(console, f"skipped checkpoint {reason}", "yellow")


def say_all(console: Console, rows: dict[str, str]) -> None:
    """Prints names and values, a line each, as `say` does."""
    width = max(len(printable(name)) for name in rows)
    for name, value in rows.items():
        padded_name = f"{printable(name):<{width}}  "
        row = Text.assemble((padded_name, "bold"), printable(value))
        console.print(row, highlight=False, soft_wrap=True)
