"""Environments with masks of actions, for tests. They raise an error for an impossible action."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS = 5


class Masked(gymnasium.Env[Any, Any]):
    """Has episodes of eight steps."""

    observation_space: spaces.Dict
    length = 8

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """See gymnasium."""
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draws what is right and what is possible; an observation and infos."""
        raise NotImplementedError


class Doors(Masked):
    """Two of five doors are open, and one of these two is right: the one that was right before is shut.

    The mask is among the observations, before and behind other numbers; or, with `in_infos`, among the infos. With
    `is_forced` only the right door is open.
    """

    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, in_infos: bool = False, is_forced: bool = False) -> None:
        self.in_infos = in_infos
        self.is_forced = is_forced
        parts: dict[str, spaces.Space[Any]] = {"above": spaces.Discrete(3), "right": spaces.Discrete(ACTIONS)}
        if not in_infos:
            parts["action_mask"] = spaces.MultiBinary(ACTIONS)
        parts["zero"] = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(parts)

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        if not self.mask[action]:
            raise ValueError(f"door {action} is shut")
        reward = float(action == self.right)
        self.steps += 1
        observation, infos = self._observe()
        return observation, reward, self.steps == self.length, False, infos

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.right, other = self.np_random.choice(ACTIONS, 2, replace=False).tolist()
        self.mask = np.zeros(ACTIONS, np.int8)
        if self.steps < self.length:  # at its end nothing is possible
            self.mask[self.right] = 1
            self.mask[other] = not self.is_forced
        parts = {"above": 1, "right": self.right, "action_mask": self.mask, "zero": np.zeros(2, np.float32)}
        observation = {name: parts[name] for name in self.observation_space}
        return observation, {"action_mask": self.mask} if self.in_infos else {}


class Dials(Masked):
    """Each dial has one right value and, but for the second one, one more that is possible.

    The values of the last dial begin with 5. With `in_infos` the mask is among the infos.
    """

    sizes = (3, 2, 4)
    first = 5
    action_space = spaces.Tuple((spaces.MultiDiscrete(sizes[:2]), spaces.Discrete(sizes[2], start=first)))

    def __init__(self, in_infos: bool = False) -> None:
        self.in_infos = in_infos
        parts: dict[str, spaces.Space[Any]] = {"right": spaces.MultiDiscrete(self.sizes)}
        if not in_infos:
            parts["action_mask"] = spaces.MultiBinary(sum(self.sizes))
        self.observation_space = spaces.Dict(parts)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        dials, last = action
        values = [*dials.tolist(), int(last) - self.first]
        for value, mask in zip(values, self.masks, strict=True):
            if not mask[value]:
                raise ValueError(f"{values} of {self.masks}")
        reward = float(np.mean(np.array(values) == self.right))
        self.steps += 1
        observation, infos = self._observe()
        return observation, reward, self.steps == self.length, False, infos

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.right = []
        self.masks = []
        for size in self.sizes:
            right, other = self.np_random.choice(size, 2, replace=False).tolist()
            mask = np.zeros(size, np.int8)
            mask[right] = 1
            mask[other] = size > 2
            self.right.append(right)
            self.masks.append(mask)
        joined = np.concatenate(self.masks)
        observation = {"right": np.array(self.right)}
        if self.in_infos:
            return observation, {"action_mask": joined}
        return {**observation, "action_mask": joined}, {}


class Plain(gymnasium.Env[Any, Any]):
    """Observes one number; its infos are what it was made with."""

    metadata: ClassVar[dict[str, Any]] = {}
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, infos: Any = None) -> None:
        self.infos = infos

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        super().reset(seed=seed)
        return np.zeros(1, np.float32), self.infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        return np.zeros(1, np.float32), 0.0, False, False, self.infos


gymnasium.register("masked/Doors-v0", Doors)
