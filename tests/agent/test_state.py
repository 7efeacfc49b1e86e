"""Operations on states of any build."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from agent.core import (
    Shared,
    State,
    concatenate_states,
    detach_state,
    index_state,
    leaves,
    map_state,
    state_bytes,
    state_to,
)


class Example(NamedTuple):
    layers: tuple[Tensor, Tensor]
    valid: Tensor
    phase: int
    cache: State = None


def example(rows: int, offset: float = 0.0, phase: int = 3) -> Example:
    first = torch.arange(2.0 * rows).view(rows, 2) + offset
    return Example((first, -first), first[:, 0] > 1, phase)


def test_map_keeps_the_build() -> None:
    doubled = map_state(lambda leaf: 2 * leaf, example(2))
    assert type(doubled) is Example
    assert type(doubled.layers) is tuple
    assert doubled.layers[1].tolist() == [[0, -2], [-4, -6]]
    assert (doubled.phase, doubled.cache) == (3, None)


def test_map_takes_numpy_arrays() -> None:
    arrays = map_state(lambda leaf: leaf.numpy(), example(2))
    assert isinstance(arrays.valid, np.ndarray)
    assert torch.equal(map_state(torch.from_numpy, arrays).layers[0], example(2).layers[0])


def test_concatenate_and_index_are_inverse() -> None:
    joined = concatenate_states([example(2), example(1, 10.0)])
    assert joined.layers[0].tolist() == [[0, 1], [2, 3], [10, 11]]
    assert index_state(joined, slice(2, 3)).layers[0].tolist() == [[10, 11]]
    assert index_state(joined, torch.tensor([2, 0])).valid.tolist() == [True, False]


def test_leaves_bytes_and_device() -> None:
    state = example(3)
    assert [leaf.shape for leaf in leaves(state)] == [(3, 2), (3, 2), (3,)]
    assert state_bytes(state) == 2 * 3 * 2 * 4 + 3
    assert all(leaf.device.type == "meta" for leaf in leaves(state_to(state, "meta")))


def test_detach_cuts_the_graph() -> None:
    state = example(2)
    state.layers[0].requires_grad_()
    grown = map_state(lambda leaf: 2 * leaf, state)
    assert grown.layers[0].requires_grad
    assert not detach_state(grown).layers[0].requires_grad


def test_shared_parts_belong_to_no_row() -> None:
    shared = Shared(torch.arange(5.0))
    state = (torch.arange(6.0).view(3, 2), shared)
    joined = concatenate_states([state, state])
    assert joined[0].shape == (6, 2)
    for result in (joined, index_state(state, [1]), detach_state(state), map_state(torch.clone, state)):
        assert result[1] is shared
    (only,) = leaves(state)
    assert only is state[0]
    assert state_bytes(state) == 24


@pytest.mark.parametrize("cache", [torch.zeros(1), (torch.zeros(1),), Shared(0), 3])
def test_states_with_and_without_a_cache_do_not_mix(cache) -> None:
    one, other = example(1), example(1)._replace(cache=cache)
    for mixed in ([one, other], [other, one], [other, other, one]):
        with pytest.raises(ValueError, match="states: expected all of them with a cache or none, got both"):
            concatenate_states(mixed)
    assert concatenate_states([one, one]).cache is None
    assert concatenate_states([other, other]).cache is not None


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"states are at different phases: \[3, 4\]; expected one phase"):
        concatenate_states([example(1), example(1, phase=4)])
    with pytest.raises(TypeError, match="a state holds tensors, ints, None, Shared and tuples of them; got list"):
        map_state(torch.clone, [torch.zeros(1)])
