"""Diagnostic tasks: small tests of memory in numpy, whose scores follow from their rules.

`Recall` and `TMaze` each ask for one thing that was observed some steps before. Observations are small vectors. Tasks
from the literature are in `retention` and `rewriting`.
"""

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.batched import BatchedEnv, Step, draw
from envs.outputs import MOST_NUMBERS


class DiagnosticEnv(BatchedEnv):
    """N environments of a task, which names its `variables` and defines `begin`, `act`, `observe`, `oracle_actions`.

    Variables are attributes, arrays int64 that are changed in place: [N], and [N, ...] for those in `shapes`, which may
    depend on the fields. `scores` gives mean scores by its fields: of "oracle", of "random" actions, and of the best
    agent that is "memoryless", as far as they are known; they are exact where no comment says otherwise. People read
    names of actions and of elements of observations, which a task may have.
    """

    variables: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]] = ()
    element_names: tuple[str, ...] = ()
    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 (subclasses replace it)
    largest: ClassVar[float] = 1.0
    """The largest number of an observation; the least is 0."""

    def __init__(self, num_envs: int, num_features: int, num_actions: int) -> None:
        """Observations are vectors of `num_features`.

        Raises:
            ValueError: if the observation or the state of one environment would have more than `MOST_NUMBERS`.
        """
        for what, number in (("observation", num_features), *self._sizes_of_state()):
            if number > MOST_NUMBERS:
                raise ValueError(f"{what}: expected fields that need at most {MOST_NUMBERS:,} numbers, got {number:,}")
        self.rng = np.zeros(num_envs, np.uint64)
        over = np.zeros(num_envs, bool)
        arrays: dict[str, NDArray] = {"rng": self.rng, "over": over}
        for name in (*self.variables, *self.shapes):
            shape_of_row = self.shapes.get(name, ())
            arrays[name] = np.zeros((num_envs, *shape_of_row), np.int64)
            setattr(self, name, arrays[name])
        observation_space = spaces.Box(0, self.largest, (num_features,), np.float32)
        super().__init__(num_envs, observation_space, num_actions, arrays=arrays, over=over)

        if self.action_names:
            self.metadata["action_names"] = self.action_names
        if self.element_names:
            self.metadata["element_names"] = self.element_names

    def _sizes_of_state(self) -> list[tuple[str, int]]:
        """The name and the number of elements of each array in the state of one environment."""
        return [(name, math.prod(shape)) for name, shape in self.shapes.items()]

    def act(self, actions: NDArray[np.int64]) -> Step:
        """Takes `actions` [N] in all rows, also in those that then begin an episode."""
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64], begin: NDArray[np.bool_]) -> Step:
        # Rows that begin an episode take action 0, so that what they draw does not depend on the action.
        reward, terminated, truncated = self.act(np.where(begin, 0, actions))
        self.begin(begin)
        return np.where(begin, 0.0, reward), terminated & ~begin, truncated & ~begin


class Recall(DiagnosticEnv):
    """Delayed recall: one of K symbols is shown and asked for `delay` steps later. +1 for it; then the episode ends.

    Observations are [symbol, one-hot K; 1 where it is asked for]. An action names one of K `symbols` and counts only
    there. `reward` takes the place of +1.
    """

    variables = ("symbol", "time")
    symbol: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, delay: int = 20, symbols: int = 4, reward: float = 1.0) -> None:
        require_least(1, delay=delay)
        require_least(2, symbols=symbols)
        require_not_negative(reward=reward)
        self.delay = delay
        self.symbols = symbols
        self.reward = reward
        super().__init__(num_envs, symbols + 1, symbols)

    @staticmethod
    def scores(symbols: int = 4, reward: float = 1.0, **_: Any) -> dict[str, float]:
        return {"oracle": reward, "memoryless": reward / symbols, "random": reward / symbols}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.symbol[rows] = draw(self, rows, self.symbols)
        self.time[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        asked = self.time == self.delay
        self.time += 1
        return self.reward * (asked & (actions == self.symbol)), asked, np.zeros_like(asked)

    def observe(self) -> NDArray[np.float32]:
        seen = np.zeros((self.num_envs, self.symbols + 1), np.float32)
        seen[np.arange(self.num_envs), self.symbol] = self.time == 0
        seen[:, -1] = self.time == self.delay
        return seen

    def oracle_actions(self) -> NDArray[np.int64]:
        return self.symbol.copy()


class TMaze(DiagnosticEnv):
    """The T-maze of Bakker (2002): a sign at the start of a corridor says where to turn at its end, `length` steps on.

    Observations are [sign left, sign right, at the junction]; actions are forward, left, right. Turning into a wall
    and walking into one do nothing. +1 for the correct turn and -1 for the wrong one end the episode; after
    4 (length + 1) steps without a turn it is truncated. Random actions score 0: both turns are equally likely.
    """

    variables = ("side", "place", "time")
    action_names = ("forward", "left", "right")
    element_names = ("sign left", "sign right", "junction")
    side: NDArray[np.int64]
    place: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, length: int = 10) -> None:
        require_least(1, length=length)
        self.length = length
        super().__init__(num_envs, 3, 3)

    @staticmethod
    def scores(**_: Any) -> dict[str, float]:
        # Without memory, an agent may walk only if the sign says left, and always turn left; else it waits for 0.
        return {"oracle": 1.0, "memoryless": 0.5, "random": 0.0}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.side[rows] = draw(self, rows, 2)
        self.place[rows] = 0
        self.time[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        turned = (self.place == self.length) & (actions > 0)
        is_correct = actions - 1 == self.side
        reward = np.where(is_correct, 1.0, -1.0) * turned
        self.place[:] = np.minimum(self.place + (actions == 0), self.length)
        self.time += 1
        late = ~turned & (self.time == 4 * (self.length + 1))
        return reward, turned, late

    def observe(self) -> NDArray[np.float32]:
        at_start = self.place == 0
        sign_left = at_start & (self.side == 0)
        sign_right = at_start & (self.side == 1)
        at_junction = self.place == self.length
        return np.stack([sign_left, sign_right, at_junction], axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.where(self.place == self.length, 1 + self.side, 0)


def require_number(**numbers: float) -> None:
    """Raises a ValueError that names the first of some fields that is no finite number."""
    for name, value in numbers.items():
        if type(value) not in (int, float) or not np.isfinite(value):
            raise ValueError(f"{name}: expected a number, got {value!r}")


def require_not_negative(**numbers: float) -> None:
    """Raises a ValueError that names the first of some fields that is no finite number, or less than 0."""
    require_number(**numbers)
    for name, value in numbers.items():
        if value < 0:
            raise ValueError(f"{name}: expected 0 or more, got {value!r}")


def require_flag(**flags: bool) -> None:
    """Raises a ValueError that names the first of some fields that is neither True nor False."""
    for name, value in flags.items():
        if type(value) is not bool:
            raise ValueError(f"{name}: expected True or False, got {value!r}")


def require_least(least: int, **numbers: int) -> None:
    """Raises a ValueError that names the first of some fields that is no integer of at least this."""
    for name, value in numbers.items():
        if type(value) is not int or not least <= value <= 10**9:
            raise ValueError(f"{name}: expected an integer in {least}..10^9, got {value!r}")
