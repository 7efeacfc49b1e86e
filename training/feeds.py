"""Feeds: where a trainer's batches come from and its weights go to; one class for each way of running.

`LocalFeed` acts in this process. `RayFeed` takes unrolls from actors on a Ray cluster, and `GroupFeed` lets several
learners fetch them. `ResidentFeed` acts on the learner's device, `ResidentGroupFeed` on those of several learners.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from actors import Episode, Pool, PoolStatus, Unroll
from agent import Trajectory
from agent.core import concatenate_states
from learner.errors import PeerLost
from learner.learner import split
from learner.loading import load
from learner.replay import Replay
from storage.serialization import Parts
from training.background import Background, wait_for
from training.config import RunConfig
from training.factories import make_pool

if TYPE_CHECKING:
    from learner.group import LearnerGroup, MakeReplica

logger = logging.getLogger(__name__)

Check = Callable[[], object]
"""Is called while a feed waits; its exceptions end the wait."""
Snapshot = Callable[[], Callable[[], dict[str, Any]]]
"""Takes the learner's weights as they are; the function returns them, in any thread. See `Learner.snapshot`."""


class Batch(NamedTuple):
    """What one update learns from.

    payload: what the learner's `update` takes: a trajectory, the number of a batch that several learners fetch, or None
        if they act for themselves.
    episodes: those that ended in its unrolls, and in unrolls that were dropped.
    dropped: the number of unrolls that were too old to be learned from.
    unrolls: those that several learners fetch; empty if the payload is the trajectory.
    """

    payload: Any
    episodes: list[Episode]
    dropped: int
    unrolls: list[Unroll]

    def trajectories(self) -> Iterator[Trajectory]:
        """The trajectories of the batch, each fetched when it is asked for; none if the learners keep them."""
        if self.unrolls:
            for unroll in self.unrolls:
                yield unroll.load()
        elif self.payload is not None:
            yield self.payload


class Received(NamedTuple):
    """Unrolls of one batch, and the episodes that ended in them and in the unrolls that were dropped."""

    unrolls: list[Unroll]
    episodes: list[Episode]
    dropped: int


class Feed(ABC):
    """The source of a trainer's batches, and the destination of its weights. `close` stops the actors.

    Args:
        pool: the actors of the present stage.
        check: see `Check`.
        replay: the rows that are learned from again, if any.
    """

    def __init__(self, config: RunConfig, pool: Pool, check: Check, replay: Replay | None = None) -> None:
        self.config = config
        self.pool = pool
        self.check = check
        self.replay = replay

    @property
    def pending(self) -> bool:
        """Whether a batch was requested that `next_batch` has not returned yet."""
        return False

    @abstractmethod
    def next_batch(self, version: int, last: bool = False) -> Batch:
        """Waits for the batch from which the learner of a version will learn.

        Args:
            version: the number of updates that the learner has made.
            last: whether no batch after this one is to be requested.
        """

    @abstractmethod
    def publish(self, snapshot: Snapshot, version: int) -> None:
        """Gives the actors the learner's weights, which are of a version, for the unrolls that begin from then on."""

    def status(self) -> PoolStatus:
        """Counts of actors and unrolls."""
        return self.pool.status()

    def state_dict(self) -> Parts:
        """What exact resumption needs, by part of a checkpoint; empty where the actors cannot resume exactly."""
        actors = self.pool.state_dict()
        if not actors:
            return {}
        parts = {"actors": actors}
        if self.replay:
            parts["replay"] = self.replay.state_dict()
        return parts

    def load_state_dict(self, parts: Parts) -> None:
        """Restores what `state_dict` returned. Raises a ValueError if the actors' state does not fit."""
        saved = parts["actors"]
        for name, tensor in self.pool.state_dict().items():
            expected = _described(tensor)
            got = _described(saved.get(name))
            is_new = name.endswith("/stagger") and name not in saved  # switched on since
            if expected != got and not is_new:
                raise ValueError(f"actors: {name}: expected {expected}, got {got}")
        self.pool.load_state_dict(saved)
        if self.replay:
            self.replay.load_state_dict(parts.get("replay", {}))

    def close(self) -> None:
        """Stops the actors."""
        self.pool.close()

    def _receive(self, version: int, check: Check) -> Received:
        """Takes unrolls, oldest first, until they fill a batch for the learner of a version; drops those too old."""
        unrolls: list[Unroll] = []
        # Episodes of unrolls that are dropped have been played all the same, and count.
        episodes: list[Episode] = []
        dropped = 0
        limit = self.config.max_policy_lag
        missing = self.config.rows_of_batch
        while missing > 0:
            unroll = self.pool.get(check)
            episodes += unroll.episodes
            if limit is not None and version - unroll.version > limit:
                dropped += 1  # actors catch up: newer weights are published meanwhile
                continue
            unrolls.append(unroll)
            missing -= unroll.rows
        return Received(unrolls, episodes, dropped)


class LocalFeed(Feed):
    """Actors take turns in this process, between two updates. Runs resume exactly."""

    def next_batch(self, version: int, last: bool = False) -> Batch:
        received = self._receive(version, self.check)
        trajectory = concatenate_states([unroll.trajectory for unroll in received.unrolls])
        if self.replay:
            trajectory = self.replay.mix(trajectory)
        return Batch(trajectory, received.episodes, received.dropped, unrolls=[])

    def publish(self, snapshot: Snapshot, version: int) -> None:
        weights = snapshot()
        self.pool.publish(weights(), version)


