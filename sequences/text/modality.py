"""Text as a modality: which corpus, which network, and what is measured on held-out text."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from agent.core import make_core
from agent.memory_check import build_network
from sequences.learner import Total, evaluate
from sequences.modality import Counting, Modality, quiet
from sequences.model import SequenceModel
from sequences.streams import Batch, count_tokens
from sequences.text import corpora, evaluation, tokens
from sequences.text.config import TextConfig, TextEvaluation, TextModelConfig
from sequences.text.tokenization import Bytes
from sequences.text.tokens import Split


class Text(Modality):
    """A corpus as tokens, and a language model of it; see `sequences.modality.Modality`."""

    config: TextConfig

    def __init__(self, config: TextConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.tokenizer, self.splits, self.digest = tokens.open_tokens(folder)

    @classmethod
    def prepare(cls, config: TextConfig, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        path = None if config.path is None else Path(config.path)
        corpus = corpora.load(config.corpus, path)
        folder = tokens.prepare(config.corpus, corpus, config.tokens, config.vocabulary, show=show)
        return cls(config, folder)

    def record(self) -> dict[str, Any]:
        """The tokenizer is what sampling needs."""
        return {"digest": self.digest, **self.tokenizer.to_plain()}

    def describe(self) -> str:
        sizes = ", ".join(f"{name} {split.bytes:,}" for name, split in self.splits.items())
        return f"{self.config.corpus}: bytes of {sizes}; {self.tokenizer.vocabulary:,} {self.config.tokens}"

    def make_model(self) -> SequenceModel:
        return make_model(self.config.model, self.tokenizer.vocabulary)

    def unit(self, nll: float) -> str:
        """Bits for bytes, else perplexity."""
        if isinstance(self.tokenizer, Bytes):
            return f"{evaluation.bits_per_character(nll, 1):.3f} bits per byte"
        return f"{evaluation.perplexity(nll, 1):.1f} ppl"

    def validate(self, model: SequenceModel, count: Counting = quiet) -> dict[str, float]:
        split = self.splits["valid"].first(self.config.evaluate_tokens)
        total = evaluate(model, self.batches(split, self.config.evaluate_rows, count), self.config.learner.precision)
        found = evaluation.summary(total, split, self.tokenizer)
        metrics = {"valid/nll": found.pop("nats_per_token")}
        for name, value in found.items():
            metrics[f"valid/{name}"] = value
        return metrics

    def evaluate(
        self, model: SequenceModel, options: TextEvaluation | None = None, count: Counting = quiet
    ) -> Iterator[dict[str, Any]]:
        """See `Modality`; dynamic evaluation changes the model."""
        options = options or TextEvaluation(rows=self.config.evaluate_rows)
        part = self.splits[options.split]
        precision = self.config.learner.precision
        read = partial(self.batches, part, options.rows, count)

        # Impossible options are refused before the first measure, which may take hours.
        sizes = [_parse_size(words) for words in options.sizes]
        for size in sizes:
            model.resized(**size)
        if options.attention or options.compression:
            evaluation.require_attention(model)

        begin = time.monotonic()
        total = evaluate(model, read(f"measuring {options.split}"), precision)
        seconds = max(time.monotonic() - begin, 1e-9)
        yield {
            "split": options.split,
            "rows": options.rows,
            "precision": precision,
            **evaluation.summary(total, part, self.tokenizer),
            "tokens": total.count,
            "bytes": part.bytes,
            "words": part.words,
            "nll": total.nll,
            "words_prescribed": part.prescribed,
            "tokens_per_second": total.count / seconds,
        }

        found: list[dict[str, Any]] = []
        for size in sizes:
            total = evaluate(model.resized(**size), read("other sizes"), precision)
            found.append(size | evaluation.summary(total, part, self.tokenizer))
        if found:
            yield {"sizes": found}

        yield from self._analyses(model, options, read)
        if options.dynamic is not None:  # the last, because it changes the model
            yield {"dynamic": self._dynamic(model, options.dynamic, part, read("dynamic"))}

    def _analyses(
        self, model: SequenceModel, options: TextEvaluation, read: Callable[..., Iterable[Batch]]
    ) -> Iterator[dict[str, Any]]:
        """The paper's analyses that are asked for. `read` opens the batches, given what they are for."""
        precision = self.config.learner.precision
        if options.frequency:
            counts = count_tokens(self.splits["train"].tokens, self.tokenizer.vocabulary)
            buckets = evaluation.by_frequency(model, read("by frequency"), counts, precision)
            yield {"frequency": {name: _measured(each) for name, each in buckets.items()}}
        if options.position:
            positions = evaluation.by_position(model, read("by position"), precision)
            yield {"position": [{"from": first, **_measured(each)} for first, each in positions]}

        # These two are means over whole segments.
        segment = getattr(self.config.core_config, "segment_size", 1)
        if options.attention:
            yield {"attention": evaluation.attention(model, read("attention", segment))}
        if options.compression:
            yield {"compression": evaluation.compression_loss(model, read("compression loss", segment))}

    def _dynamic(
        self, model: SequenceModel, learning_rate: float, part: Split, batches: Iterable[Batch]
    ) -> dict[str, Any]:
        """The measures of dynamic evaluation, which changes the model.

        Raises a ValueError if the learning rate is too large.
        """
        device = str(next(model.parameters()).device)
        learning = dataclasses.replace(self.config.learner, device=device)
        try:
            total = evaluation.dynamic(model, batches, learning, learning_rate)
        except FloatingPointError as error:
            expected = f"expected a smaller learning rate, got {learning_rate}"
            raise ValueError(f"dynamic: {expected}: {error}") from error
        return {"learning_rate": learning_rate, **evaluation.summary(total, part, self.tokenizer)}


def make_model(config: TextModelConfig, vocabulary: int) -> SequenceModel:
    """The network for a vocabulary. Raises a ValueError if the configuration is impossible for it."""

    def build() -> SequenceModel:
        core = make_core(config.core)
        return SequenceModel(core, vocabulary, config.cutoffs, config.divisor, config.tied, config.dropout)

    return build_network(build, config)


def _parse_size(words: str) -> dict[str, int | None]:
    """Tables 8 and 9: MEMORY:COMPRESSED slots, None for the model's own."""
    slots: list[int | None] = []
    try:
        for word in words.split(":"):
            slots.append(int(word) if word else None)
        memory, compressed = slots
    except ValueError:
        raise ValueError(f"sizes: expected MEMORY:COMPRESSED such as 768:3072, got {words!r}") from None
    return {"memory_size": memory, "compressed_size": compressed}


def _measured(total: Total) -> dict[str, Any]:
    """The loss of a bucket for JSON; None if no target is in it."""
    if not total.count:
        return {"nats": None, "perplexity": None, "count": 0}
    return {"nats": total.mean, "perplexity": evaluation.perplexity(total.mean, 1), "count": total.count}
