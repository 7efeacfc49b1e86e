"""Reuse of samples within IMPALA (Espeholt et al. 2018, section 5): a bounded buffer of the newest rows of unrolls.

V-trace corrects for the age of what is replayed. No processes or files; see `training.feeds` for the way of a batch.
"""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from agent.core.state import concatenate_states, fill_state, index_state, leaves, map_state, state_to
from agent.precision import autocast
from agent.trajectory import EnvOutput, Trajectory
from learner.config import ReplayConfig
from learner.impala import ImpalaLearner
from learner.learner import Learner, split

Steps = TypeVar("Steps", EnvOutput, Tensor)
"""Tensors [B, T, ...]."""


class Replay:
    """The newest rows of trajectories, on the learner's device, and the random choice among them.

    Args:
        config: options; its share is not 0.
        learner: learns from the rows; its network does the burn-in.
        capacity: rows that are kept.
        seed: of the choice, which depends on it, on the learner's version and on the rows only.
        fresh: rows of a batch before replayed ones are added; None for as many as the learner has in an update.
    """

    def __init__(
        self, config: ReplayConfig, learner: Learner, capacity: int, seed: int, fresh: int | None = None
    ) -> None:
        self.config = config
        self.learner = learner
        self.capacity = capacity
        self.seed = seed
        self.fresh = fresh or learner.rows or 1
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        # A ring of `capacity` rows, of which `_size` are filled; `_next` is the row that is written next.
        self._rows: Trajectory | None = None
        self._next = 0
        self._size = 0
        # The tensors of a checkpoint, until the next batch shows what they are.
        self._saved: list[Tensor] = []

    @property
    def updates(self) -> int:
        """Updates that the learner makes of the next batch."""
        rows = self.fresh
        replayed = self._replayed_rows(rows)
        # Nothing is replayed while there are too few rows.
        if replayed <= self._size:
            rows += replayed
        updates = split(rows, self.learner.rows or self.fresh)
        return len(updates)

    def mix(self, trajectory: Trajectory) -> Trajectory:
        """Adds replayed rows to a batch of fresh ones, which are then kept for later batches.

        The rows of a batch are interleaved, so that each of the updates that the learner makes of it has the same share
        of replayed ones. Nothing is replayed before there are as many rows as a batch needs.

        Returns:
            the rows, with `replayed` set; or the fresh rows only.
        """
        fresh = state_to(trajectory, self.learner.device)
        # Only now is it known what rows look like, and so whether those of a checkpoint fit.
        self._restore(fresh)
        count = self._replayed_rows(len(fresh.action))
        mixed = fresh
        if 0 < count <= self._size:
            chosen = self._choose(count)
            old = index_state(self._rows, chosen)
            if self.config.burn_in:
                old = burn_in(self.learner, old, self.config.burn_in)
            mixed = interleave(mark(fresh, False), mark(old, True))
        # Only now, so that no row is in the batch twice.
        self._add(fresh)
        return mixed

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the rows, oldest first, on the CPU; empty if there are none."""
        tensors = self._saved
        if self._rows is not None:
            oldest_first = self._places(np.arange(self._size))
            rows = index_state(self._rows, oldest_first)
            tensors = list(leaves(rows))
        return {str(index): leaf.cpu() for index, leaf in enumerate(tensors)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores the rows of a `state_dict` with the next batch, or none if that has rows of another shape.

        Of more rows than there is room for, the newest are restored."""
        self.clear()
        # The names are numbers. Those of a damaged state may have gaps; its tensors do not fit then, see `_restore`.
        for index in range(len(state)):
            name = str(index)
            if name in state:
                self._saved.append(state[name])

    def _replayed_rows(self, fresh: int) -> int:
        """How many replayed rows a batch has beside its fresh ones."""
        # The share is that of the whole batch.
        share = self.config.share
        replayed_per_fresh = share / (1 - share)
        return round(fresh * replayed_per_fresh)

    def _restore(self, like: Trajectory) -> None:
        """Adds the rows of a checkpoint, if they look like those of a trajectory."""
        saved = self._saved
        self._saved = []
        if not saved:
            return

        # They fit if each tensor has the dtype and shape of the trajectory's, and all are of equally many rows.
        expected = [(leaf.dtype, leaf.shape[1:]) for leaf in leaves(like)]
        found = [(leaf.dtype, leaf.shape[1:]) for leaf in saved]
        lengths = {len(leaf) for leaf in saved}
        if found != expected or len(lengths) != 1:
            return

        newest = [rows[-self.capacity :].to(self.learner.device) for rows in saved]
        self._add(fill_state(like, newest))

    def _add(self, trajectory: Trajectory) -> None:
        """Writes rows into the ring, over the oldest."""
        if self._rows is None:
            self._rows = map_state(self._empty_like, trajectory)

        # The place after the last one is the first one.
        count = len(trajectory.action)
        end = self._next + count
        places = torch.arange(self._next, end) % self.capacity
        for kept, new in zip(leaves(self._rows), leaves(trajectory), strict=True):
            kept[places] = new
        self._next = end % self.capacity
        self._size = min(self._size + count, self.capacity)

    def _empty_like(self, leaf: Tensor) -> Tensor:
        """Room for `capacity` rows such as those of a tensor."""
        size = leaf.shape[1:]
        return leaf.new_empty(self.capacity, *size)

    def _choose(self, count: int) -> Tensor:
        """Places of different rows, drawn uniformly."""
        generator = np.random.default_rng([self.seed, self.learner.version])
        numbers = generator.choice(self._size, count, replace=False)
        return self._places(numbers)

    def _places(self, numbers: np.ndarray) -> Tensor:
        """Where rows are in the ring; row 0 is the oldest."""
        oldest = self._next - self._size  # may be negative
        places = (oldest + numbers) % self.capacity
        return torch.from_numpy(places)


