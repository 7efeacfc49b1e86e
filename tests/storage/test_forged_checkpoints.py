"""A damaged or forged checkpoint is skipped with a reason before it does any harm; it runs no code."""

import hashlib
import json
import os
import pickle
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.memory_check import machine_memory
from storage import checkpoints
from storage.files import JSON_BYTES
from tests.learner.runs import PARTS, forge, names, save

TERABYTE = 1 << 40
SPARSE = 512 << 20
SPARSE_SHA256 = "9acca8e8c22201155389f65abbf6bc9723edc7384ead80503839f49dcc56d767"
WEIGHTS = "weights.safetensors"
Damage = Callable[[Path], object]


def instead(file: str, make: Callable[[Path], object]) -> Damage:
    """Something else in place of a file."""

    def replace(folder: Path) -> None:
        path = folder / file
        path.unlink()
        make(path)

    return replace


def edit(file: str, change: Callable[[bytes], bytes]) -> Damage:
    """Other bytes in a file."""
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def manifest(**changes: Any) -> Damage:
    """Other entries of state.json, whose SHA-256 fits them."""
    return lambda folder: forge(folder, lambda content: content.update(changes))


def entry(name: str, **changes: Any) -> Damage:
    """One more file in the manifest, or other properties of one that is in it."""

    def change(content: Any) -> None:
        content["files"].setdefault(name, {"size": 9, "sha256": "0" * 64}).update(changes)

    return lambda folder: forge(folder, change)


