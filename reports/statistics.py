"""Statistics of few runs: aggregates of scores, performance profiles, probability of improvement and mean curves.

As Agarwal et al. (2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice") define them and their
library `rliable` computes them; intervals are those of `actors.intervals`, with runs as units. Scores are lists with
one array [..., runs] a task; a statistic of them is [...].
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.intervals import Sample, bootstrap_interval

CURVE_RESAMPLES = 2000
"""Of curves, which are only drawn: each of their points is resampled, which takes time."""


def _means(scores: Sample) -> NDArray[np.float64]:
    """Means over runs, [tasks, ...]."""
    return np.array([np.mean(task, axis=-1) for task in scores])


def interquartile_mean(scores: Sample) -> Any:
    """Mean over the middle half of all runs of all tasks: a quarter of them, rounded down, is cut off at each end."""
    of_all_tasks = np.concatenate([np.asarray(task, np.float64) for task in scores], axis=-1)
    values = np.sort(of_all_tasks, axis=-1)
    runs = values.shape[-1]
    cut = runs // 4
    return values[..., cut : runs - cut].mean(axis=-1)


def mean(scores: Sample) -> Any:
    """Mean over tasks of the mean over runs."""
    return np.mean(_means(scores), axis=0)


def median(scores: Sample) -> Any:
    """Median over tasks of the mean over runs: of one task its mean."""
    return np.median(_means(scores), axis=0)


def optimality_gap(scores: Sample, best: float = 100.0) -> Any:
    """By how much runs fall short of a score on average; more than that does not count."""
    capped = np.minimum(np.concatenate(scores, axis=-1), best)
    return best - capped.mean(axis=-1)


def probability_of_improvement(scores: Sample, others: Sample) -> Any:
    """How likely a run is better than one of another algorithm on the same task; mean over tasks, ties count half.

    Of one task this is the Mann-Whitney U statistic over the number of pairs.
    """
    wins = []
    for ours, theirs in zip(scores, others, strict=True):
        # Of each of our runs, the difference from each of theirs.
        difference = np.asarray(ours)[..., :, None] - np.asarray(theirs)[..., None, :]
        wins.append(np.mean((difference > 0) + 0.5 * (difference == 0), axis=(-2, -1)))
    return np.mean(wins, axis=0)


def chance_of_order(runs: int, others: int) -> float:
    """How likely all runs of one of two algorithms are better than all of the other, if the algorithms are alike.

    The ranks of one algorithm's runs among all are then equally likely to be any. Of all such choices of ranks, two are
    of this kind: the lowest and the highest ranks.
    """
    return 2 / math.comb(runs + others, runs)


def runs_to_confirm(improvement: float) -> float:
    """About how many runs each of two algorithms needs on a task to confirm a probability of improvement.

    With so many, a two-sided rank test at 5 % finds a difference of this size in 80 % of cases (Noether 1987, "Sample
    Size Determination for Some Common Nonparametric Tests"). Infinity at 0.5, which is no difference.
    """
    if improvement == 0.5:
        return math.inf
    quantiles = 1.960 + 0.842  # of the normal distribution, at 97.5 % and 80 %
    both = quantiles**2 / (3 * (improvement - 0.5) ** 2)
    return both / 2


def performance_profile(scores: Sample, places: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Share of all runs of all tasks with a score above each of some places, and its 95 % interval.

    Returns:
        share, low and high, each as long as `places`; the ends are NaN if a task has a single run.
    """

    def share(above: Sample) -> Any:
        runs = sum(task.shape[-1] for task in above)
        return np.sum([task.sum(axis=-1) for task in above], axis=0) / runs

    above = [np.asarray(task) > places[:, None] for task in scores]
    return share(above), *bootstrap_interval(share, above, resamples=CURVE_RESAMPLES)


def mean_curve(
    curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], points: int = 100
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean of runs' curves and its 95 % interval over runs (NaN of a single one), where all have values.

    Args:
        curves: of each run the places (frames, ascending) [N] and the values there [N], which are joined by lines.

    Returns:
        evenly spaced places, mean, low and high, each [points]; empty if there are no curves, or no places in common.
    """
    nothing = np.empty(0)
    if not curves:
        return nothing, nothing, nothing, nothing
    begin = max(measured[0] for measured, _ in curves)
    end = min(measured[-1] for measured, _ in curves)
    if begin > end:
        return nothing, nothing, nothing, nothing
    if begin == end:
        points = 1
    places = np.linspace(begin, end, points)
    values = np.stack([np.interp(places, measured, scores) for measured, scores in curves], axis=-1)
    low, high = bootstrap_interval(mean, [values], resamples=CURVE_RESAMPLES)
    return places, mean([values]), low, high
