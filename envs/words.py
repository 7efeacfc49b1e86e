"""Words as numbers: the same for all environments and on every machine, without a list of words."""

import re
import zlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 1001
"""Number of word ids: 1 to 1000, as many hash buckets as in IMPALA's code, and 0 for no word."""


MOST_CHARACTERS = 1000
"""Most characters of a text that people are shown."""
WORD = re.compile(r"\w+|[^\w\s]")
"""A word, or a punctuation mark."""


def hash_words(words: Sequence[str], length: int) -> NDArray[np.int64]:
    """The first `length` words as ids 1..`VOCABULARY` - 1, padded with zeros."""
    ids = np.zeros(length, np.int64)
    for place, word in enumerate(words[:length]):
        bucket = zlib.crc32(word.encode(errors="surrogatepass")) % (VOCABULARY - 1)
        ids[place] = 1 + bucket
    return ids


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
