"""Operations on recurrent states of any core.

A state is a nest of (named) tuples. Its leaves are tensors (in transport: numpy arrays), batch first; integers, which
the whole batch shares; a `KVCache`, or None where there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .cache import KVCache

State = Any
"""The state of any core; each core documents its own NamedTuple."""


def map_state(function: Callable[..., Any], *states: State) -> State:
    """Applies `function` to the corresponding tensors of states of one structure; returns a state of the results.

    Raises:
        ValueError: if integers differ (the states are at different steps of their segments), or if only some of the
            states have a cache.
        TypeError: if a leaf is of none of the types above.
    """
    first = states[0]

    # What the batch shares must be equal, and is returned as it is.
    shared = []
    for state in states:
        if state is None or isinstance(state, int):
            shared.append(state)
    if shared:
        in_all = len(shared) == len(states)
        different = set(shared)
        if not in_all or len(different) > 1:
            raise ValueError(f"states: expected one offset into the segment, and a cache in all or none, got {shared}")
        return first

    if hasattr(first, "shape"):  # a tensor or a numpy array; this package imports torch alone
        return function(*states)
    if isinstance(first, KVCache):
        return first.map(function, *states[1:])
    if isinstance(first, tuple):
        # Field by field: the parts are those of all states.
        children = []
        for parts in zip(*states, strict=True):
            child = map_state(function, *parts)
            children.append(child)
        return _like(first, children)
    raise TypeError(f"state: expected tensors, ints, None, KVCache and tuples of them, got {type(first).__name__}")


def restore_state(nest: Any, like: State) -> State:
    """Gives plain tuples, as read from a file, the types and devices of `like`, an initial state of the core.

    Raises:
        ValueError: if structure or shapes differ from those of `like`.
    """
    if isinstance(like, tuple):
        if isinstance(nest, tuple) and len(nest) == len(like):
            children = [restore_state(part, like_part) for part, like_part in zip(nest, like)]
            return _like(like, children)
    elif isinstance(like, Tensor):
        if isinstance(nest, Tensor) and nest.shape == like.shape:
            return nest.to(like.device)
    elif type(nest) is type(like):
        # An offset, or None.
        return nest
    expected = _describe(like)
    raise ValueError(f"state: expected {expected}, got {_describe(nest)}")


def _describe(nest: Any) -> str:
    """A part of a state in a few words, for errors."""
    if isinstance(nest, Tensor):
        return f"a tensor of {list(nest.shape)}"
    if isinstance(nest, tuple):
        return f"{len(nest)} parts"
    return f"{nest!r:.60}"


def _like(part: tuple, children: Sequence[Any]) -> tuple:
    """A tuple of the children, of the type of `part`."""
    if hasattr(part, "_fields"):  # a NamedTuple takes its fields one by one
        return type(part)(*children)
    return tuple(children)


def leaves(state: State) -> Iterator[Tensor]:
    """Yields the tensors of a state, depth first."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, KVCache):
        yield from (state.keys, state.values)
    elif isinstance(state, tuple):
        for part in state:
            yield from leaves(part)


def fill_state(like: State, tensors: Iterable[Tensor]) -> State:
    """A state formed as `like`, with these tensors in the order of `leaves`.

    Raises:
        ValueError: if there are more or fewer tensors than `like` has.
    """
    given = list(tensors)
    expected = len(list(leaves(like)))
    if len(given) != expected:
        raise ValueError(f"tensors: expected {expected} as in the state, got {len(given)}")
    remaining = iter(given)
    # `map_state` visits tensors in the order in which `leaves` yields them.
    return map_state(lambda _: next(remaining), like)


def offset_of(state: State) -> int | None:
    """The steps so far of the segment in progress, which all rows share; None if the state does not count them.

    Raises:
        ValueError: if several parts of the state count, and differ.
    """
    found = set(_integers(state))
    if len(found) > 1:
        raise ValueError(f"state: expected one offset into the segment, got {sorted(found)}")
    return found.pop() if found else None


def with_offset(state: State, offset: int) -> State:
    """The state with this offset wherever it counts steps; its tensors stay as they are."""
    if isinstance(state, int):
        return offset
    if isinstance(state, tuple):
        return _like(state, [with_offset(part, offset) for part in state])
    return state


def _integers(state: State) -> Iterator[int]:
    """Yields the integers of a state."""
    if isinstance(state, int):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from _integers(part)


def concatenate_states(states: Sequence[State]) -> State:
    """Joins states along the batch."""
    return map_state(lambda *parts: torch.cat(parts, dim=0), *states)


def index_state(state: State, index: slice | Tensor | list[int]) -> State:
    """Selects rows of the batch; `index` is a slice, an index tensor or a list of ints (an int would drop the axis)."""
    if isinstance(index, Tensor) and index.dtype == torch.int64:
        # Whole rows are copied; with brackets each byte of an image would be, at a third of the speed on a CPU.
        return map_state(lambda leaf: leaf.index_select(0, index.to(leaf.device)), state)
    return map_state(lambda leaf: leaf[index], state)


def detach_state(state: State) -> State:
    """Detaches the state from the graph that made it."""
    return _map_everything(Tensor.detach, state)


def state_to(state: State, device: torch.device | str) -> State:
    """Moves the state to a device."""
    # Towards a GPU the host need not wait. From a GPU it must, or it could read what has not arrived.
    to_gpu = torch.device(device).type == "cuda"
    return _map_everything(lambda leaf: leaf.to(device, non_blocking=to_gpu), state)


def _map_everything(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Applies a function to all tensors, also to those of caches that the batch shares."""
    if state is None or isinstance(state, int):
        return state
    if isinstance(state, KVCache):
        return state.map(function).map_shared(function)
    if isinstance(state, tuple):
        return _like(state, [_map_everything(function, part) for part in state])
    return function(state)


def state_bytes(state: State) -> int:
    """Size of the state in bytes, over the whole batch."""
    size = 0
    for leaf in leaves(state):
        size += leaf.numel() * leaf.element_size()
    return size
