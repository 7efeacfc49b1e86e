"""Intervals against their literal definition, tables and all resamples of small samples; how often they are right."""

import itertools
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from actors.intervals import bootstrap_interval, mean_interval, share_interval, tail
from reports.statistics import interquartile_mean, mean, probability_of_improvement

STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 10: 2.228, 23: 2.069, 120: 1.980}
"""Quantiles of Student's distribution at 0.975 by degrees of freedom, as tables have them."""
SIX = np.array([0.0, 1.0, 1.5, 4.0, 7.0, 20.0])


@pytest.mark.parametrize("freedom", STUDENT)
def test_tails_are_those_of_student_for_as_many_units(freedom: int) -> None:
    """In units of the spread of resampled means, which is too small by sqrt((N - 1) / N)."""
    accuracy = {2: 0.04, 3: 0.01}.get(freedom, 0.003)
    for tasks in (1, 2, 4):
        if freedom % tasks:
            continue
        units = freedom // tasks + 1
        quantile = -NormalDist().inv_cdf(tail(units, tasks)) * np.sqrt((units - 1) / units)
        assert quantile == pytest.approx(STUDENT[freedom], rel=accuracy)


def test_the_tail_of_many_units_is_that_of_a_normal_distribution() -> None:
    assert tail(10**6) == pytest.approx(0.025, rel=1e-4)


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_ends_are_percentiles_over_all_resamples(statistic: Callable) -> None:
    """Six units have 6^6 = 46,656 resamples; a seed draws 40,000."""
    every = np.array(list(itertools.product(SIX, repeat=6)))
    percent = 100 * tail(6)
    wanted = np.percentile(statistic([every]), [percent, 100 - percent])
    for seed in (0, 1):
        found = bootstrap_interval(statistic, [SIX], resamples=40_000, seed=seed)
        assert found == pytest.approx(wanted, abs=0.35)
    assert np.ptp(wanted) > 4
    if statistic is mean:
        assert mean_interval(SIX)[1:] == pytest.approx(wanted, abs=0.35)


def test_large_samples_have_the_interval_of_a_normal_mean() -> None:
    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    center, low, high = mean_interval(values)
    standard_error = values.std(ddof=1) / np.sqrt(400)
    half = 1.966 * standard_error  # Student's quantile for 399 degrees of freedom
    assert center == values.mean()
    assert (low, high) == pytest.approx((center - half, center + half), abs=0.03)


def test_the_interval_of_two_to_four_units_is_their_range() -> None:
    for count in (2, 3, 4):
        _, low, high = mean_interval(SIX[:count])
        assert (low, high) == (SIX[0], SIX[count - 1])


def test_one_unit_has_no_interval() -> None:
    """Nor have several samples of which one is a single unit."""
    one = SIX[:1]
    for samples in ([one], [SIX, one]):
        _, low, high = mean_interval(*samples)
        assert np.isnan([low, high]).all()
    assert np.isnan(bootstrap_interval(probability_of_improvement, [SIX], [one])).all()


def test_units_are_drawn_within_their_task_and_sample() -> None:
    """Two constant tasks have a mean without spread. Equal samples of two variants are drawn independently."""
    ones = np.full(4, 1.0)
    fives = np.full(9, 5.0)
    assert bootstrap_interval(mean, [ones, fives]) == (3, 3)
    assert mean_interval(ones, fives) == (3, 3, 3)

    low, high = bootstrap_interval(lambda ours, theirs: mean(ours) - mean(theirs), [SIX], [SIX])
    assert low < -3
    assert high > 3


def test_unequal_tasks_count_as_if_all_were_as_small_as_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail is that of the smallest size among all samples that are compared, and of the number of tasks."""
    asked: list[tuple[int, int]] = []

    def tail_of(units: int, tasks: int) -> float:
        asked.append((units, tasks))
        return 0.2

    monkeypatch.setattr("actors.intervals.tail", tail_of)
    bootstrap_interval(mean, [SIX[:4], SIX])
    bootstrap_interval(probability_of_improvement, [SIX, SIX], [SIX, SIX[:3]])
    assert asked == [(4, 2), (3, 4)]


def test_several_measurements_of_the_same_units_have_an_interval_each() -> None:
    """Points of a curve are drawn together, by whole runs: a point with shifted values has a shifted interval."""
    curves = np.stack([SIX, SIX + 100, -SIX])
    low, high = bootstrap_interval(mean, [curves])
    assert low[1] == pytest.approx(low[0] + 100)
    assert (low[2], high[2]) == pytest.approx((-high[0], -low[0]), abs=0.5)


def test_many_units_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 60 numbers has ten resamples of six units; the last block has the five that remain."""
    monkeypatch.setattr("actors.intervals.BLOCK", 60)
    seen: list[int] = []

    def statistic(sample: list) -> np.ndarray:
        seen.append(sample[0].shape[-2])
        return mean(sample)

    bootstrap_interval(statistic, [SIX], resamples=25)
    assert seen == [10, 10, 5]


