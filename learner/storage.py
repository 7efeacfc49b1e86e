"""Where checkpoints lie: folders of files that are there whole or not at all, on a disk or behind any fsspec URL.

The two classes differ in how they keep that promise. A disk can rename a folder once it is complete. Object stores
cannot: there a folder counts from the moment when its last file, the manifest, is written, and no name is ever used
again. What is in the files is the business of `checkpoints`.
"""

import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from learner.files import JSON_BYTES, flush, open_regular, write_and_flush

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
    """The folders in `checkpoints/` of a run on a disk. Errors are those of the operating system.

    Folders and files are taken for checkpoints only where they are real ones: links in `checkpoints/` are not followed.
    """

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

    def holds(self, name: str) -> bool:
        """Whether there is a folder of that name."""
        return os.path.lexists(self.path / name)

    def read(self, name: str, file: str, size: int | None = None) -> bytes:
        """The bytes of a file, `size` if it is given, else at most `JSON_BYTES`.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if it has another size; nothing was read then.
            OSError: if it or the folder is a link, or the file is no regular one.
        """
        folder = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            opened = open_regular(Path(file), folder=folder)
        finally:
            os.close(folder)
        with os.fdopen(opened, "rb") as content:
            found = os.fstat(opened).st_size
            _require_size(file, found, size)
            return content.read(found)

    def write(self, name: str, files: Iterable[tuple[str, bytes]]) -> str:
        """Writes a folder and returns its name; of that name there is the old one or the new one at any moment."""
        temporary, final = self.path / f"{name}{_TEMPORARY}", self.path / name
        _remove(temporary)
        temporary.mkdir()
        try:
            for file, data in files:
                write_and_flush(temporary / file, data)
            flush(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if os.path.lexists(
            final
        ):  # nothing puts one folder in the place of another at once: for a moment there are both
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
        if os.path.lexists(self.path / new):
            self.remove(new)
        (self.path / name).rename(self.path / new)

    def remove(self, name: str) -> None:
        """Removes a folder; a kill in between leaves nothing that looks like a checkpoint."""
        doomed = self.path / f"{name}.removed{_TEMPORARY}"
        _remove(doomed)
        (self.path / name).rename(doomed)
        _remove(doomed)

    def tidy(self) -> None:
        """Makes the place in the run's folder if need be, and removes what interrupted writes and removals left."""
        self.path.mkdir(exist_ok=True)  # not the run's folder: one that was moved away would be there twice
        for path in self.path.iterdir():
            if path.name.endswith(_TEMPORARY):
                _remove(path)


class Remote:
    """The folders in `checkpoints/` behind a URL of any kind that fsspec knows, its own `file://` included.

    A folder is written file by file, the manifest last; when it is removed, the manifest goes first. Each name gets a
    random ending, so that no file is ever written twice: neither a new checkpoint of the same step nor another program
    can mix its files with those that are there. What fails is tried again after each of `PAUSES`.

    Raises:
        StorageError: if the URL cannot be used; names the package that is missing. Every method may raise it, too.
        ValueError: if there is a password in it; see `require_no_secret`.
    """

    def __init__(self, url: str) -> None:
        require_no_secret(url)
        self.url = url.rstrip("/")
        try:
            self.fs, root = url_to_fs(self.url)
        except Exception as error:  # each package has its own
            raise StorageError(f"{url} cannot be used: {redact(str(error))}") from error
        self.path = f"{root}/checkpoints"

    def locate(self, name: str) -> str:
        """Where a folder is."""
        return f"{self.url}/checkpoints/{name}"

    def folders(self) -> list[str]:
        """Names of the folders that are complete."""
        return [name for name, files in self._contents().items() if MANIFEST in files]

    def holds(self, name: str) -> bool:
        """Whether there is a complete folder of that name."""
        return bool(self._try(self.fs.exists, f"{self.path}/{name}/{MANIFEST}"))

    def read(self, name: str, file: str, size: int | None = None) -> bytes:
        """The bytes of a file, `size` if it is given, else at most `JSON_BYTES`.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if it has another size, or is no file; nothing was read then.
        """
        path = f"{self.path}/{name}/{file}"
        about = self._try(self.fs.info, path)
        if about["type"] != "file" or about.get("islink"):  # behind file:// there may be links and devices
            found = "a symbolic link" if about.get("islink") else about["type"]
            raise ValueError(f"{file}: expected a regular file, got {found}")
        _require_size(file, about["size"], size)
        return self._try(self.fs.cat_file, path)

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
    return redact(f"{type(error).__name__}: {error}".removesuffix(": "))


def _require_size(file: str, found: int, size: int | None) -> None:
    """Raises a ValueError where a file is not of the size that it must have, or too large for any."""
    if size is not None and found != size:
        raise ValueError(f"{file} has {found} bytes instead of {size}")
    most = JSON_BYTES if size is None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if found > most:
        raise ValueError(f"{file} has {found} bytes, expected at most {most}")


def _remove(path: Path) -> None:
    """Removes whatever is there; a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def redact(text: str, any_character: str = r"\S") -> str:
    """A text in which URLs have stars for passwords, and for whatever follows "?NAME="; URLs end at a space."""
    user = r"(:/+)[^\s/@]*(?::(?!\d+(?:[/\s]|$))|%3a)" + any_character + "*@"  # USER:PASSWORD@, but not HOST:PORT/
    text = re.sub(user, r"\1***@", text, flags=re.IGNORECASE | re.DOTALL)
    text = re.sub(r"(https?:/+)[^\s/@]*@", r"\1***@", text, flags=re.IGNORECASE)  # elsewhere a user or a container
    return re.sub(r"([?&#;][\w.~%+-]+=)" + any_character + "+", r"\1***", text, flags=re.DOTALL)


def require_no_secret(url: str) -> None:
    """Raises a ValueError where a URL holds what must not be written to files and terminals, as URLs of runs are."""
    if (shown := redact(url, any_character=".")) != url:
        raise ValueError(
            f"{shown}: expected a URL without a password, token or query; credentials belong in the environment, "
            "as FSSPEC_PROTOCOL_NAME=VALUE or as the protocol's package reads them (docs/clusters.md)"
        )


def is_url(run: Path | str) -> bool:
    """Whether a run is named by a URL rather than a path."""
    return isinstance(run, str) and "://" in run


def open_storage(run: Path | str) -> Disk | Remote:
    """Where the checkpoints of a run are: in its folder, or behind a URL.

    Raises:
        StorageError: if the URL cannot be used.
    """
    return Remote(str(run)) if is_url(run) else Disk(Path(run))
