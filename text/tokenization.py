"""Tokenizers: bytes, words of a closed vocabulary, or subwords that a library learns.

A tokenizer is learned from the training split alone and kept in a run as JSON.
"""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from learner.files import abbreviate

KINDS = ("bytes", "words", "subwords")
END, UNKNOWN, DOCUMENT = "<eos>", "<unk>", "<document>"


class Tokenizer(Protocol):
    """Tokens are 0 to `vocabulary` - 1; the token `separator` stands before every document."""

    vocabulary: int
    separator: int

    def encode(self, text: bytes) -> np.ndarray:
        """The tokens of UTF-8 text, [N] integers, without a separator."""

    def decoder(self) -> Callable[[int], str]:
        """A function from each token in turn to the text that it completes."""

    def to_plain(self) -> dict[str, Any]:
        """The tokenizer as JSON can hold it, for `from_plain`."""


class Bytes:
    """Each byte is a token; documents are separated by NUL, which does not occur in text."""

    vocabulary, separator = 256, 0

    def encode(self, text: bytes) -> np.ndarray:
        """See `Tokenizer`."""
        return np.frombuffer(text, np.uint8)

    def decoder(self) -> Callable[[int], str]:
        """See `Tokenizer`; invalid UTF-8 becomes the replacement character."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        return lambda token: decode(bytes([token]))

    def to_plain(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "bytes"}


class Words:
    """Words between white space, each line ended by `<eos>`, as WikiText-103 is used: there are 267,735 there.

    The most frequent words come first, as the adaptive softmax needs them. `<eos>` also separates documents. Words that
    are rare, or do not occur in the training split, are `<unk>`.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.index = {word: token for token, word in enumerate(words)}
        self.vocabulary, self.separator = len(words), self.index[END]
        self.unknown = self.index.get(UNKNOWN, self.separator)

    @classmethod
    def learn(cls, texts: Iterable[bytes], size: int | None = None) -> "Words":
        """All words of the texts, or the `size` most frequent ones with `<eos>` and `<unk>` among them."""
        counts = Counter(word for text in texts for word in _words(text))
        counts[UNKNOWN] += 0
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if size is None or size >= len(ranked):
            return cls(ranked)
        kept = [word for word in ranked if word not in (END, UNKNOWN)][: size - 2]
        return cls(sorted([*kept, END, UNKNOWN], key=lambda word: (-counts[word], word)))

    def encode(self, text: bytes) -> np.ndarray:
        """See `Tokenizer`."""
        return np.fromiter((self.index.get(word, self.unknown) for word in _words(text)), np.int64)

    def decoder(self) -> Callable[[int], str]:
        """See `Tokenizer`; words are separated by single spaces."""
        return lambda token: "\n" if token == self.separator else f"{self.words[token]} "

    def to_plain(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "words", "words": self.words}


def _words(text: bytes) -> Iterator[str]:
    lines = text.decode("utf-8", errors="replace").split("\n")
    for line in lines if lines[-1] else lines[:-1]:
        yield from line.split()
        yield END


class Subwords:
    """Byte-pair encoding of bytes by the library `tokenizers`: any text, without loss.

    The paper used the SubwordTextEncoder of tfds, which is not maintained; this is also an open vocabulary.
    """

    def __init__(self, model: str) -> None:
        library = _library()
        self.tokenizer = library.Tokenizer.from_str(model)
        self.vocabulary = self.tokenizer.get_vocab_size()
        self.separator = self.tokenizer.token_to_id(DOCUMENT)

    @classmethod
    def learn(cls, texts: Iterable[bytes], size: int | None = None) -> "Subwords":
        """Learns `size` tokens (32,000 by default), which include the 256 bytes and the separator."""
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size or 32_000,
            special_tokens=[DOCUMENT],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        pieces = (piece for text in texts for piece in _paragraphs(text))
        tokenizer.train_from_iterator(pieces, trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: bytes) -> np.ndarray:
        """See `Tokenizer`."""
        pieces = self.tokenizer.encode_batch_fast(list(_paragraphs(text)))
        return np.array([token for piece in pieces for token in piece.ids], np.int64)

    def decoder(self) -> Callable[[int], str]:
        """See `Tokenizer`."""
        stream = _library().decoders.DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self.tokenizer, token) or ""

    def to_plain(self) -> dict[str, Any]:
        """See `Tokenizer`."""
        return {"kind": "subwords", "model": self.tokenizer.to_str()}


def _paragraphs(text: bytes) -> list[str]:
    """Text cut after empty lines, so that no piece is long; joined, the pieces are the text."""
    return re.split(r"(?<=\n\n)(?=[^\n])", text.decode("utf-8", errors="replace"))


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("subwords need the extra `text`: pip install -e '.[text]'") from error
    return tokenizers


def learn(kind: str, texts: Iterable[bytes], size: int | None = None) -> Tokenizer:
    """Learns a tokenizer.

    Args:
        kind: one of `KINDS`.
        texts: training text in UTF-8, read once; not read for bytes.
        size: tokens of the vocabulary; None for all words, or 32,000 subwords.

    Raises:
        ValueError: if there is no such kind, or the vocabulary is too small.
        ImportError: if it needs a package that is not installed.
    """
    if kind not in KINDS:
        raise ValueError(f"tokens: expected one of {', '.join(KINDS)}, got {kind!r}")
    least = 258 if kind == "subwords" else 3
    if size is not None and (size < least or kind == "bytes"):
        expected = "no vocabulary size for bytes" if kind == "bytes" else f"{least} or more"
        raise ValueError(f"vocabulary: expected {expected}, got {size}")
    if kind == "bytes":
        return Bytes()
    return Words.learn(texts, size) if kind == "words" else Subwords.learn(texts, size)


def encode_prompt(tokenizer: Tokenizer, prompt: bytes) -> list[int]:
    """The tokens of the beginning of a document that is to be continued."""
    tokens = tokenizer.encode(prompt).tolist()
    if isinstance(tokenizer, Words) and tokens and not prompt.endswith(b"\n"):
        tokens.pop()  # the last line is not complete
    return [tokenizer.separator, *tokens]


def from_plain(plain: Any) -> Tokenizer:
    """The tokenizer of a value that `Tokenizer.to_plain` returned.

    Raises:
        ValueError: if it is not such a value.
        ImportError: if it needs a package that is not installed.
    """
    kind = plain.get("kind") if isinstance(plain, dict) else plain
    if kind == "bytes":
        return Bytes()
    if kind == "words":
        words = plain.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or END not in words:
            raise ValueError(f"tokenizer: words: expected a list of words with {END} in it, got {abbreviate(words)}")
        return Words(words)
    if kind == "subwords":
        _library()
        try:
            return Subwords(plain["model"])
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"tokenizer: model: expected one of the library `tokenizers`, got: {error!r}") from error
    raise ValueError(f"tokenizer: expected a kind out of {', '.join(KINDS)}, got {abbreviate(kind)}")
