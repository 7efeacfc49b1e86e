"""Batches of unrolls, and threads that work beside the training loop."""

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from actors import Episode, Unroll
from agent import Trajectory
from agent.core import leaves

Result = TypeVar("Result")
POLL_SECONDS = 0.25
"""Time between two calls of `check` while waiting."""
CLOSE_SECONDS = 5.0
"""Longest time that a thread has to end; one that waits for a cluster that is lost may not."""


class Batch(NamedTuple):
    """What one update learns from.

    unrolls: those that several learners fetch; none if `ready` returns the trajectory.
    episodes: that ended in its unrolls and in those that were dropped.
    dropped: number of unrolls that were too old.
    ready: returns what the learner's `update` takes; for the thread that learns.
    """

    unrolls: list[Unroll]
    episodes: list[Episode]
    dropped: int
    ready: Callable[[], Any]


class Background:
    """A thread that calls functions, one after the other; a context manager.

    The thread is a daemon: a call that hangs with the cluster does not hold up the end of the program.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

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

    def __enter__(self) -> "Background":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.calls.put(None)
        self.thread.join(CLOSE_SECONDS)


def wait_for(future: Future[Result], check: Callable[[], object]) -> Result:
    """The result of a future, or its exception. Calls `check`, which may raise, while it waits."""
    while not concurrent.futures.wait([future], POLL_SECONDS).done:
        check()
    return future.result()


def write_trajectory(trajectory: Trajectory, path: Path) -> Path:
    """Writes a trajectory as safetensors: its fields by name, and those with several tensors as FIELD/NUMBER.

    Returns the path."""
    tensors: dict[str, Tensor] = {}
    for name, value in trajectory._asdict().items():
        parts = {f"{name}/{index}": leaf for index, leaf in enumerate(leaves(value))}
        tensors |= {name: value} if isinstance(value, Tensor) else parts
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path
