"""Runs whose environments, actor and unrolls are on the learner's device; with several learners, on the device of each.

The single learner is fed by a `ResidentActor`. Several learners, each in its own process (`learner.group`), act for
themselves; only gradients, episodes and, once an unroll, the first learner's weights leave their devices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from actors import Episode, Pool, PoolStatus, Unroll
from actors.resident import ResidentActor
from agent import Agent, Trajectory
from agent.cuda_graphs import graphs_of
from envs import make_device
from learner.communicator import Communicator
from learner.learner import Learner, resolve_device
from training.config import RunConfig


def require_resident(config: RunConfig) -> None:
    """Raises a ValueError or ImportError if a resident run cannot have its environment, or this machine no such run."""
    if not config.resident:
        return
    # Several learners are on a cluster, which may have GPUs without one on this machine.
    device = torch.device("cpu")
    if config.learners == 1:
        asked = config.learner.device
        device = resolve_device(asked)
        if device.type == "cpu" and asked == "auto":
            expected = "a GPU, and torch finds none here; --learner.device cpu does the same on the CPU, slowly"
            raise ValueError(f"resident: expected {expected}")

    # One of each environment, only to find out whether it can be made.
    for env in config.environments:
        make_device(env, 1, str(device))


def make_pool(config: RunConfig, agent: Agent, seed: int, device: torch.device) -> ResidentActor:
    """The actor of one learner, with the learner's network. Each learner has an equal share of the environments."""
    actors = config.actors
    num_envs = actors.num_actors * actors.envs_per_actor
    envs = make_device(config.env, num_envs // config.learners, str(device))
    capture = graphs_of(agent, device) if config.learner.cuda_graph else None
    return ResidentActor(
        envs,
        agent,
        actors.unroll_length,
        seed,
        task=config.env,
        precision=actors.precision,
        capture=capture,
    )


class ResidentLearner(Learner):
    """One of several learners, which acts for itself: `update` takes no batch.

    Its environments and actions are seeded by torch's seed, which differs between learners and restarts.

    Attributes:
        episodes: those that ended in the last update.
    """

    def __init__(self, agent: Agent, config: RunConfig, total_steps: int, comm: Communicator, device: str) -> None:
        learning = dataclasses.replace(config.learner, device=device)
        super().__init__(agent, learning, total_steps, comm, rows=config.rows_of_batch // config.learners)
        seed = torch.initial_seed() % 2**32
        self.pool = make_pool(config, agent, seed, self.device)
        self.episodes: Sequence[Episode] = []

    def update(self, trajectory: Trajectory | None = None, read: bool = True) -> dict[str, float]:
        """Without a trajectory acts for an unroll and learns from that; see `Learner.update`."""
        if trajectory is not None:
            return super().update(trajectory, read)
        self.pool.publish({}, self.version)
        unroll = self.pool.get()
        self.episodes = unroll.episodes
        return super().update(unroll.trajectory)


class GroupPool(Pool):
    """Stands for the pools of a group of resident learners: its unrolls have episodes, and no trajectory.

    `rows` is the number of environments of all of them.
    """

    def __init__(self, group: Any, rows: int) -> None:
        self.group = group
        self.rows = rows

    def publish(self, weights: dict[str, Any], version: int) -> None:
        """Nothing: each actor has its learner's weights."""

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        """The episodes that ended in the last update."""
        group = self.group
        episodes = group.episodes
        group.episodes = []  # so that none is read twice
        return Unroll(None, episodes, group.version, self.rows)

    def status(self) -> PoolStatus:
        return PoolStatus(alive=len(self.group.members), restarts=self.group.restarts, waiting=0)
