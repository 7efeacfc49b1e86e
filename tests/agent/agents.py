"""Small agents, inputs and trajectories for the tests of encoders, agents and trajectories."""

from typing import Any

import torch
from torch import Tensor

from agent import Agent, AgentConfig, Observation, Trajectory
from agent.core import (
    CompressiveTransformerConfig,
    LSTMConfig,
    MemorylessConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
)
from agent.teaching import TaughtAgent

IMAGE = (12, 16, 3)
ACTIONS = 5
VOCABULARY = 11
WORDS = 6
"""Most words of an instruction."""
CORES: dict[str, Any] = {
    "compressive": CompressiveTransformerConfig(16, 2, 2, 16, segment_size=4, memory_size=4, compressed_size=4),
    "transformer-xl": TransformerXLConfig(16, 2, 2, 16, segment_size=4, memory_size=4, norm="pre", gate="gru"),
    "routing": RoutingTransformerConfig(16, 2, 2, 16, segment_size=4, memory_size=4, window=4, clusters=3, groups=2),
    "lstm": LSTMConfig(16),
    "memoryless": MemorylessConfig(16, 1, 16),
}


def make_agent(core: Any = CORES["compressive"], instruction: bool = False, shape: Any = IMAGE, **fields: Any) -> Agent:
    """A small agent in evaluation mode; all with equal arguments are equal."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=core, instruction=instruction, **fields)
    vocabulary = VOCABULARY if instruction else 0
    return Agent(config, shape, ACTIONS, vocabulary).eval()


def make_taught(core: Any = CORES["compressive"], **fields: Any) -> TaughtAgent:
    """An agent that differs from its teacher."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=core, **fields)
    agent = TaughtAgent(config, (IMAGE, IMAGE), ACTIONS).eval()
    with torch.no_grad():  # new policies are all nearly uniform
        agent.teacher.policy.weight.mul_(50)
    return agent


def random_words(*shape: int, seed: int = 0) -> Tensor:
    """Instructions of 0 to WORDS words."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, VOCABULARY, (*shape, WORDS), generator=generator)
    length = torch.randint(0, WORDS + 1, (*shape, 1), generator=generator)
    return words.masked_fill(torch.arange(WORDS) >= length, 0)


def agent_inputs(rows: int, steps: int, seed: int = 0, instruction: bool = False) -> dict[str, Any]:
    """Random arguments of an agent, without the state."""
    generator = torch.Generator().manual_seed(seed)
    reset = torch.rand(rows, steps, generator=generator) < 0.1
    observation: Any = torch.randint(0, 256, (rows, steps, *IMAGE), generator=generator, dtype=torch.uint8)
    if instruction:
        observation = Observation(observation, random_words(rows, steps, seed=seed))
    last_action = torch.randint(0, ACTIONS, (rows, steps), generator=generator)
    return {
        "observation": observation,
        "last_action": last_action.masked_fill(reset, -1),
        "last_reward": torch.randn(rows, steps, generator=generator),
        "reset": reset,
    }


def make_trajectory(
    rows: int, steps: int, seed: int = 0, core: Any = CORES["compressive"], instruction: bool = False
) -> Trajectory:
    """Random steps for agents of `make_agent`; the version of all rows is the seed."""
    inputs = agent_inputs(rows, steps + 1, seed, instruction)
    generator = torch.Generator().manual_seed(seed)
    return Trajectory(
        observation=inputs["observation"],
        last_action=inputs["last_action"],
        reward=inputs["last_reward"],
        discount=torch.ones(rows, steps + 1),
        reset=inputs["reset"],
        action=torch.randint(0, ACTIONS, (rows, steps), generator=generator),
        policy_parameters=torch.randn(rows, steps, ACTIONS, generator=generator),
        core_state=make_agent(core, instruction).initial_state(rows),
        actor_id=torch.arange(rows),
        version=torch.full((rows,), seed),
    )
