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
    # The number of units of each task.
    sizes = [np.shape(task)[-1] for sample in samples for task in sample]
    if min(sizes) < 2:
        unknown = np.full(np.shape(statistic(*samples)), np.nan)
        return unknown, unknown
    generator = np.random.default_rng(seed)

    def resample(task: Array, times: int) -> Array:
        units = np.shape(task)[-1]
        return np.asarray(task)[..., generator.integers(units, size=(times, units))]

    # In blocks, to bound the memory.
    largest = max(np.size(task) for sample in samples for task in sample)
    together = max(1, BLOCK // largest)
    values = []
    for begin in range(0, resamples, together):
        times = min(together, resamples - begin)
        drawn = [[resample(task, times) for task in sample] for sample in samples]
        values.append(statistic(*drawn))

    outside = tail(min(sizes), len(sizes))
    percents = [100 * outside, 100 * (1 - outside)]
    low, high = np.percentile(np.concatenate(values, axis=-1), percents, axis=-1)
    return low, high


def tail(units: int, tasks: int = 1) -> float:
    """The share of resampled values to cut off at each end, for so many units in each of so many tasks.

    Resampling N units varies less than drawing new ones, by the factor (N - 1) / N of the variance, and the spread that
    it starts from is uncertain. So the share is that beyond sqrt(N / (N - 1)) quantiles of Student's distribution with
    tasks (N - 1) degrees of freedom: 0.025 of very many units, 0.017 of 24 and 0.006 of 8.
    """
    freedom = tasks * (units - 1)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    # Student's quantile by the expansion of Abramowitz and Stegun (26.7.5).
    student = z + (z**3 + z) / (4 * freedom)
    student += (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return NormalDist().cdf(-student * math.sqrt(units / (units - 1)))


def mean_interval(*tasks: Array) -> tuple[float, float, float]:
    """The mean over tasks of the mean over units, of arrays [N], and its 95 % interval; see `bootstrap_interval`.

    An interval without width means that all units of a task are equal: it knows nothing of rarer ones.
    """

    def mean(drawn: Sample) -> Array:
        return np.mean([np.mean(task, axis=-1) for task in drawn], axis=0)

    low, high = bootstrap_interval(mean, tasks)
    return float(mean(tasks)), float(low), float(high)


def share_interval(part: Array, whole: Array) -> tuple[float, float, float]:
    """The sum of parts [N] over that of wholes [N], and its 95 % interval; see `bootstrap_interval`.

    A part is at most its whole, and not all wholes are 0. If every part is the whole, or every one is nothing,
    resampling shows no spread. The interval is then that of a trial for each unit with one result in all of them
    (Clopper and Pearson, 1934): of 8 units it is 0.63 to 1. That is wide enough even if a unit is always of one kind.
    """

    def share(drawn: Sample) -> Array:
        parts, wholes = np.sum(drawn[0], axis=-1)
        return np.divide(parts, wholes, out=np.zeros(np.shape(wholes)), where=wholes > 0)

    # Units without a whole, such as episodes without a choice, say nothing of the share.
    counted = np.asarray(whole) > 0
    pairs = np.stack([part, whole]).astype(np.float64)[:, counted]
    value = float(share([pairs]))
    # The end of the interval of Clopper and Pearson where all trials have one result.
    alike = ((1 - CONFIDENCE) / 2) ** (1 / counted.sum())
    if value >= 1:
        return value, float(alike), 1.0
    if value <= 0:
        return value, 0.0, float(1 - alike)
    low, high = bootstrap_interval(share, [pairs])
    return value, float(low), float(high)
