"""The interface behind which actors are placed, and the pool that acts in this process.

A pool hands out unrolls, oldest first, and holds only a bounded number of them: actors wait for the learner, never the
other way round with a growing queue. `ray_pool.py` places the same actors on a Ray cluster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.actor import Actor, Unroll


@dataclass(frozen=True)
class ActorsConfig:
    """How acting is spread out."""

    num_actors: int = 2
    """Actor processes (with --local: actors that take turns in this process)."""
    envs_per_actor: int = 32
    """Environments that an actor steps together."""
    unroll_length: int = 64
    """Steps of a trajectory (T); a multiple of the core's segment_size."""
    in_flight: int = 1
    """Unrolls that an actor may have asked for or finished before the learner takes one: 1 or 2."""
    threads: int = 1
    """CPU threads of an actor process."""

    def __post_init__(self) -> None:
        for name in ("num_actors", "envs_per_actor", "unroll_length", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.in_flight not in (1, 2):
            raise ValueError(f"in_flight: expected 1 or 2, got {self.in_flight}")


MakeActor = Callable[[int, int], Actor]
"""Builds an actor from its id and its incarnation (0 at first, one more after every restart)."""


@dataclass(frozen=True)
class PoolStatus:
    """alive: actors that are up. restarts: actors replaced so far. waiting: finished unrolls not yet taken."""

    alive: int
    restarts: int
    waiting: int


class Pool(ABC):
    """Hands out unrolls of the same actors, wherever these are; a context manager that stops them."""

    @abstractmethod
    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        """Makes weights available to unrolls that begin from now on."""

    @abstractmethod
    def get(self) -> Unroll:
        """The oldest finished unroll; waits for one."""

    @abstractmethod
    def status(self) -> PoolStatus:
        """How the actors are."""

    def state_dict(self) -> dict[str, Tensor]:
        """The actors' state for exact resumption, where the pool can give one; else empty."""
        return {}

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:  # noqa: B027
        """Goes on from `state_dict`."""

    def close(self) -> None:  # noqa: B027
        """Stops the actors."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalPool(Pool):
    """Actors that take turns in this process: deterministic under a seed, and exactly resumable."""

    def __init__(self, make_actor: MakeActor, config: ActorsConfig) -> None:
        self.actors = [make_actor(index, 0) for index in range(config.num_actors)]
        self.unroll_length = config.unroll_length
        self.turn = 0

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        for actor in self.actors:
            actor.set_weights(weights, version)

    def get(self) -> Unroll:
        unroll = self.actors[self.turn].unroll(self.unroll_length)
        self.turn = (self.turn + 1) % len(self.actors)
        return unroll

    def status(self) -> PoolStatus:
        return PoolStatus(alive=len(self.actors), restarts=0, waiting=0)

    def state_dict(self) -> dict[str, Tensor]:
        arrays = {
            f"{index}/{name}": value
            for index, actor in enumerate(self.actors)
            for name, value in actor.state_dict().items()
        }
        return {"turn": torch.tensor(self.turn), **arrays}

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        self.turn = int(arrays["turn"])
        for index, actor in enumerate(self.actors):
            prefix = f"{index}/"
            own = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
            actor.load_state_dict(own)

    def close(self) -> None:
        for actor in self.actors:
            actor.envs.close()
