"""Mixed precision, and the same on a GPU."""

import pytest
import torch
from torch import Tensor

from tests.agent.tiny import GATES, NORMS, POSITIONS, SIZE, assert_same, config_of, normal, resets


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("cached", [False, True])
def test_runs_in_mixed_precision(build, norm, gate, cached) -> None:
    core = build(config_of(norm=norm, gate=gate, compressed_position="time"), torch.float32)
    inputs, reset, state = normal(2, 24, SIZE).float(), resets(2, 24, (0, 9)), core.initial_state(2)
    expected = core(inputs, reset, state).features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = core(inputs, reset, core.with_cache(state) if cached else state)
    (output.features.float().square().mean() + sum(loss.value for loss in output.losses.values())).backward()
    assert_same(output.features.float(), expected, 0.2)
    assert {leaf.dtype for leaf in sum(output.state[:3], ())} == {torch.float32}


@pytest.mark.parametrize("cached", [False, True])
def test_usage_is_kept_in_full_precision(build, cached) -> None:
    core = build(config_of(compression="most-used"), torch.float32)
    state = core.with_cache(core.initial_state(2)) if cached else core.initial_state(2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        output = core(normal(2, 22, SIZE).float(), resets(2, 22, (0, 9)), state)
    assert output.features.isfinite().all()
    assert {leaf.dtype for leaf in output.state.usage} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_gpu_gives_the_same(build, norm, position) -> None:
    core = build(config_of(5, 7, 3, 5, model_size=16, norm=norm, gate="gru", compressed_position=position))
    inputs, reset = normal(3, 33, 16), resets(3, 33, (0, 13), (2, 22))

    def run(device: str, dtype: torch.dtype) -> Tensor:
        core.to(device, dtype).zero_grad()
        output = core(inputs.to(device, dtype), reset.to(device), core.initial_state(3))
        (output.features.square().mean() + sum(loss.value for loss in output.losses.values())).backward()
        grads = [parameter.grad.flatten() for parameter in core.parameters()]
        return torch.cat([output.features.detach().flatten(), *grads]).double().cpu()

    expected = run("cpu", torch.float64)
    assert_same(run("cuda", torch.float64), expected, 1e-6)
    assert_same(run("cuda", torch.float32), expected, 1e-3)
