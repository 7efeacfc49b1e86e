"""The training of an agent with IMPALA: batches from a feed, updates by the learner, weights back to the feed.

`Trainer` adds actors, episodes and checkpoints behind URLs to `loop.Training`. Where batches come from, and whether
that happens in this process, on Ray or on a GPU, is for `feeds` to know.
"""

import dataclasses
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from actors import ClusterError
from actors.config import pairs
from agent.core import CustomCoreConfig, check_core, concatenate_states, index_state
from envs import limit_calls, prepare, untaught
from learner.diagnostics import attention_mass
from learner.errors import BatchLost, NotFinite
from learner.learner import Learner, split
from storage.checkpoints import LEARNER
from storage.errors import UserError
from storage.files import Json, require_schema
from storage.metrics import write_scalars
from storage.run import Run
from storage.serialization import Parts, write_trajectory
from storage.stores import UrlStore
from training.charts import CHARTS
from training.config import RunConfig
from training.console import plural, quantity
from training.curriculum import EPISODE, Curriculum
from training.evaluation import as_metrics, evaluate
from training.factories import (
    make_agent,
    make_learner,
    make_replay,
    make_replica,
    require_interface,
    resolve_pixel_zero,
    resolve_precisions,
)
from training.feeds import Batch, Feed, make_feed
from training.inheritance import inherit
from training.loop import Stopped, Training
from training.plain import from_plain
from training.progress import Progress
from training.resident import require_resident
from training.schedules import describe_jump

if TYPE_CHECKING:
    from learner.group import MakeReplica

logger = logging.getLogger(__name__)

TRIED_BATCHES = 4
"""Batches that `Trainer.try_out` measures, and as many before them."""
ACTORS = {"num_actors": int, "envs_per_actor": int}


