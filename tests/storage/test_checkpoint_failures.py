"""After failures of disk, network or process at any moment of a write, there is a checkpoint that loads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from storage import checkpoints
from storage import stores as storage
from tests.learner.runs import PARTS, names, save
from tests.unreliable import Unreliable


def test_a_failed_write_keeps_earlier_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 100, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 200, keep=1)
    assert names(tmp_path) == ["000000000100"]
    assert checkpoints.load_latest(tmp_path).step == 100


@pytest.fixture
def unreliable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[float]]]:
    """The URL of a run on an unreliable store, and the pauses before retries, which are skipped."""
    pauses: list[float] = []
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=pauses.append))  # of no other thread
    Unreliable.fail(())
    yield f"unreliable://{tmp_path}/run", pauses
    Unreliable.fail(())


@pytest.mark.parametrize("step", [20, 10, 5], ids=["newer", "same", "earlier"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("failures", [3, 10**6], ids=["for now", "for good"])
def test_a_store_that_fails_at_any_moment_leaves_a_checkpoint_that_loads(
    unreliable: tuple[str, list[float]], step: int, late: bool, failures: int
) -> None:
    """The store fails from each operation of a save on, in turn. Three failures are overcome by retries.

    late: the operation has its effect, and the answer is lost.
    """
    url, pauses = unreliable
    for first_failure in range(1, 100):
        run = f"{url}{first_failure}"
        checkpoints.save(run, 10, PARTS, {"try": 1})
        pauses.clear()

        # The second save fails, unless retries are enough or it has fewer operations.
        Unreliable.fail(range(first_failure, first_failure + failures), late)
        error_text = None
        try:
            checkpoints.save(run, step, PARTS, {"try": 2}, keep=1)
        except storage.StorageError as error:
            error_text = str(error)
        Unreliable.fail(())
        has_failed = bool(pauses)
        is_for_good = failures > 3
        if has_failed and is_for_good:
            assert error_text == f"{run} cannot be read or written: ConnectionResetError: the network is down"
            may_be_newest = (1, 2)
        else:
            assert error_text is None
            may_be_newest = (2,)

        # Nothing half written looks like a checkpoint.
        store = storage.UrlStore(run)
        for name in store.names():
            assert checkpoints.read(store, name).state["try"] in (1, 2)
        assert checkpoints.load_latest(run).state["try"] in may_be_newest

        # The next save removes what the failure left.
        checkpoints.save(run, step, PARTS, {"try": 3}, keep=1)
        assert checkpoints.load_latest(run).state == {"try": 3}
        assert names(run) == [f"{step:012d}"]
        if not has_failed:
            break
    assert 5 < first_failure < 99


@pytest.mark.parametrize(
    ("error", "expected_pauses"),
    [(ConnectionResetError("the network is down"), [1, 3, 9]), (PermissionError("not yours"), [])],
)
def test_what_cannot_be_read_for_now_is_not_taken_for_damage(
    unreliable: tuple[str, list[float]], error: BaseException, expected_pauses: list[float]
) -> None:
    """The newest checkpoint is not skipped; a PermissionError is not retried."""
    url, pauses = unreliable
    for step in (10, 20):
        save(url, step)
    Unreliable.fail(range(2, 10**6), error=error)
    message = f"{url} cannot be read or written: {type(error).__name__}: {error}"
    with pytest.raises(storage.StorageError, match=message):
        checkpoints.load_latest(url)
    assert pauses == expected_pauses

    Unreliable.fail(range(2, 5), error=ConnectionResetError())
    assert checkpoints.load_latest(url).step == 20


KILLED = r"""
import os, shutil, signal, sys
from pathlib import Path
import torch
from fsspec.implementations.local import LocalFileSystem
from storage import checkpoints

torch.set_num_threads(1)
base, scheme = Path(sys.argv[1]), sys.argv[2]  # runs are named by folder or, with file://, by URL

def save(run, step, content, keep=1):
    parts = {"weights": {"w": torch.full((256, 256), float(content))}, "actors": {"a": torch.full((64,), content)}}
    os.makedirs(run, exist_ok=True)
    checkpoints.save(scheme + str(run) if scheme else run, step, parts, {"content": content}, keep)

def load(run):
    # Nothing half written or half removed looks like a checkpoint.
    for folder in (run / "checkpoints").iterdir():
        names = [path.name for path in folder.iterdir()]
        is_whole = len(names) == 3
        is_temporary = folder.suffix == ".tmp"
        is_unfinished = bool(scheme) and "state.json" not in names  # which is written last, and removed first
        assert is_whole or is_temporary or is_unfinished, folder
    loaded = checkpoints.load_latest(scheme + str(run) if scheme else run)
    assert scheme or not loaded.skipped
    content = loaded.state["content"]
    assert all((tensor == content).all() for part in loaded.parts.values() for tensor in part.values())
    return content

def dies_at(count, run, step):
    '''Saves in another process, which is killed at a given disk operation; its status is 0 if there are fewer.'''
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return status
    left = [count]

    def before(owner, name, half=lambda *arguments: None):
        function = getattr(owner, name)

        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        setattr(owner, name, wrapped)

    def half_a_removal(path, *_):
        for file in list(Path(path).glob("*"))[:1]:
            file.unlink()

    def half_a_file(*arguments):
        *_, path, data = arguments
        if Path(path).parent.exists():
            Path(path).write_bytes(data[: len(data) // 2])

    for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "mkdir"), (LocalFileSystem, "mkdir"),
                        (LocalFileSystem, "rm")):
        before(owner, name)
    before(shutil, "rmtree", half_a_removal)
    before(Path, "write_bytes", half_a_file)
    before(LocalFileSystem, "pipe_file", half_a_file)
    try:
        save(run, step, 2, keep=2)
        os._exit(0)
    finally:
        os._exit(1)

for step in (20, 10):  # a newer checkpoint, and the same one again
    for count in range(1, 100):
        run = base / f"{step}-{count}"
        save(run, 5, 0)
        save(run, 10, 1, keep=2)
        status = dies_at(count, run, step)
        assert load(run) in (1, 2), run
        save(run, 30, 3, keep=2)
        assert load(run) == 3, run
        left = sorted(path.name for path in (run / "checkpoints").iterdir())
        assert [name[:12] for name in left] in ([f"{last:012d}", f"{30:012d}"] for last in (10, step)), left
        save(run, 40, 4)
        assert len(list((run / "checkpoints").iterdir())) == 1, run
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    assert 8 < count < 99, count
    print("killed at", count - 1, "points")
"""


@pytest.mark.parametrize("scheme", ["", pytest.param("file://", marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path, scheme: str) -> None:
    """At each operation of a write in turn; that checkpoint or the one before loads."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), scheme]
    root = Path(checkpoints.__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed at") == 2
