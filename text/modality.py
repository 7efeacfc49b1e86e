"""Text as a modality: which corpus, which network, and what is measured on held-out text."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from agent.core import make_core
from agent.language_model import SequenceModel
from agent.memory_check import build_network
from learner.modality import Counting, Modality, Table, quiet
from learner.sequence_learner import evaluate
from text import corpora, evaluation, tokens
from text.config import TextConfig, TextEvaluation, TextModelConfig
from text.tokenization import Bytes


class Text(Modality):
    """A corpus as tokens, and a language model of it; see `learner.modality.Modality`."""

    config: TextConfig

    def __init__(self, config: TextConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.tokenizer, self.splits, self.digest = tokens.open_tokens(folder)

    @classmethod
    def prepare(cls, config: TextConfig, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        """See `Modality`."""
        corpus = corpora.load(config.corpus, None if config.path is None else Path(config.path))
        return cls(config, tokens.prepare(config.corpus, corpus, config.tokens, config.vocabulary, show=show))

    def record(self) -> dict[str, Any]:
        """See `Modality`; the tokenizer is what sampling needs."""
        return {"digest": self.digest, **self.tokenizer.to_plain()}

    def describe(self) -> str:
        """See `Modality`."""
        sizes = ", ".join(f"{name} {split.bytes:,}" for name, split in self.splits.items())
        return f"{self.config.corpus}: bytes of {sizes}; {self.tokenizer.vocabulary:,} {self.config.tokens}"

    def make_model(self) -> SequenceModel:
        """See `Modality`."""
        return make_model(self.config.model, self.tokenizer.vocabulary)

    def unit(self, nll: float) -> str:
        """See `Modality`: bits for bytes, else perplexity."""
        if isinstance(self.tokenizer, Bytes):
            return f"{evaluation.bits_per_character(nll, 1):.3f} bpc"
        return f"{evaluation.perplexity(nll, 1):.1f} ppl"

    def validate(self, model: SequenceModel) -> dict[str, float]:
        """See `Modality`."""
        split = self.splits["valid"].first(self.config.evaluate_tokens)
        total = evaluate(model, self.batches(split, self.config.evaluate_rows), self.config.learner.precision)
        found = evaluation.summary(total, split, self.tokenizer)
        return {"valid/nll": found.pop("nats_per_token"), **{f"valid/{name}": value for name, value in found.items()}}

    def final_options(self) -> TextEvaluation:
        """See `Modality`."""
        return TextEvaluation(rows=self.config.evaluate_rows)

    def evaluate(
        self, model: SequenceModel, options: TextEvaluation, count: Counting = quiet
    ) -> Iterator[dict[str, Any]]:
        """See `Modality`; dynamic evaluation changes the model."""
        part, precision = self.splits[options.split], self.config.learner.precision
        sizes = [_parse_size(words) for words in options.sizes]
        if options.attention or options.compression:
            evaluation.require_attention(model)
        read = partial(self.batches, part, options.rows, count)
        begin = time.monotonic()
        total = evaluate(model, read(f"measuring {options.split}"), precision)
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
            "tokens_per_second": total.count / max(time.monotonic() - begin, 1e-9),
        }
        if sizes:
            totals = evaluation.by_memory(model, lambda: read("other sizes"), sizes, precision)
            names = ("memory_size", "compressed_size")
            yield {
                "sizes": [
                    dict(zip(names, size)) | evaluation.summary(total, part, self.tokenizer) for size, total in totals
                ]
            }
        if options.frequency:
            counts = evaluation.counts(self.splits["train"], self.tokenizer.vocabulary)
            buckets = evaluation.by_frequency(model, read("by frequency"), counts, precision)
            yield {
                "frequency": {
                    name: {"nats": each.mean if each.count else None, "count": each.count}
                    for name, each in buckets.items()
                }
            }
        if options.position:
            positions = evaluation.by_position(model, read("by position"), precision)
            yield {"position": [{"from": first, "nats": each.mean, "count": each.count} for first, each in positions]}
        segment = getattr(self.config.core_config, "segment_size", 1)
        if options.attention:
            yield {"attention": evaluation.attention(model, read("attention", segment))._asdict()}
        if options.compression:
            yield {"compression": evaluation.compression_loss(model, read("compression loss", segment))}
        if options.dynamic is not None:
            device = str(next(model.parameters()).device)
            learning = dataclasses.replace(self.config.learner, device=device)
            try:
                total = evaluation.dynamic(model, read("dynamic"), learning, options.dynamic)
            except FloatingPointError as error:
                raise ValueError(
                    f"dynamic: expected a smaller learning rate, got {options.dynamic}: {error}"
                ) from error
            yield {"dynamic": {"learning_rate": options.dynamic, **evaluation.summary(total, part, self.tokenizer)}}

    def tables(self, part: dict[str, Any]) -> Iterator[Table]:
        """See `Modality`."""
        if "split" in part:
            bits = [("bits a byte", f"{part['bits_per_byte']:.4f}")] if "bits_per_byte" in part else []
            words = f", over the {part['words']:,} words that PG-19 prescribes" if part["words_prescribed"] else ""
            yield [
                (f"split {part['split']}", f"{part['tokens']:,} tokens of {part['bytes']:,} bytes"),
                *bits,
                ("perplexity a word", f"{part['word_perplexity']:.6g}{words}"),
                ("nats a token", f"{part['nats_per_token']:.4f}"),
                ("tokens a second", f"{part['tokens_per_second']:,.0f}"),
            ]
        if "sizes" in part:
            rows: list[tuple[str, ...]] = [("memory", "compressed", "bits a byte", "perplexity a word")]
            for each in part["sizes"]:
                slots = (
                    "own" if each[name] is None else str(each[name]) for name in ("memory_size", "compressed_size")
                )
                bits_a_byte = f"{each['bits_per_byte']:.4f}" if "bits_per_byte" in each else "-"
                rows.append((*slots, bits_a_byte, f"{each['word_perplexity']:.2f}"))
            yield rows
        if "frequency" in part:
            rows_of = part["frequency"].items()
            perplexities = {
                name: f"{evaluation.perplexity(each['nats'], 1):.2f}" if each["count"] else "-"
                for name, each in rows_of
            }
            yield [
                ("times in training text", "perplexity", "tokens"),
                *((name, perplexities[name], str(each["count"])) for name, each in rows_of),
            ]
        if "position" in part:
            yield [
                ("tokens of context", "nats a token", "tokens"),
                *(
                    (f"{each['from']} to {2 * each['from'] - 1}", f"{each['nats']:.4f}", str(each["count"]))
                    for each in part["position"]
                ),
            ]
        if "attention" in part:
            found = zip(*(part["attention"][name] for name in ("kinds", "mean", "error")))
            yield [
                ("bucket, oldest first", "attention", "standard error"),
                *((kind, f"{mean:.4f}", "-" if error is None else f"{error:.4f}") for kind, mean, error in found),
            ]
        for name, title in (("compression", "compression loss"), ("dynamic", "dynamic evaluation")):
            if name in part:
                yield [(title, ""), *((key, f"{value:.6g}") for key, value in part[name].items())]


def make_model(config: TextModelConfig, vocabulary: int) -> SequenceModel:
    """The network for a vocabulary. Raises a ValueError if the configuration is impossible for it."""
    sizes = vocabulary, config.cutoffs, config.divisor, config.tied, config.dropout
    return build_network(lambda: SequenceModel(make_core(config.core), *sizes), config)


def _parse_size(words: str) -> tuple[int | None, int | None]:
    try:
        memory, compressed = (int(word) if word else None for word in words.split(":"))
    except ValueError:
        raise ValueError(f"sizes: expected MEMORY:COMPRESSED such as 768:3072, got {words!r}") from None
    return memory, compressed
