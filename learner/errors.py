"""Errors of learners that callers handle. Nothing here imports torch."""


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
    """A loss or a gradient of an update is not finite; `number` is that of the update."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[0])
