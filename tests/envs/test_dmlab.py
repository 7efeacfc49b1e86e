"""The adapter of DeepMind Lab, with a double of the package and, where it is installed, with the package itself.

Tests with the fixture `lab` run with the double, and with the real package where it can be imported (marker `dmlab`).
"""

import itertools
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs import dmlab
from envs.dmlab import ACTION_SETS, TEST_MIXER, TRAINING_MIXERS, DMLabEnv
from envs.dmlab30 import BY_NAME, LEVELS
from envs.lab_interface import INSTRUCTION_WORDS, VOCABULARY, hash_words
from envs.level_cache import LevelCache
from tests.envs.lab import LEVEL, Lab, Module


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.dmlab)])
def lab(request):
    """Makes environments on the double or on the real package, and closes them."""
    made = []

    def make(**kwargs):
        made.append(DMLabEnv(lab=Module if request.param == "double" else None, **kwargs))
        return made[-1]

    if request.param == "real":
        pytest.importorskip("deepmind_lab")
    yield make
    for env in made:
        env.close()


@pytest.fixture
def begun(monkeypatch):
    """The double in place of the package, and (level, mixer seed, seed) of the episodes that begin on it."""
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    monkeypatch.setattr(Lab, "begun", [])
    return Lab.begun


def double(**kwargs):
    return DMLabEnv(lab=Module, **kwargs)


def play(env, steps, seed=None):
    """The observations of an episode of which the actions are always the same."""
    seen = [env.reset(seed=seed)[0]]
    for step in range(steps):
        seen.append(env.step(step % 8)[0])
    return np.stack(seen)


# With either.


@pytest.mark.parametrize("instruction", [False, True])
def test_gymnasium_checks_it(lab, instruction):
    check_env(lab(render_mode="rgb_array", instruction=instruction), skip_render_check=True)


def test_an_episode_is_180_steps_and_repeats_its_last_view(lab):
    env = lab()
    for _ in range(2):
        observation, infos = env.reset(seed=3)
        assert (observation.shape, observation.dtype) == ((72, 96, 3), np.uint8)
        assert infos == {"correct_choices": 0, "wrong_choices": 0}
        for step in range(1, 181):
            before = observation
            observation, _, terminated, truncated, infos = env.step(0)
            assert terminated == (step == 180)
            assert not truncated
        assert (observation == before).all()
        with pytest.raises(RuntimeError, match="call reset"):
            env.step(0)
    assert env.reset()[1] == {"correct_choices": 0, "wrong_choices": 0}


def test_frames_that_do_not_divide_the_episode(lab):
    env = lab(action_repeat=7)
    env.reset(seed=0)
    steps = 1
    while not env.step(8)[2]:
        steps += 1
    assert steps == 103


def test_a_seed_is_one_episode_whatever_was_played_before(lab):
    """Also as the first of an instance, which Lab itself runs a frame or two differently."""
    env = lab()
    first = play(env, 30, seed=7)
    other = play(env, 30, seed=8)
    assert (play(env, 30, seed=7) == first).all()
    assert (play(lab(), 30, seed=7) == first).all()
    assert (other != first).any()


def test_streams_and_tests_have_their_own_episodes(lab):
    kinds = [{}, {"stream": 0}, {"stream": 1}, {"test": True}]
    episodes = [play(lab(**kind), 30, seed=7) for kind in kinds]
    for one, other in itertools.combinations(episodes, 2):
        assert (one != other).any()
    assert (play(lab(stream=1), 30, seed=7) == episodes[2]).all()


def test_levels_that_are_held_out(lab):
    assert lab(level="rooms_collect_good_objects_test", test=True).reset(seed=0)[0].shape == (72, 96, 3)
    with pytest.raises(ValueError, match="rooms_collect_good_objects_test"):
        lab(level="rooms_collect_good_objects_test")
    with pytest.raises(ValueError, match="contributed/dmlab30/none"):
        lab(level="none")


def test_instructions(lab):
    silent, spoken = lab(instruction=True), lab(level="language_select_located_object", instruction=True)
    for env, some in ((silent, False), (spoken, True)):
        observation = env.reset(seed=0)[0]
        assert env.observation_space.contains(observation)
        assert observation["image"].shape == (72, 96, 3)
        assert (observation["instruction"] > 0).any() == some


def test_maps_are_compiled_once(lab, tmp_path):
    folder = tmp_path / "levels"
    for _ in range(2):
        env = lab(level="explore_goal_locations_small", level_cache=LevelCache(folder, 1 << 30))
        env.reset(seed=5)
        assert len(list(folder.glob("*.pk3"))) == 1


