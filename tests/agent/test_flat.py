"""`FlatCore` computes what its core computes, for every core, with states that are one tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core import CORES, FlatCore
from tests.agent.cores import CONFIGS, SIZE
from tests.agent.tiny import assert_same, normal, resets, sum_losses

FIRST = {name: next(iter(CONFIGS[name].values())) for name in CORES}
FIRST["most-used"] = CONFIGS["compressive"]["most-used"]

first_of_each = pytest.mark.parametrize("config", FIRST.values(), ids=FIRST)


@first_of_each
def test_steps_and_rows_that_begin_anew_equal_the_core(build: Callable[..., Any], config: Any) -> None:
    core = build(config)
    memory, inputs, reset = FlatCore(core), normal(3, 30, SIZE), resets(3, 30, (0, 5), (2, 17))
    expected = core(inputs, reset, core.initial_state(3)).features
    state, features = memory.initial_state(3), []
    for step in range(30):
        # Some libraries replace the state of a row that resets, others give it with the mark alone.
        begins = reset[:, step, None] & (torch.arange(3) != 2)[:, None]
        state = torch.where(begins, memory.initial_state(3), state)
        found, state = memory(inputs[:, [step]], reset[:, [step]], state)
        features.append(found)
    assert_same(torch.cat(features, dim=1), expected)
    assert_same(memory(inputs, reset, memory.initial_state(3))[0], expected)
    assert state.shape == (3, memory.state_size)
    with pytest.raises(ValueError, match=r"state: expected \[3, .*\], got \[2, "):
        memory(inputs, reset, state[:2])


@first_of_each
def test_rows_at_different_offsets_equal_rows_alone(build: Callable[..., Any], config: Any) -> None:
    memory = FlatCore(build(config))
    starts = [memory(normal(1, steps, SIZE), resets(1, steps), memory.initial_state(1))[1] for steps in (3, 9, 1, 3)]
    inputs, reset = normal(4, 7, SIZE, seed=1), resets(4, 7, (1, 2))
    features, state = memory(inputs, reset, torch.cat(starts))
    for row, start in enumerate(starts):
        alone = memory(inputs[[row]], reset[[row]], start)
        assert_same(features[[row]], alone[0])
        assert_same(state[[row]], alone[1])


@pytest.mark.parametrize("name", ["compressive", "routing", "lstm"])
def test_the_losses_of_the_core_are_attached(build: Callable[..., Any], name: str) -> None:
    core = build(FIRST[name]).train()
    memory, inputs, reset = FlatCore(core), normal(2, 12, SIZE), resets(2, 12, (0, 5))
    output = core(inputs, reset, core.initial_state(2))
    (3 * output.features.square().mean() + sum_losses(output)).backward()
    expected = [parameter.grad for parameter in core.parameters()]
    core.zero_grad()
    (3 * memory(inputs, reset, memory.initial_state(2))[0].square().mean()).backward()
    for parameter, gradient in zip(core.parameters(), expected):
        assert_same(parameter.grad, gradient)
