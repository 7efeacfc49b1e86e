"""Observations of any numbers as vectors: as gymnasium's `flatten` makes them, but several times as fast."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.outputs import at, leaves

Vector = NDArray[np.float32]


def flattener(space: spaces.Space[Any]) -> Callable[[Any], Vector]:
    """A function that flattens values of a space, to float32 [`flatdim(space)`], as `gymnasium.spaces.flatten` does.

    Args:
        space: of numbers, or a Dict or Tuple of such spaces. Values must be as it says; see `envs.outputs.conformer`.
    """
    if isinstance(space, spaces.Box):
        return lambda value: np.asarray(value, np.float32).ravel()
    size = spaces.flatdim(space)
    write = _writer(space, 0)

    def flatten(value: Any) -> Vector:
        vector = np.zeros(size, np.float32)
        write(vector, value)
        return vector

    return flatten


def batch_flattener(space: spaces.Space[Any]) -> Callable[[Any], Vector]:
    """The `flattener` of values that are batches, [N, ...] at every leaf: to float32 [N, `flatdim(space)`], a copy."""
    parts = list(leaves(space))

    def flatten(value: Any) -> Vector:
        columns = [_batch_columns(part, at(value, place)) for place, part in parts]
        return np.concatenate(columns, axis=1, dtype=np.float32)

    return flatten


def _batch_columns(space: Any, values: Any) -> NDArray[Any]:
    """The columns [N, `flatdim(space)`] of a batch of values of one space."""
    rows = len(values)
    if isinstance(space, spaces.Discrete):
        return np.asarray(values)[:, None] == space.start + np.arange(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        chosen = (np.asarray(values) - space.start).reshape(rows, -1)  # [N, elements], from 0
        one_hots = []
        for index, count in enumerate(space.nvec.ravel().tolist()):
            one_hots.append(chosen[:, index, None] == np.arange(count))
        return np.concatenate(one_hots, axis=1)
    return np.reshape(values, (rows, -1))


def _writer(space: Any, begin: int) -> Callable[[Vector, Any], None]:
    """A function that writes a value into a vector of zeros, from the index `begin` on."""
    if isinstance(space, spaces.Dict):
        return _nest_writer(space.spaces, begin)
    if isinstance(space, spaces.Tuple):
        return _nest_writer(dict(enumerate(space.spaces)), begin)

    if isinstance(space, spaces.Discrete):
        zero = begin - int(space.start)  # where the value 0 would be

        def write_one_hot(vector: Vector, value: Any) -> None:
            vector[zero + value] = 1

        return write_one_hot

    if isinstance(space, spaces.MultiDiscrete):
        counts = space.nvec.ravel()
        begins = begin + np.cumsum(counts) - counts  # of the elements' columns
        zeros = begins - space.start.ravel()  # where the value 0 of each would be

        def write_one_hots(vector: Vector, value: Any) -> None:
            vector[zeros + value.ravel()] = 1

        return write_one_hots

    end = begin + spaces.flatdim(space)

    def write_numbers(vector: Vector, value: Any) -> None:
        vector[begin:end] = np.ravel(value)

    return write_numbers


def _nest_writer(parts: dict[Any, Any], begin: int) -> Callable[[Vector, Any], None]:
    writers = []
    for place, part in parts.items():
        writers.append((place, _writer(part, begin)))
        begin += spaces.flatdim(part)

    def write_parts(vector: Vector, value: Any) -> None:
        for place, write in writers:
            write(vector, value[place])

    return write_parts