@pytest.mark.parametrize("actions", ACTION_SETS)
def test_wrong_actions(lab, actions):
    env = lab(actions=actions)
    env.reset(seed=0)
    last = env.action_space.n - 1
    env.step(last)
    for action in (-1, last + 1):
        with pytest.raises(ValueError, match=rf"expected 0\.\.{last}"):
            env.step(action)


# With the double.


def test_choices_are_told_from_rewards():
    env = double()
    env.reset(seed=3)
    total, kept = 0.0, []
    for _ in range(180):
        observation, reward, _, _, infos = env.step(0)
        total += reward
        kept.append(observation[0, 0, 0])
    assert kept[:2] == [4, 8]
    assert kept[-1] == kept[-2] == (179 * 4) % 256
    assert total == 13.0
    assert infos == {"correct_choices": 2, "wrong_choices": 1}


MOVES = [(0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0), (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0)]
FIRE = (0, 0, 0, 0, 1, 0, 0)


def looks(forward, *pixels):
    return [(look, 0, 0, forward, 0, 0, 0) for look in pixels]


NINE = [*MOVES, *looks(0, -20, 20), *looks(1, -20, 20), FIRE]
UP_DOWN = [(0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0)]
FIFTEEN = [*MOVES, *looks(0, -10, 10, -60, 60), *UP_DOWN, *looks(1, -10, 10, -60, 60), FIRE]


@pytest.mark.parametrize(("name", "rows"), [("nine", NINE), ("fifteen", FIFTEEN)])
def test_action_sets(name, rows):
    env = double(actions=name)
    env.reset(seed=0)
    assert len(set(env.metadata["action_names"])) == env.action_space.n == len(rows)
    for action, row in enumerate(rows):
        assert (env.step(action)[0][0, :7, 2] == np.array(row) % 256).all()


def test_levels_by_either_name():
    assert double().level == double(level=LEVEL).level == LEVEL
    other = double(level="rooms_watermaze")
    assert other.level == "contributed/dmlab30/rooms_watermaze"
    other.reset(seed=0)
    for _ in range(20):
        infos = other.step(0)[-1]
    assert infos == {"correct_choices": 0, "wrong_choices": 0}, "they are counted on one level only"


def test_impossible_arguments_are_named():
    wrong = {"image_height": 0, "image_width": -1, "action_repeat": 0, "actions": "ten", "renderer": "gpu"}
    for field, value in (*wrong.items(), ("stream", -1), ("stream", 2**31)):
        with pytest.raises(ValueError, match=rf"{field}: expected .*got '?{value}"):
            double(**{field: value})


def test_words_are_hashed_alike_everywhere():
    assert hash_words("Pick the red ball")[:5].tolist() == [118, 79, 456, 380, 0]
    assert not hash_words("  ").any()
    assert (hash_words("a  b\n") == hash_words("a b")).all()
    assert (hash_words("a b") != hash_words("b a")).any()
    long = hash_words(" ".join(map(str, range(1000))))
    assert (long.shape, long.dtype) == ((INSTRUCTION_WORDS,), np.int64)
    assert (long == hash_words(" ".join(map(str, range(INSTRUCTION_WORDS))))).all()
    ids = {int(hash_words(str(word))[0]) for word in range(20_000)}
    assert ids == set(range(1, VOCABULARY))


@pytest.mark.parametrize("first", [0, 2**31 - 3, 2**31 - 1, 2**40 + 5])
def test_no_environment_of_a_batch_begins_an_episode_twice(first, begun):
    batch = dmlab.make(LEVEL, 3, image_height=8, image_width=8)
    batch.reset(seed=first)
    for _ in range(4):
        batch.reset()
    assert sorted(seed for _, _, seed in begun) == sorted((first + step) % 2**31 for step in range(15))


def test_without_a_seed_the_first_is_any(begun):
    for _ in range(3):
        env = double()
        env.reset()
        env.reset()
    seeds = [seed for _, _, seed in begun]
    assert len(set(seeds)) == 6
    assert [after - before for before, after in zip(seeds[::2], seeds[1::2])] == [1, 1, 1]


def test_mixer_seeds(begun):
    for kind in ({}, {"stream": 0}, {"stream": 2**31 - 1}, {"test": True}, {"test": True, "stream": 4}):
        double(**kind).reset(seed=1)
    assert [mixer for _, mixer, _ in begun] == [0, TRAINING_MIXERS, 2**32 - 1, TEST_MIXER, TEST_MIXER]
    assert TEST_MIXER < TRAINING_MIXERS, "training has the upper half"


