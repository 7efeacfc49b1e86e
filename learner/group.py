"""Several learners on a Ray cluster that share each batch by rows and appear as one learner.

Learners fetch their rows of a batch by themselves, those of the next batch during an update; see `remote_learner`.
Their owner keeps a copy of the learner: the counters are updated after every update, the weights when they are needed,
the rest at every checkpoint. When a learner dies, all are restarted from that copy, or from the state of a survivor.
Ray is started and stopped by the commands. `communicator` explains what NCCL cannot do when a learner is lost.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from agent.core.state import map_state
from agent.trajectory import Trajectory, validate
from learner.errors import BatchLost, LearnersLost, PeerLost
from learner.remote_learner import (
    GRACE_SECONDS,
    PEER_SECONDS,
    POLL_SECONDS,
    MakeReplica,
    Part,
    RemoteLearner,
    reason_of,
    results_of,
)
from learner.replica import Replica

logger = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Failures in a row without an update after which the run stops, because that is a bug."""
MEMORY_SECONDS = 300.0
"""Seconds during which failures are not counted if Ray ended a learner because its node was short of memory."""
LONGEST_PAUSE = 30.0
"""Seconds, at most, before a restart after such a failure; the first pauses are 2, 4, 8 and 16 s."""
STALL_SECONDS = 30.0
"""Seconds of waiting for resources between two warnings."""


