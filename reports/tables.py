"""Tables and lines about runs for the terminal: evaluations, as `training.evaluation` summarizes them, and progress."""

import math
import os
import shlex
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from storage.files import printable
from storage.provenance import was_local
from storage.run import RUN_COMMANDS, Run
from training.config import RunConfig
from training.console import duration, program, quantity, say
from training.evaluation import SCALES
from training.sweep import FILE as SWEEP
from training.trust import permissions

EQUAL = "all equal"
"""What stands in the place of an interval without width, which would look like certainty: all that is known is that the
episodes, or runs, were equal."""
MOST_DECIMALS = 6
"""Of a score, however narrow its interval is."""
HEAD_WIDTH = 12
"""Characters of a line of a column's head, where the terminal is narrow."""


def _in_words(scale: str) -> str:
    """The row of a scale: human-normalized, capped."""
    return scale.replace("_normalized", "-normalized").replace("_", ", ")


CANNOT_RESUME = ("running", "finished", "exported")
"""Beginnings of the states of runs that are not to be resumed; see `Run.state`."""
RESULTS = ("episodes", "return", "correct choices", "score", *map(_in_words, SCALES))
WHERE = (
    "policy",
    "run",
    "core",
    "environment",
    "frames, steps",
    "training",
    "video",
    "csv",
    "page",
    "checkpoint",
    "metrics",
)
RESERVED = frozenset([*RESULTS, *WHERE])
"""Names of rows beside those of an environment's counters."""


def evaluation_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """The summary as rows of a table."""
    played = summary.get("tasks", [])
    episodes = str(summary["episodes"])
    if played:
        episodes += f" of {len(played)} tasks"
    rows = {"episodes": episodes, "return": _score(summary["return"])}
    if "correct_choices" in summary:
        rows["correct choices"] = f"{_correct(summary)}  of {summary['choices_per_episode']:.1f} an episode"
    for name, value in summary.get("counters", {}).items():
        rows[_counter_row(name)] = _score(value)
    for name in SCALES:
        # Of one task, the capped score is no other number.
        is_repetition = name == "human_normalized_capped" and not played
        if name not in summary or is_repetition:
            continue
        text = _percentage(summary[name], summary.get(f"{name}_interval"))
        if played:
            count = sum(name in part for part in played)
            text += f", mean of {count} of {len(played)} tasks"
        rows[_in_words(name)] = text
    return rows


def _counter_row(name: str) -> str:
    """The row or column of a counter, to which an environment may have given the name of another."""
    return f"counter/{name}" if name in RESERVED else name


def print_evaluations(console: Console, summaries: Sequence[Mapping[str, Any]]) -> None:
    """Prints evaluations of several runs or tasks as a table with a row each; see `training.evaluation.summarize`."""

    def in_any(*names: str) -> list[str]:
        """Those of some names that one of the summaries has."""
        return [name for name in names if any(name in summary for summary in summaries)]

    # The columns that say something.
    texts = in_any("run", "core", "environment")
    scales = in_any("human_normalized", "oracle_normalized")
    chooses = bool(in_any("correct_choices"))
    counters = list(dict.fromkeys(name for summary in summaries for name in summary.get("counters", {})))
    head = [*texts, "episodes", "return", *(name.replace("_normalized", "-normalized") for name in scales)]
    if chooses:
        head.append("correct choices")
    head += map(_counter_row, counters)

    rows = []
    for summary in summaries:
        row = [summary[name] for name in texts]
        row += [str(summary["episodes"]), _score(summary["return"])]
        for name in scales:
            row.append(_percentage(summary.get(name), summary.get(f"{name}_interval")))
        if chooses:
            row.append(_correct(summary))
        for name in counters:
            row.append(_score(summary.get("counters", {}).get(name, {"mean": None})))
        rows.append(row)
    print_table(console, head, rows, len(texts))


def print_table(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], texts: int, title: str = ""
) -> None:
    """Prints a table. The first `texts` cells of a row, names and paths, are always whole.

    If the table is wider than the terminal, they have a line of their own, with the numbers in columns below it.
    """
    head = [printable(name) for name in head]
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = [Column(Text(name)) for name in head]
    table = Table(*columns, title=Text(title, "bold") if title else None, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True) for cell in row))
    wide = console.options.update(max_width=10_000)
    if Measurement.get(console, wide, table).maximum <= console.width:
        console.print(table)
    else:
        _print_narrow(console, head, rows, texts, title)


