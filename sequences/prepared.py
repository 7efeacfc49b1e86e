"""Prepared data: folders with a memory-mapped file of tokens for each split, described by `corpus.json`.

They are written once, as a whole, with `storage.files.build_once`. Corpora of files are here as far as those of sound
and of images are alike: their files are listed, read one by one and, if the user wants that, left out.
"""

import hashlib
import itertools
import os
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sequences.splits import is_hidden, warn_of_splits
from storage.files import build_once, flush, read_json, write_json

LARGE = 0.25
"""A file with more than this share of a corpus is not held out: little would be left to learn from."""
Reader = Callable[[], Iterable[np.ndarray]]
"""Reads a file: the contents that are documents of their own, such as one waveform."""


class Unreadable(ValueError):
    """A file that cannot be used; the message names it."""


def leave_out(error: Unreadable, allowed: bool) -> str:
    """Warns of a file that is left out, and returns what it said; raises the error if the user does not allow that."""
    if not allowed:
        raise type(error)(f"{error} (skip_unreadable leaves such files out)") from error
    # Names of files need not be UTF-8.
    told = f"left out {error}".encode(errors="backslashreplace").decode()
    warnings.warn(told, stacklevel=3)
    return told


def build_corpus(target: Path, build: Callable[[Path], None]) -> None:
    """As `build_once`; if the corpus is there already, warns of files that it lacks because they could not be used."""
    is_there = target.exists()
    build_once(target, build)
    if not is_there:
        return  # `build` has warned of each of them
    with suppress(OSError, ValueError, AttributeError):  # `open_splits` says what is wrong
        left_out = read_json(target / "corpus.json").get("left_out")
        if left_out:
            warnings.warn(f"without {len(left_out)} files that could not be used, such as: {left_out[0]}", stacklevel=3)


def named_files(path: str, pattern: str, suffixes: tuple[str, ...], expected: str) -> dict[str, Path]:
    """The files of a corpus below a folder by name, which is their path in it as text; warns if some look like splits.

    Raises a FileNotFoundError if there is no such folder; `expected` says what should have been given.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"corpus: expected {expected}; there is no folder {root}")
    files = [file for file in visible_files(root, pattern) if file.suffix.lower() in suffixes]
    warn_of_splits(root, files)
    named = {}
    for file in files:
        named[name_below(root, file)] = file
    return named


def name_below(root: Path, file: Path) -> str:
    """The name of a file in a corpus. Those on a disk need not be UTF-8, but those in JSON have to be."""
    return os.fsencode(file.relative_to(root)).decode(errors="backslashreplace")


def identity_of(path: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """What tells whether the files of a corpus have changed, as JSON can hold it."""
    listing = []
    for name, file in files.items():
        found = file.stat()
        listing.append([name, found.st_size, found.st_mtime_ns])
    return {"root": str(Path(path).resolve()), "files": listing}


def divide(sizes: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """Names by split, for data without splits of their own.

    Names are taken in the order of their digests, which is the same everywhere: for each split of `shares` until it has
    that share of the sum of `sizes`, but at least one; the others, at least one, are the split "train". So are those
    with more than `LARGE` of the sum, as far as there are others.
    """
    in_order = sorted(sizes, key=digest_of)
    total = sum(sizes.values())

    def is_large(name: str) -> bool:
        return sizes[name] > LARGE * total

    left = deque(sorted(in_order, key=is_large))  # large ones last, others as they were
    parts: dict[str, list[str]] = {}
    for number, (split, share) in enumerate(shares.items()):
        # One name must be left for each of the splits that follow, "train" among them.
        num_following = len(shares) - number
        parts[split] = []
        filled = 0.0
        while len(left) > num_following:
            has_room = filled < share * total and not is_large(left[0])
            if parts[split] and not has_room:
                break
            name = left.popleft()
            parts[split].append(name)
            filled += sizes[name]
    learned = set(left)
    return parts | {"train": [name for name in in_order if name in learned]}


def visible_files(root: Path, pattern: str = "*") -> list[Path]:
    """The files below a folder whose paths below it match a pattern, in order, without hidden ones; see `is_hidden`."""
    files = []
    for path in sorted(root.rglob(pattern)):
        hidden = any(is_hidden(part) for part in path.relative_to(root).parts)
        if path.is_file() and not hidden:
            files.append(path)
    return files


def digest_of(name: str) -> str:
    """SHA-256 of a name."""
    return hashlib.sha256(name.encode()).hexdigest()


def write_split(folder: Path, split: str, parts: Iterable[np.ndarray], vocabulary: int) -> dict[str, Any]:
    """Writes a split's documents or files, each an array of tokens; returns their places for `corpus.json`."""
    path = folder / f"{split}.tokens"
    dtype = np.min_scalar_type(vocabulary - 1)
    starts = []
    length = 0
    with path.open("wb") as file:
        for part in parts:
            file.write(part.astype(dtype, copy=False).tobytes())
            starts.append(length)
            length += len(part)
    flush(path)
    return {"tokens": length, "dtype": dtype.name, "starts": starts}


