"""Environments whose episodes are all equally long are spread over the episode, and nothing else is changed."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from actors import Actor
from actors.actor import Player
from actors.stagger import Stagger
from agent.core import leaves
from envs.processes import batch
from tests.actors.counting import Counting, CountingAgent
from tests.actors.test_pools import no_wrong_state

LENGTH = 7
"""Steps of an episode."""
ROWS = 4
PERIOD = LENGTH + 1
"""Steps from the end of an episode to that of the next: one step begins it."""


class Equal(gymnasium.Env[Any, Any]):
    """Episodes of `LENGTH` steps; the observation is the step, and the reward is 1."""

    observation_space = spaces.Box(0, LENGTH, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        observation = np.full(1, self.count, np.float32)
        return observation, 1.0, False, self.count == LENGTH, {}


class EqualCounting(Counting):
    """A `Counting` whose episodes all take 5 steps."""

    def begin(self, rows: NDArray[np.bool_]) -> None:
        super().begin(rows)
        self.number -= self.number % 7


def play(player: Player, steps: int) -> list[tuple[int, int, int, float]]:
    """(step, environment, steps, score) of the episodes that end."""
    found = []
    for step in range(1, steps + 1):
        *_, episodes = player.step_envs(np.zeros(player.envs.num_envs, np.int64))
        found += [(step, episode.environment, episode.steps, episode.score) for episode in episodes]
    return found


@pytest.mark.parametrize("processes", [0, 3])
def test_environments_are_spread_over_an_episode(processes: int) -> None:
    """The episodes that are ended early are in no statistic."""
    player = Player(batch(Equal, ROWS, processes), actor_id=0, task="equal")
    player.stagger = Stagger(ROWS, actor_id=0)
    player.reset_envs(seed=0)
    ends = play(player, 6 * PERIOD)
    player.close()

    assert {(steps, score) for _, _, steps, score in ends} == {(LENGTH, LENGTH)}
    first = [step for step, *_ in ends[:ROWS]]
    assert first == [LENGTH] * ROWS
    for row in range(ROWS):
        steps = [step for step, environment, *_ in ends if environment == row]
        early = math.ceil(row * LENGTH / ROWS)  # steps of the episode that was ended, after the one that began it
        shift = early + 1 if early else 0
        expected = [LENGTH, *range(LENGTH + shift + PERIOD, 6 * PERIOD + 1, PERIOD)]
        assert steps == expected


def test_the_actors_of_a_run_are_apart() -> None:
    """Also if each has one environment."""
    shares = [Stagger(1, actor_id).shares[0] for actor_id in range(5)]
    gaps = np.diff(sorted([*shares, 1.0]))
    assert shares[0] == 0
    assert max(shares) < 1
    assert gaps.min() > 0.1
    second = Stagger(4, actor_id=1).shares
    np.testing.assert_allclose(np.diff(second), 1 / 4)
    assert 0 < second[0] < 1 / 4


@pytest.mark.parametrize(
    ("over", "lengths"),
    [
        ([True, False, True], [4, 4, 4]),  # one of them goes on
        ([True, True, True], [4, 3, 4]),  # they did not begin together
    ],
)
def test_episodes_of_different_lengths_are_left_alone(over: list[bool], lengths: list[int]) -> None:
    stagger = Stagger(3, actor_id=0)
    not_over = np.zeros(3, bool)
    assert not stagger.early_ends(not_over, np.full(3, 2)).any()
    assert not stagger.early_ends(np.array(over), np.array(lengths)).any()
    for steps in range(1, 10):
        assert not stagger.early_ends(not_over, np.full(3, steps)).any()


def test_an_episode_is_ended_early_once() -> None:
    """Not the third one, where the second has ended by itself before its limit."""
    stagger = Stagger(2, actor_id=0)
    none = np.zeros(2, bool)
    assert not stagger.early_ends(np.ones(2, bool), np.full(2, 10)).any()
    assert stagger.limits.tolist() == [0, 5]
    assert not stagger.early_ends(np.array([False, True]), np.full(2, 4)).any()
    for steps in range(1, 10):
        assert not stagger.early_ends(none, np.full(2, steps)).any()


def test_a_step_that_begins_and_ends_an_episode_decides_nothing() -> None:
    """As where a life is lost while FIRE is pressed."""
    stagger = Stagger(2, actor_id=0)
    assert not stagger.early_ends(np.ones(2, bool), np.zeros(2, np.int64)).any()
    assert not stagger.early_ends(np.ones(2, bool), np.full(2, 10)).any()
    assert stagger.limits.tolist() == [0, 5]


def make_actor(envs: VectorEnv, seed: int = 1, stagger: bool = True) -> Actor:
    agent: Any = CountingAgent()
    return Actor(envs, agent, actor_id=0, seed=seed, stagger=stagger)


def test_an_early_end_is_a_time_limit() -> None:
    """The value after it counts, memory begins anew, and the step that begins the next episode is in no loss."""
    unroll = make_actor(EqualCounting(ROWS)).unroll(30)
    no_wrong_state(unroll)
    assert {episode.steps for episode in unroll.episodes} == {5}
    trajectory = unroll.trajectory
    begins = trajectory.reset[:, 1:]
    assert begins.sum(dim=1).tolist() == [5] * ROWS
    # The first episode of every row terminates, so the second, of which some are ended early, does not.
    ends = trajectory.discount[:, :-1][begins]
    assert ends.sum() == 8, "the second and the fourth end of each row"


def episodes_of(envs: VectorEnv, stagger: bool) -> list[Any]:
    return make_actor(envs, stagger=stagger).unroll(60).episodes


@pytest.mark.parametrize("rows", [3, 6])
def test_a_task_of_random_lengths_is_played_as_without(rows: int) -> None:
    assert episodes_of(Counting(rows), stagger=True) == episodes_of(Counting(rows), stagger=False)


def test_an_actor_resumes_exactly_within_a_second_episode() -> None:
    actor = make_actor(EqualCounting(ROWS))
    actor.unroll(7)
    again = make_actor(EqualCounting(ROWS), seed=2)
    again.load_state_dict(actor.state_dict())
    expected = actor.unroll(20)
    resumed = again.unroll(20)
    assert resumed.episodes == expected.episodes
    for left, right in zip(leaves(resumed.trajectory), leaves(expected.trajectory), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)
