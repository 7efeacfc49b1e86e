"""Measures of language models: bits per character, perplexity, and the analyses of the paper.

All measures read a text once, in order, and keep the memory; sums are in float64. The analyses are those of Tables 7, 8
and 9 and Figures 2 and 6.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent.core import ATTENTION_KINDS, CompressiveTransformer, detach_state, state_to
from agent.language_model import IGNORE, SequenceModel
from learner.config import SequenceLearnerConfig
from learner.sequence_learner import SequenceLearner, Total, autocast, evaluate, score
from learner.streams import Batch
from text.tokenization import Tokenizer, Words
from text.tokens import Split

FREQUENCIES = (100, 1_000, 10_001)
"""Bounds of the buckets of Table 7, in occurrences in the training text: < 100, 100 to 1 k, 1 k to 10 k, and more."""
BUCKETS = 6
"""Buckets of each kind of memory in Figure 2."""


def bits_per_character(nll: float, characters: int) -> float:
    """Nats over a text as bits a character; with bytes as tokens, bits a byte (as all results on Enwik8)."""
    return nll / math.log(2) / max(1, characters)


def perplexity(nll: float, count: int) -> float:
    """exp of nats a word. `count` is the number of words that the data set prescribes (section 4.2); 0 counts as 1."""
    return math.exp(min(nll / max(1, count), 700.0))


def summary(total: Total, split: Split, tokenizer: Tokenizer) -> dict[str, float]:
    """The usual measures of a loss over a whole split.

    Returns:
        nats_per_token; word_perplexity: with words as tokens every target is a word, line ends included, unless the
        data set prescribes a number; otherwise the split's number of words is used. bits_per_byte of the text (bits per
        character for bytes); not with words as tokens, because `<unk>` and lost spaces cannot be decoded.
    """
    closed = isinstance(tokenizer, Words)
    words = total.count if closed and not split.prescribed else split.words
    found = {"nats_per_token": total.mean, "word_perplexity": perplexity(total.nll, words)}
    return found if closed else found | {"bits_per_byte": bits_per_character(total.nll, split.bytes)}


def by_frequency(
    model: SequenceModel, batches: Iterable[Batch], counts: np.ndarray, precision: str = "float32"
) -> dict[str, Total]:
    """Table 7: the loss of targets by how often the training text has them.

    Args:
        counts: [V], occurrences of each token in the training text.
        precision: of matrix products, as in the other analyses.
    """
    buckets = np.searchsorted(FREQUENCIES, counts, side="right")
    names = _names(FREQUENCIES)
    losses, found = np.zeros(len(names)), np.zeros(len(names), np.int64)
    for batch, nll in score(model, batches, precision):
        kept = (batch.targets != IGNORE).numpy()
        index = buckets[batch.targets.numpy()[kept]]
        losses += np.bincount(index, nll.double().numpy()[kept], len(names))
        found += np.bincount(index, minlength=len(names))
    return {name: Total(float(nll), int(count)) for name, nll, count in reversed(list(zip(names, losses, found)))}


def _names(bounds: tuple[int, ...]) -> list[str]:
    return [f"< {bounds[0]}", *(f"{low} to {high - 1}" for low, high in pairwise(bounds)), f"> {bounds[-1] - 1}"]


def by_position(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> list[tuple[int, Total]]:
    """The loss of targets by the number of tokens of their context: [(1, ..), (2, ..), (4, ..), ...], each bucket from
    its number to the next. Context begins at the start of the row and at resets."""
    losses: dict[int, list[float]] = {}
    context: np.ndarray | None = None
    for batch, nll in score(model, batches, precision):
        reset = batch.reset.numpy()
        context = np.zeros(len(reset), np.int64) if context is None else context
        steps = np.arange(1, reset.shape[1] + 1)
        since = np.maximum.accumulate(np.where(reset, steps - 1, -context[:, None]), axis=1)
        seen = steps - since
        context = seen[:, -1]
        kept = (batch.targets != IGNORE).numpy()
        for bucket in np.unique(exponents := np.frexp(seen[kept])[1] - 1):
            entry = losses.setdefault(1 << int(bucket), [0.0, 0])
            inside = exponents == bucket
            entry[0] += float(nll.double().numpy()[kept][inside].sum())
            entry[1] += int(inside.sum())
    return [(begin, Total(nll, int(count))) for begin, (nll, count) in sorted(losses.items())]


def by_memory(
    model: SequenceModel,
    batches: Callable[[], Iterable[Batch]],
    sizes: Iterable[tuple[int | None, int | None]],
    precision: str = "float32",
) -> Iterator[tuple[tuple[int | None, int | None], Total]]:
    """Tables 8 and 9: the loss with other numbers of slots (memory_size, compressed_size), None for the model's own.

    Args:
        batches: called for each size.

    Raises:
        ValueError: if the core has no memory, or not one that may have these sizes.
    """
    for memory, compressed in sizes:
        resized = model.resized(memory_size=memory, compressed_size=compressed)
        yield (memory, compressed), evaluate(resized, batches(), precision)


class _Given:
    """A learner's source whose next batch is set from outside."""

    batch: Batch

    def next(self, step: int) -> Batch:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def dynamic(
    model: SequenceModel, batches: Iterable[Batch], config: SequenceLearnerConfig, learning_rate: float
) -> Total:
    """Dynamic evaluation as in section 5.3: learns from each batch after it was scored.

    Changes the model. Adam starts with an empty state and has a constant learning rate.

    Args:
        batches: all of the same shape.
        config: how the model was trained; sizes and schedule are not used.

    Raises:
        FloatingPointError: see `SequenceLearner.update`; the learning rate may be too large.
    """
    source, total, count, learner = _Given(), 0.0, 0, None
    for batch in batches:
        if learner is None:
            rows, steps = batch.tokens.shape
            config = dataclasses.replace(
                config,
                batch_size=rows,
                sequence_length=steps,
                steps=2**62,
                learning_rate=learning_rate,
                least_learning_rate=learning_rate,
                accumulation_steps=1,
                late_start=None,
                microbatches=1,
            )
            learner, state = SequenceLearner(model, source, config), model.initial_state(rows)
        model.eval()
        moved = state_to(batch, learner.device)
        with torch.no_grad(), autocast(learner.device, config.precision):
            output = model(moved.tokens, moved.reset, state, moved.targets)
        state = output.state
        assert output.nll is not None
        total += float(output.nll.double().sum())
        count += int((batch.targets != IGNORE).sum())
        source.batch = batch
        learner.update()
    model.eval()
    return Total(total, count)


