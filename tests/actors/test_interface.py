"""What agents are told of an environment."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from actors.interface import Interface, read_interface
from agent.policies import Choice, Numbers
from envs.gym import adapt
from envs.processes import batch


class Silent(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces are read."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


CAMERA = spaces.Box(0, 255, (4, 6, 3), np.uint8)


def test_the_interface_is_that_of_the_spaces() -> None:
    """Of the three numbers the second has no bounds."""
    numbers = spaces.Box(np.array([-1, -np.inf, 0]), np.array([1, np.inf, 9]), dtype=np.float64)
    actions = spaces.Tuple([spaces.MultiDiscrete([2, 5]), numbers])
    seen = spaces.Dict({"camera": CAMERA, "speed": spaces.Box(-9, 9, (2,)), "say": spaces.Text(20)})
    read = read_interface(batch(lambda: adapt(Silent(seen, actions)), 2))
    parts = (Choice(2), Choice(5), Numbers((True, False, True)))
    assert read == Interface(((4, 6, 3), (2,)), parts, action_repeat=1, vocabulary=1025)
    observed = "observations [4, 6, 3] and [2], instructions of ids below 1025"
    assert str(read) == f"{observed}, actions of choices of 2, 5 and 3 numbers and 1 frames a step"


def test_one_discrete_action_is_a_number_of_actions() -> None:
    envs = batch(lambda: adapt(Silent(CAMERA, spaces.Discrete(7, start=2))), 1)
    assert read_interface(envs).actions == 7


def test_an_environment_that_says_nothing_of_frames_has_one_a_step() -> None:
    plain = gymnasium.vector.SyncVectorEnv([lambda: Silent(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))])
    plain.metadata = {}
    assert read_interface(plain).action_repeat == 1


@pytest.mark.parametrize("bad", [spaces.Discrete(3), spaces.Box(-1, 1, (2, 2)), spaces.Box(0, 9, (2,), np.int64)])
def test_one_part_that_an_agent_cannot_see_is_enough(bad: Any) -> None:
    good = spaces.Box(-1, 1, (3,))
    for seen in (spaces.Tuple([good, bad]), spaces.Tuple([bad, good]), bad, spaces.Tuple([])):
        one = functools.partial(Silent, seen, spaces.Discrete(2))
        with pytest.raises(ValueError, match=r"^observation space: expected a Box of uint8"):
            read_interface(gymnasium.vector.SyncVectorEnv([one]))
