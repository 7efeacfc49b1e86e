"""Tasks from the literature in which what was seen once has to be kept: vectorized in numpy, with exact scores.

Each names its paper. Where a paper leaves a rule open, the class says which way was taken.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.batched import Step, draw
from envs.diagnostic import DiagnosticEnv, require_least, require_not_negative


class PassiveTMaze(DiagnosticEnv):
    """The passive T-maze of Ni et al. 2023 (arXiv:2307.03864, section 5.1): a sign is shown in the first step only.

    An episode has length + 1 steps. Actions are right, up, left, down. In the corridor of `length` steps only right and
    left move the player. A player that is behind the fastest way after any step but the last gets -1 / length. In the
    last step the player should turn to the side of the sign: +1 there. Turning earlier has no reward, so that exploring
    is easy and only the sign has to be kept.

    Observations are [sign up, sign down, at the start, at the junction].
    """

    variables = ("side", "place", "height", "time")
    action_names = ("right", "up", "left", "down")
    element_names = ("sign up", "sign down", "start", "junction")
    side: NDArray[np.int64]
    place: NDArray[np.int64]
    height: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, length: int = 10) -> None:
        require_least(1, length=length)
        self.length = length
        super().__init__(num_envs, 4, 4)

    @staticmethod
    def scores(length: int = 10, **_: Any) -> dict[str, float]:
        # A random player is not behind only as long as all its actions went right: after t steps with a probability of
        # 1/4^t, of which the sum is geometric.
        in_time = (1.0 - 0.25**length) / 3.0
        behind = 1.0 - in_time / length
        return {"oracle": 1.0, "memoryless": 0.5, "random": 0.25 ** (length + 1) - behind}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.side[rows] = draw(self, rows, 2)
        self.place[rows] = 0
        self.height[rows] = 0
        self.time[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        self.time += 1
        along = (actions == 0).astype(int) - (actions == 2)
        upward = (actions == 1).astype(int) - (actions == 3)

        # Both moves start from where the player is now: from an arm of the junction only the way back moves.
        in_corridor = self.height == 0
        at_junction = self.place == self.length
        moved_along = np.clip(self.place + along, 0, self.length)
        moved_upward = np.clip(self.height + upward, -1, 1)
        self.place[:] = np.where(in_corridor, moved_along, self.place)
        self.height[:] = np.where(at_junction, moved_upward, 0)

        over = self.time == self.length + 1
        height_of_sign = 1 - 2 * self.side  # 1 is up, -1 down
        is_correct = self.height == height_of_sign
        behind = self.place < self.time
        reward = np.where(over, is_correct, -(behind / self.length))
        return reward, over, np.zeros_like(over)

    def observe(self) -> NDArray[np.float32]:
        is_first = self.time == 0
        sign_up = is_first & (self.side == 0)
        sign_down = is_first & (self.side == 1)
        at_start = self.place == 0
        at_junction = (self.place == self.length) & (self.height == 0)
        return np.stack([sign_up, sign_down, at_start, at_junction], axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.where(self.place == self.length, 1 + 2 * self.side, 0)


class RepeatPrevious(DiagnosticEnv):
    """POPGym's RepeatPrevious (Morad et al. 2023, arXiv:2303.01859) with any delay: name the symbol of `delay` steps
    ago.

    Every step shows one of K `symbols`. An episode has `steps` steps. Of those that ask for something that was shown,
    each is worth 1 / their number, negative if the answer is wrong. Observations are one-hot. POPGym's levels have 4
    symbols, 51, 103 and 155 steps and a k of 4, 32 and 64, which counts the present card: delays of 3, 31 and 63. It
    deals its cards from decks; here symbols are drawn with replacement.
    """

    variables = ("time",)
    time: NDArray[np.int64]
    shown: NDArray[np.int64]
    """[N, delay + 1] the latest symbols, that of step t at t modulo delay + 1."""

    def __init__(self, num_envs: int, delay: int = 4, symbols: int = 4, steps: int = 51) -> None:
        require_least(1, delay=delay)
        require_least(2, symbols=symbols)
        require_least(delay + 1, steps=steps)
        self.delay = delay
        self.symbols = symbols
        self.steps = steps
        self.shapes = {"shown": (delay + 1,)}
        super().__init__(num_envs, symbols, symbols)

    @staticmethod
    def scores(symbols: int = 4, **_: Any) -> dict[str, float]:
        return {"oracle": 1.0, "memoryless": 2.0 / symbols - 1.0, "random": 2.0 / symbols - 1.0}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.time[rows] = 0
        self.shown[rows, 0] = draw(self, rows, self.symbols)

    def _asked(self) -> NDArray[np.int64]:
        """The symbol of `delay` steps ago, which the next step will overwrite; where there was none, an old one."""
        return self.shown[np.arange(self.num_envs), (self.time + 1) % (self.delay + 1)]

    def act(self, actions: NDArray[np.int64]) -> Step:
        worth = (self.time >= self.delay) / (self.steps - self.delay)
        reward = np.where(actions == self._asked(), worth, -worth)
        self.time += 1
        over = self.time == self.steps
        rows = np.arange(self.num_envs)
        every = np.ones(self.num_envs, bool)
        self.shown[rows, self._present()] = draw(self, every, self.symbols)
        return reward, over, np.zeros_like(over)

    def _present(self) -> NDArray[np.int64]:
        """Where `shown` has the symbol of the present step."""
        return self.time % (self.delay + 1)

    def observe(self) -> NDArray[np.float32]:
        present = self.shown[np.arange(self.num_envs), self._present()]
        return np.eye(self.symbols, dtype=np.float32)[present]

    def oracle_actions(self) -> NDArray[np.int64]:
        return self._asked()


class VisualMatch(DiagnosticEnv):
    """Passive Visual Match (Hung et al. 2019, arXiv:1810.06721) in symbols: keep a symbol while there is other work.

    The first step shows one of K `symbols`. Then `delay` steps have an apple to the left or to the right, worth `apple`
    to who goes there (actions 0 and 1). In the last step an action names the symbol, worth 1. The original is played in
    pictures and its apples are worth 1 and the symbol 10; here the symbol has the larger share unless `apple` says
    otherwise. Observations are [symbol, one-hot K; apple left; apple right; asked].
    """

    variables = ("symbol", "apple_side", "time")
    symbol: NDArray[np.int64]
    apple_side: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, delay: int = 20, symbols: int = 3, apple: float = 0.0) -> None:
        require_least(1, delay=delay)
        require_least(2, symbols=symbols)
        require_not_negative(apple=apple)
        self.delay = delay
        self.symbols = symbols
        self.apple = float(apple)
        super().__init__(num_envs, symbols + 3, symbols)

    @staticmethod
    def scores(delay: int = 20, symbols: int = 3, apple: float = 0.0, **_: Any) -> dict[str, float]:
        work = delay * apple
        return {"oracle": 1.0 + work, "memoryless": 1.0 / symbols + work, "random": (1.0 + work) / symbols}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.symbol[rows] = draw(self, rows, self.symbols)
        self.time[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        working = (self.time > 0) & (self.time <= self.delay)
        asked = self.time == self.delay + 1
        reward = np.where(working & (actions == self.apple_side), self.apple, 0.0)
        reward = np.where(asked & (actions == self.symbol), 1.0, reward)
        self.time += 1
        self.apple_side[:] = draw(self, np.ones(self.num_envs, bool), 2)
        return reward, asked, np.zeros_like(asked)

    def observe(self) -> NDArray[np.float32]:
        seen = np.zeros((self.num_envs, self.symbols + 3), np.float32)
        rows = np.arange(self.num_envs)
        working = (self.time > 0) & (self.time <= self.delay)
        seen[rows, self.symbol] = self.time == 0
        seen[rows, self.symbols + self.apple_side] = working
        seen[:, -1] = self.time == self.delay + 1
        return seen

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.where(self.time == self.delay + 1, self.symbol, self.apple_side)


class KeyToDoor(DiagnosticEnv):
    """Key-to-Door (Hung et al. 2019, arXiv:1810.06721) in symbols: an early choice pays at the end of the episode.

    In the first step the key lies to the left or to the right (actions 0 and 1) and is worth nothing by itself. Then
    `delay` steps have apples as in `VisualMatch`. In the last step the door opens for who has the key, with any action:
    +1. Nothing shows whether the player has it, so that this asks for credit over the whole episode, and values need
    memory. Observations are [left, right, of key or apple; key; apple; door].
    """

    variables = ("place", "key", "time")
    action_names = ("left", "right")
    element_names = ("left", "right", "key", "apple", "door")
    place: NDArray[np.int64]
    key: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, delay: int = 20, apple: float = 0.0) -> None:
        require_least(1, delay=delay)
        require_not_negative(apple=apple)
        self.delay = delay
        self.apple = float(apple)
        super().__init__(num_envs, 5, 2)

    @staticmethod
    def scores(delay: int = 20, apple: float = 0.0, **_: Any) -> dict[str, float]:
        work = delay * apple
        return {"oracle": 1.0 + work, "memoryless": 1.0 + work, "random": 0.5 * (1.0 + work)}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.place[rows] = draw(self, rows, 2)
        self.key[rows] = 0
        self.time[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        there = actions == self.place
        self.key[:] = np.where(self.time == 0, there, self.key)
        at_door = self.time == self.delay + 1
        working = (self.time > 0) & ~at_door
        reward = np.where(at_door, self.key, self.apple * (working & there))
        self.time += 1
        self.place[:] = draw(self, np.ones(self.num_envs, bool), 2)
        return reward, at_door, np.zeros_like(at_door)

    def observe(self) -> NDArray[np.float32]:
        at_door = self.time == self.delay + 1
        left = ~at_door & (self.place == 0)
        right = ~at_door & (self.place == 1)
        key = self.time == 0
        apple = ~key & ~at_door
        return np.stack([left, right, key, apple, at_door], axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return self.place.copy()