def _print_narrow(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], texts: int, title: str) -> None:
    """Prints a table with the names of each row above its numbers.

    Intervals are under their values, the words of the head under each other. The last columns that have no room are
    left out, and named below.
    """
    heads = [textwrap.wrap(name, HEAD_WIDTH, break_long_words=False) for name in head[texts:]]
    cells = []
    for row in rows:
        lines_of_row = [cell.replace("  [", "\n[").split("\n") for cell in row[texts:]]
        cells.append(lines_of_row)

    # As many columns as fit.
    widths: list[int] = []
    for index, lines_of_head in enumerate(heads):
        column = [lines_of_head, *(row[index] for row in cells)]
        width = max(len(line) for lines in column for line in lines)
        if widths and sum(widths) + 2 * (len(widths) + 1) + width > console.width:
            break
        widths.append(width)

    if title:
        say(console, title, "bold")
    say(console, "  ".join(head[:texts]), "bold")
    _print_cells(console, heads, widths, "bold")
    say(console, "─" * (sum(widths) + 2 * len(widths)), "dim")
    for number, row in enumerate(rows):
        say(console, "  ".join(row[:texts]))
        _print_cells(console, cells[number], widths, "")
    left_out = head[texts + len(widths) :]
    if left_out:
        say(console, f"not shown, because the terminal is narrow: {', '.join(left_out)}", "dim")
    say(console, "")


def _print_cells(console: Console, cells: Sequence[Sequence[str]], widths: Sequence[int], style: str) -> None:
    """Prints cells of one or more lines beside each other, indented by two."""
    shown = cells[: len(widths)]
    for number in range(max(len(lines) for lines in shown)):
        parts = []
        for lines, width in zip(shown, widths):
            part = lines[number] if number < len(lines) else ""
            parts.append(f"{part:<{width}}")
        line = "  ".join(parts).rstrip()
        say(console, f"  {line}", style)


