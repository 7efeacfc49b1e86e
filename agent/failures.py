"""Why a process was lost, and when it is started again: one rule for actors and for learners.

It is in this package because actors and learners know no other one in common. Nothing here imports torch.
"""

import time

MAX_FAILURES = 5
"""Losses in a row, without work done in between, after which the run stops, because that is a bug."""
MEMORY_SECONDS = 300.0
"""Seconds during which losses are not counted if Ray ended the process because its node was short of memory."""
LONGEST_PAUSE = 30.0
"""Seconds, at most, before a restart after such a loss; the first pauses are 2, 4, 8 and 16 s."""


class TooManyFailures(Exception):
    """A process was lost too often in a row; `count` is how often."""

    def __init__(self, count: int) -> None:
        super().__init__(f"lost {count} times in a row")
        self.count = count


class Failures:
    """Counts losses in a row of a process, or of a group of processes that are restarted together."""

    def __init__(self) -> None:
        self.count = 0
        self.since = 0.0  # the time of the first

    def clear(self) -> None:
        """Forgets them, after work was done."""
        self.count = 0

    def add(self, reason: str) -> float:
        """Counts a loss; returns the seconds to wait before a restart.

        Raises:
            TooManyFailures: if there were too many. If a node is short of memory, only when that has lasted too long.
        """
        now = time.monotonic()
        if self.count == 0:
            self.since = now
        self.count += 1
        short_of_memory = "low on memory" in reason
        tolerated = short_of_memory and now - self.since < MEMORY_SECONDS
        if self.count > MAX_FAILURES and not tolerated:
            raise TooManyFailures(self.count)
        if short_of_memory:
            return min(2.0**self.count, LONGEST_PAUSE)
        return 0.0


def reason_of(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    # Ray appends the reason to a general text, and advice to the reason.
    general, _, detail = str(error).partition("Worker exit detail: ")
    reason, _, _ = detail.partition(" Some common causes")
    reason = reason.rstrip(".")
    if reason:
        return reason
    return general.strip().splitlines()[0]