def mark(trajectory: Trajectory, replayed: bool) -> Trajectory:
    """The trajectory with its field `replayed`."""
    marks = torch.full_like(trajectory.version, replayed, dtype=torch.bool)
    return trajectory._replace(replayed=marks)


def interleave(first: Trajectory, second: Trajectory) -> Trajectory:
    """The rows of both, each spread evenly over the whole."""
    # Row i of n has its place at (i + 0.5) / n of the whole.
    positions = []
    for part in (first, second):
        rows = len(part.action)
        positions.append((torch.arange(rows) + 0.5) / rows)
    order = torch.cat(positions).argsort(stable=True)
    both = concatenate_states([first, second])
    return index_state(both, order)


@torch.no_grad()
def burn_in(learner: ImpalaLearner, trajectory: Trajectory, steps: int) -> Trajectory:
    """Computes the core state after a number of steps with the present weights (R2D2, Kapturowski et al. 2019).

    Returns:
        a trajectory that begins there. To keep its length, the steps before are moved to its end and marked as episode
        starts. So the losses of policy and value ignore them (see `agent.trajectory.loss_mask`); the agent's own losses
        still see them.
    """
    env_output = trajectory.env_output
    before = map_state(lambda leaf: leaf[:, :steps], env_output)
    learner.agent.eval()  # without dropout, as actors
    with autocast(learner.device, learner.precision):
        output = learner.agent(
            before.observation, before.last_action, before.reward, before.reset, trajectory.core_state
        )

    # The steps before come last, as episode starts.
    moved = roll(env_output, -steps)
    moved.reset[:, -steps:] = True
    return trajectory._replace(
        **moved._asdict(),
        action=roll(trajectory.action, -steps),
        policy_parameters=roll(trajectory.policy_parameters, -steps),
        core_state=output.state,
    )


def roll(steps: Steps, count: int) -> Steps:
    """Moves the entries of tensors [B, T, ...] along time; those that leave one end return at the other."""
    return map_state(lambda leaf: leaf.roll(count, dims=1), steps)
