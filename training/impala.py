"""The training of an agent with IMPALA: unrolls from the actors, updates by the learner, weights back to the actors.

`Trainer` adds actors, episodes and checkpoints behind URLs to `loop.Training`. Its parts are built in `factories`. On
Ray the next batch is received, and weights are published, in threads beside the updates; see `batches`.
"""

import dataclasses
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from actors import ClusterError, Episode, Pool, Unroll
from actors.config import pairs
from agent import Trajectory
from agent.core import concatenate_states, index_state
from envs import limit_calls, prepare
from learner.diagnostics import attention_mass
from learner.errors import BatchLost, NotFinite, PeerLost
from learner.learner import Learner, split
from learner.loading import load
from storage.checkpoints import LEARNER
from storage.errors import UserError
from storage.files import write_json
from storage.run import Run
from storage.stores import UrlStore
from training.batches import Background, Batch, wait_for, write_trajectory
from training.charts import CHARTS
from training.config import RunConfig, from_plain, to_plain
from training.console import quantity
from training.curriculum import EPISODE, Curriculum, inherit
from training.evaluation import as_metrics, evaluate
from training.factories import make_agent, make_learner, make_pool, make_replay, resolve_precisions
from training.loop import Training
from training.progress import Progress
from training.resident import ResidentLearner, require_resident

if TYPE_CHECKING:
    from learner.group import MakeReplica

logger = logging.getLogger(__name__)

ACTORS = {"num_actors": int, "envs_per_actor": int}


