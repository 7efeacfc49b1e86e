"""Finished runs of one kind side by side, in numbers: curves, final scores, and how surely they differ.

Runs of one variant differ in seed and data only. Data are an environment or a corpus; environments are tasks in the
sense of `rliable`: scores of several are joined only on a common scale, that of people or of an oracle.
"""

import functools
import itertools
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.intervals import Sample, bootstrap_interval
from agent.core import MemorylessConfig
from agent.core.matching import bytes_of_state
from envs import require_consent
from reports import statistics
from reports.statistics import interquartile_mean, mean_curve, probability_of_improvement
from sequences.kinds import CONFIGS
from storage.errors import UserError, describe
from storage.files import is_finite, read_json, require_schema
from storage.metrics import sample_metrics
from storage.run import RUN_COMMANDS, Run
from training.console import plural
from training.factories import import_core
from training.grid import label
from training.plain import by_full_name, read_config
from training.trust import require_core


class Scale(NamedTuple):
    """A score by which runs are compared.

    Attributes:
        name: in tables.
        text: in words.
        curve: its metric while training.
        final: its name in `evaluation.json`, with points between nested ones.
        lower: whether lower is better.
        threshold: when runs reach it is compared, unless the user gives another one; None for no threshold.
    """

    name: str
    text: str
    curve: str
    final: str
    lower: bool = False
    threshold: float | None = None


class Kind(NamedTuple):
    """What is compared of a kind of run.

    Attributes:
        over: what the points of curves are means over.
        scales: the preferred one first; each evaluation has the last one.
        details: other numbers for the table of runs, and their names in `evaluation.json`.
        references: scores of predictors without a network, to compare with, and their names in `evaluation.json`.
        unit: in which the `goal` of a configuration counts.
        speed: what is counted per second.
        data: what is learned from, in words.
        measured: a metric of the rows that have an evaluation during training. They are few.
    """

    over: str
    scales: tuple[Scale, ...]
    details: Mapping[str, str]
    references: Mapping[str, str] = MappingProxyType({})
    unit: str = "steps"
    speed: str = "tokens"
    data: str = "corpus"
    measured: str = "valid/nll"


def _normalized(name: str) -> Scale:
    scale = f"{name}_normalized"
    return Scale(scale, f"{name}-normalized score (%)", f"episode/{scale}", scale, threshold=75.0)


