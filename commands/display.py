"""How a run looks in a terminal: a live progress line, or plain lines where the output is not a terminal."""

import math
import time

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from commands.training import Progress

PLAIN_SECONDS = 15.0
"""Time between two lines where the output is not a terminal."""


def quantity(value: float) -> str:
    """1234567 as 1.23M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def score_text(progress: Progress) -> str:
    """Return and correct choices, as far as there are any."""
    if math.isnan(progress.score):
        return "no episode finished yet"
    correct = "" if math.isnan(progress.correct) else f"  correct {100 * progress.correct:.1f} %"
    return f"return {progress.score:.1f}{correct}"


class _Status(ProgressColumn):
    """The run's own fields."""

    def render(self, task: object) -> Text:
        progress: Progress | None = getattr(task, "fields", {}).get("progress")
        if progress is None:
            return Text("waiting for the first unroll", style="dim")
        pool = progress.pool
        restarts = f" ({pool.restarts} restarted)" if pool.restarts else ""
        return Text.assemble(
            (f"{quantity(progress.frames)}/{quantity(progress.total_frames)} frames", "bold"),
            f"  {quantity(progress.steps)} steps  {quantity(progress.frames_per_second)} frames/s  ",
            (score_text(progress), "bold green"),
            f"  {pool.alive} actors{restarts}",
        )


class TerminalDisplay:
    """Shows progress on a console; a context manager."""

    def __init__(self, console: Console, total_frames: int) -> None:
        self.console = console
        self.total_frames = total_frames
        self.live = console.is_terminal
        self.printed = -math.inf
        self.started = time.monotonic()
        self.first_frames: int | None = None
        self.bar = RichProgress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            _Status(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )
        self.task: TaskID = self.bar.add_task("training", total=total_frames, progress=None)

    def __enter__(self) -> "TerminalDisplay":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, progress: Progress) -> None:
        """See `commands.training.Display`."""
        self.bar.update(self.task, completed=progress.frames, progress=progress)
        now = time.monotonic()
        done = progress.frames >= self.total_frames
        if self.live or (now - self.printed < PLAIN_SECONDS and not done):
            return
        self.printed = now
        left = (self.total_frames - progress.frames) / max(progress.frames_per_second, 1e-9)
        restarts = f", {progress.pool.restarts} restarted" if progress.pool.restarts else ""
        self.console.print(
            f"{duration(now - self.started):>8}  {100 * progress.frames / self.total_frames:5.1f} %  "
            f"{quantity(progress.frames)} frames  {quantity(progress.steps)} steps  "
            f"{quantity(progress.frames_per_second)} frames/s  {score_text(progress)}  "
            f"{progress.pool.alive} actors{restarts}  left {duration(left)}",
            highlight=False,
            soft_wrap=True,
        )


def table(title: str, rows: dict[str, str]) -> Table:
    """A two-column table."""
    built = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    for name, value in rows.items():
        built.add_row(name, value)
    return built