class Trainer(Training):
    """An agent's run in progress.

    Args:
        run: the folder. Nothing is written before `claim_url` and `train`.
        local: whether actors live in this process; only then is a resumed run identical to an uninterrupted one.

    Attributes:
        learner: the learner of this process; it follows several learners on Ray, if there are any.
        replay: what is learned from again, or None.
        curriculum: the stages, and the last episodes.
        batch, learned: the batch that is, or was last, learned from, and what it was for the learner.

    Raises:
        ValueError: if the environment or the network is impossible.
        StorageError: if the run's URL cannot be used.
    """

    state_schema: ClassVar = {"learner": LEARNER, "episodes": int, "generation": int, "recent": [EPISODE]} | {
        "rng": dict,
        "config": {"actors": ACTORS},
    }
    charts = CHARTS
    learner: Learner

    def __init__(self, config: RunConfig, run: Run, local: bool) -> None:
        if local and config.actors.gpus and not torch.cuda.is_available():
            raise ValueError(f"gpus: expected 0 for actors in this process, which has no GPU, got {config.actors.gpus}")
        require_resident(config)
        config = resolve_precisions(config)
        self.curriculum = Curriculum(config)
        torch.manual_seed(config.seed)
        self.local, self.action_repeat = local, self.curriculum.action_repeat
        self.agent = make_agent(config)
        super().__init__(config, run, make_learner(config, self.agent), on_ray=not local)
        self.replay = make_replay(config, self.learner, local)
        self.pool: Pool | None = None
        self.batch: Batch
        self.learned: Any = None
        self.receiver: Background
        self.publisher: Background
        self.ahead: Future[Batch] | None = None
        self.publication: Future[None] | None = None
        self.episodes = self.dropped = self.generation = self.logged = 0
        self.acting = ExitStack()
        self.place = config.checkpoint_url or run.path
        self.remote = UrlStore(config.checkpoint_url) if config.checkpoint_url else None
        self.claimed: str | None = None

    @property
    def frames(self) -> int:
        """Environment frames learned from."""
        return self.learner.steps * self.action_repeat

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

    def unpack(self, state: dict[str, Any]) -> None:
        self.curriculum.unpack(state)
        self.episodes, self.generation = state["episodes"], state["generation"] + 1
        self.config = dataclasses.replace(self.config, from_run=state["config"].get("from_run", self.config.from_run))

    def restore(self) -> None:
        """See `Training.restore`; logs a line if learning rate or entropy cost change at once."""
        super().restore()
        assert self.restored
        with suppress(ValueError):  # a configuration of another version
            before = from_plain(RunConfig, self.restored.state["config"])
            if jump := describe_jump(before, self.config, self.frames):
                logger.warning("%s", jump)

    def initialize(self, allow: str | None = None) -> None:
        """Gives a new run the weights of the run that it starts from, if any; see `inherit`."""
        self.config = inherit(self.config, self.agent, allow)

    def _restore_actors(self, pool: Pool) -> None:
        """Gives the actors the state that they had in the checkpoint, if there are as many of them."""
        assert self.restored
        actors, saved = self.restored.state["config"]["actors"], self.restored.parts.get("actors", {})
        changed = any(actors[name] != getattr(self.config.actors, name) for name in ACTORS)
        if not saved or changed or self.restored.state["config"].get("resident", False) != self.config.resident:
            return
        for name, tensor in pool.state_dict().items():
            pair = [tensor, saved.get(name)]
            expected, got = ("none" if one is None else f"{one.dtype} {list(one.shape)}" for one in pair)
            if expected != got:
                fresh = "without --local, on Ray, actors begin new episodes"
                raise UserError(f"{self.saved} does not fit: actors: {name}: expected {expected}, got {got}; {fresh}")
        pool.load_state_dict(saved)
        if self.replay:
            self.replay.load_state_dict(self.restored.parts.get("replay", {}))

    def make_replica(self) -> "MakeReplica":
        if self.config.resident:
            return partial(ResidentLearner, self.agent, self.curriculum.present, self.learner.total_steps)
        return self.learner.replicate()

    def start(self, stack: ExitStack, **placing: Any) -> None:
        labels = pairs("learner_labels", self.config.learner_labels)
        super().start(stack, placement=self.config.learner_placement, labels=labels)
        stack.callback(self._stop_actors)
        self.pool = self._start_actors()
        self.logged = self.learner.version
        if self.restored:
            self._restore_actors(self.pool)
        if not self.local:
            self.ahead = self.publication = None
            self.receiver, self.publisher = (stack.enter_context(Background()) for _ in range(2))

    def _start_actors(self) -> Pool:
        """Starts the actors of the present stage."""
        env, stream = self.curriculum.present.env, self.curriculum.stream(self.generation)
        return self.acting.enter_context(make_pool(self.config, env, stream, self.local, self.updater))

    def _stop_actors(self) -> None:
        self.pool = None
        self.acting.close()

    def _next_stage(self) -> None:
        """Ends the actors, and starts those of the next stage with the weights as they are.

        Rows that were kept for replay are dropped: they are of another environment.
        """
        self._finish_publication()
        self._stop_actors()
        if self.replay:
            self.replay.clear()
        self.curriculum.enter(self.curriculum.number + 1, self.learner.steps)
        self.generation = 0  # so that a resumed run with --local goes on as if it had not been interrupted
        if self.updater is not self.learner and self.config.resident:
            self.updater.replace(self.make_replica())
        self.pool = self._start_actors()
        self.publish()

    def publish(self) -> None:
        """Gives the actors the weights; on Ray in a thread, at most one version at a time."""
        assert self.pool
        self._finish_publication()
        if self.config.resident:
            return self.pool.publish({}, self.updater.version)  # the actor has the learner's weights
        publish, complete, version = self.pool.publish, self.updater.snapshot(), self.updater.version
        if self.local:
            publish(complete(), version)
        else:
            self.publication = self.publisher.start(lambda: publish(complete(), version))

    @property
    def done(self) -> bool:
        return self.frames >= self.config.frames

    @property
    def step(self) -> int:
        return self.learner.steps

    def update(self) -> dict[str, float]:
        """Learns from one batch, and gives the actors the new weights. A batch that is not finite is kept in a file."""
        before = self.frames
        while True:
            with self.clock.waiting():
                if self.ahead is None and self.curriculum.ended(self.learner.steps):
                    self._next_stage()
                batch = self._next_batch()
            self.curriculum.remember(batch.episodes)
            self.episodes += len(batch.episodes)
            self.dropped += batch.dropped
            self.batch, self.learned, version = batch, batch.ready(), self.learner.version
            try:
                metrics = self.updater.update(self.learned)
            except BatchLost as error:
                logger.warning("%s; the batch is dropped", error)
                continue
            except NotFinite as error:
                raise error.extended(self._keep_batch(error.number, version)) from error
            self.publish()
            self.clock.mark(self.clocked)
            return metrics | self._evaluate(before)

    def _evaluate(self, before: int) -> dict[str, float]:
        """The metrics of an evaluation if one is due after an update that began at so many frames."""
        if not (every := self.config.evaluate_every) or self.done or self.frames // every == before // every:
            return {}
        if self.updater is not self.learner:
            self.updater.follow()
        with self.clock.paused():
            return as_metrics(evaluate(self.config, self.agent))

    def _next_batch(self) -> Batch:
        """Waits for the batch that is next, and on Ray begins to receive the one after it, if the stage goes on."""
        version = self.learner.version
        if self.local or self.config.resident:
            return self._receive(version, self.check)
        receiver = self.receiver
        if self.ahead is None:
            if self.publication:
                wait_for(self.publication, self.check)  # actors need weights to begin with
            self.ahead = receiver.start(lambda: self._receive(version, receiver.check))
        ahead, self.ahead = self.ahead, None
        batch = wait_for(ahead, self._check_all)
        following = version + (self.replay.updates if self.replay else 1)
        if not self.curriculum.ended(self.learner.steps):
            self.ahead = receiver.start(lambda: self._receive(following, receiver.check))
        return batch

    def _check_all(self) -> None:
        self.check()
        if self.publication and self.publication.done():
            self._finish_publication()

    def _finish_publication(self) -> None:
        """Waits for the publication in progress, and raises its error. Weights that were lost are published anew."""
        publication, self.publication = self.publication, None
        try:
            if publication:
                wait_for(publication, self.check)
        except PeerLost as error:
            assert self.pool
            logger.warning("%s", error)
            self.pool.publish(self.updater.state_dict()["weights"], self.updater.version)

    def _receive(self, version: int, check: Callable[[], object]) -> Batch:
        """The next unrolls, of which the learner of a version will learn; those too old for that are dropped."""
        assert self.pool
        unrolls, episodes, dropped, limit = list[Unroll](), list[Episode](), 0, self.config.max_policy_lag
        rows = self.config.unrolls_per_update * self.config.actors.envs_per_actor
        while sum(unroll.rows for unroll in unrolls) < rows:
            unroll = self.pool.get(check)
            episodes += unroll.episodes
            if limit is None or version - unroll.version <= limit:
                unrolls.append(unroll)
            else:
                dropped += 1  # actors catch up: newer weights are published meanwhile
        ready = self._prepare(unrolls, check)
        return Batch([] if self.updater is self.learner or self.config.resident else unrolls, episodes, dropped, ready)

    def _prepare(self, unrolls: list[Unroll], check: Callable[[], object]) -> Callable[[], Any]:
        """Makes the trajectory of a batch, or lets the learners fetch it; see `Batch.ready`."""
        if self.config.resident:
            return lambda: unrolls[0].trajectory
        if self.updater is not self.learner:
            number = self.updater.send([(unroll.trajectory, unroll.rows) for unroll in unrolls], check)
            return lambda: number
        trajectories = [unroll.trajectory for unroll in unrolls]
        ready = partial(concatenate_states, trajectories) if self.local else load(trajectories, self.learner.device)
        replay = self.replay
        return (lambda: replay.mix(ready())) if replay else ready

    def _trajectories(self) -> Iterator[Trajectory]:
        """Those of the batch, each fetched when it is asked for if the learners fetched them."""
        yield from map(Unroll.load, self.batch.unrolls) if self.batch.unrolls else [self.learned]

    def _keep_batch(self, number: int, version: int) -> str:
        """Writes the batch of an update that is not finite; of several, the first followed `version`. Says where."""
        if self.learned is None:
            return ""  # resident learners have it
        with suppress(ClusterError, OSError):  # its unrolls were lost, or the disk is full
            batch, rows = concatenate_states(list(self._trajectories())), self.learner.rows
            batch = index_state(batch, split(len(batch.action), rows or len(batch.action))[number - version - 1])
            return f" The batch is kept in {write_trajectory(batch, self.run.not_finite_file(number))}"
        return " The batch could not be kept."

    def pack(self, rescue: bool) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """With the state of the actors, where the pool can give it.

        Raises a UserError, before anything is written, if the run's URL was claimed by another launch.
        """
        if self.remote and self.claimed and (owner := self.remote.owner()) not in (None, self.claimed):
            raise UserError(f"{self.place} was taken over by {owner}; this run ends with {self.saved}")
        actors = self.pool.state_dict() if self.pool and not rescue else None
        counters = {"episodes": self.episodes, "generation": self.generation, **self.curriculum.pack()}
        kept = {"actors": actors, "replay": actors and self.replay and self.replay.state_dict()}
        return {name: tensors for name, tensors in kept.items() if tensors}, counters

    def progress(self) -> Progress:
        assert self.pool
        rate, status = self.clock.rate, self.pool.status()
        restarts = f", {status.restarts} restarted" if status.restarts else ""
        texts = (
            f"{quantity(self.learner.steps)} steps",
            f"{quantity(rate * self.action_repeat)} frames/s",
            *self.curriculum.texts(),
            f"{status.alive} actor{'s' * (status.alive > 1)}{restarts}",
        )
        return Progress(self.frames, self.config.frames, "frames", rate * self.action_repeat, texts)

    def log(self, metrics: dict[str, float]) -> None:
        logged, self.logged, every = self.logged, self.learner.version, self.config.log_every
        due = self.logged // every > logged // every or "evaluation/return" in metrics
        if not due and not self.done:  # an unroll can be several updates
            return
        assert self.pool
        status, rate = self.pool.status(), self.clock.rate
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
        known = {name: value for name, value in row.items() if not math.isnan(value)}
        self.writer.write(self.learner.steps, metrics | self._attention() | known)

    def _attention(self) -> dict[str, float]:
        """See `attention_mass`; with several learners, of one unroll of the batch, unless it was lost meanwhile."""
        if self.learned is None:
            return {}
        if self.updater is not self.learner:
            self.updater.follow()
        with suppress(ClusterError):
            return attention_mass(self.agent, next(self._trajectories()))
        return {}


