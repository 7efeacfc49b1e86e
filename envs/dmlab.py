"""DeepMind Lab as a `gymnasium.Env`: a thin adapter of `deepmind_lab.Lab` to the nine actions of the rooms level.

Needs the `deepmind_lab` package, which is imported only when an environment is made. The re-creation of the level,
which needs nothing but pip, is in `rooms/`.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from envs.rooms.level import ACTION_NAMES, ACTIONS

FRAMES_PER_SECOND = 60
LOOK_PIXELS = 20
#: Rows of (look right, look down, strafe right, move forward, fire, jump, crouch); Lab takes np.intc only.
LAB_ACTIONS: NDArray[np.intc] = (ACTIONS * (LOOK_PIXELS, LOOK_PIXELS, 1, 1, 1, 1, 1)).astype(np.intc)
#: The level whose choices can be told from its rewards.
NONMATCHING = "contributed/dmlab30/rooms_select_nonmatching_object"
_IMAGE = "RGB_INTERLEAVED"


def full_name(level: str) -> str:
    """The level's path in DeepMind Lab; a name without a folder is one of DMLab-30."""
    return level if "/" in level else f"contributed/dmlab30/{level}"


class DMLabEnv(gymnasium.Env[NDArray[np.uint8], int]):
    """One level of DeepMind Lab: observation [H, W, 3] uint8, actions 0..8 (`envs.rooms.level.ACTION_NAMES`).

    The end of an episode is reported as terminated, since the clock is part of the task, with the last observation
    that there was: Lab has none after the end. On rooms_select_nonmatching_object the infos count `correct_choices`
    and `wrong_choices` by the rewards of +10 and -10 within the episode; elsewhere they stay 0.

    Args:
        level: a level of Lab, such as "rooms_select_nonmatching_object" or "contributed/dmlab30/...".
        image_height: rows of the view, pixels.
        image_width: columns of the view, pixels.
        action_repeat: frames an action is held. Where it does not divide an episode, Lab counts frames beyond its end.
        renderer: "software" or "hardware".
        lab: the module to use in place of `deepmind_lab`.

    Raises:
        ImportError: `deepmind_lab` cannot be imported.
    """

    def __init__(
        self,
        level: str = "rooms_select_nonmatching_object",
        *,
        image_height: int = 72,
        image_width: int = 96,
        action_repeat: int = 4,
        renderer: str = "software",
        render_mode: str | None = None,
        lab: Any = None,
    ) -> None:
        if action_repeat < 1:
            raise ValueError(f"action_repeat: expected at least 1, got {action_repeat}")
        self.level = full_name(level)
        self.action_repeat = action_repeat
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_SECOND / action_repeat,
            "episode_metrics": ("correct_choices", "wrong_choices"),
            "action_repeat": action_repeat,
            "action_names": ACTION_NAMES,
        }
        self.observation_space = spaces.Box(0, 255, (image_height, image_width, 3), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(LAB_ACTIONS))
        config = {"width": image_width, "height": image_height, "fps": FRAMES_PER_SECOND}
        self._lab = (lab or _deepmind_lab()).Lab(
            self.level, [_IMAGE], config={key: str(value) for key, value in config.items()}, renderer=renderer
        )
        self._observation = np.zeros(self.observation_space.shape, np.uint8)
        self._counts = {"correct_choices": 0, "wrong_choices": 0}
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode. Its seed comes from `seed`, or from the random stream that the last one began."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(0, 2**31 - 1)))
        self._running = True
        self._counts = {"correct_choices": 0, "wrong_choices": 0}
        self._observation = np.array(self._lab.observations()[_IMAGE])
        return self._observation, dict(self._counts)

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One agent step of `action_repeat` frames. Raises RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("step() after the episode ended: call reset()")
        if not 0 <= int(action) < len(LAB_ACTIONS):
            raise ValueError(f"action: expected 0..{len(LAB_ACTIONS) - 1}, got {action}")
        reward = float(self._lab.step(LAB_ACTIONS[int(action)], num_steps=self.action_repeat))
        self._running = bool(self._lab.is_running())
        if self._running:
            self._observation = np.array(self._lab.observations()[_IMAGE])
        if self.level == NONMATCHING:
            # A step may carry a teleport's +1 besides, never two choices: trials take longer than a step.
            self._counts["correct_choices"] += reward >= 9
            self._counts["wrong_choices"] += reward <= -9
        return self._observation, reward, not self._running, False, dict(self._counts)

    def render(self) -> NDArray[np.uint8] | None:
        """The current view, with render mode "rgb_array"."""
        return self._observation if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Let go of the engine."""
        self._lab.close()


def make(level: str, num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    """A batch of one level, stepped one after the other; several Labs in one process work. See `DMLabEnv`."""
    envs = SyncVectorEnv([lambda: DMLabEnv(level, **kwargs)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.metadata = {**envs.envs[0].metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
    return envs


def _deepmind_lab() -> Any:
    try:
        return importlib.import_module("deepmind_lab")
    except ImportError as error:
        raise ImportError(
            "DeepMind Lab is not installed: build its pip package as on "
            "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md (Python 3.11 or older), or use "
            "the re-created level instead, which needs no more than pip: --env rooms:full"
        ) from error
