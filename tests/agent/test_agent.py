"""The agent: one path for acting and learning, its inputs, heads and auxiliary losses."""

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
    rows, steps = 2, 18
    agent = make_agent(core, instruction)
    inputs = agent_inputs(rows, steps, instruction=instruction)
    with torch.no_grad():
        whole = agent(**inputs, state=agent.initial_state(rows))
        state = agent.core.with_cache(agent.initial_state(rows))
        logits = []
        values = []
        for t in range(steps):
            step = {name: map_state(lambda leaf, t=t: leaf[:, t : t + 1], value) for name, value in inputs.items()}
            output = agent(**step, state=state)
            state = output.state
            logits.append(output.policy_parameters)
            values.append(output.value)
    assert whole.policy_parameters.shape == (rows, steps, ACTIONS)
    assert whole.value.shape == (rows, steps)
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


def test_no_last_action_is_zeros() -> None:
    """An action adds its column of the weight to the core's inputs. No action adds none."""
    agent = make_agent()
    none = core_inputs(agent, last_action=torch.full((1, 3), -1))
    columns = agent.joint.weight.detach()[:, 16 : 16 + ACTIONS].T  # after the 16 features of the torso
    for action, column in enumerate(columns):
        some = core_inputs(agent, last_action=torch.full((1, 3), action))
        torch.testing.assert_close(some - none, column.expand(1, 3, -1), rtol=0, atol=1e-6)


def test_last_rewards_are_clipped() -> None:
    agent = make_agent()
    large = core_inputs(agent, last_reward=torch.tensor([[10.0, -3.0, 0.5]]))
    clipped = core_inputs(agent, last_reward=torch.tensor([[1.0, -1.0, 0.5]]))
    other = core_inputs(agent, last_reward=torch.tensor([[0.9, -1.0, 0.5]]))
    assert torch.equal(large, clipped)
    assert not torch.equal(large, other)


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_first_policy_is_nearly_uniform_and_first_value_nearly_zero(core: Any) -> None:
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


@pytest.mark.parametrize("name", ["reconstruction", "prediction"])
def test_an_auxiliary_loss_is_multiplied_by_its_cost(name: str) -> None:
    def loss(cost: float) -> Tensor:
        agent = make_agent(CORES["lstm"], **{f"{name}_cost": cost})
        return agent(**agent_inputs(2, 5), state=agent.initial_state(2)).losses[name].value

    torch.testing.assert_close(2 * loss(1.0), loss(2.0))


def test_agents_that_act_or_have_no_reconstruction_have_no_loss() -> None:
    agent = make_agent(CORES["lstm"], reconstruction_cost=1.0)
    with torch.no_grad():
        assert agent(**agent_inputs(2, 5), state=agent.initial_state(2)).losses == {}
    without = make_agent(CORES["lstm"])
    assert without(**agent_inputs(2, 5), state=without.initial_state(2)).losses == {}
    assert not any("reconstruction" in name for name in without.state_dict())


@pytest.mark.parametrize("standardize", [False, True])
def test_vectors_are_reconstructed_as_the_torso_sees_them(standardize: bool) -> None:
    """Squashed, and standardized if the torso's are: elsewhere a constant offset would be most of the loss."""
    agent = make_agent(CORES["lstm"], shape=(7,), reconstruction_cost=0.5, standardize=standardize)
    vectors = 100 + 3 * torch.randn(2, 5, 7)
    seen = vectors
    if standardize:
        agent.standardization.mean.fill_(98.0)
        agent.standardization.second_moment.fill_(98.0**2 + 4.0**2)
        seen = (vectors - 98.0) / 4.0
    received = []
    hook = agent.core.register_forward_pre_hook(lambda core, inputs: received.append(inputs[0]))
    inputs = {**agent_inputs(2, 5), "observation": vectors}
    loss = agent(**inputs, state=agent.initial_state(2)).losses["reconstruction"].value
    hook.remove()

    squashed = seen.sign() * torch.log(1 + seen.abs())
    error = agent.reconstruction.decoder(received[0]) - squashed
    torch.testing.assert_close(loss, 0.5 * error.square().sum() / (2 * 5))


