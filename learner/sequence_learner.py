"""Training and evaluation of sequence models on streams of tokens; the loss is that of the next token.

`SequenceLearner` updates the weights; `train` is the loop around it with its files. `streams` supplies the tokens.
Several learners share batches through `communicator`. No Ray.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent.core import State, concatenate_states, detach_state, index_state, map_state, restore_state, state_to
from agent.fields import Above0, AtLeast0, Checked, Count, Decay, Positive, Several, Size
from agent.language_model import IGNORE, SequenceModel
from learner import checkpoints
from learner.communicator import Communicator
from learner.learner import resolve_device
from learner.losses import reduce_losses
from learner.metrics import MetricsWriter
from learner.optimization import Optimization, copy_to_cpu, weights_to_cpu
from learner.streams import Batch, Source


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
    """Parts of a batch that the model processes one after the other, to save memory."""
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


class SequenceLearner:
    """Trains a sequence model on the batches of a source.

    The loss is the mean negative log-likelihood of the targets plus the core's own losses. Memory is kept from step to
    step; gradients do not flow through it.

    Args:
        model: the model, which is moved to the device.
        source: batches of `config.batch_size` rows or, with several learners, of this learner's equal part of them.
        config: options.
        comm: the learners that share each batch. They must have equal weights.

    Attributes:
        step: number of batches learned from.
        updates: number of updates of the weights.
        tokens: targets learned from, over all learners.

    Raises:
        ValueError: if the rows cannot be divided, or a compression parameter is not a parameter of the model.
    """

    def __init__(
        self, model: SequenceModel, source: Source, config: SequenceLearnerConfig, comm: Communicator | None = None
    ) -> None:
        self.config, self.source = config, source
        self.comm = comm or Communicator()
        self.device = resolve_device(config.device)
        self.model = model.to(self.device)
        parts = self.comm.size * config.microbatches
        if config.batch_size % parts:
            raise ValueError(
                f"batch_size: expected a multiple of {parts} (learners x microbatches), got {config.batch_size}"
            )
        self.rows = config.batch_size // self.comm.size
        self.state: State = model.initial_state(self.rows)
        self.step = self.updates = self.tokens = 0
        self._call = torch.compile(model) if config.compile else model
        betas = (config.adam_beta1, config.adam_beta2)
        adam = functools.partial(torch.optim.Adam, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
        self._optimization = Optimization(model, adam, config.max_gradient_norm, self.comm)

    @property
    def parallel(self) -> Communicator:
        """Former name of `comm`, which the functions below use."""
        return self.comm

    def update(self) -> dict[str, float]:
        """Learns from the batches of one update.

        Returns:
            metrics by name, means over the update: losses as they enter the total (nats per token, and the core's own),
            gradient norms before clipping, learning rate, number of steps.

        Raises:
            FloatingPointError: if a loss or a gradient is not finite; names which. Weights, optimizer, memory and
                counters are unchanged. All learners that share the batch raise it.
            PeerLost: if another learner was lost; nothing was changed.
        """
        steps = self.config.steps_of_update(self.step)
        self.model.train()
        self._optimization.zero_grad()
        state, tokens = self.state, torch.zeros((), dtype=torch.int64, device=self.device)
        sums: dict[str, Tensor] = {}
        for step in range(self.step, self.step + steps):
            batch = self._next(step)
            count = self.comm.sum((batch.targets != IGNORE).sum())
            tokens = tokens + count
            state = self._accumulate(batch, state, count, steps, sums)
        learning_rate = self.config.learning_rate_at(self.step + steps - 1)
        metrics = self._optimization.step(sums, learning_rate, f"step {self.step + steps}")
        self.state = state
        self.step += steps
        self.updates += 1
        self.tokens += int(tokens)
        return metrics | {"learning_rate": learning_rate, "update/steps": float(steps)}

    def _next(self, step: int) -> Batch:
        batch = self.source.next(step)
        if batch.tokens.shape[0] != self.rows:
            raise ValueError(f"tokens of the source: expected {self.rows} rows, got {list(batch.tokens.shape)}")
        return state_to(batch, self.device)

    def _accumulate(self, batch: Batch, state: State, count: Tensor, steps: int, sums: dict[str, Tensor]) -> State:
        """Adds a step's share of the update to the gradients, and its losses to `sums`; returns the next state."""
        states, parts = [], self.config.microbatches
        rows = self.rows // parts
        for begin in range(0, self.rows, rows):
            part = state if parts == 1 else index_state(state, slice(begin, begin + rows))
            tokens, targets, reset = index_state(batch, slice(begin, begin + rows))
            with autocast(self.device, self.config.precision):
                output = self._call(tokens, reset, part, targets)
            losses = {"loss/nll": output.nll.sum() / count.clamp(min=1) / steps}
            auxiliary = reduce_losses(output.losses, self.comm.sum)
            losses |= {f"loss/{name}": loss / (parts * steps) for name, loss in auxiliary.items()}
            torch.stack(list(losses.values())).sum().backward()
            for name, loss in losses.items():
                sums[name] = sums[name] + loss.detach() if name in sums else loss.detach()
            states.append(detach_state(output.state))
        return states[0] if parts == 1 else concatenate_states(states)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: copies, on the CPU, of weights, optimizer state and the memory of all
        rows; the source's state and the counters. All learners that share batches must call it together."""
        return {
            "weights": weights_to_cpu(self.model),
            "optimizer": self._optimization.state_dict(),
            "memory": map_state(lambda leaf: copy_to_cpu(self.comm.gather(leaf)), self.state),
            "source": self.source.state_dict(),
            "step": self.step,
            "updates": self.updates,
            "tokens": self.tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned. The number of learners and the options may differ.

        Raises:
            RuntimeError, ValueError: if weights, optimizer, memory or source do not fit.
        """
        memory = restore_state(state["memory"], map_state(Tensor.cpu, self.model.initial_state(self.config.batch_size)))
        self.source.load_state_dict(state["source"])
        self.model.load_state_dict(state["weights"])
        self._optimization.load_state_dict(state["optimizer"])
        own = slice(self.comm.rank * self.rows, (self.comm.rank + 1) * self.rows)
        self.state = state_to(map_state(lambda leaf: leaf[own].clone(), memory), self.device)
        self.step, self.updates, self.tokens = (int(state[name]) for name in ("step", "updates", "tokens"))


_COUNTERS = {"step": int, "updates": int, "tokens": int}
STATE = {"learner": {"optimizer": dict, "memory": object, "source": dict, **_COUNTERS}, "rng": dict}
"""What `restore` needs of the state that `save` writes, as `checkpoints.require` takes it."""


def save(learner: SequenceLearner, run: Path, config: dict[str, Any], keep: int) -> Path | str | None:
    """Writes a checkpoint of a learner; of several, all must call it together and the first one writes.

    Args:
        config: the run's configuration as JSON can hold it.
        keep: how many of the newest are kept.

    Raises:
        OSError: if the disk is full or not writable.
    """
    state = learner.state_dict()
    if learner.comm.rank:
        return None
    tensors = {name: checkpoints.flatten(state.pop(name)) for name in ("optimizer", "memory")}
    parts = {"weights": state.pop("weights")} | {name: part for name, (part, _) in tensors.items()}
    counters = state | {name: plain for name, (_, plain) in tensors.items()}
    content = {"learner": counters, "rng": checkpoints.rng_state(), "config": config}
    return checkpoints.save(run, learner.step, parts, content, keep)


def restore(learner: SequenceLearner, run: Path) -> checkpoints.Checkpoint:
    """Goes on from a run's last readable checkpoint, with its random generators.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it does not fit the learner.
    """
    checkpoint = checkpoints.load_latest(run)
    try:
        checkpoints.require(checkpoint.state, STATE, "state")
        checkpoints.require(checkpoint.parts, {"weights": dict, "optimizer": dict, "memory": dict}, "parts")
        checkpoints.check_rng(checkpoint.state["rng"])
        state = dict(checkpoint.state["learner"])
        for name in ("optimizer", "memory"):
            state[name] = checkpoints.unflatten(checkpoint.parts[name], state[name])
        learner.load_state_dict(state | {"weights": checkpoint.parts["weights"]})
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{checkpoint.path} does not fit: {error}") from error
    checkpoints.restore_rng(checkpoint.state["rng"])
    return checkpoint


def set_apart(learner: SequenceLearner) -> None:
    """Lets each of several learners draw dropout masks of its own; the first one draws what one alone would draw."""
    if rank := learner.comm.rank:
        seed = np.random.SeedSequence([torch.initial_seed(), rank, learner.step]).generate_state(1)[0]
        torch.manual_seed(int(seed))


class Progress(NamedTuple):
    """What a display shows while training goes on.

    step, total: steps so far and in all. tokens_per_second: over all learners, without evaluations. tokens_per_step:
    of all rows. nll: mean of the last updates in nats a token. valid: the last evaluation's metrics, if there was one.
    """

    step: int
    total: int
    tokens_per_second: float
    tokens_per_step: int
    nll: float
    valid: dict[str, float]


def train(
    learner: SequenceLearner,
    run: Path,
    config: dict[str, Any],
    *,
    log_every: int = 20,
    checkpoint_seconds: float = 60.0,
    keep: int = 3,
    evaluate: Callable[[SequenceModel], dict[str, float]] | None = None,
    evaluate_every: int | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Path | str | None:
    """Trains until all steps are done or `stop` says so; leaves a checkpoint either way and returns its path.

    A new run begins with one, so that it can be resumed whatever happens, and a full disk shows at once. Of several
    learners the first one writes, shows and evaluates.

    Args:
        learner: at step 0, or restored.
        run: the run's folder; made for a learner at step 0.
        config: the run's configuration, for its checkpoints.
        log_every: updates between two rows of metrics.
        checkpoint_seconds: time between two checkpoints.
        keep: how many of the newest checkpoints are kept.
        evaluate: measures the model; its metrics join the rows under their own names.
        evaluate_every: steps between two evaluations; none for no evaluation. There is one at the end, too.
        show: is called after every update.
        stop: whether the user wants to stop; asked after every update.

    Raises:
        OSError: if the run's folder cannot be written to.
        FloatingPointError: see `SequenceLearner.update`; the checkpoints before are there.
    """
    total, first = learner.config.steps, learner.comm.rank == 0
    if learner.step == 0:
        run.mkdir(parents=True, exist_ok=True)
    saved = save(learner, run, config, keep) if learner.step == 0 else None
    writer: AbstractContextManager[Any] = MetricsWriter(run, learner.step) if first else nullcontext()
    recent, valid = _Recent(learner), {}
    written = time.monotonic()
    stopping = learner.step >= total
    with writer as rows:
        while not stopping:
            metrics = learner.update()
            recent.add(metrics["loss/nll"])
            done = learner.step >= total
            row = metrics if learner.updates % log_every == 0 or done else {}
            if first and evaluate and evaluate_every and _passed(learner, metrics, evaluate_every, done):
                valid = recent.pause(lambda: evaluate(learner.model))
                row = metrics | valid
            if first and row:
                rows.write(
                    learner.step, row | {"speed/tokens_per_second": recent.rate(), "learner/tokens": learner.tokens}
                )
            if first:
                size = learner.config.batch_size * learner.config.sequence_length
                show(Progress(learner.step, total, recent.rate(), size, recent.mean(), valid))
            due, stopping = _agree(learner, time.monotonic() - written > checkpoint_seconds, done or stop())
            if due or stopping:
                saved, written = save(learner, run, config, keep), time.monotonic()
    return saved


def _passed(learner: SequenceLearner, metrics: dict[str, float], every: int, done: bool) -> bool:
    """Whether the last update passed a multiple of `every` steps, or was the last one."""
    before = learner.step - int(metrics["update/steps"])
    return done or learner.step // every > before // every


def _agree(learner: SequenceLearner, *wishes: bool) -> list[bool]:
    """What any of the learners wishes: their clocks and signals differ, but they must do the same."""
    if learner.comm.size == 1:
        return list(wishes)
    return [bool(wish) for wish in learner.comm.max(torch.tensor(wishes, device=learner.device).long()).tolist()]


class _Recent:
    """The last updates: tokens a second and the mean loss."""

    def __init__(self, learner: SequenceLearner, window: float = 10.0, momentum: float = 0.95) -> None:
        self.learner, self.window, self.momentum = learner, window, momentum
        self.marks = [(time.monotonic(), learner.tokens)]
        self.value, self.weight = 0.0, 0.0

    def add(self, nll: float) -> None:
        self.value = self.momentum * self.value + (1 - self.momentum) * nll
        self.weight = self.momentum * self.weight + (1 - self.momentum)
        self.marks.append((time.monotonic(), self.learner.tokens))
        while len(self.marks) > 2 and self.marks[-1][0] - self.marks[0][0] > self.window:
            self.marks.pop(0)

    def pause(self, work: Callable[[], Any]) -> Any:
        """Does something whose time does not count."""
        begin = time.monotonic()
        result = work()
        self.marks = [(then + time.monotonic() - begin, tokens) for then, tokens in self.marks]
        return result

    def rate(self) -> float:
        (begin, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / max(end - begin, 1e-9)

    def mean(self) -> float:
        return self.value / self.weight


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Mixed precision for "bfloat16"; nothing for "float32"."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def score(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> Iterator[tuple[Batch, Tensor]]:
    """Yields every batch with the negative log-likelihoods [B, T] of its targets, in nats; memory is kept between them.

    Without dropout and gradients; keys and values of memory are projected once per segment.
    """
    device, state, was_training = next(model.parameters()).device, None, model.training
    model.eval()
    try:
        for batch in batches:
            with torch.no_grad(), autocast(device, precision):
                moved = state_to(batch, device)
                if state is None:
                    state = model.core.with_cache(model.initial_state(len(moved.tokens)))
                output = model(moved.tokens, moved.reset, state, moved.targets)
            state = output.state
            yield batch, output.nll.cpu()
    finally:
        model.train(was_training)


@dataclass(frozen=True)
class Total:
    """nll: sum over the targets in nats, accumulated in float64. count: number of targets."""

    nll: float
    count: int

    @property
    def mean(self) -> float:
        """Nats per target."""
        return self.nll / max(1, self.count)


def evaluate(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> Total:
    """The loss over all batches; see `score` and `streams.one_pass`."""
    total, count = 0.0, 0
    for batch, nll in score(model, batches, precision):
        total += float(nll.double().sum())
        count += int((batch.targets != IGNORE).sum())
    return Total(total, count)
