"""A speech run: its configuration, its presets, and what `learner.sequence_learner` trains.

Section 5.6 of the paper: unconditional modelling of waveforms, streams in chunks of 3,840 samples (160 ms at 24 kHz;
the paper says 80), 32 rows, memory that goes on from chunk to chunk.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch

from agent.fields import AtLeast0, Checked, Count, Positive, Range, Several
from agent.language_model import IGNORE, SequenceModel
from learner.communicator import Communicator
from learner.sequence_learner import SequenceLearner, SequenceLearnerConfig, Total, score
from learner.streams import Streams, one_pass
from speech import models
from speech.corpus import Corpus, CorpusConfig, Split, thin
from speech.models import SPEECH_CORES, SpeechCoreConfig


@dataclass(frozen=True)
class SpeechConfig(Checked):
    """Everything that decides what a run learns. Impossible values raise a ValueError that names the field."""

    preset: str = "cpu"
    """Where the defaults come from: cpu or paper."""
    seed: Count = 0
    """Of weights and dropout."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """The sound."""
    model: SpeechCoreConfig = field(default_factory=lambda: models.cpu("compressive"))
    """The recurrent core; embedding and softmax have its width."""
    learner: SequenceLearnerConfig = field(default_factory=SequenceLearnerConfig)
    """The learner; a step is one chunk of every row."""
    learners: Several = 1
    """Learners that share each batch, one a GPU, by Ray Train."""
    reset_at_files: bool = False
    """Forget all where a file begins; the paper's memory goes on."""
    validate_every: Positive = 200
    """Steps between two evaluations on the validation split."""
    validation_samples: Positive = 40_000
    """Of the validation split, in pieces spread over it, in each of these evaluations."""
    log_every: Positive = 10
    """Updates between two rows of metrics."""
    checkpoint_seconds: AtLeast0 = 60.0
    """Time between two checkpoints."""
    keep_checkpoints: Positive = 2
    """How many of the newest are kept."""
    sample_seconds: Annotated[float, Range(0, 3600.0)] = 0.5
    """Length of the samples that are drawn at the end, after as much of a real clip; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner.require_whole_segments(self.model)

    @property
    def core_name(self) -> str:
        """The core's name in `speech.models.SPEECH_CORES`."""
        return next(name for name, (config, _) in SPEECH_CORES.items() if type(self.model) is config)


def make_preset(preset: str, core: str) -> SpeechConfig:
    """The complete configuration of a preset for a core.

    Raises:
        ValueError: if there is no such preset or core.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    if core not in SPEECH_CORES:
        raise ValueError(f"core: expected one of {', '.join(SPEECH_CORES)}, got {core!r}")
    return PRESETS[preset](core)


def _cpu(core: str) -> SpeechConfig:
    """Minutes on two CPU cores."""
    learner = SequenceLearnerConfig(
        batch_size=8,
        sequence_length=256,
        steps=3_000,
        learning_rate=4e-3,
        least_learning_rate=1e-4,
        warmup_steps=100,
        decay_steps=2_900,
        max_gradient_norm=1.0,
        late_start=None,
    )
    return SpeechConfig("cpu", model=models.cpu(core), learner=learner)


def _paper(core: str) -> SpeechConfig:
    """Section 5.6; the learning rate is that of section 5, for the paper names none for speech."""
    learner = SequenceLearnerConfig(
        batch_size=32,
        sequence_length=3840,
        steps=400_000,
        decay_steps=396_000,
        late_start=None,
        precision="bfloat16",
    )
    return SpeechConfig(
        "paper", model=models.paper(core), learner=learner, validate_every=2_000, validation_samples=2_000_000
    )


PRESETS = {"cpu": _cpu, "paper": _paper}


def make_learner(config: SpeechConfig, corpus: Corpus, comm: Communicator | None = None) -> SequenceLearner:
    """A learner at step 0, on the training split.

    Raises:
        ValueError: if the corpus is shorter than one batch, or the device is not there.
    """
    torch.manual_seed(config.seed)
    comm = comm or Communicator()
    train = corpus.splits["train"]
    starts = train.starts if config.reset_at_files else None
    source = Streams(
        train.tokens,
        config.learner.batch_size,
        config.learner.sequence_length,
        starts,
        (comm.rank, comm.size),
    )
    return SequenceLearner(models.make_model(config.model), source, config.learner, comm)


def held_out(config: SpeechConfig, corpus: Corpus, split: str, samples: int | None = None) -> Split:
    """What a model is measured on: a split or, spread over it, at most so many of its samples."""
    part = corpus.splits[split]
    return part if samples is None else thin(part, samples, _rows(config, samples))


def _rows(config: SpeechConfig, samples: int) -> int:
    """Parts in which so many samples are read side by side: as many as a batch has rows, unless they get too short."""
    return max(1, min(config.learner.batch_size, samples // (4 * config.learner.sequence_length)))


def measure(config: SpeechConfig, model: SequenceModel, part: Split) -> dict[str, Any]:
    """Negative log-likelihood: "nats" and "bits" per sample, "samples", of which it is the mean, and "files", nats per
    sample of each by its name.

    The part is read in as many contiguous rows as a batch has, fewer where it is short, with memory that goes on.
    """
    rows, length = _rows(config, len(part.tokens)), config.learner.sequence_length
    starts = part.starts if config.reset_at_files else None
    names, numbers = np.unique(part.files, return_inverse=True)
    numbers = np.repeat(numbers.astype(np.min_scalar_type(len(names))), np.diff(part.starts, append=len(part.tokens)))
    losses, counts = np.zeros(len(names)), np.zeros(len(names), np.int64)
    scored = score(model, one_pass(part.tokens, rows, length, starts), config.learner.precision)
    # The second pass reads the file's number where the first reads a sample.
    for (batch, nll), where in zip(scored, one_pass(numbers, rows, length, starts)):
        kept = batch.targets != IGNORE
        index = where.targets[kept].numpy()
        losses += np.bincount(index, nll[kept].double().numpy(), len(names))
        counts += np.bincount(index, minlength=len(names))
    total = Total(float(losses.sum()), int(counts.sum()))
    files = {str(name): float(loss / count) for name, loss, count in zip(names, losses, counts) if count}
    return {"nats": total.mean, "bits": total.mean / math.log(2), "samples": total.count, "files": files}


def validation_metrics(config: SpeechConfig, corpus: Corpus, model: SequenceModel) -> dict[str, float]:
    """The metrics of an evaluation while training goes on: "valid/nll" in nats and "valid/bits", per sample."""
    measured = measure(config, model, held_out(config, corpus, "validation", config.validation_samples))
    return {"valid/nll": measured["nats"], "valid/bits": measured["bits"]}
