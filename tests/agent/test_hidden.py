"""Slots that steps do not see: what a memory caused is measured by leaving it out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.core import GatedTransformerXLConfig, RoutingTransformerConfig, Transformer, TransformerXLConfig
from tests.agent.tiny import SIZE, assert_same, config_of, normal, resets

SIZES = {"model_size": SIZE, "num_layers": 2, "num_heads": 2, "mlp_size": 6, "segment_size": 4, "memory_size": 4}
CONFIGS = {
    "compressive": config_of(4, (4, 2), (4, 3), (2, 4)),
    "compressed position": config_of(compressed_position="time", norm="pre"),
    "transformer-xl": TransformerXLConfig(**SIZES),
    "gated": GatedTransformerXLConfig(**SIZES),
    "routing": RoutingTransformerConfig(**SIZES, window=3, clusters=2, groups=1),
    "groups": RoutingTransformerConfig(**{**SIZES, "num_heads": 4}, window=3, clusters=2, groups=2),
}
ROWS, STEPS = 3, 26


@pytest.fixture(params=CONFIGS)
def core(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Transformer[Any, Any]:
    return build(CONFIGS[request.param])


def remembering(core: Transformer[Any, Any]) -> Any:
    """A state after two steps of a segment; the second row's episode is young."""
    with torch.no_grad():
        state = core.initial_state(ROWS)
        return core(normal(ROWS, STEPS, SIZE), resets(ROWS, STEPS, (1, 19)), state).state


def step(core: Transformer[Any, Any], state: Any, hidden: list[Tensor] | None = None, reset: bool = False) -> Any:
    """The output of one more step of each row."""
    inputs = normal(ROWS, 1, SIZE, seed=5)
    with torch.no_grad():
        return core(inputs, torch.full((ROWS, 1), reset), state, return_attention=True, hidden=hidden)


def slots(core: Transformer[Any, Any], value: bool) -> list[Tensor]:
    """All slots of each layer hidden, or none."""
    return [torch.full((ROWS, layer.sizes.slots), value) for layer in core.layers]


@pytest.mark.parametrize("cached", [False, True])
def test_without_all_slots_it_is_the_first_step_of_an_episode(core: Transformer[Any, Any], cached: bool) -> None:
    state = remembering(core)
    first = step(core, state, reset=True)
    if cached:
        state = core.with_cache(state)
    alone = step(core, state, slots(core, True))
    assert_same(alone.features, first.features)
    assert not torch.allclose(alone.features, step(core, state).features)


def test_slots_without_attention_cannot_matter(core: Transformer[Any, Any]) -> None:
    """Empty ones, and those of another episode: the effect is exactly 0."""
    state = remembering(core)
    plain = step(core, state)
    hidden = []
    for weights in plain.attention:
        unseen = (weights[:, :, 0] == 0).all(dim=1)
        assert unseen.any()
        hidden.append(unseen)
    assert_same(step(core, state, hidden).features, plain.features, 0)


def test_hidden_slots_get_no_attention(core: Transformer[Any, Any]) -> None:
    """Each row has hidden slots of its own."""
    state = remembering(core)
    hidden = slots(core, False)
    generator = torch.Generator().manual_seed(0)
    for of_layer in hidden:
        of_layer.copy_(torch.rand(of_layer.shape, generator=generator) < 0.5)
    found = step(core, state, hidden)
    for weights, of_layer, layer in zip(found.attention, hidden, core.layers):
        older, memory, _ = layer.sizes.by_kind
        own_slot = older + memory + state.offset
        of_layer[:, own_slot] = False  # it is always seen
        hidden_for_heads = of_layer[:, None].expand_as(weights[:, :, 0])
        assert (weights[:, :, 0][hidden_for_heads] == 0).all()
        assert_same(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))

    # What is hidden from one row changes nothing for the others.
    for row in range(ROWS):
        of_row = slots(core, False)
        for part, all_rows in zip(of_row, hidden):
            part[row] = all_rows[row]
        assert_same(step(core, state, of_row).features[row], found.features[row])


def test_without_memory_it_is_a_core_that_never_had_any(build: Callable[..., Any]) -> None:
    core = build(CONFIGS["compressive"])
    state = remembering(core)

    # A core without memory, with the same weights and the same segment.
    without = build(config_of(4, 0, 0))
    own = {name: weight for name, weight in core.state_dict().items() if name in without.state_dict()}
    without.load_state_dict(own)
    empty = without.initial_state(ROWS)._replace(segment=state.segment, age=state.age, offset=state.offset)

    # All slots but those of the segment are hidden.
    hidden = slots(core, True)
    for layer, part in zip(core.layers, hidden):
        older, memory, _ = layer.sizes.by_kind
        part[:, older + memory :] = False
    assert_same(step(core, state, hidden).features, step(without, empty).features)


def test_calls_beyond_the_segment_are_refused(core: Transformer[Any, Any]) -> None:
    state = remembering(core)
    with pytest.raises(ValueError, match="hidden: expected at most 2 steps, which are left of the segment, got 3"):
        core(normal(ROWS, 3, SIZE), resets(ROWS, 3), state, hidden=slots(core, True))