NAMED = 5
"""Most runs that are not finished of which a caution says how far they are."""
MOST_CHANCE = 0.05
"""The greatest probability, if two variants were equally good, of a difference that is taken for a real one."""
FEWEST_EPISODES = 50
"""A mean over fewer may be beyond a threshold by chance, as it often is over the first few of a run."""
CORRECT = "correct_choices_percent"
"""In tables and summaries: 100 times the mean of "correct_choices" in `evaluation.json`."""
KIND = {
    "launch": Kind(
        unit="frames",
        speed="steps",
        data="environment",
        measured="evaluation/return",
        over="over the last 200 episodes",
        scales=(
            _normalized("human"),
            _normalized("oracle"),
            Scale("return", "return per episode", "episode/return", "return.mean"),
        ),
        details={"return": "return.mean", "return_low": "return.low", "return_high": "return.high", CORRECT: CORRECT},
    ),
    "text": Kind(
        over="on the split valid",
        scales=(
            Scale("bits_per_byte", "bits per byte", "valid/bits_per_byte", "bits_per_byte", lower=True),
            Scale("word_perplexity", "perplexity per word", "valid/word_perplexity", "word_perplexity", lower=True),
        ),
        details={name: name for name in ("nats_per_token", "word_perplexity")},
    ),
    "speech": Kind(
        over="on the split validation",
        scales=(Scale("nats", "nats per sample", "valid/nll", "nats", lower=True),),
        details={name: name for name in ("bits", "validation", "parameters")},
        references={"linear predictor": "linear", "frequencies": "order_0"},
    ),
    "images": Kind(
        over="on the split valid",
        scales=(Scale("bits_per_dim", "bits per dimension", "valid/bits_per_dim", "bits_per_dim", lower=True),),
        details={name: name for name in ("nats", "validation", "parameters")},
        references={"PNG files": "png", "uniform": "uniform"},
    ),
}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: rows of metrics as `sample_metrics` reads them, and the numbers of its evaluation by name.

    data: its environment or corpus. digest: of the corpus's contents, if the run knows it. finished: False for a run
    whose last scores in training stand for its evaluation; see `read_run`.
    """

    path: Path
    config: Any
    data: str
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    variant: str = ""
    digest: str = ""
    finished: bool = True

    def is_same_as(self, other: "FinishedRun") -> bool:
        """Whether two are one run, by two paths or as a copy: the rows of two runs have different times."""
        return self.config == other.config and self.rows == other.rows

    @property
    def learned_from(self) -> str:
        """What its curves are of: `data`, but for an agent that is evaluated elsewhere, where it is trained."""
        return getattr(self.config, "env", self.data)

    def curve(self, scale: Scale) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Frames or steps [N], and the scores measured there [N]; of an agent's run in stages, in the last of them."""
        counter, _ = self.config.goal
        points = [(row[counter], row[scale.curve]) for row in self._rows_with(scale)]
        places, scores = np.array(points, np.float64).reshape(-1, 2).T
        return places, scores

    def _rows_with(self, scale: Scale) -> Iterator[dict[str, Any]]:
        """The rows in which a score and its place are known; of a run in stages, those of the last stage."""
        counter, _ = self.config.goal
        for row in self.rows:
            is_known = not math.isnan(row.get(counter, math.nan)) and not math.isnan(row.get(scale.curve, math.nan))
            if is_known and in_last_stage(self.config, row):
                yield row

    def interval(self, scale: Scale) -> tuple[float, float]:
        """The 95 % interval over episodes of its final score; NaN if the evaluation has none."""
        return interval_of(self.summary, scale)

    def reached(self, threshold: float | None, scale: Scale) -> float | None:
        """Frames or steps at which its curve first reached a score, as a mean over `FEWEST_EPISODES` or more."""
        if threshold is None:
            return None
        counter, _ = self.config.goal
        sign = -1 if scale.lower else 1
        for row in self._rows_with(scale):
            # Only agents have episodes.
            is_by_chance = row.get("episode/count", math.inf) < FEWEST_EPISODES
            if sign * row[scale.curve] >= sign * threshold and not is_by_chance:
                return float(row[counter])
        return None

    @property
    def share(self) -> float:
        """How much of its training is over."""
        if not self.rows:
            return 0.0
        counter, total = self.config.goal
        return min(1.0, self.rows[-1].get(counter, 0.0) / total)

    @property
    def speed(self) -> float:
        """Steps or tokens a second: the median over its rows."""
        name = f"speed/{KIND[self.config.kind].speed}_per_second"
        speeds = [row[name] for row in self.rows if not math.isnan(row.get(name, math.nan))]
        if not speeds:
            return math.nan
        return float(np.median(speeds))


def interval_of(summary: Mapping[str, Any], scale: Scale) -> tuple[float, float]:
    """The 95 % interval of a score in the numbers of an evaluation by name; NaN if there is none."""
    # A mean has its ends beside it; other scores have a list of both.
    group, _, statistic = scale.final.rpartition(".")
    ends = summary.get(f"{scale.final}_interval")
    if group and statistic == "mean":
        ends = [summary.get(f"{group}.low"), summary.get(f"{group}.high")]
    if not isinstance(ends, list) or len(ends) != 2:
        return math.nan, math.nan
    low, high = ends
    return _number_or_nan(low), _number_or_nan(high)


def _number_or_nan(value: Any) -> float:
    return float(value) if is_finite(value) else math.nan


