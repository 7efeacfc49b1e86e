"""Environments by name: a spec, as typed on a command line, becomes a batch of environments.

Nothing here knows how an environment works; each kind is one function in `KINDS`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from envs import dm, dmlab, gym
from envs.diagnostic import TASKS, DiagnosticEnv
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.config import resolve


class Spec(NamedTuple):
    """A spec taken apart: "rooms:small,hud=True" is ("rooms", "small", {"hud": "True"})."""

    kind: str
    name: str
    overrides: dict[str, str]


def parse_spec(spec: str) -> Spec:
    """Take a spec apart. Raises ValueError where it has not the form "kind:name,field=value,..." or no such kind is."""
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in KINDS:
        raise ValueError(f"environment {spec!r}: expected 'kind:name' with a kind out of: {', '.join(KINDS)}")
    name, *fields = rest.split(",")
    overrides = {}
    for item in fields:
        field, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"environment {spec!r}: expected 'field=value' after the name, got {item!r}")
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
        except (ValueError, SyntaxError):
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
    fields = ("image_height", "image_width", "action_repeat", "renderer")
    for field in overrides:
        if field not in fields:
            raise ValueError(f"a level of DeepMind Lab has no field {field!r}; there are: {', '.join(fields)}")
    if not name:
        raise ValueError("expected the name of a level, as in dmlab:rooms_select_nonmatching_object, got none")
    return dmlab.make(name, num_envs, **{f: v if f == "renderer" else int(v) for f, v in overrides.items()})


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
        except (ValueError, SyntaxError):
            return text

    return {field: read(text) for field, text in overrides.items()}


def _gym(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    return gym.make(name, num_envs, **_literals(overrides))


def _dm(name: str, overrides: dict[str, str], num_envs: int) -> VectorEnv:
    return dm.make(name, num_envs, **_literals(overrides))


#: Kind -> function (name, overrides, num_envs) -> batch of environments.
KINDS: dict[str, Callable[[str, dict[str, str], int], VectorEnv]] = {
    "rooms": _rooms,
    "dmlab": _dmlab,
    "gym": _gym,
    "dm": _dm,
    "diagnostic": _diagnostic,
}


def make_vector(spec: str, num_envs: int) -> VectorEnv:
    """A batch of `num_envs` environments, e.g. of "rooms:full", "rooms:small" or "rooms:small,object_scale=2.0".

    All kinds reset as gymnasium's NEXT_STEP and name in `metadata["episode_metrics"]` the counters their infos carry.
    Raises ValueError, listing what exists, for unknown kinds, names and fields.
    """
    kind, name, overrides = parse_spec(spec)
    return KINDS[kind](name, overrides, num_envs)


def prepare(spec: str) -> None:
    """Do what only a machine's first environment costs (compiling, caching), before processes need it at once."""
    envs = make_vector(spec, 1)
    try:
        envs.reset(seed=0)
        envs.step(np.zeros(1, np.int64))
    finally:
        envs.close()
