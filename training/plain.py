"""Configurations of all kinds of runs as JSON can hold them: the way into `config.json` and back, and differences.

Fields are named and nested as in the dataclasses, so that no class has code for it.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, overload

from agent.core import CustomCoreConfig, is_custom
from storage.files import Json, abbreviate
from storage.run import RUN_COMMANDS, Run
from training.config import Config, Configuration, RunConfig


def to_plain(config: Configuration) -> Json:
    """A configuration as JSON can hold it; the core's name is among the core's fields."""
    names: dict[type, str] = {kind: name for name, kind in config.cores.items()}

    def plain(value: object) -> object:
        if not dataclasses.is_dataclass(value):
            return value
        return plain_fields(value)

    def plain_fields(value: object) -> Json:
        fields: Json = {}
        # Classes of cores may have equal fields, so that only the name tells which it is.
        if type(value) in names:
            fields["name"] = names[type(value)]
        for each in dataclasses.fields(value):  # type: ignore[arg-type]
            fields[each.name] = plain(getattr(value, each.name))
        return fields

    fields = plain_fields(config)
    # Files of agents' runs name no kind: there was none when the first of them were written.
    if config.kind == RunConfig.kind:
        return fields
    return {"kind": config.kind, **fields}


def by_full_name(plain: Mapping[str, object], prefix: str = "") -> Json:
    """The fields of a configuration as `to_plain` gives it, by full names such as "agent.core.memory_size"."""
    fields: Json = {}
    for name, value in plain.items():
        full_name = f"{prefix}{name}"
        if isinstance(value, Mapping):
            fields |= by_full_name(value, f"{full_name}.")
        else:
            fields[full_name] = value
    return fields


def differences(old: Json, new: Json, part: str = "") -> Iterator[tuple[str, object, object]]:
    """Full name, old and new value of every field that differs between two configurations, as `to_plain` gives them.

    `part`: their name, if they are parts of other configurations, such as "agent".
    """
    prefix = f"{part}." if part else ""
    before = by_full_name(old, prefix)
    after = by_full_name(new, prefix)
    for name in before | after:  # cores differ in their fields
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def from_plain(kind: type[Config], plain: object) -> Config:
    """The configuration of a class that `to_plain` took apart.

    Raises a ValueError if a field is unknown or impossible, or the core's name is unknown.
    """
    return _build(kind, plain, "config", kind.cores)


def _build(kind: Any, plain: object, where: str, cores: Mapping[str, type]) -> Any:
    """A value of a type, such as a dataclass of others, from what JSON can hold; `where` names it in errors."""
    # The type of a core is the union of the classes of all cores.
    members = typing.get_args(kind)
    is_core = any(core in members for core in cores.values())
    if not is_core and not dataclasses.is_dataclass(kind):
        if isinstance(plain, list):  # JSON has no tuples
            return tuple(plain)
        return plain
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: expected an object, got {abbreviate(plain)}")

    # The names of the run's kind and of its core are in the file, and are no fields.
    plain = {name: value for name, value in plain.items() if name != "kind"}
    if is_core:
        name = plain.pop("name", None)
        kind = _core_class(name, cores, members)
        if kind is None:
            raise ValueError(f"{where}: expected a core out of {', '.join(cores)}, got {abbreviate(name)}")
        if kind is CustomCoreConfig:
            plain["name"] = name

    # Its fields, which may be configurations, too; it checks their values itself.
    hints = typing.get_type_hints(kind)
    _require_known(plain, kind, where)
    fields = {}
    for name, value in plain.items():
        fields[name] = _build(hints.get(name), value, f"{where}.{name}", cores)
    try:
        return kind(**fields)
    except TypeError as error:  # a missing field
        raise ValueError(f"{where}: expected fields of this version: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from error


def _require_known(plain: Json, kind: Any, where: str) -> None:
    """Raises a ValueError for a field that a class of configurations does not have."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in plain:
        if name not in known:
            hint = ""
            for close in difflib.get_close_matches(name, known, 1):
                hint = f"perhaps {close}; "
            shown = abbreviate(name).strip("'")
            raise ValueError(f"{where}.{shown}: unknown field; {hint}written by another version?")


def _core_class(name: object, cores: Mapping[str, type], members: tuple[Any, ...]) -> type | None:
    """The class of a core's configuration by the core's name; None for another name.

    `members` are the classes that are possible: custom cores are for agents alone.
    """
    if not isinstance(name, str):
        return None
    if is_custom(name) and CustomCoreConfig in members:
        return CustomCoreConfig
    return cores.get(name)


@overload
def read_config(run: Run) -> RunConfig: ...


@overload
def read_config(run: Run, kind: type[Config]) -> Config: ...


def read_config(run: Run, kind: Any = RunConfig) -> Configuration:
    """The configuration of a run, of a class such as `RunConfig`.

    Raises:
        FileNotFoundError: if the folder is not a run.
        ValueError: if its `config.json` cannot be read, or the run is of another kind; says which commands accept it.
    """
    found, plain = run.read_kind()
    if found != kind.kind:
        made, use = RUN_COMMANDS[found]
        expected, _ = RUN_COMMANDS[kind.kind]
        raise ValueError(f"{run} is a run of `{made}`, expected one of `{expected}`; use {use}, or status")
    try:
        return from_plain(kind, plain)
    except ValueError as error:
        raise ValueError(f"{run.config_file}: {error}") from error


def read_url(url: str) -> RunConfig:
    """The configuration of the agent's run whose checkpoints are at a URL; raises as `read_config`."""
    from storage.checkpoints import load_latest  # here, because it imports torch

    checkpoint = load_latest(url, needed=())
    plain = checkpoint.state.get("config")
    try:
        config = from_plain(RunConfig, plain)
        # The run may have been copied there, from another URL or from a folder.
        return dataclasses.replace(config, checkpoint_url=url)
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error
