"""A dm_env environment with every kind of spec and short episodes."""

import time

import dm_env
import numpy as np
from dm_env import specs


class Walk(dm_env.Environment):
    """A walk on 0..`cells` - 1 with a gusty wind: terminates at the right end, is truncated after `limit` steps.

    Observations are a nest: the cell, its place in [-1, 1], and (at an end, steps left).
    """

    def __init__(self, cells: int = 5, limit: int = 9, seed: int | None = None) -> None:
        self.cells, self.limit = cells, limit
        self.random = np.random.default_rng(seed)
        self.over = True
        self.closed = False

    def reset(self) -> dm_env.TimeStep:
        self.cell, self.time, self.over = int(self.random.integers(self.cells - 1)), 0, False
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
        place = np.array([2 * self.cell / (self.cells - 1) - 1])
        return {
            "cell": np.int32(self.cell),
            "place": place,
            "rest": (np.array(self.cell in (0, self.cells - 1)), float(self.limit - self.time)),
        }

    def observation_spec(self) -> dict:
        return {
            "cell": specs.DiscreteArray(self.cells),
            "place": specs.BoundedArray((1,), np.float64, -1, 1),
            "rest": (specs.Array((), bool), specs.Array((), float)),
        }

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3)

    def close(self) -> None:
        self.closed = True


class Unhurried(Walk):
    """A walk that leaves most of the processor to other processes."""

    def step(self, action: int) -> dm_env.TimeStep:
        time.sleep(0.005)
        return super().step(action)
