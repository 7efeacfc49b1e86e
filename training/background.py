"""Threads that work beside the training loop."""

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

Result = TypeVar("Result")
POLL_SECONDS = 0.25
"""Time between two calls of `check` while waiting."""
CLOSE_SECONDS = 5.0
"""Longest time that a thread has to end; one that waits for a cluster that is lost may not."""


class Background:
    """A thread that calls functions, one after the other, until `close`.

    The thread is a daemon: a call that hangs with the cluster does not hold up the end of the program.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def start(self, function: Callable[[], Result]) -> Future[Result]:
        """Calls `function` in the thread; the future has its result or exception."""
        future: Future[Result] = Future()
        self.calls.put((function, future))
        return future

    def check(self) -> None:
        """For functions that wait: raises a CancelledError when the thread has to end."""
        if self.closed.is_set():
            raise CancelledError

    def _run(self) -> None:
        while call := self.calls.get():
            function, future = call
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del call, function, future  # and what they hold

    def close(self) -> None:
        """Ends the thread. A call that checks is interrupted; others have `CLOSE_SECONDS`."""
        self.closed.set()
        self.calls.put(None)
        self.thread.join(CLOSE_SECONDS)


def wait_for(future: Future[Result], check: Callable[[], object]) -> Result:
    """The result of a future, or its exception. Calls `check`, which may raise, while it waits."""
    while not concurrent.futures.wait([future], POLL_SECONDS).done:
        check()
    return future.result()
