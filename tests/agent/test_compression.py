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
    compressing = {id(parameter) for parameter in core.compression_parameters()}
    has_parameters = compression in TRAINED or loss == "autoencoding"
    assert (len(compressing) > 0) == has_parameters

    output = core(inputs, resets(2, 24, (0, 9)), core.initial_state(2))
    assert len(output.losses) == 2
    total = sum_losses(output)
    assert total > 0

    # The compression's losses train its parameters. Without any they have no gradient.
    if has_parameters:
        total.backward(retain_graph=True)
        for name, parameter in core.named_parameters():
            if id(parameter) in compressing:
                assert parameter.grad.abs().sum() > 0, name
            else:
                assert parameter.grad is None, name
    else:
        assert not total.requires_grad
    assert inputs.grad is None

    # The features train all else.
    core.zero_grad(set_to_none=True)
    output.features.square().sum().backward()
    for name, parameter in core.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in compressing), name
    assert inputs.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_gradients_of_bptt_are_those_of_the_literal(build: Callable[..., Any], norm: str, compression: str) -> None:
    core = build(config_of(4, 2, 3, 2, norm=norm, compression=compression, compression_loss="bptt"))
    inputs = normal(1, 14, SIZE).requires_grad_()
    reset = resets(1, 14, (0, 5))
    output = core(inputs, reset, core.initial_state(1))
    assert core.compression_parameters() == []
    assert output.losses == {}

    sources = [inputs, *core.parameters()]
    of_core = torch.autograd.grad(output.features.square().sum(), sources)
    literal = Literal(core).run(inputs[0], reset[0])
    of_literal = torch.autograd.grad(literal.square().sum(), sources)
    for actual, expected in zip(of_core, of_literal):
        assert_same(actual, expected, 1e-9)


def test_gradients_flow_through_memory_and_not_through_compression(build: Callable[..., Any]) -> None:
    """The last of twelve steps: eight are in segment and memory, the four before them were compressed."""
    core = build(config_of(num_layers=1))
    inputs = normal(1, 12, SIZE).requires_grad_()
    features = core(inputs, resets(1, 12), core.initial_state(1)).features
    features[0, 11].square().sum().backward()
    has_gradient = inputs.grad[0].abs().sum(dim=1) > 0
    assert has_gradient.tolist() == [False] * 4 + [True] * 8


def test_the_most_used_are_memories_of_the_present_episode() -> None:
    """However much attention those of the episode before have had."""
    keep_two_of_four = COMPRESSIONS["most-used"](1, 2)
    evicted = torch.tensor([[[0.0], [0.0], [3.0], [4.0]]])
    valid = torch.tensor([[False, False, True, True]])
    slots, source = keep_two_of_four(evicted, valid, usage=torch.tensor([[0.9, 0.8, 0.2, 0.1]]))
    assert slots.flatten().tolist() == [3.0, 4.0]
    assert source.tolist() == [[2, 3]]
