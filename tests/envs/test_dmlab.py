"""The adapter of DeepMind Lab, with a double of the package and, where it is installed, with the package itself.

Tests with the fixture `lab` run with the double, and with the real package where it can be imported (marker `dmlab`).
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

import envs
from envs import dmlab
from envs.dmlab import ACTION_SETS, TEST_MIXER, TRAINING_MIXERS, DMLabEnv
from envs.dmlab30 import BY_NAME, LEVELS
from envs.level_cache import LevelCache
from envs.rooms.env import average
from envs.words import VOCABULARY, hash_words
from tests.envs.lab import LEVEL, OTHERS, Lab, Module, install

NO_CHOICES = {"correct_choices": 0, "wrong_choices": 0}
NAME = "rooms_select_nonmatching_object"


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.dmlab)])
def lab(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes environments on the double or on the real package, and closes them."""
    made = []

    def make(level: str = NAME, **kwargs: Any) -> DMLabEnv:
        made.append(DMLabEnv(level, lab=Module if request.param == "double" else None, **kwargs))
        return made[-1]

    if request.param == "real":
        pytest.importorskip("deepmind_lab")
    yield make
    for env in made:
        env.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The double in place of the package, and (level, mixer seed, seed) of the episodes that begin on it."""
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    monkeypatch.setattr(Lab, "begun", [])
    return Lab.begun


def double(level: str = NAME, **kwargs: Any) -> DMLabEnv:
    return DMLabEnv(level, lab=Module, **kwargs)


def play(env: Any, steps: int, seed: int | None = None) -> NDArray[Any]:
    """The observations of an episode of which the actions are always the same."""
    return np.stack([env.reset(seed=seed)[0], *(env.step(step % 8)[0] for step in range(steps))])


# With either.


@pytest.mark.parametrize("instruction", [False, True])
def test_gymnasium_checks_it(lab: Callable[..., Any], instruction: bool) -> None:
    check_env(lab(instruction=instruction), skip_render_check=True)


@pytest.mark.parametrize(("repeat", "steps"), [(4, 180), (7, 103)])
def test_an_episode_is_720_frames_and_repeats_its_last_view(lab: Callable[..., Any], repeat: int, steps: int) -> None:
    env = lab(action_repeat=repeat)
    for _ in range(2):
        observation, infos = env.reset(seed=3)
        assert (observation.shape, observation.dtype, infos) == ((72, 96, 3), np.uint8, NO_CHOICES)
        for step in range(1, steps + 1):
            before = observation
            observation, _, terminated, truncated, _ = env.step(8)
            assert (terminated, truncated) == (step == steps, False)
        assert (observation == before).all()
        with pytest.raises(RuntimeError, match="call reset"):
            env.step(0)
    assert env.reset()[1] == NO_CHOICES


def test_a_seed_is_one_episode_whatever_was_played_before(lab: Callable[..., Any]) -> None:
    """As the first of an instance, in the middle of another episode, and after one that ended."""
    env = lab()
    first, other = play(env, 30, seed=7), play(env, 180, seed=8)
    assert (other[:31] != first).any()
    for again in (env, env, lab()):
        assert (play(again, 30, seed=7) == first).all()


def test_streams_and_tests_have_their_own_episodes(lab: Callable[..., Any]) -> None:
    kinds = [{}, {"stream": 0}, {"stream": 1}, {"test": True}]
    episodes = [play(lab(**kind), 30, seed=7) for kind in kinds]
    for one, other in itertools.combinations(episodes, 2):
        assert (one != other).any()
    assert (play(lab(stream=1), 30, seed=7) == episodes[2]).all()


def test_levels_by_name_and_by_path(lab: Callable[..., Any]) -> None:
    for level in (NAME, LEVEL, "rooms_collect_good_objects_test", *OTHERS):
        assert lab(level, test=level.endswith("_test")).reset(seed=0)[0].shape == (72, 96, 3)
    for level in ("rooms_collect_good_objects_test", "none"):
        with pytest.raises(ValueError, match=f"cannot open '.*{level}'"):
            lab(level)


@pytest.mark.parametrize("level", [NAME, "language_select_located_object"])
def test_instructions(lab: Callable[..., Any], level: str) -> None:
    env = lab(level, instruction=True)
    observation = env.reset(seed=0)[0]
    assert env.observation_space.contains(observation)
    assert observation["image"].shape == (72, 96, 3)
    assert (observation["instruction"] > 0).any() == level.startswith("language")


def test_maps_are_compiled_once(lab: Callable[..., Any], tmp_path: Path) -> None:
    for _ in range(2):
        lab("explore_goal_locations_small", level_cache=LevelCache(tmp_path, 1 << 30)).reset(seed=5)
        assert len(list(tmp_path.glob("*.pk3"))) == 1


# With the double.


def test_choices_are_told_from_rewards() -> None:
    env, other = double(), double("rooms_watermaze")
    env.reset(seed=3)
    other.reset(seed=3)
    steps = [(env.step(0), other.step(0)[-1]) for _ in range(180)]
    observations, rewards, _, _, infos = zip(*(step for step, _ in steps))
    assert [observations[index][0, 0, 0] for index in (0, 1, -2, -1)] == [4, 8, 716 % 256, 716 % 256]
    assert sum(rewards) == 13.0
    assert infos[-1] == {"correct_choices": 2, "wrong_choices": 1}
    assert steps[-1][1] == NO_CHOICES, "they are counted on one level only"


MOVES = [(0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0), (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0)]
UP_DOWN, FIRE = [(0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)], (0, 0, 0, 0, 1, 0, 0)


def looks(forward: int, *pixels: int) -> list[tuple[int, ...]]:
    return [(look, 0, 0, forward, 0, 0, 0) for look in pixels]


ROWS = {
    "nine": [*MOVES, *looks(0, -20, 20), *looks(1, -20, 20), FIRE],
    "fifteen": [*MOVES, *looks(0, -10, 10, -60, 60), *UP_DOWN, *looks(1, -10, 10, -60, 60), FIRE],
}


@pytest.mark.parametrize("name", ACTION_SETS)
def test_action_sets(name: str) -> None:
    env, rows = double(actions=name), ROWS[name]
    env.reset(seed=0)
    assert len(set(env.metadata["action_names"])) == env.action_space.n == len(rows)
    for action, row in enumerate(rows):
        assert (env.step(action)[0][0, :7, 2] == np.array(row) % 256).all()
    for action in (-1, len(rows)):
        with pytest.raises(ValueError, match=rf"expected 0\.\.{len(rows) - 1}"):
            env.step(action)


@pytest.mark.parametrize("shrink", [1, 2, 3])
def test_a_smaller_view_is_the_mean_of_blocks_as_in_the_re_creation(shrink: int) -> None:
    view = np.random.default_rng(shrink).integers(0, 256, (4 * shrink, 5 * shrink, 3)).astype(np.uint8)
    expected = np.zeros((4, 5, 3), np.uint8)
    average(view, 0, 1, expected)
    assert (dmlab.block_means(view, shrink) == expected).all()


def test_the_view_is_drawn_larger_than_it_is_observed(lab: Callable[..., Any]) -> None:
    whole, half = lab(), lab(shrink=2)
    for seen, mean in zip(play(whole, 5, seed=3), play(half, 5, seed=3), strict=True):
        assert mean.shape == half.observation_space.shape == (36, 48, 3)
        assert (mean == dmlab.block_means(seen, 2)).all()
    assert lab(image_height=24, image_width=32, shrink=3).observation_space.shape == (24, 32, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shrink": 0}, r"shrink: expected a value in range\(1, 9\), got 0"),
        ({"shrink": 2.0}, "shrink: expected a value in .*got 2.0"),
        ({"shrink": 5}, "shrink: expected a divisor of 72 where image_height is not given, got 5"),
        ({"shrink": 5, "image_height": 10}, "shrink: expected a divisor of 96 where image_width is not given, got 5"),
    ],
)
def test_views_that_cannot_be_divided(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        double(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instruction": 1}, r"instruction: expected a value in \(False, True\), got 1"),
        ({"test": 0}, r"test: expected a value in \(False, True\), got 0"),
        ({"action_repeat": True}, r"action_repeat: expected a value in range\(1, \d+\), got True"),
        ({"image_width": 48.0}, "image_width: expected a value in .*got 48.0"),
        ({"actions": 9}, "actions: expected a value in .*got 9"),
    ],
)
def test_arguments_have_the_type_of_their_values(fields: dict[str, Any], message: str) -> None:
    """Although 1 equals True, and 48.0 equals 48."""
    with pytest.raises(ValueError, match=message):
        double(**fields)


SMALLER = "image_height=36,image_width=48"
HALF = f"{SMALLER},shrink=2"


@pytest.mark.parametrize(
    ("env", "trained", "shown"),
    [
        (f"dmlab:{NAME}", "rooms:full-half", f"dmlab:{NAME},{HALF}"),
        (f"dmlab:{NAME},test=True", f"dmlab:{NAME},shrink=2", f"dmlab:{NAME},test=True,{HALF}"),
        (
            "rooms:full,looks=unseen,rooms:full",
            "rooms:full-half,rooms:full-half,distance_scale=0.4",
            f"rooms:full,looks=unseen,{HALF},rooms:full,{HALF}",
        ),
        (f"dmlab:{NAME},shrink=2", "rooms:full-half", f"dmlab:{NAME},shrink=2"),  # says how it is to be shown
        (f"dmlab:{NAME},shrink=3", "rooms:full-half", f"dmlab:{NAME},shrink=3"),
        (
            "rooms:full-half,hud=False",
            f"rooms:full,{SMALLER},hud=False",
            "rooms:full-half,hud=False",
        ),  # of the same size
        ("rooms:full", "rooms:small", "rooms:full"),  # cannot be shown so: the display needs more pixels
        ("gym:CartPole-v1", "rooms:full-half", "gym:CartPole-v1"),
        ("rooms:full", "gym:CartPole-v1", "rooms:full"),
    ],
)
def test_the_view_of_the_training(env: str, trained: str, shown: str) -> None:
    assert envs.with_view(env, trained) == shown


def test_impossible_arguments_are_named() -> None:
    wrong = {"image_height": 0, "image_width": -1, "action_repeat": 0, "actions": "ten", "renderer": "gpu"}
    for field, value in (*wrong.items(), ("stream", -1), ("stream", 2**31), ("test", "yes"), ("image_width", 96.0)):
        with pytest.raises(ValueError, match=rf"{field}: expected .*got '?{value}"):
            double(**{field: value})


def test_words_are_hashed_alike_everywhere() -> None:
    assert hash_words(["Pick", "the", "red", "ball"], 6).tolist() == [118, 79, 456, 380, 0, 0]
    assert not hash_words([], 2).any()
    words = list(map(str, range(1000)))
    long = hash_words(words, 3)
    assert (long.shape, long.dtype) == ((3,), np.int64)
    assert (long == hash_words(words[:3], 3)).all()
    assert {int(hash_words([str(word)], 1)[0]) for word in range(20_000)} == set(range(1, VOCABULARY))


def test_seeds_and_mixer_seeds(begun: list[tuple[str, int, int]]) -> None:
    """No environment of a batch begins an episode twice; without a seed the first is any."""
    first, batch = 2**31 - 3, dmlab.make(LEVEL, 3, processes=0, image_height=8, image_width=8)
    batch.reset(seed=first)
    for _ in range(4):
        batch.reset()
    assert sorted(seed for _, _, seed in begun) == sorted((first + step) % 2**31 for step in range(15))
    begun.clear()
    for env in (double(), double()):
        env.reset()
        env.reset()
    one, following, other, last = (seed for _, _, seed in begun)
    assert one != other
    assert (following - one, last - other) == (1, 1)
    begun.clear()
    for kind in ({}, {"stream": 0}, {"stream": 2**31 - 1}, {"test": True}, {"test": True, "stream": 4}):
        double(**kind).reset(seed=1)
    assert [mixer for _, mixer, _ in begun] == [0, TRAINING_MIXERS, 2**32 - 1, TEST_MIXER, TEST_MIXER]
    assert TEST_MIXER < TRAINING_MIXERS, "training has the upper half"


def test_the_cache_is_used_by_instances_together(
    begun: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Lab, "built", 0)
    level = "dmlab:explore_goal_locations_small,processes=0"
    batch = envs.make_vector(f"{level},image_height=8,image_width=8", 4)
    batch.reset(seed=0)
    for _ in range(9):
        batch.reset()
    assert Lab.built == 10
    assert len(list((tmp_path / "compressive-impala" / "levels").glob("*.pk3"))) == 10
    envs.make_vector(f"{level},cache_gigabytes=0", 1).reset(seed=0)
    assert Lab.built == 12, "twice, for its first episode was thrown away"


# What may be missing.


def test_without_deepmind_lab_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    for make in (DMLabEnv, lambda level: envs.make_vector(f"dmlab:{level}", 1)):
        with pytest.raises(ImportError, match="--env rooms:full"):
            make(NAME)


@pytest.mark.parametrize("module", ["pkg_resources", "six"])
def test_what_the_package_itself_cannot_import_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, f"import sys; sys.modules['{module}'] = None; import {module}")
    with pytest.raises(ImportError, match=rf"is installed, but .* {module} .*pip install 'setuptools<82' six"):
        envs.make_vector(f"dmlab:{NAME}", 1)


def test_what_a_renderer_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Module, "__file__", str(tmp_path / "__init__.py"))
    library = tmp_path / "libdmlab_headless_hw.so"
    for reason in ("cannot open shared object file", "file too short"):
        with pytest.raises(ValueError, match=f"Failed to connect RL API, renderer=hardware: {library}: {reason}"):
            double(renderer="hardware")
        library.touch()


def test_it_has_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which does the same as this one, and whose end by a missing map is one line."""
    install(monkeypatch, tmp_path)
    level = "dmlab:language_select_located_object,instruction=True,image_height=8,image_width=8"
    here, there = envs.make_vector(f"{level},processes=0", 2), envs.make_vector(level, 2)
    for one, other in (
        (here.reset(seed=3)[0], there.reset(seed=3)[0]),
        *((here.step(actions)[0], there.step(actions)[0]) for actions in np.arange(16).reshape(8, 2) % 9),
    ):
        assert one.keys() == other.keys() == {"image", "instruction"}
        assert all(np.array_equal(one[name], other[name]) for name in one)
    there.close()
    with pytest.raises(envs.EnvironmentLost) as caught:
        envs.prepare("dmlab:psychlab_visual_search")
    died = "environment process 0 of 1 died, status 1: ERROR: Couldn't load maps/missing.bsp"
    assert str(caught.value) == f"environment dmlab:psychlab_visual_search failed in reset: {died}"


