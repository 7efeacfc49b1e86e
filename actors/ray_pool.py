"""The pool that places actors on a Ray cluster.

The caller's process owns the actors, requests a bounded number of unrolls from each and replaces those that die: a new
actor has new environments and empty memory. The commands start and stop Ray itself.
"""

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from actors.actor import Unroll
from actors.config import ActorsConfig, ClusterError
from actors.pool import MakeActor, Pool, PoolStatus
from agent import Trajectory
from agent.core import map_state
from agent.failures import Failures, TooManyFailures, reason_of
from envs import EnvironmentLost
from envs.processes import START_SECONDS

logger = logging.getLogger(__name__)

SILENCE = 10
"""An actor is replaced if it does not answer for `step_seconds` and this many times the longest unroll."""
MAKING_SECONDS = START_SECONDS
"""Time to make environments, beside `SILENCE` times `step_seconds`: their processes may take as long to start."""
STALL_SECONDS = 30.0
"""Seconds without any unroll between two warnings."""
POLL_SECONDS = 0.25
"""Seconds between two calls of `check` while waiting."""


class RemoteActor:
    """Runs in an actor's process. Tensors are sent as numpy arrays, which Ray shares without a copy."""

    def __init__(self, make_actor: MakeActor, actor_id: int, incarnation: int, config: ActorsConfig) -> None:
        torch.set_num_threads(config.threads)
        self.make_actor = functools.partial(make_actor, actor_id, incarnation)
        self.unroll_length = config.unroll_length
        self.version = -1

    def pid(self) -> int:
        """The process id: the process is there."""
        return os.getpid()

    def make(self) -> None:
        """Makes the environments, which may hang: not in the constructor, whose errors Ray does not send whole."""
        self.actor = self.make_actor()

    @ray.method(num_returns=2)
    def unroll(self, weights: dict[str, np.ndarray], version: int) -> tuple[tuple[Unroll, float], Trajectory]:
        """Unrolls with the given weights, which are loaded if their version is new; with the seconds that it took.

        The trajectory is an object of its own, so that it need not go where the rest of the unroll goes.
        """
        if version != self.version:
            # Copies, because arrays from the object store are read-only.
            tensors = {}
            for name, value in weights.items():
                tensors[name] = torch.from_numpy(value.copy())
            self.actor.set_weights(tensors, version)
            self.version = version
        begin = time.monotonic()
        unroll = self.actor.unroll(self.unroll_length)
        seconds = time.monotonic() - begin

        header = unroll._replace(trajectory=None)
        arrays = map_state(lambda leaf: leaf.numpy(), unroll.trajectory)
        return (header, seconds), arrays


class _Request(NamedTuple):
    """What an actor was asked for: an unroll, whose two objects these are, or what comes before the first one."""

    actor: int
    header: ray.ObjectRef
    trajectory: ray.ObjectRef | None = None


@dataclass
class _Member:
    """An actor of the pool. Times are those of `time.monotonic`.

    handle: its process; None until `start_at`, the time to start one.
    incarnation: processes before this one.
    failures: deaths in a row without an unroll.
    answered: time of the last answer.
    placed: whether it has a process, which has answered.
    up: whether its environments are made.
    """

    handle: Any = None
    incarnation: int = 0
    failures: Failures = field(default_factory=Failures)
    start_at: float = 0.0
    answered: float = 0.0
    placed: bool = False
    up: bool = False


class _ActorLost(Exception):
    """An actor died, or its environment; the message says why."""


