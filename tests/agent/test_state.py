"""Operations on states of any build."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from agent.core import concatenate_states, detach_state, index_state, leaves, map_state, state_bytes, state_to
from agent.core.state import State


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


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"states are at different phases: \[3, 4\]; expected one phase"):
        concatenate_states([example(1), example(1, phase=4)])
    with pytest.raises(ValueError, match="states: expected all of them with a cache or none, got both"):
        concatenate_states([example(1), example(1)._replace(cache=(torch.zeros(1),))])
    with pytest.raises(TypeError, match="a state holds tensors, ints, None and tuples of them; got list"):
        map_state(torch.clone, [torch.zeros(1)])
