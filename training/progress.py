"""How far a training is and how fast: what displays and metrics show of the loop in `training.loop`."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Progress(NamedTuple):
    """What a display shows after an update.

    done, total: frames or steps, named by `unit`. per_second: their rate over the last seconds. texts: what else to
    show, the most important first.
    """

    done: int
    total: int
    unit: str
    per_second: float
    texts: tuple[str, ...] = ()


class Clock:
    """Measures a loop: the rate over the last seconds, and the share of time spent waiting.

    Args:
        count: what is counted (steps, tokens), at the beginning.
        window: seconds over which the rate is measured; at least the time of one update.
    """

    def __init__(self, count: int, window: float = 10.0) -> None:
        self.window = window
        self.marks: deque[tuple[float, int]] = deque([(time.monotonic(), count)])
        self.since = time.monotonic()
        self.idle = 0.0

    def mark(self, count: int) -> None:
        """Notes the count after an update."""
        now = time.monotonic()
        self.marks.append((now, count))
        # Two marks are kept in any case, so that one slow update has a rate.
        while len(self.marks) > 2:
            oldest, _ = self.marks[0]
            if now - oldest <= self.window:
                break
            self.marks.popleft()

    @property
    def rate(self) -> float:
        """Counts a second between the first and the last mark of the window; 0 before the first update."""
        begin, first = self.marks[0]
        end, last = self.marks[-1]
        return (last - first) / max(end - begin, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time within the block does not count."""
        begin = time.monotonic()
        yield
        pause = time.monotonic() - begin
        # As if all before had happened later.
        self.marks = deque((then + pause, count) for then, count in self.marks)
        self.since += pause

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time within the block counts as idle."""
        begin = time.monotonic()
        yield
        self.idle += time.monotonic() - begin

    def idle_fraction(self) -> float:
        """Share of the time since the last call that was idle."""
        now = time.monotonic()
        fraction = self.idle / max(now - self.since, 1e-9)
        self.since = now
        self.idle = 0.0
        return fraction
