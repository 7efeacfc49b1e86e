"""Diagnostic tasks: what a memory must do, in a few numpy lines each, with scores that are known exactly.

`Recall` and `TMaze` ask for one thing that was seen some steps ago. `Counting` asks for nothing: its observations say
whose they are, which is what tests of actors need. All observe small vectors and step a whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.rooms.level import draw

Step = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


class DiagnosticEnv(VectorEnv):
    """N environments of a task: random streams by row, episodes that reset on the next step, and exact states.

    A task names its variables, arrays [N] int64 that are -1 before a stream's first episode, and defines `begin`,
    `advance`, `observe` and `oracle_actions`. What a row does depends on its own seed and actions only.

    Args:
        num_envs: N.
        observation_space: of one environment: a vector, float32.
        num_actions: actions are 0..num_actions - 1.
        metrics: counters that the infos carry, [N]; variables of the task.
    """

    variables: ClassVar[tuple[str, ...]]

    def __init__(
        self, num_envs: int, observation_space: spaces.Box, num_actions: int, metrics: tuple[str, ...] = ()
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "episode_metrics": metrics, "action_repeat": 1}
        self.single_observation_space = observation_space
        self.single_action_space = spaces.Discrete(num_actions)
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rng = np.zeros(num_envs, np.uint64)
        self.over = np.zeros(num_envs, bool)
        for name in self.variables:
            setattr(self, name, np.full(num_envs, -1))
        self._reset_once = False

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """Begin an episode in `rows` [N]: give every variable that an episode changes its first value."""
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64]) -> Step:
        """One step of every row: rewards, terminated, truncated, [N] each. What it does to rows over is forgotten."""
        raise NotImplementedError

    def observe(self) -> NDArray[np.float32]:
        """What is seen now, [N, D], in a fresh array."""
        raise NotImplementedError

    def oracle_actions(self) -> NDArray[np.int64]:
        """The best actions [N], from the state."""
        raise NotImplementedError

    def draw(self, rows: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
        """A number uniform in 0..n-1 for each of `rows`, from the row's own stream."""
        return draw(self, rows, n)  # one environment's number in the level; numpy takes a mask for an index as well

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode everywhere. Row i has the stream of seed + i, or of its own seed of a list; None goes on."""
        if options:
            raise ValueError(f"options: expected none, got {options}")
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = [None if s is None else int(s) for s in seed]
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        for i, entropy in enumerate(seeds):
            if entropy is not None or not self._reset_once:
                self.rng[i] = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        self._reset_once = True
        for name in self.variables:
            getattr(self, name)[:] = -1
        self.over[:] = False
        self.begin(np.ones(self.num_envs, bool))
        return self.observe(), self._infos()

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere. Raises ValueError for actions of a wrong number, type or value."""
        if not self._reset_once:
            raise RuntimeError("step() before reset()")
        actions, most = np.asarray(actions), int(self.single_action_space.n) - 1  # type: ignore[attr-defined]
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions: expected integers [{self.num_envs}], got {actions.dtype} {list(actions.shape)}")
        if actions.min() < 0 or actions.max() > most:
            raise ValueError(f"actions: expected 0..{most}, got {actions.min()}..{actions.max()}")
        fresh = self.over
        reward, terminated, truncated = self.advance(actions.astype(np.int64))
        self.begin(fresh)
        reward, terminated, truncated = np.where(fresh, 0.0, reward), terminated & ~fresh, truncated & ~fresh
        self.over = terminated | truncated
        return self.observe(), reward, terminated, truncated, self._infos()

    def _infos(self) -> dict[str, Any]:
        metrics = self.metadata["episode_metrics"]
        everywhere = {f"_{name}": np.ones(self.num_envs, bool) for name in metrics}
        return {name: getattr(self, name).copy() for name in metrics} | everywhere

    def get_state(self) -> dict[str, NDArray]:
        """Everything that decides what happens next, as a dict of arrays [N]; `set_state` takes it back exactly."""
        return {name: getattr(self, name).copy() for name in ("rng", "over", *self.variables)}

    def set_state(self, state: dict[str, NDArray]) -> NDArray[np.float32]:
        """Go on from a state of `get_state`; returns the observation of that moment."""
        names = ("rng", "over", *self.variables)
        if set(state) != set(names):
            raise ValueError(f"state: expected the fields {names}, got {tuple(state)}")
        for name in names:
            given, own = np.asarray(state[name]), getattr(self, name)
            if given.shape != own.shape or given.dtype != own.dtype:
                raise ValueError(f"state[{name!r}]: expected {own.dtype} {own.shape}, got {given.dtype} {given.shape}")
            setattr(self, name, given.copy())
        self._reset_once = True
        return self.observe()


