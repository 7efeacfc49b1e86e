"""Corpora as memory-mapped files of tokens, which are written once and named by a hash of their content."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learner.files import build_once, cache_folder, read_json, write_json
from text import tokenization
from text.corpora import SPLITS, Corpus, Document
from text.tokenization import Tokenizer

PG19_WORDS = {"train": (28_602, 1_973_136_207), "valid": (50, 3_007_061), "test": (100, 6_966_499)}
"""Books and words of PG-19 (paper, Table 2). Word-level perplexity must divide by exactly these words. A split with
exactly so many books is taken for PG-19's."""
_FORMAT = 1


class Split(NamedTuple):
    """A split of a corpus.

    tokens: [N] memory-mapped; a separator stands before every document. starts: positions of the separators.
    documents, bytes, words: of the text itself; words are separated by white space. prescribed: whether `words` is the
    number that the data set prescribes instead (PG-19).
    """

    tokens: np.ndarray
    starts: np.ndarray
    documents: int
    bytes: int
    words: int
    prescribed: bool = False

    def first(self, tokens: int | None) -> "Split":
        """The first tokens of the split. Its bytes and words are proportional, so measures that use them are
        estimates."""
        if tokens is None or tokens >= len(self.tokens):
            return self
        share, starts = tokens / len(self.tokens), self.starts[self.starts < tokens]
        sizes = len(starts), round(self.bytes * share), round(self.words * share)
        return Split(self.tokens[:tokens], starts, *sizes, self.prescribed)


class Tokens(NamedTuple):
    """A corpus as tokens. digest: SHA-256 of its text, splits and tokenizer."""

    tokenizer: Tokenizer
    splits: dict[str, Split]
    digest: str


def prepare(
    name: str,
    corpus: Corpus,
    kind: str = "bytes",
    vocabulary: int | None = None,
    cache: Path | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Writes the token files of a corpus unless they exist, and returns their folder, for `open_tokens`.

    Args:
        name, corpus: see `corpora.load`.
        kind, vocabulary: see `tokenization.learn`; the tokenizer is learned from the training split alone.
        cache: parent of the folder.
        show: is called with the number of documents done, and of all.

    Raises:
        ValueError: if a file is not UTF-8, a split is empty, or the tokenizer is impossible.
        ImportError: if the tokenizer needs a package that is not installed.
        OSError: if the cache cannot be written to.
    """
    digest = _digest(name, corpus, kind, vocabulary)

    def build(folder: Path) -> None:
        tokenizer = tokenization.learn(kind, (document.read() for document in corpus["train"]), vocabulary)
        done, total = 0, sum(map(len, corpus.values()))

        def next_document() -> None:
            nonlocal done
            show(done := done + 1, total)

        sizes = {split: _write(folder / split, corpus[split], tokenizer, next_document) for split in SPLITS}
        write_json(folder / "tokenizer.json", tokenizer.to_plain())
        write_json(folder / "corpus.json", {"corpus": name, "digest": digest, "splits": sizes})

    target = (cache or cache_folder("text")) / "tokens" / digest[:32]
    build_once(target, build)
    return target


def open_tokens(folder: Path) -> Tokens:
    """The token files in a folder that `prepare` wrote.

    Raises:
        ValueError: if one of them is damaged or missing; says which.
        ImportError: if the tokenizer needs a package that is not installed.
    """
    try:
        described = read_json(folder / "corpus.json")
        tokenizer = tokenization.from_plain(read_json(tokenizer_file(folder)))
        splits = {split: _open(folder / split, sizes, tokenizer) for split, sizes in described["splits"].items()}
        for split, (books, words) in PG19_WORDS.items() if described["corpus"] == "pg19" else ():
            if splits[split].documents == books:
                splits[split] = splits[split]._replace(words=words, prescribed=True)
        return Tokens(tokenizer, splits, described["digest"])
    except (FileNotFoundError, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{folder} is damaged; delete it: {error}") from error


def tokenizer_file(folder: Path) -> Path:
    """The file of the tokenizer in a run or in the cache; version 0.1 spelled its name otherwise."""
    old = folder / "tokeniser.json"
    return old if old.exists() and not (folder / "tokenizer.json").exists() else folder / "tokenizer.json"


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


def _write(
    target: Path, documents: list[Document], tokenizer: Tokenizer, next_document: Callable[[], None]
) -> dict[str, Any]:
    dtype, starts, position, sizes = _dtype(tokenizer), [], 0, {"documents": 0, "bytes": 0, "words": 0}
    with target.with_name(f"{target.name}.tokens").open("wb") as file:
        for document in documents:
            text = document.read()
            tokens = tokenizer.encode(text)
            file.write(np.array([tokenizer.separator], dtype).tobytes() + tokens.astype(dtype).tobytes())
            starts.append(position)
            position += 1 + len(tokens)
            for name, size in {"documents": 1, "bytes": len(text), "words": len(text.split())}.items():
                sizes[name] += size
            next_document()
        file.flush()
        os.fsync(file.fileno())
    if not sizes["bytes"]:
        raise ValueError(f"{documents[0].path.parent}: expected text for {target.name}, found 0 bytes")
    np.save(target.with_name(f"{target.name}.starts.npy"), np.array(starts, np.int64))
    return sizes | {"tokens": position}


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.min_scalar_type(tokenizer.vocabulary - 1))
