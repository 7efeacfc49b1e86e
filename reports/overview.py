"""The runs below a folder in a few words: state, progress, score, learning curve, and what to type next."""

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reports.comparison import KIND, in_last_stage, interval_of
from reports.pages import mean
from reports.tables import next_command, with_brackets
from sequences.kinds import CONFIGS
from storage.files import Json, is_finite, one_line, read_json
from storage.metrics import sample_metrics
from storage.run import Run
from training.config import core_name
from training.console import quantity
from training.grid import label
from training.plain import by_full_name, read_config
from training.sweep import FILE

DEPTH = 3
"""Folders in folders that are searched for runs."""
CURVE_POINTS = 60
"""Most points of a small curve; each is the mean of neighboring values."""


class Score(NamedTuple):
    """The score of a run.

    Attributes:
        name: what is measured, in words.
        value: the score.
        low, high: its 95 % interval, or NaN.
        training: whether it is the last one of training, and not that of the evaluation at the end.
        tasks: of how many tasks it is the mean; 0 if there is one.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    training: bool = False
    tasks: int = 0

    @property
    def texts(self) -> tuple[str, str]:
        """The value and its interval, which is empty if there is none."""
        value, interval = with_brackets(self.value, self.low, self.high)
        if self.name.endswith("normalized"):
            value = f"{value} %" if self.low < self.high else f"{self.value:.1f} %"
        return value, interval

    def __str__(self) -> str:
        parts = [self.name, *self.texts]
        if self.tasks:
            parts.append(f"mean of {self.tasks} tasks")
        parts.append("in training" if self.training else "in the evaluation")
        return " ".join(part for part in parts if part)


class Entry(NamedTuple):
    """A run in words.

    Attributes:
        name: its path below the folder that was searched.
        state: see `Run.state`; "damaged" if it cannot be read.
        kind: launch, text, speech or images.
        data: its environment or corpus.
        about: core and data.
        share: of the training that is done, 0 to 1.
        amounts, progress: see `amounts_text` and `progress_text`; empty if nothing was measured.
        score: None if nothing was measured.
        age: seconds since its last row of metrics.
        next: the command to type next.
        config: None if it cannot be read.
        error: why it cannot be read.
    """

    run: Run
    name: str
    state: str
    kind: str = ""
    data: str = ""
    about: str = ""
    share: float = 0.0
    amounts: str = ""
    progress: str = ""
    score: Score | None = None
    age: float = math.inf
    next: str = ""
    config: Any = None
    error: str = ""


class Group(NamedTuple):
    """Runs that are shown together, the newest first.

    Attributes:
        folder: that all of them are in, below the one that was searched.
        kind: of all of them; empty if `data` is.
        data: that all learn from; empty if they are runs that nothing in their folder is to be compared with.
        sweep: whether `compressive compare` has made the folder.
        entries: the runs.
        variants: a name of the variant of each run.
    """

    folder: str
    kind: str
    data: str
    sweep: bool
    entries: list[Entry]
    variants: list[str]


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
        return read_entry(name, run)
    except (OSError, ValueError) as error:
        return Entry(run, name, "damaged", error=one_line(error))


def read_entry(name: str, run: Run) -> Entry:
    """A run in words. Raises an OSError or a ValueError for one that cannot be read."""
    kind, _ = run.read_kind()
    config = read_config(run, CONFIGS[kind])
    row = run.last_row()
    counter, total = config.goal
    state = run.state(row, counter, total)
    done = amount(row, counter)
    data = _data(kind, config)
    if kind == "launch":
        # Every row has the latest returns. Those of an earlier stage, or of a training elsewhere, are no scores here.
        is_here = in_last_stage(config, row) and data == config.env
        measured = row if is_here else {}
    else:
        # Few rows have what it was measured on.
        measured = {**row, **run.last_row(KIND[kind].measured)}
    return Entry(
        run=run,
        name=name,
        state=state,
        kind=kind,
        data=data,
        about=f"{core_name(config)} on {data}",
        share=min(1.0, done / total),
        amounts=amounts_text(kind, done, total) if row else "",
        progress=progress_text(kind, done, total) if row else "",
        score=read_score(kind, read_summary(run), measured),
        age=_age(row),
        next=next_command(run, config, state),
        config=config,
    )


def _data(kind: str, config: Any) -> str:
    """What a run is scored on: an environment, a corpus or a folder."""
    if kind == "launch":
        return str(config.eval_env or config.env)
    # The corpus of text is a name, those of other kinds have a path.
    corpus = str(getattr(config.corpus, "path", config.corpus) or kind)
    if corpus == "folder":
        return str(config.path)
    return corpus


def _age(row: Mapping[str, Any]) -> float:
    """Seconds since a row of metrics; infinity if that is unknown."""
    age = time.time() - row.get("time", math.nan)
    if not math.isfinite(age):
        return math.inf
    return max(age, 0.0)


def read_summary(run: Run) -> Json:
    """The summary of a run's evaluation; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        evaluation = read_json(run.evaluation_file())
        if isinstance(evaluation, dict):
            return evaluation
    return {}


