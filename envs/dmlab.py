"""DeepMind Lab as a `gymnasium.Env`: an adapter of `deepmind_lab.Lab`, for the levels of DMLab-30 and all others.

The `deepmind_lab` package is imported only when an environment is made. The table of DMLab-30 is in `dmlab30.py`, the
re-creation of one of its levels in `rooms/`.
"""

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from envs.dmlab30 import BY_NAME, PATH
from envs.lab_interface import ACTION_SETS, INSTRUCTION_WORDS, action_rows
from envs.level_cache import LevelCache, default_folder
from envs.observations import block_means
from envs.processes import batch
from envs.words import VOCABULARY, hash_words

FRAMES_PER_SECOND = 60
NONMATCHING = PATH + "rooms_select_nonmatching_object"
"""The level whose rewards identify correct and wrong choices."""
TEST_MIXER = 0x600D5EED
"""The mixer seed of DeepMind's evaluations. Lab's mixer seeds [0, 2^32) divide its seeds [0, 2^31) into disjoint
sets."""
TRAINING_MIXERS = 1 << 31
"""The first mixer seed of training, which uses the upper half of them."""
STREAMS = 1 << 31
"""How many mixer seeds training has, one a stream."""
SEEDS = 1 << 31
"""How many seeds, and so episodes, a stream has."""
FIELDS = (
    "image_height",
    "image_width",
    "shrink",
    "action_repeat",
    "actions",
    "instruction",
    "test",
    "stream",
    "dataset",
    "renderer",
    "cache_gigabytes",
    "processes",
)
"""Fields of a spec: arguments of `make` and `DMLabEnv`."""
HEIGHT = 72
WIDTH = 96
"""Rows and columns of a view, pixels."""
SHRINKS = range(1, 9)
"""How many times as high and wide as an observation a view can be."""
_IMAGE = "RGB_INTERLEAVED"
_INSTRUCTION = "INSTR"
"""Lab's names of observations."""

Observation = NDArray[np.uint8] | dict[str, NDArray[Any]]


