"""Attention by kind of memory, on any device."""

import pytest
import torch

from agent import Agent, AgentConfig, Trajectory
from agent.core import CompressiveTransformerConfig, LSTMConfig
from learner.diagnostics import attention_mass

SHAPE, ACTIONS = (12, 16, 3), 5
CORE = CompressiveTransformerConfig(16, 2, 2, 16, segment_size=4, memory_size=4, compressed_size=4)


def agent_and_trajectory(core=CORE, steps: int = 24) -> tuple[Agent, Trajectory]:
    torch.manual_seed(0)
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=core), SHAPE, ACTIONS)
    return agent, Trajectory(
        observation=torch.randint(0, 256, (6, steps + 1, *SHAPE), dtype=torch.uint8),
        last_action=torch.randint(ACTIONS, (6, steps + 1)),
        reward=torch.randn(6, steps + 1),
        discount=torch.ones(6, steps + 1),
        reset=torch.zeros(6, steps + 1, dtype=torch.bool),
        action=torch.randint(ACTIONS, (6, steps)),
        policy_logits=torch.randn(6, steps, ACTIONS),
        core_state=agent.initial_state(6),
        actor_id=torch.arange(6),
        version=torch.zeros(6, dtype=torch.int64),
    )


def test_shares_sum_to_1_and_follow_the_resets() -> None:
    agent, trajectory = agent_and_trajectory()
    shares = attention_mass(agent, trajectory)
    assert shares.keys() == {"attention/compressed", "attention/memory", "attention/segment"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert min(shares.values()) > 0
    fresh = attention_mass(agent, trajectory._replace(reset=torch.ones_like(trajectory.reset)))
    assert fresh["attention/segment"] == pytest.approx(1, abs=1e-6), "each step remembers only itself"


def test_only_the_first_rows_count() -> None:
    agent, trajectory = agent_and_trajectory()
    reset = trajectory.reset.clone()
    reset[4:] = True
    assert attention_mass(agent, trajectory._replace(reset=reset)) == attention_mass(agent, trajectory)


def test_cores_without_attention_return_nothing() -> None:
    assert attention_mass(*agent_and_trajectory(LSTMConfig(16))) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_agent_on_a_gpu_takes_trajectories_from_the_cpu() -> None:
    agent, trajectory = agent_and_trajectory()
    expected = attention_mass(agent, trajectory)
    assert attention_mass(agent.to("cuda"), trajectory) == pytest.approx(expected, abs=1e-4)