class LearnerGroup:
    """Several learners, each in its own process with its rows of every batch, that act as one; a context manager.

    When one dies, all are restarted. Learners of agents each have the whole state: they resume from that of a survivor,
    and the update in progress is done exactly once, so that the result does not change. Without a survivor (with NCCL,
    on GPUs, the others block) the weights are those of the last update and the optimizer is that of the last
    `state_dict`; if the node that had those weights is lost, too, they are those that were last taken, and a warning
    says so. Learners of sequence models have the memory of their rows only, which is lost with them: the updates since
    the last `state_dict` are repeated.

    One thread may call `send` while another calls everything else.

    Args:
        learner: on the CPU, with the initial state; the copy that is described above.
        make: makes the learner of a process from its communicator and device, which is cpu or cuda.
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
        learner: Replica,
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
        self.lock = threading.Lock()  # for what `send` uses: members, joined, sent, fetches
        self.batches = 0
        self.sent: dict[int, list[list[Part]]] = {}  # what each learner fetches of a batch, until the batch is done
        self.fetches: dict[int, list[ray.ObjectRef]] = {}
        self.newest: ray.ObjectRef | None = None  # weights of the last update, while the copy has older ones
        self.reached = self.saved_version = self.copied_version = learner.version
        self.saved_counters = learner.counters
        self.metrics: dict[str, float] = {}
        self.episodes: list[Any] = []  # that ended in learners that act; the reader empties the list

    @property
    def version(self) -> int:
        """Number of updates."""
        return self.learner.version

    def send(self, unrolls: Sequence[tuple[ray.ObjectRef, int]], check: Callable[[], object] = lambda: None) -> int:
        """Lets the learners fetch a batch, and waits until they have done so, or one of them is lost.

        Args:
            unrolls: references to trajectories in numpy arrays, and their rows; together the rows of the batch.
            check: called several times a second; its exceptions end the wait.

        Returns:
            the number of the batch, for `update`. The references are kept until then.

        Raises:
            ValueError: if the rows of the batch cannot be divided equally.
        """
        parts = _divide(unrolls, self.size)
        with self.lock:
            self.batches = number = self.batches + 1
            self.sent[number] = parts
            requests = self._fetch(number) if self.joined else []
        with suppress(RayError, PeerLost):  # `update` notices them, too
            results_of(requests, check, PEER_SECONDS)
        return number

    def _fetch(self, number: int) -> list[ray.ObjectRef]:
        asked = zip(self.members, self.sent[number])
        self.fetches[number] = [member.fetch.remote(number, parts) for member, parts in asked]
        return self.fetches[number]

    def update(self, batch: Trajectory | int | None = None) -> dict[str, float]:
        """Learns from a trajectory, from a batch that was sent, by its number, or from the learners' own sources.

        Raises:
            ValueError: if the rows of the trajectory cannot be divided equally.
            BatchLost: if a part of the batch was lost with its node; nothing was changed.
        """
        if isinstance(batch, Trajectory):
            rows, _ = validate(batch)
            batch = self.send([(ray.put(map_state(lambda leaf: leaf.cpu().numpy(), batch)), rows)], self.check)
        try:
            self._update_until(self.reached + 1, batch)
        finally:
            if batch is not None:
                with self.lock:
                    del self.sent[batch]
                    self.fetches.pop(batch, None)
        return self.metrics

    def _update_until(self, version: int, number: int | None = None) -> None:
        while self.version < version:
            self.check()
            try:
                self._join()
                # A learner that lacks a part of the batch would leave the others blocked in a collective.
                lost = results_of(self.fetches[number], self.check, PEER_SECONDS) if number else []
                if any(lost):
                    raise BatchLost(f"a part of batch {number} was lost with its node: {max(lost)}")
                requests = [member.update.remote(number) for member in self.members]
                learned = results_of([learned for learned, _ in requests])
                self.metrics, counters, _ = learned[0]
            except PeerLost as error:
                self._lose(error)  # raises the version if a survivor has done the update
                continue
            self._count(counters)
            self.episodes += [episode for *_, episodes in learned for episode in episodes]
            self.newest = requests[0][1] if self.learner.has_whole_state else None
            self.failures = 0
        self.reached = self.version

    def call(self, function: Callable[[Any], Any]) -> Any:
        """The result of `function(learner)` in the process of the first learner, after all updates."""
        while True:
            self._update_until(self.reached)  # of sequence models, after a loss
            try:
                self._join()
                return results_of([self.members[0].call.remote(function)], self.check)[0]
            except PeerLost as error:
                self._lose(error)

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`; those of a sequence model are as old as the last `state_dict`."""
        self.follow()
        return self.learner.weights()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """See `Learner.snapshot`; the weights are in numpy arrays. The function raises a PeerLost if they are lost."""
        if self.newest is None:
            weights = self.learner.weights()
            return lambda: weights
        return functools.partial(_get_weights, self.newest)

    def follow(self) -> None:
        """Gives the copy the weights of the last update, unless they are lost."""
        newest, self.newest = self.newest, None
        if newest is None:
            return
        try:
            weights = _get_weights(newest)
        except PeerLost as error:
            logger.warning("%s", error)
            return
        self.learner.load_weights({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
        self.copied_version = self.version

    def state_dict(self) -> dict[str, Any]:
        """See `Learner.state_dict`. Lost learners are not restarted for it."""
        self.follow()
        if self.joined and self.saved_version != self.version:
            try:
                # Without the whole state in one learner, all of them gather it together.
                asked = self.members[:1] if self.learner.has_whole_state else self.members
                self._load(results_of([each.state_dict.remote(rank == 0) for rank, each in enumerate(asked)])[0][0])
            except PeerLost as error:
                self._lose(error)
            except BaseException:
                self._revert()
                raise
        return self.learner.state_dict()

    def replace(self, make: MakeReplica) -> None:
        """Ends the learners; the next call that needs any starts others, which `make` makes, with the same state.

        Episodes that were not read yet are forgotten, since they are those of other environments.
        """
        self.make = make
        self.episodes = []
        if self.joined:  # otherwise the processes have no learners yet
            self.state_dict()
            self._stop()

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.newest = None
        self.saved_version = self.copied_version = self.version
        self.saved_counters = self.learner.counters

    def _revert(self) -> None:
        """Where the copy's weights are those of the last `state_dict`, so are its counters again."""
        if not self.learner.has_whole_state:
            self._count(self.saved_counters)

    def _count(self, counters: dict[str, int]) -> None:
        for name, value in counters.items():
            setattr(self.learner, name, value)

    def _lose(self, error: PeerLost) -> None:
        """Loads the state of a survivor, or of the last `state_dict`, and ends all learners; `update` restarts them."""
        self._revert()
        self.follow()
        now = time.monotonic()
        self.failures += 1
        self.failing_since = now if self.failures == 1 else self.failing_since
        short_of_memory = "low on memory" in str(error)
        if self.failures > MAX_FAILURES and not (short_of_memory and now - self.failing_since < MEMORY_SECONDS):
            times = f"{self.failures} times in a row without an update"
            raise LearnersLost(f"learners were lost {times}: {error}") from error
        self.start_at = now + min(2.0**self.failures, LONGEST_PAUSE) if short_of_memory else now
        if self.joined and self.learner.has_whole_state:
            self._load_survivor()
        older = "" if self.saved_version == self.version else f", optimizer {self.saved_version}"
        if self.learner.has_whole_state and self.copied_version != self.version:
            older += f", weights {self.copied_version}"
        logger.warning("%s; all learners are restarted at version %d%s", error, self.version, older)
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
        fixed: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"fetch": 1}}
        remote_class = ray.remote(**fixed)(RemoteLearner)
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
        address = results_of([self.members[0].listen.remote()], self.check)[0]
        begin = ray.put((self.make, self.learner.state_dict()))
        results_of([member.join.remote(address, self.device, begin) for member in self.members], self.check)
        with self.lock:
            self.joined = True
            for number in self.sent:
                self._fetch(number)

    def _stop(self) -> None:
        with self.lock:
            for member in self.members:
                ray.kill(member)
            self.members, self.joined = [], False

    def __enter__(self) -> "LearnerGroup":
        bundles, labels = [self.resources] * self.size, [self.labels] * self.size
        self.placement = placement_group(bundles, self.strategy, bundle_label_selector=labels)
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


def _divide(unrolls: Sequence[tuple[ray.ObjectRef, int]], size: int) -> list[list[Part]]:
    """What each learner fetches: of all rows, an equal share of consecutive ones."""
    total, begin = sum(rows for _, rows in unrolls), 0
    if total % size:
        raise ValueError(f"trajectory: expected rows divisible by {size} learners, got {total}")
    share, parts = total // size, list[list[Part]]([] for _ in range(size))
    for reference, rows in unrolls:
        for rank in range(begin // share, -(-(begin + rows) // share)):
            first, last = max(begin, rank * share), min(begin + rows, (rank + 1) * share)
            parts[rank].append((reference, first - begin, last - begin))
        begin += rows
    return parts


def _get_weights(reference: ray.ObjectRef) -> dict[str, np.ndarray]:
    try:
        return ray.get(reference)
    except ObjectLostError as error:
        raise PeerLost(f"the weights of the last update were lost with their node: {reason_of(error)}") from error


def _place(device: str, size: int) -> tuple[str, dict[str, float]]:
    """The device of each learner, by its name in the learner's process, and the resources that it needs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu", {"CPU": 1}
    if gpus < size:
        raise ValueError(f"learners: expected at most one for each of the cluster's {gpus} GPUs, got {size}")
    return "cuda", {"CPU": 1, "GPU": 1}
