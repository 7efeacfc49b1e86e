"""Statistics of few runs against examples by hand and against the numbers of `rliable` 1.2.0."""

import itertools
import math
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from actors.intervals import bootstrap_interval
from reports import statistics
from reports.statistics import (
    chance_of_improvement,
    interquartile_mean,
    mean,
    mean_curve,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    runs_to_confirm,
)
from reports.tables import evaluation_rows, significant, with_interval

X = [np.array([71.5, 12.25, 93.0, 55.0, 60.5]), np.array([40.0, 44.0, 39.5, 47.0, 41.0])]
Y = [np.array([50.0, 60.5, 20.0]), np.array([41.0, 38.0, 43.5])]
"""Five and three runs on two tasks."""
DIGITS = {
    (66.2, 12.1, 98.3): ["66", "12", "98"],
    (0.9853, 0.9849, 0.9857): ["0.9853", "0.9849", "0.9857"],
    (-0.2, -6.8, 5.9): ["0", "-7", "6"],
    (1.1, 1.0, 1.2): ["1.10", "1.00", "1.20"],
    (2141.66, 1895.2, 2384.9): ["2142", "1895", "2385"],
    (0.5, 0.49999999, 0.50000001): ["0.500000", "0.500000", "0.500000"],
    (5.0, 5.0, 5.0): ["5.000", "5.000", "5.000"],
    (60.0, float("nan"), float("nan")): ["60.00", "", ""],
    (2.5e7, 2e7, 3e7): ["2.5e+07", "2e+07", "3e+07"],
}
"""A value and its interval, and how they are shown."""


def test_interquartile_mean_cuts_a_quarter_at_each_end_rounded_down() -> None:
    assert interquartile_mean([np.array([8.0, 1.0, 3.0, 100.0])]) == (3 + 8) / 2
    assert interquartile_mean([np.array([1.0, 2.0, 6.0])]) == 3, "nothing of three"
    assert interquartile_mean([np.array([0.0, 10.0]), np.array([2.0, 4.0])]) == 3, "over runs of all tasks"


def test_tasks_with_fewer_runs_have_the_same_weight() -> None:
    one_and_three_runs = [np.array([5.0]), np.array([1.0, 2.0, 9.0])]
    # 1 2 5 5 5 9, of which one is cut off at each end.
    assert interquartile_mean(one_and_three_runs) == pytest.approx((2 + 5 + 5 + 5) / 4)


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1, max_size=5))
def test_the_interquartile_mean_is_that_of_as_many_runs_of_each_task(tasks: list[list[int]]) -> None:
    """Literally: runs repeated until all tasks have as many, ordered, and a quarter cut off at each end."""
    as_many = math.lcm(*(len(task) for task in tasks))
    repeated = sorted(run for task in tasks for run in task * (as_many // len(task)))
    cut = len(repeated) // 4
    middle = repeated[cut : len(repeated) - cut]
    assert interquartile_mean([np.array(task) for task in tasks]) == pytest.approx(sum(middle) / len(middle))


def test_probability_of_improvement_by_hand() -> None:
    assert probability_of_improvement([np.array([1.0, 2.0])], [np.array([2.0, 0.0])]) == (1 + 0.5 + 1) / 4
    two_tasks = [np.array([5.0]), np.array([1.0])], [np.array([1.0]), np.array([5.0])]
    assert probability_of_improvement(*two_tasks) == 0.5, "mean over tasks"


def test_point_estimates_are_those_of_rliable() -> None:
    assert interquartile_mean(X) == pytest.approx(47.916666666666664)
    assert interquartile_mean(Y) == pytest.approx(43.125)
    assert probability_of_improvement(X, Y) == pytest.approx(0.6666666666666666)


def test_the_interval_is_that_of_rliable_but_for_its_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """rliable takes percentiles at 2.5 % of 20,000 resamples. Ours, from other draws, lie further out for few runs."""
    low, high = bootstrap_interval(interquartile_mean, X)
    assert low < 36
    assert high > 59
    monkeypatch.setattr("actors.intervals.tail", lambda *_: 0.025)
    assert bootstrap_interval(interquartile_mean, X) == pytest.approx((36.875, 57.75), abs=1.0)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_interval_of_few_runs_is_their_range(count: int) -> None:
    runs = np.array([7.0, 2.0, 3.0, 4.0, 11.0])[:count]
    assert bootstrap_interval(interquartile_mean, [runs]) == (2, runs.max())


def test_statistics_of_many_samples_are_those_of_each() -> None:
    """Resamples are passed at once: for each task an array [..., resamples, runs], here of 4 x 5 samples."""
    random = np.random.default_rng(0)
    ours = [random.integers(0, 120, (4, 5, runs)).astype(float) for runs in (3, 6)]
    theirs = [np.arange(8.0) * 15] * 2

    def improvement(tasks: list[np.ndarray]) -> np.ndarray | float:
        return probability_of_improvement(tasks, theirs)

    for statistic in (interquartile_mean, mean, median, optimality_gap, improvement):
        found = statistic(ours)
        assert np.shape(found) == (4, 5)
        for sample in np.ndindex(4, 5):
            np.testing.assert_allclose(found[sample], statistic([task[sample] for task in ours]))


def test_curves_are_joined_where_all_of_them_have_values() -> None:
    """A curve is an array of places and one of values."""
    first = np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 0.0])
    second = np.array([5.0, 25.0]), np.array([0.0, 20.0])
    places, mean, low, high = mean_curve([first, second], points=4)
    assert places.tolist() == [5, 10, 15, 20]
    assert mean.tolist() == [2.5, 7.5, 7.5, 7.5]
    assert low.tolist() == [0, 5, 5, 0], "the lower of two"
    assert high.tolist() == [5, 10, 10, 15]


