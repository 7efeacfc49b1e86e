"""What films and pages say of an action that is a vector: its columns by name, in the units of the environment.

Actions of Discrete spaces have names of their own, `Recording.action_names`.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from actors.recording import Recording
from envs.actions import ChoiceColumn, Part


class Column(NamedTuple):
    """A column of a vector.

    name: what it is.
    size: how many values a choice has; 0 for a number.
    low, high: the least and the greatest value, in the environment's units; of a number infinite without bounds.
    """

    name: str
    size: int
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether there is a lowest and a highest value."""
        return math.isfinite(self.low)


def columns(recording: Recording) -> list[Column]:
    """The columns of its actions; none if they are those of a Discrete space."""
    return columns_of(recording.parts, recording.action_names)


def columns_of(parts: Iterable[Part], names_of_columns: Iterable[str]) -> list[Column]:
    """The columns of the parts of an `envs.ActionVector`."""
    found: list[Column] = []
    names = iter(names_of_columns)
    for part in parts:
        if isinstance(part, ChoiceColumn):
            last = part.first + part.size - 1
            found.append(Column(next(names), part.size, float(part.first), float(last)))
            continue
        for low, high in zip(part.low, part.high, strict=True):
            found.append(Column(next(names), 0, low, high))
    return found


def received(recording: Recording) -> np.ndarray:
    """The actions [T, K] float64 in the environment's units."""
    return _in_units(recording.actions, columns(recording))


def means(recording: Recording) -> np.ndarray:
    """The policy's means [T, N] float64 of the numbers of actions, in the environment's units."""
    return _in_units(recording.means, [column for column in columns(recording) if not column.size])


def value_in_words(column: Column, value: float) -> str:
    """A value of a column, short."""
    if column.size:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _in_units(values: np.ndarray, of: list[Column]) -> np.ndarray:
    """Values [T, columns]: indices of choices and numbers from -1 to 1 become values from low to high, others stay."""
    found = values.astype(np.float64)
    for index, column in enumerate(of):
        if column.size:
            found[:, index] += column.low
            continue
        if not column.is_bounded:
            continue
        upper = (found[:, index] + 1) / 2
        # A weighted mean is exact at both bounds, as what the environment receives is.
        found[:, index] = column.low * (1 - upper) + column.high * upper
    return found
