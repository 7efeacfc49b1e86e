"""Batched environments of other libraries, gymnasium's `VectorEnv`, in the forms that agents know.

What `envs.gym.adapt` does for single environments is done here for a whole batch: spaces are converted by the same
functions, and what the library returns is checked once. `atari.py` and `pool.py` derive from it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.actions import actions_as, named_actions
from envs.observations import shown_as
from envs.outputs import conformer
from envs.processes import cores, seeds_of_rows


class ForeignVectorEnv(VectorEnv):
    """A vector environment of another library that keeps the contract of this project's own.

    Rewards are float64, and 0 in the step that begins an episode. An episode that has terminated is not truncated as
    well. Returned arrays are never overwritten.

    Subclasses set `envs`, the library's, which resets on the next step, and define `begin` and `advance`.

    Args:
        num_envs: at least 1.
        observation_space, action_space: the library's, of one environment. Each row of its arrays is a value of these.
        metadata: entries of `metadata`, for instance action_repeat, the frames of a step.

    Raises:
        ValueError: for spaces that have no form that agents know.
        OutputError: from `reset` and `step`, for what the spaces do not allow.
    """

    envs: Any

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        **metadata: Any,
    ) -> None:
        self.num_envs = num_envs

        # Spaces, as agents know them.
        shown = shown_as(observation_space, num_envs)
        self.single_observation_space = shown.space
        self.observation_space = batch_space(shown.space, num_envs)
        self._show = shown.convert
        self.single_action_space, self._convert_actions = actions_as(action_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        given = {"episode_metrics": (), "action_repeat": 1, **metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.metadata = named_actions(given, self.single_action_space, action_space)
        if shown.names:
            self.metadata["observation_names"] = shown.names
        if shown.elements:
            self.metadata.setdefault("element_names", shown.elements)

        # Checks of what the library returns.
        observations = batch_space(observation_space, num_envs)
        self._conform_first = conformer(observations, "reset: observation")
        self._conform = conformer(observations, "step: observation")
        numbers = spaces.Box(-np.inf, np.inf, (num_envs,), np.float64)
        self._conform_rewards = conformer(numbers, "step: reward")
        flags = spaces.MultiBinary(num_envs)
        self._conform_terminated = conformer(flags, "step: terminated")
        self._conform_truncated = conformer(flags, "step: truncated")
        self._over = np.zeros(num_envs, bool)

    def begin(self, seeds: list[int | None]) -> Any:
        """Begins an episode everywhere, with a seed for each row or None; returns the library's observations."""
        raise NotImplementedError

    def advance(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """One step with the library's actions: its observations, rewards, terminated and truncated."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode everywhere. Row i has seed + i, or the ith seed of a sequence."""
        if options:
            raise ValueError(f"options: expected none, got {', '.join(options)}")
        observation = self.begin(seeds_of_rows(seed, self.num_envs))
        self._over = np.zeros(self.num_envs, bool)
        return self._shown(self._conform_first(observation)), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere."""
        observation, reward, terminated, truncated = self.advance(self._given(actions))
        is_terminated = self._conform_terminated(terminated).astype(bool)
        is_truncated = self._conform_truncated(truncated).astype(bool) & ~is_terminated
        # EnvPool's tasks of dm_control reward the first observation, too.
        rewards = np.where(self._over, 0.0, self._conform_rewards(reward))
        self._over = is_terminated | is_truncated
        return self._shown(self._conform(observation)), rewards, is_terminated, is_truncated, {}

    def _given(self, actions: NDArray[Any]) -> Any:
        """An agent's actions as the library takes them."""
        space = self.single_action_space
        # The libraries are compiled code, which does not check them.
        if isinstance(space, spaces.Discrete) and not ((actions >= 0) & (actions < space.n)).all():
            raise ValueError(f"actions: expected 0..{space.n - 1}, got {actions.min()}..{actions.max()}")
        if self._convert_actions is None:
            return actions
        return self._convert_actions(actions)

    def _shown(self, observation: Any) -> Any:
        """The library's observations as agents know them, in arrays that the library does not write into again."""
        if self._show is not None:
            observation = self._show(observation)
        return _copied(observation)

    def close_extras(self, **_: Any) -> None:
        """Closes the library's environments."""
        self.envs.close()


def require_environments(num_envs: int) -> None:
    """Raises a ValueError unless there is at least one environment."""
    if num_envs < 1:
        raise ValueError(f"num_envs: expected at least 1, got {num_envs}")


def threads(num_envs: int, actors: int) -> int:
    """How many threads step a batch: an actor's share of the cores, but not more than there are environments."""
    return max(1, min(num_envs, cores() // actors))


def _copied(observation: Any) -> Any:
    """Copies of the arrays of an observation, in C order."""
    if isinstance(observation, dict):
        return {name: _copied(part) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple([_copied(part) for part in observation])
    return observation.copy(order="C")


def require_fields(fields: dict[str, Any], allowed: dict[str, Any]) -> None:
    """Raises a ValueError for a field whose value is not allowed.

    Args:
        fields: by name.
        allowed: of each name the least and the greatest number, integers if these are, or bool.
    """
    for name, given in fields.items():
        limits = allowed[name]
        if limits is bool:
            if type(given) is not bool:
                raise ValueError(f"{name}: expected True or False, got {given!r}")
            continue
        least, most = limits
        kinds = (int,) if type(least) is int else (int, float)
        if type(given) not in kinds or not least <= given <= most:
            kind = "an integer" if type(least) is int else "a number"
            raise ValueError(f"{name}: expected {kind} from {least} to {most}, got {given!r}")
