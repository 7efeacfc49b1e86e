"""What every statistic that moves beside the weights keeps: PopArt's, and the moments of observations."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from agent import Agent, Trajectory
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.learner import Learner
from tests.capture import Capturable
from tests.learner.test_group import shard, together


def same(first: Learner, second: Learner, **tolerance: float) -> None:
    """Their weights are equal: bit by bit, unless there is a tolerance."""
    torch.testing.assert_close(first.weights(), second.weights(), **(tolerance or {"rtol": 0, "atol": 0}))


def check_shared_batches(make_agent: Callable[[], Agent], config: LearnerConfig, batches: Sequence[Trajectory]) -> None:
    """Two learners that share batches have the statistics of one that has the whole of them."""
    alone = Learner(make_agent(), config, 1000)
    for batch in batches:
        alone.update(batch)

    replicas = [make_agent(), make_agent()]

    def learn(comm: Any, rank: int) -> Learner:
        learner = Learner(replicas[rank], config, 1000, comm)
        for batch in batches:
            learner.update(shard(batch, rank))
        return learner

    first, second = together(learn)
    same(first, second)
    same(first, alone, rtol=1e-9, atol=1e-9)


def check_skipped_updates(
    make_agent: Callable[[], Agent], config: LearnerConfig, bad: Trajectory, good: Sequence[Trajectory]
) -> None:
    """Nothing waits for the device, and updates that are not finite change nothing; `good` are three batches."""
    learner = Learner(make_agent(), config, 1000, unread=True)
    twin = Learner(make_agent(), config, 1000, unread=True)
    first, second, third = good

    # Unread, the two good ones are made.
    with Capturable() as mode:
        for batch in (bad, first, bad, second):
            learner.update(batch, read=False)
    assert mode.forbidden == {}
    for batch in (first, second):
        twin.update(batch)
    with pytest.raises(NotFinite):
        learner.settle()
    same(learner, twin)

    # Read, it is the same.
    with pytest.raises(NotFinite):
        learner.update(bad)
    same(learner, twin)
    assert learner.update(third) == twin.update(third)
    same(learner, twin)
