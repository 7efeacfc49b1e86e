"""Finished runs side by side, in numbers: curves, final scores and what telling them apart takes. Drawing is elsewhere.

Runs of one variant differ in seed and environment only. Environments are tasks in the sense of `rliable`: scores of
several are joined only where they have a common scale, people's or an oracle's.
"""

import csv
import functools
import io
import itertools
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.core import state_bytes
from envs import require_consent
from learner.metrics import sample_metrics
from reports.statistics import (
    Scores,
    bootstrap_interval,
    interquartile_mean,
    mean_curve,
    probability_of_improvement,
)
from training import UserError
from training.config import RunConfig, read_config
from training.impala import make_agent
from training.sweep import label

SCALES = {"human_normalised": "human-normalised score (%)", "oracle_normalised": "oracle-normalised score (%)"}
"""Common scales of environments, the preferred one first; where there is neither, returns are compared."""
RETURN = "return"
THRESHOLD = 75.0
"""Of a normalised score, in %."""


@dataclass(frozen=True)
class Run:
    """A finished run: rows of metrics as `sample_metrics` reads them, and the summary of its evaluation."""

    path: Path
    config: RunConfig
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    variant: str = ""

    def curve(self, scale: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Frames and scores while it learned, as measured; each is a mean over the last 200 episodes."""
        names = "learner/frames", f"episode/{scale}"
        points = [tuple(row.get(name, math.nan) for name in names) for row in self.rows]
        kept = [point for point in points if not any(map(math.isnan, point))]
        frames, scores = np.array(kept or np.empty((0, 2)), np.float64).T
        return frames, scores

    def score(self, scale: str) -> float:
        """The mean score of its evaluation."""
        return self.summary["return"]["mean"] if scale == RETURN else self.summary[scale]

    def frames_to(self, threshold: float, scale: str) -> float | None:
        """Frames at which its curve first reached a score."""
        frames, scores = self.curve(scale)
        return next((float(frame) for frame, score in zip(frames, scores) if score >= threshold), None)

    @property
    def correct(self) -> float | None:
        """Correct choices in its evaluation, in %, where the environment counts any."""
        choices = self.summary.get("correct_choices")
        return 100 * choices["mean"] if choices else None

    @property
    def steps_per_second(self) -> float:
        """Agent steps learned from a second: the median over its rows."""
        speeds = [row.get("speed/steps_per_second", math.nan) for row in self.rows]
        return float(np.median([speed for speed in speeds if not math.isnan(speed)] or [math.nan]))


def read_run(path: Path, allow_env: str | None = None) -> Run:
    """A finished run. The environments whose code it may run are `allow_env`; see `envs.require_consent`.

    Raises:
        UserError: if the folder is no run, or one that is not finished, damaged or needs a permission.
    """
    rows: list[dict[str, Any]] = []
    try:
        config = read_config(path)
        require_consent(config.env, allow_env)
        with suppress(FileNotFoundError):  # nothing was measured yet
            rows = sample_metrics(path)
    except (ValueError, FileNotFoundError, OSError) as error:
        raise UserError(str(error)) from error
    again = f"go on with: compressive launch --resume {shlex.quote(str(path))}"
    frames = rows[-1].get("learner/frames", 0) if rows else 0
    if not frames >= config.frames:
        raise UserError(f"{path}: expected a finished run, got {frames:.0f} of {config.frames} frames; {again}")
    try:
        return Run(path, config, rows, read_evaluation(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: expected the evaluation of a finished run in evaluation.json, got: {error}; {again}"
        ) from error


def read_evaluation(run: Path) -> dict[str, Any]:
    """The summary of a run's evaluation, with all scores that are compared.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is damaged, or a score is no finite number.
    """
    plain = json.loads((run / "evaluation.json").read_text())
    try:
        scores = {RETURN: plain["return"]["mean"], **{scale: plain[scale] for scale in SCALES if scale in plain}}
        if "correct_choices" in plain:
            scores["correct_choices"] = plain["correct_choices"]["mean"]
        bad = [f"{name} = {score!r}" for name, score in scores.items() if not math.isfinite(score)]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"no summary of an evaluation ({error!r})") from error
    if bad:
        raise ValueError(f"no finite score: {', '.join(bad)}")
    return plain


class Estimate(NamedTuple):
    """A number and its 95 % interval over runs, NaN where one of the samples is a single run, which says nothing."""

    value: float
    low: float
    high: float


def estimate(statistic: Callable[..., float], *samples: Scores) -> Estimate:
    """A statistic of one or more algorithms' scores; see `bootstrap_interval`."""
    known = all(len(task) > 1 for scores in samples for task in scores)
    return Estimate(statistic(*samples), *(bootstrap_interval(statistic, *samples) if known else (math.nan, math.nan)))


@dataclass(frozen=True)
class Variant:
    """Runs that differ in seed and environment only, and what they say together. Lists have an entry a run."""

    name: str
    runs: list[Run]
    score: Estimate
    mean: float
    correct: float | None
    reached: list[float | None]
    steps_per_second: float
    state_bytes: int
    temporal_range: int | None


class Comparison:
    """Finished runs by variant and environment.

    Args:
        runs: in the order in which variants are to appear.
        threshold: a score; how many frames it takes to reach it is compared. None for `THRESHOLD`, or for no threshold
            where scores have no scale.

    Raises:
        UserError: if there is nothing to compare, a run comes twice, or runs of several environments cannot be
            compared.
    """

    def __init__(self, runs: Sequence[Run], threshold: float | None = None) -> None:
        if not runs:
            raise UserError("expected finished runs to compare, got none")
        for run, other in itertools.combinations(runs, 2):  # under two names, or a copy: the times of rows agree
            if run.config == other.config and run.rows == other.rows:
                raise UserError(f"expected each run once, got the same one in {run.path} and {other.path}")
        names = label([run.config for run in runs])
        self.runs = [Run(run.path, run.config, run.rows, run.summary, name) for run, name in zip(runs, names)]
        self.names = list(dict.fromkeys(names))
        self.envs = list(dict.fromkeys(run.config.env for run in self.runs))
        for name, env in itertools.product(self.names, self.envs):
            if not self.of(name, env):
                raise UserError(
                    f"mixed environments: expected every variant on each of {', '.join(self.envs)}, got no run of "
                    f"{name} on {env}"
                )
        scales = [scale for scale in SCALES if all(scale in run.summary for run in self.runs)]
        if not scales and len(self.envs) > 1:
            raise UserError(
                f"mixed environments: expected human or oracle scores of each of {', '.join(self.envs)}, to compare on "
                "one scale; compare the runs of each by themselves"
            )
        self.scale = scales[0] if scales else RETURN
        self.threshold = threshold if threshold is not None or self.scale == RETURN else THRESHOLD
        self.variants = [self._variant(name) for name in self.names]

    @property
    def scale_text(self) -> str:
        """The scale in words."""
        return SCALES.get(self.scale, "return an episode")

    def of(self, name: str, env: str) -> list[Run]:
        """The runs of a variant in an environment."""
        return [run for run in self.runs if (run.variant, run.config.env) == (name, env)]

    def scores(self, name: str) -> list[NDArray[np.float64]]:
        """A variant's final scores, an array [runs] an environment."""
        return [np.array([run.score(self.scale) for run in self.of(name, env)]) for env in self.envs]

    def curve(self, name: str, env: str) -> tuple[NDArray[np.float64], ...]:
        """Frames, mean score, low and high (NaN of a single run) of a variant's runs; see `mean_curve`."""
        curves = [curve for run in self.of(name, env) if len((curve := run.curve(self.scale))[0])]
        if not curves:
            return (np.empty(0),) * 4
        frames, mean, low, high = mean_curve(curves)
        return (frames, mean, low, high) if len(curves) > 1 else (frames, mean, *(np.full_like(mean, np.nan),) * 2)

    @functools.cached_property
    def improvements(self) -> dict[tuple[str, str], Estimate]:
        """Probability that the first of two variants is better than the second, for each pair."""
        found: dict[tuple[str, str], Estimate] = {}
        for ours, theirs in itertools.permutations(self.names, 2):
            if (theirs, ours) in found:  # the reverse of it, not of other draws
                value, low, high = found[theirs, ours]
                found[ours, theirs] = Estimate(1 - value, 1 - high, 1 - low)
            else:
                found[ours, theirs] = estimate(probability_of_improvement, self.scores(ours), self.scores(theirs))
        return found

    @functools.cached_property
    def fewest(self) -> int:
        """The least number of runs that a variant has in an environment."""
        return min(len(self.of(name, env)) for name, env in itertools.product(self.names, self.envs))

    @functools.cached_property
    def cautions(self) -> list[str]:
        """What makes the numbers say less than they seem to."""
        found = []
        counts = Counter((run.variant, run.config.env, run.config.seed) for run in self.runs)
        if same := sorted({name for (name, _, _), count in counts.items() if count > 1}):
            found.append(
                f"Runs of {' and of '.join(same)} have the same seed: they begin with the same weights, yet count as "
                "independent."
            )
        if any(len({len(self.of(name, env)) for env in self.envs}) > 1 for name in self.names):
            found.append(
                "Variants have more runs in one environment than in another, and an interquartile mean is over runs: "
                "it counts those environments more. The mean does not."
            )
        parts = [part for run in self.runs for part in run.summary.get("tasks", ())]
        if self.scale != RETURN and any(self.scale not in part for part in parts):
            found.append(
                "Scores are means over those tasks alone that have such a scale; evaluation.json has the others."
            )
        return found

    def _variant(self, name: str) -> Variant:
        runs, scores = [run for run in self.runs if run.variant == name], self.scores(name)
        correct = [run.correct for run in runs if run.correct is not None]
        return Variant(
            name=name,
            runs=runs,
            score=estimate(interquartile_mean, scores),
            mean=float(np.mean([task.mean() for task in scores])),
            correct=float(np.mean(correct)) if correct else None,
            reached=[None if self.threshold is None else run.frames_to(self.threshold, self.scale) for run in runs],
            steps_per_second=float(np.mean([run.steps_per_second for run in runs])),
            state_bytes=memory_bytes(runs[0].config),
            temporal_range=temporal_range(runs[0].config.agent.core),
        )


def memory_bytes(config: RunConfig) -> int:
    """Size of the memory state of one environment."""
    return state_bytes(make_agent(config).initial_state(1))


def temporal_range(core: Any) -> int | None:
    """Steps back that a core can see at most, over all layers; None for a recurrent one, which has no such bound.

    A layer sees n_m + c n_cm steps beyond its segment, and each layer sees further through the one below (section 3).
    """
    if hasattr(core, "layer_sizes"):
        return sum(sizes.memory + sizes.rate * sizes.compressed for sizes in core.layer_sizes)
    return 0 if type(core).__name__ == "MemorylessConfig" else None


def tables(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """All numbers, as rows by file name: runs as they were measured, and what is derived from them."""
    scale = comparison.scale
    runs, curves, means = [], [], []
    for variant in comparison.variants:
        for run, reached in zip(variant.runs, variant.reached):
            about = {"variant": variant.name, "environment": run.config.env, "seed": run.config.seed}
            returns = run.summary["return"]
            runs.append(
                about
                | {"frames": run.rows[-1]["learner/frames"], "return": returns["mean"]}
                | {"return_low": returns.get("low"), "return_high": returns.get("high")}
                | ({} if scale == RETURN else {scale: run.score(scale)})
                | {"correct_choices_percent": run.correct, "frames_to_threshold": reached}
                | {"steps_per_second": run.steps_per_second, "state_bytes": variant.state_bytes}
                | {"temporal_range": variant.temporal_range, "run": str(run.path)}
            )
            curves += [about | {"frames": frames, scale: score} for frames, score in zip(*run.curve(scale))]
        for env in comparison.envs:
            for frames, mean, low, high in zip(*comparison.curve(variant.name, env)):
                means.append(
                    {
                        "variant": variant.name,
                        "environment": env,
                        "frames": frames,
                        "mean": mean,
                        "low": low,
                        "high": high,
                    }
                )
    variants = [
        {"variant": v.name, "runs": len(v.runs), "interquartile_mean": v.score.value, "low": v.score.low}
        | {"high": v.score.high, "mean": v.mean, "correct_choices_percent": v.correct}
        | {"reached_threshold": sum(frames is not None for frames in v.reached), "threshold": comparison.threshold}
        | {"steps_per_second": v.steps_per_second, "state_bytes": v.state_bytes, "temporal_range": v.temporal_range}
        for v in comparison.variants
    ]
    improvements = [
        {"variant": ours, "other": theirs, "probability": p.value, "low": p.low, "high": p.high}
        for (ours, theirs), p in comparison.improvements.items()
    ]
    found = {"runs": runs, "curves": curves, "curve_intervals": means, "variants": variants}
    return found | {"improvements": improvements}


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with the same fields as CSV; what is None or NaN is empty, and floats are written exactly."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else float(value)  # numpy's own would be written as they print
