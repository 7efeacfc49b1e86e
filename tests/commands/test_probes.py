"""Probes of what compression keeps, by their definitions: what is in view, ridge regression, shares, conclusions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.intervals import share_interval
from reports.compression import NAMES_READ, VIEWS_READ, _shape_of, conclusion, in_view
from reports.probes import FOLDS, RIDGE, explained_cell, read_in_others, right_cell


@pytest.mark.parametrize("yaw", [0.0, 30.0, -100.0, 179.0])
@pytest.mark.parametrize("view", [60.0, 90.0])
def test_a_place_is_in_view_within_half_of_the_field_of_view(yaw: float, view: float) -> None:
    """Yaw and bearings grow to the left of the x axis; the player stands at (3, -2)."""
    recording: Any = SimpleNamespace(poses=np.array([[3.0, -2.0, yaw, 0.0]]), floor_plan={"view": view})
    distance = 7
    for side in (-1, 1):
        for degrees in (0, view / 2 - 1, view / 2 + 1, view - 1, 120, 180):
            angle = np.radians(yaw + side * degrees)
            x = 3.0 + distance * np.cos(angle)
            y = -2.0 + distance * np.sin(angle)
            assert in_view(recording, 0, x, y) == (degrees < view / 2)


def test_without_a_place_or_a_field_of_view_all_is_in_view() -> None:
    poses = np.zeros((1, 4))
    for known in ({"poses": None, "floor_plan": {"view": 90.0}}, {"poses": poses, "floor_plan": None}):
        assert in_view(SimpleNamespace(**known), 0, -1.0, 0.0)
    assert in_view(SimpleNamespace(poses=poses, floor_plan={"view": 90.0}), 0)


def literal_probe(features: np.ndarray, targets: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Weights for features and the constant of the least mean squared error plus the penalty, by its gradient."""
    mean = features.mean(axis=0)
    spread = features.std(axis=0)
    standardized = (features - mean) / spread
    constant = float(targets.mean())

    rate = 0.2
    weights = np.zeros(features.shape[1])
    for _ in range(4000):
        error = standardized @ weights + constant - targets
        gradient = (standardized * error[:, None]).mean(axis=0) + penalty * weights
        weights -= rate * gradient

    of_features = weights / spread
    return of_features, constant - float(mean @ of_features)


def test_a_probe_is_a_ridge_regression_that_is_fitted_to_other_episodes() -> None:
    random = np.random.default_rng(0)
    features = random.normal(3.0, [1.0, 5.0, 0.2], (32, 3))
    targets = features @ [2.0, -1.0, 8.0] + random.normal(size=32)
    episode = np.arange(32) // 3
    read = read_in_others(features, targets[:, None], episode)[:, 0]
    for fold in range(FOLDS):
        held = episode % FOLDS == fold
        weights, constant = literal_probe(features[~held], targets[~held], RIDGE)
        np.testing.assert_allclose(read[held], features[held] @ weights + constant, atol=1e-6)


def test_the_penalty_of_a_probe_grows_with_its_data() -> None:
    """So that twenty times the same data teach the same."""
    random = np.random.default_rng(1)
    features = random.normal(size=(16, 4))
    targets = random.normal(size=(16, 2, 3))
    episode = np.arange(16)
    once = read_in_others(features, targets, episode)
    many = read_in_others(np.tile(features, (20, 1)), np.tile(targets, (20, 1, 1)), np.tile(episode, 20))
    np.testing.assert_allclose(many[:16], once, atol=1e-9)


