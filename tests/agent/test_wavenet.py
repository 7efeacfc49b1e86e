"""WaveNet beside its literal formula, and its receptive field; the promises of a core are tested in tests/agent."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agent.core import WaveNetConfig
from agent.core.wavenet import WaveNet

CONFIG = WaveNetConfig(6, num_layers=6, stack_layers=3, kernel_size=2, gate_size=5, skip_size=7)


def build(config: WaveNetConfig = CONFIG) -> WaveNet:
    torch.manual_seed(0)
    core = WaveNet(config).double()
    with torch.no_grad():
        core.output.bias += 3  # keeps the last rectifier open, so that every path shows
    return core


def features_of(core: WaveNet, inputs: Tensor) -> Tensor:
    return core(inputs, torch.zeros(inputs.shape[:2], dtype=torch.bool), core.initial_state(len(inputs))).features


def literal(core: WaveNet, inputs: Tensor) -> Tensor:
    """The same by torch's own convolutions over zero-padded channels-first sequences."""
    kernel_size = core.config.kernel_size
    skip_size = core.config.skip_size
    stream = inputs.mT
    skips = []
    for dilation, convolution, projection in zip(core.config.dilations, core.convolutions, core.projections):
        # Ours has the present tap first, torch's convolution the oldest.
        taps = convolution.weight.unflatten(1, (kernel_size, -1)).flip(1).transpose(1, 2)
        padded = F.pad(stream, ((kernel_size - 1) * dilation, 0))
        gate, value = F.conv1d(padded, taps, convolution.bias, dilation=dilation).chunk(2, dim=1)
        gated = torch.sigmoid(gate) * torch.tanh(value)

        # One projection has the channels of the skip connection, and then those of the stream; the last has no stream.
        both = F.conv1d(gated, projection.weight[..., None], projection.bias)
        skips.append(both[:, :skip_size])
        if both.shape[1] > skip_size:
            stream = (stream + both[:, skip_size:]) / 2**0.5
    total = torch.stack(skips).sum(dim=0) / len(skips) ** 0.5
    output = F.conv1d(F.relu(total), core.output.weight[..., None], core.output.bias)
    return F.relu(output).mT


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_it_is_a_stack_of_dilated_convolutions(kernel_size: int) -> None:
    core = build(WaveNetConfig(6, 6, 3, kernel_size, gate_size=5, skip_size=7))
    inputs = torch.randn(2, 40, 6, dtype=torch.float64)
    torch.testing.assert_close(features_of(core, inputs), literal(core, inputs), rtol=0, atol=1e-12)


def test_dilations_and_receptive_fields_are_those_of_the_papers() -> None:
    assert WaveNetConfig().dilations == tuple(2**layer for layer in range(10)) * 3
    assert WaveNetConfig().receptive_field == 3 * 1023 + 1
    assert WaveNetConfig(stack_layers=30, num_layers=4).dilations == (1, 2, 4, 8)


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_gradients_reach_back_over_the_receptive_field_only(kernel_size: int) -> None:
    config = WaveNetConfig(6, 6, 3, kernel_size, gate_size=5, skip_size=7)
    core = build(config)
    field = config.receptive_field
    inputs = torch.randn(1, field + 12, 6, dtype=torch.float64, requires_grad=True)
    now = field + 4
    (grad,) = torch.autograd.grad(features_of(core, inputs)[0, now].sum(), inputs)
    reached = grad[0].abs().sum(dim=1) > 0
    assert reached.nonzero().flatten().tolist() == list(range(now - field + 1, now + 1))


def test_the_stream_keeps_its_variance_through_thirty_layers() -> None:
    """Measured where a layer remembers more than 100 steps, which is enough for a variance."""
    torch.manual_seed(0)
    core = WaveNet(WaveNetConfig(32, gate_size=32, skip_size=64))
    inputs = torch.randn(1, 2000, 32)
    reset = torch.zeros(1, 2000, dtype=torch.bool)
    with torch.no_grad():
        state = core(inputs, reset, core.initial_state(1)).state
    long = [past for past in state.past if past.shape[1] > 100]
    assert long
    for past in long:
        assert 0.5 < past.var() < 2
