"""Measures of language models: bits per character, perplexity, and the analyses of the paper.

All measures read a text once, in order, and keep the memory; sums are in float64. The analyses are those of Table 7 and
Figures 2 and 6.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent.core import Transformer
from sequences.config import SequenceLearnerConfig
from sequences.learner import SequenceLearner, Total, evaluate_by, predict, score
from sequences.model import IGNORE, SequenceModel
from sequences.streams import Batch
from sequences.text.tokenization import Tokenizer, Words
from sequences.text.tokens import Split

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
    is_closed = isinstance(tokenizer, Words)
    words = split.words
    if is_closed and not split.prescribed:
        words = total.count
    found = {"nats_per_token": total.mean, "word_perplexity": perplexity(total.nll, words)}
    if not is_closed:
        found["bits_per_byte"] = bits_per_character(total.nll, split.bytes)
    return found


def by_frequency(
    model: SequenceModel, batches: Iterable[Batch], counts: np.ndarray, precision: str = "float32"
) -> dict[str, Total]:
    """Table 7: the loss of targets by how often the training text has them; `counts` are these occurrences, [V]."""
    low, *_, high = FREQUENCIES
    between = [f"{begin} to {end - 1}" for begin, end in pairwise(FREQUENCIES)]
    names = [f"< {low}", *between, f"> {high - 1}"]
    buckets = np.searchsorted(FREQUENCIES, counts, side="right")

    def bucket(batch: Batch) -> np.ndarray:
        return buckets[batch.targets.numpy()]

    losses, targets = evaluate_by(model, batches, bucket, len(names), precision)
    found = {}
    for index in reversed(range(len(names))):  # the most frequent first, as in the paper
        found[names[index]] = Total(float(losses[index]), int(targets[index]))
    return found


def by_position(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> list[tuple[int, Total]]:
    """The loss of targets by the number of tokens of their context: [(1, ..), (2, ..), (4, ..), ...], each bucket from
    its number to the next. Context begins at the start of the row and at resets."""
    context: Any = 0  # of each row, up to the end of the last batch: [B, 1]

    def bucket(batch: Batch) -> np.ndarray:
        nonlocal context
        steps = np.arange(1, batch.reset.shape[1] + 1)
        # The steps before the context; a negative number if it began before this batch.
        starts = np.where(batch.reset.numpy(), steps - 1, -context)
        latest_start = np.maximum.accumulate(starts, axis=1)
        seen = steps - latest_start
        context = seen[:, -1:]
        # A number from 2^k to 2^(k + 1) - 1 is a fraction from 0.5 to 1 times 2^(k + 1).
        _, exponents = np.frexp(seen)
        return exponents - 1

    losses, counts = evaluate_by(model, batches, bucket, 64, precision)
    found = []
    for number in np.flatnonzero(counts).tolist():
        total = Total(float(losses[number]), int(counts[number]))
        found.append((2**number, total))
    return found


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
    rest = iter(batches)
    first = next(rest)
    rows, steps = first.tokens.shape
    # The model scores each batch before the learner learns from it.
    scored, learned = itertools.tee(itertools.chain([first], rest))
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
    source: Any = SimpleNamespace(next=lambda step: next(learned))
    learner = SequenceLearner(model, source, config)
    total = 0.0
    count = 0
    for batch, nll in score(model, scored, config.precision, cached=False):
        total += float(nll.double().sum())
        count += int((batch.targets != IGNORE).sum())
        learner.update()
    return Total(total, count)


def attention(model: SequenceModel, batches: Iterable[Batch]) -> dict[str, list[Any]]:
    """Figure 2: attention by six buckets of each kind of slots, such as compressed memory, memory and segment.

    Args:
        batches: each of exactly one segment, from the start of a text, where memory is not full yet. Steps whose
            targets are ignored do not count.

    Returns:
        one value a bucket, oldest first. kinds: the kind of memory. mean: share of the attention, a mean over layers,
        heads and steps of a segment, and then over the segments of all rows. error: standard error of that mean; None
        if there is only one segment.

    Raises:
        ValueError: if the core has no attention.
    """
    core = require_attention(model)
    means = []
    for batch, output in predict(model, batches, return_attention=True):
        assert output.attention is not None
        counts = (batch.targets != IGNORE).double().to(output.attention[0].device)  # [B, T], 1 where a step counts

        # Sums over the steps of each row's segment, by bucket, of each layer.
        layers = []
        for layer, weights in zip(core.layers, output.attention):
            of_heads = weights.mean(dim=1).double()
            slots = torch.einsum("bts,bt->bs", of_heads, counts)
            by_kind = slots.split(layer.sizes.by_kind, dim=1)
            layers.append(torch.cat([_buckets(part) for part in by_kind], dim=1))
        sums = torch.stack(layers).mean(dim=0)

        # Means over the steps; a row may have ended before.
        steps = counts.sum(dim=1)
        goes_on = steps > 0
        means.append((sums[goes_on] / steps[goes_on, None]).cpu())

    samples = torch.cat(means)
    kinds = [kind for kind in core.attention_kinds for _ in range(BUCKETS)]
    error: list[Any] = [None] * len(kinds)
    if len(samples) > 1:
        error = (samples.std(dim=0, correction=1) / len(samples) ** 0.5).tolist()
    return {"kinds": kinds, "mean": samples.mean(dim=0).tolist(), "error": error}


def _buckets(weights: Tensor) -> Tensor:
    """Sums [B, S] over equal ranges of slots: [B, BUCKETS]."""
    bounds = [index * weights.shape[1] // BUCKETS for index in range(BUCKETS + 1)]
    return torch.stack([weights[:, begin:end].sum(dim=1) for begin, end in pairwise(bounds)], dim=1)


def compression_loss(model: SequenceModel, batches: Iterable[Batch]) -> dict[str, float]:
    """Figure 6: the compression loss by layer, a mean over its terms after memory is full.

    Where memory is reset, segments have no term until something is compressed again. Empty if the core has no such
    loss, or the text is too short to fill memory.

    Raises:
        ValueError: if the core has no attention.
    """
    core = require_attention(model)
    steps_until_full = 0
    for layer in core.layers:
        steps = layer.sizes.reach
        if steps is None:
            steps = layer.sizes.slots
        steps_until_full = max(steps_until_full, steps)
    seen = 0
    sums: dict[str, float] = defaultdict(float)
    terms: dict[str, float] = defaultdict(float)
    for batch, output in predict(model, batches, cached=False, gradients=True):
        seen += batch.tokens.shape[1]
        if seen > steps_until_full:
            for name, loss in output.losses.items():
                sums[name] += float(loss.total.detach().double().sum())
                terms[name] += float(loss.count.sum())
    return {name: sums[name] / count for name, count in terms.items() if count}


def require_attention(model: SequenceModel) -> Transformer:
    """The core of a model; raises a ValueError if it has no attention."""
    if not isinstance(model.core, Transformer):
        raise ValueError(f"core: expected one with attention, got {type(model.core).__name__}")
    return model.core
