"""The baseline cores against torch's own and against their formulas."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import DeltaNetConfig, GRUConfig, LRUConfig, LSTMConfig, MemorylessConfig, MinGRUConfig
from agent.core.linear import DeltaNetLayer
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


def test_lru_is_the_formula(build: Callable[..., Any]) -> None:
    core, inputs, reset = build(LRUConfig(SIZE, 2, 6)), normal(1, 9, SIZE), resets(1, 9, (0, 4))
    hidden, features = [torch.zeros(SIZE, dtype=torch.complex128)] * 2, []
    for x, begins in zip(inputs[0], reset[0]):
        layers = zip(core.norms, core.recurrences, core.gates, core.blocks)
        for layer, (norm, unit, gate, block) in enumerate(layers):
            decay = torch.exp(torch.complex(-torch.exp(unit.log_rate), torch.exp(unit.log_angle)))
            real, imaginary = unit.write.weight.chunk(2)
            b = torch.complex(real, imaginary)
            h = torch.zeros_like(hidden[layer]) if begins else hidden[layer]
            u = norm(x)
            hidden[layer] = decay * h + torch.sqrt(1 - decay.abs() ** 2) * (b @ u.to(b.dtype))
            of_real, of_imaginary = unit.read.weight.chunk(2, dim=1)
            c = torch.complex(of_real, -of_imaginary)
            y = (c @ hidden[layer]).real + unit.direct * u
            a, g = gate(F.gelu(y)).chunk(2)
            x = x + a * torch.sigmoid(g)
            x = x + block(x)
        features.append(core.final_norm(x))
    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for real, imaginary, expected in zip(output.state.real, output.state.imaginary, hidden):
        assert_same(torch.complex(real[0], imaginary[0]), expected)


@pytest.mark.parametrize(("steps", "chunk"), [(9, 32), (9, 4), (7, 1), (66, 32)])
def test_deltanet_is_the_formula(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, steps: int, chunk: int
) -> None:
    """Whatever is computed at once, with resets within and between chunks."""
    monkeypatch.setattr(DeltaNetLayer, "chunk", chunk)
    heads, size = 2, SIZE // 2
    core, inputs = build(DeltaNetConfig(SIZE, 2, 6, heads)), normal(1, steps, SIZE)
    reset = resets(1, steps, (0, 4), (0, 5))
    states, features = [torch.zeros(heads, size, size).double()] * 2, []
    for x, begins in zip(inputs[0], reset[0]):
        for layer, (norm, unit, block) in enumerate(zip(core.norms, core.recurrences, core.blocks)):
            u = norm(x)
            query, key, value, gate = unit.project(u).chunk(4)
            forget, write = unit.rates(u).chunk(2)
            outputs, after = [], []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                q, k, v = F.silu(query[part]), F.silu(key[part]), F.silu(value[part])
                q, k = q / q.norm(), k / k.norm()
                kept, b = torch.exp(-F.softplus(forget[head])), torch.sigmoid(write[head])
                before = torch.zeros(size, size).double() if begins else states[layer][head]
                matrix = kept * before @ (torch.eye(size).double() - b * torch.outer(k, k)) + b * torch.outer(v, k)
                after.append(matrix)
                outputs.append(unit.norm(matrix @ q))
            states[layer] = torch.stack(after)
            x = x + unit.output(torch.cat(outputs) * F.silu(gate))
            x = x + block(x)
        features.append(core.final_norm(x))
    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for actual, expected in zip(output.state.associations, states):
        assert_same(actual[0], expected.flatten())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: DeltaNetConfig(8, 1, 8, 3), "num_heads: expected a divisor of model_size = 8, got 3"),
        (lambda: LRUConfig(8, 1, 8, 0.9, 0.9), "most_decay: expected more than least_decay = 0.9, got 0.9"),
        (lambda: LRUConfig(8, 1, 8, 0.9, 1.0), "most_decay: expected"),
    ],
)
def test_sizes_that_do_not_fit(config: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config()


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


def test_lru_learns_with_decays_near_1(build: Callable[..., Any]) -> None:
    core = build(LRUConfig(SIZE, 1, 6), torch.float32)
    with torch.no_grad():
        core.recurrences[0].log_rate.fill_(-30.0)
    core(normal(1, 9, SIZE).float(), resets(1, 9), core.initial_state(1)).features.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in core.parameters())
