"""Words as numbers: the same for all environments and on every machine, without a list of words."""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 1001
"""Number of word ids: 1 to 1000, as many hash buckets as in IMPALA's code, and 0 for no word."""


def hash_words(words: Sequence[str], length: int) -> NDArray[np.int64]:
    """The first `length` words as ids 1..`VOCABULARY` - 1, padded with zeros."""
    ids = [zlib.crc32(word.encode()) % (VOCABULARY - 1) + 1 for word in words[:length]]
    return np.array(ids + [0] * (length - len(ids)), np.int64)


def split_words(text: str) -> list[str]:
    """The words of a text in small letters; each punctuation mark is a word of its own."""
    return re.findall(r"\w+|[^\w\s]", text.lower())
