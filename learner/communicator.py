"""How learners that share a batch by rows add up what each of them finds: torch.distributed, and nothing of Ray.

Each learner has its rows (a shard) and makes its part of every sum over the batch; the parts add up to what one learner
makes of the whole. Who the learners are and what becomes of those that die is the business of `group`.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class PeerLost(RuntimeError):
    """A learner of the group did not answer: it died, or did not come to a sum in time.

    With gloo each of the others gets it from the sum. NCCL only queues a sum: whoever reads the result waits in CUDA,
    until torch's watchdog ends the process when the group's timeout is over. So on GPUs a learner that waits for a
    lost one is lost as well.
    """


class LearnersLost(RuntimeError):
    """The learners of a group died too often, or for too long; the message says how often and why."""


class DataParallel:
    """Sums over the learners of a process group.

    All of them must ask for the same sums in the same order. Without a group there is one learner with the whole batch,
    and sums are what went in.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def size(self) -> int:
        """Number of learners."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Which of them this learner is, from 0."""
        return 0 if self.group is None else self.group.rank()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the learners' tensors, which have one shape; the same bits on each of them. Without gradient.

        Raises:
            PeerLost: if it was not there within the group's timeout, as far as the backend notices.
        """
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """The maximum, element by element, as `sum` gives the sum; raises as that does."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor) -> Tensor:
        """The learners' tensors, of one shape, joined along dim 0 in the order of ranks; raises as `sum` does."""
        if self.group is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(parts, tensor.contiguous(), group=self.group)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        return torch.cat(parts)

    def _all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.group is None:
            return tensor
        reduced = tensor.detach().clone()
        try:
            dist.all_reduce(reduced, operation, group=self.group)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        return reduced
