"""A forged checkpoint is skipped with a reason, like a damaged one, before it does any harm; it runs no code."""

import hashlib
import json
import os
import pickle
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner import checkpoints
from learner.files import JSON_BYTES
from tests.learner.runs import forge, save

TERABYTE = 1 << 40


def manifest(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: forge(folder, lambda content: content.update(changes))


def entry(name: str, **changes: Any) -> Callable[[Path], None]:
    """One more file in the manifest, or other properties of one that is in it."""

    def change(content: Any) -> None:
        content["files"].setdefault(name, {"size": 9, "sha256": "0" * 64}).update(changes)

    return lambda folder: forge(folder, change)


def instead(file: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink() or make(folder / file)


def weights(data: bytes) -> Callable[[Path], None]:
    """Other bytes of the weights, with a matching manifest."""

    def corrupt(folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(data)
        entry("weights.safetensors", size=len(data), sha256=hashlib.sha256(data).hexdigest())(folder)

    return corrupt


def header(text: bytes, length: int | None = None) -> Callable[[Path], None]:
    return weights(struct.pack("<Q", len(text) if length is None else length) + text + bytes(64))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


def huge(folder: Path) -> None:
    """Even if the manifest agrees."""
    instead("weights.safetensors", sparse)(folder)
    entry("weights.safetensors", size=TERABYTE)(folder)


class Attack:
    """Pickled in place of tensors."""

    def __reduce__(self):
        return os._exit, (3,)


WHOLE = "expected a whole number of 0 or more, got"
NAMES = "files: expected names such as weights.safetensors, got"
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "files: []": (manifest(files=[]), "state.json: files: expected an object, got []"),
    "files: above": (entry("../../secret.safetensors"), f"{NAMES} '../../"),
    "files: other": (entry("state.json"), f"{NAMES} 'state.json'"),
    "files: list": (manifest(files={"weights.safetensors": []}), "weights.safetensors: expected an object, got []"),
    "size: huge": (entry("weights.safetensors", size=10**30), f"size: {WHOLE} 1000"),
    "size: negative": (entry("weights.safetensors", size=-1), f"size: {WHOLE} -1"),
    "sha256: 0": (entry("weights.safetensors", sha256=0), "sha256: expected a text, got 0"),
    "step: NaN": (manifest(step=float("nan")), f"step: {WHOLE} nan"),
    "step: huge": (manifest(step=1 << 80), f"step: {WHOLE}"),
    "time: text": (manifest(time="now"), "time: expected a number, got 'now'"),
    "state: null": (manifest(state=None), "state: expected an object, got None"),
    "format: text": (manifest(format="1"), f"format: {WHOLE} '1'"),
    "deep JSON": (instead("state.json", lambda path: path.write_text("[" * 100_000)), "state.json is damaged"),
    "deep state": (manifest(state=json.loads("[" * 900 + "]" * 900)), "state.json: state: expected an object, got"),
    "device": (instead("weights.safetensors", lambda path: path.symlink_to("/dev/zero")), "got a symbolic link"),
    "FIFO": (instead("weights.safetensors", os.mkfifo), "expected a regular file, got a FIFO"),
    "folder": (instead("weights.safetensors", Path.mkdir), "expected a regular file, got a folder"),
    "terabytes": (instead("weights.safetensors", sparse), "has 1099511627776 bytes instead of"),
    "terabytes: agreed": (huge, "has 1099511627776 bytes, expected at most"),
    "state.json: device": (instead("state.json", lambda path: path.symlink_to("/dev/zero")), "got a symbolic link"),
    "state.json: FIFO": (instead("state.json", os.mkfifo), "expected a regular file, got a FIFO"),
    "state.json: terabytes": (instead("state.json", sparse), f"expected at most {JSON_BYTES}"),
    "pickle": (weights(pickle.dumps(Attack())), "weights.safetensors holds no tensors"),
    "header: none": (header(b""), "weights.safetensors holds no tensors"),
    "header: long": (header(b"{}", 1 << 62), "weights.safetensors holds no tensors"),
    "header: overflow": (
        header(b'{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}'),
        "holds no tensors",
    ),
    "header: deep": (header(b"[" * 5000 + b"]" * 5000), "weights.safetensors holds no tensors"),
}


@pytest.mark.parametrize("behind", ["disk", "file"])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.timeout(20)
def test_it_is_skipped_and_named(kind: str, behind: str, tmp_path: Path) -> None:
    corrupt, reason = HOSTILE[kind]
    save(tmp_path, 100)
    folder = save(tmp_path, 200)
    assert isinstance(folder, Path)
    corrupt(folder)
    if behind == "file":
        reason = reason.replace("got a FIFO", "got other").replace("got a folder", "got directory")
    with pytest.warns(UserWarning, match="skipped checkpoint"):
        loaded = checkpoints.load_latest(tmp_path if behind == "disk" else f"file://{tmp_path}")
    assert loaded.step == 100
    assert reason in loaded.skipped[0]
    assert len(loaded.skipped[0]) <= 200


@pytest.mark.parametrize("kind", ["link", "file"])
def test_links_and_files_are_not_followed_and_are_removed(kind: str, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for place in (run, other):
        place.mkdir()
        save(place, 100)
    false = run / "checkpoints" / f"{200:012d}"
    leftover = run / "checkpoints" / f"{50:012d}.tmp"
    for path in (false, leftover):
        if kind == "link":
            path.symlink_to(other / "checkpoints" / f"{100:012d}")
        else:
            path.write_text("")
    with pytest.warns(UserWarning, match="skipped checkpoint .*000000000200: .*Not a directory"):
        assert checkpoints.load_latest(run).step == 100
    save(run, 200)
    save(run, 300, keep=1)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"{300:012d}"]
    assert checkpoints.load_latest(other).step == 100


@pytest.mark.parametrize("behind", ["disk", "file"])
def test_a_thousand_damaged_ones_are_few_words_and_no_wait(behind: str, tmp_path: Path) -> None:
    for step in range(1000):
        folder = tmp_path / "checkpoints" / f"{step:012d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
    run = tmp_path if behind == "disk" else f"file://{tmp_path}"
    begin = time.process_time()
    with warnings.catch_warnings(record=True, action="always") as warned, pytest.raises(FileNotFoundError) as raised:
        checkpoints.load_latest(run)
    assert time.process_time() - begin < 10
    said = str(raised.value)
    assert said.endswith("000000000997: state.json is damaged; and 997 more")
    assert len(said) < 1000
    assert len(warned) == checkpoints.REASONS
    save(tmp_path, 5000)
    loaded = checkpoints.load_latest(run)
    assert (loaded.step, loaded.skipped) == (5000, [])
