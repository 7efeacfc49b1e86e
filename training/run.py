"""The folder of a run: one process at a time, and none left behind that nothing can go on from."""

import errno
import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from learner.files import open_regular
from training import UserError

BEGUN = (".lock", "config.json", "corpus.json", "tokenizer.json")
"""Files that a run may have before its first checkpoint."""


class ClaimedFolder(NamedTuple):
    """A run's folder while this process has it: its path, and descriptors of it and of its lock."""

    path: Path
    opened: int
    lock: int

    @property
    def lost(self) -> bool:
        """Whether the folder is no longer there, or its lock: it was moved, removed or replaced by another."""
        return not (_is(self.path, self.opened) and _is(self.path / ".lock", self.lock))

    def find(self) -> Path | None:
        """Where the folder is now; None if it was removed, or another process has it."""
        paths = [self.path]
        with suppress(OSError):  # not on every system
            paths.append(Path(os.readlink(f"/proc/self/fd/{self.opened}")))
        for path in paths:
            if _is(path, self.opened) and (_is(path / ".lock", self.lock) or not os.path.lexists(path / ".lock")):
                return path
        return None

    def require(self) -> None:
        """Raises an OSError if the folder is lost; says what happened to it."""
        if self.lost:
            raise FileNotFoundError(errno.ENOENT, self.fate, str(self.path))

    @property
    def fate(self) -> str:
        """What happened to a folder that is lost."""
        found = self.find()
        if found is None:
            return f"{self.path} was removed or replaced while it was in use"
        if found == self.path:
            return f"{self.path}/.lock was removed while it was in use"
        return f"{self.path} was moved to {found} while it was in use"


def _is(path: Path, descriptor: int) -> bool:
    """Whether a file or folder is at a path; if that cannot be said now, it is."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


@contextmanager
def claim(run: Path, new: bool, saved: Callable[[], bool], patience: float = 0.0) -> Iterator[ClaimedFolder]:
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
    except OSError as error:
        raise UserError(f"{run}: expected a folder that can be written to, got: {error.strerror}") from error
    with locked(run, patience) as folder:
        if new:
            _require_new(run)
        try:
            yield folder
        finally:
            kept = saved() or folder.lost or holds_checkpoints(run)
            if new and not begun and not (kept and (run / "config.json").exists()) and not folder.lost:
                for name in BEGUN:
                    (run / name).unlink(missing_ok=True)
                for path in (run / "checkpoints", run)[: 2 if made else 1]:
                    with suppress(OSError):  # not there, or not empty
                        path.rmdir()


@contextmanager
def locked(run: Path, patience: float = 0.0) -> Iterator[ClaimedFolder]:
    """Keeps other processes from a folder; see `claim`. The lock is a file, which is never written to."""
    try:
        opened = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock = open_regular(Path(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, folder=opened)
        except BaseException:
            os.close(opened)
            raise
    except OSError as error:
        raise UserError(f"{run}: expected a folder that can be written to, got: {error.strerror}") from error
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise UserError(f"{run} is in use by another process") from error
                time.sleep(0.5)
        if os.fstat(lock).st_nlink == 0:  # the process that had it has removed the folder
            raise UserError(f"{run} was removed by another process that used it")
        yield ClaimedFolder(run, opened, lock)
    finally:
        os.close(lock)
        os.close(opened)


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
