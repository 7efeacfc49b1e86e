"""All-reduce and all-gather among learners that share a batch by rows, with torch.distributed. No Ray; see `group`."""

import torch
import torch.distributed as dist
from torch import Tensor

from learner.errors import PeerLost


class Communicator:
    """Collectives over the learners of a process group; without a group there is one learner and they do nothing.

    All learners must call the same collectives in the same order. Each collective raises `PeerLost` if a learner did
    not take part within the group's timeout, as far as the backend notices. No gradient flows through them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def size(self) -> int:
        """Number of learners."""
        if self.group is None:
            return 1
        return self.group.size()

    @property
    def rank(self) -> int:
        """Index of this learner, from 0."""
        if self.group is None:
            return 0
        return self.group.rank()

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise sum of the learners' tensors, which have equal shapes; bitwise equal on all learners."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Elementwise maximum of the learners' tensors, which have equal shapes."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor) -> Tensor:
        """The learners' tensors, of equal shapes, concatenated along dim 0 in the order of ranks."""
        if self.group is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(parts, tensor.contiguous(), group=self.group)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        return torch.cat(parts)

    def _all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        """The learners' tensors, reduced by an operation; the tensor itself if there is one learner."""
        if self.group is None:
            return tensor
        # A copy, because torch reduces in place.
        reduced = tensor.detach().clone()
        try:
            dist.all_reduce(reduced, operation, group=self.group)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        return reduced
