"""Several learners on a Ray cluster that share each batch by rows and appear as one learner.

Their owner keeps a copy of the learner: its weights and counters are updated after every update, its optimizer at every
checkpoint. When a learner dies, all are restarted from that copy, or from the state of a survivor. Ray is started and
stopped by the commands. `communicator` explains what NCCL cannot do when a learner is lost.
"""

import dataclasses
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
from torch import Tensor, nn

from agent.core.state import index_state, map_state
from agent.trajectory import Trajectory, validate
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import LearnersLost, PeerLost
from learner.learner import Learner

logger = logging.getLogger(__name__)

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

    def join(self, address: tuple[str, int], learner: tuple[nn.Module, LearnerConfig, int, dict[str, Any]]) -> None:
        """Joins the process group and makes a learner from agent, config, total steps and state."""
        agent, config, total_steps, state = learner
        try:
            store = dist.TCPStore(*address, is_master=False, timeout=self.timeout)
            backend = "nccl" if config.device == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=self.timeout)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        self.learner = Learner(agent, config, total_steps, Communicator(dist.group.WORLD))
        self.learner.load_state_dict(state)

    def update(self, shard: Trajectory) -> tuple[dict[str, float], int, dict[str, np.ndarray]]:
        """Learns; returns metrics, agent steps so far and the weights (of the first learner only)."""
        copy = map_state(
            lambda leaf: torch.from_numpy(leaf.copy()), shard
        )  # arrays from the object store are read-only
        self.metrics = self.learner.update(copy)
        weights = self.learner.weights() if self.rank == 0 else {}
        return self.metrics, self.learner.steps, {name: weight.numpy() for name, weight in weights.items()}

    def state_dict(self) -> tuple[dict[str, Any], dict[str, float]]:
        """`Learner.state_dict`, and the metrics of the last update."""
        return self.learner.state_dict(), self.metrics


class LearnerGroup:
    """Several learners, each in its own process with its rows of every batch, that act as one; a context manager.

    When one dies, all are restarted from the state of a survivor, and the update in progress is done exactly once, so
    that the result does not change. Without a survivor, the weights are those of the last update and the optimizer is
    that of the last `state_dict`. With NCCL (on GPUs) there may be no survivor, because the others block.

    Args:
        learner: on the CPU, with the initial state; the copy that is described above.
        size: number of learners.
        device: auto (GPUs if the cluster has any), cpu, or cuda, which is one GPU each.
        seed: of their random numbers (dropout), which differ by learner and restart.
        placement: pack, spread, strict_pack or strict_spread: the strategy of Ray's placement group.
        labels: labels that a learner's node must have.
        check: called several times a second while the group waits for resources or for learners to join; its exceptions
            end the wait, and the `with` statement.

    Raises:
        ValueError: if the cluster has fewer GPUs than learners, unless it has none and `device` is auto.
        LearnersLost: from calls, after more than `MAX_FAILURES` failures in a row without an update. Failures for lack
            of memory are retried for `MEMORY_SECONDS`, with growing pauses.
        ray.exceptions.RayTaskError: from calls, if the code of a learner raised; that is a bug and is not retried.
        ray.exceptions.RayActorError: from calls, if the process of a learner could not start; likewise.
    """

    def __init__(
        self,
        learner: Learner,
        size: int,
        device: str = "auto",
        seed: int = 0,
        placement: str = "pack",
        labels: dict[str, str] | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.learner, self.size, self.seed = learner, size, seed
        self.device, self.resources = _place(device, size)
        self.strategy, self.labels, self.check = placement.upper(), labels or {}, check
        self.restarts = self.failures = 0
        self.failing_since = self.start_at = 0.0
        self.placement: PlacementGroup | None = None
        self.members: list[Any] = []
        self.joined = False
        self.optimizer_version = learner.version
        self.metrics: dict[str, float] = {}

    @property
    def version(self) -> int:
        """Number of updates."""
        return self.learner.version

    @property
    def steps(self) -> int:
        """Agent steps learned from."""
        return self.learner.steps

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learns from one batch; see `Learner.update`.

        Raises:
            ValueError: if the rows cannot be divided equally.
        """
        rows, _ = validate(trajectory)
        if rows % self.size:
            raise ValueError(f"trajectory: expected rows divisible by {self.size} learners, got {rows}")
        arrays, share = map_state(lambda leaf: leaf.cpu().numpy(), trajectory), rows // self.size
        shards = [index_state(arrays, slice(begin, begin + share)) for begin in range(0, rows, share)]
        before = self.version
        while self.version == before:
            try:
                if not self.joined:
                    self._join()
                results = _results([member.update.remote(shard) for member, shard in zip(self.members, shards)])
            except PeerLost as error:
                self._lose(error)  # raises the version if a survivor has done the update
                continue
            self.metrics, self.learner.steps, weights = results[0]
            self.learner.version += 1
            self.learner.agent.load_state_dict({name: torch.from_numpy(part.copy()) for name, part in weights.items()})
        self.failures = 0
        return self.metrics

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`."""
        return self.learner.weights()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`. Lost learners are not restarted for it."""
        if self.joined and self.optimizer_version != self.version:
            try:
                ((state, _),) = _results([self.members[0].state_dict.remote()])
                self._load(state)
            except PeerLost as error:
                self._lose(error)
        return self.learner.state_dict()

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.optimizer_version = self.version

    def _lose(self, error: PeerLost) -> None:
        """Loads the state of a survivor and ends all learners; the next update restarts them."""
        now = time.monotonic()
        self.failures += 1
        self.failing_since = now if self.failures == 1 else self.failing_since
        short_of_memory = "low on memory" in str(error)
        if self.failures > MAX_FAILURES and not (short_of_memory and now - self.failing_since < MEMORY_SECONDS):
            times = f"{self.failures} times in a row without an update"
            raise LearnersLost(f"learners were lost {times}: {error}") from error
        self.start_at = now + min(2.0**self.failures, LONGEST_PAUSE) if short_of_memory else now
        if self.joined:
            self._load_survivor()
        optimizer = "" if self.optimizer_version == self.version else f", optimizer {self.optimizer_version}"
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
        if not self.members:
            self._start()
        address = _results([self.members[0].listen.remote()], self.check)[0]
        config = dataclasses.replace(self.learner.config, device=self.device)
        begin = ray.put((self.learner.agent, config, self.learner.total_steps, self.learner.state_dict()))
        _results([member.join.remote(address, begin) for member in self.members], self.check)
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
