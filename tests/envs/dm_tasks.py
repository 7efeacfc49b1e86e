"""A dm_env environment with every kind of spec and short episodes, and things that are no environment."""

import time

import dm_env
import numpy as np
from dm_env import specs


class Walk(dm_env.Environment):
    """A walk on 0..`cells` - 1 with a gusty wind: terminates at the right end, is truncated after `limit` steps.

    Observations are a nest: the cell, its place in [-1, 1], and (at an end, steps left).
    """

    def __init__(self, cells: int = 5, limit: int = 9, seed: int | None = None) -> None:
        self.cells = cells
        self.limit = limit
        self.random = np.random.default_rng(seed)
        self.over = True
        self.closed = False

    def reset(self) -> dm_env.TimeStep:
        self.cell = int(self.random.integers(self.cells - 1))
        self.time = 0
        self.over = False
        return dm_env.restart(self._observe())

    def step(self, action: int) -> dm_env.TimeStep:
        if self.over:
            return self.reset()
        wind = int(self.random.integers(-1, 2))
        self.cell = int(np.clip(self.cell + int(action) - 1 + wind, 0, self.cells - 1))
        self.time += 1
        if self.cell == self.cells - 1:
            self.over = True
            return dm_env.termination(1.0, self._observe())
        if self.time == self.limit:
            self.over = True
            return dm_env.truncation(0.0, self._observe())
        return dm_env.transition(-0.1, self._observe())

    def _observe(self) -> dict:
        last = self.cells - 1
        return {
            "cell": np.int32(self.cell),
            "place": np.array([2 * self.cell / last - 1]),
            "rest": (np.array(self.cell in (0, last)), float(self.limit - self.time)),
        }

    def observation_spec(self) -> dict:
        return {
            "cell": specs.DiscreteArray(self.cells),
            "place": specs.BoundedArray((1,), np.float64, -1, 1),
            "rest": (specs.Array((), bool), specs.Array((), float)),
        }

    def action_spec(self) -> specs.Array:
        return specs.DiscreteArray(3)

    def close(self) -> None:
        self.closed = True


class Drift(Walk):
    """A walk with nests of bounded numbers as actions, as dm_control gives them names, and an image."""

    def step(self, action: tuple[np.ndarray, dict]) -> dm_env.TimeStep:  # type: ignore[override]
        push, others = action
        for given, spec in zip((push, others["brake"], others["gear"]), self._action_specs(), strict=True):
            spec.validate(given)
        return super().step(1 + round(float(push.sum())))

    def _action_specs(self) -> list[specs.Array]:
        push = specs.BoundedArray((2,), np.float64, [-0.5, 0.0], [0.5, 1.0], name="left\tright")
        return [push, specs.BoundedArray((1,), np.int32, 0, 2), specs.DiscreteArray(4)]

    def action_spec(self) -> tuple:  # type: ignore[override]
        push, brake, gear = self._action_specs()
        return (push, {"brake": brake, "gear": gear})

    def observation_spec(self) -> dict:
        return {**super().observation_spec(), "view": specs.BoundedArray((4, 5, 3), np.uint8, 0, 255)}

    def _observe(self) -> dict:
        return {**super()._observe(), "view": np.full((4, 5, 3), self.cell, np.uint8)}


class Unhurried(Walk):
    """A walk that leaves most of the processor to other processes."""

    def step(self, action: int) -> dm_env.TimeStep:
        time.sleep(0.005)
        return super().step(action)


def makes_walks(cells: int = 5) -> dm_env.Environment:
    """A function that is annotated to return an environment, as a spec may name it."""
    return Walk(cells)


def says_nothing(cells: int = 7) -> None:
    """A function that is not annotated to return an environment, which is not called."""
    raise AssertionError("it was called")