def in_last_stage(config: Any, row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics is of the last stage of a run, in its own environment; also without stages."""
    last_stage = len(getattr(config, "stages", ())) + 1
    return row.get("stage", last_stage) == last_stage


def read_run(path: Path, allow: str | None = None, live: bool = False) -> FinishedRun:
    """A finished run.

    Args:
        path: its folder.
        allow: code that the run may name; see `training.trust`.
        live: take a run that is not finished by the last scores of its curves, or without any if these are of another
            environment than its evaluation, such as that of an earlier stage.

    Raises:
        UserError: if the folder is not a run, or the run is not finished, damaged, or needs a permission.
    """
    run = Run(path)
    rows: list[dict[str, Any]] = []
    try:
        kind_name, _ = run.read_kind()
        config = read_config(run, CONFIGS[kind_name])
        data, digest = _read_data(run, kind_name, config, allow)
        with suppress(FileNotFoundError):  # nothing was measured yet
            rows = sample_metrics(path, KIND[kind_name].measured)
    except (ValueError, OSError, ImportError) as error:
        raise UserError(describe(error)) from error

    kind = KIND[kind_name]
    counter, total = config.goal
    done = 0.0
    if rows:
        done = rows[-1].get(counter, 0.0)
    is_trained = done >= total
    if live and not (is_trained and run.evaluation_file().is_file()):
        unfinished = FinishedRun(path, config, data, rows, {}, digest=digest, finished=False)
        if unfinished.learned_from != data:
            return unfinished  # what it reaches in training is another task's score
        in_own = [row for row in rows if in_last_stage(config, row)]
        if rows and not in_own:
            return unfinished
        return replace(unfinished, summary=_last_scores(path, in_own, kind))

    again = f"resume with: {RUN_COMMANDS[kind_name][0]} --resume {shlex.quote(str(path))}"
    if not is_trained:
        raise UserError(f"{path}: expected a finished run, got {done:.0f} of {total} {kind.unit}; {again}")
    try:
        summary = _read_evaluation(run, kind)
    except (OSError, ValueError) as error:
        expected = f"expected the evaluation of a finished run in {run.evaluation_file().name}"
        raise UserError(f"{path}: {expected}, got: {describe(error)}; {again}") from error
    return FinishedRun(path, config, data, rows, summary, digest=digest)


def _read_data(run: Run, kind: str, config: Any, allow: str | None) -> tuple[str, str]:
    """The name of what a run learned from, and a digest of it if it is a corpus; see `read_run`."""
    if kind == "launch":
        data = config.eval_env or config.env
        for env in {config.env, data}:
            require_consent(env, allow)
        require_core(config, allow)
        import_core(config)
        return data, ""
    if kind in ("speech", "images"):
        plain = read_json(run.corpus_file)
        require_schema(plain, {"name": str, "digest": str}, str(run.corpus_file))
        return plain["name"], plain["digest"]
    digest = ""
    with suppress(FileNotFoundError):
        plain = read_json(run.record_file(kind))
        require_schema(plain, {}, str(run.record_file(kind)))
        digest = str(plain.get("digest", ""))
    return text_name(config), digest


def _last_scores(path: Path, rows: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, float]:
    """The last scores of a run that is not finished, by their names in an evaluation."""
    last = {}
    for scale in kind.scales:
        measured = [row[scale.curve] for row in rows if scale.curve in row]
        if measured and math.isfinite(measured[-1]):
            last[scale.final] = measured[-1]
    if kind.scales[-1].final not in last:
        raise UserError(f"{path}: expected a run with scores, got none yet")
    return last


def text_name(config: Any) -> str:
    """The name of a text: that of its folder or corpus. With words as tokens also the vocabulary: a loss of other words
    is a loss of another text."""
    name = Path(config.path).name if config.corpus == "folder" else config.corpus
    if config.tokens != "words":
        return name
    words = "all" if config.vocabulary is None else f"{config.vocabulary:,}"
    return f"{name} ({words} words)"


def require_equal_data(corpora: Sequence[tuple[Any, str, str]]) -> None:
    """Raises a UserError if a name stands for several data, given configurations with the name and digest of theirs."""
    known: dict[tuple[Any, ...], str] = {}
    for config, name, digest in corpora:
        # The digest of a text is of its tokens, so that other tokens have another.
        options = vars(config)
        key = (name, options.get("tokens"), options.get("vocabulary"))
        first_digest = known.setdefault(key, digest)
        if digest != first_digest:
            raise UserError(f"mixed corpora: expected runs on the same data, got others under one name, {name}")


def _read_evaluation(run: Run, kind: Kind) -> dict[str, Any]:
    """The numbers of a run's evaluation by name. Raises a ValueError if a score is no finite number, or missing."""
    plain = read_json(run.evaluation_file())
    require_schema(plain, {}, "evaluation")
    # Not every evaluation has these.
    optional: dict[str, Any] = {"correct_choices": {"mean": float}, "tasks": [dict], "parameters": int}
    present = {name: schema for name, schema in optional.items() if name in plain}
    require_schema(plain, present, "evaluation")
    summary = by_full_name(plain)
    if "correct_choices.mean" in summary:
        summary[CORRECT] = 100 * summary["correct_choices.mean"]

    # Of the scores, each evaluation has that of the last scale.
    required = kind.scales[-1].final
    optional_scores = [*(scale.final for scale in kind.scales), *kind.references.values(), CORRECT]
    for name in kind.details.values():
        value = summary.get(name)
        if value is not None and not is_finite(value):
            raise ValueError(f"evaluation: {name}: expected a finite number or null, got {value!r}")
    for name in [required, *optional_scores]:
        if name in summary or name == required:
            require_schema(summary, {name: float}, "evaluation")
            if not math.isfinite(summary[name]):
                raise ValueError(f"evaluation: {name}: expected a finite number, got {summary[name]}")
    return summary


class Estimate(NamedTuple):
    """A number and its 95 % interval over runs, which is NaN if one of the samples is a single run."""

    value: float
    low: float
    high: float


def repeated(*samples: Sample) -> bool:
    """Whether there are several runs of each task, without which nothing says how much runs differ."""
    return all(len(task) > 1 for scores in samples for task in scores)


def estimate(statistic: Callable[..., Any], *samples: Sample) -> Estimate:
    """A statistic of one or more algorithms' scores; see `bootstrap_interval`."""
    low, high = bootstrap_interval(statistic, *samples)
    return Estimate(float(statistic(*samples)), float(low), float(high))


def is_confirmed(improvement: Estimate, chance: float) -> bool:
    """Whether runs are better than others: as far as the interval of the probability tells, and not by chance."""
    return improvement.low > 0.5 and chance <= MOST_CHANCE


@dataclass(frozen=True)
class Variant:
    """Runs that differ in seed and data only, and their statistics. Lists have an entry a run."""

    name: str
    runs: list[FinishedRun]
    score: Estimate
    mean: float
    correct: float | None
    reached: list[float | None]
    speed: float
    state_bytes: int
    reach: int | None


class NotJoined(UserError):
    """Runs on several data that are not to be compared together, but can be on each of them."""


def _require_comparable(runs: Sequence[FinishedRun]) -> None:
    """Raises a UserError if there are no runs, runs of several kinds, or one comes twice."""
    if not runs:
        raise UserError("expected finished runs to compare, got none")
    kinds = {run.config.kind for run in runs}
    if len(kinds) > 1:
        raise UserError(f"expected runs of one kind, got {' and '.join(sorted(kinds))}")
    for run, other in itertools.combinations(runs, 2):
        if run.is_same_as(other):
            raise UserError(f"expected each run once, got the same one in {run.path} and {other.path}")


class Comparison:
    """Finished runs by variant and data.

    Args:
        runs: in the order in which variants are to appear.
        threshold: a score; when runs reach it is compared. None for the scale's own, if it has one. Not compared if a
            run was trained in another environment than where it is evaluated.
        apart: why runs on other data are not among them.

    Raises:
        NotJoined: if runs on different data have no scores in common, or not all variants have runs on each.
        UserError: if there is nothing to compare, a run comes twice, or runs differ in kind or in incomparable data.
    """

    def __init__(self, runs: Sequence[FinishedRun], threshold: float | None = None, apart: str = "") -> None:
        _require_comparable(runs)
        self.kind = KIND[runs[0].config.kind]
        self.apart = apart
        variants = label([run.config for run in runs])
        self.runs = [replace(run, variant=name) for run, name in zip(runs, variants)]
        # In the order in which they first appear.
        self.names = list(dict.fromkeys(run.variant for run in self.runs))
        self.data = list(dict.fromkeys(run.data for run in self.runs))

        self.scale = self._common_scale()
        # Curves of other environments say nothing of when a score was reached.
        self.elsewhere = list(dict.fromkeys(run.learned_from for run in self.runs if run.learned_from != run.data))
        self.threshold = threshold
        if threshold is None:
            self.threshold = self.scale.threshold
        if self.elsewhere:
            self.threshold = None
        counts = [len(self.of(name, data)) for name, data in itertools.product(self.names, self.data)]
        self.fewest = min(counts)
        self.variants = [self._variant(name) for name in self.names]
        self.best = self.best_of(self.variants)

    def _common_scale(self) -> Scale:
        """The first scale on which all runs have scores that can be compared.

        Raises:
            NotJoined: if there is none, or a variant has no run on some data.
            UserError: if data of one name differ.
        """
        mixed = "mixed corpora"
        needed = "one corpus"
        if self.kind.data == "environment":
            mixed = "mixed environments"
            needed = "human or oracle scores of all"
        for name, data in itertools.product(self.names, self.data):
            if not self.of(name, data):
                expected = f"every variant on each of {', '.join(self.data)}"
                raise NotJoined(f"{mixed}: expected {expected}, got no run of {name} on {data}")
        require_equal_data([(run.config, run.data, run.digest) for run in self.runs if run.digest])

        scales = [scale for scale in self.kind.scales if all(scale.final in run.summary for run in self.runs)]
        # Returns of different environments have different units; only normalized scores have a threshold.
        is_common = scales[0].threshold is not None
        if len(self.data) > 1 and not is_common:
            raise NotJoined(f"{mixed}: expected {needed}, got {', '.join(self.data)}")
        return scales[0]

    @property
    def unfinished(self) -> list[FinishedRun]:
        """The runs whose last scores in training stand for their evaluations."""
        return [run for run in self.runs if not run.finished]

    def best_of(self, variants: Sequence[Variant]) -> Variant:
        """The variant with the best score, the first one of equal ones."""
        extreme = min if self.scale.lower else max
        return extreme(variants, key=lambda variant: variant.score.value)

    def of(self, name: str, data: str) -> list[FinishedRun]:
        """The runs of a variant on an environment or corpus."""
        return [run for run in self.runs if (run.variant, run.data) == (name, data)]

    def scores(self, name: str) -> list[NDArray[np.float64]]:
        """A variant's final scores, an array [runs] an environment."""
        return [np.array([run.summary[self.scale.final] for run in self.of(name, data)]) for data in self.data]

    def curve(self, name: str, data: str) -> tuple[NDArray[np.float64], ...]:
        """Frames or steps, mean score, low and high of a variant's runs; see `mean_curve`."""
        curves = [run.curve(self.scale) for run in self.of(name, data)]
        return mean_curve([curve for curve in curves if len(curve[0])])

    @functools.cached_property
    def improvements(self) -> dict[tuple[str, str], Estimate]:
        """Probability that a run of the first of two variants is better than one of the second, for each pair; NaN if
        one of them has a single run of a task."""
        found: dict[tuple[str, str], Estimate] = {}
        sign = -1 if self.scale.lower else 1
        for ours, theirs in itertools.combinations(self.names, 2):
            our_scores = [sign * task for task in self.scores(ours)]
            their_scores = [sign * task for task in self.scores(theirs)]
            better = Estimate(math.nan, math.nan, math.nan)
            if repeated(our_scores, their_scores):
                better = estimate(probability_of_improvement, our_scores, their_scores)
            found[ours, theirs] = better
            # The complement, not an estimate from other draws.
            found[theirs, ours] = Estimate(1 - better.value, 1 - better.high, 1 - better.low)
        return found

    @functools.cached_property
    def chances(self) -> dict[tuple[str, str], float]:
        """How likely two equally good variants would differ as much as these do, for each pair, either way round; NaN
        if one of them has a single run of a task. See `statistics.chance_of_improvement`."""
        found = {}
        for ours, theirs in itertools.combinations(self.names, 2):
            chance = math.nan
            if repeated(self.scores(ours), self.scores(theirs)):
                chance = statistics.chance_of_improvement(self.scores(ours), self.scores(theirs))
            found[ours, theirs] = found[theirs, ours] = chance
        return found

    def confirmed(self, ours: str, theirs: str) -> bool:
        """Whether runs of the first of two variants are better; see `is_confirmed`. Never if a run is not finished."""
        if self.unfinished:
            return False
        return is_confirmed(self.improvements[ours, theirs], self.chances[ours, theirs])

    @functools.cached_property
    def aggregates(self) -> dict[str, dict[str, Estimate]]:
        """Statistics of final scores over runs and tasks by variant and name, as `rliable` has them."""
        statistic = {"interquartile mean": interquartile_mean, "mean": statistics.mean}
        # Of one environment, the median is the mean.
        if len(self.data) > 1:
            statistic["median of environments"] = statistics.median
        # 100 is the score of people or of an oracle.
        if self.scale.name.endswith("_normalized"):
            statistic["optimality gap"] = statistics.optimality_gap

        found = {}
        for name in self.names:
            scores = self.scores(name)
            found[name] = {text: estimate(of, scores) for text, of in statistic.items()}
        return found

    def profile(self, name: str) -> tuple[NDArray[np.float64], ...]:
        """Scores, and the share of a variant's runs that are better, with its interval; see `performance_profile`."""
        # Profiles are of scores of which higher ones are better.
        sign = -1 if self.scale.lower else 1
        scores = {each: [sign * task for task in self.scores(each)] for each in self.names}

        # All variants have the same places, with some room on both sides, also if all scores are equal.
        all_scores = np.concatenate([task for of_variant in scores.values() for task in of_variant])
        room = 0.05 * float(np.ptp(all_scores))
        if room == 0:
            room = 1.0
        places = np.linspace(all_scores.min() - room, all_scores.max() + room, 101)
        share, low, high = statistics.performance_profile(scores[name], places)
        return sign * places, share, low, high

    @functools.cached_property
    def references(self) -> dict[str, float]:
        """Scores of predictors without a network on the same data."""
        found = {}
        for run in self.runs:
            for text, name in self.kind.references.items():
                if name in run.summary:
                    found[text] = run.summary[name]
        return found

    @functools.cached_property
    def cautions(self) -> list[str]:
        """Reasons to trust the numbers less."""
        found = []
        if self.apart:
            found.append(f"Each {self.kind.data} is compared by itself: {self.apart}.")
        if self.unfinished:
            found.append(_how_far(self.unfinished, len(self.runs)))
        if self.elsewhere:
            found.append(
                f"Curves are of {' and '.join(self.elsewhere)}, where agents were trained; scores are of evaluations "
                f"in {' and '.join(self.data)}. So there is no threshold."
            )

        runs_of_seed = Counter((run.variant, run.data, run.config.seed) for run in self.runs)
        repeating = sorted({variant for (variant, _, _), count in runs_of_seed.items() if count > 1})
        if repeating:
            why = "they begin with the same weights, but count as independent."
            found.append(f"Runs of {' and of '.join(repeating)} have the same seed: {why}")

        numbers_of_runs = [{len(self.of(name, data)) for data in self.data} for name in self.names]
        if any(len(numbers) > 1 for numbers in numbers_of_runs):
            found.append(
                "Variants have more runs in one environment than in another. All environments have the same weight."
            )
        parts = [part for run in self.runs for part in run.summary.get("tasks", ())]
        if self.scale.threshold is not None and any(self.scale.name not in part for part in parts):
            found.append("Scores are means over those tasks alone that have such a scale; see evaluation.json.")
        return found

    def _variant(self, name: str) -> Variant:
        runs = [run for run in self.runs if run.variant == name]
        scores = self.scores(name)
        correct = None
        shares = [run.summary[CORRECT] for run in runs if CORRECT in run.summary]
        if shares:
            correct = float(np.mean(shares))
        return Variant(
            name=name,
            runs=runs,
            score=estimate(interquartile_mean, scores),
            mean=float(statistics.mean(scores)),
            correct=correct,
            reached=[run.reached(self.threshold, self.scale) for run in runs],
            speed=_mean_of_known([run.speed for run in runs]),
            state_bytes=bytes_of_state(runs[0].config.core_config),
            reach=reach(runs[0].config.core_config),
        )


def _mean_of_known(values: Sequence[float]) -> float:
    """The mean of those that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return float(np.mean(known))


def _how_far(unfinished: Sequence[FinishedRun], count: int) -> str:
    """Says of so many runs which of them are not finished, and how much of the training of the first ones is over."""
    progress = []
    for run in unfinished[:NAMED]:
        progress.append(f"{run.variant}, seed {run.config.seed} ({100 * run.share:.0f} % trained)")
    if len(unfinished) > NAMED:
        progress.append(f"and {len(unfinished) - NAMED} more")
    verb = "is" if len(unfinished) == 1 else "are"
    which = f"{len(unfinished)} of {plural(count, 'run')} {verb} not finished"
    return f"{which}: their last score in training stands for the evaluation: {'; '.join(progress)}."


def compare(runs: Sequence[FinishedRun], threshold: float | None = None) -> list[Comparison]:
    """The comparison of runs; if those on different data cannot be joined, one for each of these data.

    Raises a UserError as `Comparison` does.
    """
    try:
        return [Comparison(runs, threshold)]
    except NotJoined as error:
        reason = str(error)

    by_data: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_data.setdefault(run.data, []).append(run)
    return [Comparison(runs_on_data, threshold, reason) for runs_on_data in by_data.values()]


def reach(core: Any) -> int | None:
    """The number of steps that a core can look back, over all layers; None if there is no bound (recurrent, routed).

    A layer sees n_m + c n_cm steps beyond its segment, and each layer sees further through the one below (section 3).
    """
    if hasattr(core, "layer_sizes"):
        reaches = [sizes.reach for sizes in core.layer_sizes]
        if None in reaches:
            return None
        return sum(reaches)
    if hasattr(core, "receptive_field"):
        return core.receptive_field - 1
    if isinstance(core, MemorylessConfig):
        return 0
    return None
