"""One table of tasks and variants: what each agent reaches on each task, and what it costs.

It also shows runs that are not finished, by the last scores of their training, so that a suite that takes days can be
looked at on the way. `scoreboard` computes it from `scores`, `as_table` and `costs_table` are for pages, `as_files` for
other programs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from envs import reference_scores
from reports.comparison import Estimate, estimate, is_confirmed, repeated
from reports.comparison_page import FOLDER, cell_text
from reports.pages import write_page
from reports.scores import FILE, Score, as_json
from reports.statistics import chance_of_improvement, interquartile_mean, mean, probability_of_improvement
from reports.tables import EQUAL, significant
from storage.files import format_csv, format_json, printable, replacing, require_no_link
from training.console import plural, quantity

REFERENCES = {"random": "random", "memoryless": "best without memory", "oracle": "oracle", "human": "human"}
"""Scores that are not agents', see `envs.reference_scores`, and their names in tables."""


@dataclass(frozen=True)
class Cell:
    """A variant on a task.

    score: mean return, over runs; its interval is over these, or over the episodes of a single run's evaluation. NaN if
        no run has a score yet.
    scores: of runs. Of one that is not evaluated yet the last return of training counts, if it is trained on its task.
    normalized: the means of runs in percent of the best known score, where that is known.
    runs: how many there are. finished: how many of them were evaluated.
    share: of the training of all of them, how much is over.
    best: whether it is better than each of the others on its task, and not by chance; see `is_better`. Not before all
        runs of the task are finished, and not if some had more frames than others.
    """

    score: Estimate
    scores: tuple[float, ...]
    normalized: tuple[float, ...]
    runs: int
    finished: int
    share: float
    best: bool = False


@dataclass(frozen=True)
class Cost:
    """What a variant costs: steps a second when learning (median over its runs) and when acting, on one core, and the
    bytes that it remembers of an environment."""

    learning: float
    acting: float
    state: int


@dataclass(frozen=True)
class Scoreboard:
    """Cells by task and variant, costs and overall scores by variant.

    overall: interquartile means, in percent of the best known scores, with 95 % intervals over tasks and runs; of
        the variants that have runs on all tasks whose best scores are known.
    leader: the variant with the highest of these if it is better than each of the others; see `is_better`. As for a
        cell, not before all runs are finished, and not if some had more frames than others on a task.
    scores: of what it is made.
    """

    tasks: list[str]
    variants: list[str]
    cells: dict[tuple[str, str], Cell]
    overall: dict[str, Estimate]
    leader: str | None
    costs: dict[str, Cost]
    scores: list[Score]


def scoreboard(scores: Sequence[Score]) -> Scoreboard:
    """The table of the scores of runs; see `reports.scores`."""
    tasks = list(dict.fromkeys(score.task for score in scores))
    variants = list(dict.fromkeys(score.variant for score in scores))
    cells = {}
    for task in tasks:
        found = {}
        for variant in variants:
            own = [score for score in scores if (score.task, score.variant) == (task, variant)]
            if own:
                found[variant] = _cell(own)
        for variant, cell in found.items():
            rivals = [other for name, other in found.items() if name != variant]
            is_ahead = bool(rivals) and all(is_better([cell.scores], [rival.scores]) for rival in rivals)
            cells[task, variant] = replace(cell, best=is_ahead and _is_decided(scores, task))

    costs = {}
    for variant in variants:
        costs[variant] = _cost([score for score in scores if score.variant == variant])
    # Tasks whose best scores are known: there, runs have scores in percent of these.
    known = list(dict.fromkeys(task for (task, _), cell in cells.items() if cell.normalized))
    percent: dict[str, list[tuple[float, ...]]] = {}
    for variant in variants:
        of_tasks = [cells[task, variant].normalized for task in known if (task, variant) in cells]
        if len(known) > 1 and len(of_tasks) == len(known) and all(of_tasks):
            percent[variant] = of_tasks
    overall = {}
    for variant, of_tasks in percent.items():
        overall[variant] = estimate(interquartile_mean, [np.array(of_task) for of_task in of_tasks])
    leader = None
    if all(_is_decided(scores, task) for task in tasks):
        leader = _leader(percent, overall)
    return Scoreboard(tasks, variants, cells, overall, leader, costs, list(scores))


