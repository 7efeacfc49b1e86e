"""Specs: what names environments on a command line, as text. Nothing here makes an environment.

A spec is "kind:name" or "kind:name,field=value,...". Several that are joined by commas are several tasks. Commas in
brackets or quotes belong to a value: "gym:my_module:Maze-v0,size=(3,4),name='a,b'".
"""

import ast
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from envs import gym
from envs.dmlab30 import LEVELS, find

KINDS = ("rooms", "dmlab", "gym", "dm", "envpool", "diagnostic")
"""The kinds of environments. `envs.registry.MAKERS` has the function that makes each."""
BRACKETS = {"(": ")", "[": "]", "{": "}"}
QUOTES = ("'", '"')
EASIER_GAMES = ("episodic_life", "reward_clip")
"""Fields of Atari games, by which episodes are shorter and rewards smaller; training alone uses them."""


class Spec(NamedTuple):
    """A parsed spec: "rooms:small,hud=True" is ("rooms", "small", {"hud": "True"})."""

    kind: str
    name: str
    overrides: dict[str, str]

    def __str__(self) -> str:
        parts = [f"{self.kind}:{self.name}"]
        for field, text in self.overrides.items():
            parts.append(f"{field}={text}")
        return ",".join(parts)

    @property
    def identity(self) -> tuple[str, str, frozenset[tuple[str, str]]]:
        """Equal for specs of one task: the order of fields makes no other task."""
        return self.kind, self.name, frozenset(self.overrides.items())


def parse_spec(spec: str) -> Spec:
    """Parses "kind:name,field=value,..."; raises a ValueError for another form, an unknown kind or a field twice."""
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in KINDS:
        raise ValueError(f"environment {spec!r}: expected 'kind:name' with a kind out of: {', '.join(KINDS)}")
    name, *fields = split_at_commas(rest)
    overrides = {}
    for item in fields:
        field, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"environment {spec!r}: expected 'field=value' after the name, got {item!r}")
        if field.strip() in overrides:
            raise ValueError(f"environment {spec!r}: expected each field once, got {field.strip()} twice")
        overrides[field.strip()] = value.strip()
    return Spec(kind, name, overrides)


def split_at_commas(text: str) -> list[str]:
    """The parts of a text between commas, but for those in brackets or quotes: "a=(1,2),b" is "a=(1,2)" and "b".

    Quotes count only where a value begins and in brackets: an apostrophe within a word is a character like others.

    Raises:
        ValueError: if a bracket or a quote is not closed.
    """
    # Texts are cut out, because adding one character to them after the other would take quadratic time.
    parts = []
    begin = 0
    closing: list[str] = []  # what closes each open bracket and quote, the innermost last
    before = ""
    for index, character in enumerate(text):
        is_quoted = bool(closing) and closing[-1] in QUOTES
        if character == "," and not closing:
            parts.append(text[begin:index])
            begin = index + 1
        elif closing and character == closing[-1]:
            closing.pop()
        elif is_quoted:
            pass
        elif character in BRACKETS:
            closing.append(BRACKETS[character])
        elif character in QUOTES and (closing or before == "="):
            closing.append(character)
        before = character
    if closing:
        raise ValueError(f"{text!r}: expected {closing[-1]} before its end, to close what was opened")
    parts.append(text[begin:])
    return parts


def literals(overrides: dict[str, str]) -> dict[str, Any]:
    """Values as in Python, true and false also in small letters; text where it is not Python."""
    values: dict[str, Any] = dict(overrides)
    for field, text in overrides.items():
        if text in ("true", "false"):
            text = text.capitalize()
        # A TypeError is raised for "{[1]: 2}", whose key has no hash, the last two errors for very deep nesting.
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            values[field] = ast.literal_eval(text)
    return values


def tasks(spec: str) -> tuple[str, ...]:
    """The specs of the single tasks of a spec.

    Specs are joined by commas: "rooms:small,hud=False,rooms:full" has two tasks. "dmlab:dmlab30" stands for the
    training levels of DMLab-30 with their instructions; its fields apply to each of them.

    Raises:
        ValueError: as `parse_spec` does, and if a task occurs twice: its scores would count twice.
    """
    found: dict[tuple[str, str, frozenset[tuple[str, str]]], str] = {}
    for part in _parts(spec):
        for task in _single_tasks(part):
            parsed = parse_spec(task)
            if parsed.identity in found:
                raise ValueError(f"environment {str(parsed)!r}: expected each task once, got it twice")
            found[parsed.identity] = task
    return tuple(found.values())


