"""Corpora of text as lists of documents: Enwik8, WikiText-103, PG-19, any folder, or Python's own source.

A corpus has three splits. Of equal files only one is used, so that no text is in two splits. The split of a document
depends only on names and sizes. `sequences.text.tokens` turns a corpus into files of tokens.
"""

import codecs
import gzip
import hashlib
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sequences.prepared import LARGE, divide, name_below, visible_files
from sequences.splits import SPLITS, named_splits, require_no_splits_below
from storage.files import build_once, cache_folder, import_extra

SHARES = (0.90, 0.05, 0.05)
"""Sizes of the splits of Enwik8 (90, 5 and 5 MB) and of corpora without splits of their own."""
FEW = 20
"""If there are fewer files than this, each file is cut into the three splits, and else those that are large."""
FOLDERS = {"train": "train", "valid": "validation", "test": "test"}
"""Names of the splits at Hugging Face, and of the folders of PG-19."""


class Document(NamedTuple):
    """A file, or a range of its bytes. `is_beginning`: it may end inside a character."""

    path: Path
    begin: int = 0
    end: int | None = None
    is_beginning: bool = False

    def read(self) -> bytes:
        """Returns the bytes, without a byte order mark. Raises a ValueError that names the place if the file is not
        UTF-8."""
        return _read_utf8(self.path, self.is_beginning)[self.begin : self.end]


Corpus = dict[str, list[Document]]
"""Documents by split, in reading order."""


_OTHER_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # first, because it begins as UTF-16 does
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
"""Byte order marks of other encodings."""


def forget_text() -> None:
    """Frees the memory of the text that was read last."""
    _read_utf8.cache_clear()


@lru_cache(maxsize=1)
def _read_utf8(path: Path, is_beginning: bool = False) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a file, found none")
    data = path.read_bytes()
    if _is_zipped(path):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: expected a whole gzip file, got: {error}") from error

    for encoding, marks in _OTHER_MARKS.items():
        if data.startswith(marks):
            convert = f"convert it, such as with iconv -f {encoding} -t UTF-8"
            raise ValueError(f"{path}: expected UTF-8, got the byte order mark of {encoding}; {convert}")
    # Plain English in UTF-16 without a mark is valid UTF-8: every second byte is NUL.
    nul = data.count(0)
    if nul > len(data) / 4:
        raise ValueError(f"{path}: expected UTF-8, got {nul} NUL bytes of {len(data)}, as UTF-16 and binary files have")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_beginning)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}") from error
    return data.removeprefix(codecs.BOM_UTF8)


def _is_zipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def python_source(path: Path | None = None) -> Corpus:
    """The standard library's source without tests and tables, 9 MB; the text depends on the version of Python."""
    root = Path(path or sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}
    files = []
    for file in visible_files(root, "*.py"):
        folders = set(file.relative_to(root).parts)
        if not skipped & folders:
            files.append(file)
    return _split_files(root, files)


def enwik8(path: Path) -> Corpus:
    """The first 100 MB of Wikipedia: 90, 5 and 5 MB. A shorter beginning of it is cut in the same proportions."""
    file = path / "enwik8" if path.is_dir() else path
    size = len(_read_utf8(file, is_beginning=True))
    bounds = [0, round(size * SHARES[0]), round(size * (SHARES[0] + SHARES[1])), size]
    corpus = {}
    for split, (begin, end) in zip(SPLITS, pairwise(bounds)):
        corpus[split] = [Document(file, begin, end, is_beginning=True)]
    return corpus


def wikitext103(path: Path) -> Corpus:
    """WikiText-103 as `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens` in a folder."""
    names = {split: f"wiki.{split}.tokens" for split in SPLITS}
    for name in names.values():
        if not (path / name).is_file():
            expected = f"expected a folder with {', '.join(names.values())}"
            raise FileNotFoundError(f"{path}: {expected}, found no {name}")
    return _own_splits({split: [path / name] for split, name in names.items()})