def test_intervals_of_probes_are_over_episodes_not_slots() -> None:
    """Slots that are all right or all wrong in an episode are as few as their episodes."""
    # Four episodes, in two of which all slots are right.
    episode = np.repeat([7, 2, 9, 4], [10, 400, 30, 60])
    right = np.isin(episode, [2, 9]).astype(float)
    cell = right_cell(right, episode)
    assert (cell["value"], cell["low"], cell["high"]) == (86, 0, 100)
    assert (cell["text"], cell["small"]) == ("86 %", "[0, 100]")

    # All slots of all four.
    alike = right_cell(np.ones(500), episode)
    assert alike["low"] == pytest.approx(100 * 0.025 ** (1 / 4))

    # Shares of variance.
    error = np.where(right == 1, 0.0, 0.5)
    cell = explained_cell(error, np.ones(500), episode)
    assert (cell["value"], cell["low"], cell["high"]) == pytest.approx((93, 50, 100))

    # Many episodes of nine slots each: the interval of a share of episodes.
    many = np.arange(40)
    mixed = (many % 4 > 0).astype(float)
    wanted = [100 * end for end in share_interval(mixed, np.ones(40))]
    cell = right_cell(mixed.repeat(9), many.repeat(9))
    assert [cell[end] for end in ("value", "low", "high")] == pytest.approx(wanted)


def test_what_is_not_explained_is_not_below_zero() -> None:
    cell = explained_cell(np.array([3.0, 2.0, 4.0]), np.ones(3), np.arange(3))
    assert (cell["value"], cell["low"], cell["high"]) == (0, 0, 0)


def cell(value: float, low: float, high: float) -> dict[str, float]:
    """What a probe reads, in percent, with its interval."""
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("slots", "mean", "inputs", "fate"),
    [
        ((80, 70, 88), (50, 40, 60), (85, 75, 90), "kept"),  # its interval overlaps that of the better of the others
        ((85, 75, 90), (50, 40, 60), (85, 75, 90), "kept"),
        ((80, 70, 84), (90, 85, 95), (50, 40, 60), "lost in part"),  # 17 % of what is above the floor
        ((80, 70, 86), (90, 85, 95), (50, 40, 60), "kept"),
        ((80, 25, 100), (85, 40, 100), (50, 40, 60), "unknown"),  # as low as a guess
        ((29, 20, 38), (60, 31, 90), (50, 40, 60), "unknown"),
        ((80, 70, 88), (60, 29, 90), (50, 20, 60), "unreadable"),
        ((50, 40, 58), (90, 85, 95), (50, 40, 60), "mostly lost"),  # 67 %
    ],
)
def test_conclusions_are_drawn_from_intervals(slots: tuple, mean: tuple, inputs: tuple, fate: str) -> None:
    """A guess is right in 30 %."""
    cells = [cell(*slots), cell(*mean), cell(*inputs)]
    found, what, said = conclusion("the color", " (red, blue)", [cells], 30.0, NAMES_READ)
    assert (found, what) == (fate, "the color")
    better = max(mean[0], inputs[0])
    reads = f"is right for {slots[0]} % of compressed slots and {better} % before compression"
    assert said.endswith(f" probe {reads}; always giving the most frequent answer is right for 30 %.")
    if fate == "lost in part":
        assert said.startswith("Compressed memory loses 17 % of what can be read of the color (red, blue): ")
    if fate == "kept":
        loss = "no loss is visible" if slots[0] >= better else "a loss is not confirmed, because the intervals overlap"
        assert said.startswith(f"Compressed memory keeps the color (red, blue), and {loss}: ")


def test_conclusions_on_several_rows_are_on_their_means() -> None:
    rows = [
        [cell(40, 35, 45), cell(90, 85, 95), cell(90, 85, 95)],
        [cell(80, 75, 85), cell(92, 90, 94), cell(10, 0, 20)],
    ]
    found, _, said = conclusion("the views", "", rows, 0.0, VIEWS_READ)
    assert found == "lost in part"
    reads = "a linear probe reads 60 % of their variance from compressed slots, 91 % before compression."
    assert said == f"Compressed memory loses 34 % of what can be read of the views: {reads}"


@pytest.mark.parametrize(("thing", "shape"), [("green pot cone", "pot cone"), ("green cone", "cone"), ("exit", "")])
def test_the_shape_of_a_thing_is_the_longest_name_at_its_end(thing: str, shape: str) -> None:
    assert _shape_of(thing) == shape
