"""Files, JSON, CSV, URLs. Folders may be prepared by others: only regular files are opened, and replaced as a whole."""

import csv
import errno
import glob
import hashlib
import importlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from storage.errors import describe

Json = dict[str, Any]
"""A JSON object: configurations, states of checkpoints, rows of metrics and summaries are written as such."""
Schema = type | Sequence["Schema"] | Mapping[Any, "Schema"]
"""What a value that was read as JSON has to be like: a type (int means 0 to 2^63 - 1, float any number, object
anything); a dict of the schemas of required keys (more keys are allowed); or {str: schema} for objects, [schema] for
lists, of such values."""
JSON_BYTES = 64 << 20
"""Larger JSON files are not read; the largest that is written, a vocabulary, has some megabytes."""
_SMALL = 16 << 20
"""Bytes of a file that may have any holes."""
_LEAST_DATA = 16
"""The share of a larger file, 1/16, that is to be data."""
LEFT_SECONDS = 24 * 3600.0
"""Age of a temporary file or folder from which on it is taken for one that a killed process left: none takes that long
to be written."""
_MOST_REDACTED = 4_000
"""Characters of a value from which an error message is made."""
# //USER: before a password, where the colon may be written as %3a; but not //HOST:PORT/, with an @ somewhere behind it.
_USER = re.compile(r"(:/+)[^\s/@]*(?::(?!\d+(?:[/\s]|$))|%3a)", re.IGNORECASE)
_FILE_TYPES = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
_TYPES = {
    int: "a whole number of 0 or more",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def require_output(path: Path) -> None:
    """Raises an OSError if the path exists and is not a regular file."""
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            found = _FILE_TYPES.get(stat.S_IFMT(mode), "a device")
            raise OSError(errno.EINVAL, f"expected a regular file, got {found}", str(path))


def require_no_link(folder: Path) -> None:
    """Raises an OSError for a symbolic link where a run has a folder of its own: it may lead anywhere."""
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "expected a folder, got a symbolic link", str(folder))


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file as `os.open` does, and returns a descriptor; raises an OSError for what is not one."""
    require_output(path)  # first, because opening a device may have effects, and a FIFO waits
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file.

    Raises a ValueError, before reading, if it has more than `most` bytes, or is mostly holes.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        require_size(path.name, size, most)
        require_data(path.name, file.fileno())
        return file.read(size)


def measure_regular(path: Path, most: int) -> tuple[int, str]:
    """The size and the SHA-256 of a regular file, which is read in blocks; raises as `read_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        require_size(path.name, size, most)
        require_data(path.name, file.fileno())
        return size, hashlib.file_digest(file, "sha256").hexdigest()


def require_size(file: str, size: int, most: int) -> None:
    """Raises a ValueError if a file has more than `most` bytes."""
    if size > most:
        raise ValueError(f"{file} has {size} bytes, expected at most {most}")


def require_data(name: str, descriptor: int) -> None:
    """Raises a ValueError if a large open file is mostly holes: it takes little of a disk, and all of its size of the
    memory. Where the system does not tell holes, all is data."""
    found = os.fstat(descriptor)
    size = found.st_size
    on_disk = getattr(found, "st_blocks", size) * 512
    least = size // _LEAST_DATA
    if size < _SMALL or on_disk >= least or not hasattr(os, "SEEK_DATA"):
        return
    # A disk that compresses, or a file server, may report few blocks also of a file without holes.
    data = 0
    position = 0
    try:
        while data < least:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
            data += position - begin
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no more data
            raise ValueError(f"{name} has {size} bytes, expected data in them, got {data} bytes and holes") from error
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new, empty file. After the block it replaces `path`, unless the block raised.

    What killed processes left beside it is removed. OSErrors of the block name `path`, since nothing of the other name
    is left.

    Raises an OSError if the file cannot be written, or `path` is not a regular file.
    """
    require_output(path)
    _remove_left(path)
    temporary = temporary_name(path)  # beside it, because only within a disk renaming is atomic
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary), temporary):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)  # else the new name might not survive a power failure


def _remove_left(path: Path) -> None:
    """Removes temporary files and folders of a path that are too old for a process to be writing them still."""
    oldest = time.time() - LEFT_SECONDS
    for left in path.parent.glob(f"{glob.escape(path.name)}-*.tmp"):
        with suppress(OSError):
            if is_temporary_name(left.name, path.name) and left.lstat().st_mtime < oldest:
                remove(left)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a new, empty folder. After the block it is renamed to `path`, unless the block raised.

    OSErrors about what is in it name it by `path`, since nothing of the other name is left. What killed processes left
    beside it is removed.
    """
    _remove_left(path)
    temporary = temporary_name(path)
    try:
        temporary.mkdir()
        yield temporary
        flush(temporary)
        temporary.rename(path)
    except OSError as error:
        if isinstance(error.filename, str | Path):
            error.filename = str(error.filename).replace(str(temporary), str(path))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    flush(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the path of a file to an OSError of the block without one, as when a write finds a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def temporary_name(path: Path) -> Path:
    """An unused name beside a path."""
    return path.with_name(f"{path.name}-{secrets.token_hex(4)}.tmp")


def is_temporary_name(name: str, of: str) -> bool:
    """Whether `temporary_name` makes this name of the name `of`."""
    return re.fullmatch(re.escape(of) + r"-[0-9a-f]{8}\.tmp", name) is not None


def flush(path: Path) -> None:
    """Waits until the bytes of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file, a folder or a link (not its target), if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder and the folders in it."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
    return size


def read_json(path: Path) -> Any:
    """The value that a JSON file holds.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, is not JSON, or is larger than `JSON_BYTES`; names the file.
    """
    try:
        return json.loads(read_regular(path, JSON_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got: {error}") from error


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value that was read as JSON is a number that is finite as a float; True and False are none."""
    # JSON has whole numbers of any length, for which `math.isfinite` raises an OverflowError.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(abs(value) <= sys.float_info.max)


def format_json(value: object, indent: int | None = None) -> str:
    """A value as JSON, with null for numbers that are not finite, which JSON cannot express."""
    # Python writes NaN and Infinity as such, which other readers refuse.
    finite = json.loads(json.dumps(value), parse_constant=lambda number: None)
    return json.dumps(finite, indent=indent)


def write_json(path: Path | str, value: object) -> None:
    """Writes a value as a JSON file atomically; see `format_json`. If it raises a TypeError, nothing was written."""
    text = format_json(value, indent=2)
    with replacing(Path(path)) as temporary:
        temporary.write_text(text + "\n")


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the fields of all of them; what is missing, None or NaN is empty, and floats are exact."""
    fields = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(fields), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_value(cell) for name, cell in row.items()})
    return text.getvalue()


def _csv_value(cell: Any) -> Any:
    """A cell as `csv` is to write it."""
    if not isinstance(cell, float):
        return cell
    if math.isnan(cell):
        return ""
    return float(cell)  # not numpy's


def require_schema(value: Any, schema: Schema, where: str) -> None:
    """Raises a ValueError, which names the wrong part, if a value that was read as JSON is not as expected.

    `where` is the name of the value in errors.
    """
    # A dict or a list as schema stands for such a value.
    kind = schema if isinstance(schema, type) else type(schema)
    if not _is_of(kind, value):
        raise ValueError(f"{where}: expected {_TYPES[kind]}, got {abbreviate(value)}")

    # Then its parts.
    if isinstance(schema, list):
        of_items = schema[0]
        for index, item in enumerate(value):
            require_schema(item, of_items, f"{where}: {index}")
    elif isinstance(schema, dict):
        parts = schema
        if str in schema:
            parts = dict.fromkeys(value, schema[str])
        missing = [name for name in parts if name not in value]
        if missing:
            expected = ", ".join(missing)
            raise ValueError(f"{where}: expected {expected} in it, got {abbreviate(list(value))}")
        for name, part in parts.items():
            require_schema(value[name], part, f"{where}: {name}")


def _is_of(kind: type, value: object) -> bool:
    """Whether a value is of a type of a schema; True and False are no numbers."""
    if kind is int:
        return type(value) is int and 0 <= value < 1 << 63
    if kind is float and type(value) is int:
        return abs(value) < 1 << 63
    if kind is float:
        return type(value) is float
    return isinstance(value, kind)


def abbreviate(value: object) -> str:
    """The `repr` of a value, cut to the length of an error message, without passwords of URLs."""
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deeply"
    # A foreign file may have a text of megabytes. Where a password is cut, an @ stands for the one behind it.
    is_cut = len(text) > _MOST_REDACTED
    if is_cut:
        text = f"{text[:_MOST_REDACTED]}@"
    text = redact(text)
    if is_cut or len(text) > 120:
        text = f"{text[:116]} ..."
    return text


def printable(text: str, layout: str = "") -> str:
    """A text with escapes such as "\\x1b" for control characters, which a terminal obeys; those of `layout` stay.

    So do letters of scripts that are written from the right, but not what makes others run backwards: a command of a
    foreign run would look like another one.
    """

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0] in layout else match[0].encode("unicode_escape").decode()

    return re.sub(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", escaped, text)


def is_url(run: Path | str) -> bool:
    """Whether a run is given as a URL, not as a path."""
    return isinstance(run, str) and "://" in run


def redact(text: str) -> str:
    """A text with "***" for the passwords in its URLs, which end at a space, and for all that follows "?NAME=" in them.

    Takes time in proportion to the length of any text.
    """
    return re.sub(r"\S+", lambda word: _redact_url(word[0]), text)


def _redact_url(url: str) -> str:
    """A URL, or a word that may have some in it, without passwords and queries."""
    # No expression below looks for the same end from several beginnings, which would take quadratic time.
    # //USER:PASSWORD@, up to the last @, because passwords may have some in them.
    before, at, after = url.rpartition("@")
    begin = _USER.search(before + at)
    if begin:
        url = f"{url[: begin.start()]}{begin[1]}***@{after}"
    # https://TOKEN@. Other protocols have a user or a container there, which are no secrets.
    url = re.sub(r"(https?:/+)[^\s/@]*@", r"\1***@", url, flags=re.IGNORECASE)
    # ?NAME=VALUE, with all that follows.
    return re.sub(r"([?&#;][\w.~%+-]+=).+", r"\1***", url, flags=re.DOTALL)


def one_line(error: Exception) -> str:
    """What an error says, in one line without passwords, and not longer than a person reads."""
    line = redact(" ".join(describe(error).split()))
    return line if len(line) <= 500 else f"{line[:496]} ..."


def require_no_secret(url: str) -> None:
    """Raises a ValueError for a URL with a password, token or query, because URLs are written to files and logs."""
    redacted = _redact_url(url)  # with spaces in it
    if redacted != url:
        raise ValueError(
            f"{redacted}: expected a URL without a password, token or query; credentials belong in the environment, "
            "as FSSPEC_PROTOCOL_NAME=VALUE or as the protocol's package reads them (docs/clusters.md)"
        )


def cache_folder(kind: str) -> Path:
    """Where the prepared data of a kind are kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / kind


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Creates a folder, whole or not at all, unless it exists. Several processes may do so at once.

    `build` writes the content into the empty folder that it is called with.
    """
    if target.exists():
        return

    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new_folder(target) as folder:
            build(folder)
    except Exception:
        if not target.exists():  # else another process was faster
            raise


def import_extra(package: str, extra: str, purpose: str) -> ModuleType:
    """A package of one of the project's extras. Raises an ImportError that says how to install it, and for what."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{purpose} needs the extra `{extra}`: pip install -e '.[{extra}]'") from error