def pg19(path: Path) -> Corpus:
    """PG-19: folders train, validation and test of books ID.txt.

    Equal books of validation and test all count, because the prescribed numbers of words include them. Books of train
    that are also in validation or test are left out.
    """
    books = {split: visible_files(path / name, "*.txt") for split, name in FOLDERS.items()}
    held_out: set[bytes] = set()
    for book in books["valid"] + books["test"]:
        text = book.read_bytes()
        if not text.strip():
            raise ValueError(f"{book}: expected the text of a book, found none; fetch it again, or remove it")
        held_out.add(text)
    for split, name in FOLDERS.items():
        if not books[split]:
            expected = f"expected books ID.txt in its folders {', '.join(FOLDERS.values())}"
            raise FileNotFoundError(f"{path}: {expected}, found none in {name}")

    # Only books of train that are as long as a held-out one need to be read.
    sizes = {len(text) for text in held_out}
    kept = []
    for book in books["train"]:
        may_be_held_out = book.stat().st_size in sizes
        if may_be_held_out and book.read_bytes() in held_out:
            continue
        kept.append(book)
    books["train"] = kept

    def number_order(book: Path) -> tuple[int, str]:
        """Sorts names that are numbers by these: 9.txt before 10.txt."""
        return len(book.stem), book.stem

    corpus = {}
    for split in SPLITS:
        corpus[split] = [Document(book) for book in sorted(books[split], key=number_order)]
    return corpus


def folder(path: Path) -> Corpus:
    """All text files in a folder and below it, except hidden ones; or one file.

    Folders and files directly in it that are named after splits are the splits, and all other files are left out; see
    `splits.named_splits`. Without such names, files are distributed by a hash of their names.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if there are names of splits, but not of all; or the splits are in a folder below.
    """
    if path.is_file():
        return _split_files(path.parent, [path])
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of text, found none")
    named = named_splits(path)
    if not named:
        files = visible_files(path)
        require_no_splits_below(path, files)
        return _split_files(path, files)
    missing = [split for split in SPLITS if split not in named]
    if missing:
        found = " and ".join(entries[0].name for entries in named.values())
        expected = "all of train, valid (or validation, val, dev) and test, or none of them"
        lacks = f"found {found} but no {' and no '.join(missing)}; rename what is no split"
        raise ValueError(f"{path}: expected {expected}, {lacks}")
    files_of_splits: dict[str, list[Path]] = {}
    for split in SPLITS:
        files_of_splits[split] = []
        for entry in named[split]:
            files_of_splits[split] += _files_of(entry)
    return _own_splits(files_of_splits)


def _files_of(entry: Path) -> list[Path]:
    """The files below a folder that are not hidden; or the one file."""
    if entry.is_file():
        return [entry]
    return visible_files(entry)


def _text_size(file: Path) -> int:
    """The size of a file's text in bytes."""
    if _is_zipped(file):
        return len(_read_utf8(file))
    mark = codecs.BOM_UTF8
    with file.open("rb") as opened:
        is_marked = opened.read(len(mark)) == mark
    size = file.stat().st_size
    if is_marked:
        size -= len(mark)
    return size


def _distinct(files: Iterable[Path]) -> list[Path]:
    """The files without empty ones and without copies of earlier ones; reads only files whose texts have equal size."""
    sizes = {file: _text_size(file) for file in files}
    files_of_size = Counter(sizes.values())
    kept = []
    known: set[bytes] = set()
    for file, size in sizes.items():
        if size == 0:
            continue
        # A text of a size that no other text has is no copy, and need not be read.
        if files_of_size[size] > 1:
            digest = hashlib.sha256(_read_utf8(file)).digest()
            if digest in known:
                continue
            known.add(digest)
        kept.append(file)
    return kept


