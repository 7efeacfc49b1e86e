"""One of several learners, in its own process on a Ray cluster; see `group`."""

import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from agent.core.state import index_state
from agent.failures import reason_of
from agent.trajectory import Trajectory
from learner.communicator import Communicator
from learner.errors import PeerLost
from learner.loading import load
from learner.replica import Replica, StateDict

MakeReplica = Callable[[Communicator, str], Replica]
"""Makes the learner of a process from its communicator and its device."""
Check = Callable[[], object]
"""Is called several times a second during a wait; its exceptions end the wait."""
PEER_SECONDS = 120.0
"""Timeout of collectives. A killed process is detected at once."""
GRACE_SECONDS = 10.0
"""Seconds that the other learners have to answer after one was lost."""
POLL_SECONDS = 0.25
"""Seconds between two calls of `check` during a wait."""


class Part(NamedTuple):
    """Rows `begin` to `end` of the trajectory, in numpy arrays, that `reference` is of. `end` is not among them."""

    reference: ray.ObjectRef
    begin: int
    end: int


class Learned(NamedTuple):
    """Metrics and counters of an update, and the episodes that ended in it if the learner acts for itself."""

    metrics: dict[str, float]
    counters: dict[str, int]
    episodes: Sequence[Any]


class LearnerState(NamedTuple):
    """The `state_dict` of a learner, and the metrics of its last update."""

    state: StateDict
    metrics: dict[str, float]


class RemoteLearner:
    """A learner in its own process, with its rows of every batch. `fetch` has a thread of its own."""

    def __init__(self, rank: int, size: int, threads: int, seed: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.rank = rank
        self.size = size
        self.timeout = timedelta(seconds=PEER_SECONDS)
        self.metrics: dict[str, float] = {}
        self.batches: dict[int, Callable[[], Trajectory]] = {}  # fetched and not yet learned from, by number

    def pid(self) -> int:
        """The process id."""
        return os.getpid()

    def listen(self) -> tuple[str, int]:
        """Starts the rendezvous of the process group in this process; returns host and port."""
        host = ray.util.get_node_ip_address()
        self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self.timeout)
        return host, self.store.port

    def join(self, address: tuple[str, int], device: str, begin: tuple[MakeReplica, StateDict]) -> None:
        """Joins the process group and makes a learner with a state."""
        make, state = begin
        # The collectives of torch: NCCL between GPUs, gloo between CPUs.
        backend = "nccl" if device == "cuda" else "gloo"
        try:
            store = dist.TCPStore(*address, is_master=False, timeout=self.timeout)
            dist.init_process_group(
                backend,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
            )
        except RuntimeError as error:
            raise PeerLost(str(error)) from error

        # All learners begin with the same state.
        comm = Communicator(dist.group.WORLD)
        self.learner = make(comm, device)
        self.learner.load_state_dict(state)

    @ray.method(concurrency_group="fetch")
    def fetch(self, number: int, parts: list[Part]) -> str:
        """Fetches this learner's rows of a batch, which `update` takes; returns why a part is lost, or nothing."""
        # At most two batches are kept. One that is older was never learned from: another learner lost its part.
        self.batches.pop(number - 2, None)
        try:
            found = ray.get([part.reference for part in parts])
        except ObjectLostError as error:
            return reason_of(error)
        rows: list[Trajectory] = []
        for arrays, part in zip(found, parts):
            own = slice(part.begin, part.end)
            rows.append(index_state(arrays, own))
        # On a GPU the copy goes on beside the present update.
        self.batches[number] = load(rows, self.learner.device)
        return ""

    @ray.method(num_returns=2)
    def update(self, number: int | None = None) -> tuple[Learned, dict[str, np.ndarray]]:
        """Learns from a batch or, without one, from the learner's own source.

        Returns:
            metrics, counters and episodes; and the first learner's weights if it has the whole state.
        """
        if number is None:
            self.metrics = self.learner.update()
        else:
            take_batch = self.batches.pop(number)
            self.metrics = self.learner.update(take_batch())

        # The group's copy needs the weights once: they are equal on all learners.
        weights: dict[str, np.ndarray] = {}
        if self.rank == 0 and self.learner.has_whole_state:
            for name, weight in self.learner.weights().items():
                weights[name] = weight.numpy()
        learned = Learned(self.metrics, self.learner.counters, self.learner.episodes)
        return learned, weights

    def state_dict(self, send: bool = True) -> LearnerState:
        """The learner's state, which may be a collective. Without `send` it is made and not returned."""
        state = self.learner.state_dict()
        if not send:
            state = {}
        return LearnerState(state, self.metrics)

    def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of a function of the learner."""
        return function(self.learner)


class _Replies:
    """What learners answered to one request each: results, or the reasons why there are none.

    Attributes:
        results: by the learner's rank.
        died: why a learner is lost; empty if none is known to be.
        peer_lost: what a learner says of the loss of another; empty if none does.
        not_finite: the error of an update that all learners raise; None if there is none.
    """

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        self.died = ""
        self.peer_lost = ""
        self.not_finite: FloatingPointError | None = None

    @property
    def lost(self) -> str:
        """Why a learner is lost, as far as that is known; empty if none is."""
        return self.died or self.peer_lost

    def take(self, rank: int, request: ray.ObjectRef) -> None:
        """Takes the answer of a learner, which is there. Raises errors that are bugs."""
        try:
            self.results[rank] = ray.get(request)
        except RayTaskError as error:
            if isinstance(error.cause, FloatingPointError):
                self.not_finite = error.cause
            elif isinstance(error.cause, PeerLost):
                self.peer_lost = f"learner {rank} lost another: {error.cause}"
            else:
                raise
        except RayActorError as error:
            if error.actor_init_failed:
                raise
            self.died = f"learner {rank} died: {reason_of(error)}"
        except (ObjectLostError, OutOfMemoryError) as error:  # the second if Ray itself ended the process
            self.died = f"learner {rank} died: {reason_of(error)}"


def check_nothing() -> None:
    """A `Check` that never ends a wait."""


def results_of(
    requests: Sequence[ray.ObjectRef], check: Check = check_nothing, patience: float = math.inf
) -> list[Any]:
    """The results of one request to each learner.

    Raises:
        PeerLost: if a learner died, does not answer for `patience` seconds, or reports the loss of another; says which
            and why.
        FloatingPointError: if the learners raised it.
    """
    # Answers are taken one by one, because the first that reports a loss shortens the wait for the others.
    replies = _Replies()
    waiting = list(requests)
    begin = time.monotonic()
    while waiting:
        timeout = GRACE_SECONDS if replies.lost else POLL_SECONDS
        done, waiting = ray.wait(waiting, timeout=timeout)
        if done:
            replies.take(requests.index(done[0]), done[0])
        elif replies.lost:
            break  # the others block in a collective with the lost learner
        else:
            check()
            if time.monotonic() - begin > patience:
                silent = requests.index(waiting[0])
                replies.died = f"learner {silent} has not answered for {patience:.0f} s"

    if replies.lost:
        raise PeerLost(replies.lost)
    if replies.not_finite is not None:
        raise replies.not_finite
    return [replies.results[rank] for rank in range(len(requests))]
