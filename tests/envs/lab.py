"""A double of the package `deepmind_lab`: raises its RuntimeErrors, and asserts where it raises others or misbehaves.

Measured on commit b1db91af unless a comment names the source file. The image depends on level, seeds, frame and last
action only, except for the first of an episode that was begun in the middle of another.
"""

import hashlib
import os
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PATH = "contributed/dmlab30/"
LEVEL = f"{PATH}rooms_select_nonmatching_object"
OTHERS = ("lt_chasm", "tests/empty_room_test")
"""Levels outside DMLab-30."""
WITHOUT_DATA = ("psychlab_", "natlab_")
"""Levels whose maps or images are not in DeepMind Lab's repository."""
HELD_OUT = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")
"""Levels that need the setting `allowHoldOutLevels` (game_scripts/decorators/test_only.lua)."""


class Lab:
    """`rewards` maps the frame of an episode (1..720) to its reward; `instruction` is that of language levels.

    `begun` collects (level, mixer seed, seed) of all episodes of all instances except the first of each, which differs
    from later ones; `built` counts compiled maps; `latest` is the newest instance.
    """

    frames = 720
    without_data = ()
    rewards: dict[int, float] = {30: 1.0, 60: 10.0, 90: 1.0, 91: -10.0, 717: 1.0, 719: 10.0}  # noqa: RUF012
    instruction = "Pick the red ball in the blue room."
    begun: list[tuple[str, int, int]] = []  # noqa: RUF012
    built = 0
    latest = None

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
    ) -> None:
        defaults = {"width": "320", "height": "240", "fps": "60", "mixerSeed": "0"}
        config = defaults | (config or {})
        for name, value in config.items():
            assert isinstance(name, str)
            assert isinstance(value, str)
        assert renderer in ("software", "hardware")
        if renderer == "hardware":  # public/dmlab_so_loader.cc
            print("Failed to open library! - libdmlab_headless_hw.so", file=sys.stderr)
            raise RuntimeError("Failed to connect RL API")
        if not level.startswith(PATH) and level not in OTHERS:
            raise RuntimeError('Failed to init environment - "Level not found"')
        if level.endswith(HELD_OUT) and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError('Failed to init environment - "held out"')
        self.mixer = int(config["mixerSeed"], 0)  # engine/code/deepmind/dmlab_connect.c: 0 .. UINT32_MAX
        assert 0 <= self.mixer < 2**32
        assert set(observations) <= {"RGB_INTERLEAVED", "INSTR"}
        assert config["fps"] == "60"
        self.level = level
        self.names = list(observations)
        self.config = config
        self.cache = level_cache
        self.size = (int(config["height"]), int(config["width"]))
        self.seed = None
        self.frame = None
        self.drawn = False  # whether the present state was observed
        self.episodes = 0
        self.counted = 0
        self.closed = False
        Lab.latest = self

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        assert isinstance(seed, int)  # python/dmlab_module.c: not even np.int64
        assert 0 <= seed < 2**31, "a C int; negative ones are wrapped"
        if self.level.removeprefix(PATH).startswith(self.without_data):
            print("********************\nERROR: Couldn't load maps/missing.bsp\n", file=sys.stderr, flush=True)
            os._exit(1)
        self.left_over = self.is_running() and self.drawn  # the last view is seen in the new episode's first
        self.seed = seed
        self.frame = 0
        self.counted = 0
        self.action = np.zeros(7, np.intc)
        self.drawn = False
        if self.episodes:
            Lab.begun.append((self.level, self.mixer, seed))
        self.episodes += 1
        if self.level.endswith("explore_goal_locations_small"):
            self._make_map()

    def _make_map(self) -> None:
        """Compiles a map at run time, one of ten, as some levels do."""
        key = f"{self.level} {self.seed % 10}"
        content = hashlib.sha256(key.encode()).digest() * 100
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.pk3")
            if self.cache is not None and self.cache.fetch(key, path):
                with open(path, "rb") as copied:
                    assert copied.read() == content
                return
            Lab.built += 1
            with open(path, "wb") as made:
                made.write(content)
            if self.cache is not None:
                self.cache.write(key, path)

    def is_running(self) -> bool:
        return self.frame is not None and self.frame < self.frames and not self.closed

    def observations(self) -> dict[str, Any]:
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        shifted = self.frame + (self.episodes == 1)  # an instance's first episode runs a frame or two differently
        digest = hashlib.sha256(f"{self.level} {self.mixer} {self.seed}".encode()).digest()

        # Red shows the frame, green and the second row of blue the episode, the first row of blue the action.
        image = np.zeros((*self.size, 3), np.uint8)
        image[..., 0] = shifted % 256
        image[..., 1] = digest[0]
        image[0, :7, 2] = self.action % 256
        image[1, :8, 2] = list(digest[:8])
        image[0, 0, 0] += self.left_over and self.frame == 0
        self.drawn = True

        words = self.instruction if "/language_" in self.level else ""
        every = {"RGB_INTERLEAVED": image, "INSTR": words}
        return {name: every[name] for name in self.names}

    def step(self, action: NDArray[Any], num_steps: int = 1) -> float:
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance.")
        assert isinstance(action, np.ndarray)
        assert (action.shape, action.dtype) == ((7,), np.intc)
        self.action = action
        self.drawn = False
        begin = self.frame
        self.frame = min(begin + num_steps, self.frames)
        self.counted += num_steps  # overshoots where num_steps does not divide 720
        return sum(self.rewards.get(frame, 0.0) for frame in range(begin + 1, self.frame + 1))

    def num_steps(self) -> int:
        return self.counted

    def close(self) -> None:
        self.closed = True


class Module:
    """Stands in for the module `deepmind_lab` in this process."""

    Lab = Lab
    __file__ = "/opt/deepmind_lab/__init__.py"
    __spec__ = ModuleSpec("deepmind_lab", None)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str = "") -> None:
    """A package `deepmind_lab` in a folder, also for processes that are started: the double, whose levels lack data."""
    (folder / "deepmind_lab.py").write_text(
        f"{code}\nfrom tests.envs import lab\nLab = type('Lab', (lab.Lab,), {{'without_data': lab.WITHOUT_DATA}})\n"
    )
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    del sys.modules["deepmind_lab"]
    monkeypatch.syspath_prepend(folder)