class Attention(NamedTuple):
    """Figure 2, one value a bucket, oldest first.

    kinds: the kind of memory. mean: share of the attention, a mean over layers, heads and steps of a segment, and then
    over the segments of all rows. error: standard error of that mean; None if there is only one segment.
    """

    kinds: list[str]
    mean: list[float]
    error: list[float | None]


def attention(model: SequenceModel, batches: Iterable[Batch]) -> Attention:
    """Figure 2: attention by six buckets of each of compressed memory, memory and segment.

    Args:
        batches: each of exactly one segment, from the start of a text, where memory is not full yet. Steps whose
            targets are ignored do not count.

    Raises:
        ValueError: if the core has no attention.
    """
    core, sums = require_attention(model), []
    kinds = [kind for kind in ATTENTION_KINDS for _ in range(BUCKETS)]
    state, device = None, next(model.parameters()).device
    model.eval()
    for batch in batches:
        moved = state_to(batch, device)
        state = model.core.with_cache(model.initial_state(len(moved.tokens))) if state is None else state
        with torch.no_grad():
            output = model(moved.tokens, moved.reset, state, moved.targets, return_attention=True)
        state = output.state
        assert output.attention is not None
        kept = (moved.targets != IGNORE).double()
        steps, layers = kept.sum(dim=1), []
        for layer, weights in zip(core.layers, output.attention):
            slots = torch.einsum("bts,bt->bs", weights.mean(dim=1).double(), kept)
            sizes = [layer.sizes.compressed, layer.sizes.memory, layer.sizes.segment]
            layers.append(torch.cat([_buckets(part) for part in slots.split(sizes, dim=1)], dim=1))
        sums.append((torch.stack(layers).mean(dim=0)[steps > 0] / steps[steps > 0, None]).cpu())
    samples = torch.cat(sums)
    known = len(samples) > 1
    error = (samples.std(dim=0, correction=1) / len(samples) ** 0.5).tolist() if known else [None] * len(kinds)
    return Attention(kinds, samples.mean(dim=0).tolist(), error)


def _buckets(weights: Tensor) -> Tensor:
    """Sums [B, S] over equal ranges of slots: [B, BUCKETS]."""
    bounds = [index * weights.shape[1] // BUCKETS for index in range(BUCKETS + 1)]
    return torch.stack([weights[:, begin:end].sum(dim=1) for begin, end in pairwise(bounds)], dim=1)


def compression_loss(model: SequenceModel, batches: Iterable[Batch]) -> dict[str, float]:
    """Figure 6: the compression loss by layer, a mean over the batches after memory is full.

    Empty if the core has no such loss, or the text is too short to fill memory.

    Raises:
        ValueError: if the core has no attention.
    """
    core = require_attention(model)
    fill = max(layer.sizes.memory + layer.sizes.rate * layer.sizes.compressed for layer in core.layers)
    state, device, count, seen = None, next(model.parameters()).device, 0, 0
    sums: dict[str, float] = {}
    model.eval()
    for batch in batches:
        moved = state_to(batch, device)
        state = model.initial_state(len(moved.tokens)) if state is None else state
        with torch.enable_grad():  # without gradients the core does not compute these losses
            output = model(moved.tokens, moved.reset, detach_state(state), moved.targets)
        state = detach_state(output.state)
        seen += batch.tokens.shape[1]
        if seen > fill:
            count += 1
            for name, loss in output.losses.items():
                sums[name] = sums.get(name, 0.0) + loss.value.item()
    return {name: value / count for name, value in sums.items()}


def require_attention(model: SequenceModel) -> CompressiveTransformer:
    """The core of a model; raises a ValueError if it has no attention."""
    if not isinstance(model.core, CompressiveTransformer):
        raise ValueError(f"core: expected one with attention, got {type(model.core).__name__}")
    return model.core


def counts(split: Split, vocabulary: int) -> np.ndarray:
    """Occurrences of each token in a split, [V]."""
    found = np.zeros(vocabulary, np.int64)
    for begin in range(0, len(split.tokens), 1 << 24):
        found += np.bincount(split.tokens[begin : begin + (1 << 24)], minlength=vocabulary)
    return found
