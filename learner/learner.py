"""The learner of an agent's run: IMPALA's, with batches of several updates and with updates that are not read.

The algorithm is in `impala`. Several learners that share each batch are connected by `communicator` and placed on a
cluster by `group`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from agent.core.state import index_state, state_to
from agent.cuda_graphs import Capture, graphs_of
from agent.trajectory import Trajectory, validate
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.impala import ImpalaLearner
from learner.optimization import Measured, not_finite
from learner.replica import StateDict
from learner.update_graph import UpdateGraph, UpdateSettings, form_of, in_single_precision

WARM_UP = 3
"""Updates before one is recorded as a CUDA graph; they compile its kernels."""


class Unread(NamedTuple):
    """An update whose metrics are still on the device, and its learning rate and entropy cost."""

    measured: Measured
    schedules: dict[str, float]


class Learner(ImpalaLearner):
    """IMPALA's learner on a device that is given by name.

    Reading a metric makes the host wait until a GPU has finished all its work. So updates may stay unread: the host
    queues their operations and goes on, and the device itself skips an update that is not finite. The metrics of all
    unread updates are read at once, with the next update that is read or by `settle`. Until then `version` counts
    skipped updates, too, and `steps`, on which the schedules depend, stays.

    With `config.cuda_graph`, on a GPU and without other learners, all but the first updates are replayed as one CUDA
    graph; see `learner.update_graph`.

    Args:
        agent, total_steps, comm: see `ImpalaLearner`.
        unread: whether updates may stay unread, which needs Adam; None for Adam on a GPU only.
        rows: most rows of an update; a trajectory with more is learned from in several. None for no limit.
        capture: how updates are recorded, see `agent.cuda_graphs`; None for `graphs_of` the agent.
    """

    has_whole_state = True
    """See `Replica`."""
    episodes: Sequence[Any] = ()
    """See `Replica`."""

    def __init__(
        self,
        agent: nn.Module,
        config: LearnerConfig,
        total_steps: int,
        comm: Communicator | None = None,
        unread: bool | None = None,
        rows: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(agent, config, total_steps, resolve_device(config.device), comm, unread)
        self.rows = rows
        self._unread: list[Unread] = []

        # How updates are recorded, if they are, and the recorded one.
        # Equal instructions are encoded once, and how many differ is only known on the host.
        has_instructions = getattr(agent, "instruction", None) is not None
        can_be_recorded = self._optimization.unread and self._comm.size == 1 and not has_instructions
        self._capture: Capture | None = None
        if config.cuda_graph and can_be_recorded:
            self._capture = capture or graphs_of(agent, self.device)
        self._graph: UpdateGraph | None = None
        # Before one is recorded: how many batches in a row had this form, and were not replayed.
        self._queued_form: Any = None
        self._queued = 0

    def update(self, trajectory: Trajectory, read: bool = True) -> dict[str, float]:
        """Learns from one batch or, if it has more than `rows` rows, from equal parts of it one after the other.

        Args:
            trajectory: see `ImpalaLearner.update`.
            read: whether to read the metrics. The device must then have done this update and all before it. Of the
                updates of a batch that is split, only the last is read if updates may stay unread.

        Returns:
            the metrics of the last update, see `ImpalaLearner.update`; empty if it was not read.

        Raises:
            ValueError: if shapes are wrong, or `read` is false and updates must be read.
            NotFinite: as `ImpalaLearner.update`; of a batch that is split, the parts before were learned from. If there
                are updates that were not read, as `settle`.
            PeerLost: if another learner was lost; of a batch that is split, the parts before were learned from.
        """
        may_stay_unread = self._optimization.unread
        if not read and not may_stay_unread:
            raise ValueError("read: expected true, because updates must be read here (see `unread`), got false")

        # A batch that is too large for one update is learned from in parts.
        count, _ = validate(trajectory)
        *firsts, last = split(count, self.rows or count)
        for part in firsts:
            self._update_rows(index_state(trajectory, part), read=not may_stay_unread)
        if firsts:
            trajectory = index_state(trajectory, last)
        return self._update_rows(trajectory, read)

    def _update_rows(self, trajectory: Trajectory, read: bool) -> dict[str, float]:
        """`update` with no more rows than those of an update."""
        # As long as every update is read, each is IMPALA's own.
        all_were_read = not self._unread
        if read and all_were_read and self._capture is None:
            return super().update(trajectory)
        self._update_unread(trajectory)
        if not read:
            return {}
        try:
            return self.settle()
        except NotFinite:
            if not all_were_read:
                raise  # other updates were settled, too: which one it is, is in the error
        # Only this update was settled. The device skipped it, so that nothing has changed: it can be made again,
        # operation by operation, for an error that says more.
        return super().update(trajectory)

    def _update_unread(self, trajectory: Trajectory) -> None:
        """Like `ImpalaLearner.update`, but waits for the device only to encode instructions and to move the batch."""
        trajectory = state_to(trajectory, self.device)
        settings = self._settings()
        given = settings
        if self._capture is not None:
            # A graph has numbers of single precision. So have updates before it is recorded, also after a resumption.
            given = in_single_precision(settings)
        graph = self._graph_for(trajectory, given)
        update = self._queue if graph is None else graph.update
        measured = update(trajectory, given)
        self.version += 1
        self._unread.append(Unread(measured, self._schedules(settings)))

    def _queue(self, trajectory: Trajectory, settings: UpdateSettings) -> Measured:
        """The operations of an update, which read no value of the device."""
        computed = self._compute_gradients(trajectory, settings)
        measured = self._optimization.step_unread(computed.sums, settings.learning_rate, computed.maxima)
        self._update_statistics(computed)
        return measured

    def _graph_for(self, trajectory: Trajectory, settings: UpdateSettings) -> UpdateGraph | None:
        """The recorded update for batches such as this one. None if its operations are to be queued one by one."""
        if self._capture is None:
            return None
        form = form_of(trajectory)
        if self._graph is not None and self._graph.form == form:
            self._queued = 0
            return self._graph

        # An update is recorded after a few of the same form in a row, which compile its kernels. The form of the first
        # batches may not last: when replay begins, rows are added.
        if form != self._queued_form:
            self._queued_form = form
            self._queued = 0
        if self._queued < WARM_UP:
            self._queued += 1
            return None
        self._record(self._capture, trajectory, settings)
        return self._graph

    def _record(self, capture: Capture, trajectory: Trajectory, settings: UpdateSettings) -> None:
        """Records the update as the graph. If it needs too much memory, there is none, and no other attempt.

        Raises:
            RecordingFailed: see `agent.cuda_graphs.record`.
        """
        self._graph = None  # only one at a time has memory
        with self._optimization.capturable():
            graph = UpdateGraph(self._queue, capture, trajectory, settings)
        if graph.is_recorded:
            self._graph = graph
        else:
            self._capture = None

    def settle(self) -> dict[str, float]:
        """Reads all updates that were not read, in one transfer, so that `version` and `steps` are exact.

        Returns:
            the metrics of the last of these updates, see `update`; empty if there are none.

        Raises:
            NotFinite: if updates were skipped because they were not finite; its `number` is that of the first. All
                other updates were made, and the counters are exact. All learners that share the batches raise it.
        """
        unread = self._unread
        self._unread = []
        if not unread:
            return {}
        joined = torch.cat([each.measured.values for each in unread])
        values = joined.tolist()

        # The version counts all of these updates. Those that the device skipped are found and taken off.
        first = self.version - len(unread) + 1
        skipped: dict[int, str] = {}  # the number of each update that was not finite, and why
        metrics: dict[str, float] = {}
        begin = 0
        for number, each in enumerate(unread, first):
            names = each.measured.names
            end = begin + len(names)
            metrics = dict(zip(names, values[begin:end]))
            begin = end
            steps = metrics.pop("steps")
            reason = not_finite(metrics)
            if reason:
                skipped[number] = reason
            else:
                self.steps += round(steps)
        self.version -= len(skipped)

        if skipped:
            number = min(skipped)
            skips = f"Skipped: {len(skipped)} of {len(unread)} updates."
            raise NotFinite(f"update {number} is not finite: {skipped[number]}. {skips}", number)
        return metrics | unread[-1].schedules

    @property
    def counters(self) -> dict[str, int]:
        """What the learner counts, by attribute; after `settle`, which may raise `NotFinite`."""
        self.settle()
        return super().counters

    def load_state_dict(self, state: StateDict) -> None:
        """See `ImpalaLearner.load_state_dict`. Updates that were not read are forgotten."""
        super().load_state_dict(state)
        self._unread = []
        # The optimizer has other tensors now than those that were recorded.
        self._graph = None
        self._queued = 0

    def pull_weights(self) -> None:
        """Nothing: the weights of this process are the newest; see `LearnerGroup.pull_weights`."""

    def replicate(self) -> Callable[[Communicator, str], "Learner"]:
        """A function, which can be pickled, that makes this learner anew for a communicator and a device."""
        return functools.partial(_replica, self.agent, self.config, self.total_steps)


def _replica(agent: nn.Module, config: LearnerConfig, total_steps: int, comm: Communicator, device: str) -> Learner:
    return Learner(agent, dataclasses.replace(config, device=device), total_steps, comm)


def split(count: int, most: int) -> list[slice]:
    """Rows in as few parts as possible of at most `most` rows, as equal as possible."""
    num_parts = math.ceil(count / most)
    # The first row of each part, and the end of the last.
    bounds = [count * part // num_parts for part in range(num_parts + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds)]


def resolve_device(device: str) -> torch.device:
    """The named device; "auto" is a GPU if there is one, else the CPU.

    Raises:
        ValueError: if torch cannot compute on such a device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.ones(1, device=resolved).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        expected = "auto, cpu or a GPU that torch finds, such as cuda:0"
        raise ValueError(f"device: expected {expected}, got {device!r}") from error
    return torch.device("cpu") if resolved.type == "cpu" else resolved