class RayPool(Pool):
    """Actors as Ray actors, one or two unrolls in flight each.

    One thread may call `get` while others call `publish` and `status`.

    The greatest number of actors is requested at once; Ray starts each as soon as the cluster has room for it. So an
    elastic pool grows with the cluster, an autoscaler sees the demand, and an actor that was lost with its node returns
    when there is a node again. Unrolls are requested only of actors that are up: earlier requests hold old weights.

    An actor is replaced if its process or its environment dies, or hangs. Other errors of its code are bugs: `get`
    raises them as Ray does. It raises a ClusterError when an actor was lost too often in a row without an unroll; see
    `agent.failures`.

    Args:
        make_actor: builds an actor in its own process; small, since it is sent to every actor.
        config: numbers of actors, environments and steps, and the resources of each actor.
        by_reference: leave trajectories where they are; unrolls then have references. Otherwise an unroll is finished
            when its trajectory is on this node.
    """

    def __init__(self, make_actor: MakeActor, config: ActorsConfig, by_reference: bool = False) -> None:
        self.config = config
        self.by_reference = by_reference
        self.make_actor = make_actor
        # The pool itself replaces actors that die.
        make_remote = ray.remote(max_restarts=0, max_task_retries=0, **config.ray_options())
        self.remote_class = make_remote(RemoteActor)
        self.published: tuple[ray.ObjectRef, int] | None = None  # weights and their version
        self.pending: dict[ray.ObjectRef, _Request] = {}  # by the object to wait for, the oldest first
        self.finished: deque[ray.ObjectRef] = deque()
        self.members = [_Member() for _ in range(config.most_actors)]
        self.complete = False  # whether `num_actors` have been up
        self.longest_unroll = 0.0  # seconds
        self._start()

    def _start(self) -> None:
        """Starts actors without a process whose pause is over."""
        now = time.monotonic()
        for index, member in enumerate(self.members):
            if member.handle is None and member.start_at <= now:
                member.handle = self.remote_class.remote(self.make_actor, index, member.incarnation, self.config)
                self._ask(index)

    def _ask(self, index: int) -> None:
        """Requests an unroll from an actor that is up, else what comes before that."""
        member = self.members[index]
        if member.up and self.published:
            header, trajectory = member.handle.unroll.remote(*self.published)
            # With references the trajectory stays on its node, and only the header is awaited.
            awaited = trajectory
            if self.by_reference:
                awaited = header
            self.pending[awaited] = _Request(index, header, trajectory)
        else:
            answer = member.handle.make.remote() if member.placed else member.handle.pid.remote()
            self.pending[answer] = _Request(index, answer)

    def publish(self, weights: dict[str, Any], version: int) -> None:
        arrays = {name: np.asarray(value) for name, value in weights.items()}
        self.published = (ray.put(arrays), version)

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        if self.published is None:
            raise RuntimeError("publish weights before asking for unrolls")
        while True:
            oldest = self._oldest_finished(check)  # which may replace actors, and with them `pending`
            request = self.pending.pop(oldest)
            member = self.members[request.actor]
            try:
                taken = self._take(request)
            except _ActorLost as loss:
                self._replace(request.actor, str(loss))
                continue
            except ObjectLostError as error:
                logger.warning("an unroll of actor %d was lost with its node: %s", request.actor, reason_of(error))
                self._ask(request.actor)
                continue

            member.answered = time.monotonic()
            if taken is None:
                self._advance(request.actor)
                continue

            unroll, seconds = taken
            member.failures.clear()
            self.longest_unroll = max(self.longest_unroll, seconds)
            self._ask(request.actor)
            return unroll

    def _advance(self, index: int) -> None:
        """Lets an actor that has a process make its environments; requests the first unrolls of one that has these."""
        member = self.members[index]
        if not member.placed:
            member.placed = True
            self._ask(index)
            return
        member.up = True
        if self._num_up() >= self.config.num_actors:
            self.complete = True
        for _ in range(self.config.in_flight):
            self._ask(index)

    def _num_up(self) -> int:
        """Number of actors that are up."""
        return sum(member.up for member in self.members)

    def _take(self, request: _Request) -> tuple[Unroll, float] | None:
        """The answer to a request: an unroll and the seconds that it took; None if something else was asked for.

        Raises:
            _ActorLost: if the actor died, or its environment.
            ObjectLostError: if the unroll was lost with its node.
        """
        try:
            answer = ray.get(request.header)
            if request.trajectory is None:
                return None
            unroll, seconds = answer
            if self.by_reference:
                unroll = unroll._replace(trajectory=request.trajectory, fetch=_fetch)
            else:
                trajectory = ray.get(request.trajectory)
                unroll = unroll._replace(trajectory=trajectory)
            return unroll, seconds
        except RayActorError as error:
            if error.actor_init_failed:
                raise
            raise _ActorLost(reason_of(error)) from error
        except OutOfMemoryError as error:  # Ray itself ended it
            raise _ActorLost(reason_of(error)) from error
        except RayTaskError as error:
            if not isinstance(error.cause, EnvironmentLost):
                raise
            message = str(error.cause)
            first_line = message.splitlines()[0]
            raise _ActorLost(first_line) from error

    def _oldest_finished(self, check: Callable[[], object]) -> ray.ObjectRef:
        """Waits for a finished request and returns the oldest (`ray.wait` keeps no order)."""
        begin = time.monotonic()
        while True:
            while self.finished:
                oldest = self.finished.popleft()
                if oldest in self.pending:  # else its actor was replaced
                    return oldest

            # What follows looks at all actors: not once an unroll, but once for all that are finished.
            self._start()
            self._replace_silent()
            awaited = self._awaited()
            if self._wait_for_any(awaited):
                done, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0)
                is_done = set(done)
                self.finished.extend(reference for reference in awaited if reference in is_done)
                continue
            check()
            if time.monotonic() - begin > STALL_SECONDS:
                begin = time.monotonic()
                self._warn_of_stall()

    def _wait_for_any(self, awaited: list[ray.ObjectRef]) -> bool:
        """Waits for a short time until a request is finished; returns whether one is."""
        if not awaited:  # all actors pause
            time.sleep(POLL_SECONDS)
            return False
        # A short time, because a wait that has begun for an object of a lost node notices no other object.
        done, _ = ray.wait(awaited, timeout=POLL_SECONDS)
        return bool(done)

    def _warn_of_stall(self) -> None:
        """Logs what actors need and what the cluster has."""
        free = ray.available_resources()
        making = sum(member.placed and not member.up for member in self.members)
        making_text = f", {making} make their environments" if making else ""
        logger.warning(
            f"no unroll for {STALL_SECONDS:.0f} s: {self._num_up()} of {self.config.count} actors are up{making_text}; "
            f"each needs {self.config.ray_options()}, and the cluster has free CPU: {free.get('CPU', 0.0)}, "
            f"GPU: {free.get('GPU', 0.0)}"
        )

    def _awaited(self) -> list[ray.ObjectRef]:
        """The oldest request of each actor. Until `num_actors` have been up, only of those that are not up yet."""
        # The first of each actor's requests, which are in order.
        oldest: dict[int, ray.ObjectRef] = {}
        for awaited, request in self.pending.items():
            is_up = self.members[request.actor].up
            if self.complete or not is_up:
                oldest.setdefault(request.actor, awaited)
        return list(oldest.values())

    def _replace_silent(self) -> None:
        """Replaces actors that have a process and have not answered for too long: they hang, or were stopped.

        An actor notices by itself that an environment hangs (`envs.guard`), unless its whole process hangs.
        """
        now = time.monotonic()
        longest = self.longest_unroll or self.config.step_seconds  # unknown before the first unroll
        of_unroll = self.config.step_seconds + SILENCE * longest
        of_making = MAKING_SECONDS + SILENCE * self.config.step_seconds
        for awaited in self._awaited():
            index = self.pending[awaited].actor
            member = self.members[index]
            silence = now - member.answered
            if not member.placed or silence < (of_unroll if member.up else of_making):
                continue
            # It may have answered, and the caller has not asked for that yet.
            answered, _ = ray.wait([awaited], timeout=0, fetch_local=False)
            if not answered:
                self._replace(index, f"it has not answered for {silence:.0f} s")

    def _replace(self, index: int, reason: str) -> None:
        """Ends an actor and starts another in its place; after a pause if its node was short of memory."""
        member = self.members[index]
        try:
            pause = member.failures.add(reason)
        except TooManyFailures as error:
            message = f"actor {index} died {error.count} times in a row without an unroll: {reason}"
            raise ClusterError(message) from None
        when = f" in {pause:.0f} s" if pause else ""
        logger.warning("actor %d died and is replaced%s: %s", index, when, reason)
        # What it was asked for is forgotten.
        ray.kill(member.handle)
        still_pending = {}
        for awaited, request in self.pending.items():
            if request.actor != index:
                still_pending[awaited] = request
        self.pending = still_pending

        self.members[index] = _Member(
            incarnation=member.incarnation + 1,
            failures=member.failures,
            start_at=time.monotonic() + pause,
        )
        self._start()

    def status(self) -> PoolStatus:
        # A copy, because another thread may be in `get`.
        pending = self.pending.copy()
        asked = []
        for awaited, request in pending.items():
            if self.members[request.actor].up:
                asked.append(awaited)
        finished: list[ray.ObjectRef] = []
        if asked:
            # On any node: nothing is fetched for a count.
            finished, _ = ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)
        return PoolStatus(
            alive=self._num_up(),
            restarts=sum(member.incarnation for member in self.members),
            waiting=len(finished),
        )

    def close(self) -> None:
        self.pending.clear()
        for member in self.members:
            if member.handle is not None:
                ray.kill(member.handle)


def _fetch(reference: ray.ObjectRef) -> Trajectory:
    """The trajectory, in arrays, of an unroll that is left where it is."""
    try:
        return ray.get(reference)
    except ObjectLostError as error:
        raise ClusterError(f"an unroll was lost with its node: {reason_of(error)}") from error
