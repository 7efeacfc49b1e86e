"""The rooms level as a single `gymnasium.Env`: the batch of `vector.py` with one member, and nothing more."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.rooms.config import RoomsConfig
from envs.rooms.vector import RoomsVectorEnv


class RoomsEnv(gymnasium.Env[NDArray[np.uint8], int]):
    """One environment: observation [H, W, 3] uint8, nine actions, infos `correct_choices` and `wrong_choices`.

    Reset with seed s, it does what member 0 of a `RoomsVectorEnv` reset with seed s does.
    """

    metadata = {  # noqa: RUF012 (gymnasium's own convention)
        "render_modes": ["rgb_array"],
        "render_fps": 15,
        "episode_metrics": ("correct_choices", "wrong_choices"),
    }

    def __init__(self, config: RoomsConfig | str = "full", render_mode: str | None = None) -> None:
        self.vector = RoomsVectorEnv(1, config)
        self.config = self.vector.config
        self.metadata = {name: value for name, value in self.vector.metadata.items() if name != "autoreset_mode"}
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode; without a seed, the random stream goes on."""
        super().reset(seed=seed)
        observation, _ = self.vector.reset(seed=seed)
        return observation[0], self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One agent step. Raises RuntimeError after the end of an episode."""
        if self.vector.state.done[0]:
            raise RuntimeError("step() after the episode ended: call reset()")
        observation, reward, terminated, _, _ = self.vector.step(np.array([action]))
        return observation[0], float(reward[0]), bool(terminated[0]), False, self._info()

    def render(self) -> NDArray[np.uint8] | None:
        """The current view, with render mode "rgb_array"."""
        return self.vector.render()[0] if self.render_mode == "rgb_array" else None

    def _info(self) -> dict[str, Any]:
        state = self.vector.state
        return {"correct_choices": int(state.correct[0]), "wrong_choices": int(state.wrong[0])}

    def get_state(self) -> dict[str, NDArray]:
        """See `RoomsVectorEnv.get_state`."""
        return self.vector.get_state()

    def set_state(self, state: dict[str, NDArray]) -> NDArray[np.uint8]:
        """See `RoomsVectorEnv.set_state`."""
        return self.vector.set_state(state)[0]
