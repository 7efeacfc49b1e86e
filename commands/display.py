"""How a run looks in a terminal: a live progress line, or plain lines where the output is not a terminal."""

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
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
    """Seconds as 1:02:03 or 2:03, and ? where nobody knows."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def score_text(progress: "Progress") -> str:
    """Return and correct choices, as far as there are any."""
    if math.isnan(progress.score):
        return "no episode finished yet"
    correct = "" if math.isnan(progress.correct) else f"  correct {100 * progress.correct:.1f} %"
    seen, tasks = progress.tasks
    over = f" over {seen} of {tasks} tasks" if tasks > 1 else ""
    return f"return {progress.score:.1f}{over}{correct}"


class TerminalDisplay:
    """Shows progress on a console; a context manager.

    In a terminal one line is redrawn in place, or two where it is too narrow for one; elsewhere plain lines are added.
    """

    waiting_for = "the first unroll"

    def __init__(self, console: Console, total_frames: int) -> None:
        self.console = console
        self.total_frames = total_frames
        self.progress: Progress | None = None
        self.printed = -math.inf
        self.started = time.monotonic()
        self.live = Live(self, console=console, refresh_per_second=4) if console.is_terminal else None
        self.handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, RichHandler)]
        self.consoles = [handler.console for handler in self.handlers]

    def __enter__(self) -> Self:
        if self.live:
            for handler in self.handlers:  # messages go above the line instead of through it
                handler.console = self.console
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
            for handler, console in zip(self.handlers, self.consoles):
                handler.console = console

    def update(self, progress: "Progress") -> None:
        """See `commands.training.Display`."""
        self.progress = progress
        now = time.monotonic()
        done = self._share() >= 1
        if self.live or (now - self.printed < PLAIN_SECONDS and not done):
            return
        self.printed = now
        head, fields = self._texts(progress)
        line = "  ".join((f"{duration(now - self.started):>8}", f"{100 * self._share():5.1f} %", head, *fields))
        self.console.print(line, highlight=False, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        if self.progress is None:
            return Text(f"training  waiting for {self.waiting_for}", style="dim", no_wrap=True, overflow="ellipsis")
        width = self.console.width
        head, fields = self._texts(self.progress)
        while len("  ".join(fields)) > width:
            fields.pop()
        rest = Text("  ".join(fields))
        room = width - len(f"training    {head}")
        one_line = room - 24 >= len(rest) + 2
        cells: list[RenderableType] = [Text(head, style="bold"), *([rest] if one_line else [])]
        if room > 3:
            cells = ["training", ProgressBar(total=1.0, completed=self._share(), width=min(24, room)), *cells]
        rows = Table.grid(padding=(0, 2))
        rows.add_row(*cells)
        return rows if one_line else Group(rows, rest)

    def _share(self) -> float:
        return min(1.0, self.progress.frames / self.total_frames) if self.progress else 0.0

    def _texts(self, progress: "Progress") -> tuple[str, list[str]]:
        """How far it is, and the other fields, the most important first."""
        head = f"{quantity(progress.frames)}/{quantity(self.total_frames)} frames"
        rate = progress.frames_per_second
        left = max(0, self.total_frames - progress.frames) / rate if rate else math.inf
        restarts = f", {progress.pool.restarts} restarted" if progress.pool.restarts else ""
        return f"{head}  left {duration(left)}", [
            f"{quantity(progress.steps)} steps",
            f"{quantity(progress.frames_per_second)} frames/s",
            score_text(progress),
            f"{progress.pool.alive} actors{restarts}",
        ]


def table(title: str, rows: dict[str, str]) -> Table:
    """A two-column table."""
    built = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    for name, value in rows.items():
        built.add_row(name, value)
    return built


def task_table(summaries: list[dict[str, Any]]) -> Table:
    """Evaluations of several tasks, a row each; see `commands.evaluate.evaluation_summary`."""
    scales = [name for name in ("human_normalised", "oracle_normalised") if any(name in part for part in summaries)]
    built = Table("task", "episodes", "return", *(f"{name.replace('_', '-')} %" for name in scales))
    for part in summaries:
        score = part["return"]
        cells = [f"{part[name]:.1f}" if name in part else "-" for name in scales]
        interval = f"{score['mean']:.2f}  [{score['low']:.2f}, {score['high']:.2f}]"
        built.add_row(part["environment"], str(part["episodes"]), interval, *cells)
    return built
