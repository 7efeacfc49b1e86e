"""Updates of agents that standardize their observations: what acts is what learns, alone and together."""

import math
from typing import Any

import pytest
import torch

from agent import Agent, AgentConfig, Trajectory
from agent.core import LSTMConfig, map_state
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.learner import Learner
from tests.agent import agents
from tests.capture import Capturable
from tests.learner.test_group import shard, together

CORE, FEATURES = LSTMConfig(16), 3
CONFIG = LearnerConfig(device="cpu", learning_rate=0.01)


def make_agent() -> Agent:
    torch.manual_seed(0)
    config = AgentConfig(torso_size=16, core=CORE, standardize=True, value_torso=True)
    return Agent(config, (FEATURES,), agents.ACTIONS).double()


def make_batch(seed: int, rows: int = 6) -> Trajectory:
    batch = agents.make_trajectory(rows, 6, seed, CORE)
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.tensor([100.0, 0.01, 1.0]) * (1 + torch.randn(rows, 7, FEATURES, generator=generator))
    return batch._replace(observation=vectors, core_state=map_state(torch.Tensor.double, batch.core_state))


def same(first: Learner, second: Learner, **tolerance: float) -> None:
    torch.testing.assert_close(first.weights(), second.weights(), **(tolerance or {"rtol": 0, "atol": 0}))


def test_actors_and_learner_standardize_alike() -> None:
    """Policies that acted with the newest weights have importance weights of exactly 1, update after update."""
    learner, actor = Learner(make_agent(), CONFIG, 1000), make_agent()
    for seed in range(4):
        batch = make_batch(seed)
        actor.load_state_dict(learner.weights())
        with torch.no_grad():
            output = actor(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
        batch = batch._replace(policy_parameters=output.policy_parameters[:, :-1].float())
        metrics = learner.update(batch)
        assert metrics["importance/mean_rho"] == pytest.approx(1, abs=1e-6)
    assert int(learner.agent.standardization.batches) == 4


def test_learners_that_share_a_batch_have_the_moments_of_the_whole() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    alone, replicas = Learner(make_agent(), CONFIG, 1000), [make_agent(), make_agent()]
    for batch in batches:
        alone.update(batch)

    def learn(comm: Any, rank: int) -> Learner:
        learner = Learner(replicas[rank], CONFIG, 1000, comm)
        for batch in batches:
            learner.update(shard(batch, rank))
        return learner

    first, second = together(learn)
    same(first, second)
    same(first, alone, rtol=1e-9, atol=1e-9)


def test_nothing_waits_for_the_device_and_skipped_updates_change_nothing() -> None:
    learner, twin = (Learner(make_agent(), CONFIG, 1000, fused=True) for _ in range(2))
    bad = make_batch(1)
    bad.observation[0, 3] = math.nan
    first, second = make_batch(0), make_batch(2)
    with Capturable() as mode:
        for batch in (bad, first, bad, second):
            learner.update(batch, read=False)
    assert mode.forbidden == {}
    for batch in (first, second):
        twin.update(batch)
    with pytest.raises(NotFinite):
        learner.settle()
    same(learner, twin)
    with pytest.raises(NotFinite):
        learner.update(bad)
    same(learner, twin)
