"""Prepared data: folders with a memory-mapped file of tokens for each split, described by `corpus.json`.

They are written once, as a whole, with `storage.files.build_once`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage.files import flush, read_json


def divide(sizes: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """Names by split, for data without splits of their own.

    Names are taken in the order of their digests, which is the same everywhere: for each split of `shares` until it has
    that share of the sum of `sizes`, but at least one; the others, at least one, are the split "train".
    """
    left, total = sorted(sizes, key=digest_of), sum(sizes.values())
    parts: dict[str, list[str]] = {}
    for number, (split, share) in enumerate(shares.items()):
        parts[split] = []
        # At least one is left for each of the splits that follow.
        while len(left) > len(shares) - number and (
            not parts[split] or sum(sizes[name] for name in parts[split]) < share * total
        ):
            parts[split].append(left.pop(0))
    return parts | {"train": left}


def visible_files(root: Path, pattern: str = "*") -> list[Path]:
    """The files below a folder whose paths below it match a pattern, in order, without hidden ones; see `is_hidden`."""
    files = (path for path in sorted(root.rglob(pattern)) if path.is_file())
    return [path for path in files if not any(map(is_hidden, path.relative_to(root).parts))]


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is not data.

    Names with a dot at the front are those of trash, of version control, and of what macOS keeps beside each file
    (`._a.wav`; in archives, below `__MACOSX`). A tilde at the end marks an editor's copy of an older version.
    """
    return name.startswith(".") or name.endswith("~") or name == "__MACOSX"


def digest_of(name: str) -> str:
    """SHA-256 of a name."""
    return hashlib.sha256(name.encode()).hexdigest()


def write_split(folder: Path, split: str, parts: Iterable[np.ndarray], vocabulary: int) -> dict[str, Any]:
    """Writes a split's documents or files, each an array of tokens; returns their places for `corpus.json`."""
    dtype, starts, length = np.min_scalar_type(vocabulary - 1), [], 0
    with (folder / f"{split}.tokens").open("wb") as file:
        for part in parts:
            file.write(part.astype(dtype, copy=False).tobytes())
            starts.append(length)
            length += len(part)
    flush(folder / f"{split}.tokens")
    return {"tokens": length, "dtype": dtype.name, "starts": starts}


def open_splits(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """What `corpus.json` says, and by split the tokens [N] and the positions at which documents or files start.

    Raises a ValueError, which says what to delete, if the folder is damaged.
    """
    try:
        described = read_json(folder / "corpus.json")
        splits: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for split, places in described["splits"].items():
            file, dtype = folder / f"{split}.tokens", np.dtype(places["dtype"])
            found = file.stat().st_size / dtype.itemsize
            if found != places["tokens"]:
                raise ValueError(f"{file.name}: expected {places['tokens']} tokens, got {found:.15g}")
            splits[split] = np.memmap(file, dtype, "r"), np.array(places["starts"], np.int64)
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged; delete it: {error}") from error
    return described, splits
