"""One environment of `envs.make_vector` at a time, for libraries that batch and reset environments themselves."""

from itertools import groupby
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs import ActionVector, ChoiceColumn, make_vector


class Single(gymnasium.Env):
    """A spec such as "diagnostic:recall,delay=10" as a `gymnasium.Env`.

    Actions are of the spaces that libraries know, see `spaces_of`. If there are several, as where some parts of an
    action are choices and others numbers, they are a Dict: "0", "1" and so on.
    """

    def __init__(self, spec: str) -> None:
        self.envs = make_vector(spec, 1)
        self.observation_space = self.envs.single_observation_space
        if self.observation_space.shape is None:
            raise ValueError(f"{spec}: expected observations that are one image or one vector, got several parts")
        self.action_space = self.envs.single_action_space
        if isinstance(self.action_space, ActionVector):
            several = spaces_of(self.action_space)
            named = {str(index): space for index, space in enumerate(several)}
            self.action_space = several[0] if len(several) == 1 else spaces.Dict(named)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The first observation of an episode."""
        return self.envs.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Observation, reward, terminated, truncated and no infos."""
        if isinstance(self.action_space, spaces.Dict):
            action = np.concatenate([action[name] for name in self.action_space])
        batch = np.asarray(action, self.envs.single_action_space.dtype)[None]
        observation, reward, terminated, truncated, _ = self.envs.step(batch)
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Ends the environment, and its process if it has one."""
        self.envs.close()


def spaces_of(vector: ActionVector) -> list[spaces.Space[Any]]:
    """The spaces whose values are the columns of a vector, one after the other.

    Choices beside each other are a MultiDiscrete, numbers a Box of what the vector has: -1..1, or no bounds.
    """
    found: list[spaces.Space[Any]] = []
    begin = 0
    for kind, group in groupby(vector.parts, type):
        parts = list(group)
        if kind is ChoiceColumn:
            found.append(spaces.MultiDiscrete([part.size for part in parts if isinstance(part, ChoiceColumn)]))
            begin += len(parts)
        else:
            end = begin + sum(part.num_columns for part in parts)
            found.append(spaces.Box(vector.low[begin:end], vector.high[begin:end]))
            begin = end
    return found
