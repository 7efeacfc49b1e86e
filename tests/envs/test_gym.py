"""Gymnasium's ids: packages that register them, and MiniGrid's views and missions."""

import importlib
import importlib.util
import logging
import os
import re
import sys
import types
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import envs
from envs import gym
from envs.gym import PACKAGES, draw_cells, make_env, one_hot_cells
from envs.observations import MOST_WORDS
from envs.words import PAIR_VOCABULARY, hash_pairs, split_words
from tests.envs.masked import Plain


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("MiniGrid-MemoryS13-v0", "minigrid"),
        ("popgym-CountRecallEasy-v0", "popgym"),
        ("MysteryPath-v0", "memory_gym"),
        ("ALE/Pong-v5", "ale_py"),
        ("PongNoFrameskip-v4", "ale_py"),
    ],
)
def test_a_missing_package_is_named_with_its_installation(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"gym:{name} needs {module}: {re.escape(PACKAGES[module][1])}"):
        envs.make_vector(f"gym:{name}", 1)


def test_an_id_with_a_newer_version_is_warned_of_once_for_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (0, 1):
        identity = f"Plain-v{version}"
        monkeypatch.setitem(gymnasium.registry, identity, EnvSpec(identity, entry_point=Plain))
    monkeypatch.setattr(gym, "_warned", set())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            make_env("Plain-v0")
    assert ["out of date" in str(warning.message) for warning in said] == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a variable does not tell whether there is a screen")
