"""The pool that places actors on a Ray cluster.

The caller's process owns the actors, asks each for a bounded number of unrolls and replaces those that die: a new actor
has fresh environments and fresh memory. Ray itself is started and stopped by the commands.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
from torch import Tensor

from actors.actor import Unroll
from actors.pool import ActorsConfig, ClusterError, MakeActor, Pool, PoolStatus
from agent.core import map_state
from envs import EnvironmentFailed, EnvironmentHung

logger = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Times that an actor may die in a row without delivering an unroll before the run stops: then it is a bug."""
MEMORY_SECONDS = 300.0
"""Time for which deaths in a row are not counted where Ray ended the actor because its node was short of memory."""
LONGEST_PAUSE = 30.0
"""Seconds before an actor that was ended so is started again; the first pauses are 2, 4, 8 and 16 s."""
SILENCE = 10
"""An actor is replaced if it does not answer for `step_seconds` and this many times the longest unroll so far."""
LOOK_SECONDS = 1.0
"""Time between two looks for such actors."""
STALL_SECONDS = 30.0
"""Time without any unroll after which to say so."""
POLL_SECONDS = 0.25
"""Longest time between two looks at what actors have finished, and whether to wait on."""


class RemoteActor:
    """What runs in an actor's process. Tensors travel as numpy arrays, which Ray shares without a copy."""

    def __init__(self, make_actor: MakeActor, actor_id: int, incarnation: int, config: ActorsConfig) -> None:
        torch.set_num_threads(config.threads)
        self.unroll_length = config.unroll_length
        self.failure: EnvironmentFailed | None = None
        self.version = -1
        try:
            self.actor = make_actor(actor_id, incarnation)
        except EnvironmentFailed as error:  # raised by the first call: Ray drops the cause of a constructor's error
            self.failure = error

    def pid(self) -> int:
        """The process. Raises an EnvironmentFailed if its environments could not be made."""
        if self.failure:
            raise self.failure
        return os.getpid()

    def unroll(self, weights: dict[str, np.ndarray], version: int) -> Unroll:
        """Unrolls with the given weights, which are loaded only if they are new."""
        if version != self.version:
            self.actor.set_weights({name: torch.from_numpy(value.copy()) for name, value in weights.items()}, version)
            self.version = version
        unroll = self.actor.unroll(self.unroll_length)
        return unroll._replace(trajectory=map_state(lambda leaf: leaf.numpy(), unroll.trajectory))


@dataclass
class _Member:
    """An actor of the pool: its process, which is the `incarnation`-th, and deaths in a row without an unroll.

    handle: None until `start_at`, the time at which to start it. failing_since: time of the first of those deaths.
    answered: time of its last answer.
    """

    handle: Any
    incarnation: int = 0
    failures: int = 0
    up: bool = False
    start_at: float = 0.0
    failing_since: float = 0.0
    answered: float = 0.0


