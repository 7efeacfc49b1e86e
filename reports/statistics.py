"""Statistics of few runs: aggregates of scores, performance profiles, probability of improvement, and intervals from a
bootstrap that is stratified by task. As Agarwal et al. (2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice") define them and their library `rliable` computes them. Scores are lists with one array [runs] a
task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Scores = Sequence[NDArray[np.float64]]


def interquartile_mean(scores: Scores) -> float:
    """Mean over the middle half of all runs of all tasks: a quarter of them, rounded down, is cut off at each end."""
    values = np.sort(np.concatenate([np.asarray(task, np.float64) for task in scores]))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def mean(scores: Scores) -> float:
    """Mean over tasks of the mean over runs."""
    return float(np.mean([np.mean(task) for task in scores]))


def median(scores: Scores) -> float:
    """Median over tasks of the mean over runs: of one task its mean."""
    return float(np.median([np.mean(task) for task in scores]))


def optimality_gap(scores: Scores, best: float = 100.0) -> float:
    """By how much runs fall short of a score on average; more than that does not count."""
    return float(best - np.minimum(np.concatenate(scores), best).mean())


def performance_profile(
    scores: Scores, places: NDArray[np.float64], resamples: int = 2000
) -> tuple[NDArray[np.float64], ...]:
    """Share of all runs of all tasks with a score above each of some places, and its 95 % bootstrap interval.

    Returns:
        share, low and high, each as long as `places`; the ends are NaN if a task has a single run.
    """
    above = [np.asarray(task)[:, None] > places for task in scores]
    count, generator = sum(map(len, above)), np.random.default_rng(0)
    share = np.sum([task.sum(axis=0) for task in above], axis=0) / count
    if min(map(len, above)) < 2:
        return share, *(np.full_like(share, np.nan),) * 2
    drawn = [task[generator.integers(len(task), size=(resamples, len(task)))].sum(axis=1) for task in above]
    low, high = np.percentile(np.sum(drawn, axis=0) / count, [2.5, 97.5], axis=0)
    return share, low, high


def probability_of_improvement(scores: Scores, others: Scores) -> float:
    """How likely a run is better than one of another algorithm on the same task; mean over tasks, ties count half.

    Of one task this is the Mann-Whitney U statistic over the number of pairs.
    """
    wins = []
    for ours, theirs in zip(scores, others, strict=True):
        difference = np.asarray(ours)[:, None] - np.asarray(theirs)[None, :]
        wins.append(np.mean((difference > 0) + 0.5 * (difference == 0)))
    return float(np.mean(wins))


def bootstrap_interval(
    statistic: Callable[..., float], *samples: Scores, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a statistic of one or more algorithms' scores: percentiles over resampled runs.

    Runs are drawn with replacement within their task and algorithm. With three runs of one task the interval of a mean
    is their range, for three draws of the worst one have a probability of 1/27, more than 2.5 %.
    """
    generator = np.random.default_rng(seed)

    def resample(task: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(task)[generator.integers(len(task), size=len(task))]

    values = [statistic(*([resample(task) for task in scores] for scores in samples)) for _ in range(resamples)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def mean_curve(
    curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], points: int = 100, resamples: int = 2000
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean of runs' curves and its 95 % bootstrap interval over runs (NaN of a single one), where all have values.

    Args:
        curves: of each run the places (frames, ascending) [N] and the values there [N], which are joined by lines.

    Returns:
        evenly spaced places, mean, low and high, each [points]; empty if there are no curves, or no places in common.
    """
    if not curves:
        return (np.empty(0),) * 4
    begin, end = max(places[0] for places, _ in curves), min(places[-1] for places, _ in curves)
    if begin > end:
        return (np.empty(0),) * 4
    places = np.linspace(begin, end, points if end > begin else 1)
    values = np.stack([np.interp(places, *curve) for curve in curves])
    if len(curves) == 1:
        return places, values[0], *(np.full_like(places, np.nan),) * 2
    picks = np.random.default_rng(0).integers(len(curves), size=(resamples, len(curves)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5], axis=0)
    return places, values.mean(axis=0), low, high
