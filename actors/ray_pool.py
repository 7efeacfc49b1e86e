"""The pool that places actors on a Ray cluster.

The caller's process owns the actors, asks each for a bounded number of unrolls and replaces those that die: a new actor
has fresh environments and fresh memory. Ray itself is started and stopped by the commands.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, RayActorError
from torch import Tensor

from actors.actor import Unroll
from actors.pool import ActorsConfig, MakeActor, Pool, PoolStatus
from agent.core import map_state

logger = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Times that an actor may die in a row without delivering an unroll before the run stops: then it is a bug."""
STALL_SECONDS = 60.0
"""Time without any unroll after which to say so."""


class RemoteActor:
    """What runs in an actor's process. Tensors travel as numpy arrays, which Ray shares without a copy."""

    def __init__(self, make_actor: MakeActor, actor_id: int, incarnation: int, config: ActorsConfig) -> None:
        torch.set_num_threads(config.threads)
        self.unroll_length = config.unroll_length
        self.actor = make_actor(actor_id, incarnation)
        self.version = -1

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def unroll(self, weights: dict[str, np.ndarray], version: int) -> Unroll:
        """Unrolls with the given weights, which are loaded only if they are new."""
        if version != self.version:
            self.actor.set_weights({name: torch.from_numpy(value.copy()) for name, value in weights.items()}, version)
            self.version = version
        unroll = self.actor.unroll(self.unroll_length)
        return unroll._replace(trajectory=map_state(lambda leaf: leaf.numpy(), unroll.trajectory))


class RayPool(Pool):
    """Actors as Ray actors, one or two unrolls in flight each.

    Args:
        make_actor: builds an actor in its own process; small, for it is sent to every actor.
        config: numbers of actors, environments and steps.
        resources: Ray options of each actor, for instance `{"num_cpus": 1}`.

    Raises:
        RuntimeError: from `get`, when an actor died `MAX_FAILURES` times in a row without delivering anything.
        ray.exceptions.RayTaskError: from `get`, when an actor's code raised: that is a bug and is not retried.
        ray.exceptions.RayActorError: from `get`, likewise, when making an actor raised.
    """

    def __init__(self, make_actor: MakeActor, config: ActorsConfig, resources: dict[str, Any] | None = None) -> None:
        self.config = config
        self.make_actor = make_actor
        self.remote_class = ray.remote(max_restarts=0, max_task_retries=0, **(resources or {"num_cpus": 1}))(
            RemoteActor
        )
        self.incarnations = [0] * config.num_actors
        self.failures = [0] * config.num_actors
        self.up = [False] * config.num_actors
        self.handles = [self._start(index) for index in range(config.num_actors)]
        self.weights: ray.ObjectRef | None = None
        self.version = -1
        # Insertion order is age: the oldest request comes first.
        self.pending: dict[ray.ObjectRef, int] = {}

    def _start(self, index: int) -> Any:
        return self.remote_class.remote(self.make_actor, index, self.incarnations[index], self.config)

    def _ask(self, index: int) -> None:
        request = self.handles[index].unroll.remote(self.weights, self.version)
        self.pending[request] = index

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        first = self.weights is None
        self.weights = ray.put({name: value.numpy() for name, value in weights.items()})
        self.version = version
        if first:
            for _ in range(self.config.in_flight):
                for index in range(self.config.num_actors):
                    self._ask(index)

    def get(self) -> Unroll:
        if self.weights is None:
            raise RuntimeError("publish weights before asking for unrolls")
        while True:
            request = self._oldest_finished()
            index = self.pending.pop(request)
            try:
                unroll = ray.get(request)
            except RayActorError as error:
                if error.actor_init_failed:
                    raise
                self._replace(index, error)
                continue
            except ObjectLostError as error:
                logger.warning("an unroll of actor %d was lost with its node: %s", index, _reason(error))
                self._ask(index)
                continue
            self.failures[index] = 0
            self.up[index] = True
            self._ask(index)
            # Arrays from the object store are read-only and pinned as long as they are used: copy and let go.
            return unroll._replace(trajectory=map_state(lambda leaf: torch.from_numpy(leaf.copy()), unroll.trajectory))

    def _oldest_finished(self) -> ray.ObjectRef:
        """Waits for a request to be finished; of several, that which was made first (`ray.wait` does not say)."""
        heads: dict[int, ray.ObjectRef] = {}
        for request, index in self.pending.items():
            heads.setdefault(index, request)
        requests = list(heads.values())
        while not (finished := ray.wait(requests, num_returns=1, timeout=STALL_SECONDS)[0]):
            logger.warning(
                "no unroll for %.0f s; %d of %d actors have delivered any. Each needs a free CPU of the cluster.",
                STALL_SECONDS,
                sum(self.up),
                self.config.num_actors,
            )
        finished += ray.wait(requests, num_returns=len(requests), timeout=0)[0]
        return next(request for request in requests if request in finished)

    def _replace(self, index: int, error: RayActorError) -> None:
        self.up[index] = False
        self.failures[index] += 1
        if self.failures[index] > MAX_FAILURES:
            raise RuntimeError(
                f"actor {index} died {self.failures[index]} times in a row without an unroll: {_reason(error)}"
            ) from error
        self.incarnations[index] += 1
        logger.warning("actor %d died and is replaced: %s", index, _reason(error))
        ray.kill(self.handles[index])
        self.pending = {request: owner for request, owner in self.pending.items() if owner != index}
        self.handles[index] = self._start(index)
        for _ in range(self.config.in_flight):
            self._ask(index)

    def status(self) -> PoolStatus:
        finished: Sequence[Any] = []
        if self.pending:
            finished, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
        return PoolStatus(alive=sum(self.up), restarts=sum(self.incarnations), waiting=len(finished))

    def close(self) -> None:
        self.pending.clear()
        for handle in self.handles:
            ray.kill(handle)


def _reason(error: Exception) -> str:
    """What Ray knows of a loss, in one line."""
    general, _, detail = str(error).partition("Worker exit detail: ")
    return detail.partition(" Some common causes")[0] or general.strip().splitlines()[0]
