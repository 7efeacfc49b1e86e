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
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, RayError
from torch import Tensor

from agent.core.state import map_state
from agent.failures import Failures, TooManyFailures, reason_of
from agent.trajectory import Trajectory, validate
from learner.errors import BatchLost, LearnersLost, PeerLost
from learner.placement import Placement
from learner.remote_learner import (
    GRACE_SECONDS,
    PEER_SECONDS,
    POLL_SECONDS,
    Check,
    Learned,
    LearnerState,
    MakeReplica,
    Part,
    RemoteLearner,
    check_nothing,
    results_of,
)
from learner.replica import Replica, StateDict

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Rows = tuple[ray.ObjectRef, int]
"""A reference to a trajectory in numpy arrays, and the number of its rows."""


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
        device, placement, labels: see `Placement`, whose strategy is `placement`.
        seed: of their random numbers (dropout), which differ by learner and restart.
        check: for waits for resources and for learners; see `Check`.

    Raises:
        ValueError: if the cluster has fewer GPUs than learners, unless it has none and `device` is auto.
        LearnersLost: from calls, after too many losses in a row without an update; see `agent.failures`.
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
        check: Check = check_nothing,
    ) -> None:
        self.learner = learner
        self.make = make
        self.size = size
        self.seed = seed
        self.placement = Placement(size, device, placement, labels)
        self._exits = ExitStack()  # what ends with the context
        self.check = check

        # The processes: `members` are started, and have made their learners when they are `joined`.
        self.members: list[Any] = []
        self.joined = False
        self.restarts = 0
        self.failures = Failures()
        self.start_at = 0.0

        # The batches that were sent, by number: what each learner fetches, and its requests. The lock is for all that
        # `send` uses, which another thread calls: these three, `members` and `joined`.
        self.lock = threading.Lock()
        self.batches = 0
        self.sent: dict[int, list[list[Part]]] = {}
        self.fetches: dict[int, list[ray.ObjectRef]] = {}

        # The version that callers know. After a loss, the updates up to it may have to be repeated.
        self.reached = learner.version

        # How old the copy is: the version of its whole state, with the counters of that time, and that of its weights.
        # While the weights of the last update are newer, `newest` is where they are in the object store.
        self.saved_version = learner.version
        self.saved_counters = learner.counters
        self.copied_version = learner.version
        self.newest: ray.ObjectRef | None = None
        self.called: ray.ObjectRef | None = None  # a `call` that may not be answered yet

        # What the last update returned, and the episodes that ended in learners that act; the reader empties the list.
        self.metrics: dict[str, float] = {}
        self.episodes: list[Any] = []

    @property
    def version(self) -> int:
        """Number of updates."""
        return self.learner.version

    @property
    def device(self) -> str:
        """Where each learner is: cpu or cuda, by its name in the learner's process."""
        return self.placement.device

    def send(self, unrolls: Sequence[Rows], check: Check = check_nothing) -> int:
        """Lets the learners fetch a batch, and waits until they have done so, or one of them is lost.

        Args:
            unrolls: together the rows of the batch.
            check: see `Check`.

        Returns:
            the number of the batch, for `update`. The references are kept until then.

        Raises:
            ValueError: if the rows of the batch cannot be divided equally.
        """
        parts = _divide(unrolls, self.size)
        requests: list[ray.ObjectRef] = []
        with self.lock:
            self.batches += 1
            number = self.batches
            self.sent[number] = parts
            if self.joined:  # else the learners fetch it as soon as they are
                requests = self._fetch(number)
        with suppress(RayError, PeerLost):  # `update` notices them, too
            results_of(requests, check, PEER_SECONDS)
        return number

    def _fetch(self, number: int) -> list[ray.ObjectRef]:
        """Asks each learner to fetch its rows of a batch."""
        requests = []
        for member, parts in zip(self.members, self.sent[number]):
            requests.append(member.fetch.remote(number, parts))
        self.fetches[number] = requests
        return requests

    def update(self, batch: Trajectory | int | None = None) -> dict[str, float]:
        """Learns from a trajectory, from a batch that was sent, by its number, or from the learners' own sources.

        Raises:
            ValueError: if the rows of the trajectory cannot be divided equally.
            BatchLost: if a part of the batch was lost with its node; nothing was changed.
        """
        number = self._send_trajectory(batch) if isinstance(batch, Trajectory) else batch
        try:
            self._update_until(self.reached + 1, number)
        finally:
            if number is not None:
                with self.lock:
                    del self.sent[number]
                    self.fetches.pop(number, None)
        return self.metrics

    def _send_trajectory(self, trajectory: Trajectory) -> int:
        """Sends a trajectory of this process; returns the number of the batch."""
        rows, _ = validate(trajectory)
        arrays = map_state(lambda leaf: leaf.cpu().numpy(), trajectory)
        return self.send([(ray.put(arrays), rows)], self.check)

    def _update_until(self, version: int, number: int | None = None) -> None:
        """Makes updates until a version is reached, over all losses of learners. `number` is that of the batch."""
        while self.version < version:
            self.check()
            try:
                self._join()
                if number is not None:
                    self._require_fetched(number)
                self._update_once(number)
            except PeerLost as error:
                self._recover(error)  # raises the version if a survivor has made the update
        self.reached = self.version

    def _require_fetched(self, number: int) -> None:
        """Waits until all learners have their rows of a batch.

        A learner that lacks some of them would leave the others blocked in a collective."""
        reasons = results_of(self.fetches[number], self.check, PEER_SECONDS)
        for reason in reasons:
            if reason:  # a learner that lacks nothing returns an empty text
                raise BatchLost(f"a part of batch {number} was lost with its node: {reason}")

    def _update_once(self, number: int | None) -> None:
        """One update by all learners."""
        # Each learner answers with two objects. Weights stay in the object store until they are needed.
        requests: list[ray.ObjectRef] = []
        weights: list[ray.ObjectRef] = []
        for member in self.members:
            learned, weights_of_member = member.update.remote(number)
            requests.append(learned)
            weights.append(weights_of_member)
        results: list[Learned] = results_of(requests)
        for result in results:
            self.episodes += result.episodes

        # Metrics and counters are the same on all learners, and so are weights if each has the whole state.
        first = results[0]
        self.metrics = first.metrics
        self._count(first.counters)
        if self.learner.has_whole_state:
            self.newest = weights[0]
        self.failures.clear()

    def call(self, function: Callable[[Any], Result]) -> Result:
        """The result of `function(learner)` in the process of the first learner, after all updates."""
        while True:
            # After a loss, learners of a sequence model have to repeat updates.
            self._update_until(self.reached)
            try:
                self._join()
                request = self.members[0].call.remote(function)
                self.called = request
                (result,) = results_of([request], self.check)
                self.called = None
                return result
            except PeerLost as error:
                self._recover(error)

    def weights(self) -> dict[str, Tensor]:
        """See `Learner.weights`; those of a sequence model are as old as the last `state_dict`."""
        self.pull_weights()
        return self.learner.weights()

    def snapshot(self) -> Callable[[], dict[str, Tensor] | dict[str, np.ndarray]]:
        """See `Learner.snapshot`; the weights are in numpy arrays, if they are newer than the copy's.

        The function raises a PeerLost if they are lost.
        """
        if self.newest is None:
            weights = self.learner.weights()
            return lambda: weights
        return functools.partial(_get_weights, self.newest)

    def pull_weights(self) -> None:
        """Gives the copy the weights of the last update, unless they are lost."""
        newest = self.newest
        self.newest = None
        if newest is None:
            return
        try:
            weights = _get_weights(newest)
        except PeerLost as error:
            logger.warning("%s", error)
            return
        # Copies, because arrays from the object store are read-only.
        tensors = {}
        for name, array in weights.items():
            tensors[name] = torch.from_numpy(array.copy())
        self.learner.load_weights(tensors)
        self.copied_version = self.version

    def state_dict(self) -> StateDict:
        """See `Learner.state_dict`. Lost learners are not restarted for it."""
        self.pull_weights()
        if self.joined and self.saved_version != self.version:
            try:
                self._load(self._ask_state())
            except PeerLost as error:
                self._recover(error)
            except BaseException:
                self._revert()
                raise
        return self.learner.state_dict()

    def _ask_state(self) -> StateDict:
        """The state of the learners. If none has the whole of it, all gather it together and the first returns it."""
        if self.called is not None:  # `check` has ended that wait, or saves meanwhile: the first learner is still busy
            ray.wait([self.called])
            self.called = None
        asked = self.members
        if self.learner.has_whole_state:
            asked = self.members[:1]
        requests = [member.state_dict.remote(rank == 0) for rank, member in enumerate(asked)]
        first: LearnerState = results_of(requests, patience=PEER_SECONDS)[0]
        return first.state

    def replace(self, make: MakeReplica) -> None:
        """Ends the learners; the next call that needs any starts others, which `make` makes, with the same state.

        Episodes that were not read yet are forgotten, since they are those of other environments.
        """
        self.make = make
        self.episodes = []
        if self.joined:  # otherwise the processes have no learners yet
            self.state_dict()
            self._stop()

    def _load(self, state: StateDict) -> None:
        """Gives the copy the state of the learners."""
        self.learner.load_state_dict(state)
        self.newest = None
        self.saved_version = self.version
        self.copied_version = self.version
        self.saved_counters = self.learner.counters

    def _revert(self) -> None:
        """Sets the counters back to the last `state_dict` if the copy's weights are those of that time."""
        if not self.learner.has_whole_state:
            self._count(self.saved_counters)

    def _count(self, counters: dict[str, int]) -> None:
        """Gives the copy the counters of the learners, which are attributes of it."""
        for name, value in counters.items():
            setattr(self.learner, name, value)

    def _recover(self, error: PeerLost) -> None:
        """After a loss: gives the copy the state of a survivor, if there is one, and ends all learners.

        The next call that needs learners restarts them from the copy."""
        self._revert()
        self.pull_weights()
        try:
            pause = self.failures.add(str(error))
        except TooManyFailures as many:
            raise LearnersLost(f"learners were lost {many.count} times in a row without an update: {error}") from error
        self.start_at = time.monotonic() + pause
        if self.joined and self.learner.has_whole_state:
            self._load_survivor()

        # Say what of the state is older than the weights' version.
        older = ""
        if self.saved_version != self.version:
            older += f", optimizer {self.saved_version}"
        if self.learner.has_whole_state and self.copied_version != self.version:
            older += f", weights {self.copied_version}"
        logger.warning("%s; all learners are restarted at version %d%s", error, self.version, older)
        self.restarts += 1
        self._stop()

    def _load_survivor(self) -> None:
        """Gives the copy the state of the survivor with the newest version, if there is a survivor.

        Survivors differ if the loss interrupted an update that some of them had already made."""
        requests = [member.state_dict.remote() for member in self.members]
        answered, _ = ray.wait(requests, num_returns=self.size, timeout=GRACE_SECONDS)
        survivors: list[LearnerState] = []
        for request in answered:
            with suppress(RayError):
                survivors.append(ray.get(request))
        if survivors:
            newest = max(survivors, key=lambda survivor: survivor.state["version"])
            self.metrics = newest.metrics
            self._load(newest.state)

    def _start(self) -> None:
        """Starts the processes as soon as there are resources."""
        while time.monotonic() < self.start_at:
            time.sleep(POLL_SECONDS)
            self.check()
        self.placement.wait(self.check)
        for rank in range(self.size):
            # Of its random numbers.
            entropy = [self.seed, 2, rank, self.version, self.restarts]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            member = self.placement.start(RemoteLearner, rank, rank, self.size, torch.get_num_threads(), seed)
            self.members.append(member)

    def _join(self) -> None:
        """Makes the learners, unless that is done."""
        if self.joined:
            return
        if not self.members:
            self._start()
        # The first one lets the others find each other.
        first = self.members[0]
        (address,) = results_of([first.listen.remote()], self.check)
        # In the object store once, not once for each learner.
        begin = ray.put((self.make, self.learner.state_dict()))
        joining = [member.join.remote(address, self.placement.device, begin) for member in self.members]
        results_of(joining, self.check)
        with self.lock:
            self.joined = True
            # Batches that were sent before, or that dead learners had fetched.
            for number in self.sent:
                self._fetch(number)

    def _stop(self) -> None:
        """Ends the processes."""
        with self.lock:
            for member in self.members:
                ray.kill(member)
            self.members = []
            self.joined = False
            self.called = None

    def __enter__(self) -> "LearnerGroup":
        with ExitStack() as stack:
            stack.enter_context(self.placement)
            stack.callback(self._stop)
            self._start()
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()


def _divide(unrolls: Sequence[Rows], size: int) -> list[list[Part]]:
    """What each of `size` learners fetches: of all rows, an equal share of consecutive ones."""
    total = sum(rows for _, rows in unrolls)
    if total % size:
        raise ValueError(f"trajectory: expected rows divisible by {size} learners, got {total}")
    share = total // size
    divided: list[list[Part]] = [[] for _ in range(size)]
    begin = 0  # the number of the unroll's first row in the batch
    for reference, rows in unrolls:
        end = begin + rows
        for rank, parts in enumerate(divided):
            # Where the rows of the unroll and those of the learner overlap.
            own_begin = rank * share
            own_end = own_begin + share
            first = max(begin, own_begin)
            last = min(end, own_end)
            if first < last:
                part = Part(reference, first - begin, last - begin)
                parts.append(part)
        begin = end
    return divided


def _get_weights(reference: ray.ObjectRef) -> dict[str, np.ndarray]:
    """The weights that an update left in the object store. Raises a PeerLost if they are lost."""
    try:
        return ray.get(reference)
    except ObjectLostError as error:
        raise PeerLost(f"the weights of the last update were lost with their node: {reason_of(error)}") from error
