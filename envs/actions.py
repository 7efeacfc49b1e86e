"""Actions of all spaces in two forms: a number, or a vector whose columns are choices and numbers.

A Discrete space stays as it is, from 0. Of every other space `action_vector` makes an `ActionVector`, and a function
that converts one of its rows to the environment's own action.

| space                                | columns                                                                    |
|--------------------------------------|----------------------------------------------------------------------------|
| Discrete, MultiDiscrete, MultiBinary | a `ChoiceColumn` an element                                                |
| Box of whole numbers or of bool      | a `ChoiceColumn` an element, of its values from low to high                |
| Box of floats, flattened             | `NumberColumns`, a column each: -1..1 for low..high; itself without bounds |
| Tuple, Dict                          | those of its parts, one after the other                                    |
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TransformAction
from numpy.typing import NDArray

from envs.guard import OutputError
from envs.outputs import MOST_NUMBERS, NUMERIC, Place, conformer, expression, label, line

Env = gymnasium.Env[Any, Any]
Row = NDArray[np.float32]
Convert = Callable[[Any], Any]
UNBOUNDED = 1e10
"""Bounds of this size count as none."""
MIXED_BOUNDS = "bounds that are both finite or both infinite"


class ChoiceColumn(NamedTuple):
    """One column, which holds an index from 0 to `size` - 1; index 0 stands for the environment's own value `first`."""

    name: str
    size: int
    first: int = 0

    @property
    def num_columns(self) -> int:
        """1, of its index."""
        return 1