# By name.


def test_by_name_with_all_fields(begun: list[tuple[str, int, int]]) -> None:
    spec = f"dmlab:{NAME},image_height=24,image_width=32,actions=fifteen,dataset=/data,processes=0"
    batch = envs.make_vector(spec, 2, stream=5)
    assert batch.reset(seed=0)[0].shape == (2, 24, 32, 3)
    assert batch.single_action_space.n == 15
    assert {(level, mixer) for level, mixer, _ in begun} == {(LEVEL, TRAINING_MIXERS + 5)}
    wanted = {"height": "24", "width": "32", "datasetPath": "/data"}
    assert Lab.latest.config.items() >= wanted.items()
    assert "allowHoldOutLevels" not in Lab.latest.config
    batch.close()
    assert Lab.latest.closed


def test_all_of_dmlab30_by_name() -> None:
    fields = "image_height=8,actions=fifteen"
    wanted = tuple(f"dmlab:{level.train},instruction=True,{fields}" for level in LEVELS)
    assert envs.tasks(f"dmlab:dmlab30,{fields}") == wanted
    assert "instruction=False" in envs.tasks("dmlab:dmlab30,instruction=False")[3]


@pytest.mark.parametrize(
    ("trained", "tested"),
    [
        ("dmlab:rooms_watermaze", "dmlab:rooms_watermaze,test=True"),
        (f"dmlab:{LEVEL}", "dmlab:rooms_select_nonmatching_object,test=True"),
        ("rooms:small,hud=False,rooms:full", "rooms:small,hud=False,rooms:full"),
        (
            "dmlab:rooms_collect_good_objects_test,test=True,dmlab:rooms_collect_good_objects_train",
            "dmlab:rooms_collect_good_objects_test,test=True",
        ),
    ],
)
def test_the_test_versions_of_tasks(trained: str, tested: str) -> None:
    """One that two tasks share occurs once."""
    assert envs.held_out(trained) == tested


def test_the_table_of_dmlab30() -> None:
    assert len({level.train for level in LEVELS}) == 30
    assert len(BY_NAME) == 32
    differ = [level.train for level in LEVELS if level.train != level.test]
    assert differ == ["rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train"]
    assert all(level.human > level.random for level in LEVELS)
    assert sum(level.human for level in LEVELS) == pytest.approx(3110.15)
    assert sum(level.random for level in LEVELS) == pytest.approx(72.617)
