"""Words as numbers: the same for all environments and on every machine, without a list of words.

Instructions of DeepMind Lab have a number a word, as in IMPALA's code. Among 50 words two have the same one with a
probability of 70 %. So texts of other environments have two numbers a word, where that probability is 0.1 %.
"""

import re
import zlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 1001
"""Number of word ids: 1 to 1000, as many hash buckets as in IMPALA's code, and 0 for no word."""
BUCKETS = 1024
"""Values of each number of a pair."""
PAIR_VOCABULARY = 1 + BUCKETS
"""Number of ids in pairs: 1 to `BUCKETS`, and 0 for no word."""
MOST_CHARACTERS = 1000
"""Most characters of a text that people are shown."""
WORD = re.compile(r"\w+|[^\w\s]")
"""A word, or a punctuation mark."""


def hash_words(words: Sequence[str], length: int) -> NDArray[np.int64]:
    """The first `length` words as ids 1..`VOCABULARY` - 1, padded with zeros."""
    ids = np.zeros(length, np.int64)
    for place, word in enumerate(words[:length]):
        ids[place] = 1 + _hash(word) % (VOCABULARY - 1)
    return ids


def hash_pairs(words: Sequence[str], length: int) -> NDArray[np.int64]:
    """The first `length` words as pairs of ids 1..`BUCKETS`, one pair after the other, padded with zeros."""
    ids = np.zeros((length, 2), np.int64)
    for place, word in enumerate(words[:length]):
        first, second = divmod(_hash(word) % BUCKETS**2, BUCKETS)
        ids[place] = 1 + first, 1 + second
    return ids.ravel()


def _hash(word: str) -> int:
    return zlib.crc32(word.encode(errors="surrogatepass"))


def split_words(text: str) -> list[str]:
    """The words of a text in small letters; each punctuation mark is a word of its own."""
    return WORD.findall(text.lower())


def beginning(text: str, length: int) -> str:
    """A text up to the last of its first `length` words; " …" at its end if it goes on."""
    shown = text[:MOST_CHARACTERS]
    # One word more than is shown tells whether the text goes on.
    ends = [word.end() for word in islice(WORD.finditer(shown), length + 1)]
    if len(ends) > length:
        shown = shown[: ends[length - 1]]
    if shown == text:
        return text
    return f"{shown} …"


def explain_ids(vocabulary: int, num_ids: int) -> str:
    """How an instruction becomes `num_ids` ids, for people who write it in another program.

    Raises:
        ValueError: if no environment of this package has ids of this vocabulary.
    """
    if vocabulary == VOCABULARY:
        return (
            f"{num_ids} ids, one a word, with zeros after the last one. Words are what white space divides, as they "
            f"are written. The id of a word is 1 + crc32(its UTF-8) modulo {VOCABULARY - 1}."
        )
    if vocabulary == PAIR_VOCABULARY:
        return (
            f"{num_ids} ids, two a word, with zeros after the last one. Words are those of the text in small letters, "
            f"and punctuation marks (regular expression {WORD.pattern}). With h = crc32(the word's UTF-8) modulo "
            f"{BUCKETS**2}, a word has the ids 1 + h // {BUCKETS} and 1 + h modulo {BUCKETS}. Several texts are joined "
            "by spaces, in the order of the parts that they are in the observation."
        )
    raise ValueError(f"vocabulary: expected {VOCABULARY} or {PAIR_VOCABULARY} ids, got {vocabulary}")
