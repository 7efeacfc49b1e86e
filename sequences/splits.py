"""Which files and folders are the splits of a corpus, told by their names. No text is read here."""

import re
import warnings
from pathlib import Path

SPLITS = ("train", "valid", "test")
_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_ANY = "|".join(_NAMES)
_HINT = re.compile(rf"({_ANY})[-_ ].*|.*[-_ ]({_ANY})")
_PROGRAMS = frozenset(
    (
        *(".py", ".pyi", ".pyx", ".ipynb", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".kt"),
        *(".scala", ".swift", ".js", ".mjs", ".jsx", ".tsx", ".rb", ".php", ".lua", ".jl", ".r", ".sh", ".bash"),
        *(".bat", ".ps1", ".yaml", ".yml", ".toml", ".cfg", ".ini"),
    )
)
"""Suffixes of programs and their settings. Those that are languages, too (train.pl, train.cs), are taken for text."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is not data.

    Names with a dot at the front are those of trash, of version control, and of what macOS keeps beside each file
    (`._a.wav`; in archives, below `__MACOSX`). A tilde at the end marks an editor's copy of an older version.
    """
    return name.startswith(".") or name.endswith("~") or name == "__MACOSX"


def named_splits(folder: Path) -> dict[str, list[Path]]:
    """Files and folders directly in a folder by the split that they are named after; empty if it has no splits.

    A part between dots that is the name of a split says so surely: train.jsonl, wiki.valid.tokens, test. A name that
    only begins or ends with one, such as train-00001.txt or dev-v2.0.json, counts if there are names of a training and
    of a held-out split, because a book may be called test-of-faith.txt. Programs are no splits (train.py), nor are
    folders such as test without any train, because programs have them; a warning says so.

    The caller refuses what is not all of `SPLITS`.
    """
    sure: dict[str, list[Path]] = {}
    hinted: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if is_hidden(entry.name) or _is_program(entry):
            continue
        split = _split_named(entry.name)
        if split:
            sure.setdefault(split, []).append(entry)
        else:
            split = _split_hinted(entry.name)
        if split:
            hinted.setdefault(split, []).append(entry)  # sure ones, too

    if len(sure) == len(SPLITS):
        return sure
    if "train" in hinted and len(hinted) > 1:
        return hinted
    any_file = any(entry.is_file() for entries in sure.values() for entry in entries)
    if "train" in sure or any_file:
        return sure
    for split, entries in hinted.items():
        if split != "train":
            _warn(f"{entries[0]} is no split, because there is none for training; its text is divided like all other")
    return {}


def require_no_splits_below(root: Path, files: list[Path]) -> None:
    """Raises a ValueError if a folder between the root and the files has splits, whose texts would be mixed."""
    splits: dict[Path, set[str]] = {}
    for file in files:
        if _is_program(file):
            continue
        # The file, and the folders that it is in, below the root.
        depth = len(file.relative_to(root).parts)
        for entry in [file, *file.parents][:depth]:
            split = _split_named(entry.name)
            if split:
                splits.setdefault(entry.parent, set()).add(split)
    for folder, found in splits.items():
        if "train" in found and len(found) > 1:
            names = " and ".join(split for split in SPLITS if split in found)
            raise ValueError(f"{root}: expected splits in it or none at all, found {names} in {folder}; give that path")


def warn_of_splits(root: Path, files: list[Path]) -> None:
    """Warns if files, or folders that they are in, are named after splits, for corpora that do not heed such names."""
    tops = sorted({path.relative_to(root).parts[0] for path in files})
    found: dict[str, str] = {}
    for name in tops:
        split = _split_named(name) or _split_hinted(name)
        if split:
            found[split] = name
    if "train" in found and len(found) > 1:
        names = " and ".join(found[split] for split in SPLITS if split in found)
        _warn(f"{root}: {names} are no splits here, all files are divided; for some of them, give another path")


def _warn(told: str) -> None:
    """Warns in text that can be printed: names of files need not be UTF-8."""
    warnings.warn(told.encode(errors="backslashreplace").decode(), stacklevel=3)


def _split_named(name: str) -> str | None:
    """The split of which a part between dots is the name."""
    for part in name.lower().split("."):
        if part in _NAMES:
            return _NAMES[part]
    return None


def _split_hinted(name: str) -> str | None:
    """The split with whose name a part between dots begins or ends."""
    for part in name.lower().split("."):
        found = _HINT.fullmatch(part)
        if found:
            at_begin, at_end = found.groups()
            return _NAMES[at_begin or at_end]
    return None


def _is_program(path: Path) -> bool:
    return path.suffix.lower() in _PROGRAMS and not path.is_dir()
