"""Signals as wishes: the first Ctrl-C ends a run with a checkpoint, the second at once."""

import logging
import math
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

SAME_SECONDS = 1.0
"""Time within which signals to stop are taken for one."""


class StopRequest:
    """Whether the user asked to stop, and by which signal; see `stop_on_signals`."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """True from the first signal on."""
        return self.signal is not None


class Terminated(KeyboardInterrupt):
    """A signal that ends a program, as Ctrl-C does: by an error, so that what is open is closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


@contextmanager
def terminated_by_error() -> Iterator[None]:
    """Turns SIGTERM and hang-ups of the terminal into `Terminated`: temporary files and folders are removed then.

    What is ignored stays so, and other handlers are kept.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise Terminated(number)

    changed = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turns the first Ctrl-C, SIGTERM or hang-up of the terminal into a request to stop cleanly.

    One that comes later acts as usual; within `SAME_SECONDS` it is the same wish: `timeout` and batch systems tell the
    process and then its whole group. What is ignored, as hang-ups are under nohup, stays so.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        handler = signal.getsignal(number)
        if handler != signal.SIG_IGN:
            previous[number] = handler
    asked = math.inf

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        now = time.monotonic()
        if stop.requested and now - asked < SAME_SECONDS:
            return
        if stop.requested:
            for each, handler in previous.items():
                signal.signal(each, handler)
            signal.raise_signal(number)
            return
        stop.signal = number
        asked = now
        if number == signal.SIGHUP:
            _leave_terminal()
        logger.warning("stopping after this update, with a checkpoint; once more to stop at once")

    for number in previous:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """After a hang-up the terminal is gone, but not a log file. Its next signal, or writing to it, must not stop us."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if not _is_file(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)


def _is_file(stream: int) -> bool:
    """Whether a stream is a regular file, which outlives a terminal; pipes and what was closed are none."""
    try:
        return stat.S_ISREG(os.fstat(stream).st_mode)
    except OSError:
        return False
