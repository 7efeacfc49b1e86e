"""Checkpoints as folders of safetensors and one JSON file, in a run's folder or behind any fsspec URL.

    run/checkpoints/000000012345/
        weights.safetensors     one file for each part: weights, optimizer, actors, ...
        state.json              everything else, and a manifest: size and SHA-256 of every file and of itself

Checkpoints are written atomically: after a crash or a kill at any moment they are complete or absent. The manifest
detects damage after that. Loading runs no code. Other modules decide what the parts contain.
"""

import logging
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.core import url_to_fs
from torch import Tensor

from learner import files, serialization
from learner.errors import StorageError
from learner.files import is_url, redact, require_no_secret, require_schema
from learner.serialization import MANIFEST, flatten, unflatten

logger = logging.getLogger(__name__)

REASONS = 3
"""Number of unreadable checkpoints that are reported with the reason; the others are only counted."""
PAUSES = (1.0, 3.0, 9.0)
"""Seconds before each retry of a failed operation behind a URL."""
_OWNER = "owner.txt"
_TREES = {"optimizer", "memory"}
"""What of a learner's state is a tree of tensors and numbers."""
_TEMPORARY = ".tmp"
_PERMANENT = (PermissionError, NotImplementedError)
"""Errors that a retry would not remedy."""
_NAME = re.compile(r"([0-9]{12,18})(?:-[0-9a-f]+)?(\.superseded)?")


class Checkpoint(NamedTuple):
    """A checkpoint that was read and verified.

    step: agent steps, or batches of a sequence model. parts: tensors by part and name, on the CPU. state: the `state`
    that `save` was given. time: of writing, in seconds since 1970 (NaN if unknown). path: folder or URL. skipped: one
    line for each of the first `REASONS` newer checkpoints that are unreadable, and one with the number of the others.
    """

    step: int
    parts: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    time: float
    path: Path | str
    skipped: list[str]


class _Entry(NamedTuple):
    """A checkpoint in a listing. Entries sort by preference for loading. current: not superseded."""

    current: bool
    step: int
    name: str


