"""Checkpoints as folders of safetensors and one JSON file, which a crash or a kill at any moment cannot spoil.

    run/checkpoints/000000012345/
        weights.safetensors     one file for each part: weights, optimizer, actors, ...
        state.json              all that is no tensor, and a manifest with size and SHA-256 of every file and of itself

The run is a folder or a URL. `storage` writes a checkpoint to either so that it is there whole or not at all; the
manifest tells what the disk or a copy spoilt afterwards. Nothing that is loaded can run code. What is in the parts is
the business of those who made them; helpers here turn optimizers and random generators into tensors and JSON and back.
"""

import base64
import hashlib
import json
import logging
import math
import random
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as format_safetensors
from torch import Tensor

from learner.files import replacing
from learner.storage import MANIFEST, Disk, Remote, open_storage, redact

logger = logging.getLogger(__name__)

FORMAT = 2
"""Of the manifest; format 1, of version 0.1, has British names for optimizer and actors' states."""
REASONS = 3
"""Of checkpoints that cannot be read, so many are named with the reason; of others there is only the number."""
_NAME = re.compile(r"([0-9]{12,18})(?:-[0-9a-f]+)?(\.superseded)?")
_PART = r"[A-Za-z0-9_-]{1,200}"
_WORDS = {
    int: "a whole number of 0 or more",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
"""Of JSON, in errors."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    step: agent steps, or batches of a sequence model; its name. parts: tensors by part and name, on the CPU. state:
    what `save` was given as `state`. time: when it was written, in seconds since 1970 (NaN if it does not say). path:
    its folder, or the URL of that. skipped: a line for each of the first `REASONS` newer ones that could not be read,
    with the reason, and one with the number of the others.
    """

    step: int
    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    time: float
    path: Path | str
    skipped: list[str]


class _Entry(NamedTuple):
    """A checkpoint in a listing; entries sort as they are worth loading. current: not superseded."""

    current: bool
    step: int
    name: str


def save(
    run: Path | str, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 3
) -> Path | str:
    """Writes a checkpoint; it is there whole or not at all, and those before it stay until it is.

    A checkpoint of this step is replaced. Later ones (those that `load_latest` had to skip, in a run that went on from
    an earlier one) are set aside as `<step>.superseded`, until the run has come as far again. What interrupted writes
    left is removed.

    Args:
        run: the run's folder, which must be there; or a URL, such as "s3://bucket/run".
        step: agent steps so far, or batches of a sequence model.
        parts: tensors by part and name; a part's name is a file's (letters, digits, "_" and "-").
        state: values that JSON can hold: counters, random states, the configuration.
        keep: how many of the newest to keep, this one included.

    Returns:
        the checkpoint's folder, or the URL of that.

    Raises:
        ValueError: if an argument is impossible, or a number in `state` not finite; nothing was written then.
        TypeError: if `state` holds what JSON cannot; nothing was written then.
        OSError: if the disk is full or not writable; the checkpoints before are untouched.
        StorageError: if the URL cannot be written to; the checkpoints before are untouched.
    """
    if step < 0:
        raise ValueError(f"step: expected at least 0, got {step}")
    if keep < 1:
        raise ValueError(f"keep: expected at least 1, got {keep}")
    for part in parts:
        if not re.fullmatch(_PART, part):
            raise ValueError(f"parts: expected names of letters, digits, '_' and '-', got {part!r}")
    json.dumps(state, allow_nan=False)

    storage = open_storage(run)
    storage.tidy()
    name = storage.write(f"{step:012d}", _files(step, parts, state))
    others = [entry for entry in _entries(storage) if entry.name != name]
    before = [other for other in others if other.current and other.step < step]
    ahead = [other for other in others if other.current and other.step > step]
    if ahead:
        more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
        where = f"{storage.locate(ahead[0].name)}{more}"
        logger.warning("setting aside %s: the run went on from an earlier checkpoint", where)
    for other in others:
        if other.current and other.step > step:
            storage.rename(other.name, f"{other.name}.superseded")
        elif other.step <= step and other not in before[: keep - 1]:
            storage.remove(other.name)
    return storage.locate(name)


def _files(step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of a checkpoint's files; the manifest comes last, for it tells of all others."""
    files = {}
    for part, tensors in parts.items():
        # Copies, as safetensors refuses tensors that share memory.
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        data = format_safetensors(copies)
        files[f"{part}.safetensors"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield f"{part}.safetensors", data
    content = {"format": FORMAT, "step": step, "time": time.time(), "files": files, "state": state}
    yield MANIFEST, json.dumps({**content, "sha256": _digest_json(content)}, indent=1).encode()


def load_latest(run: Path | str) -> Checkpoint:
    """Reads the newest checkpoint that is whole.

    Each one that is truncated, altered or incomplete is skipped for the one before, with a warning that says why.
    Nothing on the disk or behind the URL is changed.

    Args:
        run: the run's folder, or a URL.

    Raises:
        FileNotFoundError: if the folder is no run, or there is no checkpoint, or none that can be read; says which.
        StorageError: if the URL cannot be used or read from. None is skipped for that.
    """
    storage = open_storage(run)
    tried: dict[str, str] = {}
    while candidates := [entry.name for entry in _entries(storage) if entry.name not in tried]:
        for name in candidates:
            try:
                return _read(storage, name)._replace(skipped=_summary(storage, tried))
            except (OSError, ValueError, MemoryError, RecursionError) as error:
                if not storage.holds(name):
                    break  # a training run beside us removed it, and so has written newer ones
                tried[name] = _cut(f"{name}: {str(error) or type(error).__name__}", 200)
    if tried:
        raise FileNotFoundError(f"{run} has no checkpoint that can be read: {'; '.join(_summary(storage, tried))}")
    raise FileNotFoundError(f"{run} has no checkpoint yet")


def _summary(storage: Disk | Remote, tried: dict[str, str]) -> list[str]:
    """Lines on the checkpoints that were skipped, given their reasons by name; warns of the same."""
    lines, more = list(tried.values())[:REASONS], len(tried) - REASONS
    for line in lines:
        warnings.warn(f"skipped checkpoint {storage.locate(line)}", stacklevel=3)
    return [*lines, f"and {more} more"] if more > 0 else lines


def _read(storage: Disk | Remote, name: str) -> Checkpoint:
    """Reads a checkpoint that anyone may have written: nothing is opened before it is known to be what it must be.

    Raises:
        ValueError, OSError, MemoryError, RecursionError: if it is damaged or was made up; says how.
    """

    def read(file: str, size: int | None = None) -> bytes:
        try:
            return storage.read(name, file, size)
        except FileNotFoundError as error:
            raise ValueError(f"{file} is missing") from error

    text = read(MANIFEST)
    try:
        content = json.loads(text)
        digest = content.pop("sha256")
        intact = digest == _digest_json(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("state.json is damaged") from error
    if not intact:
        raise ValueError("state.json is not what was written (its SHA-256 differs)")
    require(content, {"format": int}, MANIFEST)
    if content["format"] not in (1, FORMAT):
        raise ValueError(f"state.json has format {content['format']}, this version reads 1 and {FORMAT}")
    content = {"time": math.nan, **content}
    files = {str: {"size": int, "sha256": str}}
    require(content, {"step": int, "time": float, "files": files, "state": dict}, MANIFEST)
    parts = {}
    for file, expected in content["files"].items():
        if not re.fullmatch(_PART + r"\.safetensors", file):
            raise ValueError(f"{MANIFEST}: files: expected names such as weights.safetensors, got {shown(file)}")
        data = read(file, expected["size"])
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise ValueError(f"{file} is not what was written (its SHA-256 differs)")
        try:
            parts[file.removesuffix(".safetensors")] = parse_safetensors(data)
        except Exception as error:  # of what was made up, safetensors and torch complain in many ways
            raise ValueError(f"{file} holds no tensors: {error!r}") from error
    state = content["state"]
    if content["format"] == 1:
        parts, state = _upgrade(parts, state)
    return Checkpoint(content["step"], parts, state, content["time"], storage.locate(name), [])


def _upgrade(parts: dict[str, Any], state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parts and state of a checkpoint of format 1, with the names of this version."""
    names = {"optimiser": "optimizer"}
    parts = {names.get(part, part): tensors for part, tensors in parts.items()}
    learner = state.get("learner")
    if isinstance(learner, dict):
        state = {**state, "learner": {names.get(name, name): value for name, value in learner.items()}}
    return parts, state


def require(value: Any, schema: Any, where: str) -> None:
    """Checks what was read as JSON.

    Args:
        value: what JSON can hold.
        schema: a type (int stands for 0 to 2^63 - 1, float for any number, object for anything); a dict with the
            schemas of what must be there, beside which there may be more; {str: schema} for objects and [schema] for
            lists of such values.
        where: names the value in errors.

    Raises:
        ValueError: says what was expected where, and what was given.
    """
    kind: Any = schema if isinstance(schema, type) else type(schema)
    if kind is int:
        fits = type(value) is int and 0 <= value < 1 << 63
    elif kind is float:
        fits = type(value) is float or (type(value) is int and abs(value) < 1 << 63)
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise ValueError(f"{where}: expected {_WORDS[kind]}, got {shown(value)}")
    if isinstance(schema, dict) and str in schema:
        schema = dict.fromkeys(value, schema[str])
    parts = {}
    if isinstance(schema, dict):
        if missing := [name for name in schema if name not in value]:
            raise ValueError(f"{where}: expected {', '.join(missing)} in it, got {shown(list(value))}")
        parts = {name: (value[name], part) for name, part in schema.items()}
    elif isinstance(schema, list):
        parts = {index: (item, schema[0]) for index, item in enumerate(value)}
    for name, (item, part) in parts.items():
        require(item, part, f"{where}: {name}")


def shown(value: Any) -> str:
    """A value as errors have room for it, without the passwords of URLs."""
    try:
        return _cut(redact(repr(value)), 120)
    except RecursionError:
        return "what is nested too deeply"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def _entries(storage: Disk | Remote) -> list[_Entry]:
    """What may be loaded, best first; superseded ones only if none of the others can be read."""
    found = [match for name in storage.folders() if (match := _NAME.fullmatch(name))]
    return sorted((_Entry(not match[2], int(match[1]), match[0]) for match in found), reverse=True)


def _digest_json(value: Any) -> str:
    """Of the value as it will be read again, whatever its layout in the file."""
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def format_json(value: Any, **options: Any) -> str:
    """A value as JSON, with null in place of numbers that are not finite: JSON has none of these."""

    def finite(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: finite(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [finite(value) for value in node]
        return None if isinstance(node, float) and not math.isfinite(node) else node

    return json.dumps(finite(value), allow_nan=False, **options)


def write_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file that is there whole or, after a crash, as it was before; see `format_json`.

    Raises:
        TypeError: if JSON cannot hold the value; nothing was written then.
    """
    text = format_json(value, indent=2)
    with replacing(Path(path)) as temporary:
        temporary.write_text(text + "\n")


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Splits a nest of dicts, lists and tuples, such as an optimizer's `state_dict()`, into tensors and JSON.

    Named tuples, such as a core's state, become plain ones.

    Returns:
        the tensors by path ("state/0/exp_avg"), and a value that JSON can hold, from which `unflatten` makes an equal
        nest (keys that are ints and tuples included).

    Raises:
        TypeError: if there is anything but these, tensors, numbers, strings, booleans and None.
        ValueError: if two tensors have the same path.
    """
    tensors: dict[str, Tensor] = {}

    def plain(node: Any, path: str) -> Any:
        if isinstance(node, Tensor):
            if path in tensors:
                raise ValueError(f"{path}: expected one tensor of this path, got two")
            tensors[path] = node
            return {"tensor": path}
        if type(node) is dict:
            return {"dict": [[_plain_key(key, path), plain(value, _join(path, key))] for key, value in node.items()]}
        if type(node) is list or isinstance(node, tuple):
            kind = "list" if type(node) is list else "tuple"
            return {kind: [plain(value, _join(path, index)) for index, value in enumerate(node)]}
        if node is None or type(node) in (bool, int, float, str):
            return node
        raise TypeError(f"{path}: expected tensors, numbers, strings and nests of them, got {type(node).__name__}")

    return tensors, plain(tree, "")


def unflatten(tensors: dict[str, Tensor], plain: Any) -> Any:
    """The nest that `flatten` split.

    Raises:
        ValueError: if a tensor is missing, or this is not what `flatten` made.
    """
    try:
        return _unflatten(tensors, plain)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected tensors and a nest as they were written, got {shown(plain)} ({error!r})") from error


def _unflatten(tensors: dict[str, Tensor], plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unflatten(tensors, value) for key, value in content}
    children = [_unflatten(tensors, value) for value in content]
    return {"list": list, "tuple": tuple}[kind](children)


def _plain_key(key: Any, path: str) -> str | int:
    if type(key) not in (str, int):
        raise TypeError(f"{path}: expected keys of str or int, got {type(key).__name__}")
    return key


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def pack_learner(state: dict[str, Any]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Splits `Learner.state_dict()` into the parts `weights` and `optimizer` and a value that JSON can hold."""
    optimizer, plain = flatten(state["optimizer"])
    counters = {name: value for name, value in state.items() if name not in ("weights", "optimizer")}
    return {"weights": state["weights"], "optimizer": optimizer}, {**counters, "optimizer": plain}


def unpack_learner(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `Learner.load_state_dict` takes, of a checkpoint with `pack_learner`'s value as `state["learner"]`.

    Raises:
        ValueError: if the checkpoint has no such learner in it.
    """
    require(checkpoint.state, {"learner": {"version": int, "steps": int, "optimizer": dict}}, "state")
    require(checkpoint.parts, {"weights": dict, "optimizer": dict}, "parts")
    packed = dict(checkpoint.state["learner"])
    optimizer = unflatten(checkpoint.parts["optimizer"], packed.pop("optimizer"))
    return {**packed, "weights": checkpoint.parts["weights"], "optimizer": optimizer}


def rng_state() -> dict[str, Any]:
    """The states of the global random generators of Python, numpy and torch, GPUs included, as JSON can hold them."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, _encode(np.asarray(keys, "<u4").tobytes()), int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state().numpy().tobytes()),
        "cuda": [_encode(state.cpu().numpy().tobytes()) for state in gpus],
    }


def restore_rng(state: Any) -> None:
    """Restores the states that `rng_state` gave. GPUs are left alone where there is not the same number of them.

    Raises:
        ValueError: as `check_rng` does; nothing was changed then.
    """
    check_rng(state)
    random.setstate(_python(state))
    np.random.set_state(_numpy(state))  # noqa: NPY002
    torch.set_rng_state(_decode(state["torch"]))
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) == present:
        for index, gpu in enumerate(state["cuda"]):
            torch.cuda.set_rng_state(_decode(gpu), index)
    else:
        logger.warning("random states of %d GPUs not restored: there are %d", len(state["cuda"]), present)


def check_rng(state: Any) -> None:
    """Raises a ValueError where these are no states that `restore_rng` takes, but those of another version, say."""
    require(state, {"python": list, "numpy": list, "torch": str, "cuda": [str]}, "rng")
    generator = "Python"
    try:
        random.Random().setstate(_python(state))
        require(state["python"][2] or 0.0, float, "gauss")
        generator = "numpy"
        numpy = _numpy(state)
        if not 0 <= numpy[2] <= len(numpy[1]):  # numpy would read beyond its words
            raise ValueError(f"position {numpy[2]}")
        np.random.RandomState().set_state(numpy)
        generator = "torch"
        torch.Generator().set_state(_decode(state["torch"]))
        generator = "cuda"
        if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
            for index, gpu in enumerate(state["cuda"]):
                torch.Generator(f"cuda:{index}").set_state(_decode(gpu))
    except (ValueError, TypeError, OverflowError, RuntimeError, KeyError) as error:
        name = generator.lower()
        raise ValueError(
            f"rng: {name}: expected the state of a generator of this version of {generator}, got {shown(state[name])}"
        ) from error


def _python(state: dict[str, Any]) -> tuple[Any, ...]:
    """What `random.setstate` takes."""
    version, words, gauss = state["python"]
    return version, tuple(words), gauss


def _numpy(state: dict[str, Any]) -> tuple[Any, ...]:
    """What `np.random.set_state` takes."""
    kind, keys, position, has_gauss, cached = state["numpy"]
    return kind, np.frombuffer(base64.b64decode(keys), "<u4"), position, has_gauss, cached


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
