"""Files, JSON and names of URLs. Files lie in folders that others may have prepared: only regular files are opened.

Devices, FIFOs, folders and symbolic links are refused by name. Files are replaced as a whole.
"""

import errno
import importlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JSON_BYTES = 64 << 20
"""Larger JSON files are not read; the largest that is written, a vocabulary, has some megabytes."""
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_JSON_TYPES = {
    int: "a whole number of 0 or more",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
"""Names of JSON's types in errors."""


def open_regular(path: Path, flags: int = os.O_RDONLY | os.O_NOFOLLOW, folder: int | None = None) -> int:
    """Opens a regular file as `os.open` does, without waiting for the other end of a FIFO; returns a descriptor.

    Args:
        path: the file, relative to `folder` if that is given.
        flags: flags of `os.open`.
        folder: descriptor of a folder.

    Raises:
        OSError: if the path is not a regular file, or cannot be opened.
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


def require_output(path: Path) -> None:
    """Raises an OSError if the path exists and is not a regular file, so that it must not be replaced."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _irregular(path, mode)


def _irregular(path: Path, mode: int) -> OSError:
    found = _KINDS.get(stat.S_IFMT(mode), "something else")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    return OSError(number, f"expected a regular file, got {found}", str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a new, empty file. After the block it replaces `path`, unless the block raised.

    Raises:
        OSError: if the file cannot be written, or `path` is not a regular file.
    """
    require_output(path)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process, or a link that another program placed there
        os.close(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield temporary
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Waits until the bytes of a file, or the entries of a folder, are on the disk."""
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


def remove(path: Path) -> None:
    """Removes a file, a folder or a link (not its target), if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The value that a JSON file holds.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, is not JSON, or is larger than `JSON_BYTES`; names the file.
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
        raise ValueError(f"{path}: expected JSON, got a value that is nested too deeply") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: expected JSON, got: {error}") from error


def format_json(value: Any, **options: Any) -> str:
    """A value as JSON, with null for numbers that are not finite, which JSON cannot express."""

    def finite(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: finite(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [finite(value) for value in node]
        return None if isinstance(node, float) and not math.isfinite(node) else node

    return json.dumps(finite(value), allow_nan=False, **options)


def write_json(path: Path | str, value: Any) -> None:
    """Writes a value as a JSON file atomically; see `format_json`.

    Raises:
        TypeError: if JSON cannot hold the value; nothing was written.
    """
    text = format_json(value, indent=2)
    with replacing(Path(path)) as temporary:
        temporary.write_text(text + "\n")


def require_schema(value: Any, schema: Any, where: str) -> None:
    """Checks a value that was read as JSON.

    Args:
        value: the value.
        schema: a type (int means 0 to 2^63 - 1, float any number, object anything); a dict of the schemas of required
            keys (more keys are allowed); {str: schema} for objects, or [schema] for lists, of such values.
        where: name of the value in errors.

    Raises:
        ValueError: says which value was expected to be what, and what it is.
    """
    kind: Any = schema if isinstance(schema, type) else type(schema)
    if kind is int:
        fits = type(value) is int and 0 <= value < 1 << 63
    elif kind is float:
        fits = type(value) is float or (type(value) is int and abs(value) < 1 << 63)
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise ValueError(f"{where}: expected {_JSON_TYPES[kind]}, got {abbreviate(value)}")
    if isinstance(schema, list):
        for index, item in enumerate(value):
            require_schema(item, schema[0], f"{where}: {index}")
    elif isinstance(schema, dict):
        if str in schema:
            schema = dict.fromkeys(value, schema[str])
        if missing := [name for name in schema if name not in value]:
            raise ValueError(f"{where}: expected {', '.join(missing)} in it, got {abbreviate(list(value))}")
        for name, part in schema.items():
            require_schema(value[name], part, f"{where}: {name}")


def abbreviate(value: Any, length: int = 120) -> str:
    """The `repr` of a value, cut to a length that fits an error message, without passwords of URLs."""
    try:
        return shorten_text(redact(repr(value)), length)
    except RecursionError:
        return "a value that is nested too deeply"


def shorten_text(text: str, length: int) -> str:
    """A text, cut to a length."""
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def is_url(run: Path | str) -> bool:
    """Whether a run is given as a URL, not as a path."""
    return isinstance(run, str) and "://" in run


def redact(text: str, any_character: str = r"\S") -> str:
    """A text with "***" for the passwords in its URLs and for all that follows "?NAME="; URLs end at a space."""
    user = r"(:/+)[^\s/@]*(?::(?!\d+(?:[/\s]|$))|%3a)" + any_character + "*@"  # USER:PASSWORD@, but not HOST:PORT/
    text = re.sub(user, r"\1***@", text, flags=re.IGNORECASE | re.DOTALL)
    text = re.sub(r"(https?:/+)[^\s/@]*@", r"\1***@", text, flags=re.IGNORECASE)  # elsewhere a user or a container
    return re.sub(r"([?&#;][\w.~%+-]+=)" + any_character + "+", r"\1***", text, flags=re.DOTALL)


def require_no_secret(url: str) -> None:
    """Raises a ValueError for a URL with a password, token or query, because URLs are written to files and logs."""
    if (redacted := redact(url, any_character=".")) != url:
        raise ValueError(
            f"{redacted}: expected a URL without a password, token or query; credentials belong in the environment, "
            "as FSSPEC_PROTOCOL_NAME=VALUE or as the protocol's package reads them (docs/clusters.md)"
        )


def cache_folder(kind: str) -> Path:
    """Where the prepared data of a kind are kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / kind


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Creates a folder, whole or not at all, unless it exists. Several processes may do so at once.

    Args:
        target: the folder.
        build: writes the content into the empty folder that it is called with.

    Raises:
        OSError: if the folder cannot be written; also what `build` raises.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-", suffix=".tmp"))
    try:
        build(temporary)
        temporary.rename(target)
    except Exception:
        if not target.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def import_extra(package: str, extra: str, purpose: str) -> Any:
    """A package of one of the project's extras. Raises an ImportError that says how to install it, and for what."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{purpose} needs the extra `{extra}`: pip install -e '.[{extra}]'") from error
