"""What a player counts as an episode."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from actors.actor import Player


class Ending(VectorEnv):
    """One environment whose every step ends an episode, if `ends` says so in turn; the reward is 1."""

    num_envs = 1
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, ends: list[bool]) -> None:
        self.ends = iter(ends)
        self.metadata: dict[str, Any] = {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        over = np.array([next(self.ends)])
        return np.zeros((1, 1), np.float32), np.ones(1), over, np.zeros(1, bool), {}


@pytest.mark.parametrize(
    ("ends", "lengths"),
    [
        ([True, False, True], [1, 1]),
        ([True, True, False, False, True], [1, 2]),
    ],
)
def test_a_step_that_only_begins_an_episode_is_none(ends: list[bool], lengths: list[int]) -> None:
    """Also if that step ends it, as when a life is lost while FIRE is pressed."""
    player = Player(Ending(ends), actor_id=0, task="ending")
    episodes = []
    for _ in ends:
        *_, ended = player.step_envs(np.zeros(1, np.int64))
        episodes += ended
    assert [episode.steps for episode in episodes] == lengths
