"""The adapter of DeepMind Lab, with a double of the package and, where it is installed, with the package itself.

Tests with the fixture `lab` run with the double, and with the real package where it can be imported (marker `dmlab`).
"""

import itertools
import sys
import zlib
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
from envs.observations import block_means
from envs.rooms.env import average
from envs.words import VOCABULARY, explain_ids, hash_words
from tests.envs.lab import LEVEL, OTHERS, Lab, Module, install

NO_CHOICES = {"correct_choices": 0, "wrong_choices": 0}
NAME = "rooms_select_nonmatching_object"


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.dmlab)])
def lab(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes environments on the double or on the real package, and closes them."""
    made = []

    module = Module
    if request.param == "real":
        pytest.importorskip("deepmind_lab")
        module = None

    def make(level: str = NAME, **kwargs: Any) -> DMLabEnv:
        env = DMLabEnv(level, lab=module, **kwargs)
        made.append(env)
        return env

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
    """An environment on the double."""
    return DMLabEnv(level, lab=Module, **kwargs)


def play(env: Any, steps: int, seed: int | None = None) -> NDArray[Any]:
    """The observations [steps + 1, ...] of an episode; its actions follow from the number of the step."""
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    for step in range(steps):
        observation, *_ = env.step(step % 8)
        seen.append(observation)
    return np.stack(seen)


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
    first = play(env, 30, seed=7)
    whole = play(env, 180, seed=8)
    assert (whole[:31] != first).any()
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
        observation, _ = lab(level, test=level.endswith("_test")).reset(seed=0)
        assert observation.shape == (72, 96, 3)
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


def test_choices_are_counted_from_rewards() -> None:
    """The double gives rewards of 1, 10, 1, -10, 1 and 10; those of 10 are right choices, that of -10 a wrong one."""
    env = double()
    env.reset(seed=3)
    frames = []
    total = 0.0
    for _ in range(180):
        observation, reward, _, _, infos = env.step(0)
        frames.append(observation[0, 0, 0])  # where the double shows the number of the frame
        total += reward
    assert frames[:2] == [4, 8]
    assert frames[-2:] == [716 % 256, 716 % 256]
    assert total == 13.0
    assert infos == {"correct_choices": 2, "wrong_choices": 1}


def test_choices_are_counted_on_one_level_only() -> None:
    env = double("rooms_watermaze")
    env.reset(seed=3)
    total = 0.0
    for _ in range(180):
        _, reward, _, _, infos = env.step(0)
        total += reward
    assert total == 13.0
    assert infos == NO_CHOICES


# Rows of (look right, look down, strafe right, forward, fire, jump, crouch); looks are in pixels.
MOVES = [(0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0), (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0)]
UP_DOWN = [(0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)]
FIRE = (0, 0, 0, 0, 1, 0, 0)


def looks(forward: int, *pixels: int) -> list[tuple[int, ...]]:
    """Rows that look aside by so many pixels, and move forward or not."""
    return [(look, 0, 0, forward, 0, 0, 0) for look in pixels]


ROWS = {
    "nine": [*MOVES, *looks(0, -20, 20), *looks(1, -20, 20), FIRE],
    "fifteen": [*MOVES, *looks(0, -10, 10, -60, 60), *UP_DOWN, *looks(1, -10, 10, -60, 60), FIRE],
}


@pytest.mark.parametrize("name", ACTION_SETS)
def test_action_sets(name: str) -> None:
    env = double(actions=name)
    rows = ROWS[name]
    env.reset(seed=0)
    assert len(set(env.metadata["action_names"])) == env.action_space.n == len(rows)
    for action, row in enumerate(rows):
        observation, *_ = env.step(action)
        received = observation[0, :7, 2]  # where the double shows the row
        assert (received == np.array(row) % 256).all()
    for action in (-1, len(rows)):
        with pytest.raises(ValueError, match=rf"expected 0\.\.{len(rows) - 1}"):
            env.step(action)


@pytest.mark.parametrize("shrink", [1, 2, 3])
def test_a_smaller_view_is_the_mean_of_blocks_as_in_the_re_creation(shrink: int) -> None:
    view = np.random.default_rng(shrink).integers(0, 256, (4 * shrink, 5 * shrink, 3)).astype(np.uint8)
    expected = np.zeros((4, 5, 3), np.uint8)
    average(view, 0, 1, expected)
    assert (block_means(view, shrink) == expected).all()


def test_the_view_is_drawn_larger_than_it_is_observed(lab: Callable[..., Any]) -> None:
    half = lab(shrink=2)
    assert half.observation_space.shape == (36, 48, 3)
    views = play(lab(), 5, seed=3)
    smaller = play(half, 5, seed=3)
    for view, small in zip(views, smaller, strict=True):
        assert small.shape == (36, 48, 3)
        assert (small == block_means(view, 2)).all()
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
"""Drawn in half of the usual size."""
HALF = f"{SMALLER},shrink=2"
"""Drawn in the usual size, and observed in half of it."""


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
        # The environment itself says how it is to be shown.
        (f"dmlab:{NAME},shrink=2", "rooms:full-half", f"dmlab:{NAME},shrink=2"),
        (f"dmlab:{NAME},shrink=3", "rooms:full-half", f"dmlab:{NAME},shrink=3"),
        # The size is the same.
        ("rooms:full-half,hud=False", f"rooms:full,{SMALLER},hud=False", "rooms:full-half,hud=False"),
        # The display needs more pixels than the training's view has.
        ("rooms:full", "rooms:small", "rooms:full"),
        ("gym:CartPole-v1", "rooms:full-half", "gym:CartPole-v1"),
        ("rooms:full", "gym:CartPole-v1", "rooms:full"),
    ],
)
def test_an_environment_is_shown_with_the_view_of_the_training(env: str, trained: str, shown: str) -> None:
    assert envs.with_view(env, trained) == shown


def test_impossible_arguments_are_named() -> None:
    wrong = [
        ("image_height", 0),
        ("image_width", -1),
        ("image_width", 96.0),
        ("action_repeat", 0),
        ("actions", "ten"),
        ("renderer", "gpu"),
        ("stream", -1),
        ("stream", 2**31),
        ("test", "yes"),
    ]
    for field, value in wrong:
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


def test_who_follows_the_explanation_has_the_ids_of_an_instruction() -> None:
    said = explain_ids(VOCABULARY, 16)
    for part in ("16 ids, one a word", "what white space divides, as they are written", "crc32(its UTF-8) modulo 1000"):
        assert part in said
    ids = [1 + zlib.crc32(word.encode()) % 1000 for word in Lab.instruction.split()]
    env = double("language_select_located_object", instruction=True)
    observation: Any = env.reset(seed=0)[0]
    assert observation["instruction"].tolist() == [*ids, *[0] * (16 - len(ids))]


def test_no_two_episodes_of_a_batch_have_the_same_seed(begun: list[tuple[str, int, int]]) -> None:
    """The seeds of three environments and five episodes follow each other, and begin again after the greatest."""
    first = 2**31 - 3
    batch = dmlab.make(LEVEL, 3, processes=0, image_height=8, image_width=8)
    batch.reset(seed=first)
    for _ in range(4):
        batch.reset()
    expected = [(first + number) % 2**31 for number in range(15)]
    assert sorted(seed for _, _, seed in begun) == sorted(expected)


def test_without_a_seed_the_first_is_random(begun: list[tuple[str, int, int]]) -> None:
    for env in (double(), double()):
        env.reset()
        env.reset()
    (_, _, first), (_, _, second), (_, _, other_first), (_, _, other_second) = begun
    assert first != other_first
    assert second - first == 1
    assert other_second - other_first == 1


def test_mixer_seeds_keep_training_and_tests_apart(begun: list[tuple[str, int, int]]) -> None:
    mixers = [
        ({}, 0),
        ({"stream": 0}, TRAINING_MIXERS),
        ({"stream": 2**31 - 1}, 2**32 - 1),
        ({"test": True}, TEST_MIXER),
        ({"test": True, "stream": 4}, TEST_MIXER),
    ]
    for options, _ in mixers:
        double(**options).reset(seed=1)
    assert [mixer for _, mixer, _ in begun] == [mixer for _, mixer in mixers]
    assert TEST_MIXER < TRAINING_MIXERS, "training has the upper half"


def test_the_cache_is_used_by_instances_together(
    begun: list[tuple[str, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Lab, "built", 0)
    level = "dmlab:explore_goal_locations_small,processes=0"
    maps = 10  # of the double
    batch = envs.make_vector(f"{level},image_height=8,image_width=8", 4)
    batch.reset(seed=0)
    for _ in range(9):
        batch.reset()
    assert Lab.built == maps
    assert len(list((tmp_path / "compressive-impala" / "levels").glob("*.pk3"))) == maps

    envs.make_vector(f"{level},cache_gigabytes=0", 1).reset(seed=0)
    assert Lab.built == maps + 2, "twice, because an instance's first episode is thrown away"


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
    """Its observations are those of an environment in this process."""
    install(monkeypatch, tmp_path)
    level = "dmlab:language_select_located_object,instruction=True,image_height=8,image_width=8"
    actions = np.arange(16).reshape(8, 2) % 9

    def play_both(spec: str) -> list[dict[str, NDArray[Any]]]:
        """The observations of two environments, which are closed."""
        env = envs.make_vector(spec, 2)
        seen = [env.reset(seed=3)[0], *(env.step(action)[0] for action in actions)]
        env.close()
        return seen

    here = play_both(f"{level},processes=0")
    there = play_both(level)
    for found, expected in zip(there, here, strict=True):
        assert found.keys() == expected.keys() == {"image", "instruction"}
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def test_a_process_that_lacks_a_map_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path)
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
