"""The training of an agent with IMPALA: unrolls from the actors, updates by the learner, weights back to the actors.

`Trainer` holds what a run consists of: the learner and its counters, the last episodes, and checkpoints. Its parts are
built in `factories`; the loop itself is `loop.train`.
"""

import dataclasses
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from actors import Episode, Pool, Unroll
from actors.evaluation import correct_fraction
from agent import Trajectory
from agent.core import concatenate_states, leaves, state_bytes
from envs import limit_calls, mean_normalised, prepare, tasks
from learner import checkpoints
from learner.checkpoints import Checkpoint, pack_learner, unpack_learner
from learner.diagnostics import attention_mass
from learner.errors import StorageError
from learner.files import abbreviate, require_schema, write_json
from learner.learner import Learner
from learner.metrics import MetricsWriter
from learner.serialization import check_rng, restore_rng, rng_state
from learner.storage import UrlStore
from training import UserError, loop
from training.charts import CHARTS
from training.config import RunConfig, to_plain
from training.console import quantity
from training.factories import interface, make_agent, make_learner, make_learners, make_pool
from training.run import Run

if TYPE_CHECKING:
    from learner.group import LearnerGroup
    from training.cluster import HeadWatch

NUMBERS = dict.fromkeys(("steps", "environment", "actor_id", "version"), int)
EPISODE: dict[str, Any] = {"score": float, **NUMBERS, "metrics": {str: float}, "task": str}
ACTORS = {"num_actors": int, "envs_per_actor": int}
STATE = {"episodes": int, "generation": int, "recent": [EPISODE], "rng": dict, "config": {"actors": ACTORS}}
"""The schema of a checkpoint's state; see `require_schema`."""


class Stopped(Exception):
    """The user asked to stop, or the run's folder was lost."""


