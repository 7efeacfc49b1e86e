"""Where checkpoints are: folders of files in a run's `checkpoints/`, on a disk or behind any fsspec URL.

After a crash or a kill at any moment a folder is complete or absent. `storage.checkpoints` says what is in it.
"""

import hashlib
import logging
import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from storage import files
from storage.errors import StorageError

logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MANIFEST = "state.json"
"""The file that is written last and removed first."""
PAUSES = (1.0, 3.0, 9.0)
"""Seconds before each retry of a failed operation behind a URL."""
_OWNER = "owner.txt"
_BLOCK = 64 << 20
"""Bytes of a file behind a URL that are in memory while it is measured."""
_NAME = r"[0-9]{12,18}(-[0-9a-f]+)?(\.superseded)?"
_OURS = re.compile(_NAME)
_LEFT = re.compile(rf"{_NAME}-[0-9a-f]{{8}}\.tmp")
"""Names of checkpoints, and those that `files.temporary_name` makes of them; only such are ever removed."""


def installation(url: str, error: Exception) -> str:
    """How to install the package that a URL needs, if the project has an extra for it and the package is missing."""
    is_missing = isinstance(error, ImportError) and url.startswith("s3://")
    return ": pip install -e '.[s3]'" if is_missing else ""


def is_left(name: str) -> bool:
    """Whether a folder has the name of a checkpoint that is being written, or that a killed process left."""
    return _LEFT.fullmatch(name) is not None


class DiskStore:
    """Folders on a disk, written to a temporary name, flushed and renamed. Links among them are not followed, nor is
    one in place of `checkpoints/`.

    Its methods raise OSErrors.
    """

    def __init__(self, run: Path | str) -> None:
        self.run = Path(run)
        self.root = self.run / "checkpoints"

    def locate(self, name: str) -> Path:
        return self.root / name

    def names(self) -> list[str]:
        """Names of the complete folders."""
        files.require_no_link(self.root)
        if not self.root.is_dir():
            expected = "expected the folder of a run, with checkpoints/ in it"
            raise FileNotFoundError(f"{self.run} has no checkpoints: {expected}")
        found = []
        for path in self.root.iterdir():
            is_being_written = path.suffix == ".tmp"
            if not is_being_written:
                found.append(path.name)
        return found

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.locate(name))

    def read(self, name: str, file: str, most: int) -> bytes:
        """The content of a regular file; raises a ValueError, before reading, if it has more than `most` bytes."""
        return files.read_regular(self._folder(name) / file, most)

    def measure(self, name: str, file: str, most: int) -> tuple[int, str]:
        """The size and the SHA-256 of a file, without its content in memory; raises as `read`."""
        return files.measure_regular(self._folder(name) / file, most)

    def _folder(self, name: str) -> Path:
        folder = self.locate(name)
        if folder.is_symlink():
            raise NotADirectoryError("expected a folder, got a symbolic link")
        return folder

    def write(self, name: str, content: Iterable[tuple[str, bytes]]) -> str:
        """Writes a folder, in place of one of that name, and returns its name; removes what interrupted writes left."""
        files.require_no_link(self.root)
        self.root.mkdir(exist_ok=True)  # not the run's folder, which is there unless it was moved
        # What was left when a writer was killed is never read, and goes first.
        for left in self.root.glob("*.tmp"):
            if _LEFT.fullmatch(left.name):
                files.remove(left)

        # A folder cannot replace another atomically. For a moment there are both.
        replaces = self.exists(name)
        new = f"{name}-1" if replaces else name
        self.remove(new)
        with files.new_folder(self.locate(new)) as folder:
            for file, data in content:
                path = folder / file
                with files.naming(path):
                    path.write_bytes(data)
                    files.flush(path)
        if replaces:
            self._move(new, name)
        return name

    def supersede(self, name: str) -> None:
        """Puts a damaged folder out of the way; behind a URL it is removed."""
        self._move(name, f"{name}.superseded")

    def _move(self, name: str, new: str) -> None:
        self.remove(new)
        self.locate(name).rename(self.locate(new))
        files.flush(self.root)

    def remove(self, name: str) -> None:
        """Removes a folder if it exists; an interruption leaves none that looks complete."""
        # Renamed first, because removing a folder is not atomic.
        removed = files.temporary_name(self.locate(name))
        with suppress(FileNotFoundError):
            self.locate(name).rename(removed)
        files.remove(removed)


