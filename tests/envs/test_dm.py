"""dm_env both ways: its own test suite on the rooms level; specs, ends of episodes and seeds of adapted ones."""

import sys
import unittest
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from dm_env import specs, test_utils
from gymnasium import spaces

import envs
from envs.actions import ChoiceColumn, NumberColumns
from envs.dm import DmEnv, RoomsDmEnv, to_space
from envs.gym import adapt
from envs.rooms import RoomsConfig, RoomsEnv
from tests.envs.dm_tasks import Walk


class TestRoomsKeepsTheContractOfDmEnv(test_utils.EnvironmentTestMixin, unittest.TestCase):
    def make_object_under_test(self) -> RoomsDmEnv:
        return RoomsDmEnv(RoomsConfig(image_height=16, image_width=16, hud=False, episode_frames=40), seed=0)

    def make_action_sequence(self) -> Iterator[int]:
        return iter(np.random.default_rng(0).integers(0, 9, 100))


def test_there_and_back_is_the_level_itself() -> None:
    direct = RoomsEnv("small")
    round_trip = DmEnv(partial(RoomsDmEnv, "small"))
    assert round_trip.observation_space == direct.observation_space
    for seed in (3, None):
        assert np.array_equal(round_trip.reset(seed=seed)[0], direct.reset(seed=seed)[0])
        over = False
        for action in np.random.default_rng(0).integers(0, 9, 180):
            assert not over
            view, reward, terminated, truncated, _ = round_trip.step(action)
            expected_view, *expected, _ = direct.step(action)
            assert np.array_equal(view, expected_view)
            assert [reward, terminated, truncated] == expected
            over = terminated
        assert over


def test_truncation_and_termination_are_told_apart() -> None:
    env = DmEnv(Walk)
    ends = set()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    for action in np.random.default_rng(0).integers(0, 3, 300):
        _, reward, terminated, truncated, _ = env.step(action)
        assert terminated == (reward == 1.0)
        if terminated or truncated:
            ends.add((terminated, truncated))
            with pytest.raises(RuntimeError, match="call reset"):
                env.step(0)
            env.reset()
    assert ends == {(True, False), (False, True)}


class Moves(Walk):
    """Its actions are keys, and it checks them itself; `dtype` is that of its choices."""

    def __init__(self, dtype: type) -> None:
        super().__init__()
        self.dtype = dtype

    def step(self, action: Any) -> Any:
        where, (_, how) = action["where"], action["how"]
        self.action_spec()["where"].validate(where)
        return super().step({0: 0, 1: 2}[where] + how)

    def action_spec(self) -> Any:
        choice = specs.DiscreteArray(2, self.dtype)
        return {"where": choice, "how": (specs.BoundedArray((1,), float, 0, 1), specs.DiscreteArray(1))}


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.int64])
def test_choices_are_numbers_of_their_specs_dtype(dtype: type) -> None:
    env = DmEnv(partial(Moves, dtype))
    env.reset(seed=0)
    for where in (0, 1, np.int64(1)):
        env.reset()
        env.step({"where": where, "how": (np.zeros(1), 0)})


def test_an_existing_environment_keeps_its_random_stream() -> None:
    """It is not seeded anew, whatever the seed of a reset is."""
    walk = Walk(seed=5)
    twin = Walk(seed=5)
    env = DmEnv(lambda: walk)
    for seed in (None, 1):
        assert env.reset(seed=seed)[0]["cell"] == twin.reset().observation["cell"]
    env.close()
    assert walk.closed


def test_specs_become_spaces() -> None:
    space = to_space(Walk().observation_spec())
    assert space == spaces.Dict(
        {
            "cell": spaces.Discrete(5, dtype=np.int32),
            "place": spaces.Box(-1.0, 1.0, (1,), np.float64),
            "rest": spaces.Tuple([spaces.Box(0, 1, (), np.bool_), spaces.Box(-np.inf, np.inf, (), np.float64)]),
        }
    )
    assert space.contains(DmEnv(Walk).reset(seed=0)[0])
    assert to_space(specs.Array((2,), np.uint8)) == spaces.Box(0, 255, (2,), np.uint8)
    with pytest.raises(ValueError, match="expected specs of numbers, got StringArray"):
        to_space({"text": specs.StringArray(())})


def test_by_the_name_of_a_function() -> None:
    env = envs.make_vector("dm:tests.envs.dm_tasks:makes_walks,cells=7", 2)
    assert env.single_observation_space.shape == (7 + 1 + 2,)
    assert env.single_action_space == spaces.Discrete(3, dtype=np.int32)


def test_actions_of_several_specs_are_one_vector() -> None:
    env = envs.make_vector("dm:tests.envs.dm_tasks:Drift", 2)
    push = NumberColumns("action[0]", (-0.5, 0.0), (0.5, 1.0))
    assert env.single_action_space.parts == (
        push,
        ChoiceColumn("action[1].brake", 3),
        ChoiceColumn("action[1].gear", 4),
    )
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.action_space.sample())  # the task itself checks what it receives
    assert env.metadata["observation_names"] == ("view", "numbers")


class Named(Walk):
    """Its action spec has names as dm_control's."""

    def action_spec(self) -> specs.Array:  # type: ignore[override]
        return specs.BoundedArray((2,), np.float64, -1, 1, name="hip\tknee")


def test_columns_have_the_names_of_the_spec() -> None:
    assert DmEnv(Named).metadata["action_names"] == ("hip", "knee")
    assert adapt(DmEnv(Named)).metadata["action_names"] == ("hip", "knee")
    assert DmEnv(Walk).metadata["action_names"] == ()


def test_a_task_of_dm_control() -> None:
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    spec = "dm:envs.dm:control_suite,domain=cartpole"
    env = envs.make_vector(f"{spec},task=swingup", 2)
    assert env.single_action_space.parts == (NumberColumns("action", (-1.0,), (1.0,)),)
    assert env.single_observation_space == spaces.Box(-np.inf, np.inf, (5,), np.float32)
    first, _ = env.reset(seed=3)
    env.step(np.ones((2, 1), np.float32))
    assert np.array_equal(env.reset(seed=3)[0], first)
    with pytest.raises(ValueError, match=r"no task 'swim' in the domain 'cartpole'; there are: .*cartpole swingup"):
        envs.make_vector(f"{spec},task=swim", 1)


def test_dm_control_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(ImportError, match=r"dm_control's suite needs dm_control: pip install dm_control"):
        envs.make_vector("dm:envs.dm:control_suite,domain=cartpole,task=swingup", 1)
