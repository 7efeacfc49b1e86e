"""Conversion of checkpoints, optimizer states and random generators to bytes, tensors and JSON and back."""

import base64
import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as format_safetensors
from torch import Tensor

from agent.core.state import leaves
from agent.memory_check import machine_memory
from agent.trajectory import Trajectory
from storage.files import JSON_BYTES, Json, Schema, abbreviate, replacing, require_schema
from storage.stores import MANIFEST

Parts = dict[str, dict[str, Tensor]]
"""The tensors of a checkpoint by part (weights, optimizer, ...) and name; a part is a file."""
FORMAT = 2
"""Version of the manifest."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}\.safetensors")
_SCHEMA: Schema = {
    "step": int,
    "time": float,
    "files": {str: {"size": int, "sha256": str}},
    "state": dict,
}


def serialize(step: int, parts: Parts, state: Json) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of a checkpoint's files, the manifest last; see `storage.checkpoints.save`."""
    files = {}
    for part, tensors in parts.items():
        # Copies, because safetensors refuses tensors that share memory.
        copies = {}
        for name, tensor in tensors.items():
            on_cpu = tensor.detach().cpu().contiguous()
            copies[name] = on_cpu.clone()
        data = format_safetensors(copies)
        file = f"{part}.safetensors"
        files[file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield file, data

    # The manifest has the digests of the others, and its own.
    content = {
        "format": FORMAT,
        "step": step,
        "time": time.time(),
        "files": files,
        "state": state,
    }
    manifest = {**content, "sha256": digest(content)}
    text = json.dumps(manifest, indent=1)
    yield MANIFEST, text.encode()


def deserialize(
    read: Callable[[str, int], bytes],
    measure: Callable[[str, int], tuple[int, str]],
    needed: Collection[str] | None = None,
) -> tuple[int, Parts, Json, float]:
    """Step, parts, state and time of a checkpoint.

    Args:
        read: returns the content of a file, if it has at most a number of bytes.
        measure: returns its size and SHA-256 instead, without having all of it in memory.
        needed: names of the parts that are returned if they are there; None for all. Others are only verified.

    Raises:
        ValueError: if a file is damaged or forged; every value is verified before its use.
    """
    content = _parse_manifest(read(MANIFEST, JSON_BYTES))
    files = content["files"]
    _require_memory(files)
    parts = {}
    for file, expected in files.items():
        # A name with a path in it would lead out of the checkpoint.
        if not _FILE_NAME.fullmatch(file):
            raise ValueError(f"{MANIFEST}: files: expected names such as weights.safetensors, got {abbreviate(file)}")
        part = file.removesuffix(".safetensors")
        size = expected["size"]
        if needed is not None and part not in needed:
            found_size, found_digest = measure(file, size)
            _require_as_written(file, expected, found_size, found_digest)
            continue

        data = read(file, size)
        _require_as_written(file, expected, len(data), hashlib.sha256(data).hexdigest())
        try:
            parts[part] = parse_safetensors(data)
        except Exception as error:  # safetensors and torch raise many kinds for forged data
            raise ValueError(f"{file} holds no tensors: {error!r}") from error
    return content["step"], parts, content["state"], content["time"]


def _require_memory(files: dict[str, Json]) -> None:
    """Raises a ValueError if files claim to be larger, all together, than the machine's memory: they are not read."""
    machine_bytes = machine_memory()
    total = sum(expected["size"] for expected in files.values())
    if total > machine_bytes:
        raise ValueError(f"the checkpoint has {total} bytes, expected at most {machine_bytes}, this machine's memory")


def _require_as_written(file: str, expected: Json, size: int, sha256: str) -> None:
    """Raises a ValueError if a file has not the size and the SHA-256 that the manifest says."""
    if size != expected["size"]:
        raise ValueError(f"{file} has {size} bytes instead of {expected['size']}")
    if sha256 != expected["sha256"]:
        raise ValueError(f"{file} is not what was written (its SHA-256 differs)")


def digest(content: object) -> str:
    """SHA-256 of a value as JSON, independent of the layout of the file."""
    # Numbers and keys as they are after they were read from a file.
    plain = json.loads(json.dumps(content))
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _parse_manifest(data: bytes) -> Json:
    """The content of a manifest; raises a ValueError if it is damaged or forged."""
    # Damaged: it is no JSON, or its digest is not that of its content.
    try:
        content = json.loads(data)
        intact = content.pop("sha256") == digest(content)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{MANIFEST} is damaged") from error
    if not intact:
        raise ValueError(f"{MANIFEST} is not what was written (its SHA-256 differs)")

    # Of another version, or forged together with its digest.
    found = content.get("format")
    if found != FORMAT:
        raise ValueError(f"{MANIFEST}: format: expected {FORMAT}, got {abbreviate(found)}")
    require_schema(content, _SCHEMA, MANIFEST)
    return content


def flatten(tree: object) -> tuple[dict[str, Tensor], object]:
    """Splits nested dicts, lists and tuples, such as an optimizer's `state_dict()`, into tensors and JSON.

    Returns:
        the tensors by path ("state/0/exp_avg"), and a value that JSON can hold, from which `unflatten` makes an equal
        tree (int keys and tuples included; named tuples become plain ones).

    Raises:
        TypeError: if there is anything but these, tensors, numbers, strings, booleans and None.
        ValueError: if two tensors have the same path.
    """
    tensors: dict[str, Tensor] = {}

    def plain(node: object, path: str) -> object:
        # JSON has these as they are.
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, Tensor):
            if path in tensors:
                raise ValueError(f"{path}: expected one tensor of this path, got two")
            tensors[path] = node
            return {"tensor": path}

        # Dicts are lists of pairs, since JSON turns keys into strings; tuples would become lists.
        prefix = f"{path}/" if path else ""
        if isinstance(node, dict):
            pairs = []
            for key, value in node.items():
                below = plain(value, f"{prefix}{key}")
                pairs.append([key, below])
            return {"dict": pairs}
        if isinstance(node, list | tuple):
            values = []
            for index, value in enumerate(node):
                below = plain(value, f"{prefix}{index}")
                values.append(below)
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: values}
        raise TypeError(f"{path}: expected tensors, numbers, strings and nests of them, got {type(node).__name__}")

    return tensors, plain(tree, "")


