"""One environment of `envs.make_vector` at a time, for libraries that batch and reset environments themselves."""

from typing import Any

import gymnasium
import numpy as np

from envs import make_vector


class Single(gymnasium.Env):
    """A spec such as "diagnostic:recall,delay=10" as a `gymnasium.Env`."""

    def __init__(self, spec: str) -> None:
        self.envs = make_vector(spec, 1)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The first observation of an episode."""
        return self.envs.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Observation, reward, terminated, truncated and no infos."""
        batch = np.asarray(action)[None]
        observation, reward, terminated, truncated, _ = self.envs.step(batch)
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}
