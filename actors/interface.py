"""What an agent must know of an environment, read from its spaces."""

import math
from typing import Any, NamedTuple

from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from agent.policies import ActionSpace, Choice, Numbers
from agent.trajectory import Observation
from envs.actions import ActionVector, ChoiceColumn

IMAGE = ("uint8", 3)
VECTOR = ("float32", 1)
WORDS = ("int64", 1)
"""The dtype and the number of axes of what an agent observes."""


class Interface(NamedTuple):
    """What an agent must know of an environment.

    observation_shape: of an image [height, width, channels] or of a vector [features]; a tuple of several, images
        first.
    actions: see `agent.policies`.
    action_repeat: frames of an agent's step.
    vocabulary: number of word ids of instructions; 0 if there are none.
    mask_at: where in the vector a mask of the actions begins, see `envs.masks`; None if there is none.
    """

    observation_shape: Any
    actions: ActionSpace
    action_repeat: int
    vocabulary: int = 0
    mask_at: int | None = None

    def __str__(self) -> str:
        seen = f"observations {describe_shape(self.observation_shape)}"
        if self.mask_at is not None:
            seen += f" with a mask of actions at {self.mask_at}"
        if self.vocabulary:
            seen += f", instructions of ids below {self.vocabulary}"
        return f"{seen}, {describe_actions(self.actions)} and {self.action_repeat} frames a step"


def read_interface(envs: VectorEnv) -> Interface:
    """The interface of a vector environment.

    Raises:
        ValueError: unless the environment resets on the next step, and its spaces are supported (see
            `observation_shape` and `action_space`).
    """
    mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode != AutoresetMode.NEXT_STEP:
        raise ValueError(f"autoreset_mode: expected {AutoresetMode.NEXT_STEP}, got {mode}")
    actions = action_space(envs)
    shape = observation_shape(envs)
    vocabulary = 0
    words = _instruction(envs.single_observation_space)
    if words is not None:
        vocabulary = int(words.high.max()) + 1
    action_repeat = int(envs.metadata.get("action_repeat", 1))
    return Interface(shape, actions, action_repeat, vocabulary, envs.metadata.get("action_mask_at"))


def action_space(envs: VectorEnv) -> ActionSpace:
    """The actions of a vector environment.

    Raises:
        ValueError: unless they are Discrete from 0 or an `ActionVector`, which `envs.gym.adapt` makes of other spaces.
    """
    space = envs.single_action_space
    if isinstance(space, ActionVector):
        parts: list[Choice | Numbers] = []
        for part in space.parts:
            if isinstance(part, ChoiceColumn):
                parts.append(Choice(part.size))
            else:
                # Both ends of a column are finite, or neither is.
                bounded = tuple(math.isfinite(low) for low in part.low)
                parts.append(Numbers(bounded))
        return tuple(parts)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise ValueError(f"action space: expected Discrete(n) from 0 or an ActionVector, got {space}")


def action_names(envs: VectorEnv) -> tuple[str, ...]:
    """A name for each action of a Discrete space, or for each column of an `ActionVector`.

    If the environment has none, or not as many, those are their numbers, and the names of the parts.
    """
    space = envs.single_action_space
    if isinstance(space, ActionVector):
        own_names = space.column_names
    else:
        assert isinstance(space, spaces.Discrete)
        own_names = tuple(str(action) for action in range(space.n))
    names = tuple(envs.metadata.get("action_names", ()))
    return names if len(names) == len(own_names) else own_names


def observation_shape(envs: VectorEnv) -> Any:
    """The shape of what an agent sees, see `Interface`.

    Raises:
        ValueError: unless observations are Boxes of uint8 [height, width, channels] or float32 [features], a Tuple of
            such, or a Dict of one of these as "image" and of an "instruction", int64 [words].
    """
    space = envs.single_observation_space
    words = _instruction(space)
    sensed: Any = space
    if words is not None:
        sensed = space["image"]  # type: ignore[index]
    parts = [sensed]
    if isinstance(sensed, spaces.Tuple):
        parts = list(sensed.spaces)

    parts_fit = len(parts) > 0 and all(_kind(part) in (IMAGE, VECTOR) for part in parts)
    words_fit = words is None or _kind(words) == WORDS
    if not (parts_fit and words_fit):
        seen = "a Box of uint8 [height, width, channels] or float32 [features], or a Tuple of such"
        read = "a Dict of one of these as image and of an int64 [words] as instruction"
        raise ValueError(f"observation space: expected {seen}, or {read}, got {space}")
    if isinstance(sensed, spaces.Tuple):
        return tuple(part.shape for part in parts)
    return sensed.shape


def describe_shape(shape: Any) -> str:
    """The shape of an observation in words."""
    parts = [list(part) for part in shape if isinstance(part, tuple)]
    if parts:
        return " and ".join(map(str, parts))
    return str(list(shape))


def describe_actions(actions: ActionSpace) -> str:
    """An action space in words."""
    if isinstance(actions, int):
        return f"{actions} actions"
    sizes = [str(part.size) for part in actions if isinstance(part, Choice)]
    numbers = sum(len(part.bounded) for part in actions if isinstance(part, Numbers))
    said = []
    if sizes:
        said.append(f"choices of {', '.join(sizes)}")
    if numbers:
        said.append(f"{numbers} numbers")
    return f"actions of {' and '.join(said)}"


def _instruction(space: spaces.Space[Any]) -> Any:
    """The space of the instructions in an observation; None if it has none."""
    if isinstance(space, spaces.Dict) and space.spaces.keys() == set(Observation._fields):
        return space["instruction"]
    return None


def _kind(space: spaces.Space[Any]) -> tuple[str, int]:
    """The dtype and the number of axes of a space."""
    return str(space.dtype), len(space.shape or ())
