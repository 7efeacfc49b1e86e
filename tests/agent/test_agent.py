"""The agent: one path for acting and learning, its inputs, heads and auxiliary losses."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from agent import Agent, AgentConfig, Observation
from agent.core import leaves, map_state
from agent.policies import Numbers
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
def test_acting_step_by_step_equals_the_unroll(core: Any, instruction: bool) -> None:
    agent, inputs = make_agent(core, instruction), agent_inputs(2, 18, instruction=instruction)
    with torch.no_grad():
        whole = agent(**inputs, state=agent.initial_state(2))
        state, logits, values = agent.core.with_cache(agent.initial_state(2)), [], []
        for t in range(18):
            step = {name: map_state(lambda leaf, t=t: leaf[:, t : t + 1], value) for name, value in inputs.items()}
            output = agent(**step, state=state)
            state = output.state
            logits.append(output.policy_parameters)
            values.append(output.value)
    assert whole.policy_parameters.shape == (2, 18, ACTIONS)
    assert whole.value.shape == (2, 18)
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.policy_parameters, rtol=0, atol=1e-5)
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


def test_no_last_action_is_zeros_and_rewards_are_clipped() -> None:
    agent = make_agent()
    none = core_inputs(agent, last_action=torch.full((1, 3), -1))
    for action, column in enumerate(agent.joint.weight.detach()[:, 16 : 16 + ACTIONS].T):
        some = core_inputs(agent, last_action=torch.full((1, 3), action))
        torch.testing.assert_close(some - none, column.expand(1, 3, -1), rtol=0, atol=1e-6)
    rewards = torch.tensor([[[10.0, -3.0, 0.5]], [[1.0, -1.0, 0.5]], [[0.9, -1.0, 0.5]]])
    large, clipped, other = (core_inputs(agent, last_reward=reward) for reward in rewards)
    assert (torch.equal(large, clipped), torch.equal(large, other)) == (True, False)


def test_first_policy_is_nearly_uniform_and_first_value_nearly_zero() -> None:
    for core in CORES.values():
        agent = make_agent(core)
        output = agent(**agent_inputs(4, 8), state=agent.initial_state(4))
        assert output.policy_parameters.abs().max() < 0.3
        assert output.value.abs().max() < 0.3


def test_reconstruction_trains_what_memory_is_made_of() -> None:
    agent = make_agent(reconstruction_cost=1.0)
    output = agent(**agent_inputs(2, 13), state=agent.initial_state(2), return_attention=True)
    assert [weights.shape for weights in output.attention] == [(2, 2, 13, 12)] * 2
    assert len(agent.compression_parameters()) == 4
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1", "reconstruction"}
    output.losses["reconstruction"].value.backward()
    for name, parameter in agent.named_parameters():
        trained = parameter.grad is not None and bool(parameter.grad.any())
        assert trained == name.startswith(("vision.", "joint.", "reconstruction.")), name


def test_the_reconstruction_cost_and_agents_without_reconstruction() -> None:
    inputs, agent = agent_inputs(2, 5), make_agent(CORES["lstm"], reconstruction_cost=1.0)
    agents = [make_agent(CORES["lstm"], reconstruction_cost=cost) for cost in (1.0, 2.0)]
    one, two = (each(**inputs, state=each.initial_state(2)).losses["reconstruction"].value for each in agents)
    torch.testing.assert_close(2 * one, two)
    with torch.no_grad():
        assert agent(**inputs, state=agent.initial_state(2)).losses == {}
    agent = make_agent(CORES["lstm"])
    assert agent(**inputs, state=agent.initial_state(2)).losses == {}
    assert not any("reconstruction" in name for name in agent.state_dict())


def test_vectors_are_reconstructed_as_the_torso_sees_them() -> None:
    agent, vectors = make_agent(CORES["lstm"], shape=(7,), reconstruction_cost=0.5), 3 * torch.randn(2, 5, 7)
    received = []
    hook = agent.core.register_forward_pre_hook(lambda core, inputs: received.append(inputs[0]))
    inputs = {**agent_inputs(2, 5), "observation": vectors}
    loss = agent(**inputs, state=agent.initial_state(2)).losses["reconstruction"].value
    hook.remove()
    error = agent.reconstruction.decoder(received[0]) - vectors.sign() * torch.log(1 + vectors.abs())
    torch.testing.assert_close(loss, 0.5 * error.square().sum() / 10)


def test_instructions_matter_and_are_trained() -> None:
    agent, trajectory = make_agent(instruction=True), make_trajectory(2, 8, instruction=True)
    added = agent.state_dict().keys() - make_agent().state_dict().keys()
    assert added == {name for name in agent.state_dict() if name.startswith("instruction.")} != set()
    arguments = trajectory.last_action, trajectory.reward, trajectory.reset, trajectory.core_state
    image = trajectory.observation.image
    one, other = (agent(Observation(image, random_words(2, 9, seed=seed)), *arguments).value for seed in (0, 1))
    assert (one != other).any()
    before = {name: parameter.clone() for name, parameter in agent.instruction.named_parameters()}
    Learner(agent, LearnerConfig(device="cpu"), 1000).update(trajectory)
    assert all((parameter != before[name]).any() for name, parameter in agent.instruction.named_parameters())


def test_arguments_and_configs_that_do_not_fit_are_named() -> None:
    agent, inputs, words = make_agent(CORES["memoryless"]), agent_inputs(2, 3), make_agent(instruction=True)
    lstm = {"torso": "small", "core": CORES["lstm"]}

    def make(config: AgentConfig, vocabulary: int) -> Agent:
        return Agent(config, IMAGE, ACTIONS, vocabulary)

    wrong = {name: inputs[name].transpose(0, 1) for name in ("last_action", "last_reward")}
    wrong |= {"reset": inputs["reset"][:, 0]}
    both = agent_inputs(2, 3, instruction=True)
    for call, message in [
        *((partial(agent, **inputs | {name: value}, state=()), f"{name}: expected") for name, value in wrong.items()),
        (partial(words, **inputs, state=None), "observation: expected an Observation with instructions, got Tensor"),
        (partial(agent, **both, state=()), "observation: expected images without instructions, got Observation"),
        (partial(make, AgentConfig(instruction=True, **lstm), 0), "instruction: expected False in an .*, got True"),
        (partial(make, AgentConfig(instruction=False, **lstm), VOCABULARY), "instruction: expected True .*, got False"),
        (partial(AgentConfig, reconstruction_cost=-1.0), "reconstruction_cost: expected 0 or more, got -1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_heads_see_the_cores_inputs_beside_its_features() -> None:
    plain, skipping = make_agent(CORES["lstm"]), make_agent(CORES["lstm"], skip=True)
    inputs = agent_inputs(2, 3)
    with torch.no_grad():
        before = plain(**inputs, state=plain.initial_state(2))
        after = skipping(**inputs, state=skipping.initial_state(2))
        for head, added in (
            (plain.policy, after.policy_parameters - before.policy_parameters),
            (plain.value, (after.value - before.value)[..., None]),
        ):
            torch.testing.assert_close(added, before.inputs @ head.weight.T, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", ["independent", "state"])
def test_scales_of_numbers_depend_on_the_state_if_that_is_asked_for(scale: Any) -> None:
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=CORES["lstm"], action_scale=scale)
    agent = Agent(config, IMAGE, (Numbers((True, False)),))
    inputs = {**agent_inputs(2, 3), "last_action": torch.zeros(2, 3, 2)}
    means, scales = agent(**inputs, state=agent.initial_state(2)).policy_parameters.chunk(2, dim=-1)
    assert means.std() > 0
    assert (scales == agent.policy.bias[2:]).all() == (scale == "independent")