@pytest.mark.parametrize("screen", ["DISPLAY", "WAYLAND_DISPLAY", None])
def test_miniworld_draws_without_a_window_where_there_is_no_screen(
    screen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYGLET_HEADLESS", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # which is restored
        monkeypatch.delenv(name)
    if screen:
        monkeypatch.setenv(screen, "0")
    monkeypatch.setitem(sys.modules, "miniworld", types.ModuleType("miniworld"))
    gym.register("MiniWorld-Hallway-v0")
    assert os.environ.get("PYGLET_HEADLESS") == (None if screen else "1")


minigrid = pytest.mark.skipif(not importlib.util.find_spec("minigrid"), reason="minigrid is not installed")


@minigrid
def test_minigrid_symbols_are_those_of_its_own_one_hot_wrapper() -> None:
    from minigrid.wrappers import OneHotPartialObsWrapper

    env = gymnasium.make("MiniGrid-Unlock-v0")
    reference = OneHotPartialObsWrapper(env)
    env.reset(seed=0)
    for action in env.unwrapped.np_random.integers(7, size=60):
        observation, *_ = env.step(action)
        cells = observation["image"]
        bits = reference.observation({"image": cells})["image"]
        symbols = one_hot_cells(cells)
        assert np.array_equal(symbols, bits.ravel())
        assert symbols.sum() == 3 * 49, "a kind, a color and a state for each of 7 x 7 cells"


@minigrid
@pytest.mark.parametrize(
    ("name", "size", "tile"),
    [("MiniGrid-DoorKey-6x6-v0", 7, 8), ("MiniGrid-LavaCrossingS9N1-v0", 5, 8), ("MiniGrid-MemoryS7-v0", 3, 28)],
)
def test_minigrid_pixels_are_those_of_its_own_wrapper(name: str, size: int, tile: int) -> None:
    """Also while a key is carried, through doors, and beside cells that are not seen."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    ours = make_env(name, view="pixels", agent_view_size=size, tile=tile)
    reference = ImgObsWrapper(RGBImgPartialObsWrapper(gymnasium.make(name, agent_view_size=size), tile_size=tile))
    assert (ours.reset(seed=0)[0] == reference.reset(seed=0)[0]).all()
    assert ours.observation_space == reference.observation_space
    carried = 0
    # Left, right, forward, pick up, drop and toggle.
    for action in np.random.default_rng(0).choice(6, p=[0.2, 0.2, 0.3, 0.1, 0.05, 0.15], size=1500):
        view, _, terminated, truncated, _ = ours.step(action)
        expected, *_ = reference.step(action)
        assert view.dtype == np.uint8
        assert (view == expected).all()
        carried += ours.unwrapped.carrying is not None
        if terminated or truncated:
            assert (ours.reset()[0] == reference.reset()[0]).all()
    if "Door" in name:
        assert carried > 100


@minigrid
def test_the_agent_is_drawn_where_it_is_in_the_whole_grid() -> None:
    """As MiniGrid itself draws the grid; there all cells are seen."""
    from minigrid.wrappers import FullyObsWrapper

    env = FullyObsWrapper(gymnasium.make("MiniGrid-DoorKey-6x6-v0"))
    env.reset(seed=1)
    places = set()
    directions = set()
    for action in np.random.default_rng(0).integers(0, 6, 300):
        seen, _, terminated, truncated, _ = env.step(action)
        grid: Any = env.unwrapped
        everything = np.ones((6, 6), bool)
        expected = grid.grid.render(8, grid.agent_pos, grid.agent_dir, highlight_mask=everything)
        drawn = draw_cells(seen["image"], 8)
        if grid.grid.get(*grid.agent_pos) is not None:  # in a door, which the agent's symbol replaces
            x, y = 8 * np.array(grid.agent_pos)
            drawn[y : y + 8, x : x + 8] = expected[y : y + 8, x : x + 8]
        assert (drawn == expected).all()
        places.add(tuple(map(int, grid.agent_pos)))
        directions.add(int(grid.agent_dir))
        if terminated or truncated:
            env.reset()
    assert len(places) > 3
    assert directions == {0, 1, 2, 3}


@minigrid
def test_minigrid_draws_itself_and_names_its_actions() -> None:
    spec = envs.drawing("gym:MiniGrid-MemoryS7-v0")
    assert spec.endswith("render_mode=rgb_array")
    assert envs.make_vector(spec, 1).metadata["action_names"][:3] == ["left", "right", "forward"]


@minigrid
@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ("gym:BabyAI-GoToLocal-v0", spaces.Box(0, 1, (980,), np.float32)),
        ("gym:MiniGrid-GoToDoor-5x5-v0", spaces.Box(0, 1, (980,), np.float32)),
        ("gym:BabyAI-BossLevel-v0,view=pixels", spaces.Box(0, 255, (56, 56, 3), np.uint8)),
    ],
)
def test_missions_that_differ_by_episode_are_read(spec: str, seen: spaces.Space[Any]) -> None:
    env = envs.make_vector(f"{spec},processes=0", 2)
    words = spaces.Box(0, PAIR_VOCABULARY - 1, (2 * MOST_WORDS,), np.int64)
    assert env.single_observation_space == spaces.Dict(image=seen, instruction=words)
    missions = set()
    for seed in range(0, 40, 2):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        for ids, each in zip(observation["instruction"], env.envs, strict=True):
            mission = split_words(each.unwrapped.mission)
            assert ids.tolist() == hash_pairs(mission, MOST_WORDS).tolist()
            missions.add(each.unwrapped.mission)
        if seen.dtype == np.float32:  # symbols, not pixels
            expected = [one_hot_cells(each.unwrapped.gen_obs()["image"]) for each in env.envs]
            assert np.array_equal(observation["image"], np.stack(expected))
    assert len(missions) > 5


def in_wrapper(wrapper: str, name: str = "MiniGrid-Empty-5x5-v0") -> gymnasium.Env:
    """An environment of MiniGrid in one of its own wrappers."""
    from minigrid import wrappers

    return getattr(wrappers, wrapper)(gymnasium.make(name))


IN_WRAPPERS: dict[str, spaces.Space[Any] | None] = {
    "RGBImgPartialObsWrapper": spaces.Tuple([spaces.Box(0, 255, (56, 56, 3), np.uint8), spaces.Box(0, 1, (4,))]),
    "ImgObsWrapper": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "OneHotPartialObsWrapper": spaces.Tuple([spaces.Box(0, 255, (7, 7, 20), np.uint8), spaces.Box(0, 1, (4,))]),
    "FlatObsWrapper": None,
    "DictObservationSpaceWrapper": None,
    "FullyObsWrapper": spaces.Box(0, 1, (5 * 5 * 20,), np.float32),
    "ViewSizeWrapper": spaces.Box(0, 1, (7 * 7 * 20,), np.float32),
}
"""Wrappers of MiniGrid, and what is seen of them: their own view, or the symbols of one that shows other cells."""


@minigrid
@pytest.mark.parametrize("wrapper", IN_WRAPPERS)
def test_a_wrapper_of_the_user_decides_what_is_seen(wrapper: str) -> None:
    spec = f"gym:tests.envs.test_gym:in_wrapper,wrapper={wrapper}"
    env = envs.make_vector(spec, 1)
    expected = IN_WRAPPERS[wrapper]
    assert expected is None or env.single_observation_space == expected
    theirs = in_wrapper(wrapper)
    seen, _ = env.reset(seed=0)
    known, _ = theirs.reset(seed=0)
    for action in (2, 1, 2, 1, 0, 2):
        image = known["image"] if isinstance(known, dict) else known
        if wrapper in ("FullyObsWrapper", "ViewSizeWrapper"):
            image = one_hot_cells(image)
        shown = seen[0] if isinstance(seen, tuple) else seen
        if wrapper == "DictObservationSpaceWrapper":
            shown = shown[0][: image.size]
        assert np.array_equal(np.ravel(shown), np.ravel(image))
        seen, *_ = env.step(np.array([action]))
        known, *_ = theirs.step(action)


class Halved(gymnasium.ObservationWrapper):
    """Its numbers are no symbols, though their space is that of MiniGrid's."""

    def observation(self, observation: Any) -> Any:
        return {**observation, "image": observation["image"] // 2}


def halved() -> gymnasium.Env:
    """An environment of MiniGrid in that wrapper."""
    importlib.import_module("minigrid")  # registers it
    return Halved(gymnasium.make("MiniGrid-Empty-5x5-v0"))


@minigrid
def test_what_a_wrapper_of_the_user_shows_is_not_taken_for_symbols() -> None:
    env = envs.make_vector("gym:tests.envs.test_gym:halved", 1)
    view, _ = env.reset(seed=0)[0]
    known, _ = halved().reset(seed=0)
    assert np.array_equal(view[0], known["image"])


@minigrid
def test_missions_are_read_beside_the_view_of_a_wrapper() -> None:
    spec = "gym:tests.envs.test_gym:in_wrapper,wrapper=RGBImgPartialObsWrapper,name=MiniGrid-GoToDoor-5x5-v0"
    env = envs.make_vector(spec, 1)
    observation, _ = env.reset(seed=0)
    mission = split_words(env.envs[0].unwrapped.mission)  # type: ignore[attr-defined]
    assert observation["instruction"][0].tolist() == hash_pairs(mission, MOST_WORDS).tolist()
    with pytest.raises(ValueError, match="view and tile: expected MiniGrid's own observations"):
        envs.make_vector(f"{spec},tile=4", 1)


@minigrid
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:MiniGrid-MemoryS7-v0,view=both", "view: expected symbols or pixels, got 'both'"),
        ("gym:MiniGrid-MemoryS7-v0,view=pixels,tile=0", "tile: expected an integer from 1 to 64, got 0"),
    ],
)
def test_what_minigrid_cannot_do(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"environment {spec}: .*{message}"):
        envs.make_vector(spec, 1)


def normalized(wrapper: str, updates: bool = True) -> gymnasium.Env:
    """An environment in a wrapper that learns statistics, and in another one around that."""
    env = getattr(gymnasium.wrappers, wrapper)(gymnasium.make("CartPole-v1"))
    env.update_running_mean = updates
    return gymnasium.wrappers.RecordEpisodeStatistics(env)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("wrapper=NormalizeReward", "NormalizeReward: returns are of rewards that each copy of it divides by"),
        ("wrapper=NormalizeObservation", "NormalizeObservation: each copy of it standardizes observations by"),
        ("wrapper=NormalizeObservation,updates=False", ""),
    ],
)
def test_statistics_that_no_checkpoint_keeps_are_told_once(
    fields: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    gym._warn_of.cache_clear()
    with caplog.at_level(logging.WARNING):
        envs.make_vector(f"gym:tests.envs.test_gym:normalized,{fields},processes=0", 3)
    assert len(caplog.messages) == bool(told)
    if told:
        assert caplog.messages[0].startswith(f"gym:tests.envs.test_gym:normalized is in a {told}")