class Trainer(Training):
    """An agent's run in progress.

    Args:
        run: the folder. Nothing is written before `claim_url` and `train`.
        local: whether actors live in this process; a resumed run is then identical to an uninterrupted one, as is a
            resident run on a CPU.

    Attributes:
        learner: the learner of this process; it follows several learners on Ray, if there are any.
        replay: what is learned from again, or None.
        curriculum: the stages, and the last episodes.
        batch: the batch that is, or was last, learned from.

    Raises:
        ValueError: if the environment or the network is impossible.
        StorageError: if the run's URL cannot be used.
    """

    state_schema: ClassVar = {
        "learner": LEARNER,
        "episodes": int,
        "generation": int,
        "recent": [EPISODE],
        "rng": dict,
        "config": {"actors": ACTORS, "resident": bool, "from_run": object},
    }
    charts = CHARTS
    config: RunConfig
    learner: Learner
    batch: Batch

    def __init__(self, config: RunConfig, run: Run, local: bool) -> None:
        # Everything that cannot work is refused before anything is written.
        if local and config.actors.gpus and not torch.cuda.is_available():
            raise ValueError(f"gpus: expected 0 for actors in this process, which has no GPU, got {config.actors.gpus}")
        require_resident(config)
        if config.eval_env:
            require_interface(config.eval_env, untaught(config.env))
        config = resolve_pixel_zero(resolve_precisions(config))
        self.curriculum = Curriculum(config)

        # The weights are the first that is drawn.
        torch.manual_seed(config.seed)
        self.local = local
        self.action_repeat = self.curriculum.action_repeat
        self.agent = make_agent(config)
        core = config.agent.core
        if isinstance(core, CustomCoreConfig):
            check_core(self.agent.core, core.model_size, core.segment_size)
        super().__init__(config, run, make_learner(config, self.agent), on_ray=not local)
        self.replay = make_replay(config, self.learner, local)
        self._feed: Feed | None = None

        # Counters. Launches are those of the present stage before this one; checkpoints call them generation.
        self.episodes = 0
        self.dropped = 0
        self.launches = 0
        self.logged = 0
        self.evaluated: int | None = None  # frames at the last evaluation during training; None: see the metrics

        # With a URL, checkpoints are there and not in the folder.
        self.place = config.checkpoint_url or run.path
        self.remote = UrlStore(config.checkpoint_url) if config.checkpoint_url else None
        self.claimed: str | None = None

    @property
    def feed(self) -> Feed:
        """Where batches come from and weights go to, while the run trains."""
        assert self._feed, "the run does not train"
        return self._feed

    @property
    def has_begun(self) -> bool:
        """Whether the run has checkpoints to resume from. Those at its URL are its own if there is its folder."""
        if self.remote is None:
            return self.run.has_checkpoints
        return self.run.config_file.exists() and bool(self.remote.names())

    @property
    def frames(self) -> int:
        """Environment frames learned from."""
        return self.learner.steps * self.action_repeat

    @property
    def done(self) -> bool:
        return self.frames >= self.config.frames

    @property
    def step(self) -> int:
        return self.learner.steps

    # The loop: one update, and what it needs.

    def start_workers(self, stack: ExitStack, **placing: Any) -> None:
        labels = pairs("learner_labels", self.config.learner_labels)
        super().start_workers(stack, placement=self.config.learner_placement, labels=labels)
        # Of a single learner, `require_resident` has said so.
        is_resident_group = self.config.resident and self.config.learners > 1
        if is_resident_group and self.config.learner.device == "auto" and self.updater.device == "cpu":
            expected = "GPUs, and the cluster has none; --learner.device cpu does the same on CPUs, slowly"
            raise UserError(f"resident: expected {expected}")
        self.logged = self.learner.version
        self._start_actors()
        stack.callback(self._stop_actors)
        if self.restored:
            self._restore_actors()

    def update(self) -> dict[str, float]:
        """Learns from one batch, and gives the actors the new weights. A batch that is not finite is kept in a file."""
        # A batch of which a part was lost with its node is dropped, and the next one is learned from.
        metrics = None
        while metrics is None:
            self.batch = self._next_batch()
            metrics = self._learn()
        self.publish()
        self.clock.mark(self.clocked)
        if self._evaluation_is_due():
            try:
                metrics |= self._evaluate()
            except Stopped:  # what was learned is in the metrics without it
                self.log(metrics)
                raise
        return metrics

    def _next_batch(self) -> Batch:
        """Waits for the next batch, and remembers the episodes that ended in it. Begins the next stage if it is due."""
        with self.clock.waiting():
            ended = self.curriculum.ended(self.learner.steps)
            # A batch that is on its way is of this stage, and is learned from first.
            if ended and not self.feed.pending:
                self._next_stage()
                ended = self.curriculum.ended(self.learner.steps)
            batch = self.feed.next_batch(self.learner.version, last=ended)
        self.curriculum.remember(batch.episodes)
        self.episodes += len(batch.episodes)
        self.dropped += batch.dropped
        return batch

    def _learn(self) -> dict[str, float] | None:
        """The metrics of an update from the batch; None if a part of it was lost with its node."""
        version = self.learner.version
        try:
            return self.updater.update(self.batch.payload)
        except BatchLost as error:
            logger.warning("%s; the batch is dropped", error)
            return None
        except NotFinite as error:
            if self.saved is None:  # the run is only tried out, and has no folder
                raise
            raise error.extended(self._keep_batch(error.number, version)) from error

    def publish(self) -> None:
        """Gives the actors the weights."""
        self.feed.publish(self.updater.snapshot, self.updater.version)

    def _evaluation_is_due(self) -> bool:
        """Whether the training has passed a multiple of `evaluate_every` since the last evaluation."""
        every = self.config.evaluate_every
        # There is an evaluation at the end anyway.
        if every == 0 or self.done:
            return False
        if self.evaluated is None:
            # A resumed run may have been stopped in an evaluation, which is due again.
            self.evaluated = int(self.run.last_row("evaluation/return").get("learner/frames", 0))
        return self.frames // every > self.evaluated // every

    def _evaluate(self) -> dict[str, float]:
        """The metrics of an evaluation, which ends early if the training is to. Its time does not count as training."""
        self.updater.pull_weights()
        with self.clock.paused():
            metrics = as_metrics(evaluate(self.config, self.agent, lambda done: self.check()))
        self.evaluated = self.frames
        return metrics

    def finish(self, evaluation: Mapping[str, object]) -> None:
        """Also ends the curves of evaluations in TensorBoard; see `Training`."""
        write_scalars(self.run.path, self.step, as_metrics(dict(evaluation)))
        super().finish(evaluation)

    def try_out(self) -> float:
        """Frames a second, measured on a few batches. Nothing is written; this trainer cannot be used afterwards."""
        with ExitStack() as stack:
            self.start_workers(stack)
            for _ in range(TRIED_BATCHES):
                self.update()  # what is compiled or filled first is not what most of the time goes into
            begin = time.perf_counter()
            before = self.frames
            for _ in range(TRIED_BATCHES):
                self.update()
            return (self.frames - before) / (time.perf_counter() - begin)

    # Actors and stages.

    def make_replica(self) -> "MakeReplica":
        return make_replica(self.config, self.agent, self.learner, self.curriculum.present)

    def _start_actors(self) -> None:
        """Starts the actors of the present stage."""
        env = self.curriculum.present.env
        generation = self.curriculum.generation(self.launches)
        self._feed = make_feed(
            self.config,
            env=env,
            generation=generation,
            local=self.local,
            updater=self.updater,
            replay=self.replay,
            make_replica=self.make_replica,
            check=self.check,
        )

    def _stop_actors(self) -> None:
        """Stops the actors of the present stage, if there are any."""
        feed = self._feed
        self._feed = None  # even if closing fails
        if feed:
            feed.close()

    def _restore_actors(self) -> None:
        """Gives the actors the state that they had in the checkpoint, if there are as many of them."""
        assert self.restored
        saved = self.restored.parts
        # The state of other actors, or of actors elsewhere, has no meaning for these.
        before = self.restored.state["config"]
        actors_before = before["actors"]
        as_many = all(actors_before[name] == getattr(self.config.actors, name) for name in ACTORS)
        as_resident = before["resident"] == self.config.resident
        if not saved.get("actors") or not as_many or not as_resident:
            return
        try:
            self.feed.load_state_dict(saved)
        except ValueError as error:
            fresh = "without --local, on Ray, actors begin new episodes"
            if self.config.resident:
                fresh = "with --no-resident actors begin new episodes"
            raise UserError(f"{self.saved} does not fit: {error}; {fresh}") from error

    def _next_stage(self) -> None:
        """Ends the actors, and starts those of the next stage with the weights as they are.

        Rows that were kept for replay are dropped: they are of another environment.
        """
        self._stop_actors()
        if self.replay:
            self.replay.clear()
        self.curriculum.enter(self.curriculum.number + 1, self.learner.steps)
        self.launches = 0  # so that a resumed run with --local goes on as if it had not been interrupted
        self._start_actors()
        self.publish()

    # The run: its beginning, its checkpoints, and its URL.

    def inherit(self, allow: str | None = None) -> None:
        """Gives a new run the weights of the run that it starts from, if any; see `inheritance.inherit`."""
        self.config = inherit(self.config, self.agent, allow)

    def begin_or_restore(self, new: bool) -> None:
        """See `Training.begin_or_restore`; claims the run's URL, if it has one.

        Before the run is restored, so that an earlier owner saves nothing after that. If it cannot be, the URL is the
        earlier owner's again.
        """
        before = self.remote.owner() if self.remote else None
        self.claim_url(new)
        try:
            super().begin_or_restore(new)
        except Exception:
            if self.remote and before:
                self.remote.claim(before)
            raise

    def restore(self) -> None:
        """See `Training.restore`; logs a line if a schedule jumps."""
        super().restore()
        assert self.restored
        with suppress(ValueError):  # a configuration of another version
            before = from_plain(RunConfig, self.restored.state["config"])
            if jump := describe_jump(before, self.config, self.frames):
                logger.warning("%s", jump)

    def unpack(self, state: Json) -> None:
        self.curriculum.unpack(state)
        self.episodes = state["episodes"]
        # Older checkpoints have no count of dropped unrolls.
        dropped = state.get("dropped", 0)
        require_schema(dropped, int, "state: dropped")
        self.dropped = dropped
        self.launches = state["generation"] + 1
        self.config = dataclasses.replace(self.config, from_run=state["config"]["from_run"])

    def pack(self, rescue: bool) -> tuple[Parts, Json]:
        """With the state of the actors, where the feed can give it.

        Raises a UserError, before anything is written, if the run's URL was claimed by another launch.
        """
        if self.remote and self.claimed:
            owner = self.remote.owner()
            if owner not in (None, self.claimed):
                raise UserError(f"{self.place} was taken over by {owner}; this run ends with {self.saved}")
        counters = {
            "episodes": self.episodes,
            "dropped": self.dropped,
            "generation": self.launches,
            **self.curriculum.pack(),
        }

        # Actors are not asked in a rescue: their failure may be its reason.
        parts = {}
        if self._feed and not rescue:
            for name, tensors in self._feed.state_dict().items():
                if tensors:
                    parts[name] = tensors
        return parts, counters

    def claim_url(self, new: bool) -> None:
        """Makes this process the only one that writes to the run's URL, if it has one.

        A URL has no lock that the loss of a machine would release. So the last claim counts: an earlier owner stops at
        its next checkpoint, before it writes anything. Raises a ValueError if a new run would start where there are
        checkpoints, and a StorageError if the URL cannot be written to.
        """
        if self.remote is None:
            return
        if new and self.remote.names():
            raise ValueError(f"{self.place} already has checkpoints: expected a new URL, or --resume {self.place}")
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self.claimed = f"{self.run.path.resolve()} on {socket.gethostname()} (process {os.getpid()}, {now})"
        self.remote.claim(self.claimed)

    def _keep_batch(self, number: int, version: int) -> str:
        """Writes the batch of an update that is not finite, and says where.

        Args:
            number: the update, of those that the learner makes of one batch.
            version: the number of updates before the first of them.
        """
        with suppress(ClusterError, OSError):  # its unrolls were lost, or the disk is full
            trajectories = list(self.batch.trajectories())
            if not trajectories:
                return ""  # resident learners have it
            batch = concatenate_states(trajectories)
            rows = len(batch.action)
            # The learner may have made several updates of the batch.
            parts = split(rows, self.learner.rows or rows)
            part = parts[number - version - 1]
            path = self.run.not_finite_file(number)
            write_trajectory(index_state(batch, part), path)
            return f" The batch is kept in {path}"
        return " The batch could not be kept."

    # What people see.

    def progress(self) -> Progress:
        status = self.feed.status()
        frames_per_second = self.clock.rate * self.action_repeat
        actors = plural(status.alive, "actor")
        if status.restarts:
            actors += f", {status.restarts} restarted"
        steps = f"{quantity(self.learner.steps)} steps"
        speed = f"{quantity(frames_per_second)} frames/s"
        # The most important text is the first: a narrow terminal cuts the others.
        texts = (steps, speed, *self.curriculum.texts(), actors)
        return Progress(self.frames, self.config.frames, "frames", texts)

    def log(self, metrics: dict[str, float]) -> None:
        # A batch can be several updates, so their number may jump over a multiple of `log_every`.
        every = self.config.log_every
        version = self.learner.version
        due = version // every > self.logged // every
        self.logged = version
        was_evaluated = "evaluation/return" in metrics
        if due or self.done or was_evaluated:
            row = metrics | self._attention() | self._row()
            self.writer.write(self.learner.steps, row)

    def amounts(self) -> dict[str, float]:
        return {"learner/frames": float(self.frames)}

    def _row(self) -> dict[str, float]:
        """What is known of episodes, speed and actors."""
        status = self.feed.status()
        rate = self.clock.rate
        row = self.curriculum.metrics() | {
            "episode/count": float(self.episodes),
            "speed/steps_per_second": rate,
            "speed/frames_per_second": rate * self.action_repeat,
            "learner/frames": float(self.frames),
            "learner/idle_fraction": self.clock.idle_fraction(),
            "actors/alive": float(status.alive),
            "actors/restarts": float(status.restarts),
            "actors/unrolls_waiting": float(status.waiting),
            "actors/unrolls_dropped": float(self.dropped),
        }
        return {name: value for name, value in row.items() if not math.isnan(value)}

    def _attention(self) -> dict[str, float]:
        """See `attention_mass`: of one unroll of the batch, unless it was lost meanwhile, or the learners keep it."""
        with suppress(ClusterError):
            for trajectory in self.batch.trajectories():
                self.updater.pull_weights()  # several learners have newer weights
                return attention_mass(self.agent, trajectory)
        return {}