def _is_decided(scores: Sequence[Score], task: str) -> bool:
    """Whether all runs of a task are finished and had equally many frames, so that one variant can be called the best.

    Runs of other people's files may have had more."""
    own = [score for score in scores if score.task == task]
    frames = {score.of_task.get("frames") for score in own}
    return len(frames) == 1 and all(score.finished for score in own)


def _leader(scores: Mapping[str, Sequence[Sequence[float]]], overall: Mapping[str, Estimate]) -> str | None:
    """See `Scoreboard`; None if there is no such variant, or only one."""
    if len(overall) < 2:
        return None
    first = max(overall, key=lambda variant: overall[variant].value)
    is_ahead = all(is_better(scores[first], scores[rival]) for rival in overall if rival != first)
    return first if is_ahead else None


def _cell(runs: Sequence[Score]) -> Cell:
    """A variant on a task, by its runs there; `best` is only known beside the others."""
    known = [run for run in runs if run.has_score]
    scores = tuple(run.mean for run in known)
    score = Estimate(math.nan, math.nan, math.nan)
    if len(scores) > 1:
        score = estimate(mean, [np.array(scores)])
    elif known:
        (only,) = known
        score = Estimate(only.mean, only.low, only.high)

    normalized = tuple(run.normalized for run in known)
    if any(math.isnan(each) for each in normalized):
        normalized = ()
    share = float(np.mean([run.share for run in runs]))
    finished = sum(run.finished for run in runs)
    return Cell(score, scores, normalized, len(runs), finished, share)


