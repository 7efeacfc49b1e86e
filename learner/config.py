"""Configurations of learners and of replay. Nothing here imports torch."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from agent.core.fields import (
    Above0,
    AtLeast0,
    Checked,
    Count,
    Decay,
    Fraction,
    Precision,
    Range,
    Several,
)


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
    exploration: Literal["entropy", "evenness"] = "entropy"
    """What the entropy cost weighs: the policy's entropy, or -KL(uniform || policy), whose gradient does not vanish
    where a choice has become improbable. Numbers have their entropy in both cases."""
    schedule_start: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of these frames before learning rate, entropy cost and the teacher's cost begin to change."""
    teacher_cost: AtLeast0 = 0.0
    """Weight, at the first step, of the losses of imitating a teacher: the agent of the run's `from_run`, which sees
    the second of two views, such as `own_view` of rooms. 0 for no teacher."""
    teacher_cost_end: AtLeast0 | None = None
    """If given, the weight of the teacher's losses changes linearly to this over the run's frames."""
    baseline_cost: AtLeast0 = 0.5
    """Weight of the value function's loss, itself half the squared error."""
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric"] = "none"
    """How rewards are clipped for learning. The returns that the run reports are never clipped."""
    reward_scale: Above0 = 1.0
    """Factor of the rewards after clipping."""
    normalize_advantages: bool = False
    """Divide the advantages of each update by their root mean square, so that the entropy cost means the same whatever
    the size of rewards. With PopArt the divisor is at least the root mean square of the task's rewards, and before a
    first reward advantages are 0: they would be errors of the value function."""
    trust: Above0 | None = None
    """The clip of PPO (Schulman et al. 2017), for learning from rows several times: an action has no policy gradient
    once its probability is more than 1 + trust times that when it was taken, if its advantage is positive, or less than
    1 / (1 + trust) times that, if it is negative (PPO: 1 - trust). None for no limit."""
    popart: bool = False
    """PopArt: normalize values by task, so that tasks whose rewards differ in size are learned equally. For use with
    reward_clipping none."""
    popart_rate: Annotated[float, Range(0, 1.0, above=True)] = 0.01
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
    losses, V-trace and the heads are float32. On NVIDIA GPUs torch rounds the factors of float32's convolutions to
    TF32, unless torch.backends.cudnn.allow_tf32 is off."""
    compile: bool = False
    """Compile the torso in the first update, which may then last a minute; torch caches the result on the disk. For
    GPUs: on CPUs the compiled torso was slower."""
    cuda_graph: bool = True
    """Replay updates as one CUDA graph, on a GPU with Adam and a single learner: the host starts an update as a whole
    instead of kernel by kernel. Agents that read instructions do without. With `resident`, unrolls are such graphs,
    too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # None does not clip.
        highest_rho = math.inf if self.clip_rho is None else self.clip_rho
        highest_c = math.inf if self.clip_c is None else self.clip_c
        if highest_c > highest_rho:
            expected = f"at most clip_rho = {self.clip_rho} (IMPALA, section 4.1)"
            raise ValueError(f"clip_c: expected {expected}, got {self.clip_c!r}; a lower clip_rho needs a lower clip_c")
        if self.teacher_cost_end is not None and not self.teacher_cost:
            raise ValueError(f"teacher_cost_end: expected none without teacher_cost, got {self.teacher_cost_end}")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate when a share `progress`, 0 to 1, of the schedule's frames is over."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 - self._changed(progress))

    def entropy_cost_at(self, progress: float) -> float:
        """The weight of the entropy bonus when a share `progress`, 0 to 1, of the schedule's frames is over."""
        return self._between(self.entropy_cost, self.entropy_cost_end, progress)

    def teacher_cost_at(self, progress: float) -> float:
        """The weight of the teacher's losses when a share `progress`, 0 to 1, of the schedule's frames is over."""
        return self._between(self.teacher_cost, self.teacher_cost_end, progress)

    def _between(self, begin: float, end: float | None, progress: float) -> float:
        if end is None:
            return begin
        return begin + (end - begin) * self._changed(progress)

    def _changed(self, progress: float) -> float:
        """The share of the change that is over: 0 until `schedule_start`, then linear to 1."""
        return max(0.0, progress - self.schedule_start) / (1 - self.schedule_start)


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """Reuse of recent unrolls, section 5 of the IMPALA paper. Impossible values raise a ValueError."""

    share: Annotated[float, Range(0, 0.95)] = 0.0
    """Share of replayed rows in each batch. Updates keep their number of rows, and batches become larger: there are two
    updates with 0.5, and four with 0.75, where there is one without. 0 learns from every unroll once."""
    unrolls: Several = 50
    """How many of the newest unrolls (of envs_per_actor rows) are kept; rows are drawn from them uniformly. They are in
    the memory of the learner's device and, with --local, in each checkpoint, which may have 2 GB of them."""
    burn_in: Count = 0
    """Steps of a replayed unroll that bring its recorded memory up to date with the present weights, and that are not
    learned from; a multiple of the core's segment_size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in and not self.share:
            raise ValueError(f"burn_in: expected 0 where no unrolls are replayed (share 0), got {self.burn_in}")


def require_any_device(device: str, learners: int) -> None:
    """Raises a ValueError if several learners are to be on one certain GPU."""
    if learners > 1 and device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"learner.device: expected auto, cpu or cuda for {learners} learners, got {device!r}")
