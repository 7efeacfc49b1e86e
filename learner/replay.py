"""Reuse of samples within IMPALA (Espeholt et al. 2018, section 5): a bounded buffer of the newest rows of unrolls.

V-trace corrects for the age of what is replayed. No processes or files; see `training.feeds` for the way of a batch.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent.core.state import concatenate_states, index_state, leaves, map_state, state_to
from agent.precision import autocast
from agent.trajectory import Trajectory
from learner.config import ReplayConfig
from learner.learner import Learner, split


class Replay:
    """The newest rows of trajectories, on the learner's device, and the random choice among them.

    Args:
        config: options; its share is not 0.
        learner: learns from the rows; its network does the burn-in.
        capacity: rows that are kept.
        seed: of the choice, which depends on it, on the learner's version and on the rows only.
    """

    def __init__(self, config: ReplayConfig, learner: Learner, capacity: int, seed: int) -> None:
        self.config, self.learner, self.capacity, self.seed = config, learner, capacity, seed
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._rows: Trajectory | None = None  # of `capacity` rows: a ring, whose next row to be written is `_next`
        self._next = 0
        self._size = 0
        self._saved: list[Tensor] = []  # of a checkpoint, until the next batch

    @property
    def updates(self) -> int:
        """Updates that the learner makes of the next batch."""
        fresh = self.learner.rows or 1
        count = self._count(fresh)
        return len(split(fresh + count, fresh)) if count <= self._size else 1

    def mix(self, trajectory: Trajectory) -> Trajectory:
        """Adds replayed rows to a batch of fresh ones, which are then kept for later batches.

        The rows of a batch are interleaved, so that each of the updates that the learner makes of it has the same share
        of replayed ones. Nothing is replayed before there are as many rows as a batch needs.

        Returns:
            the rows, with `replayed` set; or the fresh rows only.
        """
        trajectory = mixed = state_to(trajectory, self.learner.device)
        fresh = len(trajectory.action)
        count = self._count(fresh)
        self._restore(trajectory)
        if 0 < count <= self._size:
            old = index_state(self._rows, self._choose(count))
            if self.config.burn_in:
                old = burn_in(self.learner, old, self.config.burn_in)
            places = torch.cat([(torch.arange(rows) + 0.5) / rows for rows in (fresh, count)])
            marked = (mark(part, replayed) for part, replayed in ((trajectory, False), (old, True)))
            mixed = index_state(concatenate_states(list(marked)), places.argsort(stable=True))
        self._add(trajectory)
        return mixed

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the rows, oldest first, on the CPU; empty if there are none."""
        rows = leaves(index_state(self._rows, self._places(np.arange(self._size)))) if self._rows else self._saved
        return {str(index): leaf.cpu() for index, leaf in enumerate(rows)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores the rows of a `state_dict` with the next batch, or none if that has rows of another shape.

        Of more rows than there is room for, the newest are restored."""
        self.clear()
        self._saved = [state[str(index)] for index in range(len(state)) if str(index) in state]

    def _count(self, fresh: int) -> int:
        """Replayed rows in a batch with a number of fresh ones."""
        return round(fresh * self.config.share / (1 - self.config.share))

    def _restore(self, like: Trajectory) -> None:
        saved, self._saved = self._saved, []
        expected = [(leaf.dtype, leaf.shape[1:]) for leaf in leaves(like)]
        if saved and [(leaf.dtype, leaf.shape[1:]) for leaf in saved] == expected and len(set(map(len, saved))) == 1:
            rows = iter(saved)
            self._add(map_state(lambda leaf: next(rows)[-self.capacity :].to(leaf.device), like))

    def _add(self, trajectory: Trajectory) -> None:
        if self._rows is None:
            self._rows = map_state(lambda leaf: leaf.new_empty(self.capacity, *leaf.shape[1:]), trajectory)
        count = len(trajectory.action)
        places = torch.arange(self._next, self._next + count) % self.capacity
        for kept, new in zip(leaves(self._rows), leaves(trajectory), strict=True):
            kept[places] = new
        self._next, self._size = (self._next + count) % self.capacity, min(self._size + count, self.capacity)

    def _choose(self, count: int) -> Tensor:
        generator = np.random.default_rng([self.seed, self.learner.version])
        return self._places(generator.choice(self._size, count, replace=False))

    def _places(self, ages: np.ndarray) -> Tensor:
        """Where rows are; row 0 is the oldest."""
        return torch.from_numpy((self._next - self._size + ages) % self.capacity)


def mark(trajectory: Trajectory, replayed: bool) -> Trajectory:
    """The trajectory with its field `replayed`."""
    return trajectory._replace(replayed=torch.full_like(trajectory.version, replayed, dtype=torch.bool))


@torch.no_grad()
def burn_in(learner: Learner, trajectory: Trajectory, steps: int) -> Trajectory:
    """Computes the core state after a number of steps with the present weights (R2D2, Kapturowski et al. 2019).

    Returns:
        a trajectory that begins there. To keep its length, the steps before are moved to its end, as episode starts: so
        they are in no loss (see `agent.trajectory.loss_mask`) but those of the agent itself.
    """
    observed: Any = trajectory[:5]
    observation, last_action, reward, _, reset = map_state(lambda leaf: leaf[:, :steps], observed)
    learner.agent.eval()
    with autocast(learner.device, learner.precision):
        state = learner.agent(observation, last_action, reward, reset, trajectory.core_state).state
    rolled: Any = map_state(lambda leaf: leaf.roll(-steps, dims=1), trajectory[:7])
    moved = dict[str, Any](zip(Trajectory._fields, rolled))
    moved["reset"][:, -steps:] = True
    return trajectory._replace(**moved, core_state=state)
