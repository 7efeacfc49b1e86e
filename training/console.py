"""How a run looks in a terminal: a live progress line, or plain lines where the output is not a terminal."""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from training.impala import Progress

PLAIN_SECONDS = 15.0
"""Time between two lines where the output is not a terminal."""
SCALES = ("human_normalised", "human_normalised_capped", "oracle_normalised")
"""Scores in % of what people or an oracle reach, in summaries."""


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


class LiveLine:
    """Shows how far something is on a console; a context manager.

    In a terminal one line is redrawn in place, or two where it is too narrow for one; elsewhere plain lines are added.

    Args:
        console: where to.
        activity: the line's first word.
        waiting: what is waited for as long as there is nothing to show.
    """

    def __init__(self, console: Console, activity: str, waiting: str) -> None:
        self.console, self.activity, self.waiting = console, activity, waiting
        self.shown: tuple[float, str, list[str]] | None = None
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

    def show(self, share: float, head: str, fields: list[str]) -> None:
        """Shows a share done of 1, how far that is in words, and other fields, the most important first."""
        self.shown = share, head, fields
        now = time.monotonic()
        if self.live or (now - self.printed < PLAIN_SECONDS and share < 1):
            return
        self.printed = now
        line = "  ".join((f"{duration(now - self.started):>8}", f"{100 * share:5.1f} %", head, *fields))
        self.console.print(line, highlight=False, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        if self.shown is None:
            waiting = f"{self.activity}  waiting for {self.waiting}"
            return Text(waiting, style="dim", no_wrap=True, overflow="ellipsis")
        width = self.console.width
        share, head, shown = self.shown
        fields = list(shown)
        while len("  ".join(fields)) > width:
            fields.pop()
        rest = Text("  ".join(fields))
        room = width - len(f"{self.activity}    {head}")
        one_line = room - 24 >= len(rest) + 2
        cells: list[RenderableType] = [Text(head, style="bold"), *([rest] if one_line else [])]
        if room > 3:
            cells = [self.activity, ProgressBar(total=1.0, completed=share, width=min(24, room)), *cells]
        rows = Table.grid(padding=(0, 2))
        rows.add_row(*cells)
        return rows if one_line else Group(rows, rest)


class TerminalDisplay(LiveLine):
    """Shows the progress of a run that ends at `total_frames`."""

    def __init__(self, console: Console, total_frames: int) -> None:
        super().__init__(console, "training", "the first unroll")
        self.total_frames = total_frames

    def update(self, progress: "Progress") -> None:
        """See `training.impala.Display`."""
        rate = progress.frames_per_second
        left = max(0, self.total_frames - progress.frames) / rate if rate else math.inf
        restarts = f", {progress.pool.restarts} restarted" if progress.pool.restarts else ""
        head = f"{quantity(progress.frames)}/{quantity(self.total_frames)} frames  left {duration(left)}"
        fields = [
            f"{quantity(progress.steps)} steps",
            f"{quantity(progress.frames_per_second)} frames/s",
            score_text(progress),
            f"{progress.pool.alive} actors{restarts}",
        ]
        self.show(min(1.0, progress.frames / self.total_frames), head, fields)


def say(console: Console, line: str, style: str = "") -> None:
    """Prints a line as it is: paths may hold brackets, and who copies it wants no line breaks in it."""
    console.print(Text(line, style), highlight=False, soft_wrap=True)


def say_skipped(console: Console, skipped: Sequence[str]) -> None:
    """Tells of newer checkpoints that could not be read."""
    for reason in skipped:
        say(console, f"skipped checkpoint {reason}", "yellow")


def say_all(console: Console, rows: dict[str, str]) -> None:
    """Prints what is called how, a line each, as `say` does."""
    width = max(map(len, rows))
    for name, value in rows.items():
        console.print(Text.assemble((f"{name:<{width}}  ", "bold"), value), highlight=False, soft_wrap=True)


def table(title: str, rows: dict[str, str]) -> Table:
    """A two-column table."""
    built = Table(title=Text(title), show_header=False, title_justify="left", title_style="bold")
    for name, value in rows.items():
        built.add_row(name, Text(value))
    return built


def task_table(summaries: list[dict[str, Any]]) -> Table:
    """Evaluations of several tasks, a row each; see `commands.evaluate.evaluation_summary`."""
    scales = [name for name in ("human_normalised", "oracle_normalised") if any(name in part for part in summaries)]
    built = Table("task", "episodes", "return", *(f"{name.replace('_', '-')} %" for name in scales))
    for part in summaries:
        score = part["return"]
        cells = [f"{part[name]:.1f}" if name in part else "-" for name in scales]
        interval = f"{score['mean']:.2f}  [{score['low']:.2f}, {score['high']:.2f}]"
        built.add_row(Text(part["environment"]), str(part["episodes"]), interval, *cells)
    return built


def evaluation_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The summary as rows of a table."""
    score, played = summary["return"], summary.get("tasks", [])
    rows = {
        "episodes": str(summary["episodes"]) + (f" of {len(played)} tasks" if played else ""),
        "return": f"{score['mean']:.2f}" + ("" if played else f"  [{score['low']:.2f}, {score['high']:.2f}]"),
    }
    if "correct_choices" in summary:
        part = summary["correct_choices"]
        rows["correct choices"] = (
            f"{100 * part['mean']:.1f} %  [{100 * part['low']:.1f}, {100 * part['high']:.1f}]  "
            f"of {summary['choices_per_episode']:.1f} an episode"
        )
    for name in SCALES:
        if name in summary and (played or name != "human_normalised_capped"):
            scale = name.replace("_normalised", "-normalised").replace("_", ", ")
            over = f", mean of {sum(name in part for part in played)} of {len(played)} tasks" if played else ""
            interval = summary.get(f"{name}_interval")
            within = f"  [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
            rows[scale] = f"{summary[name]:.1f} %{within}{over}"
    return rows


def evaluation_table(summaries: list[dict[str, Any]]) -> Table:
    """Evaluations of several runs, a row each, with columns for what any of them has; see `task_table`."""
    scales = [name for name in ("human_normalised", "oracle_normalised") if any(name in one for one in summaries)]
    chose = any("correct_choices" in one for one in summaries)
    names = [f"{name.replace('_', '-')} %" for name in scales] + ["correct choices %"] * chose
    built = Table("run", "core", "environment", "episodes", "return", *names)
    for one in summaries:
        score, choices = one["return"], one.get("correct_choices")
        bounds: list[Any] = [score.get("low"), score.get("high")]
        cells = [_estimate(score["mean"], bounds, 2)]
        cells += [_estimate(one.get(name), one.get(f"{name}_interval", [None]), 1) for name in scales]
        if chose:
            percent = [100 * choices[end] for end in ("mean", "low", "high")] if choices else [None]
            cells.append(_estimate(percent[0], percent[1:], 1))
        built.add_row(Text(one["run"]), one["core"], Text(one["environment"]), str(one["episodes"]), *cells)
    return built


def _estimate(value: float | None, interval: list[Any], digits: int) -> str:
    if value is None:
        return "-"
    within = "" if None in interval else f"  [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    return f"{value:.{digits}f}{within}"
