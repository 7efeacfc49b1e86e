"""Corpora as files of tokens, which are written once and named by a hash of their content."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sequences.prepared import open_splits, write_split
from sequences.text import tokenization
from sequences.text.corpora import SPLITS, Corpus, Document, forget_text
from sequences.text.tokenization import Tokenizer
from storage.files import build_once, cache_folder, write_json

PG19_WORDS = {"train": (28_602, 1_973_136_207), "valid": (50, 3_007_061), "test": (100, 6_966_499)}
"""Books and words of PG-19 (paper, Table 2). Word-level perplexity must divide by exactly these words. A split with
exactly so many books is taken for PG-19's."""
_FORMATS = {"bytes": 1, "words": 2, "subwords": 2}
"""By kind of tokens; raised when the same text becomes other tokens."""


class Split(NamedTuple):
    """A split of a corpus.

    Attributes:
        tokens: [N] memory-mapped; a separator stands before every document.
        starts: positions of the separators.
        bytes: of the text itself.
        words: of the text itself, separated by white space; or the number that the data set prescribes (PG-19).
        prescribed: whether `words` is such a number.
    """

    tokens: np.ndarray
    starts: np.ndarray
    bytes: int
    words: int
    prescribed: bool = False

    def first(self, tokens: int | None) -> "Split":
        """The first tokens of the split. Its bytes and words are proportional, so measures that use them are
        estimates."""
        if tokens is None or tokens >= len(self.tokens):
            return self
        share = tokens / len(self.tokens)
        return Split(
            tokens=self.tokens[:tokens],
            starts=self.starts[self.starts < tokens],
            bytes=round(self.bytes * share),
            words=round(self.words * share),
            prescribed=self.prescribed,
        )


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
        ValueError: if a file is not UTF-8, or a split is empty.
        ImportError: if the tokenizer needs a package that is not installed.
        OSError: if the cache cannot be written to.
    """
    digest = _digest(name, corpus, kind, vocabulary)
    numbers = count(1)
    total = sum(map(len, corpus.values()))

    def build(folder: Path) -> None:
        training_texts = (document.read() for document in corpus["train"])
        tokenizer = tokenization.learn(kind, training_texts, vocabulary)

        def encoded(documents: list[Document], sizes: Counter[str]) -> Iterator[np.ndarray]:
            """The tokens of each document, after a separator; adds the bytes and words of their texts to `sizes`."""
            for document in documents:
                text = document.read()
                sizes.update(bytes=len(text), words=tokenization.count_words(text))
                tokens = tokenizer.encode(text)
                separator = np.array([tokenizer.separator], tokens.dtype)
                yield np.concatenate([separator, tokens])
                show(next(numbers), total)

        splits = {}
        for split in SPLITS:
            sizes = Counter(bytes=0, words=0)
            places = write_split(folder, split, encoded(corpus[split], sizes), tokenizer.vocabulary)
            if not sizes["bytes"]:
                raise ValueError(f"{corpus[split][0].path.parent}: expected text for {split}, found 0 bytes")
            splits[split] = places | sizes
        described = {"corpus": name, "digest": digest, "tokenizer": tokenizer.to_plain(), "splits": splits}
        write_json(folder / "corpus.json", described)

    target = (cache or cache_folder("text")) / f"{name}-{digest[:32]}"
    try:
        build_once(target, build)
    finally:
        forget_text()
    return target


def open_tokens(folder: Path) -> Tokens:
    """The token files in a folder that `prepare` wrote.

    Raises:
        ValueError: if one of them is damaged or missing; says which.
        ImportError: if the tokenizer needs a package that is not installed.
    """
    described, arrays = open_splits(folder)
    splits = {}
    for split, (tokens, starts) in arrays.items():
        sizes = described["splits"][split]
        books, words = PG19_WORDS[split]
        is_prescribed = described["corpus"] == "pg19" and len(starts) == books
        if not is_prescribed:
            words = sizes["words"]
        splits[split] = Split(tokens, starts, sizes["bytes"], words, is_prescribed)
    return Tokens(tokenization.from_plain(described["tokenizer"]), splits, described["digest"])


def _digest(name: str, corpus: Corpus, kind: str, vocabulary: int | None) -> str:
    """SHA-256 of all that the token files depend on."""
    options = json.dumps([_FORMATS[kind], name, kind, vocabulary])
    digest = hashlib.sha256(options.encode())
    for split in SPLITS:
        for document in corpus[split]:
            data = document.read()
            digest.update(f"{split} {len(data)} ".encode())
            digest.update(hashlib.sha256(data).digest())
            # Until November 2026 this became a separator. The other texts keep their digest, as runs on them need it.
            if kind == "subwords" and tokenization.DOCUMENT.encode() in data:
                digest.update(b"text")
    return digest.hexdigest()
