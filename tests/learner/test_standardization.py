"""Updates of agents that standardize their observations: what acts is what learns, alone and together."""

import math

import pytest
import torch

from agent import Agent, AgentConfig, Trajectory
from agent.core import LSTMConfig, map_state
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent import agents
from tests.learner.promises import check_shared_batches, check_skipped_updates

CORE = LSTMConfig(16)
FEATURES = 3
CONFIG = LearnerConfig(device="cpu", learning_rate=0.01)


def make_agent() -> Agent:
    torch.manual_seed(0)
    config = AgentConfig(torso_size=16, core=CORE, standardize=True, value_torso=True)
    return Agent(config, (FEATURES,), agents.ACTIONS).double()


def make_batch(seed: int, rows: int = 6) -> Trajectory:
    """Observations are vectors whose elements have very different sizes."""
    batch = agents.make_trajectory(rows, 6, seed, CORE)
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([100.0, 0.01, 1.0])
    vectors = sizes * (1 + torch.randn(rows, 7, FEATURES, generator=generator))
    return batch._replace(observation=vectors, core_state=map_state(torch.Tensor.double, batch.core_state))


def test_actors_and_learner_standardize_alike() -> None:
    """Policies that acted with the newest weights have importance weights of exactly 1, update after update."""
    learner = Learner(make_agent(), CONFIG, 1000)
    actor = make_agent()
    for seed in range(4):
        batch = make_batch(seed)
        actor.load_state_dict(learner.weights())
        with torch.no_grad():
            output = actor(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
        batch = batch._replace(policy_parameters=output.policy_parameters[:, :-1].float())
        metrics = learner.update(batch)
        assert metrics["importance/mean_rho"] == pytest.approx(1, abs=1e-6)
    assert int(learner.agent.standardization.batches) == 4


def test_the_last_observation_counts_with_the_next_trajectory_alone() -> None:
    learner = Learner(make_agent(), CONFIG, 1000)
    batch = make_batch(0)
    learner.update(batch)
    seen = batch.observation[:, :-1].flatten(0, 1).double()
    torch.testing.assert_close(learner.agent.standardization.mean, seen.mean(dim=0))
    torch.testing.assert_close(learner.agent.standardization.deviation, seen.std(dim=0, correction=0))


def test_learners_that_share_a_batch_have_the_moments_of_the_whole() -> None:
    check_shared_batches(make_agent, CONFIG, [make_batch(seed) for seed in range(3)])


def test_nothing_waits_for_the_device_and_skipped_updates_change_nothing() -> None:
    bad = make_batch(1)
    bad.observation[0, 3] = math.nan
    check_skipped_updates(make_agent, CONFIG, bad, [make_batch(0), make_batch(2), make_batch(3)])
