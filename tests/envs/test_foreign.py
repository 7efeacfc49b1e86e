"""Batched environments of other libraries: batches are converted as single environments are, and what is checked."""

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from envs.actions import actions_as
from envs.foreign import ForeignVectorEnv
from envs.guard import OutputError
from envs.gym import make_env
from envs.observations import shown_as
from envs.outputs import NUMERIC, leaves
from envs.processes import SerialVectorEnv
from tests.envs.generated import draw_space
from tests.envs.test_actions import NESTS

ROWS = 3


def together(space: spaces.Space[Any], values: list[Any]) -> Any:
    """Values of a space as gymnasium batches them."""
    return concatenate(space, values, create_empty_array(space, len(values)))


def arrays(value: Any) -> list[np.ndarray]:
    """The arrays of a value, however they are nested."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in arrays(part)]
    return [np.asarray(value)]


@pytest.mark.parametrize("first", [0, 150])
def test_a_batch_of_observations_is_shown_as_each_of_them(first: int) -> None:
    shown = set()
    for case in range(first, first + 150):
        space = draw_space(random.Random(case))
        if not isinstance(space, spaces.Space):
            continue
        parts = [part for _, part in leaves(space)]
        if not all(isinstance(part, (*NUMERIC, spaces.Text)) for part in parts):
            continue
        if sum(spaces.flatdim(part) for part in parts if isinstance(part, NUMERIC)) > 10_000:
            continue
        space.seed(case)
        values = [space.sample() for _ in range(ROWS)]
        one = shown_as(space)
        many = shown_as(space, ROWS)
        assert many.space == one.space

        # Each of them is converted, and they are batched; or they are batched and converted. None converts nothing.
        converted = values if one.convert is None else [one.convert(value) for value in values]
        expected = together(one.space, converted)
        batched = together(space, values)
        found = batched if many.convert is None else many.convert(batched)
        for left, right in zip(arrays(found), arrays(expected), strict=True):
            assert left.dtype == right.dtype
            assert np.array_equal(left, right), space
        shown |= {type(part).__name__ for part in parts}
    assert shown >= {"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text"}


@given(NESTS, st.integers(0, 2**31))
def test_a_batch_of_actions_is_converted_as_each_of_them(space: Any, seed: int) -> None:
    known, convert = actions_as(space)
    same, convert_rows = actions_as(space, ROWS)
    assert same == known
    batched = batch_space(known, ROWS)
    batched.seed(seed)
    rows = batched.sample()
    if convert is None or convert_rows is None:
        assert convert is convert_rows
        return
    found = convert_rows(rows)
    assert batch_space(space, ROWS).contains(found)
    for row, action in zip(rows, iterate(batch_space(space, ROWS), found), strict=True):
        for left, right in zip(arrays(action), arrays(convert(row)), strict=True):
            assert np.array_equal(left, right)


class Foreign(ForeignVectorEnv):
    """Gymnasium's own vector environment in the place of another library's."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space, action_repeat=2)

    def begin(self, seeds: list[int | None]) -> Any:
        return self.envs.reset(seed=seeds)[0]

    def advance(self, actions: Any) -> Any:
        return self.envs.step(actions)[:4]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"])
def test_episodes_are_those_of_single_environments(name: str) -> None:
    def make() -> gymnasium.Env:
        return gymnasium.make(name, max_episode_steps=9)

    library = SyncVectorEnv([make] * ROWS, autoreset_mode=AutoresetMode.NEXT_STEP)
    env = Foreign(library)
    single = SerialVectorEnv(lambda: make_env(name, max_episode_steps=9), ROWS)
    assert env.observation_space == single.observation_space
    assert env.action_space == single.action_space
    assert env.metadata["action_repeat"] == 2
    env.action_space.seed(0)
    assert np.array_equal(env.reset(seed=4)[0], single.reset(seed=4)[0])
    ended = 0
    for _ in range(40):
        actions = env.action_space.sample()
        *found, _ = env.step(actions)
        *expected, _ = single.step(actions)
        for left, right in zip(found, expected, strict=True):
            assert np.array_equal(left, right)
        _, reward, terminated, truncated = found
        assert reward.dtype == np.float64
        ended += (terminated | truncated).sum()
    assert ended >= ROWS


class Answers:
    """Takes no action, and answers with values that a test sets."""

    num_envs = 2
    single_observation_space = spaces.Box(0, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(3, start=1)

    def __init__(self, **wrong: Any) -> None:
        no = np.zeros(2, bool)
        right = {"observation": np.zeros((2, 2), np.float32), "reward": np.ones(2), "terminated": no, "truncated": no}
        self.answer = right | wrong
        self.given: Any = None

    def reset(self, seed: Any) -> tuple[Any, Any]:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.given = actions
        return (*self.answer.values(), {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": np.zeros((2, 3), np.float32)}, r"^step: observation: expected float32 \[2, 2\]"),
        ({"observation": np.full((2, 2), np.nan, np.float32)}, r"^step: observation: expected finite numbers"),
        ({"reward": np.zeros(3)}, r"^step: reward: expected float64 \[2\]"),
        ({"reward": np.array([0, np.inf])}, r"^step: reward: expected finite numbers .* at \[1\]"),
        ({"terminated": np.array([0, 2])}, r"^step: terminated: expected a value of MultiBinary\(2\)"),
        ({"truncated": None}, r"^step: truncated: expected int8 \[2\] .* got None"),
    ],
)
def test_what_the_library_returns_is_checked(wrong: dict[str, Any], message: str) -> None:
    env = Foreign(Answers(**wrong))
    env.reset(seed=0)
    with pytest.raises(OutputError, match=message):
        env.step(np.zeros(2, np.int64))


def test_ends_rewards_and_memory_are_those_of_the_contract() -> None:
    """The first row terminates and is truncated, which is one end; the second is truncated."""
    library = Answers(terminated=np.array([True, False]), truncated=np.array([1, 1]))
    env = Foreign(library)
    env.reset(seed=0)
    actions = np.array([0, 2])
    observation, reward, terminated, truncated, _ = env.step(actions)
    assert library.given.tolist() == [1, 3], "the library's actions begin at 1"
    assert reward.tolist() == [1, 1]
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, True]
    library.answer["observation"][:] = 1
    assert not observation.any(), "it is a copy"

    # The second step begins episodes in both rows. It ends that of the second row, where the third begins another.
    library.answer |= {"terminated": np.array([False, True]), "truncated": np.zeros(2, bool)}
    _, reward, *_ = env.step(actions)
    assert reward.tolist() == [0, 0]
    _, reward, *_ = env.step(actions)
    assert reward.tolist() == [1, 0]


def test_wrong_actions_and_seeds_of_a_batch_are_named() -> None:
    env = Foreign(Answers())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^actions: expected 0\.\.2, got 0\.\.3$"):
        env.step(np.array([0, 3]))
    with pytest.raises(ValueError, match="expected a value for each of 2 environments, got 3"):
        env.reset(seed=[1, 2, 3])
