"""The baseline cores against torch's own and against their formulas."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import DeltaNetConfig, FFMConfig, GRUConfig, LRUConfig, LSTMConfig, MemorylessConfig, MinGRUConfig
from agent.core.ffm import FFM
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
    stream = normal(2, 9, SIZE)
    for index, cell in enumerate(core.cells):
        reference = reference_type(SIZE, SIZE, batch_first=True, dtype=torch.float64)
        reference.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
        new, final = reference(stream)
        stream = new if index == 0 else stream + new
        parts = final if isinstance(final, tuple) else (final,)  # an LSTM has two
        for part, expected in zip(output.state, parts, strict=True):
            assert_same(part[index], expected[0])
    assert_same(output.features, stream)


@pytest.mark.parametrize("config", [LSTMConfig(SIZE), GRUConfig(SIZE), MinGRUConfig(SIZE, 1, 8)])
@pytest.mark.parametrize(("keep_bias", "least"), [(0.0, 0.3), (1.0, 0.6), (3.0, 0.9), (100.0, 1.0)])
def test_cores_begin_with_a_memory(build: Callable[..., Any], config: Any, keep_bias: float, least: float) -> None:
    """What is added to the state is still there after a step, by a share that is about the sigmoid of the bias."""
    core = build(dataclasses.replace(config, keep_bias=keep_bias))
    for parameter in core.parameters():
        if parameter.dim() > 1:
            parameter.data.zero_()  # the gates are their biases alone
    inputs = normal(4, 1, SIZE)
    kept = torch.zeros(4, 1, dtype=torch.bool)
    begin = core.initial_state(4)
    more = begin._replace(**{begin._fields[-1]: (torch.ones_like(begin[-1][0]),)})
    after, after_more = (core(inputs, kept, state).state[-1][0] for state in (begin, more))
    share = (after_more - after).mean()
    assert least <= share.round(decimals=6) <= min(1.0, least + 0.3)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("config", [LSTMConfig, GRUConfig])
def test_states_of_other_sizes_are_refused(build: Callable[..., Any], config: Any, num_layers: int) -> None:
    core = build(config(SIZE, num_layers))
    other_state = build(config(6, 2)).initial_state(2)
    message = re.escape(f"state: expected features by layer {[SIZE] * num_layers}, got {[6] * 2}")
    with pytest.raises(ValueError, match=message):
        core(normal(2, 9, SIZE), resets(2, 9), other_state)


def test_memoryless_is_a_residual_mlp(build: Callable[..., Any]) -> None:
    core = build(MemorylessConfig(SIZE, 2, 10))
    output = core(normal(2, 9, SIZE), resets(2, 9), core.initial_state(2))
    stream = normal(2, 9, SIZE)
    for norm, up, _, down in core.blocks:
        hidden = F.linear(norm(stream), up.weight, up.bias).clamp(min=0)
        stream = stream + F.linear(hidden, down.weight, down.bias)
    assert_same(output.features, core.final_norm(stream))
    assert output.losses == {}
    assert output.attention is None


def test_mingru_is_the_formula(build: Callable[..., Any]) -> None:
    core = build(MinGRUConfig(SIZE, 2, 6))
    inputs = normal(1, 9, SIZE)
    reset = resets(1, 9, (0, 4))
    hidden = [torch.zeros(SIZE).double() for _ in range(2)]
    features = []
    for x, begins in zip(inputs[0], reset[0]):
        for layer in range(2):
            norm, both = core.recurrences[layer]
            w_z, w_h = both.weight.chunk(2)
            b_z, b_h = both.bias.chunk(2)
            u = norm(x)
            z = torch.sigmoid(w_z @ u + b_z)
            before = torch.zeros_like(z) if begins else hidden[layer]
            hidden[layer] = (1 - z) * before + z * (w_h @ u + b_h)
            x = x + hidden[layer]
            x = x + core.blocks[layer](x)
        features.append(core.final_norm(x))

    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for actual, expected in zip(output.state.hidden, hidden):
        assert_same(actual[0], expected)


def test_lru_is_the_formula(build: Callable[..., Any]) -> None:
    core = build(LRUConfig(SIZE, 2, 6))
    inputs = normal(1, 9, SIZE)
    reset = resets(1, 9, (0, 4))
    hidden = [torch.zeros(SIZE, dtype=torch.complex128) for _ in range(2)]
    features = []
    for x, begins in zip(inputs[0], reset[0]):
        for layer in range(2):
            # The complex matrices from their real and imaginary parts.
            unit = core.recurrences[layer]
            decay = torch.exp(torch.complex(-torch.exp(unit.log_rate), torch.exp(unit.log_angle)))
            real, imaginary = unit.write.weight.chunk(2)
            b = torch.complex(real, imaginary)
            real, imaginary = unit.read.weight.chunk(2, dim=1)
            c = torch.complex(real, -imaginary)

            u = core.norms[layer](x)
            before = torch.zeros_like(hidden[layer]) if begins else hidden[layer]
            hidden[layer] = decay * before + torch.sqrt(1 - decay.abs() ** 2) * (b @ u.to(b.dtype))
            y = (c @ hidden[layer]).real + unit.direct * u
            a, g = core.gates[layer](F.gelu(y)).chunk(2)
            x = x + a * torch.sigmoid(g)
            x = x + core.blocks[layer](x)
        features.append(core.final_norm(x))

    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for real, imaginary, expected in zip(output.state.real, output.state.imaginary, hidden):
        assert_same(torch.complex(real[0], imaginary[0]), expected)


def test_ffm_is_the_formula(build: Callable[..., Any]) -> None:
    traces, contexts = 3, 2
    core = build(FFMConfig(SIZE, 2, 6, traces, contexts))
    inputs = normal(1, 9, SIZE)
    reset = resets(1, 9, (0, 4))
    states = [torch.zeros(traces, contexts, dtype=torch.complex128) for _ in range(2)]
    features = []
    for x, begins in zip(inputs[0], reset[0]):
        for index, layer in enumerate(core.recurrences):
            u = core.norms[index](x)
            parts = [traces, SIZE, traces, SIZE]
            w_x, w_v, w_p, w_q = layer.project.weight.split(parts)
            b_x, b_v, b_p, b_q = layer.project.bias.split(parts)
            written = torch.sigmoid(w_p @ u + b_p) * (w_x @ u + b_x)
            q = torch.sigmoid(w_q @ u + b_q)

            gamma = torch.zeros(traces, contexts, dtype=torch.complex128)
            for trace, log_rate in enumerate(layer.log_rate):
                for context, angle in enumerate(layer.angle):
                    gamma[trace, context] = torch.exp(torch.complex(-torch.exp(log_rate), angle))
            before = torch.zeros_like(states[index]) if begins else states[index]
            states[index] = gamma * before + torch.outer(written, torch.ones(contexts).double())

            flat = torch.cat([states[index].real.flatten(), states[index].imag.flatten()])
            z = layer.read.weight @ flat + layer.read.bias
            normed = (z - z.mean()) / torch.sqrt(z.var(unbiased=False) + 1e-5)
            x = x + q * normed + (1 - q) * (w_v @ u + b_v)
            x = x + core.blocks[index](x)
        features.append(core.final_norm(x))

    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for parts, expected in zip(output.state.traces, states):
        assert_same(torch.complex(*parts[0].chunk(2)), expected.flatten())


def test_ffm_begins_with_as_many_short_as_long_traces_and_turns() -> None:
    layer = FFM(FFMConfig(SIZE, 1, 6, 5, 3, span=1024)).recurrences[0]
    rates = layer.log_rate.exp().tolist()
    assert [rates[0], rates[-1]] == pytest.approx([0.67, math.log(100) / 1024])
    ratios = [after / before for before, after in itertools.pairwise(rates)]
    assert ratios == pytest.approx([ratios[0]] * 4)
    assert (2 * math.pi / layer.angle).tolist() == pytest.approx([4, 64, 1024], rel=1e-5)

    # A span below the shortest period.
    short = FFM(FFMConfig(SIZE, 1, 6, 2, 2, span=2)).recurrences[0]
    assert (2 * math.pi / short.angle).tolist() == pytest.approx([2, 2], rel=1e-5)


def test_the_only_trace_and_turn_of_ffm_are_the_slowest() -> None:
    """Or it would forget within seven steps, whatever its span is."""
    layer = FFM(FFMConfig(SIZE, 1, 6, 1, 1, span=1024)).recurrences[0]
    left_after_span = torch.exp(-1024 * torch.exp(layer.log_rate))
    torch.testing.assert_close(left_after_span, torch.tensor([0.01]), rtol=1e-3, atol=0)
    torch.testing.assert_close(layer.angle, torch.tensor([2 * math.pi / 1024]))


def test_ffm_may_begin_as_in_the_authors_code() -> None:
    layer = FFM(FFMConfig(SIZE, 1, 6, 5, 3, span=101, spacing="even")).recurrences[0]
    gamma = torch.complex(*layer._decay()).detach()
    kept_in_a_step = gamma.abs()[:, 0]
    assert kept_in_a_step[0] == pytest.approx(0.51, abs=0.01)
    assert kept_in_a_step[-1] ** 101 == pytest.approx(0.01, rel=1e-3)
    assert (kept_in_a_step.diff() > 0).all()
    turns = gamma.angle()[0] / (2 * torch.pi)
    assert turns.tolist() == pytest.approx([0, 1 / 51, 1 / 101], abs=1e-6), "periods of 1, 51 and 101 steps"


@pytest.mark.parametrize(("steps", "chunk"), [(9, 32), (9, 4), (7, 1), (66, 32)])
def test_deltanet_is_the_formula(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, steps: int, chunk: int
) -> None:
    """For any number of steps that are computed at once, with resets within and between these chunks."""
    monkeypatch.setattr(DeltaNetLayer, "chunk", chunk)
    heads = 2
    size = SIZE // heads
    core = build(DeltaNetConfig(SIZE, 2, 6, heads))
    inputs = normal(1, steps, SIZE)
    reset = resets(1, steps, (0, 4), (0, 5))
    identity = torch.eye(size).double()
    states = [[torch.zeros(size, size).double() for _ in range(heads)] for _ in range(2)]
    features = []
    for x, begins in zip(inputs[0], reset[0]):
        for layer in range(2):
            unit = core.recurrences[layer]
            u = core.norms[layer](x)
            query, key, value, gate = unit.project(u).chunk(4)
            forget, write = unit.rates(u).chunk(2)
            outputs = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                q = F.silu(query[part])
                q = q / q.norm()
                k = F.silu(key[part])
                k = k / k.norm()
                v = F.silu(value[part])
                kept = torch.exp(-F.softplus(forget[head]))
                b = torch.sigmoid(write[head])
                before = torch.zeros_like(identity) if begins else states[layer][head]
                matrix = kept * before @ (identity - b * torch.outer(k, k)) + b * torch.outer(v, k)
                states[layer][head] = matrix
                outputs.append(unit.norm(matrix @ q))
            x = x + unit.output(torch.cat(outputs) * F.silu(gate))
            x = x + core.blocks[layer](x)
        features.append(core.final_norm(x))

    output = core(inputs, reset, core.initial_state(1))
    assert_same(output.features[0], torch.stack(features))
    for actual, expected in zip(output.state.associations, states):
        assert_same(actual[0], torch.stack(expected).flatten())


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
        outputs = []
        for t in range(steps):
            h = decay[:, t] * h + inputs[:, t]
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    decay = normal(2, steps, 3).sigmoid()
    inputs = normal(2, steps, 3, seed=1)
    before = normal(2, 3, seed=2)
    decay[1, steps // 2] = 0  # a reset
    arguments = [argument.requires_grad_() for argument in (decay, inputs, before)]
    actual = linear_recurrence(*arguments)
    expected = recurrence(*arguments)
    assert_same(actual, expected)
    of_scan = torch.autograd.grad(actual.square().sum(), arguments)
    of_recurrence = torch.autograd.grad(expected.square().sum(), arguments)
    for grad, expected_grad in zip(of_scan, of_recurrence):
        assert_same(grad, expected_grad)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 33])
def test_nothing_passes_a_decay_of_0_in_the_scan(steps: int) -> None:
    """Not even by rounding: what comes before a reset may be a million times as large."""
    middle = steps // 2
    decay = normal(1, steps, 3).sigmoid()
    decay[:, middle] = 0
    inputs = normal(1, steps, 3, seed=1)
    changed = inputs.clone()
    changed[:, :middle] *= 1e6
    before = normal(1, 3, seed=2)
    one = linear_recurrence(decay, inputs, before)
    other = linear_recurrence(decay, changed, 1e6 * before)
    assert torch.equal(one[:, middle:], other[:, middle:])


def test_lru_learns_with_decays_near_1(build: Callable[..., Any]) -> None:
    core = build(LRUConfig(SIZE, 1, 6), torch.float32)
    with torch.no_grad():
        core.recurrences[0].log_rate.fill_(-30.0)
    core(normal(1, 9, SIZE).float(), resets(1, 9), core.initial_state(1)).features.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in core.parameters())
