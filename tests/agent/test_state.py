"""Operations on states, and caches of keys and values that states share."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from agent.core import (
    State,
    concatenate_states,
    detach_state,
    fill_state,
    index_state,
    leaves,
    map_state,
    restore_state,
    state_bytes,
    state_to,
)
from tests.agent.tiny import SIZE, assert_same, config_of, normal, remembered, resets


class Example(NamedTuple):
    layers: tuple[Tensor, Tensor]
    valid: Tensor
    offset: int
    cache: State = None


def example(rows: int, start: float = 0.0, offset: int = 3) -> Example:
    first = torch.arange(2.0 * rows).view(rows, 2) + start
    return Example((first, -first), first[:, 0] > 1, offset)


def test_operations_on_states() -> None:
    joined = concatenate_states([example(2), example(1, 10.0)])
    assert (type(joined), type(joined.layers), joined.offset, joined.cache) == (Example, tuple, 3, None)
    assert joined.layers[0].tolist() == [[0, 1], [2, 3], [10, 11]]
    assert index_state(joined, slice(2, 3)).layers[0].tolist() == [[10, 11]]
    assert index_state(joined, torch.tensor([2, 0])).valid.tolist() == [True, False]
    assert [leaf.shape for leaf in leaves(joined)] == [(3, 2), (3, 2), (3,)]
    assert state_bytes(joined) == 2 * 3 * 2 * 4 + 3
    assert all(leaf.device.type == "meta" for leaf in leaves(state_to(joined, "meta")))
    arrays = map_state(lambda leaf: leaf.numpy(), joined)
    assert isinstance(arrays.valid, np.ndarray)
    assert torch.equal(map_state(torch.from_numpy, arrays).layers[1], joined.layers[1])
    joined.layers[0].requires_grad_()
    assert not detach_state(map_state(lambda leaf: 2 * leaf, joined)).layers[0].requires_grad


def test_a_state_is_filled_in_the_order_of_its_leaves() -> None:
    source = example(2, 10.0)
    filled = fill_state(example(3, offset=5), leaves(source))
    assert (type(filled), filled.offset, filled.cache) == (Example, 5, None)
    for leaf, expected in zip(leaves(filled), leaves(source), strict=True):
        assert leaf is expected
    tensors = list(leaves(source))
    for wrong in (tensors[:2], [*tensors, tensors[0]]):
        with pytest.raises(ValueError, match=f"tensors: expected 3 as in the state, got {len(wrong)}"):
            fill_state(source, wrong)


def test_states_that_do_not_fit_together_are_named() -> None:
    one, other = example(1), example(1)._replace(cache=torch.zeros(1))
    for states in ([one, example(1, offset=4)], [one, other], [other, other, one]):
        message = "states: expected one offset into the segment, and a cache in all or none"
        with pytest.raises(ValueError, match=message):
            concatenate_states(states)
    with pytest.raises(TypeError, match="state: expected tensors, ints, None, KVCache and tuples of them, got list"):
        map_state(torch.clone, [torch.zeros(1)])


def test_plain_tuples_become_states() -> None:
    two, valid = (torch.ones(1, 2),) * 2, torch.zeros(1)
    state = restore_state((two, valid, 5, None), example(1))
    assert (type(state), state.offset, state.layers[1].tolist()) == (Example, 5, [[1, 1]])
    for nest, message in (
        (((torch.zeros(2, 2),) * 2, valid, 3, None), "state: expected a tensor of [1, 2], got a tensor of [2, 2]"),
        (((0, 0), valid, 3, None), "state: expected a tensor of [1, 2], got 0"),
        ((two, valid, None, None), "state: expected 3, got None"),
        (((*two, valid), valid, 3, None), "state: expected 2 parts, got 3 parts"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            restore_state(nest, example(1))


def test_states_with_a_cache_may_be_continued_more_than_once(build: Callable[..., Any]) -> None:
    """The newest state writes in place; every other one copies first."""
    core, reset = build(config_of()), resets(3, 12)
    inputs, others = normal(3, 12, SIZE), normal(3, 12, SIZE) + 1
    begin = remembered(core, inputs, reset)

    def steps(state: Any, source: Tensor, first: int, last: int) -> Any:
        for t in range(first, last):
            state = core(source[:, t : t + 1], reset[:, t : t + 1], state).state
        return state

    def same(cached: Any, *parts: Any, rows: slice = slice(None)) -> None:
        expected = index_state(begin, rows)
        for source, first, last in parts:
            expected = core(source[rows, first:last], reset[rows, first:last], expected).state
        for actual, wanted in zip(leaves(core.without_cache(cached)), leaves(expected), strict=True):
            assert_same(actual, wanted)

    with torch.no_grad():
        first = steps(core.with_cache(begin), inputs, 0, 1)
        second = steps(first, inputs, 1, 2)
        assert second.segment[0] is first.segment[0], "not copied"
        branch = steps(first, others, 1, 3)
        assert branch.segment[0] is not first.segment[0]
        part = index_state(second, slice(0, 2))
        for t in range(2, 6):  # both at once, across the end of the segment
            second, branch = steps(second, inputs, t, t + 1), steps(branch, others, t + 1, t + 2)
        part = core(others[:2, 2:3], reset[:2, 2:3], part).state
        same(first, (inputs, 0, 1))
        same(second, (inputs, 0, 6))
        same(branch, (inputs, 0, 1), (others, 1, 7))
        same(part, (inputs, 0, 2), (others, 2, 3), rows=slice(0, 2))
        joined = concatenate_states([second, second])
        assert joined.cache[0].near is second.cache[0].near, "encodings of distances are shared by the rows"
    learned = core(inputs[:, 1:3], reset[:, 1:3], first)
    assert learned.state.segment[0] is not first.segment[0], "learning never writes into its arguments"


def test_a_cache_means_that_only_new_steps_are_projected(build: Callable[..., Any]) -> None:
    core, inputs, reset = build(config_of()), normal(1, 12, SIZE), resets(1, 12)
    projected, attention = [], core.layers[0].attention
    project = attention.project
    attention.project = lambda slots, *norm: (projected.append(slots.shape[1]), project(slots, *norm))[1]
    with torch.no_grad():
        state = core.with_cache(remembered(core, inputs, reset))
        for t in range(8):
            projected.clear()
            state = core(inputs[:, t : t + 1], reset[:, t : t + 1], state).state
            # When a full segment enters memory, only the newly compressed slots are new.
            assert projected == ([1] if t % 4 != 3 else [1, 2])
        projected.clear()
        core(inputs, reset, core.without_cache(state))
        # The incoming slots, and each segment with what was compressed before it; nothing after the last one.
        assert projected == [8, 4, 2, 4, 2, 4]
