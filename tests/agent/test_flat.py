"""`FlatCore` computes what its core computes, for every core, with states that are one tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core import CORES, CustomCoreConfig, FlatCore
from tests.agent.cores import CONFIGS, SIZE
from tests.agent.tiny import assert_same, normal, resets, sum_losses

FIRST = {name: next(iter(CONFIGS[name].values())) for name in CORES}
FIRST["most-used"] = CONFIGS["compressive"]["most-used"]
for name in ("Phase", "Wrapped"):  # they count steps without a segment, and within another state
    FIRST[name] = CustomCoreConfig(f"tests.custom_cores:{name}", SIZE, ("segment_size=4",))

first_of_each = pytest.mark.parametrize("config", FIRST.values(), ids=FIRST)


@first_of_each
def test_steps_and_rows_that_begin_anew_equal_the_core(build: Callable[..., Any], config: Any) -> None:
    rows, steps = 3, 30
    core = build(config)
    memory = FlatCore(core)
    inputs = normal(rows, steps, SIZE)
    reset = resets(rows, steps, (0, 5), (2, 17))
    expected = core(inputs, reset, core.initial_state(rows)).features

    # Some libraries replace the state of a row that resets, here of row 0. Others only mark the step, here of row 2.
    state_is_replaced = torch.arange(rows) != 2
    state = memory.initial_state(rows)
    features = []
    for step in range(steps):
        replaced = reset[:, step] & state_is_replaced
        state = torch.where(replaced[:, None], memory.initial_state(rows), state)
        output, state = memory(inputs[:, [step]], reset[:, [step]], state)
        features.append(output)
    assert_same(torch.cat(features, dim=1), expected)
    assert state.shape == (rows, memory.state_size)

    in_one_call, _ = memory(inputs, reset, memory.initial_state(rows))
    assert_same(in_one_call, expected)
    with pytest.raises(ValueError, match=r"state: expected \[3, .*\], got \[2, "):
        memory(inputs, reset, state[:2])

    # Without rows, as where no environment is left.
    none, state_of_none = memory(inputs[:0], reset[:0], memory.initial_state(0))
    assert none.shape == (0, steps, SIZE)
    assert state_of_none.shape == (0, memory.state_size)


@first_of_each
def test_rows_at_different_offsets_equal_rows_alone(build: Callable[..., Any], config: Any) -> None:
    memory = FlatCore(build(config))
    starts = []
    for steps in (3, 9, 1, 3):
        _, state = memory(normal(1, steps, SIZE), resets(1, steps), memory.initial_state(1))
        starts.append(state)
    inputs = normal(4, 7, SIZE, seed=1)
    reset = resets(4, 7, (1, 2))
    features, state = memory(inputs, reset, torch.cat(starts))
    for row, start in enumerate(starts):
        features_alone, state_alone = memory(inputs[[row]], reset[[row]], start)
        assert_same(features[[row]], features_alone)
        assert_same(state[[row]], state_alone)


@pytest.mark.parametrize("name", ["compressive", "routing", "lstm"])
def test_the_losses_of_the_core_are_attached(build: Callable[..., Any], name: str) -> None:
    """Their gradients come with those of the features, whatever these are multiplied by."""
    core = build(FIRST[name]).train()
    inputs = normal(2, 12, SIZE)
    reset = resets(2, 12, (0, 5))
    output = core(inputs, reset, core.initial_state(2))
    (3 * output.features.square().mean() + sum_losses(output)).backward()
    expected = [parameter.grad for parameter in core.parameters()]

    core.zero_grad()
    memory = FlatCore(core)
    features, _ = memory(inputs, reset, memory.initial_state(2))
    (3 * features.square().mean()).backward()
    for parameter, gradient in zip(core.parameters(), expected):
        assert_same(parameter.grad, gradient)


@pytest.mark.parametrize("name", ["compressive", "routing"])
def test_a_loss_is_a_mean_over_rows_at_different_offsets(build: Callable[..., Any], name: str) -> None:
    core = build(FIRST[name]).train()
    memory = FlatCore(core)
    inputs = normal(3, 12, SIZE)
    reset = torch.zeros(3, 12, dtype=torch.bool)
    starts = []
    for row in range(3):
        earlier = normal(1, 8 + row, SIZE, seed=row)
        with torch.no_grad():
            _, start = memory(earlier, reset[:1, :1].expand(1, 8 + row), memory.initial_state(1))
        starts.append(start)

    def gradients(inputs: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        """Of the losses of the core alone."""
        core.zero_grad()
        features, _ = memory(inputs, reset[: len(inputs)], state)
        (0 * features.sum()).backward()
        return [parameter.grad.clone() for parameter in core.parameters()]

    together = gradients(inputs, torch.cat(starts))
    alone = [gradients(inputs[[row]], start) for row, start in enumerate(starts)]
    for found, *of_rows in zip(together, *alone):
        assert_same(found, sum(of_rows) / 3)