def unflatten(tensors: dict[str, Tensor], plain: object) -> Any:
    """The tree that `flatten` split; raises a ValueError if `flatten` did not make these tensors or `plain`."""

    def tree(node: object) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        match kind:
            case "tensor":
                return tensors[content]
            case "dict":
                return {key: tree(value) for key, value in content}
            case "list":
                return [tree(value) for value in content]
            case "tuple":
                return tuple(tree(value) for value in content)
        raise KeyError(kind)

    try:
        return tree(plain)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        expected = "expected tensors and a tree as `flatten` makes them"
        raise ValueError(f"{expected}, got {abbreviate(plain)} ({error!r})") from error


def rng_state() -> Json:
    """The states of the global random generators of Python, numpy and torch, GPUs included, as JSON can hold them."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    gpus: list[Tensor] = []
    if torch.cuda.is_available():
        gpus = torch.cuda.get_rng_state_all()
    # Words of state are bytes in base64, which are shorter than numbers and exact.
    little_endian = np.asarray(keys, "<u4")
    encoded_keys = _encode(little_endian)
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, encoded_keys, int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state().numpy()),
        "cuda": [_encode(state.cpu().numpy()) for state in gpus],
    }


def restore_rng(state: Json) -> None:
    """Restores the states that `rng_state` returned; those of GPUs only if there are as many GPUs as before.

    Raises a ValueError if these are no such states, for example those of another version.
    """
    restore: dict[str, Callable[[Any], None]] = {
        "python": _restore_python,
        "numpy": _restore_numpy,
        "torch": _restore_torch,
        "cuda": _restore_cuda,
    }
    require_schema(state, dict.fromkeys(restore, object), "rng")
    for generator, set_state in restore.items():
        saved = state[generator]
        try:
            set_state(saved)
        except (ValueError, TypeError, OverflowError, RuntimeError, KeyError) as error:
            expected = "expected the state of a generator of this version"
            raise ValueError(f"rng: {generator}: {expected}, got {abbreviate(saved)}") from error


def _restore_python(state: Any) -> None:
    version, words, gauss = state
    if gauss is not None:
        gauss = float(gauss)
    random.setstate((version, tuple(words), gauss))


def _restore_numpy(state: Any) -> None:
    kind, keys, position, has_gauss, cached = state
    words = np.frombuffer(base64.b64decode(keys), "<u4")
    if not 0 <= position <= len(words):  # numpy does not check it and would read beyond its words
        raise ValueError(f"position {position}")
    np.random.set_state((kind, words, position, has_gauss, cached))  # noqa: NPY002


def _restore_torch(state: str) -> None:
    torch.set_rng_state(_decode(state))


def _restore_cuda(states: list[str]) -> None:
    # The states belong to the GPUs of the machine that wrote them.
    if torch.cuda.is_available() and len(states) == torch.cuda.device_count():
        decoded = [_decode(state) for state in states]
        torch.cuda.set_rng_state_all(decoded)


def _encode(array: np.ndarray) -> str:
    """The bytes of an array in base64."""
    encoded = base64.b64encode(array.tobytes())
    return encoded.decode()


def _decode(text: str) -> Tensor:
    """The bytes of a text in base64, [N] uint8."""
    # A bytearray, because torch warns of bytes, which cannot be written to.
    content = bytearray(base64.b64decode(text))
    return torch.frombuffer(content, dtype=torch.uint8)


def write_trajectory(trajectory: Trajectory, path: Path) -> None:
    """Writes a trajectory as safetensors: its fields by name, and those with several tensors as FIELD/NUMBER."""
    tensors: dict[str, Tensor] = {}
    for name, value in trajectory._asdict().items():
        if isinstance(value, Tensor):
            tensors[name] = value.contiguous()
            continue
        for index, leaf in enumerate(leaves(value)):
            tensors[f"{name}/{index}"] = leaf.contiguous()
    with replacing(path) as temporary:
        temporary.write_bytes(format_safetensors(tensors))
