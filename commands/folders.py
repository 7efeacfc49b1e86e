"""The folder of a run: one process at a time, and none left behind that nothing can go on from."""

import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commands import UserError

BEGUN = (".lock", "config.json", "corpus.json", "tokeniser.json")
"""Files that a run may have before its first checkpoint."""


@contextmanager
def claim(run: Path, new: bool, saved: Callable[[], bool], patience: float = 0.0) -> Iterator[None]:
    """Keeps other processes from a run's folder; a new one is made, and removed if there is nothing to go on from.

    Args:
        run: the folder.
        new: whether it must be new (or hold nothing that is lost).
        saved: whether there is a checkpoint of the run, wherever; one in the folder is found in any case.
        patience: seconds to wait for another process to leave the folder.

    Raises:
        UserError: if the folder cannot be made or written to, is not new or is in use.
    """
    try:
        if new and run.exists():
            _require_new(run)
        made, begun = not run.exists(), (run / "config.json").exists()
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / ".lock").open("w")
    except OSError as error:
        raise UserError(f"{run}: expected a folder that can be written to, got: {error.strerror}") from error
    with lock:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise UserError(f"{run} is in use by another process") from error
                time.sleep(0.5)
        if os.fstat(lock.fileno()).st_nlink == 0:  # who had it has removed the folder
            raise UserError(f"{run} was removed by another process that used it")
        if new:
            _require_new(run)
        try:
            yield
        finally:
            kept = saved() or holds_checkpoints(run)
            if new and not begun and not (kept and (run / "config.json").exists()):
                for name in BEGUN:
                    (run / name).unlink(missing_ok=True)
                for folder in (run / "checkpoints", run)[: 2 if made else 1]:
                    with suppress(OSError):  # not there, or not empty
                        folder.rmdir()


def holds_checkpoints(run: Path) -> bool:
    """Whether there is something to go on from in a folder."""
    return any(path.suffix != ".tmp" for path in (run / "checkpoints").glob("*"))


def _require_new(run: Path) -> None:
    """Raises a UserError if there is more in a folder than what was killed before its first checkpoint leaves."""
    begun = {*BEGUN, *(f"{name}.tmp" for name in BEGUN), "checkpoints"}
    if holds_checkpoints(run) or any(path.name not in begun for path in run.iterdir()):
        again = f"--resume {shlex.quote(str(run))}"
        raise UserError(f"{run} already exists and is not empty: expected a new folder, or {again}")


def located(path: str) -> str:
    """A path that means the same from any folder, `~` included.

    Raises:
        UserError: if there can be none, as with links in a circle.
    """
    try:
        return str(Path(path).expanduser().resolve())
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"path: expected a file or a folder, got {path!r}: {error}") from error
