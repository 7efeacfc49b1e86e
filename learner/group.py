"""Several learners on a Ray cluster that share each batch by rows and appear as one learner.

Their owner keeps a copy of the learner: an agent's weights and all counters are updated after every update, the rest at
every checkpoint. When a learner dies, all are restarted from that copy, or from the state of a survivor. Ray is started
and stopped by the commands. `communicator` explains what NCCL cannot do when a learner is lost.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from agent.core.state import index_state, map_state
from agent.trajectory import Trajectory, validate
from learner.communicator import Communicator
from learner.errors import LearnersLost, PeerLost
from learner.learner import Learner
from learner.sequence_learner import SequenceLearner

logger = logging.getLogger(__name__)

MakeReplica = Callable[[Communicator, str], Learner | SequenceLearner]
"""Makes the learner of a process from its communicator and its device."""

MAX_FAILURES = 5
"""Failures in a row without an update after which the run stops, because that is a bug."""
MEMORY_SECONDS = 300.0
"""Seconds during which failures are not counted if Ray ended a learner because its node was short of memory."""
LONGEST_PAUSE = 30.0
"""Seconds, at most, before a restart after such a failure; the first pauses are 2, 4, 8 and 16 s."""
PEER_SECONDS = 120.0
"""Timeout of collectives. A killed process is detected at once."""
GRACE_SECONDS = 10.0
"""Seconds that the other learners have to answer after one was lost."""
STALL_SECONDS = 30.0
"""Seconds of waiting for resources between two warnings."""
POLL_SECONDS = 0.25
"""Seconds between two calls of `check` during a wait."""


class RemoteLearner:
    """A learner in its own process. Tensors are passed as numpy arrays, which Ray shares without a copy."""

    def __init__(self, rank: int, size: int, threads: int, seed: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.rank, self.size = rank, size
        self.timeout = timedelta(seconds=PEER_SECONDS)
        self.metrics: dict[str, float] = {}

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

    def update(self, *shard: Trajectory) -> tuple[dict[str, float], dict[str, int], dict[str, np.ndarray]]:
        """Learns; returns metrics, counters, and the weights if they are wanted after every update."""
        # Copies, because arrays from the object store are read-only.
        self.metrics = self.learner.update(*map_state(lambda leaf: torch.from_numpy(leaf.copy()), shard))
        weights = self.learner.weights() if self.rank == 0 and isinstance(self.learner, Learner) else {}
        return self.metrics, self.learner.counters, {name: weight.numpy() for name, weight in weights.items()}

    def state_dict(self, send: bool = True) -> tuple[dict[str, Any], dict[str, float]]:
        """The learner's `state_dict`, which may be a collective, and the metrics of the last update."""
        state = self.learner.state_dict()
        return state if send else {}, self.metrics

    def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of a function of the learner."""
        return function(self.learner)


class LearnerGroup:
    """Several learners, each in its own process with its rows of every batch, that act as one; a context manager.

    When one dies, all are restarted. Learners of agents each have the whole state: they resume from that of a survivor,
    and the update in progress is done exactly once, so that the result does not change. Without a survivor (with NCCL,
    on GPUs, the others block) the weights are those of the last update and the optimizer is that of the last
    `state_dict`. Learners of sequence models have the memory of their rows only, which is lost with them: the updates
    since the last `state_dict` are repeated.

    Args:
        learner: on the CPU, with the initial state; the copy that is described above.
        make: makes the learner of a process from its communicator and device, which is cpu or cuda.
        size: number of learners.
        device: auto (GPUs if the cluster has any), cpu, or cuda, which is one GPU each.
        seed: of their random numbers (dropout), which differ by learner and restart.
        placement: pack, spread, strict_pack or strict_spread: the strategy of Ray's placement group.
        labels: labels that a learner's node must have.
        check: called several times a second while the group waits for resources or for learners; its exceptions end
            the wait.

    Raises:
        ValueError: if the cluster has fewer GPUs than learners, unless it has none and `device` is auto.
        LearnersLost: from calls, after more than `MAX_FAILURES` failures in a row without an update. Failures for lack
            of memory are retried for `MEMORY_SECONDS`, with growing pauses.
        ray.exceptions.RayTaskError: from calls, if the code of a learner raised; that is a bug and is not retried.
        ray.exceptions.RayActorError: from calls, if the process of a learner could not start; likewise.
    """

    def __init__(
        self,
        learner: Learner | SequenceLearner,
        make: MakeReplica,
        size: int,
        device: str = "auto",
        seed: int = 0,
        placement: str = "pack",
        labels: dict[str, str] | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.learner, self.make, self.size, self.seed = learner, make, size, seed
        self.device, self.resources = _place(device, size)
        self.strategy, self.labels, self.check = placement.upper(), labels or {}, check
        self.restarts = self.failures = 0
        self.failing_since = self.start_at = 0.0
        self.placement: PlacementGroup | None = None
        self.members: list[Any] = []
        self.joined = False
        self.reached = self.saved_version = learner.version
        self.saved_counters = learner.counters
        self.metrics: dict[str, float] = {}

    @property
    def version(self) -> int:
        """Number of updates."""
        return self.learner.version

    def update(self, *batch: Trajectory) -> dict[str, float]:
        """Learns from a batch or, without one, from the learners' own sources; see their `update`.

        Raises:
            ValueError: if the rows of the batch cannot be divided equally.
        """
        self._update_until(self.reached + 1, _divide(batch, self.size))
        return self.metrics

    def _update_until(self, version: int, shards: list[tuple[Trajectory, ...]]) -> None:
        while self.version < version:
            self.check()
            try:
                self._join()
                requests = [member.update.remote(*shard) for member, shard in zip(self.members, shards)]
                self.metrics, counters, weights = _results(requests)[0]
            except PeerLost as error:
                self._lose(error)  # raises the version if a survivor has done the update
                continue
            self._count(counters)
            if isinstance(self.learner, Learner):
                new = {name: torch.from_numpy(weight.copy()) for name, weight in weights.items()}
                self.learner.agent.load_state_dict(new)
            self.failures = 0
        self.reached = self.version

    def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of `function(learner)` in the process of the first learner, after all updates."""
        while True:
            self._update_until(self.reached, [()] * self.size)  # of sequence models, after a loss
            try:
                self._join()
                return _results([self.members[0].call.remote(function)], self.check)[0]
            except PeerLost as error:
                self._lose(error)

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`; those of a sequence model are as old as the last `state_dict`."""
        return self.learner.weights()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`. Lost learners are not restarted for it."""
        if self.joined and self.saved_version != self.version:
            try:
                requests = [member.state_dict.remote(rank == 0) for rank, member in enumerate(self.members)]
                self._load(_results(requests)[0][0])
            except PeerLost as error:
                self._lose(error)
        return self.learner.state_dict()

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.saved_version, self.saved_counters = self.version, self.learner.counters

    def _count(self, counters: dict[str, int]) -> None:
        for name, value in counters.items():
            setattr(self.learner, name, value)

    def _lose(self, error: PeerLost) -> None:
        """Loads the state of a survivor, or of the last `state_dict`, and ends all learners; `update` restarts them."""
        now = time.monotonic()
        self.failures += 1
        self.failing_since = now if self.failures == 1 else self.failing_since
        short_of_memory = "low on memory" in str(error)
        if self.failures > MAX_FAILURES and not (short_of_memory and now - self.failing_since < MEMORY_SECONDS):
            times = f"{self.failures} times in a row without an update"
            raise LearnersLost(f"learners were lost {times}: {error}") from error
        self.start_at = now + min(2.0**self.failures, LONGEST_PAUSE) if short_of_memory else now
        if not isinstance(self.learner, Learner):
            self._count(self.saved_counters)
        elif self.joined:
            self._load_survivor()
        optimizer = "" if self.saved_version == self.version else f", optimizer {self.saved_version}"
        logger.warning("%s; all learners are restarted at version %d%s", error, self.version, optimizer)
        self.restarts += 1
        self._stop()

    def _load_survivor(self) -> None:
        """Loads the state of the survivor with the newest version, if there is a survivor."""
        requests, survivors = [member.state_dict.remote() for member in self.members], []
        for request in ray.wait(requests, num_returns=self.size, timeout=GRACE_SECONDS)[0]:
            with suppress(RayError):
                survivors.append(ray.get(request))
        if survivors:
            state, self.metrics = max(survivors, key=lambda survivor: survivor[0]["version"])
            self._load(state)

    def _start(self) -> None:
        """Starts the processes as soon as there are resources. Ray re-places the bundles of a lost node by itself."""
        assert self.placement is not None
        while time.monotonic() < self.start_at:
            time.sleep(POLL_SECONDS)
            self.check()
        begin = time.monotonic()
        while not self.placement.wait(1):  # Ray truncates fractions of a second
            self.check()
            if time.monotonic() - begin >= STALL_SECONDS:
                begin, free = time.monotonic(), ray.available_resources()
                needs = f"{self.resources}{f' on a node with {self.labels}' if self.labels else ''}"
                has = {name: free.get(name, 0.0) for name in self.resources}
                logger.warning(
                    "no room for %d learners yet (%s); each needs %s, and the cluster has free %s",
                    *(self.size, self.strategy, needs, has),
                )
        remote_class = ray.remote(max_restarts=0, max_task_retries=0)(RemoteLearner)
        for rank in range(self.size):
            seed = np.random.SeedSequence([self.seed, 2, rank, self.version, self.restarts]).generate_state(1)[0]
            place = PlacementGroupSchedulingStrategy(self.placement, placement_group_bundle_index=rank)
            options = {"num_cpus": 1, "num_gpus": self.resources.get("GPU", 0), "scheduling_strategy": place}
            member = remote_class.options(**options).remote(rank, self.size, torch.get_num_threads(), int(seed))
            self.members.append(member)

    def _join(self) -> None:
        """Makes the learners, unless that is done."""
        if self.joined:
            return
        if not self.members:
            self._start()
        address = _results([self.members[0].listen.remote()], self.check)[0]
        begin = ray.put((self.make, self.learner.state_dict()))
        _results([member.join.remote(address, self.device, begin) for member in self.members], self.check)
        self.joined = True

    def _stop(self) -> None:
        for member in self.members:
            ray.kill(member)
        self.members, self.joined = [], False

    def __enter__(self) -> "LearnerGroup":
        self.placement = placement_group(
            [self.resources] * self.size, self.strategy, bundle_label_selector=[self.labels] * self.size
        )
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self.placement is not None:  # in a thread, because this call does not return if the cluster's head is lost
            remove = threading.Thread(target=remove_placement_group, args=(self.placement,), daemon=True)
            remove.start()
            remove.join(GRACE_SECONDS / 2)


def _divide(batch: tuple[Trajectory, ...], size: int) -> list[tuple[Trajectory, ...]]:
    """The arguments of each learner's update: its rows of the batch, in numpy arrays."""
    if not batch:
        return [()] * size
    rows, _ = validate(batch[0])
    if rows % size:
        raise ValueError(f"trajectory: expected rows divisible by {size} learners, got {rows}")
    arrays, share = map_state(lambda leaf: leaf.cpu().numpy(), batch[0]), rows // size
    return [(index_state(arrays, slice(begin, begin + share)),) for begin in range(0, rows, share)]


