"""Errors of learners that callers handle. Nothing here imports torch."""

from collections.abc import Sequence


class PeerLost(RuntimeError):
    """A learner of the group died, or did not take part in a collective in time.

    With gloo the collective raises it in the other learners. NCCL only queues the collective: reading the result blocks
    in CUDA, until torch's watchdog ends the process after the group's timeout. So on GPUs the others are lost, too.
    """


class BatchLost(RuntimeError):
    """A part of a batch was lost with its node before the learners had fetched it."""


class LearnersLost(RuntimeError):
    """The learners of a group died too often, or for too long; the message says how often and why."""


class NotFinite(FloatingPointError):
    """A loss or a gradient of an update is not finite.

    Attributes:
        number: the number of the update.
        fields: the fields of the trajectory that are not finite; empty if all are, or if that is not known.
    """

    def __init__(self, message: str, number: int = 0, fields: Sequence[str] = ()) -> None:
        # All arguments go to the base class, because exceptions are pickled by `args`.
        super().__init__(message, number, tuple(fields))
        self.number = number
        self.fields = tuple(fields)

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def from_environments(self) -> bool:
        """Whether environments returned what is not finite. A smaller learning rate does not help then."""
        return "observation" in self.fields or "reward" in self.fields

    def extended(self, text: str) -> "NotFinite":
        """The same error with more text at the end of its message."""
        return NotFinite(f"{self}{text}", self.number, self.fields)