def test_settings_of_lab():
    config = double(image_height=10, image_width=20, dataset="/data", test=True)._lab.config
    wanted = {"height": "10", "width": "20", "datasetPath": "/data", "allowHoldOutLevels": "true"}
    assert config.items() >= wanted.items()
    assert "allowHoldOutLevels" not in double()._lab.config


def test_the_cache_is_used_by_instances_together(begun, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Lab, "built", 0)
    batch = envs.make_vector("dmlab:explore_goal_locations_small,image_height=8,image_width=8", 4)
    batch.reset(seed=0)
    for _ in range(9):
        batch.reset()
    assert Lab.built == 10
    assert len(list((tmp_path / "compressive-impala" / "levels").glob("*.pk3"))) == 10
    envs.make_vector("dmlab:explore_goal_locations_small,cache_gigabytes=0", 1).reset(seed=0)
    assert Lab.built == 12, "twice, for its first episode was thrown away"


def test_labs_reason_for_an_episode_that_cannot_begin(monkeypatch):
    def fail(lab, episode=-1, seed=None):
        raise RuntimeError("Failed to start environment - no dataset")

    monkeypatch.setattr(Lab, "reset", fail)
    with pytest.raises(ValueError, match=r"psychlab_visual_search.*no dataset"):
        double(level="psychlab_visual_search").reset(seed=0)


@pytest.mark.parametrize("instruction", [False, True])
def test_a_batch_carries_the_counters(instruction):
    batch = dmlab.make("rooms_select_nonmatching_object", 3, lab=Module, instruction=instruction)
    first = batch.reset(seed=0)[0]
    assert (first["image"] if instruction else first).shape == (3, 72, 96, 3)
    assert not instruction or first["instruction"].shape == (3, INSTRUCTION_WORDS)
    for _ in range(180):
        infos = batch.step(np.zeros(3, int))[-1]
    assert infos["correct_choices"].tolist() == [2, 2, 2]
    assert batch.step(np.zeros(3, int))[-1]["wrong_choices"].tolist() == [0, 0, 0]
    lab = batch.envs[0]._lab
    batch.close()
    assert lab.closed


# By name.


def test_without_deepmind_lab_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(ImportError, match="--env rooms:full"):
        envs.make_vector("dmlab:rooms_select_nonmatching_object", 1)


def test_by_name(begun):
    spec = "dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32,actions=fifteen"
    batch = envs.make_vector(spec, 2, stream=5)
    assert batch.reset(seed=0)[0].shape == (2, 24, 32, 3)
    assert batch.single_action_space.n == 15
    assert {mixer for _, mixer, _ in begun} == {TRAINING_MIXERS + 5}


def test_wrong_fields_are_named():
    kinds = {"image_height": "int", "test": "bool", "cache_gigabytes": "float"}
    for field, kind in kinds.items():
        with pytest.raises(ValueError, match=f"{field}: expected a value of type {kind}, got 'x'"):
            envs.make_vector(f"dmlab:x,{field}=x", 1)


def test_all_of_dmlab30_by_name(begun):
    names = envs.tasks("dmlab:dmlab30,image_height=8,image_width=8,actions=fifteen")
    assert len(set(names)) == 30
    fields = "instruction=True,image_height=8,image_width=8,actions=fifteen"
    assert names[0] == f"dmlab:rooms_collect_good_objects_train,{fields}"
    tested = envs.tasks(envs.held_out(",".join(names)))
    assert tested[0].startswith("dmlab:rooms_collect_good_objects_test,")
    for name in (*names, *tested):
        batch = envs.make_vector(name, 1)
        batch.reset(seed=0)
        batch.close()
    assert {mixer for _, mixer, _ in begun[:30]} == {0}
    assert {mixer for _, mixer, _ in begun[30:]} == {TEST_MIXER}
    assert "instruction=False" in envs.tasks("dmlab:dmlab30,instruction=False")[3]
    assert envs.held_out(envs.held_out("dmlab:rooms_watermaze")) == "dmlab:rooms_watermaze,test=True"
    assert envs.held_out(f"dmlab:{LEVEL}") == "dmlab:rooms_select_nonmatching_object,test=True"
    assert envs.held_out("dmlab:lt_chasm,stream=1") == "dmlab:lt_chasm,stream=1,test=True"
    assert envs.held_out("rooms:small,hud=False,rooms:full") == "rooms:small,hud=False,rooms:full"


def test_the_table_of_dmlab30():
    assert len(LEVELS) == 30
    assert len(BY_NAME) == 32
    differ = [level.train for level in LEVELS if level.train != level.test]
    assert differ == ["rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train"]
    assert all(level.human > level.random for level in LEVELS)
    assert sum(level.human for level in LEVELS) == pytest.approx(3110.15)
    assert sum(level.random for level in LEVELS) == pytest.approx(72.617)
