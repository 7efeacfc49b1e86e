"""What each run of a table of tasks reached, a row a run: of runs in folders, and of files that others wrote.

So runs of several machines, days and people stand in one table, of which only those of one's own need to be here.
`scoreboard` makes the table.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from agent.core import is_custom
from agent.core.matching import bytes_of_state
from envs import EnvironmentFailed, reference_scores
from reports.comparison import KIND, FinishedRun
from storage.files import Json, abbreviate, format_json, is_finite, read_json, require_schema
from training.config import RunConfig
from training.factories import make_agent, resolve_pixel_zero
from training.grid import DATA, OF_DATA, label, training_fields
from training.plain import from_plain

FILE = "scores.json"
"""Where a comparison writes its rows, in its folder `report`."""
NORMALIZED = [scale.final for scale in KIND["launch"].scales if scale.threshold is not None]
"""Scores in percent of the best known, the preferred one first."""
OF_MACHINE = {"learner.precision", "actors.precision", "learner.device", "actors.device"}
"""Settings that differ between machines and make no other agent."""
_KINDS = {str: "text", int: "a whole number", float: "a number or null", bool: "true or false"}
"""What a file has for the fields of a `Score`, in words."""
MOST = 2**63 - 1
"""The greatest seed and size of a state in a file."""
SHOWN = 3
"""Settings that are named where two variants differ in more."""
ROWS = 16
STEPS = 64
"""Environments that act together, and the fewest steps of a turn, when the time of acting is measured."""
TURNS = 3
"""Measurements of each network, of which the median counts."""


class Score(NamedTuple):
    """A run. Numbers that are not known are NaN.

    task: where it was evaluated. variant: the name of its agent, such as that of its core.
    settings: of its training, see `settings_of`; equal variants have equal ones.
    of_task: settings that are chosen for a task, such as its frames, and the environment of its training.
    seed: of its training.
    mean, low, high: its return, with the interval over episodes. Of a run that was not evaluated yet, the last return
        of its training.
    normalized: the score in percent of the best known.
    finished: whether it was evaluated. share: how much of its training is over.
    learning: steps a second of the whole run.
    acting: steps a second of its network alone, see `acting_speeds`.
    state_bytes: of the memory of one environment.
    """

    task: str
    variant: str
    settings: Json
    of_task: Json
    seed: int
    mean: float
    low: float
    high: float
    normalized: float
    finished: bool
    share: float
    learning: float
    acting: float
    state_bytes: int

    @property
    def has_score(self) -> bool:
        """Whether there is a return."""
        return not math.isnan(self.mean)


def scores_of(runs: Sequence[FinishedRun]) -> list[Score]:
    """The rows of agents' runs, which may be unfinished (`read_run(live=True)`); measures the speed of acting."""
    names = label([run.config for run in runs])
    configs: dict[str, RunConfig] = {}  # of the first run of each variant
    for run, variant in zip(runs, names):
        configs.setdefault(variant, run.config)
    speeds = dict(zip(configs, acting_speeds(list(configs.values()))))

    found = []
    for run, variant in zip(runs, names):
        found.append(_score(run, variant, speeds[variant], bytes_of_state(configs[variant].core_config)))
    return found


def _score(run: FinishedRun, variant: str, acting: float, state_bytes: int) -> Score:
    """The row of a run, and what its variant costs."""
    summary = run.summary
    settings, of_task = settings_of(run.config)
    normalized = [float(summary[scale]) for scale in NORMALIZED if scale in summary]
    return Score(
        task=run.data,
        variant=variant,
        settings=settings,
        of_task=of_task,
        seed=run.config.seed,
        mean=float(summary.get("return.mean", math.nan)),
        low=float(summary.get("return.low", math.nan)),
        high=float(summary.get("return.high", math.nan)),
        normalized=normalized[0] if normalized else math.nan,
        finished="episodes" in summary,
        share=run.share,
        learning=run.speed,
        acting=acting,
        state_bytes=state_bytes,
    )


def planned(configs: Sequence[RunConfig]) -> list[Score]:
    """The rows of runs that have not begun, without scores and costs: what there is to compare with a file's."""
    found = []
    for config, variant in zip(configs, label(configs)):
        # What depends on its environment is looked up there, as it will be when the run begins.
        run = not_begun(resolve_pixel_zero(config))
        found.append(_score(run, variant, acting=math.nan, state_bytes=0))
    return found


