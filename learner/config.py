"""Configurations of learners and of the training of sequence models. Nothing here imports torch."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from agent.core.fields import (
    Above0,
    AtLeast0,
    Checked,
    Count,
    Decay,
    Fraction,
    Positive,
    Precision,
    Range,
    Several,
    Size,
)

Config = TypeVar("Config")


def make_preset(presets: Mapping[str, Callable[[str], Config]], cores: Iterable[str], preset: str, core: str) -> Config:
    """A preset by name, with a core by name; raises a ValueError that lists the names if there is no such one."""
    for name, value, known in (("preset", preset, presets), ("core", core, cores)):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return presets[preset](core)


@dataclass(frozen=True)
class LearnerConfig(Checked):
    """Options of the learner. Impossible values raise a ValueError that names field, expectation and value."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer. The IMPALA paper used rmsprop; transformers are usually trained with adam."""
    learning_rate: Above0 = 1e-4
    """Learning rate at the first step."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to 0 over the run's frames (--schedule-frames)."""
    adam_beta1: Decay = 0.9
    """Adam: decay of the mean of the gradient."""
    adam_beta2: Decay = 0.999
    """Adam: decay of the mean of the squared gradient."""
    adam_epsilon: Above0 = 1e-6
    """Adam: added to the root of the mean squared gradient."""
    rmsprop_decay: Decay = 0.99
    """RMSProp: decay of the mean of the squared gradient."""
    rmsprop_epsilon: Above0 = 0.1
    """RMSProp: added to the root of the mean squared gradient (PyTorch's; TensorFlow's stands under the root)."""
    rmsprop_momentum: Decay = 0.0
    """RMSProp: momentum."""
    discount: Fraction = 0.99
    """Gamma, per agent step."""
    entropy_cost: AtLeast0 = 2e-3
    """Weight of the entropy bonus at the first step."""
    entropy_cost_end: AtLeast0 | None = None
    """If given, the weight of the entropy bonus changes linearly to this over the run's frames (--schedule-frames)."""
    schedule_start: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of these frames before learning rate and entropy cost begin to change."""
    baseline_cost: AtLeast0 = 0.5
    """Weight of the value function's loss, itself half the squared error."""
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric"] = "none"
    """How rewards are clipped for learning. The returns that the run reports are never clipped."""
    reward_scale: Above0 = 1.0
    """Factor of the rewards after clipping."""
    popart: bool = False
    """PopArt: normalize values by task, so that tasks whose rewards differ in size are learned equally. For use with
    reward_clipping none."""
    popart_rate: Above0 = 0.01
    """PopArt: share of each batch in the running mean and variance of the values."""
    max_gradient_norm: Above0 | None = 2.5
    """Longer gradients are scaled to this norm, those of the compression separately; none does not clip. A good value
    depends on `reduction`: the IMPALA paper clips sums at 40."""
    clip_rho: Above0 | None = 1.0
    """Threshold rho-bar of the importance weights of the value targets; none does not clip."""
    clip_c: Above0 | None = 1.0
    """Threshold c-bar of the importance weights of the traces, at most `clip_rho`; none does not clip."""
    clip_pg_rho: Above0 | None = 1.0
    """Threshold of the importance weights of the policy gradient; none does not clip."""
    lambda_: Fraction = 1.0
    """Factor of the V-trace traces; 1 is IMPALA, 0 means one-step targets and two-step advantages."""
    reduction: Literal["sum", "mean"] = "mean"
    """sum over batch and time as IMPALA, or mean over the steps in the loss mask."""
    device: str = "auto"
    """Where to learn: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    precision: Precision = "float32"
    """Precision of matrix products and convolutions; auto is bfloat16 where the device computes it fast. Weights,
    losses, V-trace and the heads are float32."""
    compile: bool = False
    """Compile the torso in the first update, which may then last a minute; torch caches the result on the disk. For
    GPUs: on CPUs the compiled torso was slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.clip_c or math.inf) > (self.clip_rho or math.inf):
            highest = f"at most clip_rho = {self.clip_rho} (IMPALA, section 4.1)"
            raise ValueError(f"clip_c: expected {highest}, got {self.clip_c!r}")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when a share `progress`, 0 to 1, of the schedule's frames is over."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 - self._changed(progress))

    def entropy_cost_at(self, progress: float) -> float:
        """The weight of the entropy bonus when a share `progress`, 0 to 1, of the schedule's frames is over."""
        if self.entropy_cost_end is None:
            return self.entropy_cost
        return self.entropy_cost + (self.entropy_cost_end - self.entropy_cost) * self._changed(progress)

    def _changed(self, progress: float) -> float:
        """The share of the change that is over: 0 until `schedule_start`, then linear to 1."""
        return max(0.0, progress - self.schedule_start) / (1 - self.schedule_start)


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """Reuse of recent unrolls, section 5 of the IMPALA paper. Impossible values raise a ValueError."""

    share: Annotated[float, Range(0, 0.95)] = 0.0
    """Share of replayed rows in each batch. Batches keep their size, so there are two updates with 0.5, and four with
    0.75, where there is one without. 0 learns from every unroll once."""
    unrolls: Several = 50
    """How many of the newest unrolls (of envs_per_actor rows) are kept; rows are drawn from them uniformly. They are in
    the memory of the learner's device and, with --local, in each checkpoint."""
    burn_in: Count = 0
    """Steps of a replayed unroll that bring its recorded memory up to date with the present weights, and that are not
    learned from; a multiple of the core's segment_size."""


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
    decay_steps: Count = 100_000
    """Steps of the cosine after warm-up."""
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
        self._require("microbatches", self.batch_size % self.microbatches == 0, f"a divisor of {self.batch_size} rows")

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
        least, most = self.least_learning_rate, self.learning_rate
        if step < self.warmup_steps:
            return least + (most - least) * step / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.decay_steps))
        return least + (most - least) * (1 + math.cos(math.pi * progress)) / 2

    def steps_of_update(self, step: int) -> int:
        """Number of steps of the update that begins at a step; the last update may have fewer."""
        late = self.late_start is not None and step >= self.late_start
        steps = self.late_accumulation_steps if late else self.accumulation_steps
        return min(steps, max(1, self.steps - step))


def require_any_device(device: str, learners: int) -> None:
    """Raises a ValueError if several learners are to be on one certain GPU."""
    if learners > 1 and device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"learner.device: expected auto, cpu or cuda for {learners} learners, got {device!r}")


@dataclass(frozen=True)
class SequenceConfig(Checked):
    """The training of a sequence model. Impossible values raise a ValueError that names the field.

    A subclass has the class attributes `kind` and `cores` of `training.config`. `fixed` has prefixes of the names of
    fields that a resumed run cannot change, because its checkpoints depend on them.
    """

    kind = ""
    fixed: ClassVar[tuple[str, ...]] = ("preset", "seed", "reset_at_starts", "model")
    fixed += ("learner.batch_size", "learner.sequence_length")

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
        raise NotImplementedError

    def located(self, absolute: Callable[[str], str], path: str | None = None) -> Self:
        """The same configuration with data at another path, or at its own, made absolute."""
        raise NotImplementedError
