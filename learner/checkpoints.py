"""Checkpoints as folders of safetensors and one JSON file, which a crash or a kill at any moment cannot spoil.

    run/checkpoints/000000012345/
        weights.safetensors     one file for each part: weights, optimiser, actors, ...
        state.json              all that is no tensor, and a manifest with size and SHA-256 of every file and of itself

A checkpoint is written under a temporary name, flushed to the disk and renamed, so that a folder with a plain number
for a name is complete; the manifest tells what the disk or a copy spoilt afterwards. Nothing that is loaded can run
code. What is in the parts is the business of those who made them; helpers here turn optimisers and random generators
into tensors and JSON and back.
"""

import base64
import hashlib
import json
import logging
import os
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as format_safetensors
from torch import Tensor

logger = logging.getLogger(__name__)

FORMAT = 1
_COMPLETE = re.compile(r"\d{12,}")
_SUPERSEDED = re.compile(r"(\d{12,})\.superseded")
_TEMPORARY = ".tmp"


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    step: agent steps, its name. parts: tensors by part and name, on the CPU. state: what `save` was given as `state`.
    path: its folder. skipped: one line for each newer one that could not be read, with the reason.
    """

    step: int
    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    path: Path
    skipped: list[str]


def save(run: Path | str, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 3) -> Path:
    """Writes a checkpoint; it is there whole or not at all, and those before it stay until it is.

    A checkpoint of this step is replaced. Later ones (those that `load_latest` had to skip, in a run that went on from
    an earlier one) are set aside as `<step>.superseded`. What interrupted writes left is removed.

    Args:
        run: the run's folder; made if it does not exist.
        step: agent steps so far.
        parts: tensors by part and name; a part's name is a file's (letters, digits, "_" and "-").
        state: values that JSON can hold: counters, random states, the configuration.
        keep: how many of the newest to keep, this one included.

    Returns:
        the checkpoint's folder.

    Raises:
        ValueError: if an argument is impossible; nothing was written then.
        TypeError: if `state` holds what JSON cannot; nothing was written then.
        OSError: if the disk is full or not writable; the checkpoints before are untouched.
    """
    if step < 0:
        raise ValueError(f"step: expected at least 0, got {step}")
    if keep < 1:
        raise ValueError(f"keep: expected at least 1, got {keep}")
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", part):
            raise ValueError(f"parts: expected names of letters, digits, '_' and '-', got {part!r}")
    json.dumps(state)

    folder = Path(run) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    final = folder / f"{step:012d}"
    temporary = folder / f"{final.name}{_TEMPORARY}"
    temporary.mkdir()
    try:
        files = {}
        for part, tensors in parts.items():
            # Copies, as safetensors refuses tensors that share memory.
            copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
            data = format_safetensors(copies)
            file = f"{part}.safetensors"
            _write_and_flush(temporary / file, data)
            files[file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        content = {"format": FORMAT, "step": step, "files": files, "state": state}
        text = json.dumps({**content, "sha256": _digest_json(content)}, indent=1)
        _write_and_flush(temporary / "state.json", text.encode())
        _flush(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for number, other in _complete(folder):
        if number > step:
            logger.warning("setting aside %s: the run went on from an earlier checkpoint", other)
        if number >= step:
            _supersede(other)
    temporary.rename(final)
    _flush(folder)
    for _, old in _complete(folder)[keep:]:
        _remove(old)
    if (replaced := final.with_name(f"{final.name}.superseded")).exists():
        _remove(replaced)
    return final


def load_latest(run: Path | str) -> Checkpoint:
    """Reads the newest checkpoint that is whole.

    Each one that is truncated, altered or incomplete is skipped for the one before, with a warning that says why.
    Nothing on the disk is changed.

    Raises:
        FileNotFoundError: if the folder is no run, has no checkpoint, or none that can be read; says which.
    """
    run = Path(run)
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: there is no such folder")
    folder = run / "checkpoints"
    if not folder.is_dir():
        raise FileNotFoundError(f"{run} has no checkpoints: expected the folder of a run, with checkpoints/ in it")
    skipped: list[str] = []
    tried: set[Path] = set()
    while candidates := [path for path in _candidates(folder) if path not in tried]:
        path = candidates[0]
        tried.add(path)
        try:
            checkpoint = _read(path)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            if not path.exists():
                continue  # a training run beside us removed it, and so has written newer ones
            skipped.append(f"{path.name}: {error}")
            warnings.warn(f"skipped checkpoint {path}: {error}", stacklevel=2)
            continue
        return checkpoint._replace(skipped=skipped)
    if skipped:
        raise FileNotFoundError(f"{folder} has no checkpoint that can be read: {'; '.join(skipped)}")
    raise FileNotFoundError(f"{folder} has no checkpoint yet")


def _read(path: Path) -> Checkpoint:
    if not (path / "state.json").is_file():
        raise ValueError("state.json is missing")
    try:
        content = json.loads((path / "state.json").read_bytes())
        digest = content.pop("sha256")
        intact = digest == _digest_json(content)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError("state.json is damaged") from error
    if not intact:
        raise ValueError("state.json is not what was written (its SHA-256 differs)")
    if content["format"] != FORMAT:
        raise ValueError(f"state.json has format {content['format']}, this version reads {FORMAT}")
    parts = {}
    for name, expected in content["files"].items():
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        data = (path / name).read_bytes()
        if len(data) != expected["size"]:
            raise ValueError(f"{name} has {len(data)} bytes instead of {expected['size']}")
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise ValueError(f"{name} is not what was written (its SHA-256 differs)")
        parts[name.removesuffix(".safetensors")] = parse_safetensors(data)
    return Checkpoint(content["step"], parts, content["state"], path, [])


def _complete(folder: Path) -> list[tuple[int, Path]]:
    """Step and folder of each complete checkpoint, newest first."""
    found = [(int(path.name), path) for path in folder.iterdir() if _COMPLETE.fullmatch(path.name)]
    return sorted(found, reverse=True)


def _candidates(folder: Path) -> list[Path]:
    """What may be loaded, best first; superseded ones serve if a replacement was interrupted."""
    superseded = sorted((path for path in folder.iterdir() if _SUPERSEDED.fullmatch(path.name)), reverse=True)
    return [path for _, path in _complete(folder)] + superseded


def _supersede(path: Path) -> None:
    aside = path.with_name(f"{path.name}.superseded")
    if aside.exists():
        _remove(aside)
    path.rename(aside)


def _remove(path: Path) -> None:
    """Removes a folder; a kill in between leaves nothing that looks like a checkpoint."""
    doomed = path.with_name(f"{path.name}.removed{_TEMPORARY}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.endswith(_TEMPORARY) and path.is_dir():
            shutil.rmtree(path)


def _flush(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_and_flush(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _digest_json(value: Any) -> str:
    """Of the value as it will be read again, whatever its layout in the file."""
    plain = json.loads(json.dumps(value))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def write_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file that is there whole or, after a crash, as it was before.

    Raises:
        TypeError: if JSON cannot hold the value; nothing was written then.
    """
    path = Path(path)
    text = json.dumps(value, indent=2)
    temporary = path.with_name(f"{path.name}{_TEMPORARY}")
    try:
        _write_and_flush(temporary, (text + "\n").encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Splits a nest of dicts, lists and tuples, such as an optimiser's `state_dict()`, into tensors and JSON.

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
        if type(node) in (list, tuple):
            return {type(node).__name__: [plain(value, _join(path, index)) for index, value in enumerate(node)]}
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