class Checkpoints:
    """The checkpoints of a run: in its folder if `run` is a path, else behind a URL (`file://` is one, too).

    Behind a URL nothing can be renamed atomically. A checkpoint is written file by file, the manifest last, and is
    complete when that exists; it is removed in the opposite order. Each name gets a random suffix, so that no file is
    ever written twice, by this program or another. Failed operations are repeated after each of `PAUSES`.

    Raises:
        StorageError: if the URL cannot be used; names a missing package. Every method may raise it, too.
        ValueError: if the URL has a password in it; see `require_no_secret`.
    """

    def __new__(cls, run: Path | str) -> "Checkpoints":
        return super().__new__(Checkpoints if is_url(run) else _DiskCheckpoints)

    def __init__(self, run: Path | str) -> None:
        require_no_secret(str(run))
        self.run: Path | str = str(run).rstrip("/")
        try:
            self._fs, root = url_to_fs(self.run)
        except Exception as error:  # each package has its own exceptions
            raise StorageError(f"{run} cannot be used: {redact(str(error))}") from error
        self._root = f"{root}/checkpoints"

    def save(self, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 3) -> Path | str:
        """Writes a checkpoint atomically, replaces one of the same step, and then removes old ones.

        If the run was resumed from an earlier checkpoint because later ones were damaged, these are renamed to
        `<step>.superseded`, and removed when the run has reached their step.

        Args:
            step: agent steps so far, or batches of a sequence model.
            parts: tensors by part and name; names of parts consist of letters, digits, "_" and "-".
            state: values that JSON can hold: counters, random states, the configuration.
            keep: how many of the newest checkpoints to keep, this one included.

        Returns:
            the checkpoint's folder or URL.

        Raises:
            ValueError, TypeError: if an argument is impossible, or JSON cannot hold `state`; nothing was written.
            OSError, StorageError: if it cannot be written, because the disk is full, say; the others are intact.
        """
        if keep < 1:
            raise ValueError(f"keep: expected at least 1, got {keep}")
        content = serialization.serialize(step, parts, state)
        self._tidy()
        name = self._write(f"{step:012d}", content)
        others = [entry for entry in self._entries() if entry.name != name]
        later = [entry for entry in others if entry.current and entry.step > step]
        earlier = [entry for entry in others if entry.current and entry.step < step]
        if later:
            first, more = self.locate(later[-1].name), f" and {len(later) - 1} later ones" if len(later) > 1 else ""
            logger.warning("%s%s: renamed to .superseded, because the run was resumed from an earlier one", first, more)
        for entry in others:
            if entry in later:
                self._rename(entry.name, f"{entry.name}.superseded")
            elif entry.step <= step and entry not in earlier[: keep - 1]:
                self.remove(entry.name)
        return self.locate(name)

    def load_latest(self) -> Checkpoint:
        """Reads the newest checkpoint. Damaged ones are skipped, with warnings that give the reasons.

        Raises:
            FileNotFoundError: if the folder is not a run, or has no readable checkpoint; says which.
            StorageError: if the URL cannot be read; no checkpoint is skipped for that.
        """
        reasons: dict[str, str] = {}
        while candidates := [entry.name for entry in self._entries() if entry.name not in reasons]:
            for name in candidates:
                try:
                    return self.read(name)._replace(skipped=self._report(reasons))
                except (OSError, ValueError, MemoryError, RecursionError) as error:
                    if not self._exists(name):
                        break  # another process, which trains this run, removed it and has written newer ones
                    reasons[name] = files.shorten_text(f"{name}: {str(error) or type(error).__name__}", 200)
        if reasons:
            raise FileNotFoundError(
                f"{self.run} has no checkpoint that can be read: {'; '.join(self._report(reasons))}"
            )
        raise FileNotFoundError(f"{self.run} has no checkpoint yet")

    def _report(self, reasons: dict[str, str]) -> list[str]:
        """Lines on the skipped checkpoints, for `Checkpoint.skipped`; also emits them as warnings."""
        lines, more = list(reasons.values())[:REASONS], len(reasons) - REASONS
        for line in lines:
            warnings.warn(f"skipped checkpoint {self.locate(line)}", stacklevel=3)
        return [*lines, f"and {more} more"] if more > 0 else lines

    def any_complete(self) -> bool:
        """Whether there is a checkpoint. It is not read, so that it may be damaged."""
        with suppress(FileNotFoundError):
            return bool(self._entries())
        return False

    def _entries(self) -> list[_Entry]:
        """All checkpoints, best first; superseded ones are last."""
        found = [match for name in self.names() if (match := _NAME.fullmatch(name))]
        return sorted((_Entry(not match[2], int(match[1]), match[0]) for match in found), reverse=True)

    def read(self, name: str) -> Checkpoint:
        """Reads and verifies one checkpoint; a damaged one is a ValueError, OSError, MemoryError or RecursionError."""
        step, parts, state, written = serialization.deserialize(lambda file, size: self._read_file(name, file, size))
        return Checkpoint(step, parts, state, written, self.locate(name), [])

    def locate(self, name: str) -> Path | str:
        """The folder of a checkpoint, or the URL of that."""
        return f"{self.run}/checkpoints/{name}"

    def names(self) -> list[str]:
        """Names of the folders of complete checkpoints."""
        return [name for name, content in self._listing().items() if MANIFEST in content]

    def remove(self, name: str) -> None:
        """Removes a checkpoint; an interruption leaves none that looks complete."""
        for path, recursive in ((f"{self._root}/{name}/{MANIFEST}", False), (f"{self._root}/{name}", True)):
            with suppress(FileNotFoundError):  # an attempt that seemed to fail may have succeeded
                self._retry(self._fs.rm, path, recursive)

    def owner(self) -> str | None:
        """The last owner that was given to `claim`; always None on a disk."""
        try:
            return self._retry(self._fs.cat_file, f"{self._root}/{_OWNER}").decode()
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> None:
        """Records which process writes here from now on. Does nothing on a disk, where `training.run` has a lock."""
        self._put(f"{self._root}/{_OWNER}", owner.encode())

    def _exists(self, name: str) -> bool:
        return bool(self._retry(self._fs.exists, f"{self._root}/{name}/{MANIFEST}"))

    def _read_file(self, name: str, file: str, size: int | None) -> bytes:
        """The bytes of a regular file of that size; raises a ValueError or OSError before it reads any other."""
        path = f"{self._root}/{name}/{file}"
        info = self._retry(self._fs.info, path)
        if info["type"] != "file" or info.get("islink"):  # behind file:// there may be links and devices
            found = "a symbolic link" if info.get("islink") else info["type"]
            raise ValueError(f"{file}: expected a regular file, got {found}")
        _require_size(file, info["size"], size)
        return self._retry(self._fs.cat_file, path)

    def _write(self, name: str, content: Iterable[tuple[str, bytes]]) -> str:
        """Writes a folder, the manifest last, and returns its final name."""
        name = f"{name}-{secrets.token_hex(3)}"
        for file, data in content:
            self._put(f"{self._root}/{name}/{file}", data)
        return name

    def _rename(self, name: str, new: str) -> None:
        for file in sorted(self._listing()[name], key=lambda file: file == MANIFEST):
            self._put(f"{self._root}/{new}/{file}", self._read_file(name, file, None))
        self.remove(name)

    def _tidy(self) -> None:
        """Removes what interrupted writes and removals left."""
        for name, content in self._listing().items():
            if name[:12].isdigit() and MANIFEST not in content:
                self.remove(name)

    def _listing(self) -> dict[str, list[str]]:
        """Names of files by folder; empty if there is nothing yet."""
        self._fs.invalidate_cache()
        found: dict[str, list[str]] = {}
        with suppress(FileNotFoundError):
            for path in self._retry(lambda: self._fs.find(self._root, withdirs=True)):
                name, _, file = path.removeprefix(self._root).strip("/").partition("/")
                found.setdefault(name, []).extend([file] if file else [])
        return found

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._retry(self._fs.pipe_file, path, data)
        except FileNotFoundError:
            try:
                self._retry(self._make_folders, path)
                self._retry(self._fs.pipe_file, path, data)
            except FileNotFoundError as error:
                raise StorageError(f"{self.run} cannot be written to: {_describe(error)}") from error

    def _make_folders(self, path: str) -> None:
        """Makes the URL's own folder and those in it, in stores that have folders; none above it, and no bucket."""
        for folder in (self._root.rpartition("/")[0], self._root, path.rpartition("/")[0]):
            with suppress(FileExistsError):
                self._fs.mkdir(folder, create_parents=False)

    def _retry(self, function: Callable[..., Any], *arguments: Any) -> Any:
        for pause in (*PAUSES, None):
            try:
                return function(*arguments)
            except FileNotFoundError:
                raise
            except Exception as error:  # each package has its own exceptions
                if pause is None or isinstance(error, _PERMANENT):
                    raise StorageError(f"{self.run} cannot be read or written: {_describe(error)}") from error
                logger.warning("%s: %s; retrying in %.0f s", self.run, _describe(error), pause)
                time.sleep(pause)


