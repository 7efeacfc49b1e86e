"""The baselines against their formulas; what all cores promise is tested in `test_core_contract.py`."""

import pytest
import torch
from torch import Tensor, nn

from agent.core import GRUConfig, MinGRUConfig
from agent.core.recurrent import linear_recurrence

SIZE = 4


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def recurrence(decay: Tensor, inputs: Tensor, h: Tensor) -> Tensor:
    """Step by step."""
    outputs = []
    for a, b in zip(decay.unbind(1), inputs.unbind(1)):
        h = a * h + b
        outputs.append(h)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 9, 33])
def test_the_scan_equals_the_recurrence_and_its_gradients(steps) -> None:
    decay, inputs, before = normal(2, steps, 3).sigmoid(), normal(2, steps, 3, seed=1), normal(2, 3, seed=2)
    decay[1, steps // 2] = 0  # a reset
    arguments = [argument.requires_grad_() for argument in (decay, inputs, before)]
    actual, expected = (function(*arguments) for function in (linear_recurrence, recurrence))
    assert_same(actual, expected)
    of_scan, of_steps = (torch.autograd.grad(part.square().sum(), arguments) for part in (actual, expected))
    for one, other in zip(of_scan, of_steps):
        assert_same(one, other)


def test_a_reset_forgets_exactly() -> None:
    decay, inputs = normal(1, 20, 3).sigmoid(), normal(1, 20, 3, seed=1)
    decay[:, 7] = 0
    changed = inputs.clone()
    changed[:, :7] *= 1e6
    before = torch.zeros(1, 3).double()
    assert torch.equal(
        linear_recurrence(decay, changed, before)[:, 7:], linear_recurrence(decay, inputs, before)[:, 7:]
    )


def test_mingru_is_the_formula(build) -> None:
    core = build(MinGRUConfig(SIZE, 2, 6))
    inputs, reset = normal(1, 9, SIZE), torch.zeros(1, 9, dtype=torch.bool)
    reset[0, 4] = True
    hidden, features = [torch.zeros(SIZE).double()] * 2, []
    for x, begins in zip(inputs[0], reset[0]):
        for layer, (recurrence, block) in enumerate(zip(core.recurrences, core.blocks)):
            norm, both = recurrence
            w_z, w_h = both.weight.chunk(2)
            b_z, b_h = both.bias.chunk(2)
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


def test_gru_is_the_gru_of_torch(build) -> None:
    core, inputs = build(GRUConfig(SIZE, 1)), normal(2, 9, SIZE)
    other = nn.GRU(SIZE, SIZE, batch_first=True).double()
    other.load_state_dict({f"{name}_l0": value for name, value in core.cells[0].state_dict().items()})
    output = core(inputs, torch.zeros(2, 9, dtype=torch.bool), core.initial_state(2))
    features, hidden = other(inputs)
    assert_same(output.features, features)
    assert_same(output.state.hidden[0], hidden[0])
