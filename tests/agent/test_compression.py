"""Which loss trains which parameters: compression, its losses, and the gradients that flow through it or do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core.compression import COMPRESSIONS
from tests.agent.literal import Literal
from tests.agent.tiny import GATES, NORMS, SIZE, assert_same, config_of, normal, resets, sum_losses

TRAINED = ("convolution", "dilated")  # the compression functions with parameters


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_loss_trains_its_own_parameters_and_nothing_else(
    build: Callable[..., Any], norm: str, gate: str, loss: str, compression: str
) -> None:
    core = build(config_of(norm=norm, gate=gate, compression=compression, compression_loss=loss)).train()
    inputs = normal(2, 24, SIZE).requires_grad_()
    mine = {id(parameter) for parameter in core.compression_parameters()}
    assert bool(mine) == (compression in TRAINED or loss == "autoencoding")

    output = core(inputs, resets(2, 24, (0, 9)), core.initial_state(2))
    assert len(output.losses) == 2
    total = sum_losses(output)
    assert total > 0
    if mine:
        total.backward(retain_graph=True)
        for name, parameter in core.named_parameters():
            if id(parameter) in mine:
                assert parameter.grad.abs().sum() > 0, name
            else:
                assert parameter.grad is None, name
    else:
        assert not total.requires_grad
    assert inputs.grad is None

    core.zero_grad(set_to_none=True)
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in mine), name
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_gradients_of_bptt_are_those_of_the_literal(build: Callable[..., Any], norm: str, compression: str) -> None:
    core = build(config_of(4, 2, 3, 2, norm=norm, compression=compression, compression_loss="bptt"))
    inputs, reset = normal(1, 14, SIZE).requires_grad_(), resets(1, 14, (0, 5))
    wanted = [inputs, *core.parameters()]
    features, _, losses, _ = core(inputs, reset, core.initial_state(1))
    assert (core.compression_parameters(), losses) == ([], {})
    literal = Literal(core).run(inputs[0], reset[0])[None]
    of_core, of_literal = (torch.autograd.grad(part.square().sum(), wanted) for part in (features, literal))
    for actual, expected in zip(of_core, of_literal):
        assert_same(actual, expected, 1e-9)


def test_gradients_flow_through_memory_and_not_through_compression(build: Callable[..., Any]) -> None:
    core, inputs = build(config_of(num_layers=1)), normal(1, 12, SIZE).requires_grad_()
    core(inputs, resets(1, 12), core.initial_state(1)).features[0, 11].square().sum().backward()
    assert (inputs.grad.abs().sum(dim=2)[0] > 0).tolist() == [False] * 4 + [True] * 8