def test_curves_with_one_place_in_common_or_none() -> None:
    curve = np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 1.0])
    apart = np.array([30.0]), np.array([1.0])
    assert [len(part) for part in mean_curve([curve, apart])] == [0] * 4
    assert [len(part) for part in mean_curve([])] == [0] * 4

    touching = np.array([20.0, 40.0]), np.array([3.0, 9.0])
    places, mean, low, high = mean_curve([curve, touching])
    assert places.tolist() == [20]
    assert mean.tolist() == [(1.0 + 3.0) / 2]
    assert len(low) == len(high) == 1


def test_the_curve_of_a_single_run_has_no_interval() -> None:
    _, _, low, high = mean_curve([(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 0.0]))])
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_aggregates_are_those_of_rliable() -> None:
    assert median(X) == mean(X) == pytest.approx(50.375)
    assert median([np.array([1.0, 3.0]), np.array([9.0]), np.array([5.0])]) == 5, "of the means of tasks"
    assert optimality_gap(X, best=60.0) == pytest.approx(14.125)
    assert optimality_gap([np.array([90.0]), np.array([60.0, 50.0])]) == (10 + 45) / 2, "tasks have the same weight"


def test_a_profile_is_the_share_of_runs_above_each_place() -> None:
    share, low, high = performance_profile(X, np.array([0.0, 44.0, 93.0]))
    assert share.tolist() == [1, 0.5, 0], "44 is not above 44"
    assert (low[0], high[0], high[2]) == (1, 1, 0)
    assert low[1] <= 0.5 <= high[1]

    tasks_of_two_and_six_runs = [np.array([1.0, 1.0]), np.zeros(6)]
    share, _, _ = performance_profile(tasks_of_two_and_six_runs, np.array([0.5]))
    assert share == 1 / 2, "tasks have the same weight"

    a_single_run = [np.array([1.0])]
    share, low, _ = performance_profile(a_single_run, np.array([0.0]))
    assert share.tolist() == [1]
    assert np.isnan(low).all()


def test_a_profiles_interval_is_over_the_runs_of_each_task() -> None:
    """Runs of a task that are all above a place, beside a task of none, have a share without spread."""
    apart = [np.full(6, 10.0), np.full(6, -10.0)]
    assert performance_profile(apart, np.zeros(1)) == (0.5, 0.5, 0.5)
    half = np.arange(20.0)
    (share,), (low,), (high,) = performance_profile([half], np.array([9.5]))
    expected = bootstrap_interval(lambda scores: np.mean(scores[0] > 9.5, axis=-1), [half])
    assert share == 0.5
    assert (low, high) == pytest.approx(expected, abs=0.051)
    assert 0.4 < high - low < 0.6, "a standard error of 0.11 on either side, twice"


def test_a_curves_interval_is_that_of_the_mean_at_each_place() -> None:
    random = np.random.default_rng(1)
    curves = [(np.array([0.0, 1.0]), random.normal(size=2)) for _ in range(8)]
    _, middle, low, high = mean_curve(curves, points=2)
    for place in (0, 1):
        values = np.array([scores[place] for _, scores in curves])
        assert middle[place] == pytest.approx(values.mean())
        expected = bootstrap_interval(mean, [values])
        assert (low[place], high[place]) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_chance_of_an_improvement_counts_all_divisions_of_runs(tasks: int) -> None:
    """Against a list of them, for a few runs with ties, as many of one variant as of the other or not."""
    random = np.random.default_rng(tasks)
    for _ in range(10):
        ours = [random.integers(0, 4, random.integers(2, 4)).astype(float) for _ in range(tasks)]
        theirs = [random.integers(0, 4, random.integers(2, 4)).astype(float) for _ in range(tasks)]
        found = abs(probability_of_improvement(ours, theirs) - 0.5)
        of_tasks = [list(divisions(*task)) for task in zip(ours, theirs)]
        as_far = []
        for division in itertools.product(*of_tasks):
            other = abs(probability_of_improvement(*zip(*division)) - 0.5)
            as_far.append(other >= found - 1e-9)
        assert chance_of_improvement(ours, theirs) == pytest.approx(np.mean(as_far), abs=1e-12)


