"""Where checkpoints lie: folders of files that are there whole or not at all, on a disk or behind any fsspec URL.

The two classes differ in how they keep that promise. A disk can rename a folder once it is complete. Object stores
cannot: there a folder counts from the moment when its last file, the manifest, is written, and no name is ever used
again. What is in the files is the business of `checkpoints`.
"""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

logger = logging.getLogger(__name__)

MANIFEST = "state.json"
"""The file that is written last: behind a URL, a folder without it is not there."""
OWNER = "owner.txt"
PAUSES = (1.0, 3.0, 9.0)
"""Seconds before each new try of what failed behind a URL."""
_TEMPORARY = ".tmp"
_HOPELESS = (PermissionError, NotImplementedError)
"""What another try would not mend."""


class StorageError(Exception):
    """A URL cannot be used, for want of a package, say, or fails however often it is tried; the message names it."""


class Disk:
    """The folders in `checkpoints/` of a run on a disk. Errors are those of the operating system."""

    def __init__(self, run: Path) -> None:
        self.run, self.path = run, run / "checkpoints"

    def locate(self, name: str) -> Path:
        """Where a folder is."""
        return self.path / name

    def folders(self) -> list[str]:
        """Names of all that is there.

        Raises:
            FileNotFoundError: if the folder is no run or has no checkpoints; says which.
        """
        if not self.run.is_dir():
            raise FileNotFoundError(f"{self.run}: there is no such folder")
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"{self.run} has no checkpoints: expected the folder of a run, with checkpoints/ in it"
            )
        return [path.name for path in self.path.iterdir()]

    def read(self, name: str, file: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: if it is not there.
        """
        return (self.path / name / file).read_bytes()

    def write(self, name: str, files: Iterable[tuple[str, bytes]]) -> str:
        """Writes a folder and returns its name; of that name there is the old one or the new one at any moment."""
        temporary, final = self.path / f"{name}{_TEMPORARY}", self.path / name
        temporary.mkdir()
        try:
            for file, data in files:
                write_and_flush(temporary / file, data)
            flush(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if final.exists():  # nothing puts one folder in the place of another at once: for a moment there are both
            second = f"{name}-1"
            self.rename(temporary.name, second)
            flush(self.path)
            self.remove(name)
            self.rename(second, name)
        else:
            temporary.rename(final)
        flush(self.path)
        return name

    def rename(self, name: str, new: str) -> None:
        """Renames a folder, in the place of another if there is one."""
        if (self.path / new).exists():
            self.remove(new)
        (self.path / name).rename(self.path / new)

    def remove(self, name: str) -> None:
        """Removes a folder; a kill in between leaves nothing that looks like a checkpoint."""
        doomed = self.path / f"{name}.removed{_TEMPORARY}"
        (self.path / name).rename(doomed)
        shutil.rmtree(doomed)

    def tidy(self) -> None:
        """Makes the place if need be, and removes what interrupted writes and removals left."""
        self.path.mkdir(parents=True, exist_ok=True)
        for path in self.path.iterdir():
            if path.name.endswith(_TEMPORARY) and path.is_dir():
                shutil.rmtree(path)


class Remote:
    """The folders in `checkpoints/` behind a URL of any kind that fsspec knows, its own `file://` included.

    A folder is written file by file, the manifest last; when it is removed, the manifest goes first. Each name gets a
    random ending, so that no file is ever written twice: neither a new checkpoint of the same step nor another program
    can mix its files with those that are there. What fails is tried again after each of `PAUSES`.

    Raises:
        StorageError: if the URL cannot be used; names the package that is missing. Every method may raise it, too.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self.fs, root = url_to_fs(self.url)
        except Exception as error:  # each package has its own
            raise StorageError(f"{url} cannot be used: {error}") from error
        self.path = f"{root}/checkpoints"

    def locate(self, name: str) -> str:
        """Where a folder is."""
        return f"{self.url}/checkpoints/{name}"

    def folders(self) -> list[str]:
        """Names of the folders that are complete."""
        return [name for name, files in self._contents().items() if MANIFEST in files]

    def read(self, name: str, file: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: if it is not there.
        """
        return self._try(self.fs.cat_file, f"{self.path}/{name}/{file}")

    def write(self, name: str, files: Iterable[tuple[str, bytes]]) -> str:
        """Writes a folder, whose last file must be the manifest, and returns its name with the ending."""
        name = f"{name}-{secrets.token_hex(3)}"
        for file, data in files:
            self._put(f"{self.path}/{name}/{file}", data)
        return name

    def rename(self, name: str, new: str) -> None:
        """Renames a folder by copying its files."""
        for file in sorted(self._contents()[name], key=lambda file: file == MANIFEST):
            self._put(f"{self.path}/{new}/{file}", self.read(name, file))
        self.remove(name)

    def remove(self, name: str) -> None:
        """Removes a folder; a kill in between leaves nothing that looks like a checkpoint."""
        for path, recursive in ((f"{self.path}/{name}/{MANIFEST}", False), (f"{self.path}/{name}", True)):
            with suppress(FileNotFoundError):  # a try that seemed to fail did not
                self._try(self.fs.rm, path, recursive)

    def tidy(self) -> None:
        """Removes what interrupted writes and removals left."""
        for name, files in self._contents().items():
            if name[:12].isdigit() and MANIFEST not in files:
                self.remove(name)

    def owner(self) -> str | None:
        """Who claimed the place last."""
        try:
            return self._try(self.fs.cat_file, f"{self.path}/{OWNER}").decode()
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> None:
        """Makes it known that from now on only `owner` writes here."""
        self._put(f"{self.path}/{OWNER}", owner.encode())

    def _contents(self) -> dict[str, list[str]]:
        """Names of files by folder; empty if there is nothing yet."""
        self.fs.invalidate_cache()
        found: dict[str, list[str]] = {}
        with suppress(FileNotFoundError):
            for path in self._try(lambda: self.fs.find(self.path, withdirs=True)):
                name, _, file = path.removeprefix(self.path).strip("/").partition("/")
                files = found.setdefault(name, [])
                if file:
                    files.append(file)
        return found

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._try(self.fs.pipe_file, path, data)
        except FileNotFoundError:
            try:
                self._try(self._make_folders, path)
                self._try(self.fs.pipe_file, path, data)
            except FileNotFoundError as error:
                raise StorageError(f"{self.url} cannot be written to: {_describe(error)}") from error

    def _make_folders(self, path: str) -> None:
        """Makes the URL's own folder and those in it where folders are real; neither those above it nor a bucket."""
        run = self.path.rpartition("/")[0]
        for folder in (run, self.path, path.rpartition("/")[0]):
            with suppress(FileExistsError):
                self.fs.mkdir(folder, create_parents=False)

    def _try(self, function: Callable[..., Any], *arguments: Any) -> Any:
        for pause in (*PAUSES, None):
            try:
                return function(*arguments)
            except FileNotFoundError:
                raise
            except Exception as error:  # each package has its own
                if pause is None or isinstance(error, _HOPELESS):
                    raise StorageError(f"{self.url} cannot be read or written: {_describe(error)}") from error
                logger.warning("%s: %s; once more in %.0f s", self.url, _describe(error), pause)
                time.sleep(pause)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def is_url(run: Path | str) -> bool:
    """Whether a run is named by a URL rather than a path."""
    return isinstance(run, str) and "://" in run


def open_storage(run: Path | str) -> Disk | Remote:
    """Where the checkpoints of a run are: in its folder, or behind a URL.

    Raises:
        StorageError: if the URL cannot be used.
    """
    return Remote(str(run)) if is_url(run) else Disk(Path(run))


def flush(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_and_flush(path: Path, data: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
