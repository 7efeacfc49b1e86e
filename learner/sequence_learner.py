"""Training and evaluation of sequence models, shared by text and speech: streams of tokens in, next-token losses out.

The batches come from `streams`; the loop around `SequenceLearner`, with its files, is `training.sequence`. Several
learners share batches by `communicator`.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from agent.core import State, concatenate_states, detach_state, index_state, map_state, state_to, take_up_state
from agent.fields import Above0, AtLeast0, Checked, Count, Decay, Positive, Several, Size
from agent.language_model import IGNORE, SequenceModel
from learner.communicator import DataParallel
from learner.learner import resolve_device
from learner.optimization import copy_to_cpu, gradient_norm, load_optimizer, not_finite, split_parameters, sum_gradients
from learner.streams import Batch, Source


@dataclass(frozen=True)
class SequenceLearnerConfig(Checked):
    """The paper's recipe (section 5) for characters. A step is one batch; an update may take several.

    Impossible values raise a ValueError that names field, expectation and value.
    """

    batch_size: Several = 16
    """Rows of a batch, each a stream of its own, over all learners."""
    sequence_length: Size = 768
    """Tokens a row and step: a multiple of the core's segment_size, for whole segments."""
    steps: Positive = 104_000
    """Steps of training."""
    learning_rate: Above0 = 3e-4
    """Adam's learning rate after warm-up."""
    least_learning_rate: AtLeast0 = 1e-6
    """Where warm-up begins and the cosine ends."""
    warmup_steps: Count = 4_000
    """Steps of linear warm-up."""
    decay_steps: Count = 100_000
    """Steps of the cosine that follows."""
    adam_beta1: Decay = 0.9
    """Decay of the mean of the gradient."""
    adam_beta2: Decay = 0.999
    """Decay of the mean of the squared gradient."""
    adam_epsilon: Above0 = 1e-8
    """Added to the root of the mean squared gradient."""
    max_gradient_norm: Above0 | None = 0.1
    """Gradients longer than this are scaled to it, those of the compression apart from all others; none for never."""
    update_every: Positive = 1
    """Steps whose gradients make one update: accumulation over time."""
    late_step: Count | None = 60_000
    """From this step on updates are rarer (section 5.5.1); none for never."""
    late_update_every: Positive = 4
    """Steps of an update from late_step on."""
    microbatches: Several = 1
    """Parts in which the rows of a batch go through the model, one after the other, if all at once do not fit."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What matrix products are computed in; weights and optimizer are float32."""
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
        """Raises a ValueError if a sequence is no whole number of segments of the core of this config."""
        segment = getattr(core, "segment_size", 1)
        whole = self.sequence_length % segment == 0
        self._require("sequence_length", whole, f"a multiple of the core's segment_size = {segment}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then a cosine back to where it began, then constant."""
        least, most = self.least_learning_rate, self.learning_rate
        if step < self.warmup_steps:
            return least + (most - least) * step / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.decay_steps))
        return least + (most - least) * (1 + math.cos(math.pi * progress)) / 2

    def steps_of_update(self, step: int) -> int:
        """How many steps the update that begins at a step takes; the last one may be cut short by the end."""
        late = self.late_step is not None and step >= self.late_step
        return min(self.late_update_every if late else self.update_every, max(1, self.steps - step))


