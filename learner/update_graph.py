"""An update as one CUDA graph, which the host starts as a whole instead of kernel by kernel.

An update of a small network is thousands of short kernels, and a GPU computes them sooner than the host can ask for
them. What a graph has recorded is fixed: addresses, shapes, and numbers of the host. So batches, and what else differs
from update to update, are copied into tensors that stay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent.core import State, leaves, map_state
from agent.cuda_graphs import Capture, record
from agent.trajectory import Trajectory
from learner.optimization import Measured


class UpdateSettings(NamedTuple):
    """What differs from update to update, besides the weights and the batch: numbers, or scalars on the device."""

    version: Any
    learning_rate: Any
    entropy_cost: Any
    teacher_cost: Any


class UpdateGraph:
    """Repeats an update on batches that have the form of the first one.

    Args:
        update: the operations of an update, which wait for nothing and return its metrics. It must have been called
            before, so that all kernels are compiled and the optimizer has its statistics.
        capture: how they are recorded; see `agent.cuda_graphs`.
        trajectory: a batch on the device.

    Attributes:
        form: of the batches that it can learn from, see `form_of`.

    Raises:
        RecordingFailed: see `agent.cuda_graphs.record`.
    """

    _measured: Measured

    def __init__(
        self,
        update: Callable[[Trajectory, UpdateSettings], Measured],
        capture: Capture,
        trajectory: Trajectory,
        settings: UpdateSettings,
    ) -> None:
        device = trajectory.reward.device
        self.form = form_of(trajectory)
        self._trajectory = map_state(torch.clone, trajectory)
        scalars = [_scalar(number, device) for number in settings]
        self._settings = UpdateSettings(*scalars)

        def operations() -> None:
            self._measured = update(self._trajectory, self._settings)

        # The operations are recorded in one call; each replay fills the tensor of metrics that this call has made.
        self._replay = record(capture, operations, "an update")

    @property
    def is_recorded(self) -> bool:
        """False if the device's memory was too small for the graph; then it cannot update."""
        return self._replay is not None

    def update(self, trajectory: Trajectory, settings: UpdateSettings) -> Measured:
        """The update with another batch of the same form; its metrics are not read."""
        for kept, new in zip(leaves(self._trajectory), leaves(trajectory), strict=True):
            kept.copy_(new)
        for scalar, number in zip(self._settings, settings, strict=True):
            scalar.fill_(number)
        assert self._replay, "the graph is recorded"
        self._replay()
        # The next replay writes into the same tensor.
        return self._measured._replace(values=self._measured.values.clone())


def in_single_precision(settings: UpdateSettings) -> UpdateSettings:
    """The settings rounded as a graph has them; the version is a whole number and stays."""
    version, *numbers = settings
    return UpdateSettings(version, *[float(np.float32(number)) for number in numbers])


def _scalar(number: float, device: torch.device) -> Tensor:
    """A number as a tensor on a device."""
    dtype = torch.int64 if isinstance(number, int) else torch.float32
    return torch.full((), number, dtype=dtype, device=device)


def form_of(nest: State) -> Any:
    """All of a nest but the values of its tensors, to be compared."""
    if isinstance(nest, Tensor):
        return nest.shape, nest.dtype, nest.device
    if isinstance(nest, tuple):
        return tuple(form_of(part) for part in nest)
    return nest  # an offset, or None
