"""The attention that is returned, its parts against their formulas, and FlexAttention."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.core import leaves
from tests.agent.tiny import HEADS, NORMS, POSITIONS, SIZE, assert_same, config_of, normal, resets, sum_losses, validity


@pytest.mark.parametrize("cached", [False, True])
def test_returned_attention_is_the_attention_used(build: Callable[..., Any], cached: bool) -> None:
    core = build(config_of(4, 6, 3, 2, norm="pre", compressed_position="time"))
    inputs = normal(2, 30, SIZE)
    reset = resets(2, 30, (0, 13), (1, 22))
    state = core.initial_state(2)
    with torch.no_grad():
        begin = core.with_cache(state) if cached else state
        fast = core(inputs, reset, state)
        shown = core(inputs, reset, begin, return_attention=True)
    assert fast.attention is None
    assert_same(shown.features, fast.features)
    for actual, expected in zip(leaves(core.without_cache(shown.state)), leaves(fast.state), strict=True):
        assert_same(actual, expected)
    assert [weights.shape for weights in shown.attention] == [(2, HEADS, 30, 3 + 6 + 4)] * 2
    for weights in shown.attention:
        assert_same(weights.sum(dim=-1), torch.ones(2, HEADS, 30).double())


def test_attention_is_zero_exactly_where_a_slot_is_invalid(build: Callable[..., Any]) -> None:
    n_s, n_m, n_cm = 4, 6, 3
    core = build(config_of(n_s, n_m, n_cm, 2))
    inputs = normal(2, 40, SIZE)
    reset = resets(2, 40, (0, 13), (1, 22), (1, 23))
    whole = core(inputs, reset, core.initial_state(2), return_attention=True).attention
    state = core.initial_state(2)
    for t in range(40):
        # At an episode start only the step itself is valid.
        valid = torch.cat(validity(core, state), dim=1) & ~reset[:, t, None]
        valid[:, n_cm + n_m + state.offset] = True
        output = core(inputs[:, t : t + 1], reset[:, t : t + 1], state, return_attention=True)
        for weights, of_whole in zip(output.attention, whole):
            assert torch.equal(weights[:, :, 0] > 0, valid[:, None].expand(-1, HEADS, -1))
            assert_same(of_whole[:, :, t], weights[:, :, 0])
        state = output.state
    compressed_valid, memory_valid, _ = validity(core, state)
    assert compressed_valid.all()
    assert memory_valid.all()


def test_attention_by_kind_sums_the_weights_of_each_kind(build: Callable[..., Any]) -> None:
    n_s = 4
    n_m = (6, 1)
    n_cm = (3, 4)
    core = build(config_of(n_s, n_m, n_cm, 2))
    output = core(normal(2, 30, SIZE), resets(2, 30, (0, 13)), core.initial_state(2), return_attention=True)
    assert [weights.shape for weights in output.attention] == [(2, HEADS, 30, 13), (2, HEADS, 30, 9)]
    kinds = core.attention_by_kind(output.attention)
    assert kinds.shape == (2, 2, HEADS, 30, 3)
    for layer, weights in enumerate(output.attention):
        parts = weights.split([n_cm[layer], n_m[layer], n_s], dim=-1)
        for kind, part in enumerate(parts):
            assert_same(kinds[layer, ..., kind], part.sum(dim=-1))
    assert_same(kinds.sum(dim=-1), torch.ones(2, 2, HEADS, 30).double())
    assert not kinds[:, 0, :, 13, :2].any(), "at an episode start there is no memory"


SHAPES = pytest.mark.parametrize(
    ("sizes", "position"), [((4, 6, 3, 2), "slot"), ((6, 2, 4, 3), "time"), ((4, 5, 0, 1), "slot")], ids=str
)
"""n_s, n_m, n_cm and c, and the position of compressed slots."""


@SHAPES
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_the_same(build: Callable[..., Any], sizes: Any, position: str) -> None:
    config = config_of(*sizes, compressed_position=position)
    core = build(config)
    flex = build(dataclasses.replace(config, attention="flex"))
    inputs = normal(2, 30, SIZE)
    reset = resets(2, 30, (0, 13), (1, 22))
    with torch.no_grad():
        expected = core(inputs, reset, core.initial_state(2))
        actual = flex(inputs, reset, flex.initial_state(2))
    assert_same(actual.features, expected.features)
    assert_same(actual.state.compressed[-1], expected.state.compressed[-1])

    flex.float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = flex(inputs.float(), reset, flex.initial_state(2))
    assert_same(mixed.features.double(), expected.features, 0.2)


@SHAPES
@pytest.mark.gpu
def test_flex_attention_learns_the_same_when_compiled(build: Callable[..., Any], sizes: Any, position: str) -> None:
    config = config_of(*sizes, compressed_position=position, model_size=32)  # kernels need 16 or more a head
    inputs = normal(2, 30, 32).float().cuda()
    reset = resets(2, 30, (0, 13), (1, 22)).cuda()

    def learn(attention: str) -> torch.Tensor:
        """The features and all gradients."""
        core = build(dataclasses.replace(config, attention=attention), torch.float32).cuda()
        model = torch.compile(core, fullgraph=True) if attention == "flex" else core
        output = model(inputs, reset, core.initial_state(2))
        output.features.square().mean().backward()
        grads = []
        for parameter in core.parameters():
            # Compiled code gives zeros where nothing depends on a parameter, here on the compression's.
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            grads.append(grad.flatten())
        return torch.cat([output.features.detach().flatten(), *grads])

    assert_same(learn("sdpa"), learn("flex"), 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_gpu_gives_the_same(build: Callable[..., Any], norm: str, position: str) -> None:
    core = build(config_of(5, 7, 3, 5, model_size=16, norm=norm, gate="gru", compressed_position=position))
    inputs = normal(3, 33, 16)
    reset = resets(3, 33, (0, 13), (2, 22))

    def learn(device: str, dtype: torch.dtype) -> torch.Tensor:
        """The features and all gradients."""
        core.to(device, dtype).zero_grad()
        output = core(inputs.to(device, dtype), reset.to(device), core.initial_state(3))
        (output.features.square().mean() + sum_losses(output)).backward()
        grads = [parameter.grad.flatten() for parameter in core.parameters()]
        return torch.cat([output.features.detach().flatten(), *grads]).double().cpu()

    expected = learn("cpu", torch.float64)
    assert_same(learn("cuda", torch.float64), expected, 1e-6)
    assert_same(learn("cuda", torch.float32), expected, 1e-3)
