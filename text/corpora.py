"""Where text comes from: Enwik8, WikiText-103, PG-19, any folder, or what every machine has, Python's own source.

A corpus is three lists of documents; of equal files one counts, so that none is in two lists. Which document is in
which list depends on nothing but names and sizes. `prepare` turns it into memory-mapped files of tokens, built once and
keyed by their content.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import sysconfig
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learner.checkpoints import write_json
from learner.files import read_json
from text import tokenization
from text.tokenization import Tokenizer

SPLITS = ("train", "valid", "test")
SHARES = (0.90, 0.05, 0.05)
"""Of Enwik8: 90, 5 and 5 MB; of other corpora that have no splits of their own, too."""
FEW = 20
"""With fewer files than this, each is cut into the three splits; with more, whole files go to one of them."""
PG19_WORDS = {"train": (28_602, 1_973_136_207), "valid": (50, 3_007_061), "test": (100, 6_966_499)}
"""Books and words of PG-19 (paper, Table 2): word-level perplexity must divide by exactly these. A split of so many
books is taken for PG-19's."""
_FORMAT = 1


class Document(NamedTuple):
    """A file, or a range of its bytes."""

    path: Path
    begin: int = 0
    end: int | None = None

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            ValueError: if the file is not UTF-8; says where.
        """
        return _read_utf8(self.path)[self.begin : self.end]


@lru_cache(maxsize=1)
def _read_utf8(path: Path) -> bytes:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole gzip file, got: {error}") from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}") from error
    return data


Corpus = dict[str, list[Document]]
"""Documents by split, in reading order."""


def python_source(path: Path | None = None) -> Corpus:
    """The standard library's source without its tests and tables, 9 MB; which text it is depends on the Python."""
    root = Path(path or sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}
    files = [file for file in sorted(root.rglob("*.py")) if not skipped & set(file.relative_to(root).parts)]
    return _split_files(root, files)


def enwik8(path: Path) -> Corpus:
    """The first 100 MB of Wikipedia: 90, 5 and 5 MB. A shorter beginning of it is cut in the same proportions."""
    file = path / "enwik8" if path.is_dir() else path
    _require_file(file)
    size = len(_read_utf8(file))
    cuts = [0, round(size * SHARES[0]), round(size * (SHARES[0] + SHARES[1])), size]
    return {split: [Document(file, begin, end)] for split, begin, end in zip(SPLITS, cuts, cuts[1:])}


def wikitext103(path: Path) -> Corpus:
    """WikiText-103 as `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens` in a folder."""
    files = {split: path / f"wiki.{split}.tokens" for split in SPLITS}
    for file in files.values():
        _require_file(file)
    return _own_splits({split: [file] for split, file in files.items()})


def pg19(path: Path) -> Corpus:
    """PG-19's layout: folders train, validation and test of books ID.txt, and metadata.csv, which knows them all.

    All books count, for the prescribed words are those of all; but what is in validation or test is not trained on.
    """
    titles = read_metadata(path / "metadata.csv")
    files = {}
    for split, folder in zip(SPLITS, ("train", "validation", "test")):
        books = sorted((path / folder).glob("*.txt"), key=lambda file: (len(file.stem), file.stem))
        if not books:
            raise ValueError(f"{path / folder}: expected books, ID.txt, found none")
        for file in books:
            _require_file(file)
        unknown = [file.stem for file in books if file.stem not in titles]
        if unknown:
            raise ValueError(f"{path / 'metadata.csv'}: expected a row for book {unknown[0]} of {folder}, found none")
        files[split] = books
    held_out = {file: file.read_bytes() for split in ("valid", "test") for file in files[split]}
    for file, text in held_out.items():
        if not text.strip():
            raise ValueError(f"{file}: expected the text of a book, found none; fetch it again, or remove it")
    sizes = {len(text) for text in held_out.values()}
    texts = set(held_out.values())
    files["train"] = [
        file for file in files["train"] if file.stat().st_size not in sizes or file.read_bytes() not in texts
    ]
    return {split: [Document(file) for file in books] for split, books in files.items()}


def read_metadata(path: Path) -> dict[str, str]:
    """Titles of PG-19's books by id, of rows `id,title,year,url` without a header.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a row has other columns, or the file is damaged.
    """
    _require_file(path)
    titles, text = {}, _read_utf8.__wrapped__(path).decode()  # not kept: it is read once
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
            if len(row) != 4 or not row[0].isdigit():
                raise ValueError(f"{path}, row {number}: expected id,title,year,url, got {','.join(row)!r:.60}")
            titles[row[0]] = row[1]
    except csv.Error as error:
        raise ValueError(f"{path}: expected rows of id,title,year,url, got: {error}") from error
    return titles


