"""Masks: environments that say which of their actions are possible in the present state.

A mask has one number for each action of a Discrete space, 0 where the action is impossible. It is "action_mask" in a
Dict of observations, as in PettingZoo and RLlib. Some environments, such as gymnasium's Taxi, return it among their
infos instead: `with_mask_of_infos` moves it into the observations. There it travels with them to actors and learners,
into replay, recordings and exported agents, and `agent.Agent` gives impossible actions a probability of 0.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.outputs import conformer, line

Env = gymnasium.Env[Any, Any]
MASK = "action_mask"
"""The key of a mask, in observations and in infos."""


class MaskOfInfos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations have the mask of its infos.

    Raises:
        ValueError: if its actions are not those of a Discrete space.
        OutputError: from `reset` and `step`, if the infos have no mask, or one of another form.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(f"{MASK}: expected an environment with Discrete actions, got {line(env.action_space)}")
        masks = spaces.Dict({MASK: spaces.MultiBinary(int(env.action_space.n))})
        self._conform_first = conformer(masks, "reset: info")
        self._conform = conformer(masks, "step: info")
        own = env.observation_space
        self.has_parts = isinstance(own, spaces.Dict)
        parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {"observation": own}
        self.observation_space = spaces.Dict({**parts, **masks.spaces})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        observation, infos = self.env.reset(**options)
        return self._parts(observation) | self._conform_first(infos), infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        observation, reward, terminated, truncated, infos = self.env.step(action)
        return self._parts(observation) | self._conform(infos), reward, terminated, truncated, infos

    def _parts(self, observation: Any) -> dict[str, Any]:
        return dict(observation) if self.has_parts else {"observation": observation}


class PossibleActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with a mask, of which no impossible action is asked.

    An agent's policy excludes these actions; uniformly random ones, as of `evaluate --policy random`, do not know of
    the mask. In place of one that is impossible a possible one is drawn, so that they are uniform among the possible.
    Where the mask excludes all actions, which may be at the end of an episode, they stay as they are.

    Raises a ValueError if the actions are not those of a Discrete space, or the mask has not a number for each.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        actions = env.action_space
        if not isinstance(actions, spaces.Discrete):
            hint = f"give {MASK} another name if it is no mask of actions"
            raise ValueError(f"observation[{MASK!r}]: expected Discrete actions, got {line(actions)}; {hint}")
        mask = env.observation_space[MASK]  # type: ignore[index]
        is_flag = isinstance(mask, spaces.MultiBinary)
        is_number = isinstance(mask, spaces.Box) and bool((mask.low >= 0).all() and (mask.high <= 1).all())
        if mask.shape != (actions.n,) or not (is_flag or is_number):
            expected = f"MultiBinary({actions.n}), or a Box of 0 to 1 of as many numbers: one for each action"
            raise ValueError(f"observation[{MASK!r}]: expected {expected}, got {line(mask)}")
        self.mask: NDArray[Any] = np.ones(int(actions.n), bool)
        self.generator = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        if seed is not None:
            # The environment's own generator has the same seed, but must not have the same numbers.
            self.generator = np.random.default_rng([seed, 1])
        observation, infos = self.env.reset(seed=seed, options=options)
        self.mask = _possible(observation)
        return observation, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        if not self.mask[action] and self.mask.any():
            action = self.generator.choice(np.flatnonzero(self.mask))
        observation, *rest = self.env.step(action)
        self.mask = _possible(observation)
        return observation, *rest


def _possible(observation: Any) -> NDArray[np.bool_]:
    """Which actions are possible; an array of its own, because an environment may write into its mask."""
    return np.asarray(observation[MASK]) > 0.5


def has_mask(space: spaces.Space[Any]) -> bool:
    """Whether observations of a space have a mask."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces


def with_mask_of_infos(env: Env, action_mask: bool = False) -> Env:
    """The environment with the mask of its infos among its observations, if that is asked for."""
    if type(action_mask) is not bool:
        raise ValueError(f"{MASK}: expected True or False, got {action_mask!r}")
    if not action_mask:
        return env
    if has_mask(env.observation_space):
        raise ValueError(f"{MASK}: expected observations without a mask, got {line(env.observation_space)}")
    return MaskOfInfos(env)