class Trainer:
    """A run in progress; implements `loop.Job`.

    Args:
        run: the folder. Nothing is written before `claim_url` and `train`.
        local: whether actors live in this process; only then is a resumed run identical to an uninterrupted one.

    Attributes:
        learner: the learner of this process; it follows several learners on Ray, if there are any.
        saved: where the newest checkpoint is.
        restored: the checkpoint from which the run was resumed.

    Raises:
        ValueError: if the environment or the network is impossible.
        StorageError: if the run's URL cannot be used.
    """

    def __init__(self, config: RunConfig, run: Run, local: bool) -> None:
        self.config, self.run, self.local = config, run, local
        names = tasks(config.env)
        if config.actors.num_actors < len(names):
            raise ValueError(f"num_actors: expected at least {len(names)}, one a task, got {config.actors.num_actors}")
        if local and config.actors.gpus and not torch.cuda.is_available():
            raise ValueError(f"gpus: expected 0 for actors in this process, which has no GPU, got {config.actors.gpus}")
        torch.manual_seed(config.seed)
        self.action_repeat = interface(config.env).action_repeat
        self.agent = make_agent(config)
        self.learner = make_learner(config, self.agent)
        self.updater: Learner | LearnerGroup = self.learner
        self.pool: Pool | None = None
        self.episodes = self.dropped = self.generation = 0
        self.recent: dict[str, deque[Episode]] = {task: deque(maxlen=200) for task in names}
        self.place: Path | str = config.checkpoint_url or run.path
        self.remote = UrlStore(config.checkpoint_url) if config.checkpoint_url else None
        self.claimed: str | None = None
        self.restored: Checkpoint | None = None
        self.saved: Path | str | None = None
        self.saved_version: int | None = None

    @property
    def frames(self) -> int:
        """Environment frames learned from."""
        return self.learner.steps * self.action_repeat

    @property
    def unroll_bytes(self) -> int:
        """Size of an unroll."""
        actors, shape = self.config.actors, interface(self.config.env).observation_shape
        observation = math.prod(shape) * (1 if len(shape) == 3 else 4)  # images are bytes
        state = state_bytes(self.agent.initial_state(1))
        return actors.envs_per_actor * ((actors.unroll_length + 1) * observation + state)

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

    def restore(self) -> None:
        """Resumes from the run's last readable checkpoint. If the number of actors has changed, actors start anew.

        Raises:
            FileNotFoundError, StorageError: if there is no checkpoint, or the run's URL cannot be read.
            ValueError: if it does not fit the configuration, or is of another version.
        """
        checkpoint = checkpoints.load_latest(self.place)
        state = checkpoint.state
        try:
            require_schema(state, STATE, "state")
            check_rng(state["rng"])
            episodes = [Episode(**{name: episode[name] for name in EPISODE}) for episode in state["recent"]]
            if others := {episode.task for episode in episodes} - {"", *self.recent}:
                expected, got = ", ".join(self.recent), abbreviate(min(others))
                raise ValueError(f"state: recent: expected episodes of {expected}, got one of {got}")
            self.learner.load_state_dict(unpack_learner(checkpoint))
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{checkpoint.path} does not fit {self.run.config_file}: {error}") from error
        self.episodes, self.generation = state["episodes"], state["generation"] + 1
        self._remember(episodes)
        self.restored, self.saved, self.saved_version = checkpoint, checkpoint.path, self.learner.version

    def _restore_actors(self, pool: Pool) -> None:
        """Gives the actors the state that they had in the checkpoint, if there are as many of them."""
        assert self.restored
        actors, saved = self.restored.state["config"]["actors"], self.restored.parts.get("actors", {})
        if not saved or any(actors[name] != getattr(self.config.actors, name) for name in ACTORS):
            return
        for name, tensor in pool.state_dict().items():
            pair = [tensor, saved.get(name)]
            expected, got = ("none" if one is None else f"{one.dtype} {list(one.shape)}" for one in pair)
            if expected != got:
                raise UserError(f"{self.saved} does not fit: actors: {name}: expected {expected}, got {got}")
        pool.load_state_dict(saved)

    def train(self, show: Callable[[loop.Progress], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Trains until the run's frames are reached, `stop` returns true, or the folder that was claimed is lost.

        A new run starts with a checkpoint, so that it can always be resumed and a full disk is noticed at once. There
        is also one of all that was learned at the end, and after every error but that of a batch.

        Raises:
            OSError: if the run's folder cannot be written to.
            StorageError: if its URL cannot be written to.
            FloatingPointError: if a loss or gradient is not finite; the batch and the last checkpoint are kept.
            Exception: errors of actors and learners other than their death.
        """
        with ExitStack() as stack:
            head = stack.enter_context(self._watch_head())

            def check() -> None:
                if stop() or self.run.lost:
                    raise Stopped
                if head:
                    head.check(self.save_new)

            self.check = check
            try:
                with suppress(Stopped):
                    self._start(stack)
                    loop.train(self, show, checkpoint_seconds=self.config.checkpoint_seconds)
                self.save_new()
            except (FloatingPointError, StorageError):
                raise
            except Exception:
                self._rescue()
                raise

    def _watch_head(self) -> "AbstractContextManager[HeadWatch | None]":
        if self.local:
            return nullcontext()
        from training.cluster import HeadWatch

        return HeadWatch()

    def _start(self, stack: ExitStack) -> None:
        """Starts learners, actors and the writer of metrics; they are closed with the stack."""
        stack.callback(setattr, self, "updater", self.learner)
        self.updater = stack.enter_context(make_learners(self.config, self.learner, self.check))
        self.pool = stack.enter_context(make_pool(self.config, self.generation, self.local))
        stack.callback(setattr, self, "pool", None)
        if self.restored:
            self._restore_actors(self.pool)
            restore_rng(self.restored.state["rng"])  # last, because creating actors draws random numbers
        if self.saved is None:
            self.run.path.mkdir(parents=True, exist_ok=True)
            self.save()
        mirror = None
        if not self.local:
            from training.cluster import RayGauges

            mirror = RayGauges(self.run.name).set
        self.writer = stack.enter_context(MetricsWriter(self.run.path, self.learner.steps, mirror, CHARTS))
        self.clock = loop.Clock(self.learner.steps)
        self.pool.publish(self.updater.weights(), self.updater.version)

    @property
    def done(self) -> bool:
        """Whether all frames have been learned from."""
        return self.frames >= self.config.frames

    def update(self) -> dict[str, float]:
        """Learns from one batch, and gives the actors the new weights."""
        assert self.pool
        self.check()
        with self.clock.waiting():
            unrolls = [self._next_unroll() for _ in range(self.config.unrolls_per_update)]
        self.batch: Trajectory = concatenate_states([unroll.trajectory for unroll in unrolls])
        try:
            metrics = self.updater.update(self.batch)
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} The batch is kept in {self._keep_batch()}") from error
        self.pool.publish(self.updater.weights(), self.updater.version)
        self.clock.mark(self.learner.steps)
        return metrics

    def _next_unroll(self) -> Unroll:
        """The next unroll that is not too old to learn from. The episodes of older ones count as well."""
        assert self.pool
        while True:  # the version does not change meanwhile, so actors catch up
            unroll = self.pool.get(self.check)
            self._remember(unroll.episodes)
            self.episodes += len(unroll.episodes)
            limit, lag = self.config.max_policy_lag, self.learner.version - int(unroll.trajectory.version.min())
            if limit is None or lag <= limit:
                return unroll
            self.dropped += 1

    def _remember(self, episodes: list[Episode]) -> None:
        """Keeps episodes by task, for the means that are shown; those without a task belong to the first."""
        for episode in episodes:
            self.recent[episode.task or next(iter(self.recent))].append(episode)

    def _keep_batch(self) -> Path:
        """Writes a batch that cannot be learned from, so that the reason can be found."""
        tensors: dict[str, Tensor] = {}
        for name, value in self.batch._asdict().items():
            parts = {f"{name}/{index}": leaf for index, leaf in enumerate(leaves(value))}
            tensors |= {name: value} if isinstance(value, Tensor) else parts
        path = self.run.not_finite_file(self.learner.version + 1)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return path

    def save(self) -> None:
        """Writes a checkpoint, with the state of the actors where the pool can give it.

        Raises a UserError, before anything is written, if the run's URL was claimed by another launch.
        """
        self._save(self.updater, self.pool)

    def save_new(self) -> Path | str | None:
        """Writes a checkpoint if there is something new to save; returns where the newest is."""
        if self.saved_version != self.learner.version:
            self.save()
        return self.saved

    def _rescue(self) -> None:
        """Saves what was learned before an error, without asking the actors, and if need be without the learners."""
        for updater in (self.updater, self.learner):  # the optimizer of the second may be that of the last checkpoint
            if self.saved is not None and self.saved_version != self.learner.version:
                with suppress(Exception):
                    self._save(updater, None)

    def _save(self, updater: "Learner | LearnerGroup", pool: Pool | None) -> None:
        place = self.place
        if self.remote is None and self.run.lost:  # what was learned is saved where the folder is now
            found = self.run.find()
            if found is None:
                self.run.require()
            place = found or place
        if self.remote and self.claimed and (owner := self.remote.owner()) not in (None, self.claimed):
            raise UserError(f"{self.place} was taken over by {owner}; this run ends with {self.saved}")
        parts, counters = pack_learner(updater.state_dict())
        if pool and (actors := pool.state_dict()):
            parts["actors"] = actors
        state = {
            "learner": counters,
            "episodes": self.episodes,
            "generation": self.generation,
            "recent": [dataclasses.asdict(episode) for episodes in self.recent.values() for episode in episodes],
            "rng": rng_state(),
            "config": to_plain(self.config),
        }
        self.saved = checkpoints.save(place, self.learner.steps, parts, state, self.config.keep_checkpoints)
        self.saved_version = self.learner.version
        if not self.run.lost and self.run.path.exists() and not self.run.config_file.exists():
            self.run.write_config(to_plain(self.config))  # it was removed, and resuming needs it

    def progress(self) -> loop.Progress:
        """See `loop.Job`."""
        assert self.pool
        rate, status = self.clock.rate, self.pool.status()
        restarts = f", {status.restarts} restarted" if status.restarts else ""
        texts = (
            f"{quantity(self.learner.steps)} steps",
            f"{quantity(rate * self.action_repeat)} frames/s",
            self._score_text(),
            f"{status.alive} actors{restarts}",
        )
        return loop.Progress(self.frames, self.config.frames, "frames", rate * self.action_repeat, texts)

    def _scores(self) -> dict[str, float]:
        """Mean return over the last episodes of each task that has had any."""
        return {task: float(np.mean([e.score for e in episodes])) for task, episodes in self.recent.items() if episodes}

    def _correct(self) -> float:
        return correct_fraction([episode for episodes in self.recent.values() for episode in episodes])

    def _score_text(self) -> str:
        scores, correct = self._scores(), self._correct()
        if not scores:
            return "no episode finished yet"
        over = f" over {len(scores)} of {len(self.recent)} tasks" if len(self.recent) > 1 else ""
        chosen = "" if math.isnan(correct) else f"  correct {100 * correct:.1f} %"
        return f"return {np.mean(list(scores.values())):.1f}{over}{chosen}"

    def log(self, metrics: dict[str, float]) -> None:
        """Writes the metrics of an update, and what the loop measures, if this update is logged."""
        if self.learner.version % self.config.log_every and not self.done:
            return
        assert self.pool
        scores, status, rate = self._scores(), self.pool.status(), self.clock.rate
        row = {
            "episode/return": float(np.mean(list(scores.values()))) if scores else math.nan,
            "episode/correct_choices": self._correct(),
            "episode/count": float(self.episodes),
            **{f"episode/{name}": value for name, value in mean_normalised(scores).items()},
            "speed/steps_per_second": rate,
            "speed/frames_per_second": rate * self.action_repeat,
            "learner/frames": float(self.frames),
            "learner/idle_fraction": self.clock.idle_fraction(),
            "actors/alive": float(status.alive),
            "actors/restarts": float(status.restarts),
            "actors/unrolls_waiting": float(status.waiting),
            "actors/unrolls_dropped": float(self.dropped),
        }
        if len(self.recent) > 1:
            row |= {"tasks/seen": float(len(scores)), "tasks/count": float(len(self.recent))}
            for task, score in scores.items():
                measured = {"return": score, "correct_choices": correct_fraction(list(self.recent[task]))}
                row |= {f"{task}/{name}": value for name, value in (measured | mean_normalised({task: score})).items()}
        known = {name: value for name, value in row.items() if not math.isnan(value)}
        self.writer.write(self.learner.steps, metrics | attention_mass(self.agent, self.batch) | known)


def train_run(
    config: RunConfig,
    run: Run,
    *,
    stop: Callable[[], bool],
    show: Callable[[loop.Progress], None],
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
    prepare(config.env)
    trainer = Trainer(config, run, local)
    resumable = run.has_checkpoints
    with run.claim(not resumable, lambda: bool(trainer.saved), patience):
        if resumable:
            trainer.restore()
        run.write_config(to_plain(config))
        trainer.train(show, stop)
        run.require()
        if trainer.done:
            write_json(run.evaluation_file(), finish(trainer))
        return trainer.done
