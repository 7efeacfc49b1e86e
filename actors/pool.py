"""The interface of pools of actors, and the pool that acts in this process.

A pool returns unrolls, oldest first, and holds a bounded number of them: actors wait for the learner instead of filling
a queue. `ray_pool.py` places the same actors on a Ray cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actors.actor import Actor, Unroll, select
from actors.config import ActorsConfig

MakeActor = Callable[[int, int], Actor]
"""Builds an actor from its id and its incarnation (0, plus one for every restart)."""


@dataclass(frozen=True)
class PoolStatus:
    """Counts of a pool.

    alive: actors that are up.
    restarts: actors replaced so far.
    waiting: finished unrolls not taken yet.
    """

    alive: int
    restarts: int
    waiting: int


class Pool(ABC):
    """Returns unrolls of a set of actors; a context manager that stops them."""

    @abstractmethod
    def publish(self, weights: dict[str, Any], version: int) -> None:
        """Sets the weights, tensors on the CPU, of unrolls that begin from now on."""

    @abstractmethod
    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        """Returns the oldest finished unroll; waits for one, and calls `check`, which may raise, while it waits."""

    @abstractmethod
    def status(self) -> PoolStatus:
        """Counts of actors and unrolls."""

    def state_dict(self) -> dict[str, Tensor]:
        """The actors' state for exact resumption; empty if the pool cannot resume exactly."""
        return {}

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:  # noqa: B027
        """Resumes from `state_dict`."""

    def close(self) -> None:  # noqa: B027
        """Stops the actors."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalPool(Pool):
    """Actors that take turns in this process: deterministic under a seed, and exactly resumable."""

    def __init__(self, make_actor: MakeActor, config: ActorsConfig) -> None:
        self.actors: list[Actor] = []
        # If one cannot be made, those before it are closed.
        with ExitStack() as stack:
            for index in range(config.num_actors):
                actor = make_actor(index, 0)
                stack.callback(actor.close)
                self.actors.append(actor)
            stack.pop_all()
        self.unroll_length = config.unroll_length
        self.turn = 0

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        for actor in self.actors:
            actor.set_weights(weights, version)

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        # It acts when it is asked, with the newest weights.
        unroll = self.actors[self.turn].unroll(self.unroll_length)
        self.turn = (self.turn + 1) % len(self.actors)
        return unroll

    def status(self) -> PoolStatus:
        return PoolStatus(alive=len(self.actors), restarts=0, waiting=0)

    def state_dict(self) -> dict[str, Tensor]:
        arrays = {"turn": torch.tensor(self.turn)}
        for index, actor in enumerate(self.actors):
            for name, value in actor.state_dict().items():
                arrays[f"{index}/{name}"] = value
        return arrays

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        self.turn = int(arrays["turn"])
        for index, actor in enumerate(self.actors):
            actor.load_state_dict(select(arrays, f"{index}/"))

    def close(self) -> None:
        # One that fails to close does not leave the others open.
        with ExitStack() as stack:
            for actor in reversed(self.actors):
                stack.callback(actor.close)
