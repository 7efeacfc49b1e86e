"""The LSTM against torch's own, and the core without memory against its formula."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import GRUConfig, LSTMConfig, MemorylessConfig, MinGRUConfig

ROWS, STEPS, SIZE = 2, 9, 6


def inputs() -> Tensor:
    return torch.randn(ROWS, STEPS, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_lstm_equals_torch_with_residuals_between_layers(build, num_layers) -> None:
    core = build(LSTMConfig(SIZE, num_layers))
    output = core(inputs(), torch.zeros(ROWS, STEPS, dtype=torch.bool), core.initial_state(ROWS))
    stream = inputs()
    for index, cell in enumerate(core.cells):
        reference = nn.LSTM(SIZE, SIZE, batch_first=True, dtype=torch.float64)
        reference.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
        new, (hidden, memory) = reference(stream)
        stream = new if index == 0 else stream + new
        torch.testing.assert_close(output.state.hidden[index], hidden[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(output.state.cell[index], memory[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(output.features, stream, rtol=0, atol=1e-12)


def test_memoryless_is_a_residual_mlp(build) -> None:
    core = build(MemorylessConfig(SIZE, 2, 10))
    output = core(inputs(), torch.zeros(ROWS, STEPS, dtype=torch.bool), core.initial_state(ROWS))
    stream = inputs()
    for norm, up, _, down in core.blocks:
        stream = stream + F.linear(F.linear(norm(stream), up.weight, up.bias).clamp(min=0), down.weight, down.bias)
    torch.testing.assert_close(output.features, core.final_norm(stream), rtol=0, atol=1e-12)
    assert output.losses == {}
    assert output.attention is None


@pytest.mark.parametrize("config", [LSTMConfig, GRUConfig, MinGRUConfig])
@pytest.mark.parametrize(("size", "layers"), [(SIZE, 1), (SIZE, 3), (4, 2)])
def test_states_of_other_sizes_are_named(build, config, size, layers) -> None:
    core, other = build(config(SIZE, 2)), build(config(size, layers))
    message = f"state: expected features by layer {[SIZE] * 2}, got {[size] * layers}"
    with pytest.raises(ValueError, match=re.escape(message)):
        core(inputs(), torch.zeros(ROWS, STEPS, dtype=torch.bool), other.initial_state(ROWS))


@pytest.mark.parametrize("config", [LSTMConfig, MemorylessConfig])
@pytest.mark.parametrize("name", ["model_size", "num_layers"])
@pytest.mark.parametrize(("value", "expected"), [(0, "1 or more"), (-1, "1 or more"), (2.0, "an integer")])
def test_config_errors_name_the_field(config, name, value, expected) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected {expected}, got {value}"):
        config(**{name: value})
