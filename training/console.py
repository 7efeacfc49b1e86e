"""How a training looks in a terminal: a live progress line, or plain lines where the output is not a terminal."""

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

from training.progress import Progress

PLAIN_SECONDS = 15.0
"""Time between two lines where the output is not a terminal."""
SETTLED_SECONDS = 10.0
"""Before that no time is said to be left: environments start, and code is compiled."""


def quantity(value: float) -> str:
    """1234567 as 1.23M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
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


def program(name: str = "compressive") -> str:
    """The word that starts a program of this installation, for commands that are printed to be copied.

    It is the name where the shell finds that, else the path beside this program, such as .venv/bin/compressive.
    """
    # A virtual environment need not be activated.
    beside = Path(sys.argv[0]).with_name(name)
    if beside.is_file() and not shutil.which(name):
        return shlex.quote(str(beside))
    return name


class LiveLine:
    """Shows progress on a console; a context manager.

    In a terminal two lines are redrawn in place, cut to its width; elsewhere plain lines are added. `activity` is the
    first word, `waiting` what is being waited for before the first progress.
    """

    def __init__(self, console: Console, activity: str, waiting: str) -> None:
        self.console = console
        self.activity = activity
        self.shown: tuple[float, str, Sequence[str]] = (0.0, f"waiting for {waiting}", ())
        self.started = time.monotonic()
        self.printed = -math.inf
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
        left = math.inf
        missing = max(0, progress.total - progress.done)
        has_settled = time.monotonic() - self.started >= SETTLED_SECONDS
        if not missing:
            left = 0.0
        elif progress.per_second and has_settled:
            left = missing / progress.per_second
        done = f"{quantity(progress.done)}/{quantity(progress.total)} {progress.unit}"
        head = f"{done}  left {duration(left)}"
        share = progress.done / progress.total
        self.show(share, head, progress.texts)

    def show(self, share: float, head: str, fields: Sequence[str]) -> None:
        """Shows the share done of 1, the same in words, and other fields, the most important first."""
        share_before, _, _ = self.shown
        # The end is printed even if it is soon after the line before.
        is_complete = share >= 1 > share_before
        share = min(1.0, share)
        self.shown = share, head, fields
        if self.live:
            return

        # Plain lines cannot be redrawn, so there are few.
        now = time.monotonic()
        is_due = now - self.printed >= PLAIN_SECONDS
        if is_complete or is_due:
            self.printed = now
            elapsed = duration(now - self.started)
            parts = [f"{elapsed:>8}", f"{100 * share:5.1f} %", head, *fields]
            say(self.console, "  ".join(parts))

    def __rich__(self) -> RenderableType:
        share, head, fields = self.shown
        # The bar has what the first line leaves; in a narrow terminal there is none.
        first: list[RenderableType] = []
        words = f"{self.activity}    {head}"
        width = min(24, self.console.width - len(words))
        if width > 0:
            bar = ProgressBar(total=1.0, completed=share, width=width)
            first = [self.activity, bar]
        rows = Table.grid(padding=(0, 2))
        rows.add_row(*first, Text(head, style="bold"))

        # As many fields as the second line has room for.
        second = ""
        for field in fields:
            longer = f"{second}  {field}" if second else field
            if len(longer) > self.console.width:
                break
            second = longer
        if not second:
            return rows
        return Group(rows, Text(second))


@contextmanager
def counting(console: Console, activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows how many of `total` episodes, samples or tokens are done, with the time left; yields what is called with
    the number."""
    with LiveLine(console, activity, f"the first {unit}") as line:
        begin = time.monotonic()

        def count(done: int) -> None:
            seconds = max(time.monotonic() - begin, 1e-9)
            rate = done / seconds
            # A round of several environments may end more episodes than were asked for.
            shown = min(done, total)
            line.update(Progress(shown, total, unit, rate))

        yield count


def say(console: Console, line: str, style: str = "") -> None:
    """Prints a line unchanged: no markup, which paths may contain, and no line breaks, which would spoil a copy."""
    console.print(Text(line, style), highlight=False, soft_wrap=True)


def say_skipped(console: Console, skipped: Iterable[str]) -> None:
    """Names newer checkpoints that could not be read."""
    for reason in skipped:
        say(console, f"skipped checkpoint {reason}", "yellow")


def say_all(console: Console, rows: dict[str, str]) -> None:
    """Prints names and values, a line each, as `say` does."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        padded_name = f"{name:<{width}}  "
        row = Text.assemble((padded_name, "bold"), value)
        console.print(row, highlight=False, soft_wrap=True)