def not_begun(config: RunConfig) -> FinishedRun:
    """A run that has not begun."""
    return FinishedRun(Path(), config, config.eval_env or config.env, [], {})


def settings_of(config: RunConfig) -> tuple[Json, Json]:
    """The settings of an agent by full name as JSON has them: those of all its tasks, and those of its task alone.

    Where it is evaluated, its seed and its machine are none of them.
    """
    settings: Json = {}
    of_task: Json = {}
    fields = json.loads(json.dumps(training_fields(config)))  # which has lists for tuples
    for name, value in fields.items():
        if name in OF_DATA or name == "env":
            of_task[name] = value
        elif name not in DATA | OF_MACHINE | {"seed"}:
            settings[name] = value
    return settings, of_task


def _completed(settings: Json) -> Json:
    """The settings of a file, which may be older than some of today's: these have their defaults then.

    So does the configuration of a run that is resumed. A setting that is no more stays, and nothing of today equals it.
    """
    name = settings.get("agent.core.name")
    is_known = isinstance(name, str) and (name in RunConfig.cores or is_custom(name))
    if not is_known:
        return settings
    config = from_plain(RunConfig, {"agent": {"core": {"name": name}}})
    defaults, _ = settings_of(config)
    return defaults | settings


def acting_speeds(configs: Sequence[RunConfig]) -> list[float]:
    """Steps a second when acting: of each run's network alone, on one core, 16 rows at a time.

    NaN if the environment, whose observations and actions the network has, cannot be made here. The networks take
    turns, so that other load on the machine affects all of them alike, and the median turn counts.
    The clock is the CPU time of this thread, which stands still while another program has the core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng([]):
            turns = [_turn_of(config) for config in configs]
            for turn in turns:
                turn()  # fills the memory
            speeds: list[list[float]] = [[] for _ in turns]
            for _ in range(TURNS):
                for of_network, turn in zip(speeds, turns):
                    of_network.append(turn())
        return [statistics.median(of_network) for of_network in speeds]
    finally:
        torch.set_num_threads(threads)


def _turn_of(config: RunConfig) -> Callable[[], float]:
    """A function that acts for some steps, and returns the steps a second.

    It acts in whole segments: their last steps, which move the segment to memory, cost more than the others.
    """
    try:
        agent = make_agent(config).alone().eval()
    except (ValueError, ImportError, EnvironmentFailed):  # the run was trained on another machine, say
        return lambda: math.nan
    observation = agent.blank(ROWS)
    action = agent.distribution.none(ROWS)[:, None]
    reward = torch.zeros(ROWS, 1)
    reset = torch.zeros(ROWS, 1, dtype=torch.bool)
    state = agent.with_cache(agent.initial_state(ROWS))
    segment: int = getattr(config.core_config, "segment_size", 1)
    steps = segment * math.ceil(STEPS / segment)

    @torch.no_grad()
    def turn() -> float:
        nonlocal state
        begin = time.thread_time()
        for _ in range(steps):
            state = agent(observation, action, reward, reset, state).state
        return ROWS * steps / (time.thread_time() - begin)

    return turn


def as_json(scores: Iterable[Score]) -> str:
    """The rows that have a score as a file has them; what is not known is null.

    Settings, of which many rows have the same, are a list of their own. Rows have their places in it.
    """
    settings: list[Json] = []
    rows = []
    for score in scores:
        if not score.has_score:
            continue
        if score.settings not in settings:
            settings.append(score.settings)
        place = settings.index(score.settings)
        rows.append(score._asdict() | {"settings": place})
    return f"{format_json({'settings': settings, 'scores': rows}, indent=1)}\n"


def read_scores(path: Path) -> list[Score]:
    """The rows of a file that `as_json` made.

    Raises:
        ValueError, OSError: if there is no such file, or something else in it; names the file, the row and the field.
    """
    plain = read_json(path)
    require_schema(plain, {"settings": list, "scores": list}, str(path))
    settings = []
    for place, each in enumerate(plain["settings"]):
        if not isinstance(each, dict):
            raise ValueError(f"{path}: settings {place}: expected an object, got {abbreviate(each)}")
        try:
            settings.append(_completed(each))
        except ValueError as error:  # the name of a custom core
            raise ValueError(f"{path}: settings {place}: {error}") from error

    rows = [_read_row(row, settings, f"{path}: row {number}") for number, row in enumerate(plain["scores"])]
    return [_of_today(row) for row in rows]


def _of_today(row: Score) -> Score:
    """A row of a file, which may be older than the environments of rows and some of the settings of tasks."""
    _, defaults = settings_of(RunConfig())
    # Agents were trained in their tasks, and what may differ between tasks now did not.
    settings = {name: value for name, value in row.settings.items() if name not in OF_DATA}
    same_in_all = {name: value for name, value in row.settings.items() if name in OF_DATA}
    of_task = defaults | {"env": row.task} | same_in_all | row.of_task
    return row._replace(settings=settings, of_task=of_task)


def _read_row(row: Any, settings: Sequence[Json], where: str) -> Score:
    """A row of a file, and the settings of this; `where` names the row in errors."""
    if not isinstance(row, dict) or row.keys() != set(Score._fields):
        expected = f"an object of {', '.join(Score._fields)}"
        raise ValueError(f"{where}: expected {expected}, got {abbreviate(row)}")
    values: Json = {}
    for name, kind in Score.__annotations__.items():
        value = row[name]
        if name == "settings":
            if type(value) is not int or not 0 <= value < len(settings):
                raise ValueError(f"{where}: settings: expected a place in the file's list, got {abbreviate(value)}")
            value = settings[value]
        elif name == "of_task":
            if not isinstance(value, dict):
                raise ValueError(f"{where}: of_task: expected an object, got {abbreviate(value)}")
        elif kind is float and value is None:
            value = math.nan
        elif kind is float and is_finite(value):
            value = float(value)
        elif type(value) is not kind:
            raise ValueError(f"{where}: {name}: expected {_KINDS[kind]}, got {abbreviate(value)}")
        values[name] = value

    score = Score(**values)
    try:
        reference_scores(score.task)
    except ValueError as error:
        raise ValueError(f"{where}: task: {error}") from error
    is_seed = 0 <= score.seed <= MOST
    is_size = 0 <= score.state_bytes <= MOST
    if not is_seed or not is_size or not 0 <= score.share <= 1:
        raise ValueError(f"{where}: expected numbers from 0 to 2^63 - 1, and a share up to 1, got {abbreviate(row)}")
    return score


def joined(own: Sequence[Score], others: Sequence[Score], file: str) -> tuple[list[Score], dict[str, str]]:
    """Rows, and those of a file that are not among them.

    A variant of the file that has the name of another one, and other settings or, on the same task, others of the task
    such as its frames, is called by the name of the file as well: they were not trained on equal terms.

    Returns:
        the rows, and what is different, by the name of each such variant.
    """
    different: dict[str, str] = {}
    for score in others:
        words = _difference(score, own)
        if words:
            different.setdefault(score.variant, words)
    known = {(score.task, score.variant, score.seed) for score in own}
    found = list(own)
    for score in others:
        if score.variant in different:
            score = score._replace(variant=_beside(score.variant, file))
        run = (score.task, score.variant, score.seed)
        if run not in known:
            known.add(run)
            found.append(score)
    return found, {_beside(variant, file): words for variant, words in different.items()}


def _beside(variant: str, file: str) -> str:
    """The name of a variant of a file that was trained otherwise than that of the same name."""
    return f"{variant} ({file})"


def _difference(score: Score, own: Sequence[Score]) -> str:
    """In what a variant differs from the one of its name, on all tasks or on its own; "" if in nothing."""
    for each in own:
        if each.variant != score.variant:
            continue
        words = _differences(score.settings, each.settings)
        if not words and each.task == score.task:
            words = _differences(score.of_task, each.of_task)
            words = f"{score.task}: {words}" if words else ""
        if words:
            return words
    return ""


def _differences(theirs: Json, ours: Json) -> str:
    """The first settings in which two runs differ, in words; "" if they are equal. Cores do not have all of them."""

    def value(settings: Json, name: str) -> str:
        return abbreviate(settings[name]) if name in settings else "none"

    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    shown = [f"{name} {value(theirs, name)}, here {value(ours, name)}" for name in names[:SHOWN]]
    if len(names) > SHOWN:
        shown.append(f"{len(names) - SHOWN} more")
    return "; ".join(shown)
