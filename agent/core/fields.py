"""Configurations whose fields are checked against their types and limits.

A dataclass that inherits `Checked` accepts the same values from a command line, a `config.json` and Python. Relations
between fields are checked by the class itself.
"""

import dataclasses
import math
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

_LARGEST = 3.4e38
"""Of float32, in which networks compute: torch raises OverflowError or RuntimeError for more."""


class Range(NamedTuple):
    """Numbers from `least` to `most`; `above` excludes the least and `below` the most."""

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: Any) -> bool:
        if value == self.least:
            return not self.above
        if value == self.most:
            return not self.below
        return self.least < value < self.most

    def expected(self, value: float) -> str:
        """The limits in words, for a value outside them."""
        if isinstance(self.most, int):
            if value > self.most:
                return f"at most {self.most}"
            return f"{self.least} or more"
        if math.isfinite(self.most):
            opening = "(" if self.above else "["
            closing = ")" if self.below else "]"
            return f"a number in {opening}{self.least:g}, {self.most:g}{closing}"
        if self.above:
            return "a positive number"
        return f"{self.least:g} or more"


Positive = Annotated[int, Range(1, 2**63 - 1)]  # frames, steps, episodes
Count = Annotated[int, Range(0, 2**63 - 1)]  # the same with 0; seeds that both torch and numpy accept
Size = Annotated[int, Range(1, 2**24)]  # a tensor's features, steps or rows
Slots = Annotated[int, Range(0, 2**24)]  # the same with 0
Several = Annotated[int, Range(1, 2**16)]  # processes, environments, checkpoints
Layers = Annotated[int, Range(1, 1000)]
Threads = Annotated[int, Range(1, 1024)]  # starting 100,000 threads ends the process with a segmentation fault
AtLeast0 = Annotated[float, Range(0)]
Above0 = Annotated[float, Range(0, above=True)]
Fraction = Annotated[float, Range(0, 1.0)]
Decay = Annotated[float, Range(0, 1.0, below=True)]
Precision = Literal["auto", "float32", "bfloat16"]  # see `agent.precision`

_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "text", Path: "a path", type(None): "None"}


class Checked:
    """Base of dataclasses. A subclass's own `__post_init__` calls this one first."""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ValueError: names the first field whose value is not of its type or outside its limits. Numbers must be
                finite in float32, texts and paths UTF-8 without NUL.
        """
        kinds = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            expected = _expected(value, kinds[field.name])
            if expected:
                raise ValueError(f"{field.name}: expected {expected}, got {value!r}")


def _expected(value: Any, kind: Any) -> str:
    """The values of a type and its limits, in words; empty if the value is one of them."""
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _expected_of_any(value, parts)
    if origin is Annotated:
        return _expected_in_range(value, parts[0], parts[1:])
    if origin is Literal:
        return _expected_choice(value, parts)
    if origin is tuple:
        return _expected_items(value, parts[0])
    if kind in (int, float):
        return _expected_number(value, kind)

    if not isinstance(value, kind):
        return _WORDS.get(kind, kind.__name__)
    if isinstance(value, str | Path):
        # A file name must not contain NUL, and lone surrogates have no UTF-8.
        unwanted = re.search(r"[\0\ud800-\udfff]", str(value))
        if unwanted:
            return f"{_WORDS[kind]} in UTF-8 without NUL"
    return ""


def _expected_of_any(value: Any, kinds: tuple[Any, ...]) -> str:
    """`_expected` for a value that may be of any of several types."""
    each = [_expected(value, kind) for kind in kinds]
    if "" in each:
        return ""
    return " or ".join(each)


def _expected_choice(value: Any, choices: tuple[Any, ...]) -> str:
    """`_expected` for one of the choices."""
    if value in choices:
        return ""
    names = [str(choice) for choice in choices]
    return f"one of {', '.join(names)}"


def _expected_number(value: Any, kind: type[int] | type[float]) -> str:
    """`_expected` for an integer or a float."""
    # A bool is no number here, but an integer may stand for a float.
    if type(value) not in (int, kind):
        return _WORDS[kind]
    # Written so that NaN is refused, too.
    is_finite = abs(value) <= _LARGEST
    if kind is float and not is_finite:
        return "a finite number"
    return ""


def _expected_in_range(value: Any, kind: Any, annotations: tuple[Any, ...]) -> str:
    """`_expected` for a type with annotations, some of which may be limits."""
    is_number = type(value) in (int, float)
    for limits in annotations:
        has_limits = is_number and isinstance(limits, Range)
        if has_limits and value not in limits:
            return limits.expected(value)
    return _expected(value, kind)


def _expected_items(value: Any, kind: Any) -> str:
    """`_expected` for a tuple of any length, each item of the type."""
    if not isinstance(value, tuple | list):
        return "a list"
    for item in value:
        wrong = _expected(item, kind)
        if wrong:
            return f"a list, each {wrong}"
    return ""
