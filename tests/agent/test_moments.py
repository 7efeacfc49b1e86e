"""Running moments of observations, and what agents make of them."""

import re
from typing import Any

import pytest
import torch

from agent import Agent, AgentConfig
from agent.core import LSTMConfig
from agent.moments import RATE, Standardization
from tests.agent import agents

PARTS = ((2, 3, 1), (4,), (2,))
SIZES = [4, 2]
"""The shapes of an image and of two vectors, and the sizes of the vectors."""


def random_parts(rows: int, seed: int) -> tuple[torch.Tensor, ...]:
    """An image and two vectors, whose elements have different means and sizes."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (rows, 5, 2, 3, 1), generator=generator, dtype=torch.uint8)
    first = torch.tensor([1e-3, 1.0, 30.0, 1e4]) * (2 + torch.randn(rows, 5, 4, generator=generator))
    second = torch.tensor([1.0, -1.0]) + 0.1 * torch.randn(rows, 5, 2, generator=generator)
    return image, first, second


def elements_of(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The elements of both vectors, [rows * steps, 6] in float64."""
    _, first, second = parts
    return torch.cat([first, second], dim=-1).flatten(0, 1).double()


def test_moments_are_those_of_all_batches_so_far_and_then_running_ones() -> None:
    """First the moments of all batches, which are of equal size; after 1 / RATE batches exponential means."""
    module = Standardization(SIZES)
    batches = [random_parts(3, seed) for seed in range(4)]
    for batch in batches:
        module.update_statistics(module.sums(batch))
    seen = torch.cat([elements_of(batch) for batch in batches])
    torch.testing.assert_close(module.mean, seen.mean(dim=0))
    torch.testing.assert_close(module.deviation, seen.std(dim=0, correction=0))

    module.batches.fill_(round(10 / RATE))
    before = module.mean.clone()
    module.update_statistics(module.sums(batches[0]))
    newest = elements_of(batches[0]).mean(dim=0)
    torch.testing.assert_close(module.mean, (1 - RATE) * before + RATE * newest)


def test_moments_are_those_of_a_whole_run() -> None:
    """A new batch counts as much as each of 5,000 before it."""
    module = Standardization(SIZES)
    first, second = random_parts(3, 0), random_parts(3, 1)
    module.update_statistics(module.sums(first))
    module.batches.fill_(5000)
    module.update_statistics(module.sums(second))
    old, new = elements_of(first).mean(dim=0), elements_of(second).mean(dim=0)
    torch.testing.assert_close(module.mean, (5000 * old + new) / 5001)


@pytest.mark.parametrize("sizes", [[4], [4, 2, 1], [4, 1], [1, 2]])
def test_other_vectors_are_refused(sizes: list[int]) -> None:
    """Those of one feature would become several."""
    sensed = tuple(torch.zeros(3, 5, size) for size in sizes)
    expected = re.escape(f"observation: expected vectors of [4, 2] features, got {sizes}")
    with pytest.raises(ValueError, match=expected):
        Standardization(SIZES)(sensed)