class RayPool(Pool):
    """Actors as Ray actors, one or two unrolls in flight each.

    All actors that there may be are asked for at once; Ray starts each as soon as the cluster has room for it. So an
    elastic pool grows with the cluster, an autoscaler sees what is wanted, and an actor that was lost with its node
    comes back when there is a node again. No unroll is asked of an actor before it is up: its weights would be old.

    Args:
        make_actor: builds an actor in its own process; small, for it is sent to every actor.
        config: numbers of actors, environments and steps, and what each actor needs of the cluster.

    Raises:
        ClusterError: from `get`, when an actor died more than `MAX_FAILURES` times in a row and delivered nothing.
            Deaths because a node is short of memory are retried for `MEMORY_SECONDS`, with growing pauses.
        ray.exceptions.RayTaskError: from `get`, when an actor's code raised: that is a bug and is not retried. An
            actor whose environment hangs is replaced as one that died.
        ray.exceptions.RayActorError: from `get`, likewise, when making an actor raised.
    """

    def __init__(self, make_actor: MakeActor, config: ActorsConfig) -> None:
        self.config = config
        self.make_actor = make_actor
        self.remote_class = ray.remote(max_restarts=0, max_task_retries=0, **config.ray_options())(RemoteActor)
        self.weights: ray.ObjectRef | None = None
        self.version = -1
        # Requests and whose they are. Insertion order is age: the oldest request comes first.
        self.pending: dict[ray.ObjectRef, int] = {}
        self.finished: deque[ray.ObjectRef] = deque()
        self.members = [_Member(None) for _ in range(config.most_actors)]
        self.complete = False
        self.longest_unroll = 0.0
        self.next_look = 0.0
        self._start()

    def _start(self) -> None:
        """Starts every actor that has no process and whose pause is over."""
        now = time.monotonic()
        for index, member in enumerate(self.members):
            if member.handle is None and member.start_at <= now:
                member.handle = self.remote_class.remote(self.make_actor, index, member.incarnation, self.config)
                self._ask(index)

    def _ask(self, index: int) -> None:
        """Asks an actor for an unroll, or whether it is up."""
        member = self.members[index]
        unroll, pid = member.handle.unroll, member.handle.pid
        self.pending[unroll.remote(self.weights, self.version) if member.up else pid.remote()] = index

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        self.weights = ray.put({name: value.numpy() for name, value in weights.items()})
        self.version = version

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        if self.weights is None:
            raise RuntimeError("publish weights before asking for unrolls")
        while True:
            request = self._oldest_finished(check)
            index = self.pending.pop(request)
            member = self.members[index]
            try:
                result = ray.get(request)
            except (RayActorError, OutOfMemoryError) as error:  # the latter if Ray itself ended it, short of memory
                if isinstance(error, RayActorError) and error.actor_init_failed:
                    raise
                self._replace(index, _reason(error))
                continue
            except RayTaskError as error:
                if not isinstance(error.cause, EnvironmentHung):
                    raise
                self._replace(index, str(error.cause).splitlines()[0])
                continue
            except ObjectLostError as error:
                logger.warning("an unroll of actor %d was lost with its node: %s", index, _reason(error))
                self._ask(index)
                continue
            asked, member.answered = member.answered, time.monotonic()
            if not member.up:
                member.up = True
                for _ in range(self.config.in_flight):
                    self._ask(index)
                continue
            member.failures = 0
            self.longest_unroll = max(self.longest_unroll, member.answered - asked)
            self._ask(index)
            # Arrays from the object store are read-only and pinned as long as they are used: copy and let go.
            return result._replace(trajectory=map_state(lambda leaf: torch.from_numpy(leaf.copy()), result.trajectory))

    def _oldest_finished(self, check: Callable[[], object]) -> ray.ObjectRef:
        """Waits for requests to be finished; of several, that which was made first (`ray.wait` does not say)."""
        begin = time.monotonic()
        while True:
            self._start()
            self._replace_silent()
            while self.finished:
                if (request := self.finished.popleft()) in self.pending:  # else its actor is gone
                    return request
            requests = self._awaited()
            # Not longer: a call that has begun to wait for what a lost node held waits for nothing else.
            if not requests:  # every actor waits for its pause to end
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
                    "no unroll for %.0f s: %d of %s actors are up; each needs %s, and the cluster has free %s",
                    STALL_SECONDS,
                    sum(member.up for member in self.members),
                    self.config.count,
                    self.config.ray_options(),
                    {name: free.get(name, 0.0) for name in ("CPU", "GPU")},
                )

    def _awaited(self) -> list[ray.ObjectRef]:
        """The first request of each actor; at the beginning only of those that are not up, until enough of them are."""
        self.complete = self.complete or sum(member.up for member in self.members) >= self.config.num_actors
        heads: dict[int, ray.ObjectRef] = {}
        for request, index in self.pending.items():
            if self.complete or not self.members[index].up:
                heads.setdefault(index, request)
        return list(heads.values())

    def _replace_silent(self) -> None:
        """Replaces actors that are up and have not answered for too long: they hang, or were stopped.

        An actor itself notices an environment that hangs (`envs.guard`); this is for a process that cannot.
        """
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + LOOK_SECONDS
        # Before the first unroll it is not known how long one takes.
        limit = self.config.step_seconds + SILENCE * (self.longest_unroll or self.config.step_seconds)
        for request in self._awaited():
            index = self.pending[request]
            member = self.members[index]
            if not member.up or now - member.answered < limit:
                continue
            if not ray.wait([request], timeout=0, fetch_local=False)[0]:
                self._replace(index, f"it has not answered for {now - member.answered:.0f} s")

    def _replace(self, index: int, reason: str) -> None:
        member, now = self.members[index], time.monotonic()
        member.up = False
        member.failures += 1
        member.failing_since = now if member.failures == 1 else member.failing_since
        short_of_memory = "low on memory" in reason
        retried = short_of_memory and now - member.failing_since < MEMORY_SECONDS
        if member.failures > MAX_FAILURES and not retried:
            raise ClusterError(f"actor {index} died {member.failures} times in a row without an unroll: {reason}")
        pause = min(2.0**member.failures, LONGEST_PAUSE) if short_of_memory else 0.0
        member.incarnation += 1
        when = f" in {pause:.0f} s" if pause else ""
        logger.warning("actor %d died and is replaced%s: %s", index, when, reason)
        ray.kill(member.handle)
        self.pending = {request: owner for request, owner in self.pending.items() if owner != index}
        member.handle, member.start_at = None, now + pause
        self._start()

    def status(self) -> PoolStatus:
        asked = [request for request, index in self.pending.items() if self.members[index].up]
        # Wherever they are: nothing is fetched for a count.
        waiting = len(ray.wait(asked, num_returns=len(asked), timeout=0, fetch_local=False)[0]) if asked else 0
        alive, restarts = (sum(column) for column in zip(*((m.up, m.incarnation) for m in self.members)))
        return PoolStatus(alive, restarts, waiting)

    def close(self) -> None:
        self.pending.clear()
        for member in self.members:
            if member.handle is not None:
                ray.kill(member.handle)


def _reason(error: Exception) -> str:
    """What Ray knows of a loss, in one line."""
    general, _, detail = str(error).partition("Worker exit detail: ")
    return detail.partition(" Some common causes")[0] or general.strip().splitlines()[0]
