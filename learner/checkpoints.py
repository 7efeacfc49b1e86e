"""Checkpoints as folders of safetensors and one JSON file, which a crash or a kill at any moment cannot spoil.

    run/checkpoints/000000012345/
        weights.safetensors     one file for each part: weights, optimiser, actors, ...
        state.json              all that is no tensor, and a manifest with size and SHA-256 of every file and of itself

The run is a folder or a URL. `storage` writes a checkpoint to either so that it is there whole or not at all; the
manifest tells what the disk or a copy spoilt afterwards. Nothing that is loaded can run code. What is in the parts is
the business of those who made them; helpers here turn optimisers and random generators into tensors and JSON and back.
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
import safetensors
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as format_safetensors
from torch import Tensor

from learner.storage import MANIFEST, Disk, Remote, flush, open_storage, write_and_flush

logger = logging.getLogger(__name__)

FORMAT = 1
_NAME = re.compile(r"(\d{12,})(?:-[0-9a-f]+)?(\.superseded)?")


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    step: agent steps, or batches of a sequence model; its name. parts: tensors by part and name, on the CPU. state:
    what `save` was given as `state`. time: when it was written, in seconds since 1970 (NaN if it does not say). path:
    its folder, or the URL of that. skipped: one line for each newer one that could not be read, with the reason.
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
        run: the run's folder, made if it does not exist; or a URL, such as "s3://bucket/run".
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
        if not re.fullmatch(r"[A-Za-z0-9_-]+", part):
            raise ValueError(f"parts: expected names of letters, digits, '_' and '-', got {part!r}")
    json.dumps(state, allow_nan=False)

    storage = open_storage(run)
    storage.tidy()
    name = storage.write(f"{step:012d}", _files(step, parts, state))
    others = [entry for entry in _entries(storage) if entry.name != name]
    before = [other for other in others if other.current and other.step < step]
    for other in others:
        if other.current and other.step > step:
            logger.warning("setting aside %s: the run went on from an earlier checkpoint", storage.locate(other.name))
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
    skipped: list[str] = []
    tried: set[str] = set()
    while candidates := [entry.name for entry in _entries(storage) if entry.name not in tried]:
        name = candidates[0]
        try:
            checkpoint = _read(storage, name)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            if name not in storage.folders():
                continue  # a training run beside us removed it, and so has written newer ones
            tried.add(name)
            skipped.append(f"{name}: {error}")
            warnings.warn(f"skipped checkpoint {storage.locate(name)}: {error}", stacklevel=2)
            continue
        return checkpoint._replace(skipped=skipped)
    if skipped:
        raise FileNotFoundError(f"{run} has no checkpoint that can be read: {'; '.join(skipped)}")
    raise FileNotFoundError(f"{run} has no checkpoint yet")


def _read(storage: Disk | Remote, name: str) -> Checkpoint:
    def read(file: str) -> bytes:
        try:
            return storage.read(name, file)
        except FileNotFoundError as error:
            raise ValueError(f"{file} is missing") from error

    text = read(MANIFEST)
    try:
        content = json.loads(text)
        digest = content.pop("sha256")
        intact = digest == _digest_json(content)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError("state.json is damaged") from error
    if not intact:
        raise ValueError("state.json is not what was written (its SHA-256 differs)")
    if content["format"] != FORMAT:
        raise ValueError(f"state.json has format {content['format']}, this version reads {FORMAT}")
    parts = {}
    for file, expected in content["files"].items():
        data = read(file)
        if len(data) != expected["size"]:
            raise ValueError(f"{file} has {len(data)} bytes instead of {expected['size']}")
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise ValueError(f"{file} is not what was written (its SHA-256 differs)")
        parts[file.removesuffix(".safetensors")] = parse_safetensors(data)
    return Checkpoint(content["step"], parts, content["state"], content.get("time", math.nan), storage.locate(name), [])


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
    path = Path(path)
    text = format_json(value, indent=2)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        write_and_flush(temporary, (text + "\n").encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Splits a nest of dicts, lists and tuples, such as an optimiser's `state_dict()`, into tensors and JSON.

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
        KeyError: if a tensor is missing.
    """
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unflatten(tensors, value) for key, value in content}
    children = [unflatten(tensors, value) for value in content]
    return tuple(children) if kind == "tuple" else children


def _plain_key(key: Any, path: str) -> str | int:
    if type(key) not in (str, int):
        raise TypeError(f"{path}: expected keys of str or int, got {type(key).__name__}")
    return key


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def pack_learner(state: dict[str, Any]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Splits `Learner.state_dict()` into the parts `weights` and `optimiser` and a value that JSON can hold."""
    optimiser, plain = flatten(state["optimiser"])
    counters = {name: value for name, value in state.items() if name not in ("weights", "optimiser")}
    return {"weights": state["weights"], "optimiser": optimiser}, {**counters, "optimiser": plain}


def unpack_learner(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `Learner.load_state_dict` takes, of a checkpoint with `pack_learner`'s value as `state["learner"]`.

    Raises:
        KeyError: if the checkpoint has no learner in it.
    """
    packed = dict(checkpoint.state["learner"])
    optimiser = unflatten(checkpoint.parts["optimiser"], packed.pop("optimiser"))
    return {**packed, "weights": checkpoint.parts["weights"], "optimiser": optimiser}


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


def restore_rng(state: dict[str, Any]) -> None:
    """Takes up the states that `rng_state` gave. GPUs are left alone where there is not the same number of them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.frombuffer(base64.b64decode(keys), "<u4"), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(_decode(state["torch"]))
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) == present:
        for index, gpu in enumerate(state["cuda"]):
            torch.cuda.set_rng_state(_decode(gpu), index)
    else:
        logger.warning("random states of %d GPUs not restored: there are %d", len(state["cuda"]), present)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
