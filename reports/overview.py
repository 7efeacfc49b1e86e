"""The runs below a folder in a few words: state, progress, score, and what to type next."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from reports.comparison import KIND
from reports.tables import evaluation_rows, next_command, number
from sequences.kinds import CONFIGS
from storage.files import read_json
from storage.run import Run
from training.config import core_name, read_config
from training.console import quantity

DEPTH = 3
"""Folders in folders that are searched for runs."""


class Entry(NamedTuple):
    """A run in words. name: its path below the folder that was searched. state: "damaged" if it cannot be read, and
    `score` then says why. data: its environment or corpus. share: of the training that is done, 0 to 1. age: seconds
    since its last row of metrics."""

    run: Run
    name: str
    state: str
    kind: str = ""
    data: str = ""
    about: str = ""
    share: float = 0.0
    progress: str = ""
    score: str = ""
    age: float = math.inf
    next: str = ""


def find_runs(folder: Path) -> dict[str, Run]:
    """Runs below a folder, or the folder itself, by their path in it; links are not followed.

    Raises an OSError if the folder cannot be read.
    """
    if os.path.isfile(Run(folder).config_file):  # unlike `Path.is_file`, false without permission
        return {".": Run(folder)}
    found = {}

    def search(within: Path, depth: int) -> Iterator[Path]:
        with os.scandir(within) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in sorted(path for path in folders if not path.name.startswith(".")):
            if os.path.isfile(Run(path).config_file):
                yield path
            elif depth > 1:
                with suppress(OSError):  # no permission, or it was removed meanwhile
                    yield from search(path, depth - 1)

    for path in search(folder, DEPTH):
        found[path.relative_to(folder).as_posix()] = Run(path)
    return found


def describe(name: str, run: Run) -> Entry:
    """A run in words; one that cannot be read is "damaged"."""
    try:
        kind, _ = run.read_kind()
        config = read_config(run, CONFIGS[kind])
        row, (counter, total) = run.last_row(), config.goal
        state = run.state(row, counter, total)
    except (OSError, ValueError) as error:
        return Entry(run, name, "damaged", score=str(error))
    summary: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        evaluation = read_json(run.evaluation_file())
        summary = evaluation if isinstance(evaluation, dict) else {}
    done = row.get(counter, 0.0)
    if done > total:
        done = float(total)
    elif not done >= 0:  # negative or NaN
        done = 0.0
    data = config.env if kind == "launch" else str(getattr(config.corpus, "path", config.corpus) or kind)
    data = config.path if data == "folder" else data
    about, age = f"{core_name(config)} on {data}", time.time() - row.get("time", math.nan)
    age = max(age, 0.0) if math.isfinite(age) else math.inf
    progress = f"{quantity(done)} of {quantity(total)} {'frames' if kind == 'launch' else 'steps'}"
    found = run, name, state, kind, data, about, done / total, progress, score_text(kind, summary, row), age
    return Entry(*found, next_command(run, config, state))


def score_text(kind: str, summary: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The score of a run in a few words: of its evaluation, else of its last row of metrics."""
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        if kind == "launch" and summary:
            rows = evaluation_rows(summary)
            names = "human-normalised", "oracle-normalised", "return"
            return next(f"{name} {rows[name]}" for name in names if name in rows)
        for scale in KIND[kind].scales:
            if type(summary.get(scale.final)) is float:
                return f"{scale.text} {summary[scale.final]:.4g}"
    found = ("return", number(row, "episode/return")) if kind == "launch" else ("loss", number(row, "loss/nll", ".4g"))
    return "" if found[1] == "-" else f"{' '.join(found)} in training"


def ago(seconds: float) -> str:
    """How long ago, in one unit: 3 min ago; empty if that is unknown."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if math.isfinite(seconds) and (seconds >= size or unit == "s"):
            return f"{seconds / size:.0f} {unit} ago"
    return ""
