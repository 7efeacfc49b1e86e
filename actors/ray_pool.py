"""The pool that places actors on a Ray cluster.

The caller's process owns the actors, requests a bounded number of unrolls from each and replaces those that die: a new
actor has new environments and empty memory. The commands start and stop Ray itself.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
from envs import EnvironmentFailed, EnvironmentLost

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # deaths of an actor in a row, without an unroll, after which the run stops: it is a bug
MEMORY_SECONDS = 300.0  # for which more are tolerated if Ray ended the actor because its node was short of memory
LONGEST_PAUSE = 30.0  # seconds before such an actor is started again; the first pauses are 2, 4, 8 and 16 s
SILENCE = 10  # an actor is replaced if it does not answer for `step_seconds` and this many times the longest unroll
STALL_SECONDS = 30.0  # without any unroll after which a warning is logged
POLL_SECONDS = 0.25  # between two calls of `check` while waiting


class RemoteActor:
    """Runs in an actor's process. Tensors are sent as numpy arrays, which Ray shares without a copy."""

    def __init__(self, make_actor: MakeActor, actor_id: int, incarnation: int, config: ActorsConfig) -> None:
        torch.set_num_threads(config.threads)
        self.unroll_length = config.unroll_length
        self.failure: EnvironmentFailed | None = None
        self.version = -1
        try:
            self.actor = make_actor(actor_id, incarnation)
        except EnvironmentFailed as error:  # `pid` raises it: Ray drops the cause of a constructor's error
            self.failure = error

    def pid(self) -> int:
        """The process id. Raises an EnvironmentFailed if the environments could not be made."""
        if self.failure:
            raise self.failure
        return os.getpid()

    @ray.method(num_returns=2)
    def unroll(self, weights: dict[str, np.ndarray], version: int) -> tuple[tuple[Unroll, float], Trajectory]:
        """Unrolls with the given weights, which are loaded if their version is new; with the seconds that it took.

        The trajectory is an object of its own, so that it need not go where the rest of the unroll goes.
        """
        if version != self.version:
            self.actor.set_weights({name: torch.from_numpy(value.copy()) for name, value in weights.items()}, version)
            self.version = version
        begin = time.monotonic()
        unroll = self.actor.unroll(self.unroll_length)
        header = unroll._replace(trajectory=None), time.monotonic() - begin
        return header, map_state(lambda leaf: leaf.numpy(), unroll.trajectory)


class _Request(NamedTuple):
    """What an actor was asked for: an unroll, whose two objects these are, or its process id."""

    actor: int
    header: ray.ObjectRef
    trajectory: ray.ObjectRef | None = None


@dataclass
class _Member:
    """An actor of the pool."""

    handle: Any = None  # its process; None until `start_at`, the time to start one
    incarnation: int = 0  # processes before this one
    failures: int = 0  # deaths in a row without an unroll, the first at `failing_since`
    failing_since: float = 0.0
    start_at: float = 0.0
    answered: float = 0.0  # time of the last answer
    up: bool = False


