"""DeepMind Lab as a `gymnasium.Env`: a thin adapter of `deepmind_lab.Lab`, for the levels of DMLab-30 and all others.

Needs the `deepmind_lab` package, which is imported only when an environment is made. The table of DMLab-30 is in
`dmlab30.py`, the re-creation of one of its levels, which needs nothing but pip, in `rooms/`.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from envs.dmlab30 import PATH
from envs.level_cache import LevelCache, default_folder
from envs.rooms.level import ACTION_NAMES, ACTIONS

FRAMES_PER_SECOND = 60
LOOK_PIXELS = 20
#: The level whose choices can be told from its rewards.
NONMATCHING = PATH + "rooms_select_nonmatching_object"
#: Hashed words of an instruction; those of DMLab-30 are shorter.
INSTRUCTION_WORDS = 16
#: Ids that a word may have: 1..1000, as many buckets as IMPALA's code has, and 0 for no word.
VOCABULARY = 1001
#: Lab's mixer seeds [0, 2^32) part its seeds [0, 2^31) into disjoint sets. This one is that of DeepMind's evaluations;
#: training has those of the upper half.
TEST_MIXER, TRAINING_MIXERS = 0x600D5EED, 1 << 31
SEEDS = STREAMS = 1 << 31
_IMAGE, _INSTRUCTION = "RGB_INTERLEAVED", "INSTR"


class ActionSet(NamedTuple):
    """Names, and rows [A, 7] of (look right, look down, strafe right, move forward, fire, jump, crouch) a frame.

    Looks are in pixels (0.1056 degrees); Lab takes np.intc only.
    """

    names: tuple[str, ...]
    rows: NDArray[np.intc]


#: Nine: those of IMPALA and of the rooms level. Fifteen: those of Hessel et al. 2019 (PopArt) and most later work.
ACTION_SETS: dict[str, ActionSet] = {
    "nine": ActionSet(ACTION_NAMES, (ACTIONS * (LOOK_PIXELS, LOOK_PIXELS, 1, 1, 1, 1, 1)).astype(np.intc)),
    "fifteen": ActionSet(
        (
            *("forward", "backward", "strafe left", "strafe right"),
            *("look left", "look right", "look far left", "look far right", "look down", "look up"),
            *("look left, forward", "look right, forward", "look far left, forward", "look far right, forward"),
            "fire",
        ),
        np.array(
            [
                (0, 0, 0, 1, 0, 0, 0),
                (0, 0, 0, -1, 0, 0, 0),
                (0, 0, -1, 0, 0, 0, 0),
                (0, 0, 1, 0, 0, 0, 0),
                (-10, 0, 0, 0, 0, 0, 0),
                (10, 0, 0, 0, 0, 0, 0),
                (-60, 0, 0, 0, 0, 0, 0),
                (60, 0, 0, 0, 0, 0, 0),
                (0, 10, 0, 0, 0, 0, 0),
                (0, -10, 0, 0, 0, 0, 0),
                (-10, 0, 0, 1, 0, 0, 0),
                (10, 0, 0, 1, 0, 0, 0),
                (-60, 0, 0, 1, 0, 0, 0),
                (60, 0, 0, 1, 0, 0, 0),
                (0, 0, 0, 0, 1, 0, 0),
            ],
            np.intc,
        ),
    ),
}

Observation = NDArray[np.uint8] | dict[str, NDArray[Any]]


def full_name(level: str) -> str:
    """The level's path in DeepMind Lab; a name without a folder is one of DMLab-30."""
    return level if "/" in level else PATH + level


def hash_words(text: str) -> NDArray[np.int64]:
    """The first `INSTRUCTION_WORDS` words as ids 1..`VOCABULARY` - 1, the same on every machine, then zeros."""
    ids = [zlib.crc32(word.encode()) % (VOCABULARY - 1) + 1 for word in text.split()[:INSTRUCTION_WORDS]]
    return np.array(ids + [0] * (INSTRUCTION_WORDS - len(ids)), np.int64)