class NumberColumns(NamedTuple):
    """A column for each number: in -1..1, which stands for low..high, or the number itself where these are infinite."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def num_columns(self) -> int:
        """How many numbers there are."""
        return len(self.low)


Part = ChoiceColumn | NumberColumns


class ActionVector(spaces.Box):
    """Actions as vectors: float32 [K], or [rows, K] of a batch.

    Args:
        parts: at least one, in the order of their columns.
        rows: of a batch of environments; None for one environment.
        seed: of `sample`.
    """

    parts: tuple[Part, ...]

    def __init__(self, parts: Iterable[Part], rows: int | None = None, seed: Any = None) -> None:
        self.parts = tuple(parts)
        lows: list[float] = []
        highs: list[float] = []
        for part in self.parts:
            if isinstance(part, ChoiceColumn):
                lows.append(0.0)
                highs.append(part.size - 1.0)
            else:
                bounded = np.isfinite(part.low)
                lows += np.where(bounded, -1.0, -np.inf).tolist()
                highs += np.where(bounded, 1.0, np.inf).tolist()
        low = np.array(lows, np.float32)
        high = np.array(highs, np.float32)
        if rows is not None:
            low = np.tile(low, (rows, 1))
            high = np.tile(high, (rows, 1))
        super().__init__(low, high, dtype=np.float32, seed=seed)

    @property
    def is_choice(self) -> NDArray[np.bool_]:
        """Which columns are choices, [K] bool."""
        kinds: list[bool] = []
        for part in self.parts:
            kinds += [isinstance(part, ChoiceColumn)] * part.num_columns
        return np.array(kinds, bool)

    @property
    def column_names(self) -> tuple[str, ...]:
        """A name for each column: that of its part, with an index if the part has several columns."""
        found: list[str] = []
        for part in self.parts:
            found += _names(part.name, part.num_columns)
        return tuple(found)

    def sample(self, mask: None = None, probability: None = None) -> Row:
        """Uniform choices, uniform numbers within bounds, and standard normal numbers where there are none."""
        if mask is not None or probability is not None:
            raise ValueError("sample: expected no mask and no probability of an ActionVector")
        random = self.np_random
        within = np.where(np.isfinite(self.low), self.low, -1.0)
        until = np.where(np.isfinite(self.high), self.high, 1.0)
        uniform = random.uniform(within, until)
        normal = random.standard_normal(self.shape)
        choices = random.integers(0, until.astype(np.int64) + 1)
        numbers = np.where(np.isfinite(self.low), uniform, normal)
        return np.where(self.is_choice, choices, numbers).astype(np.float32)

    def contains(self, x: Any) -> bool:
        """Whether an action has the shape, numbers within bounds, and whole numbers as choices."""
        if not super().contains(x):
            return False
        choices = np.asarray(x)[..., self.is_choice]
        return bool((choices == np.floor(choices)).all())

    def __eq__(self, other: object) -> bool:
        """Whether two have the same parts and rows."""
        return isinstance(other, ActionVector) and self.parts == other.parts and self.shape == other.shape

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{part.name}: {_described(part)}" for part in self.parts]
        return f"ActionVector({', '.join(parts)})"


@batch_space.register(ActionVector)
def _batch(space: ActionVector, n: int = 1) -> ActionVector:
    return ActionVector(space.parts, rows=n, seed=deepcopy(space.np_random))


def adapt_actions(env: Env) -> Env:
    """The environment with actions that are a number from 0 or an `ActionVector`.

    `metadata["action_names"]` has a name for each column of a vector: the environment's own, if there are as many.

    Raises:
        ValueError: for other spaces, see `action_vector`, and for more than `MOST_NUMBERS` actions.
    """
    space, convert = actions_as(env.action_space)
    if convert is None:
        return env
    shown = TransformAction(env, convert, space)
    shown.metadata = named_actions(env.metadata, space, env.action_space)
    return shown


def actions_as(space: spaces.Space[Any], rows: int | None = None) -> tuple[spaces.Space[Any], Convert | None]:
    """The space of what an agent chooses, a number from 0 or an `ActionVector`, and a function to a space's own values.

    The function is None where the values are the same. `rows` as of `action_vector`.

    Raises:
        ValueError: as `adapt_actions`.
    """
    if not isinstance(space, spaces.Discrete):
        return action_vector(space, rows)
    if space.n > MOST_NUMBERS:
        raise ValueError(f"action space: expected at most {MOST_NUMBERS:,} actions, got {line(space)}")
    if space.start == 0:
        return space, None
    first = space.start
    return spaces.Discrete(int(space.n), dtype=space.dtype.type), lambda action: first + action


def named_actions(metadata: dict[str, Any], space: spaces.Space[Any], own_space: spaces.Space[Any]) -> dict[str, Any]:
    """Metadata with a name for each column of an `ActionVector`, and for each action that is not counted from 0.

    Those that it has, if there are as many, or else the names of the columns and the environment's own values.
    """
    if isinstance(space, ActionVector):
        known = space.column_names
    elif isinstance(own_space, spaces.Discrete) and own_space.start != 0:
        first = int(own_space.start)
        known = tuple(str(first + index) for index in range(int(own_space.n)))
    else:
        return metadata
    names = metadata.get("action_names") or ()
    if len(names) != len(known):
        names = known
    return {**metadata, "action_names": tuple(names)}


def action_vector(space: spaces.Space[Any], rows: int | None = None) -> tuple[ActionVector, Convert]:
    """The vector for a space of actions, and a function from its rows, float32 [K], to the space's own values.

    With `rows` the function converts as many together: float32 [rows, K] to a batch of the space's values.

    The function raises an `OutputError` for rows that are not finite, and for choices that do not exist. Numbers beyond
    -1..1 are clipped.

    Raises:
        ValueError: for Text, OneOf, Sequence, Graph and spaces of other libraries; for Boxes with bounds of which one
            is infinite, or that hold less than two values; for fewer than two choices; and for spaces of no dimensions
            or of more than `MOST_NUMBERS`.
    """
    parts, convert = _part(space, ())
    total = 0
    for part in parts:
        if isinstance(part, ChoiceColumn):
            total += part.size
        else:
            total += part.num_columns
    if not 1 <= total <= MOST_NUMBERS:
        expected = f"1 to {MOST_NUMBERS:,} choices and numbers"
        raise ValueError(f"action space: expected {expected}, got {total:,} in {line(space)}")
    vector = ActionVector(parts)
    given_space = vector if rows is None else batch_space(vector, rows)
    conform = conformer(given_space, "step: action")
    is_choice = vector.is_choice
    most = vector.high[is_choice]

    def convert_row(row: Any) -> Any:
        row = conform(row)
        choices = row[..., is_choice]
        exists = (choices >= 0) & (choices <= most) & (choices == np.floor(choices))
        if not exists.all():
            expected = f"choices from 0 to {most.astype(int).tolist()}"
            raise OutputError(f"step: action: expected {expected}, got {choices.tolist()}")
        return convert(row)

    return vector, convert_row


def _part(space: Any, place: Place) -> tuple[list[Part], Convert]:
    """The parts of a space at a place in a nest, and a function from their columns to the space's values.

    Columns are the last axis of the function's argument.
    """
    if isinstance(space, spaces.Dict) and space.spaces:
        return _dict_part(space, place)
    if isinstance(space, spaces.Tuple) and space.spaces:
        return _tuple_part(space, place)
    if not isinstance(space, NUMERIC):
        expected = "Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of them"
        raise _refusal(expected, line(space), place)
    size = int(np.prod(space.shape or (), dtype=object))
    if size < 1:
        raise _refusal("at least one dimension", line(space), place)
    if size > MOST_NUMBERS:
        raise _refusal(f"at most {MOST_NUMBERS:,} dimensions", line(space), place)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return _floats(space, place)
    return _choices(space, place)


def _dict_part(space: spaces.Dict, place: Place) -> tuple[list[Part], Convert]:
    """`_part` for a Dict."""
    keys = list(space.spaces)
    parts, converts = _nest(space.spaces, place)

    def convert_to_dict(row: Any) -> dict[str, Any]:
        return {key: convert(row) for key, convert in zip(keys, converts, strict=True)}

    return parts, convert_to_dict


def _tuple_part(space: spaces.Tuple, place: Place) -> tuple[list[Part], Convert]:
    """`_part` for a Tuple."""
    parts, converts = _nest(dict(enumerate(space.spaces)), place)

    def convert_to_tuple(row: Any) -> tuple[Any, ...]:
        return tuple([convert(row) for convert in converts])

    return parts, convert_to_tuple


def _nest(inner: dict[Any, Any], place: Place) -> tuple[list[Part], list[Convert]]:
    """The parts of several spaces, and a function for each from the columns of all to its values."""
    found: list[Part] = []
    converts: list[Convert] = []
    begin = 0
    for key, space in inner.items():
        parts, convert = _part(space, (*place, key))
        end = begin + sum(part.num_columns for part in parts)
        converts.append(_of_columns(convert, slice(begin, end)))
        found += parts
        begin = end
    return found, converts


def _of_columns(convert: Convert, columns: slice) -> Convert:
    """A function that converts these columns of a row."""

    def convert_own(row: Any) -> Any:
        return convert(row[..., columns])

    return convert_own


def _whole_numbers(space: Any) -> tuple[Any, list[int]]:
    """Of a space of whole numbers: the least value, of all or of each element; and for each how many values it has."""
    if isinstance(space, spaces.Discrete):
        return space.start, [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.nvec.ravel().tolist()
    if isinstance(space, spaces.MultiBinary):
        return 0, [2] * int(np.prod(space.shape))

    # A Box. As Python's integers, which do not overflow.
    sizes = []
    for low, high in zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True):
        sizes.append(int(high) - int(low) + 1)
    return space.low, sizes


def _choices(space: Any, place: Place) -> tuple[list[Part], Convert]:
    """A choice for each element of a space of whole numbers."""
    first, sizes = _whole_numbers(space)
    least = min(sizes)
    if least < 2:
        raise _refusal("at least 2 choices", f"{least} in {line(space)}", place)
    if sum(sizes) > MOST_NUMBERS:
        raise _refusal(f"at most {MOST_NUMBERS:,} choices", f"{sum(sizes):,} in {line(space)}", place)

    dtype = space.dtype
    shape = space.shape or ()
    start = np.broadcast_to(np.asarray(first, dtype), shape).ravel()

    def convert(row: Row) -> Any:
        # Sums of small integers may wrap around and still are right, casts from floats would not be.
        values = start + row.astype(np.int64).astype(dtype)
        shaped = values.reshape(row.shape[:-1] + shape)
        if isinstance(space, spaces.Discrete):
            return shaped[()]  # a single number is no array
        return shaped

    names = _names(label(place, "action"), len(sizes))
    columns: list[Part] = []
    for name, size, value in zip(names, sizes, start.tolist(), strict=True):
        columns.append(ChoiceColumn(name, size, int(value)))
    return columns, convert


def _floats(space: spaces.Box, place: Place) -> tuple[list[Part], Convert]:
    """The numbers of a Box of floats."""
    low = space.low.ravel().astype(np.float64)
    high = space.high.ravel().astype(np.float64)
    # Some write "without bounds" as large numbers: MuJoCo as 1e10, others as the greatest float.
    low[low <= -UNBOUNDED] = -np.inf
    high[high >= UNBOUNDED] = np.inf
    bounded = np.isfinite(low) & np.isfinite(high)
    free = (low == -np.inf) & (high == np.inf)
    ordered = low < high
    accepted = ordered & (bounded | free)
    if not accepted.all():
        index = int(accepted.argmin())  # the first that is not
        bounds = f"{low[index]:g} to {high[index]:g} at index {index} of {line(space)}"
        expected = MIXED_BOUNDS if ordered[index] else "a lower bound below the upper bound"
        raise _refusal(expected, bounds, place)

    dtype = space.dtype
    shape = space.shape
    least = np.where(bounded, low, 0.0)
    most = np.where(bounded, high, 0.0)

    def convert(row: Row) -> NDArray[Any]:
        # A weighted mean is exact at both bounds, and does not overflow as their difference may.
        upper = (row.clip(-1, 1).astype(np.float64) + 1) / 2
        scaled = least * (1 - upper) + most * upper
        values = np.where(bounded, scaled, row).astype(dtype)
        return values.reshape(row.shape[:-1] + shape)

    columns = NumberColumns(label(place, "action"), tuple(low.tolist()), tuple(high.tolist()))
    return [columns], convert


def _refusal(expected: str, got: str, place: Place) -> ValueError:
    where = f" as {expression(place, 'action')}" if place else ""
    return ValueError(f"action space: expected {expected}, got {got}{where}")


def _names(name: str, size: int) -> list[str]:
    """Names of the elements of a part; the only one has the part's."""
    if size == 1:
        return [name]
    return [f"{name}[{index}]" for index in range(size)]


def _described(part: Part) -> str:
    if isinstance(part, ChoiceColumn):
        return f"{part.size} choices"
    return f"{part.num_columns} numbers"