def train_agent(
    config: RunConfig,
    run: Run,
    *,
    stop: Callable[[], bool] = lambda: False,
    show: Callable[[Progress], None] = lambda progress: None,
    evaluated: Callable[[Trainer], None] = lambda trainer: None,
    local: bool = True,
    patience: float = 0.0,
) -> bool:
    """Trains a run, or resumes it, to its end and evaluates it; returns whether it is finished.

    Args:
        stop: asked after every update, and after every step of the evaluation; if true, a checkpoint is written and the
            training ends.
        show: called with the progress after every update.
        evaluated: called with the trained agent when its evaluation is written.
        local: act in this process; if false, on the Ray cluster to which it is connected.
        patience: seconds to wait for another process to leave the folder.
    """
    limit_calls(config.actors.step_seconds)
    for env in config.named_environments:
        prepare(env)
    trainer = Trainer(config, run, local)
    run.wait_for_others(patience)
    new = not trainer.has_begun
    if new:
        trainer.inherit()

    def check(_: int) -> None:
        if stop():
            raise Stopped

    with run.claim(new, lambda: bool(trainer.saved), patience), trainer.opened(new):
        trainer.train(show, stop)
        if not trainer.done:
            return False
        try:
            summary = evaluate(trainer.config, trainer.agent, check)
        except Stopped:  # what was trained is saved, and is evaluated when the run is resumed
            return False
        trainer.finish(summary)
        evaluated(trainer)
        return True