def write_corpus(
    folder: Path,
    described: Mapping[str, object],
    divided: Callable[[Collection[str]], Mapping[str, Mapping[str, Reader]]],
    vocabulary: int,
    skip_unreadable: bool,
    show: Callable[[int, int], None],
    encode: Callable[[np.ndarray], np.ndarray] = lambda content: content,
) -> None:
    """Writes the splits of a corpus of files and its `corpus.json`. Of equal contents only the first is written.

    Args:
        described: what `corpus.json` has beside the splits, the digest of all contents, and what was left out.
        divided: files by split and name, without those of the names that it is called with. These cannot be used; it
            is called with them if nothing is left of a split otherwise.
        vocabulary: tokens are less than that.
        skip_unreadable: whether files that raise `Unreadable` are left out with a warning.
        show: is called with the number of files done, and of all.
        encode: the tokens of a content.

    Raises:
        Unreadable: if a file cannot be used.
        ValueError: if nothing is left of a split.
    """
    left_out: dict[str, str] = {}  # by name, what was said

    def leave_out_named(name: str, error: Unreadable) -> None:
        left_out[name] = leave_out(error, skip_unreadable)

    while True:
        num_left_out = len(left_out)
        parts = divided(left_out.keys())
        splits, digest = _write_splits(folder, parts, vocabulary, show, encode, leave_out_named)
        empty = [split for split, places in splits.items() if places["tokens"] < 2]
        if not empty:
            break
        # Perhaps a split had no other files than those that cannot be used. If so, the others are divided anew.
        if len(left_out) == num_left_out:
            found = splits[empty[0]]["tokens"]
            raise ValueError(f"corpus: expected data in the {empty[0]} split, got {found} tokens that differ")
    said = list(left_out.values())
    write_json(folder / "corpus.json", {**described, "digest": digest, "splits": splits, "left_out": said})


def _write_splits(
    folder: Path,
    parts: Mapping[str, Mapping[str, Reader]],
    vocabulary: int,
    show: Callable[[int, int], None],
    encode: Callable[[np.ndarray], np.ndarray],
    on_unreadable: Callable[[str, Unreadable], None],
) -> tuple[dict[str, Any], str]:
    """The places of each split that is written, with the "files" of its contents, and the digest of all contents.

    `on_unreadable` is called with the name of a file that cannot be used, and the error.
    """
    numbers = itertools.count(1)
    total = sum(map(len, parts.values()))
    digest = hashlib.sha256()
    known: set[bytes] = set()

    def documents(split: str, files: list[str]) -> Iterator[np.ndarray]:
        """The tokens of each content of a split; adds the names of their files to `files`."""
        for name, read in parts[split].items():
            try:
                contents = read()
            except Unreadable as error:
                on_unreadable(name, error)
                continue
            show(next(numbers), total)
            for content in contents:
                # The same content under two names might be in two splits.
                data = content.tobytes()
                hashed = hashlib.sha256(data).digest()
                if hashed in known:
                    continue
                known.add(hashed)
                digest.update(data)
                files.append(name)
                yield encode(content)

    splits = {}
    for split in parts:
        files: list[str] = []
        places = write_split(folder, split, documents(split, files), vocabulary)
        splits[split] = {**places, "files": files}
    return splits, digest.hexdigest()


def open_splits(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """What `corpus.json` says, and by split the tokens [N] and the positions at which documents or files start.

    Raises a ValueError, which says what to delete, if the folder is damaged.
    """
    try:
        described = read_json(folder / "corpus.json")
        splits: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for split, places in described["splits"].items():
            file = folder / f"{split}.tokens"
            dtype = np.dtype(places["dtype"])
            found = file.stat().st_size / dtype.itemsize
            if found != places["tokens"]:
                raise ValueError(f"{file.name}: expected {places['tokens']} tokens, got {found:.15g}")
            tokens = np.memmap(file, dtype, "r")
            splits[split] = (tokens, np.array(places["starts"], np.int64))
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged; delete it: {error}") from error
    return described, splits
