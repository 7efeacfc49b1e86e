"""The configuration of a language-modelling run, and presets: the paper's three models and small ones for CPUs.

`docs/decisions.md` says what the paper leaves open. Everything in a preset can be overridden.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from agent.core import (
    CORES,
    CompressiveTransformerConfig,
    CoreConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    TransformerXLConfig,
)
from agent.fields import AtLeast0, Checked, Count, Positive, Range, Several
from learner.sequence_learner import SequenceLearnerConfig
from text.corpora import CORPORA
from text.model import TextModelConfig


@dataclass(frozen=True)
class TextConfig(Checked):
    """A training run; `compressive text train` writes it, resolved, to the run's `config.json`."""

    preset: str = "cpu"
    """Where other defaults come from: cpu (small, on Python's source), enwik8, wikitext103 or pg19 (the paper's)."""
    corpus: str = "python"
    """Text: python (the standard library's source, which every machine has), enwik8, wikitext103, pg19, or folder."""
    path: str | None = None
    """Where it is: the file of enwik8, the folder of the others. Not given, wikitext103 and pg19 are downloaded."""
    tokens: Literal["bytes", "words", "subwords"] = "bytes"
    """What a token is."""
    vocabulary: Positive | None = None
    """Words (most frequent) or subwords; None for all words, or 32,000 subwords."""
    reset_documents: bool = False
    """Forget everything where a document begins; the paper does not."""
    seed: Count = 0
    """Seed of weights and dropout."""
    learners: Several = 1
    """Learners that share each batch, placed by Ray Train, one a GPU; 1 learns in this process."""
    log_every: Positive = 20
    """Updates between two rows of metrics."""
    evaluate_every: Annotated[int, Range(2, 2**63 - 1)] | None = 1_000
    """Steps between two evaluations on the split valid, and one at the end; None for none."""
    evaluate_rows: Several = 16
    """Parts of a split that an evaluation reads side by side; 1 gives every token all of its context."""
    evaluate_tokens: Annotated[int, Range(2, 2**63 - 1)] | None = 200_000
    """Tokens of the split valid in an evaluation while training; None for all."""
    checkpoint_seconds: AtLeast0 = 60.0
    """Time between two checkpoints; the last one, at the end or at Ctrl-C, is written in any case."""
    keep_checkpoints: Positive = 3
    """How many of the newest checkpoints are kept."""
    model: TextModelConfig = field(default_factory=TextModelConfig)
    """The network."""
    learner: SequenceLearnerConfig = field(default_factory=SequenceLearnerConfig)
    """The learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpus not in CORPORA:
            raise ValueError(f"corpus: expected one of {', '.join(CORPORA)}, got {self.corpus!r}")
        self.learner.require_whole_segments(self.model.core)

    @property
    def core_name(self) -> str:
        """The core's name in `agent.core.CORES`."""
        return next(name for name, (kind, _) in CORES.items() if type(self.model.core) is kind)


def _cores(
    transformer: dict[str, Any], memory: int, compressed: int, rate: int, baseline: int | None = None
) -> dict[str, CoreConfig]:
    """Every core at one size; Transformer-XL gets the compressed slots as memory (or `baseline`): equal attention cost.

    Local attention is Transformer-XL without memory: within the segment alone.
    """
    slots = memory + compressed if baseline is None else baseline
    size, layers, mlp = (transformer[name] for name in ("model_size", "num_layers", "mlp_size"))
    return {
        "compressive": CompressiveTransformerConfig(
            **transformer, memory_size=memory, compressed_size=compressed, compression_rate=rate
        ),
        "transformer-xl": TransformerXLConfig(**transformer, memory_size=slots),
        "local": TransformerXLConfig(**transformer, memory_size=0),
        "gated-transformer-xl": GatedTransformerXLConfig(**{**transformer, "norm": "pre"}, memory_size=slots),
        "lstm": LSTMConfig(size, layers),
        "gru": GRUConfig(size, layers),
        "mingru": MinGRUConfig(size, layers, mlp),
        "memoryless": MemorylessConfig(size, layers, mlp),
    }