class SequenceLearner:
    """Trains a sequence model on the batches of a source.

    The loss is the mean negative log-likelihood of the targets plus the core's own losses with weight 1. Gradients do
    not flow from one step to the next; the memory does.

    Attributes:
        model: what is trained, moved to the device.
        step: batches learned from.
        updates: updates of the weights.
        tokens: targets learned from, of all learners.
    """

    def __init__(
        self,
        model: SequenceModel,
        source: Source,
        config: SequenceLearnerConfig,
        parallel: DataParallel | None = None,
    ) -> None:
        """Makes a learner at step 0.

        Args:
            model: see the class.
            source: of batches of `config.batch_size` rows or, of several learners, of this one's equal part of them.
            config: how to learn.
            parallel: the learners that share each batch; none by default. They must have equal weights.

        Raises:
            ValueError: if the rows cannot be shared, or a compression parameter is not a parameter of the model.
        """
        self.config, self.source = config, source
        self.parallel = parallel or DataParallel()
        self.device = resolve_device(config.device)
        self.model = model.to(self.device)
        if self.parallel.size > 1:
            model.share_batch(self.parallel.sum)
        parts = self.parallel.size * config.microbatches
        if config.batch_size % parts:
            raise ValueError(
                f"batch_size: expected a multiple of {parts} (learners x microbatches), got {config.batch_size}"
            )
        self.rows = config.batch_size // self.parallel.size
        self.state: State = model.initial_state(self.rows)
        self.step = self.updates = self.tokens = 0
        self._call = torch.compile(model) if config.compile else model
        self._main, self._compression = split_parameters(model)
        self._optimizer = torch.optim.Adam(
            [{"params": self._main}, {"params": self._compression}],
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
        )

    def update(self) -> dict[str, float]:
        """Learns from as many batches as the update takes.

        Returns:
            metrics of all of them by name: losses as they enter the total (nats a token, and the core's own), gradient
            norms before clipping, learning rate, steps of the update.

        Raises:
            FloatingPointError: if a loss or a gradient is not finite; names which. Weights, optimizer, memory and
                counters are then as they were before the call. All learners that share the batch raise it.
            PeerLost: if another learner was lost; likewise with nothing changed.
        """
        steps = self.config.steps_of_update(self.step)
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        state, tokens = self.state, torch.zeros((), dtype=torch.int64, device=self.device)
        sums: dict[str, Tensor] = {}
        for step in range(self.step, self.step + steps):
            batch = self._next(step)
            count = self.parallel.sum((batch.targets != IGNORE).sum())
            tokens = tokens + count
            state = self._accumulate(batch, state, count, steps, sums)
        sum_gradients(self.model.parameters(), self.parallel)
        main_norm, compression_norm = gradient_norm(self._main), gradient_norm(self._compression)

        totals = self.parallel.sum(torch.stack(list(sums.values())).to(main_norm))
        stacked = torch.cat([totals, torch.stack([main_norm, compression_norm.to(main_norm)])])
        *values, learned = torch.cat([stacked.double(), tokens.double().view(1)]).tolist()
        metrics: dict[str, float] = dict(zip([*sums, "gradient/norm", "gradient/compression_norm"], values))
        bad = [f"{name} = {value}" for name, value in metrics.items() if not math.isfinite(value)]
        if bad:
            message = f"parameters with such gradients: {not_finite(self.model)}"
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"step {self.step + steps} is not finite: {', '.join(bad)}; {message}.")

        if self.config.max_gradient_norm is not None:
            clip_grads_with_norm_(self._main, self.config.max_gradient_norm, main_norm)
            clip_grads_with_norm_(self._compression, self.config.max_gradient_norm, compression_norm)
        metrics["learning_rate"] = self.config.learning_rate_at(self.step + steps - 1)
        for group in self._optimizer.param_groups:
            group["lr"] = metrics["learning_rate"]
        self._optimizer.step()
        self.state = state
        self.step += steps
        self.updates += 1
        self.tokens += round(learned)
        return metrics | {"update/steps": float(steps)}

    def _next(self, step: int) -> Batch:
        batch = self.source.next(step)
        if batch.tokens.shape[0] != self.rows:
            raise ValueError(f"tokens of the source: expected {self.rows} rows, got {list(batch.tokens.shape)}")
        return state_to(batch, self.device)

    def _accumulate(self, batch: Batch, state: State, count: Tensor, steps: int, sums: dict[str, Tensor]) -> State:
        """Adds a step's part of the update to the gradients, and its losses to `sums`; returns the memory after it."""
        states, parts = [], self.config.microbatches
        rows = self.rows // parts
        for begin in range(0, self.rows, rows):
            part = state if parts == 1 else index_state(state, slice(begin, begin + rows))
            tokens, targets, reset = index_state(batch, slice(begin, begin + rows))
            with autocast(self.device, self.config.precision):
                output = self._call(tokens, reset, part, targets)
            losses = {"loss/nll": output.nll.sum() / count.clamp(min=1) / steps}
            losses |= {f"loss/{name}": loss / (parts * steps) for name, loss in output.losses.items()}
            torch.stack(list(losses.values())).sum().backward()
            for name, loss in losses.items():
                sums[name] = sums[name] + loss.detach() if name in sums else loss.detach()
            states.append(detach_state(output.state))
        return states[0] if parts == 1 else concatenate_states(states)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: copies, on the CPU, of weights, optimizer and the memory of all rows,
        the position of the source and the counters. Of several learners all must ask for it together."""
        return {
            "weights": copy_to_cpu(self.model.state_dict()),
            "optimizer": copy_to_cpu(self._optimizer.state_dict()),
            "memory": map_state(lambda leaf: copy_to_cpu(self.parallel.gather(leaf)), self.state),
            "source": self.source.state_dict(),
            "step": self.step,
            "updates": self.updates,
            "tokens": self.tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state that `state_dict` gave; the number of learners, and how they learn, may be another.

        Raises:
            RuntimeError, ValueError: if weights, optimizer, memory or source are those of something else.
        """
        memory = take_up_state(state["memory"], map_state(Tensor.cpu, self.model.initial_state(self.config.batch_size)))
        self.source.load_state_dict(state["source"])
        self.model.load_state_dict(state["weights"])
        load_optimizer(self._optimizer, state["optimizer"])
        own = slice(self.parallel.rank * self.rows, (self.parallel.rank + 1) * self.rows)
        self.state = state_to(map_state(lambda leaf: leaf[own].clone(), memory), self.device)
        self.step, self.updates, self.tokens = (int(state[name]) for name in ("step", "updates", "tokens"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Mixed precision where it is asked for."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def score(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> Iterator[tuple[Batch, Tensor]]:
    """Yields every batch with the negative log-likelihoods [B, T] of its targets, in nats; memory goes on between them.

    Dropout is off, gradients are, and keys and values of memory are projected once a segment.
    """
    device = next(model.parameters()).device
    state = None
    was_training = model.training
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
    """nll: sum over the targets in nats, added up in float64. count: of targets."""

    nll: float
    count: int

    @property
    def mean(self) -> float:
        """Nats a target."""
        return self.nll / max(1, self.count)


def evaluate(model: SequenceModel, batches: Iterable[Batch], precision: str = "float32") -> Total:
    """The loss of all batches; see `score` and `streams.one_pass`."""
    total, count = 0.0, 0
    for batch, nll in score(model, batches, precision):
        total += float(nll.double().sum())
        count += int((batch.targets != IGNORE).sum())
    return Total(total, count)
