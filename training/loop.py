"""The training loop that agents and sequence models share: updates, rows of metrics, checkpoints, errors.

`trainer.Trainer` and `sequences.trainer.SequenceTrainer` say what an update is, and what is shown and written of it.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from learner.replica import Replica
from storage import checkpoints
from storage.checkpoints import Checkpoint, misfit, pack_learner, unpack_learner
from storage.errors import StorageError, UserError, user_errors
from storage.files import Json, Schema, read_json, require_schema, write_json
from storage.metrics import Layout, MetricsWriter
from storage.provenance import note_launch
from storage.run import Run
from storage.serialization import Parts, restore_rng, rng_state
from training.advice import Again, advising
from training.config import Configuration
from training.plain import to_plain
from training.progress import Clock, Progress

if TYPE_CHECKING:
    from learner.group import MakeReplica
    from training.cluster import HeadWatch


class Stopped(Exception):
    """The user asked to stop."""


class Training(ABC):
    """A run in progress. Nothing is written to its folder before `train`. A Ray cluster that it is on is watched.

    Attributes:
        learner: makes the updates, or follows the several learners on Ray that do.
        updater: what makes the updates: `learner`, or the group of learners that it follows.
        writer: of the rows of metrics, once the training has begun.
        check: is called between updates and while these wait; its exceptions end the training.
        place: where checkpoints are: the folder or a URL.
        saved: where the newest checkpoint is; None if there is none.
        restored: the checkpoint from which the run was resumed.
        set_aside: where this launch has moved the evaluation of the run's earlier end.
        took_back: whether the options of this launch were given up, because it ended before anything was saved.
    """

    state_schema: ClassVar[Schema]
    """Of what checkpoints of such a run have as state."""
    charts: ClassVar[Layout | None] = None
    """TensorBoard's custom charts."""
    writer: MetricsWriter

    def __init__(self, config: Configuration, run: Run, learner: Replica, on_ray: bool) -> None:
        self.config = config
        self.run = run
        self.learner = learner
        self.on_ray = on_ray
        self.updater: Any = learner
        self.check: Callable[[], None] = lambda: None
        self.place: Path | str = run.path
        self.restored: Checkpoint | None = None
        self.saved: Path | str | None = None
        self.saved_version: int | None = None
        self.set_aside: Path | None = None
        self.took_back = False
        self.clock = Clock(0)

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all frames or steps have been learned from."""

    @property
    @abstractmethod
    def step(self) -> int:
        """What checkpoints and rows of metrics are numbered by: agent steps, or batches of a sequence model."""

    @property
    def clocked(self) -> int:
        """What the rate counts: agent steps, or tokens."""
        return self.step

    @abstractmethod
    def make_replica(self) -> "MakeReplica":
        """How several learners are made; see `LearnerGroup`."""

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Learns once, and returns the metrics of the update."""

    @abstractmethod
    def progress(self) -> Progress:
        """How far the training is."""

    @abstractmethod
    def log(self, metrics: dict[str, float]) -> None:
        """Writes a row of metrics after an update, if one is due."""

    def start_workers(self, stack: ExitStack, **placing: Any) -> None:
        """Starts what `update` needs; it is closed with the stack. `placing`: further arguments of `LearnerGroup`."""
        stack.callback(self._forget_group)
        if self.config.learners > 1:
            # Only here, because it imports Ray.
            from learner.group import LearnerGroup

            config = self.config
            make = self.make_replica()
            try:
                group = LearnerGroup(
                    self.learner,
                    make,
                    config.learners,
                    config.learner.device,
                    config.seed,
                    check=self.check,
                    **placing,
                )
            except ValueError as error:
                raise UserError(str(error)) from error
            self.updater = stack.enter_context(group)

    def _forget_group(self) -> None:
        """When learners on Ray have ended, the learner of this process has the weights."""
        self.updater = self.learner

    def publish(self) -> None:  # noqa: B027
        """Makes the weights known to those who act with them."""

    def train(self, show: Callable[[Progress], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Trains until the run is done or `stop` returns true.

        A new run starts with a checkpoint, so that it can always be resumed and a full disk is noticed at once. There
        is also one of all that was learned at the end, and after every error but that of a batch.

        Raises:
            OSError: if the run's folder cannot be written to, or was moved, removed or replaced.
            StorageError: if its URL cannot be written to.
            FloatingPointError: if a loss or gradient is not finite; the last checkpoint is kept.
            Exception: errors of actors and learners other than their death.
        """
        if self.done:
            self._note_end()
            return
        with ExitStack() as stack:
            head = self._watch_head(stack)

            def check() -> None:
                if stop():
                    raise Stopped
                self.run.require_lock()
                if head:
                    head.check(self.save_new)

            self.check = check
            try:
                with suppress(Stopped):
                    self._before_first_update(stack)
                    # Learners that die during the last checkpoint repeat updates: then the run is not done.
                    while not self.done:
                        self._loop(show)
                        self.save_new()
                self.save_new()
            except (FloatingPointError, StorageError):
                # The weights cannot be used, or there is no place to write them to.
                raise
            except Exception:
                self._rescue()
                raise
        self.run.require()

    def _watch_head(self, stack: ExitStack) -> "HeadWatch | None":
        """Watches the head of the Ray cluster that the run is on; None if it is on none."""
        if not self.on_ray:
            return None
        from training.cluster import HeadWatch

        return stack.enter_context(HeadWatch())

    @contextmanager
    def opened(
        self,
        new: bool,
        again: Again | None = None,
        say: Callable[[str], None] = lambda line: None,
        ready: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """The life of a run whose folder this process has claimed: begins or resumes it, writes its configuration, and
        says, in errors of the block, what became of it.

        Args:
            new: whether the run begins; otherwise it is resumed from its last checkpoint.
            again, say: see `advising`; without `again` errors have no advice.
            ready: is called before anything is written.

        Raises:
            UserError: if the run cannot be begun or resumed, and as in `advising`.
            Exception: other errors of the block; see `advising`.
        """
        with advising(self, again, say) if again else nullcontext():
            with user_errors():
                self.begin_or_restore(new)
            ready()
            with self._configured():
                yield

    @contextmanager
    def _configured(self) -> Iterator[None]:
        """Writes the configuration, with which the run can be resumed from now on.

        An error of the block before anything was saved brings back what was there before: with the options of this
        launch, the run might never learn.
        """
        before: Json | None = None
        if self.restored and self.run.config_file.exists():
            before = read_json(self.run.config_file)
        self.run.write_config(to_plain(self.config))
        try:
            yield
        except Exception:
            if before is not None and not self.has_saved and not self.run.lost:
                with suppress(OSError):  # the error that is raised already says more
                    self._bring_back(before)
            raise

    @property
    def has_saved(self) -> bool:
        """Whether this launch has written a checkpoint."""
        found = self.restored.path if self.restored else None
        return self.saved != found

    def _bring_back(self, config: Json) -> None:
        """Undoes what a launch without any checkpoint changed: the configuration, and which evaluation is the last."""
        self.took_back = read_json(self.run.config_file) != config
        self.run.write_config(config)
        evaluation = self.run.evaluation_file()
        if self.set_aside and not evaluation.exists():
            self.set_aside.rename(evaluation)

    def begin_or_restore(self, new: bool) -> None:
        """Begins a new run, or restores what the run has learned."""
        if not new:
            self.restore()

    def finish(self, evaluation: Mapping[str, object]) -> None:
        """Writes the evaluation of the trained run: last, because it marks the run as finished."""
        write_json(self.run.evaluation_file(), evaluation)

    def _note_end(self) -> None:
        """Writes a row of metrics if the last one says that the run is not done, from which everything reads its state.

        A run may be resumed with a total that it has passed, or was stopped after its last update and before the row.
        """
        counter, total = self.config.goal
        if not self.run.last_row().get(counter, 0.0) >= total:
            with MetricsWriter(self.run.path, self.step) as writer:
                writer.write(self.step, self.amounts())

    def amounts(self) -> dict[str, float]:
        """What was learned so far, as rows of metrics have it beside the step."""
        return {}

    def _before_first_update(self, stack: ExitStack) -> None:
        """All that comes before the first update. What is opened is closed with the stack."""
        self.start_workers(stack)
        # After the workers' start, which draws random numbers.
        if self.restored:
            restore_rng(self.restored.state["rng"])
        # A new run can be resumed from now on.
        if self.saved is None:
            self.run.path.mkdir(parents=True, exist_ok=True)
            self.save()
        note_launch(self.run, self.step)
        # An evaluation marks a run as finished. This one is of fewer steps than the run will have.
        with suppress(FileNotFoundError):
            self.set_aside = self.run.evaluation_file().rename(self.run.evaluation_file(f"at-{self.step}"))
        # Nodes of a cluster show the metrics as well.
        gauges = None
        if self.on_ray:
            from training.cluster import RayGauges

            gauges = RayGauges(self.run.name).set
        self.writer = stack.enter_context(MetricsWriter(self.run.path, self.step, gauges, self.charts))
        # Time until here is no training.
        self.clock = Clock(self.clocked)
        self.publish()

    def _loop(self, show: Callable[[Progress], None]) -> None:
        """One update after the other, until all is learned or `check` raises."""
        saved = time.monotonic()
        while not self.done:
            self.check()
            metrics = self.update()
            show(self.progress())
            self.log(metrics)
            # After the row of metrics, which the checkpoint's step includes.
            if time.monotonic() - saved > self.config.checkpoint_seconds:
                self.save_new()
                saved = time.monotonic()

    def save_new(self) -> Path | str | None:
        """Writes a checkpoint if there is something new to save; returns where the newest is."""
        # A stop may come at once after a checkpoint.
        if self.saved_version != self.learner.version:
            self.save()
        return self.saved

    def _rescue(self) -> None:
        """Saves what was learned before an error, and if need be without the learners on Ray."""
        # If the group of learners is lost, only the copy in this process can be saved. It has their weights, but maybe
        # the optimizer of the last checkpoint.
        for updater in (self.updater, self.learner):
            has_begun = self.saved is not None
            is_saved = self.saved_version == self.learner.version
            if not has_begun or is_saved:
                return
            # The error that is raised already says more than one of the rescue.
            with suppress(Exception):
                self.save(updater, rescue=True)

    def save(self, updater: Any = None, rescue: bool = False) -> None:
        """Writes a checkpoint of an updater, `self.updater` unless given; see `pack` for `rescue`."""
        # Nothing is written into a folder that has taken the place of this run's.
        if self.place == self.run.path:
            self.run.require()

        # Of all that the run has learned, the learner's part is the same for every kind of model.
        updater = updater or self.updater
        parts, counters = pack_learner(updater.state_dict())
        more_parts, more_state = self.pack(rescue)
        state = {
            "learner": counters,
            **more_state,
            "rng": rng_state(),
            "config": to_plain(self.config),
        }
        keep, every = self.config.keep_checkpoints, self.config.keep_every
        self.saved = checkpoints.save(self.place, self.step, parts | more_parts, state, keep, every)
        self.saved_version = self.learner.version

    def pack(self, rescue: bool) -> tuple[Parts, Json]:
        """What a checkpoint has beside the learner: parts, and state for JSON. With `rescue`, what is at hand."""
        return {}, {}

    def unpack(self, state: Json) -> None:  # noqa: B027
        """Restores what `pack` returned as state."""

    def restore(self) -> None:
        """Resumes from the run's last readable checkpoint.

        Raises:
            FileNotFoundError, StorageError: if there is no checkpoint, or the run's URL cannot be read.
            ValueError: if it does not fit the configuration, or is of another version.
        """
        checkpoint = checkpoints.load_latest(self.place)
        if list(checkpoint.parts) == ["weights"]:
            expected = "expected a checkpoint with an optimizer and counters, got the weights alone of an exported one"
            raise ValueError(f"{self.run}: {expected}; a new run begins with them by --from-run {self.run}")
        # Everything in it is checked before it is used: it may be damaged, or of another version.
        try:
            require_schema(checkpoint.state, self.state_schema, "state")
            restore_rng(checkpoint.state["rng"])  # an error before any work, if it cannot be
            self.unpack(checkpoint.state)
            self.learner.load_state_dict(unpack_learner(checkpoint))
        except (RuntimeError, ValueError) as error:
            raise ValueError(misfit(checkpoint, self.run.config_file, error)) from error
        self.restored = checkpoint
        self.saved = checkpoint.path
        self.saved_version = self.learner.version