class Recall(DiagnosticEnv):
    """Delayed recall: one of K symbols is shown, `delay` steps later it is asked for. +1 for it, and the episode ends.

    Observations are [symbol, one-hot K; whether it is asked for now]; actions name a symbol and count only then.

    Args:
        num_envs: N.
        delay: steps from the symbol to the question.
        symbols: K.
    """

    variables = ("symbol", "time")
    symbol: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, delay: int = 20, symbols: int = 4) -> None:
        _at_least(1, delay=delay)
        _at_least(2, symbols=symbols)
        self.delay, self.symbols = delay, symbols
        super().__init__(num_envs, spaces.Box(0, 1, (symbols + 1,), np.float32), symbols)
        self.scores = {"oracle": 1.0, "random": 1 / symbols}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.symbol[rows] = self.draw(rows, self.symbols)
        self.time[rows] = 0

    def advance(self, actions: NDArray[np.int64]) -> Step:
        asked = self.time == self.delay
        self.time += 1
        return (asked & (actions == self.symbol)).astype(float), asked, np.zeros_like(asked)

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
    and walking into one do nothing. +1 for the right turn and -1 for the wrong one end the episode; after
    4 (length + 1) steps without any it is truncated. Random actions score 0, since both turns are equally likely.

    Args:
        num_envs: N.
        length: steps from the sign to the junction.
    """

    variables = ("side", "place", "time")
    side: NDArray[np.int64]
    place: NDArray[np.int64]
    time: NDArray[np.int64]

    def __init__(self, num_envs: int, length: int = 10) -> None:
        _at_least(1, length=length)
        self.length = length
        super().__init__(num_envs, spaces.Box(0, 1, (3,), np.float32), 3)
        self.scores = {"oracle": 1.0, "random": 0.0}

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.side[rows] = self.draw(rows, 2)
        self.place[rows] = self.time[rows] = 0

    def advance(self, actions: NDArray[np.int64]) -> Step:
        turned = (self.place == self.length) & (actions > 0)
        reward = np.where(actions - 1 == self.side, 1.0, -1.0) * turned
        self.place = np.minimum(self.place + (actions == 0), self.length)
        self.time += 1
        return reward, turned, ~turned & (self.time == 4 * (self.length + 1))

    def observe(self) -> NDArray[np.float32]:
        start = self.place == 0
        seen = (start & (self.side == 0), start & (self.side == 1), self.place == self.length)
        return np.stack(seen, axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.where(self.place == self.length, 1 + self.side, 0)


class Counting(DiagnosticEnv):
    """Counts the steps of each episode, whatever is done: whoever confuses rows, episodes or steps can be told so.

    Observations are [number of the row, drawn with its stream; episode; step]; the reward is the step. Episodes of a
    row take 5 to 11 steps by its number; even ones terminate, odd ones are truncated. The metric `evens` is half the
    steps, rounded down. There is nothing to decide, hence no score to compare with.
    """

    variables = ("number", "episode", "count", "evens")
    number: NDArray[np.int64]
    episode: NDArray[np.int64]
    count: NDArray[np.int64]
    evens: NDArray[np.int64]
    scores: ClassVar[dict[str, float]] = {}

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, spaces.Box(0, 2**24, (3,), np.float32), 2, metrics=("evens",))

    def begin(self, rows: NDArray[np.bool_]) -> None:
        first = rows & (self.episode < 0)
        self.number[first] = self.draw(first, 2**24)  # float32 holds whole numbers up to 2**24
        self.episode[rows] += 1
        self.count[rows] = self.evens[rows] = 0

    def advance(self, actions: NDArray[np.int64]) -> Step:
        self.count += 1
        self.evens = self.count // 2
        over, odd = self.count == 5 + self.number % 7, self.episode % 2 == 1
        return self.count.astype(float), over & ~odd, over & odd

    def observe(self) -> NDArray[np.float32]:
        return np.stack([self.number, self.episode, self.count], axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.zeros(self.num_envs, np.int64)


def _at_least(least: int, **numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}")
        if value > 10**9:
            raise ValueError(f"{name}: expected at most 10^9, got {value}")


#: Name, as in "diagnostic:recall,delay=20" -> task.
TASKS: dict[str, type[Any]] = {"recall": Recall, "tmaze": TMaze, "counting": Counting}