def cpu(core: str) -> TextConfig:
    """Bytes of Python's source on one CPU thread, in some six minutes; `make text` compares cores with it."""
    transformer = {
        "model_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "mlp_size": 512,
        "segment_size": 64,
        "norm": "pre",
    }
    return TextConfig(
        model=TextModelConfig(core=_cores(transformer, 64, 64, 4)[core], tied=False),
        evaluate_every=500,
        learner=SequenceLearnerConfig(
            batch_size=16,
            sequence_length=64,
            steps=1_800,
            learning_rate=6e-3,
            least_learning_rate=1e-5,
            warmup_steps=100,
            decay_steps=1_700,
            max_gradient_norm=1.0,
            late_start=None,
        ),
    )


def enwik8(core: str) -> TextConfig:
    """Section 5.2 and appendix B: 24 layers, 277 M parameters; evaluated with 3,072 compressed slots (`--sizes`)."""
    transformer = {
        "model_size": 1024,
        "num_layers": 24,
        "num_heads": 8,
        "mlp_size": 3072,
        "segment_size": 768,
        "dropout": 0.15,
    }
    return TextConfig(
        preset="enwik8",
        corpus="enwik8",
        evaluate_every=4_000,
        evaluate_tokens=None,
        checkpoint_seconds=600,
        model=TextModelConfig(core=_cores(transformer, 768, 1152, 3, 2304)[core], tied=False, dropout=0.15),
        learner=SequenceLearnerConfig(batch_size=64, sequence_length=768, precision="bfloat16"),
    )


def wikitext103(core: str) -> TextConfig:
    """Section 5.3 and appendix B: 18 layers, 512 slots of each kind, adaptive input and softmax."""
    transformer = {
        "model_size": 1024,
        "num_layers": 18,
        "num_heads": 16,
        "mlp_size": 4096,
        "segment_size": 512,
        "dropout": 0.2,
    }
    return TextConfig(
        preset="wikitext103",
        corpus="wikitext103",
        tokens="words",
        evaluate_every=4_000,
        evaluate_rows=1,
        evaluate_tokens=None,
        checkpoint_seconds=600,
        model=TextModelConfig(
            core=_cores(transformer, 512, 512, 4)[core], cutoffs=(20_000, 40_000, 200_000), dropout=0.2
        ),
        learner=SequenceLearnerConfig(
            batch_size=128,
            sequence_length=512,
            steps=516_000,
            warmup_steps=16_000,
            decay_steps=500_000,
            precision="bfloat16",
        ),
    )


def pg19(core: str) -> TextConfig:
    """Section 5.1: 36 layers, 32,000 subwords, batches of 512; widths are those of WikiText-103's model."""
    config = wikitext103(core)
    transformer = {
        "model_size": 1024,
        "num_layers": 36,
        "num_heads": 16,
        "mlp_size": 4096,
        "segment_size": 512,
    }
    return dataclasses.replace(
        config,
        preset="pg19",
        corpus="pg19",
        tokens="subwords",
        vocabulary=32_000,
        evaluate_rows=16,
        model=TextModelConfig(core=_cores(transformer, 512, 512, 2)[core]),
        learner=dataclasses.replace(config.learner, batch_size=512),
    )


PRESETS: dict[str, Callable[[str], TextConfig]] = {
    "cpu": cpu,
    "enwik8": enwik8,
    "wikitext103": wikitext103,
    "pg19": pg19,
}


def make_preset(preset: str, core: str) -> TextConfig:
    """A preset by name.

    Raises:
        ValueError: names the preset or the core that does not exist, and those that do.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    cores = _cores({"model_size": 2, "num_layers": 1, "num_heads": 1, "mlp_size": 1, "segment_size": 4}, 4, 4, 4)
    if core not in cores:
        raise ValueError(f"core: expected one of {', '.join(cores)}, got {core!r}")
    return PRESETS[preset](core)
