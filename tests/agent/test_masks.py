"""Agents of environments that say which actions are possible."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import kl_divergence

from agent import Agent, AgentConfig, AgentOutput
from agent.acting_step import ActingStep
from agent.policies import Choice, Numbers, make_policy
from tests.agent.agents import ACTIONS, CORES, IMAGE

ROWS = 6
STEPS = 9
FEATURES = 9
MASK_AT = 2
MASK = slice(MASK_AT, MASK_AT + ACTIONS)


def make(mask_at: int | None, shape: Any = (FEATURES,), core: Any = CORES["compressive"]) -> Agent:
    """An agent whose policy is not nearly uniform, and that has seen observations of another scale."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=core, standardize=True)
    agent = Agent(config, shape, ACTIONS, mask_at=mask_at).eval()
    assert agent.standardization is not None
    with torch.no_grad():
        agent.policy.weight.mul_(100)
        agent.standardization.mean.fill_(0.7)
        agent.standardization.second_moment.fill_(40.0)
    return agent


def inputs(shape: Any = (FEATURES,)) -> dict[str, Any]:
    """Arguments of an agent; each mask has one action or more, but the first step's, which has none."""
    generator = torch.Generator().manual_seed(1)
    vector = torch.randn(ROWS, STEPS, FEATURES, generator=generator)
    mask = torch.rand(ROWS, STEPS, ACTIONS, generator=generator) < 0.5
    mask[..., 3] |= ~mask.any(dim=-1)
    mask[:, 0] = False
    vector[..., MASK] = mask.float()
    observation: Any = vector
    if shape != (FEATURES,):
        images = torch.randint(0, 256, (ROWS, STEPS, *IMAGE), dtype=torch.uint8, generator=generator)
        observation = (images, vector)
    return {
        "observation": observation,
        "last_action": torch.randint(0, ACTIONS, (ROWS, STEPS), generator=generator),
        "last_reward": torch.randn(ROWS, STEPS, generator=generator),
        "reset": torch.rand(ROWS, STEPS, generator=generator) < 0.2,
    }


def possible_in(given: dict[str, Any]) -> Tensor:
    """The mask; all actions where it has none."""
    vector = given["observation"]
    if isinstance(vector, tuple):
        _, vector = vector
    mask = vector[..., MASK] > 0.5
    mask[:, 0] = True
    return mask


def outputs(agent: Agent, given: dict[str, Any]) -> AgentOutput:
    """With the first state."""
    output: AgentOutput = agent(**given, state=agent.initial_state(ROWS))
    return output


@pytest.mark.parametrize("shape", [(FEATURES,), (IMAGE, (FEATURES,))])
def test_the_policy_is_that_of_all_actions_among_the_possible(shape: Any) -> None:
    given = inputs(shape)
    possible = possible_in(given)
    masked = outputs(make(MASK_AT, shape), given)
    plain = outputs(make(None, shape), given)
    torch.testing.assert_close(masked.value, plain.value)

    weights = plain.policy_parameters.softmax(dim=-1) * possible
    expected = weights / weights.sum(dim=-1, keepdim=True)
    probabilities = masked.policy_parameters.softmax(dim=-1)
    torch.testing.assert_close(probabilities, expected)
    assert (probabilities[~possible] == 0).all()
    assert masked.policy_parameters.isfinite().all()


def test_functions_of_the_policy_know_only_possible_actions() -> None:
    given = inputs()
    possible = possible_in(given)
    parameters = outputs(make(MASK_AT), given).policy_parameters.detach().requires_grad_()
    policy = make_policy(ACTIONS)
    entropy = policy.entropy(parameters)
    evenness = policy.evenness(parameters)
    total = entropy.sum() + evenness.sum()
    (gradient,) = torch.autograd.grad(total, parameters)
    assert gradient.isfinite().all()
    assert (gradient[~possible] == 0).all()
    for row in range(ROWS):
        for step in range(STEPS):
            own = parameters[row, step][possible[row, step]].detach()
            alone = TorchCategorical(logits=own)
            torch.testing.assert_close(entropy[row, step], alone.entropy())
            uniform = TorchCategorical(logits=torch.zeros_like(own))
            torch.testing.assert_close(evenness[row, step], -kl_divergence(uniform, alone), atol=1e-5, rtol=1e-5)


def test_impossible_actions_are_never_drawn() -> None:
    given = inputs()
    possible = possible_in(given)
    parameters = outputs(make(MASK_AT), given).policy_parameters
    policy = make_policy(ACTIONS)
    drawn = [policy.mode(parameters)]
    for seed in range(50):
        uniform = torch.rand(*parameters.shape, generator=torch.Generator().manual_seed(seed))
        drawn.append(policy.sample(parameters, uniform))
    # The noise at its limits, too: the greatest for impossible actions, the least for the others.
    extreme = torch.where(possible, 0.0, 1 - 2**-24)
    drawn.append(policy.sample(parameters, extreme))
    for actions in drawn:
        assert possible.gather(-1, actions[..., None]).all()
        assert policy.log_prob(parameters, actions).isfinite().all()


