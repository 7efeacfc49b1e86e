"""Atari games with the preprocessing that papers use, by ale-py's own vector environment: C++ with threads.

A step holds an action for four frames. The agent sees the last four pictures, each the maximum of two frames, in gray
and 84 x 84 pixels. An episode is a whole game that begins with up to 30 frames without an action (Mnih et al., 2015;
Machado et al., 2018). Rewards are those of the game.
"""

from typing import Any

import gymnasium
import numpy as np

from envs.foreign import ForeignVectorEnv, require_environments, require_fields, threads
from envs.gym import register

FRAMES_PER_SECOND = 60
SEEDS = 2**31
ALLOWED: dict[str, Any] = {
    "frameskip": (1, 1000),
    "stack_num": (1, 64),
    "img_height": (1, 512),
    "img_width": (1, 512),
    "grayscale": bool,
    "maxpool": bool,
    "noop_max": (0, 1000),
    "use_fire_reset": bool,
    "episodic_life": bool,
    "repeat_action_probability": (0.0, 1.0),
    "full_action_space": bool,
    "continuous": bool,
    "max_num_frames_per_episode": (1, 10**9),
    "num_threads": (1, 1024),
}


class AtariVectorEnv(ForeignVectorEnv):
    """A batch of one game: uint8 [height, width, frames x colours], the last frame last.

    Args:
        game: name of its ROM.
        fields: of ale-py's `AtariVectorEnv`.
    """

    def __init__(self, game: str, num_envs: int, fields: dict[str, Any]) -> None:
        from ale_py.vector_env import AtariVectorEnv as Library

        envs = Library(game, num_envs, reward_clipping=False, **fields)
        frames = fields["frameskip"]
        metadata: dict[str, Any] = {"action_repeat": frames, "render_fps": FRAMES_PER_SECOND / frames}
        if not envs.continuous:
            metadata["action_names"] = [action.name for action in envs.ale.get_action_set()]
        super().__init__(num_envs, envs.single_observation_space, envs.single_action_space, **metadata)
        self.envs = envs

    def begin(self, seeds: list[int | None]) -> Any:
        """Begins an episode everywhere; rows without a seed keep their random number generators."""
        given = [-1 if seed is None else seed % SEEDS for seed in seeds]
        return self.envs.reset(seed=np.array(given))[0]

    def advance(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """One step everywhere."""
        observation, reward, terminated, truncated, _ = self.envs.step(actions)
        return observation, reward, terminated, truncated


def make(name: str, num_envs: int, actors: int = 1, **fields: Any) -> AtariVectorEnv:
    """A batch of the game of an id, such as ALE/Pong-v5 or PongNoFrameskip-v4.

    The id says whether actions are repeated at random ("sticky": with probability 0.25 in ALE/*-v5, never in
    *NoFrameskip-v4).

    Args:
        actors: how many actors share the cores of this machine.
        fields: those of `ALLOWED`, with ale-py's defaults.

    Raises:
        ImportError: without ale-py, or with a release that has no vector environment.
        ValueError: for an id that does not exist, and for a field that is out of range: the library would end this
            process.
    """
    identity = register(name)
    try:
        import ale_py.vector_env  # noqa: F401
    except ImportError:
        raise ImportError(f"gym:{name} needs ale-py from 0.11 on: pip install -U ale-py, or raw=True") from None
    try:
        chosen = gymnasium.spec(identity).kwargs
    except gymnasium.error.Error as error:
        raise ValueError(str(error)) from error
    require_environments(num_envs)
    require_fields(fields, ALLOWED)
    options = {
        "frameskip": 4,
        "repeat_action_probability": chosen["repeat_action_probability"],
        "num_threads": threads(num_envs, actors),
    }
    return AtariVectorEnv(chosen["game"], num_envs, {**options, **fields})