def folder(path: Path) -> Corpus:
    """All text files in a folder and below it, hidden ones excepted; or one file.

    Folders and files directly in it that are named after splits, between dots (train, validation, test.txt,
    wiki.valid.tokens), are taken for them, and all else is left out. Where there is no training
    split, files are shared out by a hash of their names.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if only some of the splits are there: what the others are is not for us to guess.
    """
    if path.is_file():
        return _split_files(path.parent, [path])
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of text, found none")
    named: dict[str, list[Path]] = {}
    for entry in sorted(path.glob("[!.]*")):
        if entry.is_file() and entry.suffix not in _TEXT_SUFFIXES:  # train.py is a program
            continue
        splits = [_SPLIT_NAMES[part] for part in entry.name.lower().split(".") if part in _SPLIT_NAMES]
        if splits:
            named.setdefault(splits[0], []).append(entry)
    if "train" not in named:  # programs have folders named test and dev
        return _split_files(path, _text_files(path))
    if missing := [split for split in SPLITS if split not in named]:
        found = " and ".join(entries[0].name for entries in named.values())
        expected = "all of train, valid (or validation, val, dev) and test, or none of them"
        raise ValueError(f"{path}: expected {expected}, found {found} but no {' and no '.join(missing)}")
    return _own_splits({split: [file for entry in named[split] for file in _text_files(entry)] for split in SPLITS})


_TEXT_SUFFIXES = ("", ".txt", ".text", ".tokens", ".raw", ".md", ".gz")
_SPLIT_NAMES = {
    "train": "train",
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    "test": "test",
}


def _text_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    files = (file for file in sorted(root.rglob("*")) if file.is_file())
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a file, found none")


def _distinct(files: list[Path]) -> list[Path]:
    """Those that are neither empty nor equal to one before; read are only those of the same size."""
    sizes = {file: file.stat().st_size for file in files}
    alike = Counter(sizes.values())
    contents: dict[bytes | Path, Path] = {}
    for file, size in sizes.items():
        if size:
            contents.setdefault(hashlib.sha256(file.read_bytes()).digest() if alike[size] > 1 else file, file)
    return list(contents.values())


def _own_splits(files: dict[str, list[Path]]) -> Corpus:
    """Of equal files one in test is kept, else one in valid: what is held out stays whole and is never trained on."""
    kept = set(_distinct([file for split in reversed(SPLITS) for file in files[split]]))
    return {split: [Document(file) for file in files[split] if file in kept] for split in SPLITS}


def _split_files(root: Path, files: list[Path]) -> Corpus:
    """Shares out files by a hash of their names; few files are cut instead, at line ends. Equal files count once."""
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
    shuffled = sorted(kept, key=lambda file: hashlib.sha256(os.fsencode(file.relative_to(root))).digest())
    for file in shuffled:
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
"""Names at Hugging Face: not the raw WikiText, and PG-19 as parquet (the original is a script, which is not run)."""