SIZES = (2, 300, 3, 5)  # of which the second is in a table of its own
CHOICES = tuple(Choice(size) for size in SIZES)


def test_a_mask_of_several_choices() -> None:
    """Each choice is what it is alone, with its own part of the mask. The third has none at the first step."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(STEPS, sum(SIZES), generator=generator) < 0.5
    masks = mask.split(SIZES, dim=-1)
    for part in masks:
        part[:, 0] |= ~part.any(dim=-1)
    masks[2][0] = False
    vector = torch.randn(1, STEPS, sum(SIZES) + 3, generator=generator)
    vector[0, :, 2:-1] = mask.float()
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=CORES["lstm"])
    agent = Agent(config, (sum(SIZES) + 3,), CHOICES, mask_at=2).eval()
    agent.policy.weight.data.mul_(100)
    given = {
        "observation": vector,
        "last_action": torch.zeros(1, STEPS, len(SIZES)),
        "last_reward": torch.zeros(1, STEPS),
        "reset": torch.zeros(1, STEPS, dtype=torch.bool),
    }
    parameters = agent(**given, state=agent.initial_state(1)).policy_parameters[0]
    assert parameters.isfinite().all()
    policy = agent.distribution
    uniform = torch.rand(1000, 1, policy.num_uniform, generator=generator)
    drawn = policy.sample(parameters.expand(1000, *parameters.shape), uniform)  # [1000, T, K]
    drawn[0] = policy.mode(parameters)

    log_probs = policy.log_prob(parameters.expand(1000, *parameters.shape), drawn)
    expected_log_probs = torch.zeros_like(log_probs)
    expected_entropy = torch.zeros(STEPS)
    expected_evenness = torch.zeros(STEPS)
    for column, own_parameters in enumerate(parameters.split(SIZES, dim=-1)):
        own_mask = masks[column].clone()
        own_mask[~own_mask.any(dim=-1)] = True
        assert own_mask.expand(1000, *own_mask.shape).gather(-1, drawn[..., column, None].long()).all()
        for step in range(STEPS):
            alone = TorchCategorical(logits=own_parameters[step].masked_fill(~own_mask[step], -torch.inf))
            expected_log_probs[:, step] += alone.log_prob(drawn[:, step, column])
            possible = own_parameters[step][own_mask[step]]
            among_possible = TorchCategorical(logits=possible)
            expected_entropy[step] += among_possible.entropy()
            uniform_choice = TorchCategorical(logits=torch.zeros_like(possible))
            expected_evenness[step] -= kl_divergence(uniform_choice, among_possible)
    torch.testing.assert_close(log_probs, expected_log_probs, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(policy.entropy(parameters), expected_entropy, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(policy.evenness(parameters), expected_evenness, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", ["compressive", "lstm"])
def test_exported_agents_have_the_mask(name: str) -> None:
    given = inputs()
    agent = make(MASK_AT, core=CORES[name])
    first = {key: value[:, :1] for key, value in given.items()}
    first["observation"] = given["observation"][:, 1:2]
    output = agent(**first, state=agent.initial_state(ROWS))
    step = ActingStep(agent)
    at_step = {key: value[:, 0] for key, value in first.items()}
    at_step["observation"] = (at_step["observation"],)
    parameters, *_ = step(**at_step, state=tuple(step.initial_state(ROWS)))
    torch.testing.assert_close(parameters, output.policy_parameters[:, 0])
    assert (parameters < -1e8).any()


@pytest.mark.parametrize(
    ("shape", "actions", "mask_at", "words"),
    [
        ((FEATURES,), ACTIONS, 5, "expected the first of 5 elements of the last vector, which has 9, got 5"),
        ((FEATURES,), ACTIONS, -1, "which has 9, got -1"),
        (IMAGE, ACTIONS, 0, "which has 0, got 0"),
        (
            (FEATURES,),
            (Choice(3), Choice(2)),
            5,
            "expected the first of 5 elements of the last vector, which has 9, got 5",
        ),
        ((FEATURES,), (Choice(3), Numbers((True,))), 0, "expected actions that are choices, got (Choice(size=3)"),
    ],
)
def test_masks_that_cannot_be(shape: Any, actions: Any, mask_at: int, words: str) -> None:
    with pytest.raises(ValueError, match="mask_at: expected") as raised:
        Agent(AgentConfig(torso="small", core=CORES["lstm"]), shape, actions, mask_at=mask_at)
    assert words in str(raised.value)
