"""EnvPool: how it resets, by a table of steps; fields, what is missing, and what cannot be."""

import sys

import numpy as np
import pytest
from gymnasium import spaces

import envs
from envs.observations import MOST_WORDS
from envs.pool import with_bounds
from envs.words import hash_pairs, split_words


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"^envpool:Pong-v5 needs envpool: pip install -e '\.\[envpool\]'$"):
        envs.make_vector("envpool:Pong-v5", 1)


@pytest.mark.parametrize("fields", ["", ",img_height=10", ",vzd_path=/tmp/program", ",mode=a.b:c"])
def test_no_id_and_no_field_can_choose_code(fields: str) -> None:
    assert not envs.foreign_code(f"envpool:tests.envs.odd:Pong-v5{fields}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_of_floats_in_cpp_are_none(dtype: type) -> None:
    """The limits of a type of C++ stand for no bounds; others are kept."""
    limits = np.finfo(dtype)

    def box(low: float, high: float) -> spaces.Box:
        """A box whose second number is within -1..1."""
        return spaces.Box(np.array([low, -1], dtype), np.array([high, 1], dtype), (2,), dtype)

    given = spaces.Dict(a=box(limits.tiny, limits.max))
    assert with_bounds(given) == spaces.Dict(a=box(-np.inf, np.inf))


@pytest.fixture
def envpool() -> None:
    pytest.importorskip("envpool", reason="envpool is not installed: pip install -e '.[envpool]'")


@pytest.mark.usefixtures("envpool")
def test_it_resets_on_the_next_step() -> None:
    """CartPole falls after ten steps of the same push; the step after that has no reward and is upright."""
    env = envs.make_vector("envpool:CartPole-v1", 1)
    first, _ = env.reset(seed=0)
    assert np.abs(first).max() < 0.05

    states = []
    rewards = []
    ends = []
    for _ in range(14):
        observation, reward, terminated, _, _ = env.step(np.array([1]))
        states.append(observation[0])
        rewards.append(reward[0])
        ends.append(bool(terminated[0]))

    # Numbers 1 and 2 of a state are the cart's speed and the pole's angle.
    fall = ends.index(True)
    assert 7 <= fall <= 10
    assert abs(states[fall][2]) > 0.2
    assert rewards[: fall + 3] == [1.0] * (fall + 1) + [0.0, 1.0]
    assert np.abs(states[fall + 1]).max() < 0.05
    assert not ends[fall + 1]
    assert states[fall + 2][1] > states[fall + 1][1] + 0.15, "an action of the episode is taken"


@pytest.mark.usefixtures("envpool")
def test_a_limit_of_steps_truncates() -> None:
    env = envs.make_vector("envpool:HalfCheetah-v4,max_episode_steps=5", 2)
    env.reset(seed=0)
    for step in range(12):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        is_last = step in (4, 10)
        is_reset = step in (5, 11)
        assert truncated.all() == is_last
        assert not terminated.any()
        assert reward.any() == (not is_reset)


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("spec", "seen", "frames"),
    [
        ("envpool:Pong-v5", (84, 84, 4), 4),
        ("envpool:Pong-v5,frame_skip=3,stack_num=2,gray_scale=False", (84, 84, 6), 3),
        ("envpool:HalfCheetah-v4", (17,), 1),
        ("envpool:MiniGrid-DoorKey-5x5-v0", (980,), 1),
    ],
)
def test_what_is_seen_and_how_many_frames_a_step_has(spec: str, seen: tuple[int, ...], frames: int) -> None:
    env = envs.make_vector(spec, 2)
    assert env.single_observation_space.shape == seen
    assert env.metadata["action_repeat"] == frames


@pytest.mark.usefixtures("envpool")
def test_minigrid_is_seen_as_the_librarys_own() -> None:
    pytest.importorskip("minigrid")
    env = envs.make_vector("envpool:MiniGrid-Empty-5x5-v0", 1)
    own = envs.make_vector("gym:MiniGrid-Empty-5x5-v0", 1)
    assert np.array_equal(env.reset(seed=0)[0], own.reset(seed=0)[0])
    for action in (2, 2, 1, 2, 0, 2, 2):
        assert np.array_equal(env.step(np.array([action]))[0], own.step(np.array([action]))[0])
    assert env.metadata["action_names"] == own.metadata["action_names"]


@pytest.mark.usefixtures("envpool")
def test_missions_that_differ_are_words() -> None:
    env = envs.make_vector("envpool:BabyAI-GoToLocal-v0", 8)
    observation = env.reset(seed=0)[0]
    assert observation["image"].shape == (8, 980)
    words = hash_pairs(split_words("go to"), MOST_WORDS)
    missions = {tuple(row) for row in observation["instruction"].tolist()}
    assert len(missions) > 1
    for mission in missions:
        assert list(mission[:4]) == words[:4].tolist()


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Pon-v5", "EnvPool has no environment 'Pon-v5'; there are: Pong-v5"),
        ("Go9x9-v1", "expected an environment of one player, got 2 players"),
        ("Pong-v5,foo=1", "envpool:Pong-v5 has no field 'foo'; there are: num_threads, max_episode_steps, stack_num"),
        ("Pong-v5,task=breakout", "envpool:Pong-v5 has no field 'task'"),
        ("HalfCheetah-v4,xml_file=other", "envpool:HalfCheetah-v4 has no field 'xml_file'"),
        ("Pong-v5,episodic_life=1", "episodic_life: expected a value of bool, such as False, got 1"),
        ("FetchReach-v4,reward_type=../x", r"reward_type: expected a word, such as 'sparse', got '\.\./x'"),
        ("Pong-v5,frame_skip=0", "frame_skip: expected an integer from 1 to 1000, got 0"),
        # These end a process in which they are tried.
        ("Pong-v5,img_height=0", "EnvPool does not take img_height=0: environment process 0 of 1 died"),
        ("Pong-v5,mode=77", "EnvPool does not take mode=77: RuntimeError: Invalid game mode requested"),
    ],
)
def test_wrong_ids_and_fields_are_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^environment envpool:{name}: {message}"):
        envs.make_vector(f"envpool:{name}", 1)


@pytest.mark.usefixtures("envpool")
def test_films_show_how_it_draws_itself() -> None:
    spec = envs.drawing("envpool:CartPole-v1")
    assert spec == "envpool:CartPole-v1,render_mode=rgb_array"
    env = envs.make_vector(spec, 2)
    env.reset(seed=0)
    first = env.render()
    assert [picture.shape[2] for picture in first] == [3, 3]
    for _ in range(8):
        env.step(np.array([0, 1]))
    assert not np.array_equal(first[0], env.render()[0])