def _own_splits(files: dict[str, list[Path]]) -> Corpus:
    """The documents of splits, with one of equal files: in test rather than valid, and in valid rather than train, so
    that nothing is trained on held-out text."""
    # Of equal files `_distinct` keeps the first one.
    by_priority = [*files["test"], *files["valid"], *files["train"]]
    kept = set(_distinct(by_priority))
    return {split: [Document(file) for file in files[split] if file in kept] for split in SPLITS}


def _split_files(root: Path, files: list[Path]) -> Corpus:
    """Distributes files by a hash of their names. Few files, and large ones, are cut instead; see `_cut`."""
    named = {name_below(root, file): file for file in _distinct(files)}
    sizes = {name: file.stat().st_size for name, file in named.items()}
    total = sum(sizes.values())
    corpus: Corpus = {split: [] for split in SPLITS}
    whole = {}
    for name, file in named.items():
        is_cut = len(named) < FEW or sizes[name] > LARGE * total
        if not is_cut:
            whole[name] = sizes[name]
            continue
        bounds = _cut(_read_utf8(file))
        for split, (begin, end) in zip(SPLITS, pairwise(bounds)):
            if begin < end:
                corpus[split].append(Document(file, begin, end))

    for split, names in divide(whole, {"test": SHARES[2], "valid": SHARES[1]}).items():
        corpus[split] += [Document(named[name]) for name in names]
    return {split: sorted(documents, key=lambda document: document.path) for split, documents in corpus.items()}


def _cut(data: bytes) -> list[int]:
    """The bounds [4] of the splits of a text: each begins after the first line end behind its share of the bytes.

    If no line ends there before the next split, as in a text of one line or of few long ones, white space is looked for
    instead; without any, the cut is between two characters. Lines end with a line feed or, without any, a carriage
    return.
    """
    size = len(data)
    shares = [round(SHARES[0] * size), round((SHARES[0] + SHARES[1]) * size), size]
    inner = [_cut_between(data, begin, following) for begin, following in pairwise(shares)]
    return [0, *inner, size]


_ENDS = [re.compile(end) for end in (rb"\n", rb"\r", rb"\s")]
"""After what a text may be cut, the best first."""


def _cut_between(data: bytes, begin: int, following: int) -> int:
    """The best place for a cut at `begin` or behind it, and before the next share; see `_cut`."""
    for end in _ENDS:
        found = end.search(data, begin, following - 1)
        if found:
            return found.end()
    # Bytes from 0x80 to 0xBF continue a character of UTF-8.
    while begin < len(data) and 0x80 <= data[begin] < 0xC0:
        begin += 1
    return begin


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
        _, subset = DOWNLOADS[name]
        downloads = cache or cache_folder("text")
        path = _download(name, downloads / (subset or name))
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

        def build(folder: Path) -> None:
            splits = datasets.load_dataset(*DOWNLOADS[name])
            _WRITERS[name](splits, folder)

        try:
            build_once(target, build)
        except Exception as error:  # each layer below has its own
            hint = "give its --path (see docs/text.md), or use --corpus python, which needs none"
            raise ValueError(f"{name} cannot be downloaded ({type(error).__name__}: {error!s:.200}); {hint}") from error
    return target


def _write_articles(splits: Any, target: Path) -> None:
    """Writes WikiText-103. Its blank lines count as tokens; in the download they are ""."""
    for split, name in FOLDERS.items():
        with (target / f"wiki.{split}.tokens").open("w") as file:
            for row in splits[name]:
                file.write(row["text"] or " \n")


def _write_books(splits: Any, target: Path) -> None:
    """Writes PG-19. The number at the end of a book's address, .../ebooks/10 or .../pg10.txt, becomes its name."""
    for name in FOLDERS.values():
        (target / name).mkdir()
        for book in splits[name]:
            file_name = book["url"].rstrip("/").rpartition("/")[2]
            number = file_name.partition(".")[0].removeprefix("pg")
            (target / name / f"{number}.txt").write_text(book["text"])


_WRITERS = {"wikitext103": _write_articles, "pg19": _write_books}