class _DiskCheckpoints(Checkpoints):
    """Checkpoints in a run's folder: written to a temporary name, flushed and renamed. Raises OSErrors.

    Symbolic links among them are not followed.
    """

    def __init__(self, run: Path | str) -> None:
        self.run, self.folder = Path(run), Path(run) / "checkpoints"

    def locate(self, name: str) -> Path:
        return self.folder / name

    def names(self) -> list[str]:
        if not self.folder.parent.is_dir():
            raise FileNotFoundError(f"{self.run}: there is no such folder")
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"{self.run} has no checkpoints: expected the folder of a run, with checkpoints/ in it"
            )
        return [path.name for path in self.folder.iterdir()]

    def remove(self, name: str) -> None:
        removed = self.folder / f"{name}.removed{_TEMPORARY}"
        files.remove(removed)
        (self.folder / name).rename(removed)
        files.remove(removed)

    def owner(self) -> None:
        return None

    def claim(self, owner: str) -> None:
        pass

    def _exists(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)

    def _read_file(self, name: str, file: str, size: int | None) -> bytes:
        folder = os.open(self.folder / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            opened = files.open_regular(Path(file), folder=folder)
        finally:
            os.close(folder)
        with os.fdopen(opened, "rb") as content:
            _require_size(file, found := os.fstat(opened).st_size, size)
            return content.read(found)

    def _write(self, name: str, content: Iterable[tuple[str, bytes]]) -> str:
        temporary = self.folder / f"{name}{_TEMPORARY}"
        temporary.mkdir()
        try:
            for file, data in content:
                files.write_and_flush(temporary / file, data)
            files.flush(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        # A folder cannot replace another atomically. With one of the same step, there are both for a moment.
        first = f"{name}-1" if os.path.lexists(self.folder / name) else name
        self._rename(temporary.name, first)
        files.flush(self.folder)
        if first != name:
            self._rename(first, name)
            files.flush(self.folder)
        return name

    def _rename(self, name: str, new: str) -> None:
        if os.path.lexists(self.folder / new):
            self.remove(new)
        (self.folder / name).rename(self.folder / new)

    def _tidy(self) -> None:
        self.folder.mkdir(exist_ok=True)  # not the run's folder: if that was moved away, it would exist twice
        for path in self.folder.iterdir():
            if path.name.endswith(_TEMPORARY):
                files.remove(path)


def save(
    run: Path | str, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 3
) -> Path | str:
    """`Checkpoints(run).save(step, parts, state, keep)`."""
    return Checkpoints(run).save(step, parts, state, keep)


def load_latest(run: Path | str) -> Checkpoint:
    """`Checkpoints(run).load_latest()`."""
    return Checkpoints(run).load_latest()


def pack_learner(state: dict[str, Any]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Splits a learner's `state_dict()` into parts of a checkpoint and a value that JSON can hold."""
    plain = dict(state)
    parts = {"weights": plain.pop("weights")}
    for name in _TREES & plain.keys():
        parts[name], plain[name] = flatten(plain[name])
    return parts, plain


def unpack_learner(checkpoint: Checkpoint) -> dict[str, Any]:
    """The argument of `load_state_dict`, from a checkpoint with `pack_learner`'s value as `state["learner"]`.

    Raises:
        ValueError: if the checkpoint has no such learner in it.
    """
    require_schema(checkpoint.state, {"learner": dict}, "state")
    state = dict(checkpoint.state["learner"])
    trees = _TREES & state.keys()
    require_schema(checkpoint.parts, dict.fromkeys(["weights", *trees], dict), "parts")
    trees_of_tensors = {name: unflatten(checkpoint.parts[name], state[name]) for name in trees}
    return state | trees_of_tensors | {"weights": checkpoint.parts["weights"]}


def _describe(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {error}".removesuffix(": "))


def _require_size(file: str, found: int, size: int | None) -> None:
    """Raises a ValueError if a file does not have its expected size, or exceeds the limit of its kind."""
    if size is not None and found != size:
        raise ValueError(f"{file} has {found} bytes instead of {size}")
    most = files.JSON_BYTES if file == MANIFEST else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if found > most:
        raise ValueError(f"{file} has {found} bytes, expected at most {most}")