def describe_jump(before: RunConfig, after: RunConfig, frames: int) -> str:
    """Says how learning rate and entropy cost change when a run continues with another configuration.

    Returns:
        one line; empty if both are, after so many frames, what they would be with the configuration from before.
    """
    changes = list[str]()
    old_rates = scheduled_rates(before, frames)
    new_rates = scheduled_rates(after, frames)
    for name in old_rates:
        old, new = f"{old_rates[name]:.3g}", f"{new_rates[name]:.3g}"
        if old != new:
            changes.append(f"the {name} changes from {old} to {new}")
    if not changes:
        return ""
    line = " and ".join(changes)
    if before.schedule_end != after.schedule_end:
        line += f": schedules end at {quantity(after.schedule_end)} frames now, not at {quantity(before.schedule_end)}"
        line += f"; --schedule-frames {before.schedule_end} keeps the old end"
    return line


def scheduled_rates(config: RunConfig, frames: int) -> dict[str, float]:
    """Learning rate and entropy cost after so many frames."""
    progress = min(1.0, frames / config.schedule_end)
    learner = config.learner
    return {"learning rate": learner.learning_rate_at(progress), "entropy cost": learner.entropy_cost_at(progress)}


def train_run(
    config: RunConfig,
    run: Run,
    *,
    stop: Callable[[], bool],
    show: Callable[[Progress], None],
    finish: Callable[[Trainer], Mapping[str, Any]],
    local: bool = True,
    patience: float = 0.0,
) -> bool:
    """Trains a run, or resumes it, to its end and evaluates it; returns whether it is finished.

    Args:
        finish: evaluates the trained agent and returns the summary, which is written last: it makes the run finished.
        patience: seconds to wait for another process to leave the folder.
    """
    limit_calls(config.actors.step_seconds)
    for env in config.environments:
        prepare(env)
    trainer = Trainer(config, run, local)
    resumable = run.has_checkpoints
    with run.claim(not resumable, lambda: bool(trainer.saved), patience):
        if resumable:
            trainer.restore()
        else:
            trainer.initialize()
        run.write_config(to_plain(trainer.config))
        trainer.train(show, stop)
        run.require()
        if trainer.done:
            write_json(run.evaluation_file(), finish(trainer))
        return trainer.done
