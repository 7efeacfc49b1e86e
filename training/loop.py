"""How fast the main loop is, and how much of its time it waits for unrolls."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Measures the loop: steps a second over the last seconds, and the share of time spent waiting for unrolls."""

    def __init__(self, steps: int, window: float = 10.0) -> None:
        self.window = window
        self.marks: deque[tuple[float, int]] = deque([(time.monotonic(), steps)])
        self.since, self.idle = time.monotonic(), 0.0

    def rate(self, steps: int) -> float:
        """Steps a second, given how many there are now."""
        now = time.monotonic()
        self.marks.append((now, steps))
        while len(self.marks) > 2 and now - self.marks[0][0] > self.window:
            self.marks.popleft()
        begin, first = self.marks[0]
        return (steps - first) / max(now - begin, 1e-9)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time within counts as idle."""
        begin = time.monotonic()
        yield
        self.idle += time.monotonic() - begin

    def idle_fraction(self) -> float:
        """Share of the time since the last call that was idle."""
        now = time.monotonic()
        fraction = self.idle / max(now - self.since, 1e-9)
        self.since, self.idle = now, 0.0
        return fraction