def _parts(spec: str) -> list[str]:
    """The specs that are joined in one; a new one begins where an item has a colon that is not in a field's value."""
    parts: list[list[str]] = []  # the items of each
    for item in split_at_commas(spec):
        before_value, _, _ = item.partition("=")
        if not parts or ":" in before_value:
            parts.append([])
        parts[-1].append(item)
    return [",".join(items) for items in parts]


def _single_tasks(part: str) -> list[str]:
    """The tasks that one spec stands for: itself, or the training levels of DMLab-30."""
    parsed = parse_spec(part)
    if (parsed.kind, parsed.name) != ("dmlab", "dmlab30"):
        return [part]
    fields = {"instruction": "True"} | parsed.overrides
    return [str(Spec("dmlab", level.train, fields)) for level in LEVELS]


def foreign_code(spec: str) -> dict[str, str]:
    """The tasks of a spec, by "kind:name", that can make this program run code that the spec chooses.

    These name modules or scripts outside DeepMind Lab, or give an environment of gymnasium arguments other than
    numbers and single words. All others run only what is installed: EnvPool's ids name no modules, and none of its
    fields that `envs.pool` allows names a file.
    """
    return {_without_fields(task): task for task in tasks(spec) if _chooses_code(parse_spec(task))}


def _without_fields(task: str) -> str:
    """The "kind:name" with which a task begins."""
    beginning, _, _ = task.partition(",")
    return beginning


def _chooses_code(spec: Spec) -> bool:
    if spec.kind == "dm":
        return True
    if spec.kind == "dmlab":
        is_level = re.fullmatch(r"(\w+/)*\w+", spec.name)
        return not is_level
    if spec.kind == "gym":
        package, colon, _ = spec.name.rpartition(":")
        if colon and package not in gym.PACKAGES:
            return True
        return not all(_is_plain(value) for value in literals(spec.overrides).values())
    return False


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, None or a single word."""
    if value is None or isinstance(value, int | float):
        return True
    return re.fullmatch(r"[\w-]*", str(value)) is not None


def require_consent(spec: str, *allowed: str | None) -> None:
    """Raises a ValueError if a spec that the user has not typed chooses code, unless specs allow it by "kind:name"."""
    foreign = foreign_code(spec)
    names = set[str]()
    for text in allowed:
        if not text:
            continue
        permitted = ",".join(_environments(split_at_commas(text)))
        # The same may be permitted several times, as where a stage's environment is one of several tasks.
        for part in _parts(permitted) if permitted else []:
            names.update(_without_fields(task) for task in _single_tasks(part))
    for name, task in foreign.items():
        if name not in names:
            raise ValueError(
                f"the run's environment {task!r} can run any code: if you trust it, permit it with --allow "
                f"{shlex.quote(','.join(foreign))}"
            )


def _environments(parts: Sequence[str]) -> list[str]:
    """The parts of what is allowed that are of environments: URLs and cores may be allowed as well, but not here.

    A URL may have commas in it, and an environment may have fields: parts belong to what began before them.
    """
    found = []
    of_environment = True
    for part in parts:
        kind, colon, _ = part.partition(":")
        if "://" in part or part.startswith("core:"):
            of_environment = False
        elif colon and kind in KINDS:
            of_environment = True
        if of_environment:
            found.append(part)
    return found


def held_out(spec: str) -> str:
    """The spec on which an agent is tested that was trained on `spec`.

    Test versions of Lab's levels, whole games of Atari with the game's own rewards, else the same. A test version that
    two training levels share occurs once. A view that only a teacher sees is left out.
    """
    found: list[Spec] = []
    for task in tasks(untaught(spec)):
        tested = parse_spec(task)
        if tested.kind == "dmlab":
            name = tested.name
            level = find(name)
            if level is not None:
                name = level.test
            tested = Spec("dmlab", name, tested.overrides | {"test": "True"})
        elif tested.kind == "envpool" or _is_atari(tested):
            tested = _without(tested, *EASIER_GAMES)
        if tested not in found:
            found.append(tested)
    return ",".join(map(str, found))


def _is_atari(spec: Spec) -> bool:
    return spec.kind == "gym" and gym.package_of(spec.name) == "ale_py"


def untaught(spec: str) -> str:
    """The spec without the views that only a teacher sees; itself if there are none."""
    parsed = [parse_spec(task) for task in tasks(spec)]
    seen = []
    for task in parsed:
        if task.kind == "rooms":
            task = _without(task, "own_view")
        seen.append(task)
    if seen == parsed:
        return spec
    return ",".join(map(str, seen))


def _without(spec: Spec, *left_out: str) -> Spec:
    """A spec without some of its fields."""
    fields = {field: text for field, text in spec.overrides.items() if field not in left_out}
    return spec._replace(overrides=fields)