def cache_folder() -> Path:
    """Where token files and downloads are kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / "text"


def load(name: str, path: Path | None = None, cache: Path | None = None) -> Corpus:
    """A corpus: at a path if one is given, else downloaded (once) where that is possible.

    Raises:
        FileNotFoundError, ValueError: if there is none, it is empty, or it has another layout; says what was expected.
        ImportError: if downloading needs a package that is not installed.
    """
    if name not in CORPORA:
        raise ValueError(f"corpus: expected one of {', '.join(CORPORA)}, got {name!r}")
    if path is None and name in DOWNLOADS:
        path = download(name, (cache or cache_folder()) / (DOWNLOADS[name][1] or name))
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


def download(name: str, target: Path) -> Path:
    """Writes a corpus that Hugging Face `datasets` can load as files in the layout above; does nothing if it is there.

    Raises:
        ImportError: if `datasets` is not installed.
        ValueError: if it cannot be downloaded.
    """
    if target.exists():
        return target
    hint = f"or give a folder that has it: --path (see docs/text.md), or --corpus python, which needs no {name}"
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{name} is downloaded with the extra `text` (pip install -e '.[text]'), {hint}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{name}.", suffix=".tmp"))
    try:
        repository, configuration = DOWNLOADS[name]
        splits = datasets.load_dataset(repository, configuration)
        (_write_books if name == "pg19" else _write_articles)(splits, temporary)
        temporary.rename(target)
    except Exception as error:  # each layer below has its own
        if target.exists():
            return target  # another process was faster
        raise ValueError(f"{name} cannot be downloaded ({type(error).__name__}: {error!s:.200}); {hint}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write_articles(splits: Any, target: Path) -> None:
    for split, name in zip(SPLITS, ("train", "validation", "test")):
        with (target / f"wiki.{split}.tokens").open("w") as file:
            file.writelines(row["text"] or " \n" for row in splits[name])  # blank lines, which count, are "" there


def _write_books(splits: Any, target: Path) -> None:
    with (target / "metadata.csv").open("w", newline="") as metadata:
        rows = csv.writer(metadata)
        for name in ("train", "validation", "test"):
            (target / name).mkdir()
            for book in splits[name]:
                number = book["url"].rstrip("/").rpartition("/")[2].partition(".")[0].removeprefix("pg")
                rows.writerow([number, book["short_book_title"], book["publication_date"], book["url"]])
                (target / name / f"{number}.txt").write_text(book["text"])


class Split(NamedTuple):
    """tokens: [N] memory-mapped, every document behind a separator. starts: positions of the separators. documents,
    bytes, words: of the text itself, words as what white space separates. prescribed: whether words are what the data
    set prescribes instead (PG-19), whatever the tokens are."""

    tokens: np.ndarray
    starts: np.ndarray
    documents: int
    bytes: int
    words: int
    prescribed: bool = False


class Tokens(NamedTuple):
    """A corpus as tokens. digest: of its text, splits and tokenizer."""

    tokenizer: Tokenizer
    splits: dict[str, Split]
    digest: str


def prepare(
    name: str, corpus: Corpus, kind: str = "bytes", vocabulary: int | None = None, cache: Path | None = None
) -> tuple[Path, Tokens]:
    """Makes the token files of a corpus, or finds them; any number of processes may do so at once.

    Args:
        name, corpus: see `load`.
        kind, vocabulary: see `tokenization.learn`; learned of the split train alone.
        cache: where they are kept, in a folder named by their content.

    Returns:
        that folder, for `open_tokens` in other processes, and what is in it.

    Raises:
        ValueError: if a file is not UTF-8 or a split is empty, or the tokenizer is impossible.
        ImportError: if the tokenizer needs a package that is not installed.
        OSError: if the cache cannot be written to.
    """
    digest = _digest(name, corpus, kind, vocabulary)
    target = (cache or cache_folder()) / "tokens" / digest[:32]
    if not target.exists():
        tokenizer = tokenization.learn(kind, (document.read() for document in corpus["train"]), vocabulary)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, suffix=".tmp"))
        try:
            sizes = {split: _write(temporary / split, corpus[split], tokenizer) for split in SPLITS}
            write_json(temporary / "tokenizer.json", tokenizer.to_plain())
            write_json(temporary / "corpus.json", {"corpus": name, "digest": digest, "splits": sizes})
            with suppress(OSError):  # another process was faster, with the same
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target, open_tokens(target)


def open_tokens(target: Path) -> Tokens:
    """The token files in a folder that `prepare` made.

    Raises:
        ValueError: if one of them is damaged or missing; says which.
        ImportError: if the tokenizer needs a package that is not installed.
    """
    try:
        described = read_json(target / "corpus.json")
        tokenizer = tokenization.from_plain(read_json(target / "tokenizer.json"))
        splits = {split: _open(target / split, sizes, tokenizer) for split, sizes in described["splits"].items()}
        for split, (books, words) in PG19_WORDS.items() if described["corpus"] == "pg19" else ():
            if splits[split].documents == books:
                splits[split] = splits[split]._replace(words=words, prescribed=True)
        return Tokens(tokenizer, splits, described["digest"])
    except (FileNotFoundError, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{target} is damaged; delete it: {error}") from error


def _open(path: Path, sizes: dict[str, int], tokenizer: Tokenizer) -> Split:
    file, dtype = path.with_name(f"{path.name}.tokens"), _dtype(tokenizer)
    found = file.stat().st_size / dtype.itemsize
    if found != sizes["tokens"]:
        raise ValueError(f"{file.name}: expected {sizes['tokens']} tokens, got {found:.15g}")
    starts = np.load(path.with_name(f"{path.name}.starts.npy"))
    return Split(np.memmap(file, dtype, "r"), starts, sizes["documents"], sizes["bytes"], sizes["words"])


def _digest(name: str, corpus: Corpus, kind: str, vocabulary: int | None) -> str:
    digest = hashlib.sha256(json.dumps([_FORMAT, name, kind, vocabulary]).encode())
    for split in SPLITS:
        for document in corpus[split]:
            data = document.read()
            digest.update(f"{split} {len(data)} ".encode() + hashlib.sha256(data).digest())
    return digest.hexdigest()


def _write(target: Path, documents: list[Document], tokenizer: Tokenizer) -> dict[str, int]:
    dtype, starts, position, sizes = _dtype(tokenizer), [], 0, {"documents": 0, "bytes": 0, "words": 0}
    with target.with_name(f"{target.name}.tokens").open("wb") as file:
        for document in documents:
            text = document.read()
            tokens = tokenizer.encode(text)
            file.write(np.array([tokenizer.separator], dtype).tobytes() + tokens.astype(dtype).tobytes())
            starts.append(position)
            position += 1 + len(tokens)
            sizes["documents"] += 1
            sizes["bytes"] += len(text)
            sizes["words"] += len(text.split())
        file.flush()
        os.fsync(file.fileno())
    if not sizes["bytes"]:
        raise ValueError(f"{documents[0].path.parent}: expected text for {target.name}, found 0 bytes")
    np.save(target.with_name(f"{target.name}.starts.npy"), np.array(starts, np.int64))
    return sizes | {"tokens": position}


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.min_scalar_type(tokenizer.vocabulary - 1))
