"""What a group of learners, and the training loop, need to know of a learner; `Learner` is one."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

StateDict = dict[str, Any]
"""A state for checkpoints, as torch's modules and optimizers have it: nests of tensors and numbers, by name."""


class Replica(Protocol):
    """A learner that can be one of several which share each batch; see `group`.

    Attributes:
        has_whole_state: whether each of several learners has the whole state, so that the state of one can replace that
            of all. Otherwise `state_dict` is a collective: all of them must call it together.
    """

    device: torch.device
    has_whole_state: bool

    @property
    def episodes(self) -> Sequence[Any]:
        """Those that ended in the last update, if the learner acts for itself."""

    @property
    def version(self) -> int:
        """Number of updates."""

    @property
    def counters(self) -> dict[str, int]:
        """What the learner counts, by attribute."""

    @property
    def update(self) -> Callable[..., dict[str, float]]:
        """Learns from a batch or, without one, from the learner's own source; returns metrics."""

    def weights(self) -> dict[str, Tensor]:
        """Copies of parameters and buffers on the CPU, by name."""

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Restores what `weights` returned."""

    def state_dict(self) -> StateDict:
        """Everything needed to resume exactly."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restores what `state_dict` returned."""
