"""The baseline cores against torch's own and against their formulas."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import GRUConfig, LSTMConfig, MemorylessConfig, MinGRUConfig
from agent.core.recurrent import linear_recurrence
from tests.agent.tiny import SIZE, assert_same, normal, resets


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize(("config", "reference_type"), [(LSTMConfig, nn.LSTM), (GRUConfig, nn.GRU)])
def test_lstm_and_gru_are_those_of_torch_with_residuals(
    build: Callable[..., Any], config: Any, reference_type: Any, num_layers: int
) -> None:
    core = build(config(SIZE, num_layers))
    output = core(normal(2, 9, SIZE), resets(2, 9), core.initial_state(2))
    message = re.escape(f"state: expected features by layer {[SIZE] * num_layers}, got {[6] * 2}")
    with pytest.raises(ValueError, match=message):
        core(normal(2, 9, SIZE), resets(2, 9), build(config(6, 2)).initial_state(2))
    stream = normal(2, 9, SIZE)
    for index, cell in enumerate(core.cells):
        reference = reference_type(SIZE, SIZE, batch_first=True, dtype=torch.float64)
        reference.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
        new, final = reference(stream)
        stream = new if index == 0 else stream + new
        for part, expected in zip(output.state, final if isinstance(final, tuple) else (final,), strict=True):
            assert_same(part[index], expected[0])
    assert_same(output.features, stream)


def test_memoryless_is_a_residual_mlp(build: Callable[..., Any]) -> None:
    core = build(MemorylessConfig(SIZE, 2, 10))
    output = core(normal(2, 9, SIZE), resets(2, 9), core.initial_state(2))
    stream = normal(2, 9, SIZE)
    for norm, up, _, down in core.blocks:
        stream = stream + F.linear(F.linear(norm(stream), up.weight, up.bias).clamp(min=0), down.weight, down.bias)
    assert_same(output.features, core.final_norm(stream))
    assert (output.losses, output.attention) == ({}, None)


def test_mingru_is_the_formula(build: Callable[..., Any]) -> None:
    core, inputs, reset = build(MinGRUConfig(SIZE, 2, 6)), normal(1, 9, SIZE), resets(1, 9, (0, 4))
    hidden, features = [torch.zeros(SIZE).double()] * 2, []
    for x, begins in zip(inputs[0], reset[0]):
        for layer, ((norm, both), block) in enumerate(zip(core.recurrences, core.blocks)):
            (w_z, w_h), (b_z, b_h) = both.weight.chunk(2), both.bias.chunk(2)
            z = torch.sigmoid(w_z @ norm(x) + b_z)
            h = torch.zeros_like(z) if begins else hidden[layer]
            hidden[layer] = (1 - z) * h + z * (w_h @ norm(x) + b_h)
            x = x + hidden[layer]
            x = x + block(x)
        features.append(core.final_norm(x))
    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for actual, expected in zip(output.state.hidden, hidden):
        assert_same(actual[0], expected)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 33])
def test_the_scan_equals_the_recurrence_and_its_gradients(steps: int) -> None:
    def recurrence(decay: Tensor, inputs: Tensor, h: Tensor) -> Tensor:
        outputs = [h := a * h + b for a, b in zip(decay.unbind(1), inputs.unbind(1))]
        return torch.stack(outputs, dim=1)

    decay, inputs, before = normal(2, steps, 3).sigmoid(), normal(2, steps, 3, seed=1), normal(2, 3, seed=2)
    decay[1, steps // 2] = 0  # a reset
    changed = torch.cat([1e6 * inputs[1:, : steps // 2], inputs[1:, steps // 2 :]], dim=1)
    one, other = (linear_recurrence(decay[1:], x, before[1:])[:, steps // 2 :] for x in (inputs[1:], changed))
    assert torch.equal(one, other)
    arguments = [argument.requires_grad_() for argument in (decay, inputs, before)]
    actual, expected = (function(*arguments) for function in (linear_recurrence, recurrence))
    assert_same(actual, expected)
    grads = (torch.autograd.grad(part.square().sum(), arguments) for part in (actual, expected))
    for of_scan, of_steps in zip(*grads):
        assert_same(of_scan, of_steps)
