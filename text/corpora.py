"""Corpora of text as lists of documents: Enwik8, WikiText-103, PG-19, any folder, or Python's own source.

A corpus has three splits. Of equal files only one is used, so that no text is in two splits. The split of a document
depends only on names and sizes. `text.tokens` turns a corpus into files of tokens.
"""

import gzip
import hashlib
import os
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from learner.files import build_once, cache_folder, import_extra

SPLITS = ("train", "valid", "test")
SHARES = (0.90, 0.05, 0.05)
"""Sizes of the splits of Enwik8 (90, 5 and 5 MB) and of corpora without splits of their own."""
FEW = 20
"""If there are fewer files than this, each file is cut into the three splits."""


class Document(NamedTuple):
    """A file, or a range of its bytes."""

    path: Path
    begin: int = 0
    end: int | None = None

    def read(self) -> bytes:
        """Returns the bytes. Raises a ValueError that names the place if the file is not UTF-8."""
        return _read_utf8(self.path)[self.begin : self.end]


Corpus = dict[str, list[Document]]
"""Documents by split, in reading order."""


@lru_cache(maxsize=1)
def _read_utf8(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a file, found none")
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole gzip file, got: {error}") from error
    return data


def python_source(path: Path | None = None) -> Corpus:
    """The standard library's source without tests and tables, 9 MB; the text depends on the version of Python."""
    root = Path(path or sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}
    files = [file for file in sorted(root.rglob("*.py")) if not skipped & set(file.relative_to(root).parts)]
    return _split_files(root, files)


def enwik8(path: Path) -> Corpus:
    """The first 100 MB of Wikipedia: 90, 5 and 5 MB. A shorter beginning of it is cut in the same proportions."""
    file = path / "enwik8" if path.is_dir() else path
    size = len(_read_utf8(file))
    cuts = [0, round(size * SHARES[0]), round(size * (SHARES[0] + SHARES[1])), size]
    return {split: [Document(file, begin, end)] for split, begin, end in zip(SPLITS, cuts, cuts[1:])}


def wikitext103(path: Path) -> Corpus:
    """WikiText-103 as `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens` in a folder."""
    return _own_splits({split: [path / f"wiki.{split}.tokens"] for split in SPLITS})


def pg19(path: Path) -> Corpus:
    """PG-19: folders train, validation and test of books ID.txt.

    Equal books of validation and test all count, because the prescribed numbers of words include them. Books of train
    that are also in validation or test are left out.
    """
    files = {split: _text_files(path / name, "*.txt") for split, name in zip(SPLITS, ("train", "validation", "test"))}
    held_out = {file: file.read_bytes() for split in ("valid", "test") for file in files[split]}
    for file, text in held_out.items():
        if not text.strip():
            raise ValueError(f"{file}: expected the text of a book, found none; fetch it again, or remove it")
    sizes, texts = {len(text) for text in held_out.values()}, set(held_out.values())
    files["train"] = [
        file for file in files["train"] if file.stat().st_size not in sizes or file.read_bytes() not in texts
    ]
    return {
        split: [Document(book) for book in sorted(books, key=lambda book: (len(book.stem), book.stem))]
        for split, books in files.items()
    }


def folder(path: Path) -> Corpus:
    """All text files in a folder and below it, except hidden ones; or one file.

    Folders and files directly in it that are named after splits, between dots (train, validation, test.txt,
    wiki.valid.tokens), are the splits, and all other files are left out. Without a training split, files are
    distributed by a hash of their names.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if there is a training split, but another one is missing.
    """
    if path.is_file():
        return _split_files(path.parent, [path])
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of text, found none")
    named: dict[str, list[Path]] = {}
    for entry in sorted(path.glob("[!.]*")):
        if entry.is_file() and entry.suffix not in _TEXT_SUFFIXES:  # train.py is a program
            continue
        if splits := [_SPLIT_NAMES[part] for part in entry.name.lower().split(".") if part in _SPLIT_NAMES]:
            named.setdefault(splits[0], []).append(entry)
    if "train" not in named:  # programs have folders named test and dev
        return _split_files(path, _text_files(path))
    if missing := [split for split in SPLITS if split not in named]:
        found = " and ".join(entries[0].name for entries in named.values())
        expected = "all of train, valid (or validation, val, dev) and test, or none of them"
        raise ValueError(f"{path}: expected {expected}, found {found} but no {' and no '.join(missing)}")
    return _own_splits({split: [file for entry in named[split] for file in _text_files(entry)] for split in SPLITS})


_TEXT_SUFFIXES = ("", ".txt", ".text", ".tokens", ".raw", ".md", ".gz")
_SPLIT_NAMES = {"train": "train", **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"), "test": "test"}


def _text_files(root: Path, pattern: str = "*") -> list[Path]:
    """The files below a folder that are not hidden; or the one file."""
    if root.is_file():
        return [root]
    files = (file for file in sorted(root.rglob(pattern)) if file.is_file())
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]


def _distinct(files: Iterable[Path]) -> list[Path]:
    """The files without empty ones and without copies of earlier ones; reads only files of equal size."""
    sizes = {file: file.stat().st_size for file in files}
    counts = Counter(sizes.values())
    contents: dict[bytes | Path, Path] = {}
    for file, size in sizes.items():
        if size:
            contents.setdefault(hashlib.sha256(file.read_bytes()).digest() if counts[size] > 1 else file, file)
    return list(contents.values())


def _own_splits(files: dict[str, list[Path]]) -> Corpus:
    """Keeps one of equal files, in test rather than valid, and in valid rather than train: never trains on held-out
    text."""
    kept = set(_distinct(file for split in reversed(SPLITS) for file in files[split]))
    return {split: [Document(file) for file in files[split] if file in kept] for split in SPLITS}


def _split_files(root: Path, files: list[Path]) -> Corpus:
    """Distributes files by a hash of their names. If there are few, cuts each of them at line ends instead."""
    corpus: Corpus = {split: [] for split in SPLITS}
    kept = _distinct(files)
    if len(kept) < FEW:
        for file in kept:
            data = _read_utf8(file)
            cuts = [0]
            for share in (SHARES[0], SHARES[0] + SHARES[1]):
                cuts.append(data.find(b"\n", round(share * len(data))) + 1 or len(data))
            for split, begin, end in zip(SPLITS, cuts, [*cuts[1:], len(data)]):
                corpus[split].append(Document(file, begin, end))
        return corpus
    total = sum(file.stat().st_size for file in kept)
    room = {"test": SHARES[2] * total, "valid": SHARES[1] * total, "train": float("inf")}
    for file in sorted(kept, key=lambda file: hashlib.sha256(os.fsencode(file.relative_to(root))).digest()):
        split = next(split for split, left in room.items() if left > 0)
        room[split] -= file.stat().st_size
        corpus[split].append(Document(file))
    return {split: sorted(documents) for split, documents in corpus.items()}


CORPORA: dict[str, Callable[[Path], Corpus]] = {
    "python": python_source,
    "enwik8": enwik8,
    "wikitext103": wikitext103,
    "pg19": pg19,
    "folder": folder,
}
DOWNLOADS = {"wikitext103": ("Salesforce/wikitext", "wikitext-103-v1"), "pg19": ("emozilla/pg19", None)}
"""Names at Hugging Face. This PG-19 is in parquet; the original is a script, which is not run."""


def load(name: str, path: Path | None = None, cache: Path | None = None) -> Corpus:
    """One of `CORPORA`: at a path if one is given, else downloaded (once) where that is possible.

    Raises:
        FileNotFoundError, ValueError: if there is none, it is empty, or it has another layout; says what was expected.
        ImportError: if downloading needs a package that is not installed.
    """
    if path is None and name in DOWNLOADS:
        path = _download(name, (cache or cache_folder("text")) / (DOWNLOADS[name][1] or name))
    if path is None and name != "python":
        source = " (http://mattmahoney.net/dc/enwik8.zip, unpacked)" if name == "enwik8" else ""
        raise ValueError(f"path: expected where {name} is on this machine{source}, got none")
    if path is not None and not path.exists():
        raise FileNotFoundError(f"{path}: expected {name}, found nothing there")
    corpus = CORPORA[name](path)  # type: ignore[arg-type]
    for split, documents in corpus.items():
        if not documents:
            raise ValueError(f"{path or name}: expected text for {split}, found none of its own")
    return corpus


def _download(name: str, target: Path) -> Path:
    """Writes a corpus that Hugging Face `datasets` can load as files in the layout above, unless it is there."""
    if not target.exists():
        datasets = import_extra("datasets", "text", f"{name} is either on this machine (--path) or downloaded, which")
        try:
            build_once(target, lambda folder: _WRITERS[name](datasets.load_dataset(*DOWNLOADS[name]), folder))
        except Exception as error:  # each layer below has its own
            hint = "give its --path (see docs/text.md), or use --corpus python, which needs none"
            raise ValueError(f"{name} cannot be downloaded ({type(error).__name__}: {error!s:.200}); {hint}") from error
    return target


def _write_articles(splits: Any, target: Path) -> None:
    for split, name in zip(SPLITS, ("train", "validation", "test")):
        with (target / f"wiki.{split}.tokens").open("w") as file:
            file.writelines(row["text"] or " \n" for row in splits[name])  # blank lines count; they are "" there


def _write_books(splits: Any, target: Path) -> None:
    for name in ("train", "validation", "test"):
        (target / name).mkdir()
        for book in splits[name]:
            number = book["url"].rstrip("/").rpartition("/")[2].partition(".")[0].removeprefix("pg")
            (target / name / f"{number}.txt").write_text(book["text"])


_WRITERS = {"wikitext103": _write_articles, "pg19": _write_books}
