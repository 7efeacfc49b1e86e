"""Statistics of few runs: aggregates of scores, performance profiles, probability of improvement and mean curves.

As Agarwal et al. (2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice") define them and their
library `rliable` computes them; intervals are those of `actors.intervals`, with runs as units. Scores are lists with
one array [..., runs] a task; a statistic of them is [...]. All tasks have the same weight, also if one has more runs
than another, for which the paper has no definition.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.intervals import Sample, bootstrap_interval

CURVE_RESAMPLES = 2000
"""Of curves, which are only drawn: each of their points is resampled, which takes time."""
MOST_STEPS = 10_000
"""Into which the share of pairs that are won is divided where its chance is counted."""


def _means(scores: Sample) -> NDArray[np.float64]:
    """Means over runs, [tasks, ...]."""
    return np.array([np.mean(task, axis=-1) for task in scores])


def interquartile_mean(scores: Sample) -> Any:
    """Mean over the middle half of all runs of all tasks: a quarter of them, rounded down, is cut off at each end.

    Runs of tasks that have fewer are repeated, so that all tasks have as many as their least common multiple.
    """
    tasks = [np.asarray(task, np.float64) for task in scores]
    runs = [task.shape[-1] for task in tasks]
    as_many = math.lcm(*runs)
    repeats = np.repeat([as_many // number for number in runs], runs)
    of_all_tasks = np.concatenate(tasks, axis=-1)

    # Where each run begins and ends in the ordered list of all of them with their repetitions.
    order = np.argsort(of_all_tasks, axis=-1)
    ends = np.cumsum(repeats[order], axis=-1)
    begins = ends - repeats[order]

    # How often each run is in the middle.
    total = len(tasks) * as_many
    cut = total // 4
    within = np.clip(ends, cut, total - cut) - np.clip(begins, cut, total - cut)
    values = np.take_along_axis(of_all_tasks, order, axis=-1)
    return np.sum(within * values, axis=-1) / (total - 2 * cut)


def mean(scores: Sample) -> Any:
    """Mean over tasks of the mean over runs."""
    return np.mean(_means(scores), axis=0)


def median(scores: Sample) -> Any:
    """Median over tasks of the mean over runs: of one task its mean."""
    return np.median(_means(scores), axis=0)


def optimality_gap(scores: Sample, best: float = 100.0) -> Any:
    """By how much runs fall short of a score on average; more than that does not count."""
    capped = [np.minimum(task, best) for task in scores]
    return best - mean(capped)


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


def chance_of_improvement(scores: Sample, others: Sample) -> float:
    """How likely the probability of improvement is as far from one half as here, or further, if algorithms are alike.

    Then it is random which of the runs of a task are of which algorithm: all divisions are equally likely, on each task
    by itself. They are counted as in the exact rank sum test of Wilcoxon (1945, "Individual Comparisons by Ranking
    Methods"), whose statistic is summed over tasks.
    """
    found = abs(float(probability_of_improvement(scores, others)) - 0.5)
    tasks = len(scores)

    # Shares of pairs that are won are multiples of one step, unless the numbers of runs have no small multiple.
    steps = 2 * math.lcm(*(len(ours) * len(theirs) for ours, theirs in zip(scores, others, strict=True)))
    tolerance = 0.25
    if steps > MOST_STEPS:
        steps = MOST_STEPS
        tolerance = tasks / 2

    # The distribution of a sum is the product of spectra.
    length = 2 ** (tasks * steps).bit_length()
    spectrum = np.ones(length // 2 + 1, np.complex128)
    for ours, theirs in zip(scores, others, strict=True):
        wins, likely = _wins_of_divisions(np.asarray(ours), np.asarray(theirs))
        places = np.rint(wins * steps).astype(int)
        spectrum *= np.fft.rfft(np.bincount(places, likely, minlength=length))
    distribution = np.fft.irfft(spectrum, length)
    distance = np.abs(np.arange(length) - tasks * steps / 2)
    is_as_far = distance >= found * tasks * steps - tolerance
    return float(distribution[is_as_far].sum())


def _wins_of_divisions(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Shares of pairs that our runs can win (ties count half) if any of all runs may be ours, and how likely they are.

    Our runs win as many pairs as the sum of their ranks exceeds the smallest possible one.
    """
    runs = np.concatenate([ours, theirs])
    below = (runs[:, None] > runs).sum(axis=1)
    equal = (runs[:, None] == runs).sum(axis=1)
    twice_ranks = 2 * below + equal - 1  # from 0; equal runs share the mean of their ranks

    # In how many ways some number of runs has some sum of ranks, with one run after the other.
    ways = np.zeros((len(ours) + 1, twice_ranks.sum() + 1))
    ways[0, 0] = 1
    for rank in twice_ranks:
        without_it = ways[:-1, : ways.shape[1] - rank].copy()
        ways[1:, rank:] += without_it
    of_ours = ways[-1]
    (possible,) = np.nonzero(of_ours)
    smallest = len(ours) * (len(ours) - 1)
    wins = (possible - smallest) / (2 * len(ours) * len(theirs))
    return wins, of_ours[possible] / of_ours.sum()


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
    """Share of runs with a score above each of some places, as the mean over tasks, and its 95 % interval.

    Returns:
        share, low and high, each as long as `places`; the ends are NaN if a task has a single run.
    """
    above = [np.asarray(task) > places[:, None] for task in scores]
    return mean(above), *bootstrap_interval(mean, above, resamples=CURVE_RESAMPLES)


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