class RayFeed(Feed):
    """Actors on a Ray cluster. Threads receive the next batch and publish weights beside the updates.

    At most one batch is ahead of the learner, and at most one version is being published.

    Args:
        learner: the learner, or the group of learners.
    """

    def __init__(self, config: RunConfig, pool: Pool, check: Check, learner: Any, replay: Replay | None) -> None:
        super().__init__(config, pool, check, replay)
        self.learner = learner
        self.receiver = Background()
        self.publisher = Background()
        self.ahead: Future[tuple[Received, Callable[[], Any]]] | None = None
        self.publication: Future[None] | None = None

    @property
    def pending(self) -> bool:
        return self.ahead is not None

    def next_batch(self, version: int, last: bool = False) -> Batch:
        if self.ahead is None:
            self._finish_publication()  # actors need weights to begin with
            self._request(version)
        assert self.ahead
        received, take = wait_for(self.ahead, self._check_all)
        self.ahead = None
        if not last:
            # The next batch is learned from after all updates of this one.
            self._request(version + self._num_updates())
        # In the learner's thread: on a GPU its stream waits for the copy, and replay draws by its version.
        payload = take()
        if self.replay:
            payload = self.replay.mix(payload)
        return Batch(payload, received.episodes, received.dropped, self._kept(received.unrolls))

    def publish(self, snapshot: Snapshot, version: int) -> None:
        self._finish_publication()
        publish = self.pool.publish
        # Now, before the next update changes them. What takes long is done in the thread.
        weights = snapshot()
        self.publication = self.publisher.start(lambda: publish(weights(), version))

    def close(self) -> None:
        # First the threads, which use the pool.
        self.receiver.close()
        self.publisher.close()
        super().close()

    def _num_updates(self) -> int:
        """Updates that are made of the next batch."""
        if self.replay:
            return self.replay.updates
        rows = self.config.rows_of_batch
        return len(split(rows, self.config.rows_per_update or rows))

    def _request(self, version: int) -> None:
        """Begins to receive the batch for the learner of a version."""

        def receive() -> tuple[Received, Callable[[], Any]]:
            received = self._receive(version, self.receiver.check)
            return received, self._load(received.unrolls)

        self.ahead = self.receiver.start(receive)

    def _load(self, unrolls: list[Unroll]) -> Callable[[], Any]:
        """Moves unrolls to the learner; returns a function for its thread, which returns the batch's payload."""
        return load([unroll.trajectory for unroll in unrolls], self.learner.device)

    def _kept(self, unrolls: list[Unroll]) -> list[Unroll]:
        """The unrolls that the batch keeps."""
        return []

    def _check_all(self) -> None:
        self.check()
        if self.publication and self.publication.done():
            self._finish_publication()

    def _finish_publication(self) -> None:
        """Waits for the publication in progress, and raises its error. Weights that were lost are published anew."""
        publication = self.publication
        self.publication = None
        if publication is None:
            return
        try:
            wait_for(publication, self.check)
        except PeerLost as error:
            logger.warning("%s", error)
            state = self.learner.state_dict()
            self.pool.publish(state["weights"], self.learner.version)


class GroupFeed(RayFeed):
    """Actors on a Ray cluster, and several learners that fetch their rows of a batch by themselves."""

    def __init__(self, config: RunConfig, pool: Pool, check: Check, group: "LearnerGroup") -> None:
        super().__init__(config, pool, check, group, replay=None)

    def _load(self, unrolls: list[Unroll]) -> Callable[[], int]:
        references = [(unroll.trajectory, unroll.rows) for unroll in unrolls]
        number = self.learner.send(references, self.receiver.check)
        return lambda: number

    def _kept(self, unrolls: list[Unroll]) -> list[Unroll]:
        return unrolls


class ResidentFeed(Feed):
    """Environments, network and unrolls on the learner's device: the actor has the learner's weights."""

    def next_batch(self, version: int, last: bool = False) -> Batch:
        received = self._receive(version, self.check)
        (unroll,) = received.unrolls  # all environments act together, so one unroll is a batch
        return Batch(unroll.trajectory, received.episodes, received.dropped, unrolls=[])

    def publish(self, snapshot: Snapshot, version: int) -> None:
        self.pool.publish({}, version)


class ResidentGroupFeed(ResidentFeed):
    """Several learners that act for themselves, each on its own device; their batches have episodes only.

    Args:
        group: its learners are replaced by others that act in the environment of the present stage.
        make: makes such a learner.
    """

    def __init__(self, config: RunConfig, pool: Pool, check: Check, group: "LearnerGroup", make: "MakeReplica") -> None:
        super().__init__(config, pool, check)
        group.replace(make)


def make_feed(
    config: RunConfig,
    *,
    env: str,
    generation: int,
    local: bool,
    updater: Any,
    replay: Replay | None,
    make_replica: "Callable[[], MakeReplica]",
    check: Check,
) -> Feed:
    """The feed of a stage. Its actors have started.

    Args:
        env: the environment of the stage.
        generation: see `factories.make_actor`.
        local: whether actors live in this process.
        updater: the learner, or a group of learners.
        replay: the rows that are learned from again, if any.
        make_replica: how several learners are made.
    """
    pool = make_pool(config, env, generation, local, updater)
    # Acting on the learners' devices.
    if config.resident and config.learners > 1:
        return ResidentGroupFeed(config, pool, check, updater, make_replica())
    if config.resident:
        return ResidentFeed(config, pool, check)
    # Acting beside the learner, in this process or in others.
    if local:
        return LocalFeed(config, pool, check, replay)
    if config.learners > 1:
        return GroupFeed(config, pool, check, updater)
    return RayFeed(config, pool, check, updater, replay)


def _described(tensor: Tensor | None) -> str:
    """The dtype and shape of a tensor, for errors."""
    if tensor is None:
        return "none"
    return f"{tensor.dtype} {list(tensor.shape)}"
