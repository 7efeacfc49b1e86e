"""The base of environments that step a whole batch with array code: seeds, autoreset, checks and exact states.

The rooms level (numba) and the diagnostic tasks (numpy) derive from it. `processes.py` batches copies of single
environments instead.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numba.extending import register_jitable
from numpy.typing import NDArray

Step = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]
"""Rewards, terminated and truncated, [N] each."""


class BatchedEnv(VectorEnv):
    """N environments stepped together. A row depends on its own seed and actions only.

    The step after the end of a row's episode ignores the row's action, has reward 0 and returns the first observation
    of the next episode (gymnasium's NEXT_STEP). Subclasses define `begin`, `advance`, `observe` and `oracle_actions`.

    Args:
        observation_space: of one environment.
        arrays: all that decides what happens next, [N, ...] by name; changed in place. "rng" uint64 is the counter of
            each row's random stream (see `draw`).
        over: the one of them [N] bool that is true between the end of an episode and the next step.
        counters: those of them that the infos carry.
        metadata: further entries of `metadata`.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space[Any],
        num_actions: int,
        *,
        arrays: dict[str, NDArray],
        over: NDArray[np.bool_],
        counters: dict[str, NDArray] | None = None,
        **metadata: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.arrays = arrays
        self.over = over
        self.counters = counters or {}
        self.metadata = {
            "action_repeat": 1,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "episode_metrics": tuple(self.counters),
            **metadata,
        }

        self.single_observation_space = observation_space
        self.single_action_space = spaces.Discrete(num_actions)
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reset_once = False

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """Begins an episode in `rows` [N] and leaves the others as they are."""
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64], begin: NDArray[np.bool_]) -> Step:
        """Begins an episode in the rows `begin` [N], with reward 0, and takes `actions` [N] in the others."""
        raise NotImplementedError

    def observe(self) -> Any:
        """The present observations, [N, ...], in a new array or, of several parts, in a tuple of new arrays."""
        raise NotImplementedError

    def oracle_actions(self) -> NDArray[np.int64]:
        """The best actions [N], chosen with knowledge of the state."""
        raise NotImplementedError

    def entropy(self, seed: int, row: int) -> int | tuple[int, ...]:
        """The seed of a row's random stream where one seed is given for all rows."""
        return seed + row

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every row.

        One seed gives every row a stream of its own (see `entropy`); a sequence has a seed for each row. Without a seed
        the streams continue; the first are random.
        """
        if options:
            raise ValueError(f"options: expected none, got {', '.join(options)}")
        seeds: list[Any]
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [self.entropy(int(seed), row) for row in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        for row, entropy in enumerate(seeds):
            if entropy is not None or not self._reset_once:
                self.arrays["rng"][row] = stream(entropy)

        self._reset_once = True
        self.over[:] = False
        self.begin(np.ones(self.num_envs, bool))
        return self.observe(), self._infos()

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every row."""
        if not self._reset_once:
            raise RuntimeError("step() before reset()")
        most = int(self.single_action_space.n) - 1  # type: ignore[attr-defined]
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions: expected integers [{self.num_envs}], got {actions.dtype} {list(actions.shape)}")
        if actions.min() < 0 or actions.max() > most:
            raise ValueError(f"actions: expected 0..{most}, got {actions.min()}..{actions.max()}")

        begin = self.over.copy()
        reward, terminated, truncated = self.advance(actions.astype(np.int64), begin)
        np.logical_or(terminated, truncated, out=self.over)
        return self.observe(), reward, terminated, truncated, self._infos()

    def end_episodes(self, rows: NDArray[np.bool_]) -> None:
        """Ends the episodes of `rows` [N] as a time limit would: the next step begins new ones."""
        self.over |= rows

    def _infos(self) -> dict[str, Any]:
        infos = {}
        for name, counter in self.counters.items():
            infos[name] = counter.copy()
            infos["_" + name] = np.ones(self.num_envs, bool)  # gymnasium's mask of the rows that have the entry
        return infos

    def get_state(self) -> dict[str, NDArray]:
        """All that decides what happens next, as arrays by name, for `set_state`."""
        return {name: array.copy() for name, array in self.arrays.items()}

    def set_state(self, state: dict[str, NDArray]) -> Any:
        """Continues from a state of `get_state` and returns its observations [N, ...]."""
        for name in sorted(self.arrays.keys() | state.keys()):
            expected = form_of(self.arrays.get(name))
            given = form_of(state.get(name))
            if given != expected:
                raise ValueError(f"state[{name!r}]: expected {expected}, got {given}")
        for name, own in self.arrays.items():
            own[:] = state[name]
        self._reset_once = True
        self.begin(np.zeros(self.num_envs, bool))  # begins no episode, but draws the views where there are any
        return self.observe()


def form_of(array: Any) -> str:
    """The dtype and shape of an array or a tensor, for errors; None is "nothing"."""
    if array is None:
        return "nothing"
    return f"{array.dtype} {list(array.shape)}"


def stream(entropy: int | tuple[int, ...] | None) -> np.uint64:
    """The first counter of the random stream with this seed."""
    return np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_27 = np.uint64(27)
_30 = np.uint64(30)
_31 = np.uint64(31)
_32 = np.uint64(32)


@register_jitable
def mixed(z: Any) -> Any:
    """Random bits from a counter that grows by GOLDEN (splitmix64; Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@register_jitable
def draw(state: Any, rows: Any, n: Any) -> Any:
    """A number uniform in 0..n-1 from the random stream of a row. Without numba: one for each row of a mask, and n may
    differ from row to row.
    """
    state.rng[rows] += GOLDEN
    return np.int64(((mixed(state.rng[rows]) >> _32) * np.uint64(n)) >> _32)
