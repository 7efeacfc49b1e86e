"""Operations on states, and caches of keys and values that states share."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import agent.core
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
    """A state whose first layer has the numbers from `start` on, two for each row."""
    first = torch.arange(2.0 * rows).view(rows, 2) + start
    return Example((first, -first), valid=first[:, 0] > 1, offset=offset)


def test_names_that_are_imported_on_first_use_can_be_found() -> None:
    found = dir(agent.core)
    assert {"make_core", "FlatCore", "index_state", "restore_state", "matched_cores"} <= {*found}
    for name in found:
        getattr(agent.core, name)


def test_states_are_joined_and_indexed_along_the_batch() -> None:
    joined = concatenate_states([example(2), example(1, 10.0)])
    assert type(joined) is Example
    assert type(joined.layers) is tuple
    assert joined.offset == 3
    assert joined.cache is None
    assert joined.layers[0].tolist() == [[0, 1], [2, 3], [10, 11]]
    assert index_state(joined, slice(2, 3)).layers[0].tolist() == [[10, 11]]
    assert index_state(joined, torch.tensor([2, 0])).valid.tolist() == [True, False]


def test_leaves_of_states() -> None:
    state = example(3)
    assert [leaf.shape for leaf in leaves(state)] == [(3, 2), (3, 2), (3,)]
    assert state_bytes(state) == 2 * 3 * 2 * 4 + 3, "two of float32 and one of bool"
    assert all(leaf.device.type == "meta" for leaf in leaves(state_to(state, "meta")))


def test_functions_of_the_leaves_of_states() -> None:
    state = example(3)
    arrays = map_state(lambda leaf: leaf.numpy(), state)
    assert isinstance(arrays.valid, np.ndarray)
    assert torch.equal(map_state(torch.from_numpy, arrays).layers[1], state.layers[1])

    state.layers[0].requires_grad_()
    doubled = map_state(lambda leaf: 2 * leaf, state)
    assert doubled.layers[0].requires_grad
    assert not detach_state(doubled).layers[0].requires_grad


def test_a_state_is_filled_in_the_order_of_its_leaves() -> None:
    source = example(2, 10.0)
    filled = fill_state(example(3, offset=5), leaves(source))
    assert type(filled) is Example
    assert filled.offset == 5
    assert filled.cache is None
    for leaf, expected in zip(leaves(filled), leaves(source), strict=True):
        assert leaf is expected
    tensors = list(leaves(source))
    for wrong in (tensors[:2], [*tensors, tensors[0]]):
        with pytest.raises(ValueError, match=f"tensors: expected 3 as in the state, got {len(wrong)}"):
            fill_state(source, wrong)


def test_states_that_do_not_fit_together_are_named() -> None:
    one = example(1)
    other_offset = example(1, offset=4)
    cached = example(1)._replace(cache=torch.zeros(1))
    for states in ([one, other_offset], [one, cached], [cached, cached, one]):
        message = "states: expected one offset into the segment, and a cache in all or none"
        with pytest.raises(ValueError, match=message):
            concatenate_states(states)
    with pytest.raises(TypeError, match="state: expected tensors, ints, None, KVCache and tuples of them, got list"):
        map_state(torch.clone, [torch.zeros(1)])


def test_plain_tuples_become_states() -> None:
    layers = (torch.ones(1, 2), torch.ones(1, 2))
    valid = torch.zeros(1)
    state = restore_state((layers, valid, 5, None), example(1))
    assert type(state) is Example
    assert state.offset == 5
    assert state.layers[1].tolist() == [[1, 1]]

    two_rows = (torch.zeros(2, 2), torch.zeros(2, 2))
    for nest, message in (
        ((two_rows, valid, 3, None), "state: expected a tensor of [1, 2], got a tensor of [2, 2]"),
        (((0, 0), valid, 3, None), "state: expected a tensor of [1, 2], got 0"),
        ((layers, valid, None, None), "state: expected 3, got None"),
        (((*layers, valid), valid, 3, None), "state: expected 2 parts, got 3 parts"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            restore_state(nest, example(1))


def test_states_with_a_cache_may_be_continued_more_than_once(build: Callable[..., Any]) -> None:
    """The newest state writes in place; every other one copies first."""
    core = build(config_of())
    reset = resets(3, 12)
    inputs = normal(3, 12, SIZE)
    others = normal(3, 12, SIZE) + 1
    begin = remembered(core, inputs, reset)

    def steps(state: Any, source: Tensor, first: int, stop: int) -> Any:
        """The state after the steps `first` to `stop` - 1 of a source, one by one."""
        for t in range(first, stop):
            state = core(source[:, t : t + 1], reset[:, t : t + 1], state).state
        return state

    def check(cached: Any, *parts: Any, rows: slice = slice(None)) -> None:
        """The state equals that after (source, first, stop) of each part, without a cache."""
        expected = index_state(begin, rows)
        for source, first, stop in parts:
            expected = core(source[rows, first:stop], reset[rows, first:stop], expected).state
        for actual, wanted in zip(leaves(core.without_cache(cached)), leaves(expected), strict=True):
            assert_same(actual, wanted)

    with torch.no_grad():
        first = steps(core.with_cache(begin), inputs, 0, 1)
        second = steps(first, inputs, 1, 2)
        assert second.segment[0] is first.segment[0], "not copied"
        branch = steps(first, others, 1, 3)
        assert branch.segment[0] is not first.segment[0]
        part = index_state(second, slice(0, 2))
        part = core(others[:2, 2:3], reset[:2, 2:3], part).state  # before all of the rows

        # Both are continued in turn, across the end of the segment.
        for t in range(2, 6):
            second = steps(second, inputs, t, t + 1)
            branch = steps(branch, others, t + 1, t + 2)
        check(first, (inputs, 0, 1))
        check(second, (inputs, 0, 6))
        check(branch, (inputs, 0, 1), (others, 1, 7))
        check(part, (inputs, 0, 2), (others, 2, 3), rows=slice(0, 2))

        joined = concatenate_states([second, second])
        assert joined.cache[0].near is second.cache[0].near, "encodings of distances are shared by the rows"

    learned = core(inputs[:, 1:3], reset[:, 1:3], first)
    assert learned.state.segment[0] is not first.segment[0], "learning never writes into its arguments"


@pytest.mark.parametrize("position", ["slot", "time"])
def test_a_whole_cache_is_detached_and_moved(build: Callable[..., Any], position: str) -> None:
    """With the encodings of distances, which rows share."""
    core = build(config_of(num_layers=1, compressed_position=position))
    cached = core.with_cache(core.initial_state(2))

    def tensors(state: Any) -> list[Tensor]:
        (cache,) = state.cache
        parts = [cache.keys, cache.values, cache.near]
        return parts if cache.far is None else [*parts, cache.far]

    assert all(part.requires_grad for part in tensors(cached))
    assert not any(part.requires_grad for part in tensors(detach_state(cached)))
    assert all(part.is_meta for part in tensors(state_to(cached, "meta")))


def test_a_cache_means_that_only_new_steps_are_projected(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = build(config_of())
    inputs = normal(1, 12, SIZE)
    reset = resets(1, 12)

    # How many slots the first layer projects in each call.
    projected = []
    attention = core.layers[0].attention
    project = attention.project

    def record(slots: Tensor, *norm: Any) -> Any:
        projected.append(slots.shape[1])
        return project(slots, *norm)

    monkeypatch.setattr(attention, "project", record)
    with torch.no_grad():
        state = core.with_cache(remembered(core, inputs, reset))
        for t in range(8):
            projected.clear()
            state = core(inputs[:, t : t + 1], reset[:, t : t + 1], state).state
            # When a full segment enters memory, only the newly compressed slots are new.
            ends_segment = t % 4 == 3
            assert projected == ([1, 2] if ends_segment else [1])
        projected.clear()
        core(inputs, reset, core.without_cache(state))
        # The incoming slots, and each segment with what was compressed before it; nothing after the last one.
        assert projected == [8, 4, 2, 4, 2, 4]


@pytest.mark.parametrize(("device", "may_be_late"), [("cpu", False), ("meta", False), ("cuda", True)])
def test_only_copies_to_a_gpu_may_be_late(device: str, may_be_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host would read what has not arrived."""
    asked = []

    def move(tensor: Tensor, device: str, non_blocking: bool) -> Tensor:
        asked.append(non_blocking)
        return tensor

    monkeypatch.setattr(Tensor, "to", move)
    state_to((torch.zeros(2),), device)
    assert asked == [may_be_late]
