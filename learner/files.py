"""Files in folders that others may have prepared: opened without following links or waiting, replaced as a whole.

What is no regular file (a device, a FIFO, a folder, a symbolic link) is refused by name, for reading and for writing.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JSON_BYTES = 64 << 20
"""JSON files that are larger are refused unread; the largest that is written is a vocabulary of some megabytes."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, flags: int = os.O_RDONLY | os.O_NOFOLLOW, folder: int | None = None) -> int:
    """A descriptor of a regular file, as `os.open` gives it; a FIFO's other end is not waited for.

    Args:
        path: of the file; where `folder` is given, in that.
        flags: of `os.open`.
        folder: the descriptor of a folder.

    Raises:
        OSError: if it is anything else, or cannot be opened.
    """
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(path, stat.S_IFLNK) from error
        raise
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise _irregular(path, mode)
    return file


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it cannot be read, is no JSON, or larger than `JSON_BYTES`; names it.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            data = file.read(JSON_BYTES + 1)
        if len(data) > JSON_BYTES:
            raise ValueError(f"more than {JSON_BYTES} bytes")
        return json.loads(data)
    except FileNotFoundError:
        raise
    except RecursionError as error:
        raise ValueError(f"{path}: expected JSON, got one that is nested too deeply") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: expected JSON, got: {error}") from error


def require_output(path: Path) -> None:
    """Raises an OSError where there is something that is no regular file, and so must not be replaced by one."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _irregular(path, mode)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new file to write in the block. Then it takes the place of `path`; not if the block raises.

    Raises:
        OSError: if it cannot be written, or there is something at `path` that is no regular file.
    """
    require_output(path)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # what a killed process left, or a link that another laid
        os.close(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield temporary
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_and_flush(path: Path, data: bytes) -> None:
    """Writes a new file and waits until it is on the disk."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _irregular(path: Path, mode: int) -> OSError:
    found = _KINDS.get(stat.S_IFMT(mode), "something else")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    return OSError(number, f"expected a regular file, got {found}", str(path))
