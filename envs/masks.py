"""Masks: environments that say which of their actions are possible in the present state.

A mask has one number for each action of a Discrete space, 0 where the action is impossible. Of actions of several
choices, such as MultiDiscrete, it has one for each value of each choice, one choice after the other. It is
"action_mask" in a Dict of observations, as in PettingZoo and RLlib. Some environments, such as gymnasium's Taxi, return
it among their infos instead, or have a method `action_masks`, as for sb3-contrib's MaskablePPO: `with_mask` moves it
into the observations. There it travels with them to actors and learners, into replay, recordings and exported agents.
`agent.Agent` gives what is impossible a probability of 0.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.actions import ActionVector, ChoiceColumn, Convert, actions_as
from envs.outputs import conformer, line

logger = logging.getLogger(__name__)

Env = gymnasium.Env[Any, Any]
MASK = "action_mask"
"""The key of a mask, in observations and in infos."""
METHOD = "action_masks"
"""The method that returns a mask."""


def choice_sizes(actions: spaces.Space[Any]) -> list[int]:
    """How many values each choice of an action has, of a Discrete space from 0 or an `ActionVector`.

    Raises:
        ValueError: for actions with numbers, of which no mask is known.
    """
    if isinstance(actions, spaces.Discrete):
        return [int(actions.n)]
    assert isinstance(actions, ActionVector)
    sizes: list[int] = []
    for part in actions.parts:
        if not isinstance(part, ChoiceColumn):
            raise ValueError(f"expected actions that are choices, got {line(actions)}")
        sizes.append(part.size)
    return sizes


class MaskMoved(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations have the mask of its method `action_masks` or, if it has none, of its infos.

    Raises:
        ValueError: if its actions are not choices.
        OutputError: from `reset` and `step`, if there is no mask, or one of another form.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        shown, _ = actions_as(env.action_space)
        try:
            sizes = choice_sizes(shown)
        except ValueError as error:
            raise ValueError(f"{MASK}: {error}") from None
        masks = spaces.Dict({MASK: spaces.MultiBinary(sum(sizes))})
        self._ask = _method_of(env)
        self._conform_asked = conformer(masks[MASK], f"{METHOD}()")
        self._conform_first = conformer(masks, "reset: info")
        self._conform = conformer(masks, "step: info")
        own = env.observation_space
        self.has_parts = isinstance(own, spaces.Dict)
        parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {"observation": own}
        self.observation_space = spaces.Dict({**parts, **masks.spaces})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        observation, infos = self.env.reset(**options)
        return self._parts(observation) | self._mask(infos, self._conform_first), infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        observation, reward, terminated, truncated, infos = self.env.step(action)
        return self._parts(observation) | self._mask(infos, self._conform), reward, terminated, truncated, infos

    def _mask(self, infos: Any, conform: Convert) -> dict[str, Any]:
        if self._ask is None:
            found: dict[str, Any] = conform(infos)
            return found
        return {MASK: self._conform_asked(self._ask())}

    def _parts(self, observation: Any) -> dict[str, Any]:
        return dict(observation) if self.has_parts else {"observation": observation}


class PossibleActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with a mask, of which nothing impossible is asked.

    An agent's policy excludes what is impossible; uniformly random actions, as of `evaluate --policy random`, do not
    know of the mask. In place of an impossible value of a choice a possible one is drawn, so that they are uniform
    among the possible. Where the mask excludes all values of a choice, which may be at the end of an episode, it stays
    as it is.

    Args:
        env: its actions are those of a Discrete space from 0, or of an `ActionVector`.

    Raises a ValueError if the actions are not choices, or the mask has not a number for each of their values.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        try:
            self.sizes = choice_sizes(env.action_space)
        except ValueError as error:
            hint = f"give {MASK} another name if it is no mask of actions"
            raise ValueError(f"observation[{MASK!r}]: {error}; {hint}") from None
        mask = env.observation_space[MASK]  # type: ignore[index]
        is_flag = isinstance(mask, spaces.MultiBinary)
        is_number = isinstance(mask, spaces.Box) and bool((mask.low >= 0).all() and (mask.high <= 1).all())
        size = sum(self.sizes)
        if mask.shape != (size,) or not (is_flag or is_number):
            each = "action" if len(self.sizes) == 1 else "value of each choice"
            expected = f"MultiBinary({size}), or a Box of 0 to 1 of as many numbers: one for each {each}"
            raise ValueError(f"observation[{MASK!r}]: expected {expected}, got {line(mask)}")
        self._ends = np.cumsum(self.sizes)[:-1]  # of all choices but the last
        self._masks = self._split(np.ones(size, bool))
        self.generator = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        if seed is not None:
            # The environment's own generator has the same seed, but must not have the same numbers.
            self.generator = np.random.default_rng([seed, 1])
        observation, infos = self.env.reset(seed=seed, options=options)
        self._masks = self._split(_possible(observation))
        return observation, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        observation, *rest = self.env.step(self._possible_action(action))
        self._masks = self._split(_possible(observation))
        return observation, *rest

    def _possible_action(self, action: Any) -> Any:
        """The action, with a possible value in place of each impossible one."""
        if isinstance(self.env.action_space, spaces.Discrete):
            return self._possible_value(action, self._masks[0])
        values = [self._possible_value(value, mask) for value, mask in zip(action, self._masks, strict=True)]
        return np.array(values, np.float32)

    def _possible_value(self, value: Any, mask: NDArray[np.bool_]) -> Any:
        exists = 0 <= value < len(mask) and value == int(value)
        if not exists:
            return value  # it is refused where actions are converted
        if mask[int(value)] or not mask.any():
            return value
        return self.generator.choice(np.flatnonzero(mask))

    def _split(self, mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """A mask for each choice."""
        return np.split(mask, self._ends)


def _possible(observation: Any) -> NDArray[np.bool_]:
    """What is possible; an array of its own, because an environment may write into its mask."""
    return np.asarray(observation[MASK]) > 0.5


def has_mask(space: spaces.Space[Any]) -> bool:
    """Whether observations of a space have a mask."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces


def with_mask(env: Env, action_mask: bool = False) -> Env:
    """The environment with its mask among its observations, if that is asked for; see `MaskMoved`."""
    if type(action_mask) is not bool:
        raise ValueError(f"{MASK}: expected True or False, got {action_mask!r}")
    if not action_mask:
        if _method_of(env) is not None and not has_mask(env.observation_space):
            _say_how(type(env.unwrapped).__name__)
        return env
    if has_mask(env.observation_space):
        raise ValueError(f"{MASK}: expected observations without a mask, got {line(env.observation_space)}")
    return MaskMoved(env)


def _method_of(env: Env) -> Callable[[], Any] | None:
    """The method of an environment, or of a wrapper around it, that returns its mask; None if there is none."""
    found: Any = None
    if env.has_wrapper_attr(METHOD):
        found = env.get_wrapper_attr(METHOD)
    return found if callable(found) else None


@functools.cache
def _say_how(name: str) -> None:
    """Warns once in a process, however many environments there are."""
    how = f"the field {MASK}=True excludes the actions that it names"
    logger.warning("%s has a method %s: %s", name, METHOD, how)
