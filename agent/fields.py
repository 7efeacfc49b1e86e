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
        least = value > self.least if self.above else value >= self.least
        return least and (value < self.most if self.below else value <= self.most) and abs(value) <= _LARGEST

    def expected(self, value: Any) -> str:
        """The limits in words, for a value outside them."""
        if isinstance(self.most, int):
            return f"at most {self.most}" if value > self.most else f"{self.least} or more"
        if math.isfinite(self.most):
            return f"a number in {'[('[self.above]}{self.least:g}, {self.most:g}{'])'[self.below]}"
        finite = "a finite number, " if abs(value) > _LARGEST else ""
        return finite + ("a positive number" if self.above else f"{self.least:g} or more")


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

_UNIONS = (types.UnionType, typing.Union)
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
        for name in (field.name for field in dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if expected := _expected(value, kinds[name]):
                raise ValueError(f"{name}: expected {expected}, got {value!r}")


def _expected(value: Any, kind: Any) -> str:
    """The values of a type, in words; empty if the value is one of them."""
    if not _is(value, kind):
        return _words(kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        wrong = _expected(value, next(part for part in parts if _is(value, part)))
        return wrong + " or None" * (bool(wrong) and type(None) in parts)
    if origin is Annotated:
        limits = (part for part in parts[1:] if isinstance(part, Range))
        return next((limit.expected(value) for limit in limits if value not in limit), _expected(value, parts[0]))
    if origin is tuple:
        return next(filter(None, (_expected(each, parts[0]) for each in value)), "")
    if kind is float and not abs(value) <= _LARGEST:
        return "a finite number"
    if isinstance(value, str | Path) and re.search(r"[\0\ud800-\udfff]", str(value)):
        return f"{_words(kind)} in UTF-8 without NUL"
    return ""


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, without limits and elements of tuples."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return any(_is(value, part) for part in parts)
    if origin is Annotated:
        return _is(value, parts[0])
    if origin is Literal:
        return value in parts
    if kind in (int, float):
        return type(value) in (int, kind)
    return isinstance(value, tuple | list if origin is tuple else kind)


def _words(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return " or ".join(map(_words, parts))
    if origin is Annotated:
        return _words(parts[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    return "a list" if origin is tuple else _WORDS.get(kind, kind.__name__)
