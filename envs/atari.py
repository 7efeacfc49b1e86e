"""Atari games with the preprocessing that papers use, by ale-py's own vector environment: C++ with threads.

A step holds an action for four frames. The agent sees the last four pictures, each the maximum of two frames, in gray
and 84 x 84 pixels. An episode is a whole game that begins with up to 30 frames without an action (Mnih et al., 2015;
Machado et al., 2018). FIRE is pressed at the beginning of each life, since some games wait for it. Rewards are those of
the game.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.foreign import ForeignVectorEnv, require_environments, require_fields, threads
from envs.gym import register

FRAMES_PER_SECOND = 60
SEEDS = 2**31
FIRE_ALONE = np.array([0.0, 0.0, 1.0], np.float32)
"""The continuous action that presses FIRE without a direction: radius, angle, fire."""
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
    """A batch of one game: uint8 [height, width, frames x colors], the last frame last.

    The step after a lost life presses FIRE instead of what the agent does, which trajectories still have as its action.
    With `episodic_life`, agents do not act in that step, because it begins an episode, and its reward is not counted.

    Args:
        game: name of its ROM.
        episodic_life: end an episode with each lost life. (The library's field would begin a new game then.)
        use_fire_reset: press FIRE at the beginning of each life.
        fields: others of ale-py's `AtariVectorEnv`, with `frameskip`.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        episodic_life: bool = False,
        use_fire_reset: bool = True,
        **fields: Any,
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv as Library

        envs = Library(
            game,
            num_envs,
            reward_clipping=False,
            life_loss_info=episodic_life,
            use_fire_reset=use_fire_reset,
            **fields,
        )
        frames = fields["frameskip"]
        metadata: dict[str, Any] = {"action_repeat": frames, "render_fps": FRAMES_PER_SECOND / frames}
        names = [action.name for action in envs.ale.get_action_set()]
        if not envs.continuous:
            metadata["action_names"] = names
        super().__init__(num_envs, envs.single_observation_space, envs.single_action_space, **metadata)
        self.envs = envs

        # FIRE as an action of the library; None where it is not to be pressed.
        self._fire: NDArray[Any] | None = None
        if use_fire_reset and "FIRE" in names:
            self._fire = FIRE_ALONE if envs.continuous else np.array(names.index("FIRE"))
        self._lives = np.zeros(num_envs, int)
        self._lost_a_life = np.zeros(num_envs, bool)

    def begin(self, seeds: list[int | None]) -> Any:
        """Begins an episode everywhere; rows without a seed keep their random number generators."""
        given = np.full(self.num_envs, -1)  # for rows without a seed
        for row, seed in enumerate(seeds):
            if seed is not None:
                given[row] = seed % SEEDS
        observation, info = self.envs.reset(seed=given)
        self._lives = info["lives"].copy()
        self._lost_a_life[:] = False
        return observation

    def advance(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """One step everywhere."""
        if self._fire is not None:
            # Rows of discrete actions are numbers, those of continuous ones vectors.
            rows = self._lost_a_life.reshape(-1, *[1] * self._fire.ndim)
            actions = np.where(rows, self._fire, actions)
        observation, reward, terminated, truncated, info = self.envs.step(actions)
        lives = info["lives"].copy()
        self._lost_a_life = lives < self._lives
        self._lives = lives
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
        raise ImportError(f"gym:{name} needs ale-py from 0.11.2 on: pip install -U ale-py, or raw=True") from None
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
    return AtariVectorEnv(chosen["game"], num_envs, **{**options, **fields})
