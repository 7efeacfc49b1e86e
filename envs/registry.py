"""Environments by name: a spec, as typed on a command line, becomes a batch of environments, or names several tasks.

Nothing here knows how an environment works; each kind is one function in `KINDS`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from envs import dm, dmlab, gym
from envs.diagnostic import TASKS, DiagnosticEnv
from envs.dmlab30 import LEVELS, find
from envs.guard import calling, close
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.config import resolve


class Spec(NamedTuple):
    """A spec taken apart: "rooms:small,hud=True" is ("rooms", "small", {"hud": "True"})."""

    kind: str
    name: str
    overrides: dict[str, str]


def parse_spec(spec: str) -> Spec:
    """Take a spec apart.

    Raises:
        ValueError: if it has not the form "kind:name,field=value,...", no such kind is, or a field comes twice.
    """
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in KINDS:
        raise ValueError(f"environment {spec!r}: expected 'kind:name' with a kind out of: {', '.join(KINDS)}")
    name, *fields = rest.split(",")
    overrides = {}
    for item in fields:
        field, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"environment {spec!r}: expected 'field=value' after the name, got {item!r}")
        if field.strip() in overrides:
            raise ValueError(f"environment {spec!r}: expected each field once, got {field.strip()} twice")
        overrides[field.strip()] = value.strip()
    return Spec(kind, name, overrides)


def rooms_config(name: str, overrides: dict[str, str]) -> RoomsConfig:
    """A variant of the rooms level with some fields replaced.

    Shapes are written as "cube+sphere", colours as "ff0000+00ff00", all else as in Python.
    """
    config = resolve(name)
    types = {f.name: f.type for f in dataclasses.fields(RoomsConfig)}
    changes: dict[str, Any] = {}
    for field, text in overrides.items():
        if field not in types:
            raise ValueError(f"the rooms level has no field {field!r}; there are: {', '.join(types)}")
        try:
            changes[field] = _value(field, text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"RoomsConfig.{field}: expected a value of type {types[field]}, got {text!r}") from None
    return dataclasses.replace(config, **changes)


def _value(field: str, text: str) -> Any:
    if field == "shapes":
        return tuple(text.split("+"))
    if field == "colours":
        return tuple(tuple(bytes.fromhex(colour)) for colour in text.split("+"))
    return ast.literal_eval(text)


def _rooms(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    return RoomsVectorEnv(num_envs, rooms_config(name, overrides))


def _dmlab(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    if not name:
        raise ValueError("expected the name of a level, as in dmlab:rooms_select_nonmatching_object, got none")
    fields: dict[str, Any] = {}
    for field, text in overrides.items():
        if field not in DMLAB_FIELDS:
            raise ValueError(f"a level of DeepMind Lab has no field {field!r}; there are: {', '.join(DMLAB_FIELDS)}")
        kind = DMLAB_FIELDS[field]
        try:
            fields[field] = {"True": True, "False": False}[text] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ValueError(f"dmlab, {field}: expected a value of type {kind.__name__}, got {text!r}") from None
    return dmlab.make(name, num_envs, **fields)


def _diagnostic(name: str, overrides: dict[str, str], num_envs: int) -> DiagnosticEnv:
    if name not in TASKS:
        raise ValueError(f"no diagnostic task {name!r}; there are: {', '.join(TASKS)}")
    fields = [field for field in inspect.signature(TASKS[name]).parameters if field != "num_envs"]
    for field in overrides:
        if field not in fields:
            raise ValueError(f"diagnostic:{name} has no field {field!r}; there are: {', '.join(fields) or 'none'}")
    return TASKS[name](num_envs, **_literals(overrides))


def _literals(overrides: dict[str, str]) -> dict[str, Any]:
    """Values as in Python where they can be read so, else the text."""

    def read(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the latter of very deep nesting
            return text

    return {field: read(text) for field, text in overrides.items()}


def _gym(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    return gym.make(name, num_envs, **_literals(overrides))


def _dm(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    return dm.make(name, num_envs, **_literals(overrides))


#: Fields of a level of DeepMind Lab: arguments of `envs.dmlab.DMLabEnv` and `make`.
DMLAB_FIELDS: dict[str, Callable[[str], Any]] = {
    "image_height": int,
    "image_width": int,
    "action_repeat": int,
    "actions": str,
    "instruction": bool,
    "test": bool,
    "stream": int,
    "dataset": str,
    "renderer": str,
    "cache_gigabytes": float,
}

#: Kind -> function (name, overrides, num_envs) -> batch of environments.
KINDS: dict[str, Callable[[str, dict[str, str], int], VectorEnv]] = {
    "rooms": _rooms,
    "dmlab": _dmlab,
    "gym": _gym,
    "dm": _dm,
    "diagnostic": _diagnostic,
}


#: Kinds whose episodes come from numbered streams, of which no two have one in common.
STREAMED = ("dmlab",)
#: Name of all thirty levels of DMLab-30, in place of one.
SUITE = "dmlab30"


def make_vector(spec: str, num_envs: int, stream: int | None = None) -> VectorEnv:
    """A batch of `num_envs` environments, e.g. of "rooms:full", "rooms:small" or "rooms:small,object_scale=2.0".

    All kinds reset as gymnasium's NEXT_STEP and name in `metadata["episode_metrics"]` the counters their infos carry.
    A `stream`, 0 to 2^31 - 1, sets their episodes apart from those of all other streams where seeds alone do not: Lab's
    are of 31 bits. Raises ValueError, listing what exists, for unknown kinds, names and fields, and for several tasks;
    what the code of an environment raises is an `EnvironmentFailed`.
    """
    names = tasks(spec)
    if len(names) > 1:
        raise ValueError(f"environment {spec!r}: expected one task, got {len(names)}")
    kind, name, overrides = parse_spec(spec)
    if stream is not None and kind in STREAMED:
        overrides["stream"] = str(stream)
    with calling(spec, "while it was made"):
        return KINDS[kind](name, overrides, num_envs)


def tasks(spec: str) -> tuple[str, ...]:
    """The specs of the tasks that a spec stands for, most often just itself.

    Specs are joined by commas: "rooms:small,hud=False,rooms:full" is two. "dmlab:dmlab30" is the training levels of
    DMLab-30 with their instructions; its fields go to each of them.

    Raises:
        ValueError: as `parse_spec` does, and if a task comes twice: its episodes would count for two.
    """
    parts: list[str] = []
    for item in spec.split(","):
        if ":" in item.partition("=")[0] or not parts:
            parts.append(item)
        else:
            parts[-1] += f",{item}"
    found: list[str] = []
    for part in parts:
        kind, name, overrides = parse_spec(part)
        if (kind, name) == ("dmlab", SUITE):
            fields = {"instruction": "True"} | overrides
            found += [_format(Spec(kind, level.train, fields)) for level in LEVELS]
        else:
            found.append(part)
    seen: list[Spec] = []
    for task in found:
        if (parsed := parse_spec(task)) in seen:  # whatever the order of its fields
            raise ValueError(f"environment {task!r}: expected each task once, got it twice")
        seen.append(parsed)
    return tuple(found)


def foreign_code(spec: str) -> dict[str, str]:
    """The tasks of a spec, by "kind:name", that can make this program run any code that the spec chooses.

    These name modules, scripts outside DeepMind Lab, or give an environment of gymnasium more than numbers and single
    words. All others run only what is installed.
    """
    return {task.partition(",")[0]: task for task in tasks(spec) if _chooses_code(parse_spec(task))}


def _chooses_code(spec: Spec) -> bool:
    if spec.kind == "gym":
        values = _literals(spec.overrides).values()
        plain = (isinstance(v, (int, float)) or v is None or re.fullmatch(r"[\w-]*", str(v)) for v in values)
        return ":" in spec.name or not all(plain)
    return spec.kind == "dm" or (spec.kind == "dmlab" and not re.fullmatch(r"(\w+/)*\w+", spec.name))


def require_consent(spec: str, *allowed: str | None) -> None:
    """Raises a ValueError if a spec that the user has not typed chooses code, unless specs allow it by "kind:name"."""
    foreign = foreign_code(spec)
    names = {task.partition(",")[0] for text in allowed if text for task in tasks(text)}
    for name, task in foreign.items():
        if name not in names:
            raise ValueError(
                f"the run's environment {task!r} runs code of its own choice: expected one that is allowed; if you "
                f"trust it, --allow-env {','.join(foreign)!r}"
            )


def held_out(spec: str) -> str:
    """What an agent that was trained on a spec is tested on: of Lab's levels the test versions, else the same.

    A test version that two training levels share is there once.
    """
    found: list[Spec] = []
    for tested in map(parse_spec, tasks(spec)):
        if tested.kind == "dmlab":
            level = find(tested.name)
            tested = Spec("dmlab", level.test if level else tested.name, tested.overrides | {"test": "True"})
        if tested not in found:
            found.append(tested)
    return ",".join(map(_format, found))


def _format(spec: Spec) -> str:
    return ",".join([f"{spec.kind}:{spec.name}", *(f"{field}={text}" for field, text in spec.overrides.items())])


def prepare(spec: str) -> None:
    """Do what only a machine's first environment costs (compiling, caching), before processes need it at once."""
    for task in tasks(spec):
        envs = make_vector(task, 1)
        try:
            with calling(task, "in reset"):
                envs.reset(seed=0)
            action = np.zeros(1, np.int64)
            with calling(task, "in step", action):
                envs.step(action)
        finally:
            close(envs, task)
