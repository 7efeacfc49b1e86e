"""The agent: one path for acting and learning, its inputs, heads and auxiliary losses."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from agent import Agent, AgentConfig, Observation
from agent.core import leaves, map_state
from agent.encoders import INSTRUCTION_SIZE
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent.agents import (
    ACTIONS,
    CORES,
    IMAGE,
    VOCABULARY,
    agent_inputs,
    make_agent,
    make_trajectory,
    random_words,
)


@pytest.mark.parametrize("instruction", [False, True])
@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_acting_step_by_step_equals_the_unroll(core, instruction) -> None:
    agent, inputs = make_agent(core, instruction), agent_inputs(2, 18, instruction=instruction)
    with torch.no_grad():
        whole = agent(**inputs, state=agent.initial_state(2))
        state, logits, values = agent.core.with_cache(agent.initial_state(2)), [], []
        for t in range(18):
            step = {name: map_state(lambda leaf, t=t: leaf[:, t : t + 1], value) for name, value in inputs.items()}
            output = agent(**step, state=state)
            state = output.state
            logits.append(output.policy_logits)
            values.append(output.value)
    assert whole.policy_logits.shape == (2, 18, ACTIONS)
    assert whole.value.shape == (2, 18)
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.policy_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(values, dim=1), whole.value, rtol=0, atol=1e-5)
    for actual, expected in zip(leaves(agent.core.without_cache(state)), leaves(whole.state), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def core_inputs(agent: Agent, **changes: Any) -> Tensor:
    """The inputs of the core for one row and three steps."""
    received = []
    handle = agent.core.register_forward_pre_hook(lambda _, arguments: received.append(arguments[0]))
    with torch.no_grad():
        agent(**{**agent_inputs(1, 3), **changes}, state=agent.initial_state(1))
    handle.remove()
    return received[0]


def test_no_last_action_is_a_vector_of_zeros() -> None:
    agent = make_agent()
    columns = agent.joint.weight.detach()[:, 16 : 16 + ACTIONS].T
    none = core_inputs(agent, last_action=torch.full((1, 3), -1))
    for action in range(ACTIONS):
        some = core_inputs(agent, last_action=torch.full((1, 3), action))
        torch.testing.assert_close(some - none, columns[action].expand(1, 3, -1), rtol=0, atol=1e-6)


def test_rewards_are_clipped() -> None:
    agent = make_agent()
    clipped = core_inputs(agent, last_reward=torch.tensor([[1.0, -1.0, 0.5]]))
    assert torch.equal(core_inputs(agent, last_reward=torch.tensor([[10.0, -3.0, 0.5]])), clipped)
    assert not torch.equal(core_inputs(agent, last_reward=torch.tensor([[0.9, -1.0, 0.5]])), clipped)


def test_first_policy_is_nearly_uniform_and_first_value_nearly_zero() -> None:
    for core in CORES.values():
        agent = make_agent(core)
        output = agent(**agent_inputs(4, 8), state=agent.initial_state(4))
        assert output.policy_logits.abs().max() < 0.3
        assert output.value.abs().max() < 0.3


def test_attention_and_compression_parameters_are_those_of_the_core() -> None:
    agent = make_agent()
    output = agent(**agent_inputs(2, 9), state=agent.initial_state(2), return_attention=True)
    assert [weights.shape for weights in output.attention] == [(2, 2, 9, 12)] * 2
    assert len(agent.compression_parameters()) == 4


def test_reconstruction_trains_neither_heads_nor_compression() -> None:
    agent = make_agent(reconstruction_cost=1.0)
    output = agent(**agent_inputs(2, 13), state=agent.initial_state(2))
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1", "reconstruction"}
    output.losses["reconstruction"].value.backward()
    compression = {id(parameter) for parameter in agent.compression_parameters()}
    for name, parameter in agent.named_parameters():
        trained = parameter.grad is not None and bool(parameter.grad.any())
        apart = id(parameter) in compression or name.startswith(("policy.", "value."))
        assert trained != apart, name


def test_the_reconstruction_cost_is_a_factor() -> None:
    agents = [make_agent(CORES["lstm"], reconstruction_cost=cost) for cost in (1.0, 2.0)]
    one, two = (agent(**agent_inputs(2, 5), state=agent.initial_state(2)).losses["reconstruction"] for agent in agents)
    torch.testing.assert_close(2 * one.value, two.value)


def test_no_reconstruction_while_acting_of_vectors_or_by_default() -> None:
    inputs, agent = agent_inputs(2, 5), make_agent(CORES["lstm"], reconstruction_cost=1.0)
    with torch.no_grad():
        assert agent(**inputs, state=agent.initial_state(2)).losses == {}
    agent = make_agent(CORES["lstm"])
    assert agent(**inputs, state=agent.initial_state(2)).losses == {}
    assert not any("reconstruction" in name for name in agent.state_dict())
    agent = make_agent(CORES["lstm"], shape=(5,), reconstruction_cost=1.0)
    assert agent(**{**inputs, "observation": torch.randn(2, 5, 5)}, state=agent.initial_state(2)).losses == {}


def test_instructions_matter_and_are_trained() -> None:
    agent, trajectory = make_agent(instruction=True), make_trajectory(2, 8, instruction=True)
    arguments = trajectory.last_action, trajectory.reward, trajectory.reset, trajectory.core_state
    image = trajectory.observation.image
    one, other = (agent(Observation(image, random_words(2, 9, seed=seed)), *arguments).value for seed in (0, 1))
    assert (one != other).any()
    before = {name: parameter.clone() for name, parameter in agent.instruction.named_parameters()}
    Learner(agent, LearnerConfig(device="cpu"), 1000).update(trajectory)
    assert all((parameter != before[name]).any() for name, parameter in agent.instruction.named_parameters())


def test_instructions_only_add_an_encoder() -> None:
    with_words, without = make_agent(instruction=True), make_agent()
    names = {name for name, _ in with_words.named_parameters()} - {name for name, _ in without.named_parameters()}
    assert names
    assert all(name.startswith("instruction.") for name in names)
    assert AgentConfig().instruction is False
    assert with_words.joint.in_features - without.joint.in_features == INSTRUCTION_SIZE


@pytest.mark.parametrize(
    ("instruction", "vocabulary", "message"),
    [
        (True, 0, "instruction: expected False in an environment without instructions, got True"),
        (False, VOCABULARY, "instruction: expected True in an environment with instructions, got False"),
    ],
)
def test_agents_that_do_not_fit_the_environment(instruction, vocabulary, message) -> None:
    with pytest.raises(ValueError, match=message):
        Agent(AgentConfig(torso="small", core=CORES["lstm"], instruction=instruction), IMAGE, ACTIONS, vocabulary)


@pytest.mark.parametrize("name", ["observation", "last_action", "last_reward"])
def test_arguments_that_do_not_agree_are_named(name) -> None:
    agent, inputs = make_agent(CORES["memoryless"]), agent_inputs(2, 3)
    inputs[name] = inputs[name].transpose(0, 1)
    with pytest.raises(ValueError, match=rf"{name}: expected .*\[2, 3\], got \[3, 2"):
        agent(**inputs, state=agent.initial_state(2))
    with pytest.raises(ValueError, match=re.escape("reset: expected [B, T], got [2]")):
        agent(**{**inputs, "reset": inputs["reset"][:, 0]}, state=agent.initial_state(2))


def test_observations_that_do_not_fit_the_agent_are_named() -> None:
    images, instructions = agent_inputs(2, 7), agent_inputs(2, 7, instruction=True)
    with pytest.raises(ValueError, match="observation: expected an Observation with instructions, got Tensor"):
        make_agent(instruction=True)(**images, state=None)
    with pytest.raises(ValueError, match="observation: expected images without instructions, got Observation"):
        make_agent()(**instructions, state=None)


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_impossible_costs_are_named(cost) -> None:
    with pytest.raises(ValueError, match=re.escape(f"reconstruction_cost: expected 0 or more, got {cost}")):
        AgentConfig(reconstruction_cost=cost)
