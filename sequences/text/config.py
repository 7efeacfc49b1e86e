"""The configuration of a language model's run, and presets: the paper's three models and a small one for CPUs.

`docs/decisions.md` says what the paper leaves open. Everything in a preset can be overridden.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from agent.core.config import CORES, CompressiveTransformerConfig, CoreConfig, TransformerXLConfig, matched_cores
from agent.core.fields import Above0, AtLeast0, Checked, Count, Decay, Positive, Range, Several, Size
from sequences.config import SequenceConfig, SequenceLearnerConfig, short_training
from sequences.text.corpora import CORPORA
from training.config import find_preset

LEAST_VOCABULARY = {"bytes": math.inf, "words": 3, "subwords": 258}
"""By kind of tokens. The vocabulary of bytes cannot be chosen."""


@dataclass(frozen=True)
class TextModelConfig(Checked):
    """The network; the tokenizer decides its vocabulary."""

    core: CoreConfig = field(default_factory=CompressiveTransformerConfig)
    """The recurrent core."""
    cutoffs: tuple[Size, ...] = ()
    """Adaptive input and softmax: where clusters of rarer tokens begin (20000,40000,200000 for WikiText-103); none for
    one full softmax."""
    divisor: Size = 4
    """How much narrower the vectors of each cluster are than those of the one before."""
    tied: bool = True
    """One table of vectors for input and softmax."""
    dropout: Decay = 0.0
    """Dropout on embeddings and on the core's features during training; the core has its own."""


@dataclass(frozen=True)
class TextConfig(SequenceConfig):
    """A language model's run; `compressive text train` writes it, resolved, to the run's `config.json`."""

    kind: ClassVar[str] = "text"
    cores: ClassVar[Mapping[str, type[Checked]]] = CORES
    core_field: ClassVar[str] = "model.core"
    score: ClassVar[str] = "word_perplexity"
    fixed: ClassVar[tuple[str, ...]] = (*SequenceConfig.fixed, "corpus", "tokens", "vocabulary")

    corpus: str = "python"
    """Text: python (the standard library's source, which every machine has), enwik8, wikitext103, pg19, or folder."""
    path: str | None = None
    """Where it is: the file of enwik8, the folder of the others. If not given, wikitext103 and pg19 are downloaded."""
    tokens: Literal["bytes", "words", "subwords"] = "bytes"
    """What a token is."""
    vocabulary: Positive | None = None
    """Words (most frequent) or subwords; None for all words, or 32,000 subwords."""
    evaluate_rows: Several = 16
    """Parts of a split that an evaluation reads side by side; 1 gives every token all of its context."""
    model: TextModelConfig = field(default_factory=TextModelConfig)
    """The network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus not in CORPORA:
            raise ValueError(f"corpus: expected one of {', '.join(CORPORA)}, got {self.corpus!r}")
        if self.vocabulary is not None and self.vocabulary < LEAST_VOCABULARY[self.tokens]:
            expected = "None for bytes, 3 or more words, or 258 or more subwords"
            raise ValueError(f"vocabulary: expected {expected}, got {self.vocabulary} {self.tokens}")

    def located(self, absolute: Callable[[str], str], path: str | None = None) -> Self:
        if path is None:
            path = self.path
        if path is None:
            return self
        return dataclasses.replace(self, path=absolute(path))


def _cores(
    transformer: dict[str, Any], memory: int, compressed: int, rate: int, baseline: int | None = None
) -> dict[str, CoreConfig]:
    """Every core at one size, and local attention: Transformer-XL without memory."""
    layers = transformer["num_layers"]
    matched = matched_cores(transformer, memory, compressed, rate, baseline, recurrent_layers=layers)
    return matched | {"local": TransformerXLConfig(**transformer, memory_size=0)}


def cpu(core: str) -> TextConfig:
    """Bytes of Python's source on one CPU thread, in about six minutes; `make text` compares cores with it."""
    sizes = {"model_size": 128, "num_layers": 2, "num_heads": 4, "mlp_size": 512, "segment_size": 64, "norm": "pre"}
    return TextConfig(
        model=TextModelConfig(core=_cores(sizes, 64, 64, 4)[core], tied=False),
        evaluate_every=500,
        learner=short_training(rows=16, length=64, steps=1_800, learning_rate=6e-3),
    )