class RayPool(Pool):
    """Actors as Ray actors, one or two unrolls in flight each.

    One thread may call `get` while others call `publish` and `status`.

    The greatest number of actors is requested at once; Ray starts each as soon as the cluster has room for it. So an
    elastic pool grows with the cluster, an autoscaler sees the demand, and an actor that was lost with its node returns
    when there is a node again. Unrolls are requested only of actors that are up: earlier requests hold old weights.

    An actor is replaced if its process or its environment dies, or hangs. Other errors of its code are bugs: `get`
    raises them as Ray does. It raises a ClusterError when an actor was lost more than `MAX_FAILURES` times in a row
    without an unroll; if a node is short of memory, only after `MEMORY_SECONDS`, with growing pauses.

    Args:
        make_actor: builds an actor in its own process; small, since it is sent to every actor.
        config: numbers of actors, environments and steps, and the resources of each actor.
        by_reference: leave trajectories where they are; unrolls then have references. Otherwise an unroll is finished
            when its trajectory is on this node.
    """

    def __init__(self, make_actor: MakeActor, config: ActorsConfig, by_reference: bool = False) -> None:
        self.config, self.by_reference = config, by_reference
        self.make_actor = make_actor
        self.remote_class = ray.remote(max_restarts=0, max_task_retries=0, **config.ray_options())(RemoteActor)
        self.published: tuple[ray.ObjectRef, int] | None = None  # weights and their version
        self.pending: dict[ray.ObjectRef, _Request] = {}  # by the object to wait for, the oldest first
        self.finished: deque[ray.ObjectRef] = deque()
        self.members = [_Member() for _ in range(config.most_actors)]
        self.complete = False
        self.longest_unroll = 0.0
        self._start()

    def _start(self) -> None:
        """Starts actors without a process whose pause is over."""
        now = time.monotonic()
        for index, member in enumerate(self.members):
            if member.handle is None and member.start_at <= now:
                member.handle = self.remote_class.remote(self.make_actor, index, member.incarnation, self.config)
                self._ask(index)

    def _ask(self, index: int) -> None:
        """Requests an unroll from an actor that is up, else its process id."""
        member = self.members[index]
        if member.up and self.published:
            header, trajectory = member.handle.unroll.remote(*self.published)
            self.pending[header if self.by_reference else trajectory] = _Request(index, header, trajectory)
        else:
            pid = member.handle.pid.remote()
            self.pending[pid] = _Request(index, pid)

    def publish(self, weights: dict[str, Any], version: int) -> None:
        self.published = ray.put({name: np.asarray(value) for name, value in weights.items()}), version

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        if self.published is None:
            raise RuntimeError("publish weights before asking for unrolls")
        while True:
            index, header, trajectory = self.pending.pop(self._oldest_finished(check))
            member = self.members[index]
            try:
                result = ray.get(header)
                arrays = trajectory if self.by_reference else ray.get(trajectory) if trajectory else None
            except (RayActorError, OutOfMemoryError) as error:  # the latter if Ray itself ended it, short of memory
                if isinstance(error, RayActorError) and error.actor_init_failed:
                    raise
                self._replace(index, _reason(error))
                continue
            except RayTaskError as error:
                if not isinstance(error.cause, EnvironmentLost):
                    raise
                self._replace(index, str(error.cause).splitlines()[0])
                continue
            except ObjectLostError as error:
                logger.warning("an unroll of actor %d was lost with its node: %s", index, _reason(error))
                self._ask(index)
                continue
            member.answered = time.monotonic()
            if not member.up:
                member.up = True
                for _ in range(self.config.in_flight):
                    self._ask(index)
                continue
            member.failures = 0
            unroll, seconds = result
            self.longest_unroll = max(self.longest_unroll, seconds)
            self._ask(index)
            return unroll._replace(trajectory=arrays, fetch=_fetch if self.by_reference else None)

    def _oldest_finished(self, check: Callable[[], object]) -> ray.ObjectRef:
        """Waits for a finished request and returns the oldest (`ray.wait` keeps no order)."""
        begin = time.monotonic()
        while True:
            while self.finished:
                if (request := self.finished.popleft()) in self.pending:  # else its actor was replaced
                    return request
            # What follows looks at all actors: not once an unroll, but once for all that are finished.
            self._start()
            self._replace_silent()
            requests = self._awaited()
            # A short timeout: a wait that has begun for an object of a lost node notices no other object.
            if not requests:  # all actors pause
                time.sleep(POLL_SECONDS)
            elif ray.wait(requests, timeout=POLL_SECONDS)[0]:
                finished = set(ray.wait(requests, num_returns=len(requests), timeout=0)[0])
                self.finished.extend(request for request in requests if request in finished)
                continue
            check()
            if time.monotonic() - begin > STALL_SECONDS:
                begin = time.monotonic()
                free = ray.available_resources()
                logger.warning(
                    f"no unroll for {STALL_SECONDS:.0f} s: {sum(member.up for member in self.members)} of "
                    f"{self.config.count} actors are up; each needs {self.config.ray_options()}, and the cluster has "
                    f"free CPU: {free.get('CPU', 0.0)}, GPU: {free.get('GPU', 0.0)}"
                )

    def _awaited(self) -> list[ray.ObjectRef]:
        """The oldest request of each actor; until `num_actors` are up, only of those that are not."""
        self.complete = self.complete or sum(member.up for member in self.members) >= self.config.num_actors
        heads: dict[int, ray.ObjectRef] = {}
        for awaited, request in self.pending.items():
            if self.complete or not self.members[request.actor].up:
                heads.setdefault(request.actor, awaited)
        return list(heads.values())

    def _replace_silent(self) -> None:
        """Replaces actors that are up and have not answered for too long: they hang, or were stopped.

        An actor notices by itself that an environment hangs (`envs.guard`), unless its whole process hangs.
        """
        now = time.monotonic()
        longest = self.longest_unroll or self.config.step_seconds  # unknown before the first unroll
        for request in self._awaited():
            index = self.pending[request].actor
            silence = now - self.members[index].answered
            if not self.members[index].up or silence < self.config.step_seconds + SILENCE * longest:
                continue
            if not ray.wait([request], timeout=0, fetch_local=False)[0]:
                self._replace(index, f"it has not answered for {silence:.0f} s")

    def _replace(self, index: int, reason: str) -> None:
        member, now = self.members[index], time.monotonic()
        failures, since = member.failures + 1, member.failing_since if member.failures else now
        short_of_memory = "low on memory" in reason
        if failures > MAX_FAILURES and not (short_of_memory and now - since < MEMORY_SECONDS):
            raise ClusterError(f"actor {index} died {failures} times in a row without an unroll: {reason}")
        pause = min(2.0**failures, LONGEST_PAUSE) if short_of_memory else 0.0
        when = f" in {pause:.0f} s" if pause else ""
        logger.warning("actor %d died and is replaced%s: %s", index, when, reason)
        ray.kill(member.handle)
        self.pending = {awaited: request for awaited, request in self.pending.items() if request.actor != index}
        self.members[index] = _Member(None, member.incarnation + 1, failures, since, now + pause)
        self._start()

    def status(self) -> PoolStatus:
        # A copy, because another thread may be in `get`.
        asked = [awaited for awaited, request in self.pending.copy().items() if self.members[request.actor].up]
        # On any node: nothing is fetched for a count.
        waiting = len(ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)[0]) if asked else 0
        return PoolStatus(sum(m.up for m in self.members), sum(m.incarnation for m in self.members), waiting)

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
        raise ClusterError(f"an unroll was lost with its node: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    general, _, detail = str(error).partition("Worker exit detail: ")
    return detail.partition(" Some common causes")[0] or general.strip().splitlines()[0]
