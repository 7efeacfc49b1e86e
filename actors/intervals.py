"""95 % intervals of statistics of few episodes or runs, by the bootstrap: the only ones of the project.

Units that are independent, such as episodes or runs, are drawn with replacement within their task. What is done for few
of them, and how often such intervals hold the truth, is in docs/compare.md.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Numbers of any type."""
Sample = Sequence[Array]
"""Measurements of one algorithm: an array [..., N] a task, where the last axis is that of its N units."""
CONFIDENCE = 0.95
RESAMPLES = 10_000
BLOCK = 1 << 22
"""Most numbers of a task that are drawn at a time, to bound the memory."""


def bootstrap_interval(
    statistic: Callable[..., Array], *samples: Sample, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 95 % interval of a statistic: percentiles over resampled units, further out the fewer units there are.

    This is the expanded percentile interval of Hesterberg (2015, "What Teachers Should Know About the Bootstrap"). Its
    ends never leave the range that the statistic can have over the sample. With two, three or four units of one task
    the interval of a mean is their range.

    Args:
        statistic: takes as many samples as are given, with arrays [..., resamples, N] in place of [..., N], and returns
            its values [..., resamples].
        samples: of one algorithm, or of each of several that are compared.
        resamples: how often the units of each task are drawn anew.
        seed: of the draws.

    Returns:
        the low and the high end, each [...]; NaN if a task has a single unit, which does not tell how units differ.
    """
    # The tasks of all samples, and the number of units of each.
    tasks: list[Array] = []
    for sample in samples:
        tasks.extend(sample)
    units_by_task = [np.shape(task)[-1] for task in tasks]
    fewest = min(units_by_task)
    if fewest < 2:
        shape = np.shape(statistic(*samples))
        unknown = np.full(shape, np.nan)
        return unknown, unknown

    # In blocks, to bound the memory.
    generator = np.random.default_rng(seed)
    largest = max(np.size(task) for task in tasks)
    together = max(1, BLOCK // largest)
    values = []
    for begin in range(0, resamples, together):
        times = min(together, resamples - begin)
        drawn = [_resample(sample, times, generator) for sample in samples]
        values.append(statistic(*drawn))

    # What is cut off at each end.
    outside = tail(fewest, len(tasks))
    lowest = 100 * outside
    highest = 100 * (1 - outside)
    resampled = np.concatenate(values, axis=-1)
    low, high = np.percentile(resampled, [lowest, highest], axis=-1)
    return low, high


def _resample(sample: Sample, times: int, generator: np.random.Generator) -> list[Array]:
    """Draws as many units as there are, with replacement: of each task [..., N] several times, [..., times, N]."""
    resampled = []
    for task in sample:
        num_units = np.shape(task)[-1]
        units = generator.integers(num_units, size=(times, num_units))
        drawn = np.asarray(task)[..., units]
        resampled.append(drawn)
    return resampled


def tail(units: int, tasks: int = 1) -> float:
    """The share of resampled values to cut off at each end, for so many units in each of so many tasks.

    Resampling N units varies less than drawing new ones, by the factor (N - 1) / N of the variance, and the spread that
    it starts from is uncertain. So the share is that beyond sqrt(N / (N - 1)) quantiles of Student's distribution with
    tasks (N - 1) degrees of freedom: 0.025 of very many units, 0.017 of 24 and 0.006 of 8.
    """
    normal = NormalDist()
    freedom = tasks * (units - 1)

    # Student's quantile by the expansion of Abramowitz and Stegun (26.7.5).
    inside = 0.5 + CONFIDENCE / 2
    z = normal.inv_cdf(inside)
    first = z**3 + z
    second = 5 * z**5 + 16 * z**3 + 3 * z
    third = 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    student = z
    student += first / (4 * freedom)
    student += second / (96 * freedom**2)
    student += third / (384 * freedom**3)

    # Resampling varies less by this factor, so the interval of resampled values is to be wider.
    variance_factor = units / (units - 1)
    quantile = student * math.sqrt(variance_factor)
    return normal.cdf(-quantile)


def mean_interval(*tasks: Array) -> tuple[float, float, float]:
    """The mean over tasks of the mean over units, of arrays [N], and its 95 % interval; see `bootstrap_interval`.

    An interval without width means that all units of a task are equal: it knows nothing of rarer ones.
    """

    def mean(drawn: Sample) -> Array:
        means = [np.mean(task, axis=-1) for task in drawn]
        return np.mean(means, axis=0)

    value = mean(tasks)
    low, high = bootstrap_interval(mean, tasks)
    return float(value), float(low), float(high)


def share_interval(part: Array, whole: Array) -> tuple[float, float, float]:
    """The sum of parts [N] over that of wholes [N], and its 95 % interval; see `bootstrap_interval`.

    A part is at most its whole, and not all wholes are 0. If every part is the whole, or every one is nothing,
    resampling shows no spread. The interval is then that of a trial for each unit with one result in all of them
    (Clopper and Pearson, 1934): of 8 units it is 0.63 to 1. That is wide enough even if a unit is always of one kind.
    An interval without width, at another share, means that the shares of all units are equal.
    """

    def share(drawn: Sample) -> Array:
        sums = np.sum(drawn[0], axis=-1)
        parts, wholes = sums
        zeros = np.zeros(np.shape(wholes))
        return np.divide(parts, wholes, out=zeros, where=wholes > 0)

    # Units without a whole, such as episodes without a choice, say nothing of the share.
    counted = np.asarray(whole) > 0
    all_pairs = np.stack([part, whole]).astype(np.float64)  # [2, N]
    pairs = all_pairs[:, counted]
    value = float(share([pairs]))

    # The interval of Clopper and Pearson where all trials have one result.
    num_trials = counted.sum()
    outside = (1 - CONFIDENCE) / 2
    least_if_all = outside ** (1 / num_trials)
    if value >= 1:
        return value, float(least_if_all), 1.0
    if value <= 0:
        return value, 0.0, float(1 - least_if_all)
    low, high = bootstrap_interval(share, [pairs])
    return value, float(low), float(high)
