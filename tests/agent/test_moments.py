"""Running moments of observations, and what agents make of them."""

import torch

from agent import Agent, AgentConfig
from agent.core import LSTMConfig
from agent.moments import RATE, Standardization
from tests.agent import agents

PARTS, SIZES = ((2, 3, 1), (4,), (2,)), [4, 2]


def parts_like(rows: int, seed: int) -> tuple[torch.Tensor, ...]:
    """An image and two vectors, whose elements have different means and sizes."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (rows, 5, 2, 3, 1), generator=generator, dtype=torch.uint8)
    first = torch.tensor([1e-3, 1.0, 30.0, 1e4]) * (2 + torch.randn(rows, 5, 4, generator=generator))
    second = torch.tensor([1.0, -1.0]) + 0.1 * torch.randn(rows, 5, 2, generator=generator)
    return image, first, second


def test_moments_are_those_of_all_batches_so_far_and_then_running_ones() -> None:
    """First the moments of all batches, which are of equal size; after 1 / RATE batches exponential means."""
    module = Standardization(SIZES)
    batches = [parts_like(3, seed) for seed in range(4)]
    for batch in batches:
        module.update_statistics(module.sums(batch))
    seen = torch.cat([torch.cat(batch[1:], dim=-1).flatten(0, 1) for batch in batches]).double()
    torch.testing.assert_close(module.mean, seen.mean(dim=0))
    torch.testing.assert_close(module.deviation, seen.std(dim=0, correction=0))

    module.batches.fill_(round(10 / RATE))
    before = module.mean.clone()
    module.update_statistics(module.sums(batches[0]))
    newest = torch.cat(batches[0][1:], dim=-1).flatten(0, 1).double().mean(dim=0)
    torch.testing.assert_close(module.mean, (1 - RATE) * before + RATE * newest)


def test_vectors_are_standardized_and_images_stay() -> None:
    module = Standardization(SIZES)
    parts = parts_like(200, 0)
    for untouched, part in zip(module(parts), parts, strict=True):
        torch.testing.assert_close(untouched, part)  # before the first batch
    module.update_statistics(module.sums(parts))
    image, *vectors = module(parts)
    assert image is parts[0]
    for vector in vectors:
        columns = vector.flatten(0, 1)
        torch.testing.assert_close(columns.mean(dim=0), torch.zeros(columns.shape[1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(columns.std(dim=0), torch.ones(columns.shape[1]), rtol=1e-3, atol=0)


def test_elements_that_never_change_stay_finite() -> None:
    module = Standardization([2])
    constant = torch.tensor([5.0, 0.0]).expand(8, 2)
    module.update_statistics(module.sums(constant))
    assert module(constant).abs().max() == 0
    assert module(constant + 1).isfinite().all()


def test_agents_for_images_alone_have_nothing_to_standardize() -> None:
    agent = agents.make_agent(LSTMConfig(16), standardize=True, value_torso=True)
    inputs = agents.agent_inputs(2, 3)
    assert agent.value_vision is None
    assert agent.standardization is None
    assert agent(**inputs, state=agent.initial_state(2)).value.isfinite().all()


def test_the_values_own_torso_receives_no_gradient_of_the_policy() -> None:
    config = AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16), value_torso=True)
    agent = Agent(config, PARTS, agents.ACTIONS)
    inputs = {**agents.agent_inputs(3, 5), "observation": parts_like(3, 0)}
    output = agent(**inputs, state=agent.initial_state(3))
    weight = agent.value_vision[1].layers[0].weight
    shared = agent.vision[1].layers[0].weight
    of_policy = torch.autograd.grad(
        output.policy_parameters.sum(), [weight, shared], retain_graph=True, allow_unused=True
    )
    of_value = torch.autograd.grad(output.value.sum(), [weight, shared])
    assert of_policy[0] is None
    assert of_policy[1].abs().sum() > 0
    for gradient in of_value:
        assert gradient.abs().sum() > 0


def test_both_torsos_see_standardized_vectors() -> None:
    """Vectors of another unit, whose moments are in that unit too, give the same policy and the same values."""
    agent = agents.make_agent(LSTMConfig(16), shape=(3,), standardize=True, value_torso=True)
    vectors = 2 + torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    seen = []
    for unit in (1.0, 1000.0):
        agent.standardization.batches.zero_()
        agent.standardization.update_statistics(agent.standardization.sums(unit * vectors))
        inputs = {**agents.agent_inputs(4, 5), "observation": unit * vectors}
        seen.append(agent(**inputs, state=agent.initial_state(4)))
    torch.testing.assert_close(seen[0].policy_parameters, seen[1].policy_parameters)
    torch.testing.assert_close(seen[0].value, seen[1].value)