class DMLabEnv(gymnasium.Env[Observation, int]):
    """One level of DeepMind Lab: observation [H, W, 3] uint8, or {"image", "instruction"}; actions of an `ActionSet`.

    The end of an episode is reported as terminated, since the clock is part of the task, with the last observation
    that there was: Lab has none after the end. On rooms_select_nonmatching_object the infos count `correct_choices`
    and `wrong_choices` by the rewards of +10 and -10 within the episode; elsewhere they stay 0.

    Seeds: `reset(seed=s)` begins Lab's episode s modulo 2^31, and each reset without a seed the one `stride` further,
    so that none comes twice before 2^31 / `stride` have come. Lab joins seed and mixer seed to 64 bits without loss, so
    different streams, and training and test, have no seed in common. (From these bits it draws the 31 that the level's
    script is given: n episodes of one stream hold about n^2 / 2^32 pairs that agree in them.) The first episode of an
    instance differs by a frame or two from later ones with the same seed: it is begun and thrown away.

    Args:
        level: a level of Lab, such as "rooms_select_nonmatching_object" or "contributed/dmlab30/...".
        image_height: rows of the view, pixels.
        image_width: columns of the view, pixels.
        action_repeat: frames an action is held. Where it does not divide an episode, Lab counts frames beyond its end.
        actions: a name in `ACTION_SETS`.
        instruction: observe the level's instruction, too: `INSTRUCTION_WORDS` int64, see `hash_words`.
        test: allow levels that are held out for tests, with the mixer seed of DeepMind's evaluations.
        stream: 0..2^31 - 1, which of the disjoint sets of episodes to train on; None for another one, mixer seed 0. Of
            no effect with `test`.
        stride: between the seeds of successive episodes; the number of environments that share a stream.
        dataset: folder of the images that some levels of Psychlab show.
        renderer: "software" or "hardware".
        level_cache: see `envs.level_cache`.
        lab: the module to use in place of `deepmind_lab`.

    Raises:
        ImportError: `deepmind_lab` cannot be imported.
        ValueError: an argument is impossible, or there is no such level; names it.
    """

    def __init__(
        self,
        level: str = "rooms_select_nonmatching_object",
        *,
        image_height: int = 72,
        image_width: int = 96,
        action_repeat: int = 4,
        actions: str = "nine",
        instruction: bool = False,
        test: bool = False,
        stream: int | None = None,
        stride: int = 1,
        dataset: str = "",
        renderer: str = "software",
        level_cache: LevelCache | None = None,
        render_mode: str | None = None,
        lab: Any = None,
    ) -> None:
        for name, number in (("image_height", image_height), ("image_width", image_width)):
            if number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")
        if action_repeat < 1:
            raise ValueError(f"action_repeat: expected at least 1, got {action_repeat}")
        if actions not in ACTION_SETS:
            raise ValueError(f"actions: expected one of {', '.join(ACTION_SETS)}, got {actions!r}")
        if renderer not in ("software", "hardware"):
            raise ValueError(f"renderer: expected software or hardware, got {renderer!r}")
        if stream is not None and not 0 <= stream < STREAMS:
            raise ValueError(f"stream: expected 0 to {STREAMS - 1}, got {stream}")
        self.level = full_name(level)
        self.action_repeat = action_repeat
        self.action_set = ACTION_SETS[actions]
        self.instruction = instruction
        self.stride = stride
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_SECOND / action_repeat,
            "episode_metrics": ("correct_choices", "wrong_choices"),
            "action_repeat": action_repeat,
            "action_names": self.action_set.names,
        }
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (image_height, image_width, 3), np.uint8)
        if instruction:
            words = spaces.Box(0, VOCABULARY - 1, (INSTRUCTION_WORDS,), np.int64)
            self.observation_space = spaces.Dict({"image": self.observation_space, "instruction": words})
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(self.action_set.rows))
        config = {
            "width": image_width,
            "height": image_height,
            "fps": FRAMES_PER_SECOND,
            "logLevel": "WARN",
            "datasetPath": dataset,
            **({"allowHoldOutLevels": "true"} if test else {}),
            "mixerSeed": TEST_MIXER if test else 0 if stream is None else TRAINING_MIXERS + stream,
        }
        try:
            self._lab = (lab or _deepmind_lab()).Lab(
                self.level,
                [_IMAGE, _INSTRUCTION] if instruction else [_IMAGE],
                config={key: str(value) for key, value in config.items()},
                renderer=renderer,
                level_cache=level_cache,
            )
        except RuntimeError as error:
            raise ValueError(f"level {self.level!r}: DeepMind Lab cannot begin it: {error}") from error
        self._seed: int | None = None
        self._observation: Observation
        self._counts = {"correct_choices": 0, "wrong_choices": 0}
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode: that of `seed`, or the next. Without any seed, the first is one at random."""
        super().reset(seed=seed)
        first = self._seed is None
        if seed is not None:
            self._seed = seed % SEEDS
        elif self._seed is None:
            self._seed = int(self.np_random.integers(SEEDS))
        else:
            self._seed = (self._seed + self.stride) % SEEDS
        try:
            for _ in range(2 if first else 1):
                self._lab.reset(seed=self._seed)
        except RuntimeError as error:  # a map or a dataset that is not there, for instance
            raise ValueError(f"level {self.level!r}: DeepMind Lab cannot begin an episode: {error}") from error
        self._running = True
        self._counts = {"correct_choices": 0, "wrong_choices": 0}
        self._observation = self._observe()
        return self._observation, dict(self._counts)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One agent step of `action_repeat` frames. Raises RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("step() after the episode ended: call reset()")
        rows = self.action_set.rows
        if not 0 <= int(action) < len(rows):
            raise ValueError(f"action: expected 0..{len(rows) - 1}, got {action}")
        reward = float(self._lab.step(rows[int(action)], num_steps=self.action_repeat))
        self._running = bool(self._lab.is_running())
        if self._running:
            self._observation = self._observe()
        if self.level == NONMATCHING:
            # A step may carry a teleport's +1 besides, never two choices: trials take longer than a step.
            self._counts["correct_choices"] += reward >= 9
            self._counts["wrong_choices"] += reward <= -9
        return self._observation, reward, not self._running, False, dict(self._counts)

    def _observe(self) -> Observation:
        seen = self._lab.observations()
        image = np.array(seen[_IMAGE])
        return {"image": image, "instruction": hash_words(seen[_INSTRUCTION])} if self.instruction else image

    def render(self) -> NDArray[np.uint8] | None:
        """The current view, with render mode "rgb_array"."""
        if self.render_mode != "rgb_array":
            return None
        return self._observation["image"] if isinstance(self._observation, dict) else self._observation

    def close(self) -> None:
        """Let go of the engine."""
        self._lab.close()


def make(level: str, num_envs: int, *, cache_gigabytes: float = 2.0, **kwargs: Any) -> SyncVectorEnv:
    """A batch of one level, stepped one after the other; several Labs in one process work. See `DMLabEnv`.

    They share a stream, of which each has its own episodes, and the machine's cache of levels (0 GB for none).
    """
    cache = LevelCache(default_folder(), round(cache_gigabytes * 2**30)) if cache_gigabytes else None
    build = [lambda: DMLabEnv(level, stride=num_envs, level_cache=cache, **kwargs)] * num_envs
    envs = SyncVectorEnv(build, autoreset_mode=AutoresetMode.NEXT_STEP)
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
