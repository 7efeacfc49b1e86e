"""Trajectories: checks, the mask of losses, and operations along the batch."""

import re
from typing import Any

import pytest
import torch

from agent import Trajectory
from agent.core import concatenate_states, index_state, leaves
from agent.trajectory import loss_mask, validate
from tests.agent.agents import CORES, make_trajectory


def test_the_last_observation_of_an_episode_has_no_loss() -> None:
    trajectory = make_trajectory(1, 4)._replace(reset=torch.tensor([[True, False, True, False, False]]))
    assert loss_mask(trajectory).tolist() == [[True, False, True, True]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("action", lambda x: x[:, :0], "[B, T >= 1] or [B, T >= 1, K], got [3, 0]"),
        ("action", lambda x: x.int(), "torch.int64 [3, 4], got torch.int32 [3, 4]"),
        ("observation", lambda x: x[:, :-1], "torch.uint8 [3, 5, 12, 16, 3], got torch.uint8 [3, 4, 12, 16, 3]"),
        ("observation", lambda x: x.double(), "torch.float32 [3, 5, 12, 16, 3], got torch.float64 [3, 5, 12, 16, 3]"),
        ("reset", lambda x: x.float(), "torch.bool [3, 5], got torch.float32 [3, 5]"),
        ("reward", lambda x: x.T, "torch.float32 [3, 5], got torch.float32 [5, 3]"),
        ("discount", lambda x: x.bool(), "torch.float32 [3, 5], got torch.bool [3, 5]"),
        ("policy_parameters", lambda x: x[..., 0], "torch.float32 [3, 4, 4], got torch.float32 [3, 4]"),
        ("core_state", lambda x: index_state(x, [0]), "torch.float32 [3, 4, 16], got torch.float32 [1, 4, 16]"),
        ("actor_id", lambda x: x[:, None], "torch.int64 [3], got torch.int64 [3, 1]"),
    ],
)
def test_bad_trajectories_are_named(name: str, change: Any, message: str) -> None:
    good = make_trajectory(3, 4)
    bad = good._replace(**{name: change(getattr(good, name))})
    with pytest.raises(ValueError, match=re.escape(f"{name}: expected {message}")):
        validate(bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], "torch.int64 [3, 5, 6], got torch.int64 [3, 4, 6]"),
        (lambda x: x.int(), "torch.int64 [3, 5, 6], got torch.int32 [3, 5, 6]"),
    ],
)
def test_bad_instructions_are_named(change: Any, message: str) -> None:
    good = make_trajectory(3, 4, instruction=True)
    observation = good.observation._replace(instruction=change(good.observation.instruction))
    with pytest.raises(ValueError, match=re.escape(f"instruction: expected {message}")):
        validate(good._replace(observation=observation))


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
@pytest.mark.parametrize("instruction", [False, True])
def test_trajectories_join_and_split_along_the_batch(core: Any, instruction: bool) -> None:
    first = make_trajectory(2, 4, seed=0, core=core, instruction=instruction)
    second = make_trajectory(1, 4, seed=1, core=core, instruction=instruction)
    joined = concatenate_states([first, second])
    assert isinstance(joined, Trajectory)
    assert validate(joined) == (3, 4)
    assert joined.version.tolist() == [0, 0, 1]
    for actual, expected in zip(leaves(index_state(joined, slice(2, 3))), leaves(second), strict=True):
        assert torch.equal(actual, expected)
    longer = make_trajectory(1, 8, core=core, instruction=instruction)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        concatenate_states([first, longer])