def _place(device: str, size: int) -> tuple[str, dict[str, float]]:
    """The device of each learner, by its name in the learner's process, and the resources that it needs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu", {"CPU": 1}
    if gpus < size:
        raise ValueError(f"learners: expected at most one for each of the cluster's {gpus} GPUs, got {size}")
    return "cuda", {"CPU": 1, "GPU": 1}


def _results(requests: list[Any], check: Callable[[], object] = lambda: None) -> list[Any]:
    """The results of one request to each learner. Calls `check` while it waits; its exceptions end the wait.

    Raises:
        PeerLost: if a learner died, or reports the loss of another; says which and why.
        FloatingPointError: if the learners raised it.
    """
    waiting, results, died, lost, not_finite = list(requests), {}, "", "", None
    while waiting:
        done, waiting = ray.wait(waiting, timeout=GRACE_SECONDS if died or lost else POLL_SECONDS)
        if not done and (died or lost):
            break  # the others block in a collective with the lost learner
        if not done:
            check()
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
            died = f"learner {requests.index(done[0])} died: {_reason(error)}"
    if died or lost:
        raise PeerLost(died or lost)
    if not_finite:
        raise not_finite
    return [results[request] for request in requests]


def _reason(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    general, _, detail = str(error).partition("Worker exit detail: ")
    return detail.partition(" Some common causes")[0].rstrip(".") or general.strip().splitlines()[0]
