"""Batches of long token sequences: each row of consecutive batches reads one contiguous stream.

The tokens may be a memory-mapped file of any size.
"""

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sequences.model import IGNORE


class Batch(NamedTuple):
    """B rows of T tokens.

    tokens: [B, T] int64.
    targets: [B, T] int64, the next tokens, or `sequences.model.IGNORE`.
    reset: [B, T] bool, true where a document begins and memory is reset.
    """

    tokens: Tensor
    targets: Tensor
    reset: Tensor


class Streams:
    """Batches of a learner: N tokens are read cyclically, and row b of B begins at token b N / B.

    A batch depends on its step only.

    Args:
        tokens: [N] integers.
        rows: B, over all learners.
        steps: T, tokens per row and batch.
        starts: ascending positions where documents begin and memory is reset; None never resets it.
        shard: (i, n): this learner reads the i-th of n equal parts of the rows.

    Raises:
        ValueError: if there are fewer tokens than in one batch, or the rows cannot be divided.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        rows: int,
        steps: int,
        starts: np.ndarray | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        if len(tokens) <= rows * steps:
            least = f"the {rows} x {steps} of one batch (batch size x sequence length)"
            raise ValueError(f"tokens: expected more than {least}, got {len(tokens)}")
        rank, size = shard
        if rows % size:
            raise ValueError(f"rows: expected a multiple of the {size} learners, got {rows}")
        self.tokens = tokens
        self.steps = steps
        self.starts = None if starts is None else np.asarray(starts)

        # Where the rows of this learner begin.
        begins = np.arange(rows) * len(tokens) // rows
        own_rows = rows // size
        self.begins = begins[rank * own_rows : (rank + 1) * own_rows]

    def next(self, step: int) -> Batch:
        """The batch of a step."""
        first = self.begins[:, None] + step * self.steps
        positions = (first + np.arange(self.steps + 1)) % len(self.tokens)
        tokens = _read(self.tokens, positions)
        return Batch(
            tokens=tokens[:, :-1],
            targets=tokens[:, 1:],
            reset=_resets(positions[:, :-1], self.starts),
        )


def one_pass(tokens: np.ndarray, rows: int, steps: int, starts: np.ndarray | None = None) -> Iterator[Batch]:
    """Batches in which each token except the first is a target exactly once, for evaluation.

    Row b reads the b-th of B contiguous parts, with empty memory at its begin. With `starts`, parts begin with a
    document, and each document begins a batch: if `steps` is a multiple of the core's segment, its losses are
    independent of rows and other documents. Targets after the end of a row are `IGNORE`.

    Args:
        tokens, starts: see `Streams`.
        rows: B, at most; fewer if there are fewer documents.
        steps: T, tokens per row and batch.
    """
    last = len(tokens) - 1

    # Spans are not divided among rows: a document is one, or else a row's whole part.
    bounds = np.arange(rows + 1) * last // rows
    cuts = bounds
    if starts is not None:
        cuts = np.append(starts[starts < last], last)
    spans = [(int(begin), int(end)) for begin, end in pairwise(cuts) if end > begin]

    # The pieces of each row, of at most `steps` tokens. A row has the spans that begin in its part of the tokens.
    rows_of_pieces = []
    for row_begin, row_end in pairwise(bounds):
        pieces = []
        for span_begin, span_end in spans:
            if row_begin <= span_begin < row_end:
                for begin in range(span_begin, span_end, steps):
                    pieces.append((begin, min(begin + steps, span_end)))
        if pieces:
            rows_of_pieces.append(pieces)

    # A batch has one piece of each row; rows that are at their end have empty ones.
    for batch in zip_longest(*rows_of_pieces, fillvalue=(0, 0)):
        begins = np.array([begin for begin, _ in batch])[:, None]
        ends = np.array([end for _, end in batch])[:, None]
        positions = begins + np.arange(steps)
        inside = positions < ends
        positions = np.where(inside, positions, 0)  # after a row's end any token is read, without loss
        targets = _read(tokens, positions + 1).masked_fill(torch.from_numpy(~inside), IGNORE)
        yield Batch(_read(tokens, positions), targets, _resets(positions, starts))


def _read(tokens: np.ndarray, positions: np.ndarray) -> Tensor:
    """The tokens at positions, int64."""
    return torch.from_numpy(tokens[positions].astype(np.int64))


def _resets(positions: np.ndarray, starts: np.ndarray | None) -> Tensor:
    """True at positions where a document starts."""
    if starts is None or not len(starts):
        return torch.zeros(positions.shape, dtype=torch.bool)
    # The first start that is not before a position, or the last of all.
    index = np.searchsorted(starts, positions).clip(max=len(starts) - 1)
    return torch.from_numpy(starts[index] == positions)


def count_tokens(tokens: np.ndarray, vocabulary: int, block: int = 1 << 24) -> np.ndarray:
    """Occurrences of each token, [V]; in blocks, because bincount converts each token to eight bytes."""
    found = np.zeros(vocabulary, np.int64)
    for begin in range(0, len(tokens), block):
        found += np.bincount(tokens[begin : begin + block], minlength=vocabulary)
    return found