def _paper(preset: str, model: TextModelConfig, learner: SequenceLearnerConfig, **fields: Any) -> TextConfig:
    """What the paper's three models share; the rest of their recipe is the default of `SequenceLearnerConfig`."""
    return TextConfig(
        preset=preset,
        corpus=preset,
        evaluate_every=4_000,
        evaluate_tokens=None,
        checkpoint_seconds=600,
        model=model,
        learner=dataclasses.replace(learner, precision="bfloat16"),
        **fields,
    )


def enwik8(core: str) -> TextConfig:
    """Section 5.2 and appendix B: 24 layers; evaluated with 3,072 compressed slots (`--sizes`).

    353 M parameters, of which 76 M are those of the compression.
    """
    sizes = {"model_size": 1024, "num_layers": 24, "num_heads": 8, "mlp_size": 3072, "segment_size": 768}
    cores = _cores({**sizes, "dropout": 0.15}, 768, 1152, 3, 2304)
    learner = SequenceLearnerConfig(batch_size=64, sequence_length=768)
    return _paper("enwik8", TextModelConfig(core=cores[core], tied=False, dropout=0.15), learner)


_LONG_SIZES = {"model_size": 1024, "num_heads": 16, "mlp_size": 4096, "segment_size": 512}
_LONG = SequenceLearnerConfig(
    batch_size=128, sequence_length=512, steps=516_000, warmup_steps=16_000, decay_steps=500_000
)


def wikitext103(core: str) -> TextConfig:
    """Section 5.3 and appendix B: 18 layers, 512 slots of each kind, adaptive input and softmax."""
    cores = _cores({**_LONG_SIZES, "num_layers": 18, "dropout": 0.2}, 512, 512, 4)
    model = TextModelConfig(core=cores[core], cutoffs=(20_000, 40_000, 200_000), dropout=0.2)
    return _paper("wikitext103", model, _LONG, tokens="words", evaluate_rows=1)


def pg19(core: str) -> TextConfig:
    """Section 5.1: 36 layers, 32,000 subwords, batches of 512; the widths are those of WikiText-103's model."""
    cores = _cores({**_LONG_SIZES, "num_layers": 36}, 512, 512, 2)
    learner = dataclasses.replace(_LONG, batch_size=512)
    return _paper("pg19", TextModelConfig(core=cores[core]), learner, tokens="subwords", vocabulary=32_000)


PRESETS = {"cpu": cpu, "enwik8": enwik8, "wikitext103": wikitext103, "pg19": pg19}

make_preset = functools.partial(find_preset, PRESETS, [*CORES, "local"])
"""The configuration of a text run, given the names of a preset and a core."""


@dataclass(frozen=True, kw_only=True)
class TextEvaluation(Checked):
    """What to measure on held-out text."""

    split: Literal["train", "valid", "test"] = "test"
    """Which text."""
    rows: Several = 1
    """Parts that are read side by side: faster, but each begins with empty memory."""
    sizes: tuple[str, ...] = ()
    """Also with other numbers of slots, MEMORY:COMPRESSED (Tables 8 and 9), such as 768:1024 768:3072; :3072 keeps the
    memory."""
    frequency: bool = False
    """By the number of occurrences of a token in the training text (Table 7; for words)."""
    position: bool = False
    """By the number of tokens of context."""
    attention: bool = False
    """Attention by eighteen buckets of memory (Figure 2)."""
    compression: bool = False
    """The compression loss by layer (Figure 6)."""
    dynamic: Above0 | None = None
    """Dynamic evaluation: learn from each part of the text after it was scored, with this learning rate."""


@dataclass(frozen=True, kw_only=True)
class TextSampling(Checked):
    """How to continue a prompt."""

    prompt: str | None = None
    """What to continue; - for standard input, which may be far longer than the memory. If not given, a new document."""
    length: Positive = 500
    """Tokens to draw."""
    temperature: AtLeast0 = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_p: Annotated[float, Range(0, 1.0, above=True)] = 0.98
    """Nucleus: the most probable tokens that have this probability together; 1 for all."""
    seed: Count = 0
    """Seed of the draws."""