def test_a_share_is_a_ratio_of_sums() -> None:
    right = np.array([1.0, 9.0, 0.0, 2.0, 0.0])
    choices = np.array([1.0, 10.0, 4.0, 4.0, 0.0])
    value, low, high = share_interval(right, choices)
    assert value == 12 / 19
    assert (low, high) == (0.0, 1.0), "four units with choices, the worst of which has 0 of 4 and the best 1 of 1"

    _, low, high = share_interval(right[3:], choices[3:])
    assert np.isnan([low, high]).all(), "one unit has choices"


def test_a_share_of_all_or_nothing_has_an_exact_interval() -> None:
    """That of Clopper and Pearson: 8 of 8 right trials have a probability below 2.5 % for shares below 0.6306."""
    choices = np.full(8, 5.0)
    assert share_interval(choices, choices) == (1.0, pytest.approx(0.6306, abs=1e-4), 1.0)
    assert share_interval(0 * choices, choices) == (0.0, 0.0, pytest.approx(0.3694, abs=1e-4))

    one_idle = np.array([5.0, 5.0, 0.0])
    _, low, _ = share_interval(one_idle, one_idle)
    assert low == pytest.approx(0.025**0.5), "units without choices are no trials"


SCORES: dict[str, tuple[Callable, float, tuple[float, float]]] = {
    "normal": (lambda random, size: random.normal(size=size), 0.0, (0.92, 0.94)),
    "uniform": (lambda random, size: random.random(size), 0.5, (0.92, 0.93)),
    "near both bounds": (lambda random, size: random.beta(0.3, 0.3, size), 0.5, (0.94, 0.94)),
    "near one bound": (lambda random, size: random.beta(5, 1, size), 5 / 6, (0.9, 0.92)),
    "skewed": (lambda random, size: random.exponential(size=size), 1.0, (0.87, 0.91)),
    "even chance": (lambda random, size: random.integers(0, 2, size).astype(float), 0.5, (0.95, 0.94)),
}
"""How to draw scores, their true mean, and how often intervals of 8 and of 24 units must hold it at least.

Percentiles at 2.5 % hold the mean of 8 normal scores in 89 % of samples.
"""


@pytest.mark.parametrize("kind", SCORES)
def test_intervals_of_means_hold_the_truth_as_often_as_they_say(kind: str) -> None:
    draw, truth, least = SCORES[kind]
    for units, wanted in zip((8, 24), least):
        values = draw(np.random.default_rng(units), (800, units))
        low, high = bootstrap_interval(mean, [values], resamples=600)
        assert wanted <= np.mean((low <= truth) & (truth <= high)) <= 0.995


@pytest.mark.parametrize("right", [0.8, 0.9, 0.97])
@pytest.mark.parametrize("choices", [1, 6])
def test_intervals_of_shares_hold_the_truth(right: float, choices: int) -> None:
    """All choices of an episode are right or all are wrong, so that episodes are the trials, not choices.

    Many samples of 8 episodes have no wrong choice.
    """
    samples = 200
    for units in (8, 24):
        drawn = np.random.default_rng(units).binomial(units, right, samples)
        numbers_of_right, times = np.unique(drawn, return_counts=True)
        held = 0
        for number, occurrences in zip(numbers_of_right, times):
            is_right = np.arange(units) < number
            _, low, high = share_interval(choices * is_right, np.full(units, float(choices)))
            if low <= right <= high:
                held += occurrences
        assert held / samples >= 0.9


def test_intervals_of_comparisons_hold_the_truth() -> None:
    """Two variants with five runs differ by a standard deviation: in 76 % of pairs of runs one is better."""
    ours, theirs = np.random.default_rng(0).normal(size=(2, 300, 5))
    better = NormalDist().cdf(0.5**0.5)
    for statistic, samples, truth in (
        (probability_of_improvement, ([ours + 1], [theirs]), better),
        (interquartile_mean, ([ours],), 0.0),
        (mean, ([ours, theirs],), 0.0),
    ):
        low, high = bootstrap_interval(statistic, *samples, resamples=500)
        assert 0.91 <= np.mean((low <= truth) & (truth <= high)) <= 0.985


@pytest.mark.parametrize("units", [2, 4, 8])
def test_the_tail_is_beyond_students_quantile(units: int) -> None:
    """By four terms of Abramowitz and Stegun (26.7.5): x + g1(x)/n + g2(x)/n^2 + g3(x)/n^3."""
    x = NormalDist().inv_cdf(0.975)
    n = units - 1
    g1 = (x**3 + x) / 4
    g2 = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    g3 = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    quantile = x + g1 / n + g2 / n**2 + g3 / n**3
    assert tail(units) == pytest.approx(NormalDist().cdf(-quantile * (units / n) ** 0.5), rel=1e-9)