def test_vectors_are_standardized_and_images_stay() -> None:
    module = Standardization(SIZES)
    parts = random_parts(200, 0)
    # Before the first batch they are as they were.
    for untouched, part in zip(module(parts), parts, strict=True):
        torch.testing.assert_close(untouched, part)
    module.update_statistics(module.sums(parts))
    image, *vectors = module(parts)
    assert image is parts[0]
    for vector in vectors:
        columns = vector.flatten(0, 1)
        torch.testing.assert_close(columns.mean(dim=0), torch.zeros(columns.shape[1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(columns.std(dim=0), torch.ones(columns.shape[1]), rtol=1e-3, atol=0)


def test_the_unit_of_an_element_does_not_matter() -> None:
    """One that varies by a billionth is told apart as well as one that varies by 1. Constants are not enlarged much."""
    seen = torch.randn(50, 5, 1)
    units = torch.tensor([1e-9, 1e-5, 1.0, 1e6])
    module = Standardization([4])
    module.update_statistics(module.sums(seen * units))
    standardized = module(seen * units)
    torch.testing.assert_close(standardized, standardized[..., 2:3].expand(50, 5, 4), rtol=1e-3, atol=1e-3)

    module = Standardization([4])
    module.update_statistics(module.sums(units.expand(50, 5, 4)))
    assert module(units.expand(50, 5, 4)).abs().max() < 1e-3
    for index, most in enumerate([1e4, 1e4, 1e4, 1e10]):
        changed = module(torch.zeros(1, 1, 4))[..., index].abs()
        assert changed < 1.01 * most


def test_small_changes_of_large_elements_are_told_apart() -> None:
    module = Standardization([1])
    seen = 1000 + 0.01 * torch.randn(50, 5, 1)
    module.update_statistics(module.sums(seen))
    torch.testing.assert_close(module(seen).std(), torch.tensor(1.0), rtol=0.02, atol=0)


def test_elements_that_never_change_stay_finite() -> None:
    module = Standardization([2])
    constant = torch.tensor([5.0, 0.0]).expand(8, 2)
    module.update_statistics(module.sums(constant))
    assert module(constant).abs().max() == 0
    assert module(constant + 1).isfinite().all()


def test_the_largest_numbers_stay_finite_when_they_come_late() -> None:
    """Where an element was constant, its deviation is small, and the quotient would be infinite."""
    module = Standardization([2])
    module.update_statistics(module.sums(torch.zeros(8, 2)))
    largest = torch.finfo(torch.float32).max
    standard = module(torch.tensor([[largest, -largest], [1e35, 1.0]]))
    assert standard.tolist() == [[largest, -largest], [largest, pytest.approx(1e4)]]


def test_agents_for_images_alone_have_nothing_to_standardize() -> None:
    agent = agents.make_agent(LSTMConfig(16), standardize=True, value_torso=True)
    inputs = agents.agent_inputs(2, 3)
    assert agent.value_vision is None
    assert agent.standardization is None
    assert agent(**inputs, state=agent.initial_state(2)).value.isfinite().all()


def test_the_values_own_torso_receives_no_gradient_of_the_policy() -> None:
    config = AgentConfig(torso="small", torso_size=16, core=LSTMConfig(16), value_torso=True)
    agent = Agent(config, PARTS, agents.ACTIONS)
    inputs = {**agents.agent_inputs(3, 5), "observation": random_parts(3, 0)}
    output = agent(**inputs, state=agent.initial_state(3))

    # The first weight of the torso of vectors: the value's own one, and the one that both use.
    own = agent.value_vision[1].layers[0].weight
    shared = agent.vision[1].layers[0].weight
    policy = output.policy_parameters.sum()
    on_own, on_shared = torch.autograd.grad(policy, [own, shared], retain_graph=True, allow_unused=True)
    assert on_own is None
    assert on_shared.abs().sum() > 0
    for gradient in torch.autograd.grad(output.value.sum(), [own, shared]):
        assert gradient.abs().sum() > 0


def test_both_torsos_see_standardized_vectors() -> None:
    """Vectors of another unit, whose moments are in that unit too, give the same policy and the same values."""
    agent = agents.make_agent(LSTMConfig(16), shape=(3,), standardize=True, value_torso=True)
    vectors = 2 + torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))

    def output_in(unit: float) -> Any:
        agent.standardization.batches.zero_()
        agent.standardization.update_statistics(agent.standardization.sums(unit * vectors))
        inputs = {**agents.agent_inputs(4, 5), "observation": unit * vectors}
        return agent(**inputs, state=agent.initial_state(4))

    one = output_in(1.0)
    other = output_in(1000.0)
    torch.testing.assert_close(one.policy_parameters, other.policy_parameters)
    torch.testing.assert_close(one.value, other.value)