def amount(row: Mapping[str, Any], counter: str) -> float:
    """What a row of metrics says was learned from; 0 for a damaged row, in which it is negative or NaN."""
    done = float(row.get(counter, 0.0))
    if not done >= 0:
        return 0.0
    return done


def amounts_text(kind: str, done: float, total: int) -> str:
    """What a run has learned from, and all that it is to learn from: frames of an agent, steps of a sequence model."""
    unit = "frames" if kind == "launch" else "steps"
    return f"{quantity(done)} of {quantity(total)} {unit}"


def progress_text(kind: str, done: float, total: int) -> str:
    """The same with the share."""
    share = min(1.0, done / total)
    return f"{amounts_text(kind, done, total)} ({100 * share:.1f} %)"


def read_score(kind: str, evaluation: Mapping[str, Any], row: Mapping[str, Any]) -> Score | None:
    """The score of a run: of its evaluation, else of a row of metrics; None if neither has one."""
    scales = KIND[kind].scales
    # An evaluation can be damaged in any way.
    with suppress(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        summary = by_full_name(dict(evaluation))
        tasks = summary.get("tasks")
        num_tasks = len(tasks) if isinstance(tasks, list) else 0
        for scale in scales:
            value = summary.get(scale.final)
            if is_finite(value):
                low, high = interval_of(summary, scale)
                return Score(_short(scale.name, scale.text), float(value), low, high, tasks=num_tasks)

    for scale in scales:
        value = row.get(scale.curve, math.nan)
        if math.isfinite(value):
            return Score(_short(scale.name, scale.text), value, training=True)
    loss = row.get("loss/nll", math.nan)
    if math.isfinite(loss):
        return Score("loss", loss, training=True)
    return None


def _short(name: str, text: str) -> str:
    """How a scale is called beside a score."""
    if name.endswith("_normalized"):
        return name.replace("_", "-")
    if name == "return":
        return name
    return text


def learning_curve(run: Run, config: Any) -> list[tuple[float, float]]:
    """The curve by which runs are compared, in few points: the share of training that is done, and the score there.

    Empty if nothing was measured or can be read.
    """
    counter, total = config.goal
    rows: list[dict[str, Any]] = []
    with suppress(OSError):
        rows = sample_metrics(run.path, KIND[config.kind].measured)
    places = np.array([row.get(counter, math.nan) / total for row in rows])
    preferred = [scale.curve for scale in KIND[config.kind].scales]
    for name in [*preferred, "loss/nll"]:
        scores = np.array([row.get(name, math.nan) for row in rows])
        known = np.isfinite(scores) & np.isfinite(places)
        if not known.any():
            continue
        parts = min(CURVE_POINTS, int(known.sum()))
        xs = np.array_split(places[known], parts)
        ys = np.array_split(scores[known], parts)
        return [(mean(x), mean(y)) for x, y in zip(xs, ys)]
    return []


def grouped(folder: Path, entries: Sequence[Entry]) -> list[Group]:
    """Runs by what they can be compared with: those of one folder that learn from the same data. The newest first.

    `compressive compare` writes its runs into one folder. A run that is alone with its data is among the other runs of
    its folder.
    """
    # By folder, kind and data.
    alike = defaultdict[tuple[str, str, str], list[Entry]](list)
    for entry in sorted(entries, key=lambda entry: entry.age):
        alike[_parent(entry), entry.kind, entry.data].append(entry)

    # Runs that nothing is to be compared with are together, whatever they learn from.
    found = defaultdict[tuple[str, str, str], list[Entry]](list)
    for (parent, kind, data), runs in alike.items():
        key = (parent, kind, data)
        if len(runs) == 1 or not data:
            key = (parent, "", "")
        found[key] += runs

    groups = []
    for (parent, kind, data), runs in found.items():
        runs.sort(key=lambda entry: entry.age)
        variants = [entry.about for entry in runs]
        if data:
            variants = label([entry.config for entry in runs])
        is_sweep = (folder / parent / FILE).is_file()
        groups.append(Group(parent, kind, data, is_sweep, runs, variants))
    return sorted(groups, key=lambda group: group.entries[0].age)


def _parent(entry: Entry) -> str:
    return entry.name.rpartition("/")[0]


def ago(seconds: float) -> str:
    """How long ago, in one unit: 3 min ago; empty if that is unknown."""
    if not math.isfinite(seconds):
        return ""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
