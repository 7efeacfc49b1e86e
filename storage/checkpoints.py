"""Checkpoints of a run: folders of safetensors and one JSON file.

    run/checkpoints/000000012345/
        weights.safetensors     one file for each part: weights, optimizer, actors, ...
        state.json              everything else, and a manifest: size and SHA-256 of every file and of itself

Writing is atomic (`storage.stores`); the manifest detects later damage. Loading runs no code.
"""

import json
import logging
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from storage.files import Json, require_schema
from storage.serialization import Parts, deserialize, flatten, serialize, unflatten
from storage.stores import DiskStore, UrlStore, open_store

logger = logging.getLogger(__name__)

LEARNER = {"version": int, "steps": int, "optimizer": dict}
"""Schema of what `pack_learner` makes of an agent's learner."""
_NESTED = ("optimizer", "memory")
_NAME = re.compile(r"(?P<step>[0-9]{12,18})(-[0-9a-f]+)?(?P<superseded>\.superseded)?")


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    step: agent steps, or batches of a sequence model. parts: tensors by part and name, on the CPU. state: the `state`
    that `save` was given. time: of writing, in seconds since 1970 (NaN if unknown). path: folder or URL. skipped: one
    line for each newer checkpoint that cannot be read.
    """

    step: int
    parts: Parts
    state: Json
    time: float
    path: Path | str
    skipped: list[str]


def save(run: Path | str, step: int, parts: Parts, state: Json, keep: int = 3, every: int = 0) -> Path | str:
    """Writes a checkpoint atomically, in place of one of the same step, and then removes old ones.

    If the run was resumed from an earlier checkpoint because later ones were damaged, these are renamed to
    `<step>.superseded` until the run has reached their step (behind a URL they are removed).

    Args:
        parts: tensors by part and name; names of parts consist of letters, digits, "_" and "-".
        state: values that JSON can hold: counters, random states, the configuration.
        keep: how many of the newest checkpoints to keep, this one included; at least 1.
        every: of each so many steps the first checkpoint is kept as well; 0 for none.

    Returns:
        the checkpoint's folder or URL.

    Raises:
        ValueError, TypeError: if JSON cannot hold `state`; nothing was written.
        OSError, StorageError: if it cannot be written, because the disk is full, say; the others are intact.
    """
    json.dumps(state, allow_nan=False)  # an error before anything is written
    store = open_store(run)
    new = store.write(f"{step:012d}", serialize(step, parts, state))

    # Old ones go only now, so that there is always one that can be read.
    others = [entry for entry in _entries(store) if entry.name != new]
    earlier = [entry for entry in others if entry.current and entry.step < step]
    num_kept = keep - 1  # beside the new one
    kept = earlier[:num_kept]  # the best are first
    if every:
        kept += _first_of_each(earlier, every)
    for entry in others:
        is_later = entry.step > step
        if is_later and entry.current:
            # The run was resumed from an earlier checkpoint, since this one could not be read.
            place = store.locate(entry.name)
            logger.warning("%s: superseded, because the run was resumed from an earlier one", place)
            store.supersede(entry.name)
        elif not is_later and entry not in kept:
            store.remove(entry.name)
    return store.locate(new)


def _first_of_each(entries: list["_Entry"], every: int) -> list["_Entry"]:
    """The checkpoints with the fewest steps of each so many steps."""
    first: dict[int, _Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.step):
        first.setdefault(entry.step // every, entry)
    return list(first.values())


def load(run: Path | str, needed: Collection[str] | None = None, name: str | None = None) -> Checkpoint:
    """Reads the checkpoint of a name, or the newest readable one if that is None; see `load_latest`.

    Raises:
        FileNotFoundError: as `load_latest` does, also if that of the name cannot be read.
        StorageError: if the URL cannot be read.
    """
    if name is None:
        return load_latest(run, needed)
    store = open_store(run)
    try:
        return read(store, name, needed)
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        raise FileNotFoundError(f"{run}: checkpoint {_reason(name, error)}") from error


def load_latest(run: Path | str, needed: Collection[str] | None = None) -> Checkpoint:
    """Reads the newest checkpoint of a run, given by folder or URL; damaged ones are skipped.

    `needed`: names of the parts that it is to have if they are there; None for all. Others take no memory.

    Raises:
        FileNotFoundError: if the folder is not a run, or has no readable checkpoint; says why.
        StorageError: if the URL cannot be read; no checkpoint is skipped for that.
    """
    store = open_store(run)
    reasons: dict[str, str] = {}  # by name of a checkpoint, why it cannot be read
    vanished: set[str] = set()
    while names := [entry.name for entry in _entries(store) if entry.name not in reasons]:
        for name in names:
            try:
                checkpoint = read(store, name, needed)
                return checkpoint._replace(skipped=list(reasons.values()))
            except (OSError, ValueError, MemoryError, RecursionError) as error:
                # Another process, which trains this run, may have removed it and written newer ones. What is listed
                # once more is damaged: behind a URL it may be a link that leads nowhere.
                if name not in vanished and not store.exists(name):
                    vanished |= {other for other in names if not store.exists(other)}
                    break
                reasons[name] = _reason(name, error)
    if reasons:
        all_reasons = "; ".join(reasons.values())
        raise FileNotFoundError(f"{run} has no checkpoint that can be read: {all_reasons}")
    raise FileNotFoundError(f"{run} has no checkpoint yet")


def _reason(name: str, error: BaseException) -> str:
    """Why a checkpoint cannot be read, in one line."""
    what = str(error)
    # Our own errors are ValueErrors, which say what is wrong.
    if not isinstance(error, ValueError):
        what = f"{type(error).__name__}: {error}"
    return f"{name}: {what}"[:200]


def read(store: DiskStore | UrlStore, name: str, needed: Collection[str] | None = None) -> Checkpoint:
    """Reads and verifies one checkpoint; a damaged one is a ValueError, OSError, MemoryError or RecursionError.

    See `load_latest` for `needed`.
    """

    def read_file(file: str, most: int) -> bytes:
        return store.read(name, file, most)

    def measure_file(file: str, most: int) -> tuple[int, str]:
        return store.measure(name, file, most)

    step, parts, state, written = deserialize(read_file, measure_file, needed)
    return Checkpoint(step, parts, state, written, path=store.locate(name), skipped=[])


class _Entry(NamedTuple):
    """A checkpoint in a listing. Entries sort by preference for loading. current: not superseded."""

    current: bool
    step: int
    name: str


def _entries(store: DiskStore | UrlStore) -> list[_Entry]:
    """All checkpoints, best first; superseded ones are last."""
    entries = []
    for name in store.names():
        match = _NAME.fullmatch(name)
        # Other folders are not ours.
        if match:
            current = not match["superseded"]
            entries.append(_Entry(current, int(match["step"]), name))
    return sorted(entries, reverse=True)


def load_weights(
    take: Callable[[Any], object], place: Path | str, config_file: Path, name: str | None = None
) -> Checkpoint:
    """Gives a network's `take` the weights of the checkpoint of a name at a folder or URL, or of the newest readable.

    Raises:
        ValueError: if they do not fit the network, which is that of `config_file`.
        FileNotFoundError, StorageError: see `load`.
    """
    checkpoint = load(place, ["weights"], name)
    try:
        take(checkpoint.parts["weights"])
    except (RuntimeError, KeyError) as error:
        raise ValueError(misfit(checkpoint, config_file, error)) from error
    return checkpoint


def misfit(checkpoint: Checkpoint, config_file: Path, error: Exception) -> str:
    """Says that a checkpoint does not fit what its run has now, and why.

    Of torch's list of weights whose shapes differ, the first is enough: the others mostly follow from it.
    """
    message = f"{checkpoint.path} does not fit {config_file}"
    first = re.search(r"size mismatch for .*", str(error))
    if first is None:
        return f"{message}: {error}"
    return f"{message}, or its observations, actions or tokens are not those of its training: {first[0]}"


def pack_learner(state: Json) -> tuple[Parts, Json]:
    """Splits a learner's `state_dict()` into parts, which are `weights`, `optimizer` and for sequence models `memory`,
    and a value that JSON can hold."""
    # Weights are tensors by name as they are; the optimizer's state is a tree of tensors and numbers.
    parts = {"weights": state["weights"]}
    plain = {name: value for name, value in state.items() if name != "weights"}
    for name in _NESTED:
        if name in state:
            tensors, tree = flatten(state[name])
            parts[name] = tensors
            plain[name] = tree
    return parts, plain


def unpack_learner(checkpoint: Checkpoint) -> Json:
    """The `state_dict()` from a checkpoint with `pack_learner`'s value as `state["learner"]`, which has been checked.

    Raises:
        ValueError: if the checkpoint lacks tensors of the learner.
    """
    plain = checkpoint.state["learner"]
    nested = [name for name in _NESTED if name in plain]
    # The state's schema says nothing of the files of tensors, some of which may be missing.
    require_schema(checkpoint.parts, dict.fromkeys(["weights", *nested], dict), "parts")

    state = {**plain, "weights": checkpoint.parts["weights"]}
    for name in nested:
        state[name] = unflatten(checkpoint.parts[name], plain[name])
    return state