class UrlStore:
    """Folders behind a URL, where nothing can be renamed atomically. See `DiskStore` for the methods.

    A folder is complete when it has its manifest. Each gets a random suffix, so that no file is ever written twice, by
    this program or another. Failed operations are repeated after each of `PAUSES`. Links, which there are behind
    file://, are not followed.

    Raises:
        StorageError: if the URL cannot be used; names a missing package. Every method may raise it, too.
        ValueError: if the URL has a password in it; see `require_no_secret`.
    """

    def __init__(self, url: str) -> None:
        files.require_no_secret(url)
        self.url = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(self.url)
        except Exception as error:  # each package has its own exceptions
            raise StorageError(f"{url} cannot be used: {files.redact(str(error))}{installation(url, error)}") from error
        self._root = f"{root}/checkpoints"

    def locate(self, name: str) -> str:
        return f"{self.url}/checkpoints/{name}"

    def names(self) -> list[str]:
        complete = []
        for name, found in self._list().items():
            if MANIFEST in found:
                complete.append(name)
        return complete

    def exists(self, name: str) -> bool:
        manifest = f"{self._root}/{name}/{MANIFEST}"
        return bool(self._retry(self._fs.exists, manifest))

    def read(self, name: str, file: str, most: int) -> bytes:
        path, _ = self._find(name, file, most)
        return self._retry(self._fs.cat_file, path)

    def measure(self, name: str, file: str, most: int) -> tuple[int, str]:
        path, size = self._find(name, file, most)
        found = hashlib.sha256()
        for begin in range(0, size, _BLOCK):
            end = min(size, begin + _BLOCK)
            found.update(self._retry(self._fs.cat_file, path, begin, end))
        return size, found.hexdigest()

    def _find(self, name: str, file: str, most: int) -> tuple[str, int]:
        """The path and the size of a regular file; raises a ValueError as `DiskStore.read`."""
        path = f"{self._root}/{name}/{file}"
        info = self._retry(self._fs.info, path)
        # Behind file:// there may be anything.
        if info.get("islink"):
            raise ValueError(f"{file}: expected a regular file, got a symbolic link")
        if info["type"] != "file":
            raise ValueError(f"{file}: expected a regular file, got {info['type']}")
        files.require_size(file, info["size"], most)
        if isinstance(self._fs, LocalFileSystem):
            descriptor = files.open_regular(Path(path))
            try:
                files.require_data(file, descriptor)
            finally:
                os.close(descriptor)
        return path, info["size"]

    def write(self, name: str, content: Iterable[tuple[str, bytes]]) -> str:
        # A folder without a manifest was left when a writer was killed.
        for left, found in self._list().items():
            if _OURS.fullmatch(left) and MANIFEST not in found:
                self.remove(left)
        # The manifest is the last of the files: with it the folder is complete.
        name = f"{name}-{secrets.token_hex(3)}"
        for file, data in content:
            self._put(f"{name}/{file}", data)
        return name

    def supersede(self, name: str) -> None:
        self.remove(name)  # a network error is no damage, so nothing in it could be used later

    def remove(self, name: str) -> None:
        folder = f"{self._root}/{name}"
        with suppress(FileNotFoundError):
            self._retry(self._fs.rm, f"{folder}/{MANIFEST}")  # first, because without it there is no checkpoint
        with suppress(FileNotFoundError):
            self._retry(self._fs.rm, folder, recursive=True)

    def owner(self) -> str | None:
        """The last owner that was given to `claim`."""
        with suppress(FileNotFoundError):
            return self._retry(self._fs.cat_file, f"{self._root}/{_OWNER}").decode()
        return None

    def claim(self, owner: str) -> None:
        """Records which process writes here from now on."""
        self._put(_OWNER, owner.encode())

    def _list(self) -> dict[str, list[str]]:
        """Names of files by folder; empty if there is nothing yet."""
        self._fs.invalidate_cache()  # other machines write here, too
        found: dict[str, list[str]] = defaultdict(list)
        if isinstance(self._fs, LocalFileSystem) and os.path.islink(self._root):
            raise StorageError(f"{self.url}/checkpoints: expected a folder, got a symbolic link")
        with suppress(FileNotFoundError):
            for path, info in self._retry(self._fs.find, self._root, withdirs=True, detail=True).items():
                below = path.removeprefix(self._root).strip("/")
                name, _, file = below.partition("/")
                if info.get("islink") and not file:
                    continue  # in place of a folder
                found[name].append(file)
        return found

    def _put(self, file: str, data: bytes) -> None:
        try:
            self._retry(self._write_file, f"{self._root}/{file}", data)
        except FileNotFoundError as error:
            raise StorageError(f"{self.url} cannot be written to: {_describe(error)}") from error

    def _write_file(self, path: str, data: bytes) -> None:
        try:
            self._fs.pipe_file(path, data)
        except FileNotFoundError:
            # The store has folders. The URL's own and those in it are made; none above it, and no bucket.
            run, _, _ = self._root.rpartition("/")
            checkpoint, _, _ = path.rpartition("/")
            for folder in (run, self._root, checkpoint):
                with suppress(FileExistsError):
                    self._fs.mkdir(folder, create_parents=False)
            self._fs.pipe_file(path, data)

    def _retry(
        self, operation: Callable[Arguments, Result], *given: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        pauses = list(PAUSES)
        while True:
            try:
                return operation(*given, **options)
            except FileNotFoundError:
                raise
            except Exception as error:  # each package has its own exceptions
                reason = _describe(error)
                is_final = isinstance(error, PermissionError | NotImplementedError)
                if not pauses or is_final:
                    raise StorageError(f"{self.url} cannot be read or written: {reason}") from error
                pause = pauses.pop(0)
                logger.warning("%s: %s; retrying in %.0f s", self.url, reason, pause)
                time.sleep(pause)


def open_store(run: Path | str) -> DiskStore | UrlStore:
    """The checkpoints of a run: in its folder, or behind a URL (`file://` is one, too)."""
    if files.is_url(run):
        return UrlStore(str(run))
    return DiskStore(run)


def _describe(error: Exception) -> str:
    """The kind of an error and its message, if it has one, without passwords."""
    described = f"{type(error).__name__}: {error}"
    return files.redact(described.removesuffix(": "))
