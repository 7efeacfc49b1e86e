"""How far a loop is, how fast, and how long it still takes: what displays and metrics show of it."""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

SETTLED_SECONDS = 10.0
"""Time after the first progress in which nothing is said of the time left."""
WARM_UP_SECONDS = 5.0
"""Time after the first progress that is not measured: caches fill, and processes start that were waited for."""
LEAST_WINDOW = 30.0
"""Least seconds over which progress is measured, once so many have passed; later it is half of the time."""
MOST_WINDOW = 600.0
"""Seconds over which progress is measured at most."""
MARK_SECONDS = 1.0
"""Time between two marks of `TimeLeft` that are kept."""


class Progress(NamedTuple):
    """What a display shows after an update.

    done, total: frames or steps, named by `unit`. texts: what else to show, the most important first.
    """

    done: int
    total: int
    unit: str
    texts: tuple[str, ...] = ()


def brief(value: float) -> str:
    """A score of any size in few characters: 84.8, -7.25, 0.000123, 1.25e+09."""
    if abs(value) >= 1e6:
        return f"{value:.4g}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:#.3g}"


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
        """Time within the block does not count, also if it raises: an evaluation is stopped by an exception."""
        begin = time.monotonic()
        try:
            yield
        finally:
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


class TimeLeft:
    """Estimates how long a loop still takes, from its recent progress.

    What comes before the first progress (processes start, code is compiled, environments are reset) is no measure of
    what follows, and neither are the `WARM_UP_SECONDS` after it. So no estimate is made in the first `SETTLED_SECONDS`.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self.first: float | None = None
        self.marks: deque[tuple[float, float]] = deque()
        self.latest = (0.0, 0.0)

    def mark(self, share: float) -> None:
        """Notes the share done of 1. Only a larger share than before is progress."""
        now = time.monotonic()
        before = self.share
        self.share = share
        # A resumed loop begins with a share that this one did not make.
        if before is None or share <= before:
            return
        if self.first is None:
            self.first = now
        self.latest = (now, share)
        if now - self.first < WARM_UP_SECONDS:
            return

        # A few marks are enough, however often progress is made.
        is_due = not self.marks or now - self.marks[-1][0] >= MARK_SECONDS
        if is_due:
            self.marks.append(self.latest)
        window = min(MOST_WINDOW, max(LEAST_WINDOW, (now - self.first) / 2))
        # Two marks are kept in any case, so that slow progress has a rate.
        while len(self.marks) > 2 and now - self.marks[0][0] > window:
            self.marks.popleft()

    def seconds(self) -> float:
        """The time left; infinity as long as it is not known, and if progress takes longer than it did."""
        now = time.monotonic()
        if self.first is None or now - self.first < SETTLED_SECONDS or not self.marks:
            return math.inf
        begin, share_before = self.marks[0]
        end, share = self.latest
        progress = share - share_before
        if progress <= 0:
            return math.inf
        seconds_per_share = (end - begin) / progress
        left = (1 - share) * seconds_per_share - (now - end)
        return left if left > 0 else math.inf