def divisions(ours: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All divisions of two samples into two of these sizes."""
    runs = np.concatenate([ours, theirs])
    for chosen in itertools.combinations(range(len(runs)), len(ours)):
        yield runs[list(chosen)], np.delete(runs, chosen)


def test_chance_of_an_improvement_of_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all runs are better, two divisions are as far: all of one below the other, either way round."""
    assert chance_of_improvement([np.arange(2.0)], [np.arange(2.0) + 2]) == pytest.approx(2 / 6)
    assert chance_of_improvement([np.arange(30.0)], [np.arange(30.0) + 30]) == pytest.approx(0, abs=1e-12)
    assert chance_of_improvement(X, Y) == pytest.approx(chance_of_improvement(Y, X))

    # With other numbers of runs in each task, the shares of pairs are rounded a little.
    ours = [np.arange(count) + 1.5 for count in (3, 5, 7)]
    theirs = [np.arange(float(count)) for count in (13, 11, 9)]
    rounded = chance_of_improvement(ours, theirs)
    monkeypatch.setattr(statistics, "MOST_STEPS", 10**6)
    exact = chance_of_improvement(ours, theirs)
    assert rounded == pytest.approx(exact, rel=0.01)
    assert 0.05 < exact < 0.95

    # Rounding may make a difference look more likely to be chance, never less.
    for steps in range(20, 60):
        monkeypatch.setattr(statistics, "MOST_STEPS", steps)
        assert chance_of_improvement(ours, theirs) >= exact - 1e-9


def test_runs_to_confirm_are_enough_in_four_of_five_cases() -> None:
    """Normal scores, one standard deviation apart, by the test of Mann and Whitney in its normal approximation."""
    improvement = 0.760  # of x over y if x - y is normal with mean 1 and variance 2
    runs = round(runs_to_confirm(improvement))
    deviation = np.sqrt((2 * runs + 1) / (12 * runs**2))  # of the probability of improvement if x and y are alike

    random = np.random.default_rng(0)
    confirmed = []
    for _ in range(1000):
        ours = [random.normal(1, 1, runs)]
        theirs = [random.normal(0, 1, runs)]
        difference = probability_of_improvement(ours, theirs) - 0.5
        confirmed.append(abs(difference) > 1.96 * deviation)
    assert np.mean(confirmed) == pytest.approx(0.8, abs=0.06)


def test_runs_to_confirm_are_the_same_for_better_and_worse() -> None:
    assert runs_to_confirm(0.3) == pytest.approx(runs_to_confirm(0.7))
    assert runs_to_confirm(0.5) == float("inf")


@pytest.mark.parametrize(("numbers", "texts"), DIGITS.items())
def test_a_score_has_the_digits_that_its_interval_allows(numbers: tuple[float, ...], texts: list[str]) -> None:
    assert with_interval(*numbers) == texts


def test_numbers_without_an_interval_have_digits_at_any_size() -> None:
    numbers = {
        86.0: "86.00",
        5.0331: "5.033",
        0.012: "0.012",
        9.92e-5: "9.92e-05",
        -2e-9: "-2e-09",
        0.0: "0.000",
        1.25e9: "1.25e+09",
    }
    assert {number: significant(number) for number in numbers} == numbers


@pytest.mark.parametrize(
    ("mean", "low", "high", "said"),
    [
        (8.476, 4.35, 12.612, "8.48  [4.35, 12.61]"),
        (9.92e-5, 9.8e-5, 1e-4, "9.92e-05  [9.8e-05, 0.0001]"),
        (0.0, 0.0, 0.0, "0.00  all equal"),
        (-0.02, -0.5, 0.4, "-0.02  [-0.50, 0.40]"),
        (992187500.0, 9.8e8, 1e9, "9.922e+08  [9.8e+08, 1e+09]"),
    ],
)
def test_returns_of_any_size_are_printed_with_digits(mean: float, low: float, high: float, said: str) -> None:
    summary = {"episodes": 2, "return": {"mean": mean, "low": low, "high": high}}
    assert evaluation_rows(summary)["return"] == said
