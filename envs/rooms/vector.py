"""A batch of rooms environments as a native `gymnasium.vector.VectorEnv`: one compiled call steps and renders them all.

Here the scalar functions of `level.py` and `render.py` are compiled for the CPU and given their arrays. The laws and
looks of the level are there; the single environment is in `env.py`. One thread only: actors are processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.rooms import level, render
from envs.rooms.config import RoomsConfig, resolve


def _compile():
    """The compiled step: advance or begin every environment as asked, then draw it.

    The digest of this folder's sources is part of what numba caches by, so an edit to any of them recompiles; by itself
    numba would look at this file only. `_nrt=False` spares the counting of references to arrays at every call, which
    would cost a quarter of the time: nothing here allocates.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    sources = int(digest.hexdigest()[:12], 16)

    @numba.njit(cache=True, fastmath=False, nogil=True, _nrt=False)  # type: ignore[call-overload]
    def run(plan, scene, state, begin, actions, rewards, images):
        """Fill rewards [N] and images [N, H, W, 3]: begin an episode where begin [N], else act (nothing for -1)."""
        version = sources  # noqa: F841
        for i in range(actions.shape[0]):
            if begin[i]:
                level.begin_episode(plan, state, i)
                rewards[i] = 0.0
            elif actions[i] >= 0:
                rewards[i] = level.advance_step(plan, state, i, actions[i])
            style = render.look(scene, state, i)
            view = render.direction(scene, state, i, images.shape[1])
            for column in range(images.shape[2]):
                render.draw_column(scene, plan, state, i, style, view, column, images[i])
            if style.hud:
                render.draw_hud(plan, state, i, style.hud_shift, images[i])

    return run


_run = _compile()


class RoomsVectorEnv(VectorEnv):
    """N environments of one config, stepped together.

    Observations [N, H, W, 3] uint8; actions [N] integers 0..8 (`level.ACTION_NAMES`); rewards [N] float64. An episode
    ends with its clock, as terminated; the step after that ignores the action and returns the first observation of the
    next episode (gymnasium's NEXT_STEP). The infos hold `correct_choices` and `wrong_choices` [N] int64, counted from
    the beginning of the episode. What an environment does depends on its own seed and actions only.

    Args:
        num_envs: N.
        config: a `RoomsConfig` or the name of a variant.
        copy: return fresh arrays; with False they are overwritten by the next call.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self,
        num_envs: int = 1,
        config: RoomsConfig | str = "full",
        *,
        copy: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.config = resolve(config)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": 60 / self.config.action_repeat,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "episode_metrics": ("correct_choices", "wrong_choices"),
            "action_repeat": self.config.action_repeat,
            "action_names": level.ACTION_NAMES,
            "floor_plan": level.floor_plan(self.config),
        }
        shape = (self.config.image_height, self.config.image_width, 3)
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space = spaces.Discrete(len(level.ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.copy = copy
        self.level = level.build(self.config)
        self.scene = render.build(self.config)
        self.state = level.allocate(num_envs, self.config.examples)
        self._images = np.zeros((num_envs, *shape), np.uint8)
        self._rewards = np.zeros(num_envs)
        self._all = np.ones(num_envs, bool)
        self._reset_once = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode everywhere, or where options["reset_mask"] [N] bool says.

        A seed s gives environment i the stream of (s, i); a list gives environment i what a single environment reset
        with that seed has; None (also within a list) lets a stream go on, from the system's entropy at first.
        """
        mask = self._all if options is None else np.asarray(options.get("reset_mask", self._all))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(f"reset_mask: expected bool [{self.num_envs}] with a True, got {mask.dtype} {mask.shape}")
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else (int(seed), i) for i in range(self.num_envs)]
        else:
            seeds = [None if s is None else (int(s), 0) for s in seed]
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        for i, entropy in enumerate(seeds):
            if (mask[i] and entropy is not None) or not self._reset_once:
                self.state.rng[i] = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        self._reset_once = True
        _run(self.level, self.scene, self.state, mask, np.full(self.num_envs, -1), self._rewards, self._images)
        return self._observation(), self._infos()

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One agent step everywhere; see the class. Raises ValueError for actions of a wrong number, type or value."""
        if not self._reset_once:
            raise RuntimeError("step() before reset()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions: expected integers [{self.num_envs}], got {actions.dtype} {list(actions.shape)}")
        if actions.min() < 0 or actions.max() >= len(level.ACTIONS):
            raise ValueError(f"actions: expected 0..{len(level.ACTIONS) - 1}, got {actions.min()}..{actions.max()}")
        begin = self.state.done.copy()
        _run(self.level, self.scene, self.state, begin, actions.astype(np.int64), self._rewards, self._images)
        return (
            self._observation(),
            self._rewards.copy() if self.copy else self._rewards,
            self.state.done.copy(),
            np.zeros(self.num_envs, bool),
            self._infos(),
        )

    def _observation(self) -> NDArray[np.uint8]:
        return self._images.copy() if self.copy else self._images

    def _infos(self) -> dict[str, Any]:
        return {
            "correct_choices": self.state.correct.copy(),
            "_correct_choices": self._all.copy(),
            "wrong_choices": self.state.wrong.copy(),
            "_wrong_choices": self._all.copy(),
        }

    def poses(self) -> NDArray[np.float64]:
        """Where the players are, [N, 4]: x, y, yaw in degrees (0 along +x, growing to the left) and the room.

        Rooms are numbered, and all of it can be drawn, as `metadata["floor_plan"]` says. Not among the infos: nobody
        who trains looks at it.
        """
        room = np.array([0, 1, 1, 2])[self.state.room]  # CHOSEN is still in the second room
        return np.stack([self.state.x, self.state.y, self.state.yaw, room], axis=1)

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The current view of every environment."""
        return tuple(self._images.copy())

    def oracle_actions(self) -> NDArray[np.int64]:
        """The actions [N] of a player who knows the state; see `envs.rooms.oracle`."""
        from envs.rooms.oracle import oracle_actions  # which imports this module

        return oracle_actions(self)

    def get_state(self) -> dict[str, NDArray]:
        """Everything that decides what happens next, as a dict of arrays [N]; `set_state` takes it back exactly."""
        return {name: array.copy() for name, array in self.state._asdict().items()}

    def set_state(self, state: dict[str, NDArray]) -> NDArray[np.uint8]:
        """Go on from a state of `get_state`; returns the observation of that moment."""
        if set(state) != set(level.State._fields):
            raise ValueError(f"state: expected the fields {level.State._fields}, got {tuple(state)}")
        for name, array in self.state._asdict().items():
            given = np.asarray(state[name])
            if given.shape != array.shape or given.dtype != array.dtype:
                raise ValueError(
                    f"state[{name!r}]: expected {array.dtype} {array.shape}, got {given.dtype} {given.shape}"
                )
            array[:] = given
        self._reset_once = True
        nobody = np.zeros(self.num_envs, bool)
        _run(self.level, self.scene, self.state, nobody, np.full(self.num_envs, -1), self._rewards, self._images)
        return self._observation()


def warm_up(config: RoomsConfig | str = "full") -> None:
    """Compile and cache what stepping needs, once, before processes that would each compile it are started."""
    env = RoomsVectorEnv(1, config)
    env.reset(seed=0)
    env.step(np.zeros(1, np.int64))
