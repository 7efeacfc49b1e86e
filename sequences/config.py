"""Configurations of the learner and of the training of sequence models, and what their presets share. Nothing here
imports torch."""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from agent.core.fields import (
    Above0,
    AtLeast0,
    Checked,
    Count,
    Decay,
    Positive,
    Range,
    Several,
    Size,
    Slots,
)
from learner.config import require_any_device

Config = TypeVar("Config")


@dataclass(frozen=True)
class SequenceLearnerConfig(Checked):
    """The paper's recipe (section 5) for characters. A step is one batch; an update accumulates one or more steps.

    Impossible values raise a ValueError that names field, expectation and value.
    """

    batch_size: Several = 16
    """Rows of a batch over all learners; each row is a stream."""
    sequence_length: Size = 768
    """Tokens per row and step, a multiple of the core's segment_size."""
    steps: Positive = 104_000
    """Steps of training."""
    learning_rate: Above0 = 3e-4
    """Adam's learning rate after warm-up."""
    least_learning_rate: AtLeast0 = 1e-6
    """Learning rate at which warm-up begins and the cosine ends."""
    warmup_steps: Count = 4_000
    """Steps of linear warm-up."""
    decay_steps: Count | None = 100_000
    """Steps of the cosine after warm-up; none for all that are left."""
    adam_beta1: Decay = 0.9
    """Decay of the mean of the gradient."""
    adam_beta2: Decay = 0.999
    """Decay of the mean of the squared gradient."""
    adam_epsilon: Above0 = 1e-8
    """Added to the root of the mean squared gradient."""
    max_gradient_norm: Above0 | None = 0.1
    """Longer gradients are scaled to this norm, those of the compression separately; none does not clip."""
    accumulation_steps: Positive = 1
    """Steps whose gradients are accumulated for one update."""
    late_start: Count | None = 60_000
    """Step from which `late_accumulation_steps` holds (section 5.5.1); none for never."""
    late_accumulation_steps: Positive = 4
    """Steps whose gradients are accumulated for one update from late_start on."""
    microbatches: Several = 1
    """Parts of a batch that the model processes one after the other, to save memory. Cores with losses of their own
    (compression, routing) then compute each part twice: first to count the terms of these losses in the whole batch."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; weights and optimizer state are float32."""
    compile: bool = False
    """Compile the model; the first steps then take a minute or more."""
    device: str = "auto"
    """Where to learn: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("least_learning_rate", self.least_learning_rate <= self.learning_rate, "0 to learning_rate")

    def _require(self, name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    def require_whole_segments(self, core: Any) -> None:
        """Raises a ValueError if `sequence_length` is not a multiple of the segment size of a core's configuration."""
        segment = getattr(core, "segment_size", 1)
        whole = self.sequence_length % segment == 0
        self._require("sequence_length", whole, f"a multiple of the core's segment_size = {segment}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then a cosine decay, then constant."""
        least = self.least_learning_rate
        span = self.learning_rate - least
        if step < self.warmup_steps:
            return least + span * step / self.warmup_steps
        decay_steps = self.decay_steps
        if decay_steps is None:
            decay_steps = self.steps - self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, decay_steps))
        return least + span * (1 + math.cos(math.pi * progress)) / 2

    def steps_of_update(self, step: int) -> int:
        """Number of steps of the update that begins at a step; the last update may have fewer."""
        is_late = self.late_start is not None and step >= self.late_start
        steps = self.late_accumulation_steps if is_late else self.accumulation_steps
        left = max(1, self.steps - step)
        return min(steps, left)


@dataclass(frozen=True)
class SequenceConfig(Checked):
    """The training of a sequence model. Impossible values raise a ValueError that names the field.

    See `training.config.Configuration` for the class attributes, of which a subclass sets `kind`, `cores` and `score`.
    """

    kind: ClassVar[str] = ""
    cores: ClassVar[Mapping[str, type[Checked]]] = {}
    core_field: ClassVar[str] = "model"
    score: ClassVar[str] = ""
    fixed: ClassVar[tuple[str, ...]] = (
        "preset",
        "seed",
        "reset_at_starts",
        "model",
        "learner.batch_size",
        "learner.sequence_length",
    )

    preset: str = "cpu"
    """Where all other defaults come from; a wrong name lists those that exist."""
    seed: Count = 0
    """Seed of weights and dropout."""
    learners: Several = 1
    """Learners that share each batch, one a GPU or CPU, on Ray; 1 learns in the program's own process."""
    reset_at_starts: bool = False
    """Reset the memory where a document or a file starts; the paper does not."""
    log_every: Positive = 20
    """Updates between two rows of metrics."""
    evaluate_every: Positive | None = 1_000
    """Steps between two evaluations on the validation split; there is also one at the end. None for no evaluation."""
    evaluate_tokens: Annotated[int, Range(2, 2**63 - 1)] | None = 200_000
    """Tokens (samples of sound) of the validation split in each of these evaluations; None for all."""
    checkpoint_seconds: AtLeast0 = 60.0
    """Time between two checkpoints; there is also one at the end or after Ctrl-C."""
    keep_checkpoints: Positive = 3
    """How many of the newest checkpoints are kept."""
    keep_every: Count = 0
    """Of each so many batches, the first checkpoint is kept as well; 0 for none."""
    learner: SequenceLearnerConfig = field(default_factory=SequenceLearnerConfig)
    """The learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner.require_whole_segments(self.core_config)
        parts = self.learners * self.learner.microbatches
        if self.learner.batch_size % parts:
            expected = f"a multiple of {parts} (learners x microbatches)"
            raise ValueError(f"learner.batch_size: expected {expected}, got {self.learner.batch_size}")
        require_any_device(self.learner.device, self.learners)

    @property
    def core_config(self) -> Any:
        """The configuration of the core."""
        return operator.attrgetter(self.core_field)(self)

    @property
    def goal(self) -> tuple[str, int]:
        """See `training.config.Configuration`."""
        return "step", self.learner.steps

    def located(self, absolute: Callable[[str], str], path: str | None = None) -> Self:
        """The same configuration with data at another path, or at its own, made absolute."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MemorySizes(Checked):
    """Sizes of memory in an evaluation, where they may be others than in training."""

    memory_size: Slots | None = None
    """Another size of the memory than the model was trained with."""
    compressed_size: Slots | None = None
    """Another size of the compressed memory than the model was trained with."""


def short_training(
    rows: int, length: int, steps: int, learning_rate: float, least_learning_rate: float = 1e-5
) -> SequenceLearnerConfig:
    """The recipe of presets for minutes on a CPU: 100 steps of warm-up, a cosine to the end, one step an update."""
    return SequenceLearnerConfig(
        batch_size=rows,
        sequence_length=length,
        steps=steps,
        learning_rate=learning_rate,
        least_learning_rate=least_learning_rate,
        warmup_steps=100,
        decay_steps=None,
        max_gradient_norm=1.0,
        late_start=None,
    )


def with_corpus_at(config: Config, path: str | None, absolute: Callable[[str], str], generated: str) -> Config:
    """A configuration with its `corpus` at another path, or at its own, made absolute unless it is `generated`."""
    corpus = config.corpus  # type: ignore[attr-defined]
    if path is None:
        path = corpus.path
    if path != generated:
        path = absolute(path)
    corpus = dataclasses.replace(corpus, path=path)
    return dataclasses.replace(config, corpus=corpus)  # type: ignore[type-var]
