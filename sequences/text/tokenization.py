"""Tokenizers: bytes, words of a closed vocabulary, or subwords that a library learns.

A tokenizer is learned from the training split alone and kept in a run as JSON.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from storage.files import abbreviate, import_extra

END = "<eos>"
UNKNOWN = "<unk>"
DOCUMENT = "<document>"
LONGEST = 10_000
"""Characters of a piece of text that is cut into subwords at once; they take 130 bytes each meanwhile."""


class Bytes:
    """Each byte is a token; documents are separated by NUL, which does not occur in text."""

    vocabulary = 256
    separator = 0
    is_separator_only = True

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decoder(self) -> Callable[[int], str]:
        """Invalid UTF-8 becomes the replacement character."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        return lambda token: decode(bytes([token]))

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class Words:
    """Words between white space, each line ended by `<eos>`, as WikiText-103 is used: there are 267,735 there.

    The most frequent words come first, as the adaptive softmax needs them. `<eos>` also separates documents. Words that
    are rare, or do not occur in the training split, are `<unk>`.
    """

    is_separator_only = False

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.index = {word: token for token, word in enumerate(words)}
        self.vocabulary = len(words)
        self.separator = self.index[END]
        self.unknown = self.index.get(UNKNOWN, self.separator)

    @classmethod
    def learn(cls, texts: Iterable[bytes], size: int | None = None) -> "Words":
        """All words of the texts, or the `size` most frequent ones with `<eos>` and `<unk>` among them."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_words(text))
        counts[UNKNOWN] += 0  # it is there, also if the texts do not have it
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if size is None:
            return cls(ranked)

        # `<eos>` and `<unk>` stay, however rare they are.
        others = [word for word in ranked if word not in (END, UNKNOWN)]
        left_out = set(others[size - 2 :])
        return cls([word for word in ranked if word not in left_out])

    def encode(self, text: bytes) -> np.ndarray:
        tokens = (self.index.get(word, self.unknown) for word in _words(text))
        return np.fromiter(tokens, np.int64)

    def decoder(self) -> Callable[[int], str]:
        """Words are separated by single spaces."""

        def decode(token: int) -> str:
            if token == self.separator:
                return "\n"
            return f"{self.words[token]} "

        return decode

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "words", "words": self.words}


def _words(text: bytes) -> Iterator[str]:
    """The words of each line, and `<eos>` after each."""
    line_end = _line_end(text).decode()
    lines = text.decode("utf-8", errors="replace").split(line_end)
    if not lines[-1]:
        lines.pop()  # behind the last line end is no line
    for line in lines:
        yield from line.split()
        yield END


def count_words(text: bytes) -> int:
    """How many words a text has between white space, that of Unicode."""
    lines = text.decode("utf-8", errors="replace").splitlines()
    return sum(len(line.split()) for line in lines)


def _line_end(text: bytes) -> bytes:
    """What ends the lines of a text: a line feed (also after a carriage return) or, without any, a carriage return."""
    if b"\r" in text and b"\n" not in text:
        return b"\r"
    return b"\n"


class Subwords:
    """Byte-pair encoding of bytes by the library `tokenizers`: any text, without loss.

    The paper used the SubwordTextEncoder of tfds, which is not maintained; this is also an open vocabulary.
    """

    is_separator_only = True

    def __init__(self, model: str) -> None:
        """`model` is what the library writes of a tokenizer that `learn` makes; raises a ValueError for another one."""
        self.library = import_extra("tokenizers", "text", "--tokens subwords")
        # It may be another person's: only the vocabulary and the merges of it are used.
        plain = json.loads(model)
        vocabulary, merges = _require_pairs(plain["model"], self.library.pre_tokenizers.ByteLevel.alphabet())
        with _no_panic():
            self.tokenizer = _make_tokenizer(self.library, vocabulary, merges)
            self.tokenizer.add_special_tokens([DOCUMENT])
        # What else is in it would have made other tokens.
        _require_equal(plain, json.loads(self.tokenizer.to_str()), "model")
        # A text that has the separator's name in it is text.
        self.tokenizer.encode_special_tokens = True
        self.vocabulary = self.tokenizer.get_vocab_size()
        self.separator = self.tokenizer.token_to_id(DOCUMENT)

    @classmethod
    def learn(cls, texts: Iterable[bytes], size: int | None = None) -> "Subwords":
        """Learns `size` tokens (32,000 by default), which include the 256 bytes and the separator."""
        library = import_extra("tokenizers", "text", "--tokens subwords")
        tokenizer = _make_tokenizer(library)
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
        tokens: list[int] = []
        with _no_panic():
            pieces = self.tokenizer.encode_batch_fast(_paragraphs(text))
        for piece in pieces:
            tokens += piece.ids
        return np.array(tokens, np.int64)

    def decoder(self) -> Callable[[int], str]:
        stream = self.library.decoders.DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self.tokenizer, token) or ""

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "subwords", "model": self.tokenizer.to_str()}


def _make_tokenizer(
    library: ModuleType, vocabulary: dict[str, int] | None = None, merges: list[tuple[str, str]] | None = None
) -> Any:
    """The library's tokenizer of byte pairs, which has yet to learn without a vocabulary and merges."""
    tokenizer = library.Tokenizer(library.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _require_pairs(model: Any, alphabet: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The tokens and merges of a model as the library writes it; raises a ValueError for what `learn` does not make."""
    vocabulary: dict[str, int] = model["vocab"]
    numbers = list(vocabulary.values())
    # Others would be outside of the network's embedding.
    are_numbers = all(type(number) is int for number in numbers)
    if not are_numbers or sorted(numbers) != list(range(len(numbers))):
        raise ValueError(f"vocab: expected tokens 0 to {len(numbers) - 1}, got {abbreviate(numbers)}")
    missing = [token for token in (DOCUMENT, *alphabet) if token not in vocabulary]
    if missing:
        raise ValueError(f"vocab: expected {DOCUMENT} and all bytes, got none of {abbreviate(missing)}")

    merges = []
    for merge in model["merges"]:
        # The library once wrote pairs as one text.
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        if not {first, second, first + second} <= vocabulary.keys():
            raise ValueError(f"merges: expected tokens of the vocabulary, got {abbreviate(merge)}")
        merges.append((first, second))
    return vocabulary, merges


def _require_equal(found: object, expected: object, where: str) -> None:
    """Raises a ValueError if what two values as JSON both have differs; fields of other versions are left out."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(found.keys() & expected.keys() - {"vocab", "merges", "version"}):
            _require_equal(found[name], expected[name], f"{where}.{name}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (each, expected_each) in enumerate(zip(found, expected)):
            _require_equal(each, expected_each, f"{where}.{index}")
    elif found != expected:
        raise ValueError(f"{where}: expected {abbreviate(expected)}, got {abbreviate(found)}")


@contextmanager
def _no_panic() -> Iterator[None]:
    """Turns a panic of the library, which is in Rust, into a ValueError: it is no Exception, and has no public name."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library tokenizers failed: {error}") from error


def _paragraphs(text: bytes) -> list[str]:
    """Text cut after empty lines, and within longer paragraphs before a space, so that no piece is longer than
    `LONGEST`; joined, the pieces are the text."""
    pieces = []
    for paragraph in re.split(r"(?<=\n\n)(?=[^\n])", text.decode("utf-8", errors="replace")):
        begin = 0
        while len(paragraph) - begin > LONGEST:
            space = paragraph.rfind(" ", begin + 1, begin + LONGEST + 1)
            end = begin + LONGEST if space < 0 else space
            pieces.append(paragraph[begin:end])
            begin = end
        pieces.append(paragraph[begin:])
    return pieces


Tokenizer = Bytes | Words | Subwords
"""Tokens are 0 to `vocabulary` - 1; the token `separator` stands before every document.

is_separator_only: whether the separator is in no text, so that it tells where documents begin.
encode: the tokens of UTF-8 text, [N] integers without a separator.
decoder: a function that is called with each token in turn, and returns the text that the token completes.
to_plain: what JSON can hold; `from_plain` makes the tokenizer of it again.
"""


def learn(kind: str, texts: Iterable[bytes], size: int | None = None) -> Tokenizer:
    """Learns a tokenizer of bytes, words or subwords.

    Args:
        texts: training text in UTF-8, read once; not read for bytes.
        size: tokens of the vocabulary; None for all words, or 32,000 subwords.

    Raises:
        ImportError: if it needs a package that is not installed.
    """
    if kind == "bytes":
        return Bytes()
    if kind == "words":
        return Words.learn(texts, size)
    return Subwords.learn(texts, size)


def encode_prompt(tokenizer: Tokenizer, prompt: bytes) -> list[int]:
    """The tokens of the beginning of a document that is to be continued."""
    prompt = prompt.removeprefix(codecs.BOM_UTF8)
    tokens = tokenizer.encode(prompt).tolist()
    if isinstance(tokenizer, Words) and tokens and not prompt.endswith(_line_end(prompt)):
        tokens.pop()  # the last line is not complete
    return [tokenizer.separator, *tokens]


def before_continuation(tokenizer: Tokenizer, prompt: bytes) -> str:
    """A prompt as text, after which a decoder's text can be printed: with words, a space follows the last one."""
    text = prompt.decode(errors="replace")
    is_inside_line = bool(text) and not text[-1].isspace()
    if isinstance(tokenizer, Words) and is_inside_line:
        return f"{text} "
    return text


def from_plain(plain: Any) -> Tokenizer:
    """The tokenizer of a value that `to_plain` returned.

    Raises:
        ValueError: if it is not such a value.
        ImportError: if it needs a package that is not installed.
    """
    kind = plain.get("kind") if isinstance(plain, dict) else plain
    try:
        if kind == "bytes":
            return Bytes()
        if kind == "words":
            return Words([str(word) for word in plain["words"]])
        if kind == "subwords":
            return Subwords(plain["model"])
    except ImportError:
        raise
    except Exception as error:  # `tokenizers` raises no narrower class
        raise ValueError(f"tokenizer: expected {kind} as this version writes them, got: {_said(error)}") from error
    raise ValueError(f"tokenizer: expected bytes, words or subwords, got {abbreviate(kind)}")


def _said(error: Exception) -> str:
    """What an error says: our own, or the class and the beginning of another one."""
    is_own = type(error) is ValueError and len(str(error)) < 1_000
    return str(error) if is_own else abbreviate(error)
