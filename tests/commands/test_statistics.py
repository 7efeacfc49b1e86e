"""Statistics of few runs against examples by hand and against the numbers of `rliable` 1.2.0."""

import numpy as np
import pytest

from reports.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean,
    mean_curve,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

X = [np.array([71.5, 12.25, 93.0, 55.0, 60.5]), np.array([40.0, 44.0, 39.5, 47.0, 41.0])]
Y = [np.array([50.0, 60.5, 20.0]), np.array([41.0, 38.0, 43.5])]
"""Five and three runs on two tasks."""


def test_interquartile_mean_cuts_a_quarter_at_each_end_rounded_down() -> None:
    assert interquartile_mean([np.array([8.0, 1.0, 3.0, 100.0])]) == (3 + 8) / 2
    assert interquartile_mean([np.array([1.0, 2.0, 6.0])]) == 3, "nothing of three"
    assert interquartile_mean([np.array([0.0, 10.0]), np.array([2.0, 4.0])]) == 3, "over runs of all tasks"


def test_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([np.array([1.0, 2.0])], [np.array([2.0, 0.0])]) == (1 + 0.5 + 1) / 4
    two_tasks = [np.array([5.0]), np.array([1.0])], [np.array([1.0]), np.array([5.0])]
    assert probability_of_improvement(*two_tasks) == 0.5, "mean over tasks"


def test_both_are_those_of_rliable() -> None:
    assert interquartile_mean(X) == pytest.approx(47.916666666666664)
    assert interquartile_mean(Y) == pytest.approx(43.125)
    assert probability_of_improvement(X, Y) == pytest.approx(0.6666666666666666)
    # Its intervals from 20,000 and 4,000 resamples; ours come from other draws.
    assert bootstrap_interval(interquartile_mean, X, resamples=4000) == pytest.approx((36.875, 57.75), abs=1.0)


def test_resampling_stays_within_a_task_and_a_range() -> None:
    constant = [np.array([1.0, 1.0]), np.array([5.0, 5.0, 5.0, 5.0])]
    assert bootstrap_interval(lambda scores: np.mean([task.mean() for task in scores]), constant) == (3, 3)
    assert bootstrap_interval(interquartile_mean, [np.array([2.0, 3.0, 7.0])]) == (2, 7), "the range of three"


def test_curves_are_joined_where_all_of_them_have_values() -> None:
    first = np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 0.0])
    second = np.array([5.0, 25.0]), np.array([0.0, 20.0])
    places, mean, low, high = mean_curve([first, second], points=4)
    assert places.tolist() == [5, 10, 15, 20]
    assert mean.tolist() == [2.5, 7.5, 7.5, 7.5]
    assert low.tolist() == [0, 5, 5, 0], "the lower of two"
    assert high.tolist() == [5, 10, 10, 15]
    assert [len(part) for part in mean_curve([first, (np.array([30.0]), np.array([1.0]))])] == [0] * 4
    assert np.isnan(mean_curve([first])[2:]).all(), "a single run"


def test_aggregates_are_those_of_rliable() -> None:
    assert median(X) == mean(X) == pytest.approx(50.375)
    assert median([np.array([1.0, 3.0]), np.array([9.0]), np.array([5.0])]) == 5, "of the means of tasks"
    assert optimality_gap(X, best=60.0) == pytest.approx(14.125)


def test_a_profile_is_the_share_of_runs_above_each_place() -> None:
    share, low, high = performance_profile(X, np.array([0.0, 44.0, 93.0]))
    assert share.tolist() == [1, 0.5, 0], "44 is not above 44"
    assert (low[0], high[0], high[2]) == (1, 1, 0)
    assert low[1] <= 0.5 <= high[1]
    share, low, _ = performance_profile([np.array([1.0])], np.array([0.0]))
    assert share.tolist() == [1]
    assert np.isnan(low).all(), "a single run"
