"""One of several learners, in its own process on a Ray cluster; see `group`."""

import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from agent.core.state import index_state
from agent.trajectory import Trajectory
from learner.communicator import Communicator
from learner.errors import PeerLost
from learner.loading import load
from learner.replica import Replica

MakeReplica = Callable[[Communicator, str], Replica]
"""Makes the learner of a process from its communicator and its device."""
Part = tuple[ray.ObjectRef, int, int]
"""A reference to a trajectory in numpy arrays, and the first of its rows and the one after the last."""
PEER_SECONDS = 120.0
"""Timeout of collectives. A killed process is detected at once."""
GRACE_SECONDS = 10.0
"""Seconds that the other learners have to answer after one was lost."""
POLL_SECONDS = 0.25
"""Seconds between two calls of `check` during a wait."""
Learned = tuple[dict[str, float], dict[str, int], Sequence[Any]]
"""Metrics and counters of an update, and the episodes that ended in it if the learner acts for itself."""


class RemoteLearner:
    """A learner in its own process, with its rows of every batch. `fetch` has a thread of its own."""

    def __init__(self, rank: int, size: int, threads: int, seed: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.rank, self.size = rank, size
        self.timeout = timedelta(seconds=PEER_SECONDS)
        self.metrics: dict[str, float] = {}
        self.batches: dict[int, Callable[[], Trajectory]] = {}

    def pid(self) -> int:
        """The process id."""
        return os.getpid()

    def listen(self) -> tuple[str, int]:
        """Starts the rendezvous of the process group in this process; returns host and port."""
        host = ray.util.get_node_ip_address()
        self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self.timeout)
        return host, self.store.port

    def join(self, address: tuple[str, int], device: str, begin: tuple[MakeReplica, dict[str, Any]]) -> None:
        """Joins the process group and makes a learner with a state."""
        make, state = begin
        try:
            store = dist.TCPStore(*address, is_master=False, timeout=self.timeout)
            backend = "nccl" if device == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=self.timeout)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        self.learner = make(Communicator(dist.group.WORLD), device)
        self.learner.load_state_dict(state)

    @ray.method(concurrency_group="fetch")
    def fetch(self, number: int, parts: list[Part]) -> str:
        """Fetches this learner's rows of a batch, which `update` takes; returns why a part is lost, or nothing."""
        self.batches.pop(number - 2, None)  # if it is still here, another learner's part of it was lost
        try:
            found = ray.get([reference for reference, *_ in parts])
        except ObjectLostError as error:
            return reason_of(error)
        rows = [index_state(arrays, slice(*part)) for arrays, (_, *part) in zip(found, parts)]
        self.batches[number] = load(rows, self.learner.device)
        return ""

    @ray.method(num_returns=2)
    def update(self, number: int | None = None) -> tuple[Learned, dict[str, np.ndarray]]:
        """Learns from a batch or, without one, from the learner's own source.

        Returns:
            metrics, counters and episodes; and the first learner's weights if it has the whole state.
        """
        self.metrics = self.learner.update(*(() if number is None else (self.batches.pop(number)(),)))
        weights = self.learner.weights() if self.rank == 0 and self.learner.has_whole_state else {}
        learned = self.metrics, self.learner.counters, self.learner.episodes
        return learned, {name: weight.numpy() for name, weight in weights.items()}

    def state_dict(self, send: bool = True) -> tuple[dict[str, Any], dict[str, float]]:
        """The learner's `state_dict`, which may be a collective, and the metrics of the last update."""
        state = self.learner.state_dict()
        return state if send else {}, self.metrics

    def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of a function of the learner."""
        return function(self.learner)


def results_of(
    requests: list[Any], check: Callable[[], object] = lambda: None, patience: float = math.inf
) -> list[Any]:
    """The results of one request to each learner. Calls `check` while it waits; its exceptions end the wait.

    Raises:
        PeerLost: if a learner died, does not answer for `patience` seconds, or reports the loss of another; says which
            and why.
        FloatingPointError: if the learners raised it.
    """
    waiting, results, died, lost, not_finite, begin = list(requests), {}, "", "", None, time.monotonic()
    while waiting:
        done, waiting = ray.wait(waiting, timeout=GRACE_SECONDS if died or lost else POLL_SECONDS)
        if not done and (died or lost):
            break  # the others block in a collective with the lost learner
        if not done:
            check()
            if time.monotonic() - begin > patience:
                died = f"learner {requests.index(waiting[0])} has not answered for {patience:.0f} s"
            continue
        try:
            results[done[0]] = ray.get(done[0])
        except RayTaskError as error:
            if isinstance(error.cause, FloatingPointError):
                not_finite = error.cause  # all learners raise it
            elif isinstance(error.cause, PeerLost):
                lost = f"learner {requests.index(done[0])} lost another: {error.cause}"
            else:
                raise
        except (RayActorError, ObjectLostError, OutOfMemoryError) as error:  # the last if Ray itself ended it
            if isinstance(error, RayActorError) and error.actor_init_failed:
                raise
            died = f"learner {requests.index(done[0])} died: {reason_of(error)}"
    if died or lost:
        raise PeerLost(died or lost)
    if not_finite:
        raise not_finite
    return [results[request] for request in requests]


def reason_of(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    general, _, detail = str(error).partition("Worker exit detail: ")
    return detail.partition(" Some common causes")[0].rstrip(".") or general.strip().splitlines()[0]