class DMLabEnv(gymnasium.Env[Observation, int]):
    """One level of DeepMind Lab: observation [H, W, 3] uint8, or {"image", "instruction"}; discrete actions.

    The end of an episode is reported as terminated, since the clock is part of the task, with the last observation
    before it: Lab has none after the end. On rooms_select_nonmatching_object the infos count `correct_choices` and
    `wrong_choices` by the rewards of +10 and -10 within the episode; elsewhere they stay 0.

    Seeds: `reset(seed=s)` begins Lab's episode s modulo 2^31, and each reset without a seed the one `stride` further,
    so none repeats before 2^31 / `stride` others. Lab joins seed and mixer seed to 64 bits without loss, so different
    streams, and training and test, share no seed. (The level's script gets 31 bits drawn from these: among n episodes
    of a stream about n^2 / 2^32 pairs agree in them.)

    Args:
        level: a level of DMLab-30 by name, or any other by its path, such as "lt_chasm" or "tests/empty_room_test".
        image_height, image_width: rows and columns of an observation, pixels; by default 72 and 96, over `shrink`.
        shrink: the view is drawn this many times as high and wide, and means of so many pixels are observed; as in
            `RoomsConfig`.
        action_repeat: frames an action is held. Where it does not divide an episode, Lab counts frames beyond its end.
        actions: a name in `lab_interface.ACTION_SETS`.
        instruction: observe the level's instruction, too: `INSTRUCTION_WORDS` int64, see `envs.words`.
        test: allow levels that are held out for tests, with the mixer seed of DeepMind's evaluations.
        stream: which of the disjoint sets of episodes to train on; None for mixer seed 0. Not used with `test`.
        stride: between the seeds of successive episodes; the number of environments that share a stream.
        dataset: folder of the images that some levels of Psychlab show.
        renderer: "software" or "hardware".
        level_cache: see `envs.level_cache`.
        lab: the module to use in place of `deepmind_lab`.

    Raises:
        ImportError: `deepmind_lab` cannot be imported.
        ValueError: an argument is out of range, or there is no such level; names it.
    """

    def __init__(
        self,
        level: str,
        *,
        image_height: int | None = None,
        image_width: int | None = None,
        shrink: int = 1,
        action_repeat: int = 4,
        actions: str = "nine",
        instruction: bool = False,
        test: bool = False,
        stream: int | None = None,
        stride: int = 1,
        dataset: str = "",
        renderer: str = "software",
        level_cache: LevelCache | None = None,
        lab: Any = None,
    ) -> None:
        height, width = image_size(image_height, image_width, shrink)
        _check_arguments(
            image_height=height,
            image_width=width,
            action_repeat=action_repeat,
            stream=stream or 0,
            actions=actions,
            renderer=renderer,
            instruction=instruction,
            test=test,
        )
        self.level = PATH + level if level in BY_NAME else level
        self.action_repeat = action_repeat
        self.instruction = instruction
        self.stride = stride
        self.shrink = shrink
        names, look_pixels = ACTION_SETS[actions]
        self._rows = action_rows(names, look_pixels)
        self._counts = {"correct_choices": 0, "wrong_choices": 0}
        self.metadata = {
            "render_modes": [],
            "render_fps": FRAMES_PER_SECOND / action_repeat,
            "episode_metrics": tuple(self._counts),
            "action_repeat": action_repeat,
            "action_names": names,
        }
        self.observation_space = _observation_space(height, width, instruction)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(names))

        lab = lab or _deepmind_lab()
        observations = [_IMAGE]
        if instruction:
            observations.append(_INSTRUCTION)
        config = _engine_config(shrink * height, shrink * width, dataset, test, stream)
        try:
            self._lab = lab.Lab(self.level, observations, config=config, renderer=renderer, level_cache=level_cache)
        except RuntimeError as error:
            missing = ""
            if "Failed to connect" in str(error):
                missing = _missing_library(lab, renderer)
            raise ValueError(f"DeepMind Lab cannot open {self.level!r}: {error}{missing}") from None
        self._seed: int | None = None
        self._observation: Observation
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of `seed`, or the next one. If no seed was ever given, the first is random."""
        super().reset(seed=seed)
        if self._running:  # a view that was drawn would be left in the next episode's first one
            self._lab.step(np.zeros(7, np.intc), num_steps=1)
        is_first = self._seed is None
        if seed is None:
            seed = self._next_seed()
        self._seed = seed % SEEDS
        # An instance's first episode differs by a frame or two from later ones with the same seed: it is begun twice.
        times = 2 if is_first else 1
        try:
            for _ in range(times):
                self._lab.reset(seed=self._seed)
        except RuntimeError as error:  # a dataset that is not there, for instance; a missing map ends the process
            raise ValueError(f"DeepMind Lab cannot begin an episode of {self.level!r}: {error}") from None
        self._running = True
        self._counts = dict.fromkeys(self._counts, 0)
        self._observation = self._observe()
        return self._observation, dict(self._counts)

    def _next_seed(self) -> int:
        """The seed of an episode for which none is given."""
        if self._seed is None:
            return int(self.np_random.integers(SEEDS))
        return self._seed + self.stride

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One agent step of `action_repeat` frames. Raises RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("step() after the episode ended: call reset()")
        if not 0 <= int(action) < len(self._rows):
            raise ValueError(f"action: expected 0..{len(self._rows) - 1}, got {action}")
        reward = float(self._lab.step(self._rows[int(action)], num_steps=self.action_repeat))
        self._running = bool(self._lab.is_running())
        if self._running:
            self._observation = self._observe()
        if self.level == NONMATCHING:
            # A teleport's +1 may fall into the same step, but never two choices: trials take longer than a step.
            self._counts["correct_choices"] += reward >= 9
            self._counts["wrong_choices"] += reward <= -9
        return self._observation, reward, not self._running, False, dict(self._counts)

    def _observe(self) -> Observation:
        seen = self._lab.observations()
        image = block_means(seen[_IMAGE], self.shrink)
        if not self.instruction:
            return image
        return {"image": image, "instruction": hash_words(seen[_INSTRUCTION].split(), INSTRUCTION_WORDS)}

    def close(self) -> None:
        """Closes the engine."""
        self._lab.close()


def _check_arguments(**given: Any) -> None:
    """Raises a ValueError that names the first argument of `DMLabEnv` that is out of range."""
    positive = range(1, STREAMS)
    flags = (False, True)
    allowed: dict[str, range | tuple[Any, ...]] = {
        "image_height": positive,
        "image_width": positive,
        "action_repeat": positive,
        "stream": range(STREAMS),
        "actions": tuple(ACTION_SETS),
        "renderer": ("software", "hardware"),
        "instruction": flags,
        "test": flags,
    }
    for name, value in given.items():
        known = allowed[name]
        # By type, too, because 1 equals True.
        if type(value) is not type(known[0]) or value not in known:
            raise ValueError(f"{name}: expected a value in {known}, got {value!r}")


def _observation_space(height: int, width: int, instruction: bool) -> spaces.Space[Any]:
    """Images, or images and instructions."""
    image = spaces.Box(0, 255, (height, width, 3), np.uint8)
    if not instruction:
        return image
    words = spaces.Box(0, VOCABULARY - 1, (INSTRUCTION_WORDS,), np.int64)
    return spaces.Dict({"image": image, "instruction": words})


def _engine_config(height: int, width: int, dataset: str, test: bool, stream: int | None) -> dict[str, str]:
    """The engine's settings for views of that size; other arguments as in `DMLabEnv`."""
    mixer_seed = 0
    if test:
        mixer_seed = TEST_MIXER
    elif stream is not None:
        mixer_seed = TRAINING_MIXERS + stream
    config = {
        "width": str(width),
        "height": str(height),
        "fps": str(FRAMES_PER_SECOND),
        "logLevel": "WARN",
        "datasetPath": str(dataset),
        "mixerSeed": str(mixer_seed),
    }
    if test:
        config["allowHoldOutLevels"] = "true"
    return config