def test_instructions_matter_and_are_trained() -> None:
    agent = make_agent(instruction=True)
    trajectory = make_trajectory(2, 8, instruction=True)
    added = agent.state_dict().keys() - make_agent().state_dict().keys()
    assert added
    assert added == {name for name in agent.state_dict() if name.startswith("instruction.")}

    def values(words: Tensor) -> Tensor:
        observation = Observation(trajectory.observation.image, words)
        return agent(
            observation, trajectory.last_action, trajectory.reward, trajectory.reset, trajectory.core_state
        ).value

    assert (values(random_words(2, 9, seed=0)) != values(random_words(2, 9, seed=1))).any()

    before = {name: parameter.clone() for name, parameter in agent.instruction.named_parameters()}
    Learner(agent, LearnerConfig(device="cpu"), 1000).update(trajectory)
    for name, parameter in agent.instruction.named_parameters():
        assert (parameter != before[name]).any(), name


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("last_action", lambda x: x.T),
        ("last_action", lambda x: x[..., None]),
        ("last_reward", lambda x: x.T),
        ("last_reward", lambda x: x[..., None]),
        ("reset", lambda x: x[:, 0]),
    ],
)
def test_arguments_of_other_shapes_are_named(name: str, change: Any) -> None:
    agent = make_agent(CORES["memoryless"])
    inputs = agent_inputs(2, 3)
    inputs[name] = change(inputs[name])
    with pytest.raises(ValueError, match=f"{name}: expected"):
        agent(**inputs, state=())


def test_observations_must_have_instructions_if_the_agent_reads_any() -> None:
    agent = make_agent(CORES["memoryless"])
    with pytest.raises(ValueError, match="observation: expected images without instructions, got Observation"):
        agent(**agent_inputs(2, 3, instruction=True), state=())
    reading = make_agent(instruction=True)
    with pytest.raises(ValueError, match="observation: expected an Observation with instructions, got Tensor"):
        reading(**agent_inputs(2, 3), state=None)


def test_configs_that_do_not_fit_are_named() -> None:
    reading = AgentConfig(torso="small", core=CORES["lstm"], instruction=True)
    with pytest.raises(ValueError, match=r"instruction: expected False in an .*, got True"):
        Agent(reading, IMAGE, ACTIONS, vocabulary=0)
    not_reading = AgentConfig(torso="small", core=CORES["lstm"], instruction=False)
    with pytest.raises(ValueError, match=r"instruction: expected True .*, got False"):
        Agent(not_reading, IMAGE, ACTIONS, VOCABULARY)
    with pytest.raises(ValueError, match=r"reconstruction_cost: expected 0 or more, got -1\.0"):
        AgentConfig(reconstruction_cost=-1.0)


def test_heads_see_the_cores_inputs_beside_its_features() -> None:
    """With `skip` each head's output is the sum of its output for the features and that for the inputs."""
    plain = make_agent(CORES["lstm"])
    skipping = make_agent(CORES["lstm"], skip=True)
    inputs = agent_inputs(2, 3)
    with torch.no_grad():
        before = plain(**inputs, state=plain.initial_state(2))
        after = skipping(**inputs, state=skipping.initial_state(2))
        added_to_policy = after.policy_parameters - before.policy_parameters
        added_to_value = (after.value - before.value)[..., None]
        for head, added in ((plain.policy, added_to_policy), (plain.value, added_to_value)):
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


def test_first_policies_over_numbers_are_those_that_they_name() -> None:
    """Means of 0, and scales of a half, whatever is seen."""
    agent = make_numbers_agent()
    parameters = agent(**numbers_inputs(), state=agent.initial_state(2)).policy_parameters
    mean, log_scale = parameters.split(2, dim=-1)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=0.05)
    torch.testing.assert_close(log_scale.exp(), torch.full_like(mean, 0.5), rtol=0, atol=0.03)


def test_first_values_with_popart_are_equal_in_all_states() -> None:
    """Where rewards are tiny, the noise of first values would be larger than the rewards."""
    torch.manual_seed(0)
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=CORES["lstm"]), IMAGE, ACTIONS, popart_tasks=1)
    value = agent(**agent_inputs(2, 3), state=agent.initial_state(2)).value
    assert not value.any()


def test_agents_have_what_their_configuration_says() -> None:
    """Bounds of actions, the height of reconstructions, and the steps of predictions."""
    clipped = make_numbers_agent(action_bounds="clip")
    squashed = make_numbers_agent(action_bounds="squash")
    action = torch.full((1, 2), 0.5)
    assert clipped.distribution.effect(action).tolist() == [[0.5, 0.5]]
    torch.testing.assert_close(squashed.distribution.effect(action), torch.full((1, 2), 0.5).tanh())
    assert make_agent(reconstruction_cost=1.0, reconstruction_height=4).reconstruction.size == [4, 5]
    assert make_agent(prediction_cost=1.0, prediction_steps=3).prediction.steps == 3


def make_numbers_agent(**fields: Any) -> Agent:
    """An agent whose actions are two numbers with bounds, and which sees three."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=CORES["lstm"], **fields)
    return Agent(config, (3,), (Numbers((True, True)),)).eval()


def numbers_inputs() -> dict[str, Any]:
    """Two rows of four steps."""
    return {
        "observation": torch.randn(2, 4, 3),
        "last_action": torch.zeros(2, 4, 2),
        "last_reward": torch.zeros(2, 4),
        "reset": torch.zeros(2, 4, dtype=torch.bool),
    }
