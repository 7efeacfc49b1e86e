"""Batches of long sequences of tokens, cut so that each row of a batch reads one contiguous stream.

The memory that a row has is then that of the tokens before it. The tokens may be a memory-mapped file of any size.
"""

from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agent.language_model import IGNORE


class Batch(NamedTuple):
    """B rows of T tokens.

    tokens: [B, T] int64.
    targets: [B, T] int64, the token that follows each, or `agent.language_model.IGNORE`.
    reset: [B, T] bool, true where a document begins and all before it is to be forgotten.
    """

    tokens: Tensor
    targets: Tensor
    reset: Tensor


class Source(Protocol):
    """Where a learner's batches come from. Rows go on in each batch where they were in the one before.

    `next(step)` is asked for steps in order, from 0 or from the step after that of a loaded state.
    """

    def next(self, step: int) -> Batch:
        """The batch of a step, this learner's rows of it."""

    def state_dict(self) -> dict[str, Any]:
        """What JSON can hold and `load_state_dict` needs to go on exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            ValueError: if it was taken of other data.
        """


class Streams:
    """Reads N tokens over and over: row b of B begins at token b N / B and goes on into what the next row began with.

    So every row's stream is contiguous but for the one place where the tokens end, and a batch depends on its step
    alone.

    Args:
        tokens: [N] integers.
        rows: B, of all learners together.
        steps: T, tokens a row and batch.
        starts: ascending positions where documents begin, if memory is to be reset there; else it never is.
        shard: (i, n): this learner has the i-th of n equal parts of the rows.

    Raises:
        ValueError: if there are fewer tokens than one batch takes, or the rows cannot be shared.
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
            raise ValueError(
                f"tokens: expected more than the {rows} x {steps} of one batch (rows x steps), got {len(tokens)}"
            )
        rank, size = shard
        if rows % size:
            raise ValueError(f"rows: expected a multiple of the {size} learners, got {rows}")
        self.tokens, self.steps = tokens, steps
        self.starts = None if starts is None else np.asarray(starts)
        begins = np.arange(rows) * len(tokens) // rows
        self.begins = begins[rank * rows // size : (rank + 1) * rows // size]

    def next(self, step: int) -> Batch:
        """The batch of a step."""
        positions = (self.begins[:, None] + step * self.steps + np.arange(self.steps + 1)) % len(self.tokens)
        seen = _read(self.tokens, positions)
        return Batch(seen[:, :-1], seen[:, 1:], _resets(positions[:, :-1], self.starts))

    def state_dict(self) -> dict[str, Any]:
        """The number of tokens; the position is the step."""
        return {"tokens": len(self.tokens)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checks that these are the tokens.

        Raises:
            ValueError: if there is another number of them.
        """
        if state != self.state_dict():
            raise ValueError(f"tokens: expected {state.get('tokens')} as before, got {len(self.tokens)}")


def one_pass(tokens: np.ndarray, rows: int, steps: int, starts: np.ndarray | None = None) -> Iterator[Batch]:
    """Batches in which each token but the first is a target exactly once, for evaluation.

    Row b reads the b-th of B contiguous parts, with empty memory where a part begins. With `starts` parts begin where
    documents do, and every document begins a batch: if `steps` is a multiple of the core's segment, its losses depend
    neither on its row nor on its neighbours. Where a row has no more to read, its targets are `IGNORE`.

    Args:
        tokens, starts: see `Streams`.
        rows: B, at most; there are fewer where there are fewer documents.
        steps: T, tokens a row and batch.
    """
    last = len(tokens) - 1
    bounds = np.arange(rows + 1) * last // rows
    cuts = bounds if starts is None else np.append(starts[starts < last], last)
    spans = [(int(begin), int(end)) for begin, end in pairwise(cuts) if end > begin]
    parts = [[span for span in spans if begin <= span[0] < end] for begin, end in pairwise(bounds)]
    pieces = [_pieces(part, steps) for part in parts if part]
    for row in zip_longest(*pieces, fillvalue=(0, 0)):
        begins, ends = np.array(row).T[:, :, None]
        positions = begins + np.arange(steps)
        inside = positions < ends
        positions = np.where(inside, positions, 0)
        targets = _read(tokens, positions + 1).masked_fill(torch.from_numpy(~inside), IGNORE)
        yield Batch(_read(tokens, positions), targets, _resets(positions, starts))


def _pieces(spans: list[tuple[int, int]], steps: int) -> Iterator[tuple[int, int]]:
    """Spans cut into pieces of so many steps, the last of each perhaps shorter."""
    for begin, end in spans:
        yield from ((piece, min(piece + steps, end)) for piece in range(begin, end, steps))


def _read(tokens: np.ndarray, positions: np.ndarray) -> Tensor:
    return torch.from_numpy(tokens[positions].astype(np.int64))


def _resets(positions: np.ndarray, starts: np.ndarray | None) -> Tensor:
    """Where a position is a start."""
    if starts is None or not len(starts):
        return torch.zeros(positions.shape, dtype=torch.bool)
    index = np.searchsorted(starts, positions).clip(max=len(starts) - 1)
    return torch.from_numpy(starts[index] == positions)
