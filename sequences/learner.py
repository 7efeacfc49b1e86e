"""Training and evaluation of sequence models on streams of tokens; the loss is that of the next token.

The batches come from `streams`; the loop around `SequenceLearner`, with its files, is `sequences.trainer`. Several
learners share batches through `communicator`.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from agent.core import State, concatenate_states, detach_state, index_state, map_state, restore_state, state_to
from agent.precision import autocast
from learner.communicator import Communicator
from learner.learner import resolve_device
from learner.losses import reduce_losses
from learner.optimization import Optimization, copy_to_cpu, snapshot
from sequences.config import SequenceLearnerConfig
from sequences.model import IGNORE, SequenceModel, SequenceOutput
from sequences.streams import Batch, Streams

Result = TypeVar("Result")


class SequenceLearner:
    """Trains a sequence model on the batches of a source.

    The loss is the mean negative log-likelihood of the targets plus the core's own losses. Memory is kept from step to
    step; gradients do not flow through it.

    Args:
        model: is moved to the device.
        source: batches of `config.batch_size` rows or, with several learners, of this learner's equal part of them.
        comm: the learners that share each batch. They must have equal weights.

    Attributes:
        step: number of batches learned from.
        updates: number of updates of the weights.
        tokens: targets learned from, over all learners.

    Raises:
        ValueError: if a compression parameter is not a parameter of the model.
    """

    has_whole_state = False  # each has the memory of its rows only
    episodes: Sequence[Any] = ()

    def __init__(
        self, model: SequenceModel, source: Streams, config: SequenceLearnerConfig, comm: Communicator | None = None
    ) -> None:
        self.config = config
        self.source = source
        self.comm = comm or Communicator()
        self.device = resolve_device(config.device)
        self.model = model.to(self.device)

        # The rows of each batch are shared by the learners. `SequenceConfig` has checked that they can be.
        self.rows = config.batch_size // self.comm.size
        self.state: State = model.initial_state(self.rows)
        self.step = 0
        self.updates = 0
        self.tokens = 0

        self._call = torch.compile(model) if config.compile else model
        adam = functools.partial(
            torch.optim.Adam,
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            fused=True,  # a kernel for all parameters at once
        )
        self._optimization = Optimization(model, adam, config.max_gradient_norm, self.comm)

    def update(self) -> dict[str, float]:
        """Learns from the batches of one update.

        Returns:
            metrics by name, means over the update: losses as they enter the total (nats per token, and the core's own),
            gradient norms before clipping, learning rate, number of steps.

        Raises:
            NotFinite: if a loss or a gradient is not finite; names which. Weights, optimizer, memory and counters are
                unchanged. All learners that share the batch raise it.
            PeerLost: if another learner was lost; nothing was changed.
        """
        steps = self.config.steps_of_update(self.step)
        self.model.train()
        self._optimization.zero_grad()

        # Gradients of all batches of the update.
        state = self.state
        tokens = torch.zeros((), dtype=torch.int64, device=self.device)
        sums: dict[str, Tensor] = {}
        for step in range(self.step, self.step + steps):
            batch = state_to(self.source.next(step), self.device)
            count = self.comm.sum((batch.targets != IGNORE).sum())
            tokens = tokens + count
            state = self._accumulate(batch, state, count, steps, sums)

        # One step of the optimizer. What it raises leaves the memory and the counters as they were.
        learning_rate = self.config.learning_rate_at(self.step + steps - 1)
        metrics = self._optimization.step(sums, learning_rate, "step", self.step + steps)
        self.state = state
        self.step += steps
        self.updates += 1
        self.tokens += int(tokens)
        return metrics | {"learning_rate": learning_rate, "update/steps": float(steps)}

    def _accumulate(self, batch: Batch, state: State, count: Tensor, steps: int, sums: dict[str, Tensor]) -> State:
        """Adds a step's share of the update to the gradients, and its losses to `sums`; returns the next state."""
        parts = self._split(batch, state)
        terms: dict[str, Tensor] = {}
        if len(parts) > 1:
            terms = self._count_terms(parts)

        states = []
        for part, before in parts:
            output = self._forward(part, before)

            # The loss of the next token, and those of the core. A part with few terms of the latter weighs little: its
            # sums are divided by the numbers of terms of all parts.
            assert output.nll is not None
            losses = {"loss/nll": output.nll.sum() / count.clamp(min=1) / steps}
            of_core = {}
            for name, mean in output.losses.items():
                of_core[name] = mean._replace(count=terms.get(name, mean.count))
            for name, loss in reduce_losses(of_core, self.comm.sum).items():
                losses[f"loss/{name}"] = loss / steps
            total = torch.stack(list(losses.values())).sum()
            total.backward()

            for name, loss in losses.items():
                _add(sums, name, loss.detach())
            states.append(detach_state(output.state))

        if len(parts) == 1:
            return states[0]  # a copy would take time
        return concatenate_states(states)

    def _split(self, batch: Batch, state: State) -> list[tuple[Batch, State]]:
        """The rows of a batch in `microbatches` equal parts, each with its state."""
        if self.config.microbatches == 1:
            return [(batch, state)]
        rows = self.rows // self.config.microbatches
        slices = [slice(begin, begin + rows) for begin in range(0, self.rows, rows)]
        return [(index_state(batch, part), index_state(state, part)) for part in slices]

    def _forward(self, batch: Batch, state: State) -> SequenceOutput:
        """A call of the model in the precision of the configuration."""
        with autocast(self.device, self.config.precision):
            return self._call(batch.tokens, batch.reset, state, batch.targets)

    def _count_terms(self, parts: list[tuple[Batch, State]]) -> dict[str, Tensor]:
        """The number of terms of each of the core's own losses, over all parts.

        It must be known before the first part's gradients, and only the core can count: which step is nearest to which
        centroid depends on its features. Costs a forward pass of all parts if the core has such losses.
        """
        terms: dict[str, Tensor] = {}
        devices = [self.device] if self.device.type == "cuda" else []
        # Afterwards the same dropout masks are drawn once more.
        with torch.random.fork_rng(devices):
            for part, state in parts:
                found = self._forward(part, state).losses
                if not found:
                    break
                for name, mean in found.items():
                    _add(terms, name, mean.count)
        return terms

    def call(self, function: Callable[[Any], Result]) -> Result:
        """The result of `function(self)`; a group of learners has the same method, which calls it on one of them."""
        return function(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: copies, on the CPU, of weights, optimizer state and the memory of all
        rows; the counters. All learners that share batches must call it together."""
        return {
            "weights": self.weights(),
            "optimizer": self._optimization.state_dict(),
            "memory": map_state(lambda leaf: copy_to_cpu(self.comm.gather(leaf)), self.state),
            **self.counters,
        }

    @property
    def version(self) -> int:
        """Number of updates, which is the version of the weights."""
        return self.updates

    @property
    def counters(self) -> dict[str, int]:
        """What the learner counts, by attribute."""
        return {"step": self.step, "updates": self.updates, "tokens": self.tokens}

    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's parameters and buffers on the CPU, by name."""
        return snapshot(self.model)()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Restores what `weights` returned."""
        self.model.load_state_dict(weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned. The number of learners and the options may differ.

        Raises a RuntimeError or ValueError if weights, optimizer or memory do not fit.
        """
        of_all_rows = self.model.initial_state(self.config.batch_size)
        memory = restore_state(state["memory"], like=map_state(Tensor.cpu, of_all_rows))
        self.model.load_state_dict(state["weights"])
        self._optimization.load_state_dict(state["optimizer"])

        # The memory of this learner's rows; copies, because the memory of all rows is not needed any more.
        first = self.comm.rank * self.rows
        own = map_state(lambda leaf: leaf[first : first + self.rows].clone(), memory)
        self.state = state_to(own, self.device)

        self.step = int(state["step"])
        self.updates = int(state["updates"])
        self.tokens = int(state["tokens"])


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Adds to the sum of a name; the first value begins it."""
    if name in sums:
        value = sums[name] + value
    sums[name] = value


def predict(
    model: SequenceModel,
    batches: Iterable[Batch],
    precision: str = "float32",
    cached: bool = True,
    gradients: bool = False,
    return_attention: bool = False,
) -> Iterator[tuple[Batch, SequenceOutput]]:
    """Yields every batch with the model's output, without dropout; memory is kept between batches.

    Args:
        cached: project keys and values of memory once per segment; false if weights change between batches.
        gradients: with them the core computes its own losses, too.
    """
    device = next(model.parameters()).device
    was_training = model.training
    state = None
    try:
        for batch in batches:
            model.eval()
            tokens, targets, reset = state_to(batch, device)
            with torch.set_grad_enabled(gradients), autocast(device, precision):
                if state is None:
                    state = model.initial_state(len(tokens))
                    if cached:
                        state = model.with_cache(state)
                output = model(tokens, reset, state, targets, return_attention)
            state = output.state
            if gradients:
                state = detach_state(state)
            yield batch, output
    finally:
        model.train(was_training)


def score(
    model: SequenceModel, batches: Iterable[Batch], precision: str = "float32", cached: bool = True
) -> Iterator[tuple[Batch, Tensor]]:
    """Yields every batch with the negative log-likelihoods [B, T] of its targets, in nats; see `predict`."""
    for batch, output in predict(model, batches, precision, cached):
        assert output.nll is not None
        yield batch, output.nll.cpu()


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
    total = 0.0
    count = 0
    for batch, nll in score(model, batches, precision):
        total += float(nll.double().sum())
        count += int((batch.targets != IGNORE).sum())
    return Total(total, count)


def evaluate_by(
    model: SequenceModel,
    batches: Iterable[Batch],
    group: Callable[[Batch], np.ndarray],
    groups: int,
    precision: str = "float32",
) -> tuple[np.ndarray, np.ndarray]:
    """The loss by groups of targets: its sums in nats [groups] float64, and the numbers of targets [groups].

    `group` gives the group of each target of a batch, [B, T]; for the others see `predict`.
    """
    losses = np.zeros(groups)
    counts = np.zeros(groups, np.int64)
    for batch, nll in score(model, batches, precision):
        kept = (batch.targets != IGNORE).numpy()
        index = group(batch)[kept]
        losses += np.bincount(index, nll.double().numpy()[kept], groups)
        counts += np.bincount(index, minlength=groups)
    return losses, counts