def weights(data: bytes) -> Damage:
    """Other bytes of the weights, with a matching manifest."""

    def corrupt(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes(data)
        entry(WEIGHTS, size=len(data), sha256=hashlib.sha256(data).hexdigest())(folder)

    return corrupt


def header(text: bytes, length: int | None = None) -> Damage:
    """Weights with this header, and a length of the header that may be wrong."""
    if length is None:
        length = len(text)
    return weights(struct.pack("<Q", length) + text + bytes(64))


def sparse(path: Path) -> None:
    """A file of a terabyte that takes no room on the disk."""
    path.touch()
    os.truncate(path, TERABYTE)


def huge(folder: Path) -> None:
    """Weights of a terabyte, of which the manifest knows."""
    instead(WEIGHTS, sparse)(folder)
    entry(WEIGHTS, size=TERABYTE)(folder)


def bomb(folder: Path) -> None:
    """Six more parts of 512 MiB that take no room on the disk, with the SHA-256 of an intact file."""
    for index in range(6):
        name = f"p{index}.safetensors"
        (folder / name).touch()
        os.truncate(folder / name, SPARSE)
        entry(name, size=SPARSE, sha256=SPARSE_SHA256)(folder)


def sizes(folder: Path) -> None:
    """Two more parts, each of which would fit into the memory."""
    for name in ("a.safetensors", "b.safetensors"):
        entry(name, size=machine_memory() - (1 << 20))(folder)


class Attack:
    """Pickled in place of tensors; a process that unpickles it ends with status 3."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


WHOLE = "expected a whole number of 0 or more, got"
NAMES = "files: expected names such as weights.safetensors, got"
OVERFLOW = b'{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}'
HOSTILE: dict[str, tuple[Damage, str]] = {
    "truncated": (edit(WEIGHTS, lambda data: data[:-3]), "bytes instead of"),
    "altered": (edit(WEIGHTS, lambda data: data[:-1] + b"?"), f"{WEIGHTS} is not what was written"),
    "missing": (instead(WEIGHTS, lambda path: None), WEIGHTS),
    "state.json: truncated": (edit("state.json", lambda data: data[:-3]), "state.json is damaged"),
    "state.json: binary": (edit("state.json", lambda data: b"\xff\x00"), "state.json is damaged"),
    "state.json: list": (edit("state.json", lambda data: b"[]"), "state.json is damaged"),
    "state.json: altered": (
        edit("state.json", lambda data: data.replace(b'"step": 200', b'"step": 201')),
        "state.json is not what was written",
    ),
    "files: []": (manifest(files=[]), "state.json: files: expected an object, got []"),
    "files: above": (entry("../../secret.safetensors"), f"{NAMES} '../../"),
    "files: other": (entry("state.json"), f"{NAMES} 'state.json'"),
    "files: list": (manifest(files={WEIGHTS: []}), f"{WEIGHTS}: expected an object, got []"),
    "size: huge": (entry(WEIGHTS, size=10**30), f"size: {WHOLE} 1000"),
    "size: negative": (entry(WEIGHTS, size=-1), f"size: {WHOLE} -1"),
    "sha256: 0": (entry(WEIGHTS, sha256=0), "sha256: expected a text, got 0"),
    "step: NaN": (manifest(step=float("nan")), f"step: {WHOLE} nan"),
    "step: huge": (manifest(step=1 << 80), f"step: {WHOLE}"),
    "time: text": (manifest(time="now"), "time: expected a number, got 'now'"),
    "state: null": (manifest(state=None), "state: expected an object, got None"),
    "format: 3": (manifest(format=3), "state.json: format: expected 2, got 3"),
    "deep JSON": (edit("state.json", lambda data: b"[" * 100_000), "state.json is damaged"),
    "deep state": (manifest(state=json.loads("[" * 900 + "]" * 900)), "state.json: state: expected an object, got"),
    "device": (instead(WEIGHTS, lambda path: path.symlink_to("/dev/zero")), "got a symbolic link"),
    "FIFO": (instead(WEIGHTS, os.mkfifo), "expected a regular file, got"),
    "folder": (instead(WEIGHTS, Path.mkdir), "expected a regular file, got"),
    "terabytes": (instead(WEIGHTS, sparse), f"has {TERABYTE} bytes, expected at most"),
    "terabytes: agreed": (huge, f"has {TERABYTE} bytes, expected at most"),
    "sum of sizes": (sizes, "the checkpoint has "),
    "holes": (bomb, f"p0.safetensors has {SPARSE} bytes, expected data in them, got 0 bytes and holes"),
    "state.json: device": (instead("state.json", lambda path: path.symlink_to("/dev/zero")), "got a symbolic link"),
    "state.json: nowhere": (instead("state.json", lambda path: path.symlink_to("/nonexistent")), "state.json"),
    "state.json: FIFO": (instead("state.json", os.mkfifo), "expected a regular file, got"),
    "state.json: terabytes": (instead("state.json", sparse), f"expected at most {JSON_BYTES}"),
    "pickle": (weights(pickle.dumps(Attack())), f"{WEIGHTS} holds no tensors"),
    "header: none": (header(b""), f"{WEIGHTS} holds no tensors"),
    "header: long": (header(b"{}", 1 << 62), f"{WEIGHTS} holds no tensors"),
    "header: overflow": (header(OVERFLOW), f"{WEIGHTS} holds no tensors"),
    "header: deep": (header(b"[" * 5000 + b"]" * 5000), f"{WEIGHTS} holds no tensors"),
}


def place(folder: Path, scheme: str) -> Path | str:
    """A run's folder, or with a scheme the URL of it."""
    if scheme:
        return f"{scheme}{folder}"
    return folder


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.timeout(20)
def test_a_damaged_checkpoint_is_skipped_with_a_reason(kind: str, scheme: str, tmp_path: Path) -> None:
    damage, reason = HOSTILE[kind]
    save(tmp_path, 100)
    folder = save(tmp_path, 200)
    assert isinstance(folder, Path)
    damage(folder)
    loaded = checkpoints.load_latest(place(tmp_path, scheme))
    assert loaded.step == 100

    (skipped,) = loaded.skipped
    assert skipped.startswith("000000000200: ")
    assert reason in skipped
    assert len(skipped) <= 200
    assert names(tmp_path) == ["000000000100", "000000000200"]  # loading changes nothing


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_parts_that_are_not_needed_are_verified(scheme: str, tmp_path: Path) -> None:
    run = place(tmp_path, scheme)
    checkpoints.save(run, 100, PARTS, {})
    folder = checkpoints.save(run, 200, PARTS, {})
    assert checkpoints.load_latest(run, ["actors", "other"]).parts.keys() == {"actors"}
    assert checkpoints.load_latest(run, ()).parts == {}

    edit(WEIGHTS, lambda data: data[:-1] + b"?")(Path(str(folder).removeprefix(scheme)))
    loaded = checkpoints.load_latest(run, ["actors"])
    assert loaded.step == 100
    assert f"{WEIGHTS} is not what was written" in loaded.skipped[0]


def test_parts_that_are_not_needed_take_no_memory(tmp_path: Path) -> None:
    large = torch.ones(4 << 20)
    checkpoints.save(tmp_path, 100, {"optimizer": {"moment": large}, **PARTS}, {})
    tracemalloc.start()
    checkpoints.load_latest(tmp_path, ["weights"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes / 4


@pytest.mark.parametrize("kind", ["link", "file"])
def test_links_and_files_are_not_followed_and_are_removed(kind: str, tmp_path: Path) -> None:
    """In place of a checkpoint's folder, and of one that was left half removed."""
    run = tmp_path / "run"
    other = tmp_path / "other"
    for folder in (run, other):
        folder.mkdir()
        save(folder, 100)
    for name in ("000000000200", "000000000050-01234567.tmp"):
        path = run / "checkpoints" / name
        if kind == "link":
            path.symlink_to(other / "checkpoints" / "000000000100")
        else:
            path.write_text("")
    loaded = checkpoints.load_latest(run)
    assert (loaded.step, len(loaded.skipped)) == (100, 1)
    assert loaded.skipped[0].startswith("000000000200: NotADirectoryError: ")

    # New checkpoints replace them, and what links point to stays.
    save(run, 200)
    save(run, 300, keep=1)
    assert names(run) == ["000000000300"]
    assert checkpoints.load_latest(other).step == 100


def test_links_behind_a_url_are_not_followed_when_others_are_removed(tmp_path: Path) -> None:
    """In place of checkpoints' folders, to one with a manifest and to one without."""
    run = tmp_path / "run"
    other = tmp_path / "other"
    (other / "unfinished").mkdir(parents=True)
    save(other, 100)
    (other / "unfinished" / "file.txt").write_text("precious")
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "000000000100-abcdef").symlink_to(other / "checkpoints" / "000000000100")
    (run / "checkpoints" / "000000000050-abcdef").symlink_to(other / "unfinished")
    url = f"file://{run}"
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        checkpoints.load_latest(url)
    save(url, 200, keep=1)
    assert checkpoints.load_latest(url).step == 200
    assert checkpoints.load_latest(other).step == 100
    assert (other / "unfinished" / "file.txt").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.timeout(20)
def test_a_run_of_links_that_lead_nowhere_has_no_checkpoint(scheme: str, tmp_path: Path) -> None:
    """Behind a URL such a link is listed, but does not exist."""
    for step in range(200):
        folder = tmp_path / "checkpoints" / f"{step:012d}"
        folder.mkdir(parents=True)
        (folder / "state.json").symlink_to("/nonexistent")
    with pytest.raises(FileNotFoundError, match=r"has no checkpoint that can be read: 000000000199: "):
        checkpoints.load_latest(place(tmp_path, scheme))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_thousand_damaged_checkpoints_are_skipped_in_seconds(scheme: str, tmp_path: Path) -> None:
    for step in range(1000):
        folder = tmp_path / "checkpoints" / f"{step:012d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
    run = place(tmp_path, scheme)
    begin = time.process_time()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint that can be read: 0+999: state.json is damaged; "):
        checkpoints.load_latest(run)
    assert time.process_time() - begin < 10
    save(tmp_path, 5000)
    assert checkpoints.load_latest(run).step == 5000