def image_size(height: int | None, width: int | None, shrink: int) -> tuple[int, int]:
    """Rows and columns of an observation; None stands for those of Lab's own view over `shrink`.

    Raises a ValueError if there is no such view.
    """
    if type(shrink) is not int or shrink not in SHRINKS:
        raise ValueError(f"shrink: expected a value in {SHRINKS}, got {shrink!r}")
    for name, size, own in (("image_height", height, HEIGHT), ("image_width", width, WIDTH)):
        if size is None and own % shrink:
            raise ValueError(f"shrink: expected a divisor of {own} where {name} is not given, got {shrink}")
    if height is None:
        height = HEIGHT // shrink
    if width is None:
        width = WIDTH // shrink
    return height, width


def make(level: str, num_envs: int, *, cache_gigabytes: float = 2.0, processes: int = 1, **fields: Any) -> VectorEnv:
    """A batch of one level; see `DMLabEnv`.

    The environments share a stream, of which each plays its own episodes, and the machine's cache of levels (0 GB for
    none). They are in a process of their own, because the engine ends its process where a map is missing; or divided
    over several, or with 0 in this one.
    """
    if not isinstance(cache_gigabytes, (int, float)):
        raise ValueError(f"cache_gigabytes: expected a number, got {cache_gigabytes!r}")
    if importlib.util.find_spec("deepmind_lab") is None:  # said without starting a process
        raise ImportError(NOT_INSTALLED)
    cache = LevelCache(default_folder(), round(cache_gigabytes * 2**30)) if cache_gigabytes else None
    make_env = functools.partial(DMLabEnv, level, stride=num_envs, level_cache=cache, **fields)
    return batch(make_env, num_envs, processes, quiet=True)


NOT_INSTALLED = (
    "DeepMind Lab is not installed: build its pip package as on "
    "https://github.com/google-deepmind/lab/blob/master/docs/users/build.md (Python 3.11 or older), or use "
    "the re-created level instead, which needs only pip: --env rooms:full"
)


def _deepmind_lab() -> Any:
    try:
        return importlib.import_module("deepmind_lab")
    except ImportError as error:
        if error.name == "deepmind_lab":
            raise ImportError(NOT_INSTALLED) from None
        needs = "it needs Python 3.11 or older, and: pip install 'setuptools<82' six"
        raise ImportError(f"DeepMind Lab is installed, but cannot be imported: {error}; {needs}") from None


def _missing_library(lab: Any, renderer: str) -> str:
    """Why a renderer cannot be loaded."""
    name = {"software": "libdmlab_headless_sw.so", "hardware": "libdmlab_headless_hw.so"}[renderer]
    try:
        ctypes.CDLL(str(Path(lab.__file__).with_name(name)))
    except OSError as error:  # the library is missing, or one that it needs, such as libEGL.so.1
        return f", renderer={renderer}: {error}"
    return ""