def significant(value: float | None) -> str:
    """A number of which no interval is known: 86.00, 5.033, 9.92e-05; empty if there is none."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1e6:
        return f"{value:.4g}"
    if 0 < abs(value) < 0.001:
        return f"{value:.3g}"
    digits = 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def with_interval(value: float, low: float, high: float) -> list[str]:
    """A score and the two ends of its interval, each with the digits that the interval's width allows.

    The last digit is at most a fifth of the width: 66.2 with 12.1 to 98.3 is 66, 12 and 98. An interval without width
    says nothing about digits; neither do NaN as ends, which stand for no interval and become empty texts.
    """
    if math.isnan(low) or math.isnan(high):
        return [significant(float(value)), "", ""]
    width = high - low
    numbers = (value, low, high)
    if width <= 0 or max(map(abs, numbers)) >= 1e6:
        return [significant(float(number)) for number in numbers]
    decimals = math.ceil(-math.log10(width / 5))
    decimals = min(max(decimals, 0), MOST_DECIMALS)
    texts = [f"{number:.{decimals}f}" for number in numbers]
    return [f"{float(text) + 0:.{decimals}f}" for text in texts]  # "-0.0" becomes "0.0"


def with_brackets(value: float, low: float, high: float) -> tuple[str, str]:
    """`with_interval` as a score and its interval in brackets, which is EQUAL without width and empty without ends."""
    score, least, most = with_interval(value, low, high)
    if low == high:
        return score, EQUAL
    if not least:
        return score, ""
    return score, f"[{least}, {most}]"


def _correct(summary: Mapping[str, Any]) -> str:
    """The share of correct choices with its interval; - if choices are not counted."""
    share = {end: 100 * value for end, value in summary.get("correct_choices", {}).items()}
    return _percentage(share.get("mean"), [share.get("low"), share.get("high")])


def _score(score: Mapping[str, float | None]) -> str:
    """A mean score with its interval, if it has one; - if there is none."""
    mean = score["mean"]
    if mean is None:
        return "-"
    low = score.get("low")
    high = score.get("high")
    largest = max(abs(number) for number in (mean, low, high) if number is not None)
    style = ".2f"
    if 0 < largest < 0.1:  # all would be 0.00
        style = ".3g"
    elif largest >= 1e6:
        style = ".4g"
    return f"{mean:{style}}" + _interval(low, high, style)


def _percentage(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """A percentage with its interval, if it has one; - if there is none."""
    if value is None:
        return "-"
    low, high = interval or (None, None)
    return f"{value:.1f} %" + _interval(low, high, ".1f")


def _interval(low: float | None, high: float | None, style: str) -> str:
    """The interval behind a value; empty if there is none."""
    if low is None:
        return ""
    if low == high:
        return f"  {EQUAL}"
    return f"  [{low:{style}}, {high:{style}}]"


def enumerated(things: Sequence[str]) -> str:
    """The color, the shape and the views."""
    *first, last = things
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


def number(row: Mapping[str, Any], name: str, form: str = ".1f", factor: float = 1.0, unit: str = "") -> str:
    """A metric of a row in words, - if there is none."""
    value = row.get(name, math.nan)
    return "-" if math.isnan(value) else f"{value * factor:{form}}{unit}"


def progress_rows(config: RunConfig, row: Mapping[str, Any], live: bool = True) -> dict[str, str]:
    """What the last row of metrics of an agent's run says beside its progress, in words.

    `live`: also of actors and speed, of which nothing is known when the run has ended.
    """
    if not row:
        return {}
    rows = {}
    if config.stages:
        rows["stage"] = f"{number(row, 'stage', '.0f')} of {len(config.stages) + 1}"
    if live:
        rows["frames/s"] = quantity(row.get("speed/frames_per_second", math.nan))

    score = number(row, "episode/return")
    if "tasks/seen" in row:
        score += f" over {number(row, 'tasks/seen', '.0f')} of {number(row, 'tasks/count', '.0f')} tasks"
    rows["return in training"] = score
    if "episode/correct_choices" in row:
        rows["correct in training"] = number(row, "episode/correct_choices", factor=100, unit=" %")

    if live:
        rows |= _live_rows(row)
    rows["measured"] = since(row.get("time", math.nan))
    return rows


def _live_rows(row: Mapping[str, Any]) -> dict[str, str]:
    """What a row of metrics says of actors and of the learner's time."""
    rows = {"actors": f"{number(row, 'actors/alive', '.0f')} alive, {number(row, 'actors/restarts', '.0f')} restarts"}
    lag = f"mean {number(row, 'policy_lag/mean')}, at most {number(row, 'policy_lag/max', '.0f')} versions"
    dropped = f"{number(row, 'actors/unrolls_dropped', '.0f')} unrolls dropped"
    rows["policy lag"] = f"{lag}; {dropped}"
    rows["learner idle"] = number(row, "learner/idle_fraction", ".0f", 100, " % of the time")
    return rows


def since(then: float) -> str:
    """How long ago a time was."""
    return f"{duration(max(time.time() - then, 0.0))} ago"  # this way round NaN stays


def say_how_to_resume(console: Console, run: Run, config: Any, state: str) -> None:
    """Prints the command that resumes a run which is neither running nor finished."""
    if not state.startswith(CANNOT_RESUME):
        say(console, f"resume with: {next_command(run, config, state)}")


def next_command(run: Run, config: Any, state: str) -> str:
    """What to type next about a run in a state; see `Run.state`."""
    command = "status" if state.startswith("running") else "report"
    folder = run.path
    options = permissions(config)
    if not state.startswith(CANNOT_RESUME):
        # A run of a comparison is resumed with it: alone it could act elsewhere.
        parent = Path(os.path.normpath(run.path / ".."))
        if (parent / SWEEP).is_file():
            command = "compare --resume"
            folder = parent
        else:
            command = f"{RUN_COMMANDS[config.kind][0].partition(' ')[2]} --resume"
            if was_local(run):
                options = f" --local{options}"
    return f"{program()} {command} {shlex.quote(str(folder))}{options}"