def is_better(scores: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    """Whether runs with these scores on each task are better than others; see `is_confirmed`.

    Nothing is known of single runs: how much episodes differ says nothing about other seeds.
    """
    ours = [np.array(task) for task in scores]
    theirs = [np.array(task) for task in others]
    if not repeated(ours, theirs):
        return False
    improvement = estimate(probability_of_improvement, ours, theirs)
    return is_confirmed(improvement, chance_of_improvement(ours, theirs))


def _cost(scores: Sequence[Score]) -> Cost:
    """What a variant costs, by all of its runs."""
    learning = _median([score.learning for score in scores])
    acting = _median([score.acting for score in scores])
    return Cost(learning, acting, scores[0].state_bytes)


def _median(numbers: Sequence[float]) -> float:
    """Of the numbers that are known; NaN if none is."""
    known = [number for number in numbers if not math.isnan(number)]
    return float(np.median(known)) if known else math.nan


def write_scoreboard(folder: Path, board: Scoreboard, command: str, report: bool = False) -> Path:
    """Writes the page `scoreboard.html` and, in the folder `report` beside it, the files; returns the page's path.

    report: whether there is, or will be, a report of the comparison in the folder.
    """
    _write_files(folder, as_files(board))
    finished = sum(cell.finished for cell in board.cells.values())
    runs = sum(cell.runs for cell in board.cells.values())
    data = {
        "title": f"{plural(len(board.tasks), 'task')}, {plural(len(board.variants), 'variant')}",
        "about": f"{finished} of {runs} runs are finished",
        "report": report,
        "several": len(board.variants) > 1,
        "overall": bool(board.overall),
        "scores": as_table(board),
        "costs": costs_table(board),
        "command": command,
    }
    return write_page(folder / "scoreboard.html", "scoreboard", data)


def write_scores(folder: Path, scores: Sequence[Score]) -> None:
    """Writes the scores of runs alone into the folder `report`, for other comparisons."""
    _write_files(folder, {FILE: as_json(scores).encode()})


def _write_files(folder: Path, content_by_name: Mapping[str, bytes]) -> None:
    """Writes files into the folder `report`."""
    beside = folder / FOLDER
    require_no_link(beside)
    beside.mkdir(parents=True, exist_ok=True)
    for name, content in content_by_name.items():
        with replacing(beside / name) as temporary:
            temporary.write_bytes(content)


def as_table(board: Scoreboard) -> dict[str, Any]:
    """The scores, as `data_table` of `macros.html` reads them: a row a task, a column a variant."""
    known = {task: reference_scores(task) for task in board.tasks}
    named = [name for name in REFERENCES if any(scores[name] is not None for scores in known.values())]
    is_even = len({cell.runs for cell in board.cells.values()}) == 1
    rows: list[list[Any]] = []
    for task in board.tasks:
        row: list[Any] = [task]
        for name in named:
            reference = known[task][name]
            row.append("-" if reference is None else significant(float(reference)))
        for variant in board.variants:
            cell = board.cells.get((task, variant))
            row.append("-" if cell is None else _shown(cell, is_even))
        rows.append(row)
    if board.overall:
        last: list[Any] = ["interquartile mean, % of the best known", *[""] * len(named)]
        for variant in board.variants:
            score = board.overall.get(variant)
            if score is None:
                last.append("-")
            else:
                is_best = variant == board.leader
                last.append({"text": f"{score.value:.1f}", "small": _interval(score), "best": is_best})
        rows.append(last)
    titles = [REFERENCES[name] for name in named]
    return {"head": ["task", *titles, *board.variants], "rows": rows}


def _shown(cell: Cell, is_even: bool) -> dict[str, Any]:
    """The score of a cell; how many runs it is of, unless all cells have as many; and how much of them is trained."""
    parts = [_interval(cell.score)]
    if not is_even:
        parts.append(plural(cell.runs, "run"))
    if cell.finished < cell.runs:
        parts.append(f"{100 * cell.share:.0f} % trained")
    text = significant(cell.score.value) if cell.scores else "-"
    return {"text": text, "small": " ".join(part for part in parts if part), "best": cell.best}


def _interval(score: Estimate) -> str:
    """The ends in brackets; that they are equal, if they are; empty without an interval."""
    if math.isnan(score.low):
        return ""
    if score.low == score.high:
        return EQUAL
    return f"[{significant(score.low)}, {significant(score.high)}]"


def costs_table(board: Scoreboard) -> dict[str, Any]:
    """The costs, in the same form."""
    rows = []
    for name, cost in board.costs.items():
        speeds = [quantity(speed) for speed in (cost.learning, cost.acting)]
        rows.append([name, *speeds, f"{cost.state / 1024:.1f} KiB"])
    return {"head": ["variant", "learning, steps/s", "acting, steps/s", "state"], "rows": rows}


def as_files(board: Scoreboard) -> dict[str, bytes]:
    """The table for people (Markdown) and for programs (CSV and JSON), by file name."""
    rows = []
    for (task, variant), cell in board.cells.items():
        cost = board.costs[variant]
        rows.append(
            {
                "task": task,
                "variant": variant,
                "return": cell.score.value,
                "low": cell.score.low,
                "high": cell.score.high,
                "normalized": float(np.mean(cell.normalized)) if cell.normalized else math.nan,
                "runs": cell.runs,
                "finished": cell.finished,
                "trained_share": cell.share,
                "learning_steps_per_second": cost.learning,
                "acting_steps_per_second": cost.acting,
                "state_bytes": cost.state,
            }
        )
    scores = _markdown(as_table(board))
    costs = _markdown(costs_table(board))
    texts = {
        "scoreboard.csv": format_csv(rows),
        "scoreboard.json": f"{format_json(rows, indent=1)}\n",
        "scoreboard.md": f"{scores}\n\n{costs}\n",
        FILE: as_json(board.scores),
    }
    return {name: text.encode() for name, text in texts.items()}


def _markdown(table: dict[str, Any]) -> str:
    """A table of `as_table` as Markdown, the best in bold."""

    def text(cell: Any) -> str:
        if isinstance(cell, dict) and cell.get("best"):
            cell = {**cell, "text": f"**{cell['text']}**"}
        return escaped(cell_text(cell).replace("  ", " "))

    def escaped(words: str) -> str:
        return printable(words).replace("|", "\\|")

    head = [escaped(title) for title in table["head"]]
    lines = [head, ["---"] * len(head)]
    for row in table["rows"]:
        lines.append([text(cell) for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
