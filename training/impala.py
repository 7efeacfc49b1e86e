"""The main loop: unrolls from a pool to the learner, weights back, and what is written and shown on the way.

Everything that is specific to a command line or a terminal is elsewhere (`launch.py`, `display.py`).
"""

import dataclasses
import functools
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from actors import Actor, Episode, LocalPool, Pool, PoolStatus, Unroll
from actors.actor import check_environment
from actors.evaluation import correct_fraction
from actors.pool import pairs
from agent import Agent, Trajectory
from agent.core import concatenate_states, leaves, state_bytes
from agent.memory_check import build_network
from envs import limit_calls, make_vector, mean_normalised, tasks
from envs.guard import close
from learner import checkpoints
from learner.checkpoints import Checkpoints
from learner.diagnostics import attention_mass
from learner.learner import Learner
from learner.metrics import MetricsWriter
from reports.tensorboard import LAYOUT
from training import UserError
from training.config import RunConfig, to_plain
from training.loop import Clock
from training.run import ClaimedFolder
from training.signals import StopRequest

if TYPE_CHECKING:
    from learner.group import LearnerGroup
    from training.ray_head import HeadWatch

logger = logging.getLogger(__name__)

NUMBERS = dict.fromkeys(("steps", "environment", "actor_id", "version"), int)
EPISODE: dict[str, Any] = {"score": float, **NUMBERS, "metrics": {str: float}, "task": str}
ACTORS = {"num_actors": int, "envs_per_actor": int}
STATE = {"episodes": int, "generation": int, "recent": [EPISODE], "rng": dict, "config": {"actors": ACTORS}}
"""What `Trainer.restore` needs of the state that `Trainer.save` writes, as `checkpoints.require` takes it."""


@dataclass(frozen=True)
class Progress:
    """What a display shows while training goes on.

    steps, frames: learned from so far; total_frames: when the run ends.
    frames_per_second: over the last seconds. score, correct: means over the last episodes (NaN before the first), the
    score of several tasks over those of each. tasks: how many have had an episode, and how many there are.
    """

    steps: int
    frames: int
    total_frames: int
    frames_per_second: float
    score: float
    correct: float
    episodes: int
    pool: PoolStatus
    tasks: tuple[int, int] = (1, 1)


class Display(Protocol):
    """Where progress goes."""

    def update(self, progress: Progress) -> None:
        """Called after every update of the weights."""


class Stopped(Exception):
    """The user asked to stop, or the run's folder is lost, while there was nothing to do but wait."""


class Interface(NamedTuple):
    """What must be known of an environment to build an agent for it, and its frames per agent step.

    vocabulary: how many ids the words of its instructions may have, 0 if it shows none.
    """

    observation_shape: tuple[int, ...]
    num_actions: int
    action_repeat: int
    vocabulary: int = 0

    def __str__(self) -> str:
        words = f", instructions of {self.vocabulary} words" if self.vocabulary else ""
        seen = f"observations {list(self.observation_shape)}{words}"
        return f"{seen}, {self.num_actions} actions and {self.action_repeat} frames a step"


@functools.cache
def interface(env: str) -> Interface:
    """Of an environment by name, which is made once to look at it; several tasks must have the same.

    Raises:
        ValueError: if there is no such environment, it is not supported, or its tasks differ.
        ImportError: if it needs what is not installed.
    """
    names = tasks(env)
    if len(names) > 1:
        first = interface(names[0])
        for task in names[1:]:
            if (other := interface(task)) != first:
                raise ValueError(f"env: expected {first} as in {names[0]}, got {other} in {task}")
        return first
    envs = make_vector(env, 1)
    try:
        check_environment(envs)
        space: Any = envs.single_observation_space
        vocabulary = 0
        if isinstance(space, gymnasium.spaces.Dict):
            space, vocabulary = space["image"], int(space["instruction"].high.max()) + 1
        num_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
        return Interface(space.shape or (), num_actions, int(envs.metadata.get("action_repeat", 1)), vocabulary)
    finally:
        close(envs, env)


def make_agent(config: RunConfig) -> Agent:
    """The run's network with fresh weights (from torch's global generator)."""
    shape, num_actions, _, vocabulary = interface(config.env)
    build = functools.partial(Agent, config.agent, shape, num_actions, vocabulary)
    return build_network(build, config.agent, config.actors.envs_per_actor)


def make_actor(config: RunConfig, generation: int, actor_id: int, incarnation: int) -> Actor:
    """One training actor, which plays one of the run's tasks. No two actors, restarts or resumed runs share a seed.

    Args:
        config: the run.
        generation: 0 for a new run, one more at every resumption.
        actor_id: which actor; of n tasks it plays number `actor_id` modulo n.
        incarnation: how often it was replaced.
    """
    seed = np.random.SeedSequence([config.seed, 1, generation, incarnation]).generate_state(1)[0]
    limit_calls(config.actors.step_seconds)
    names = tasks(config.env)
    task = names[actor_id % len(names)]
    envs = make_vector(task, config.actors.envs_per_actor, episode_stream(generation, actor_id, incarnation))
    return Actor(envs, make_agent(config), actor_id, int(seed), task=task, device=config.actors.device)


def episode_stream(generation: int, actor_id: int, incarnation: int) -> int:
    """A number of 31 bits that no other actor, restart or resumption of the run has; see `envs.make_vector`.

    That holds for 4096 actors, 1024 lives of each and 512 beginnings of the run; beyond them numbers come again, with
    seeds that begin elsewhere.
    """
    return (generation % 512) << 22 | (incarnation % 1024) << 12 | actor_id % 4096


def make_pool(config: RunConfig, generation: int, local: bool) -> Pool:
    """The run's actors, in this process or on the Ray cluster that this process is connected to."""
    build = functools.partial(make_actor, config, generation)
    if local:
        return LocalPool(build, config.actors)
    from actors.ray_pool import RayPool

    return RayPool(build, config.actors)


def make_learner(config: RunConfig, agent: Agent) -> Learner:
    """The run's learner in this process; on the CPU if it follows several on Ray."""
    learning = config.learner if config.learners == 1 else dataclasses.replace(config.learner, device="cpu")
    return Learner(agent, learning, max(1, config.frames // interface(config.env).action_repeat))


def make_learners(
    config: RunConfig, learner: Learner, check: Callable[[], object] = lambda: None
) -> "AbstractContextManager[Learner | LearnerGroup]":
    """Who does the updates: the learner itself, or as many as the run asks for on the Ray cluster; it follows them.

    `check` is called while they wait for the cluster; see `LearnerGroup`.

    Raises:
        UserError: if there are not enough GPUs.
    """
    if config.learners == 1:
        return nullcontext(learner)
    from learner.group import LearnerGroup

    try:
        return LearnerGroup(
            learner,
            config.learners,
            config.learner.device,
            config.seed,
            config.learner_placement,
            pairs("learner_labels", config.learner_labels),
            check,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def make_mirror(run: Path, local: bool) -> Callable[[Mapping[str, float]], None] | None:
    """Where rows of metrics go beside the run's files: gauges of the Ray cluster that this process is connected to."""
    if local:
        return None
    from training.ray_metrics import RayGauges

    return RayGauges(run.resolve().name).set


def watch_head(local: bool) -> "AbstractContextManager[HeadWatch | None]":
    """Watches the head of the Ray cluster that this process is connected to; not through Ray Client (ray://)."""
    if local:
        return nullcontext()
    from training.ray_head import HeadWatch, is_reachable

    return HeadWatch() if is_reachable() else nullcontext()


class Trainer:
    """A run in progress: learner, counters and files.

    Args:
        config: the run.
        run: its folder; nothing is written before `claim` and `train`. `folder` notices if it is moved or removed.
        local: whether actors live in this process; only then is a resumed run identical to an uninterrupted one.

    Raises:
        ValueError: if there is no such environment or network.
        StorageError: if the run's URL cannot be used.
    """

    def __init__(self, config: RunConfig, run: Path, local: bool) -> None:
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
        self.episodes = 0
        self.dropped = 0
        self.recent: dict[str, deque[Episode]] = {task: deque(maxlen=200) for task in names}
        self.generation = 0
        self.pool_state: dict[str, Tensor] = {}
        self.restored: checkpoints.Checkpoint | None = None
        self.saved: Path | str | None = None
        self.saved_version: int | None = None
        self.folder: ClaimedFolder | None = None
        self.place: Path | str = config.checkpoint_url or run
        self.remote = Checkpoints(config.checkpoint_url) if config.checkpoint_url else None
        self.claimed: str | None = None

    @property
    def frames(self) -> int:
        """Environment frames learned from."""
        return self.learner.steps * self.action_repeat

    @property
    def unroll_bytes(self) -> int:
        """Size of an actor's unroll as it travels to the learner."""
        actors, shape = self.config.actors, interface(self.config.env).observation_shape
        observation = math.prod(shape) * (1 if len(shape) == 3 else 4)  # images are bytes
        state = state_bytes(self.agent.initial_state(1))
        return actors.envs_per_actor * ((actors.unroll_length + 1) * observation + state)

    def claim(self, new: bool) -> None:
        """Makes this process the only one that writes to the run's URL, if it has one.

        There is no lock that a lost machine would give back. So the last claim counts: whoever wrote there before
        stops at its next checkpoint, before it has written anything.

        Raises:
            ValueError: if a new run is to begin where there are checkpoints.
            StorageError: if the URL cannot be written to.
        """
        if self.remote is None:
            return
        if new and self.remote.any_complete():
            raise ValueError(f"{self.place} already has checkpoints: expected a new URL, or --resume {self.place}")
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self.claimed = f"{self.run.resolve()} on {socket.gethostname()} (process {os.getpid()}, {now})"
        self.remote.claim(self.claimed)

    def restore(self) -> None:
        """Goes on from the run's last readable checkpoint. Actors begin afresh if their number has changed.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it does not fit the configuration, or is of another version.
            StorageError: if the run's URL cannot be read from.
        """
        checkpoint = checkpoints.load_latest(self.place)
        state = checkpoint.state
        try:
            checkpoints.require(state, STATE, "state")
            checkpoints.check_rng(state["rng"])
            episodes = [Episode(**{name: episode[name] for name in EPISODE}) for episode in state["recent"]]
            if others := {episode.task for episode in episodes} - {"", *self.recent}:
                expected, got = ", ".join(self.recent), checkpoints.shown(min(others))
                raise ValueError(f"state: recent: expected episodes of {expected}, got one of {got}")
            self.learner.load_state_dict(checkpoints.unpack_learner(checkpoint))
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{checkpoint.path} does not fit {self.run / 'config.json'}: {error}") from error
        self.episodes, self.generation = state["episodes"], state["generation"] + 1
        self._remember(episodes)
        actors = state["config"]["actors"]
        if all(actors[name] == getattr(self.config.actors, name) for name in ("num_actors", "envs_per_actor")):
            self.pool_state = checkpoint.parts.get("actors", {})
        self.restored, self.saved, self.saved_version = checkpoint, checkpoint.path, self.learner.version

    def _require_alike(self, own: dict[str, Tensor]) -> None:
        """Raises a UserError where the restored states of actors are not such as the actors' own."""
        for name, tensor in own.items():
            pair = [tensor, self.pool_state.get(name)]
            expected, got = ("none" if one is None else f"{one.dtype} {list(one.shape)}" for one in pair)
            if expected != got:
                raise UserError(f"{self.saved} does not fit: actors: {name}: expected {expected}, got {got}")

    def save(self, learner: "Learner | LearnerGroup", pool: Pool | None = None) -> None:
        """Writes a checkpoint; without a pool, actors begin afresh when it is resumed.

        Raises:
            UserError: if the run's URL was claimed by another launch; nothing was written then.
            FileNotFoundError: if the run's folder was removed.
        """
        place = self.place
        if self.folder and not self.remote and self.folder.lost:  # what was learned goes where the folder is now
            found = self.folder.find()
            if found is None:
                self.folder.require()
            place = found or place
        if self.remote and self.claimed and (owner := self.remote.owner()) not in (None, self.claimed):
            raise UserError(f"{self.place} was taken over by {owner}; this run ends with {self.saved}")
        parts, counters = checkpoints.pack_learner(learner.state_dict())
        if pool and (actors := pool.state_dict()):
            parts["actors"] = actors
        state = {
            "learner": counters,
            "episodes": self.episodes,
            "generation": self.generation,
            "recent": [dataclasses.asdict(episode) for episodes in self.recent.values() for episode in episodes],
            "rng": checkpoints.rng_state(),
            "config": to_plain(self.config),
        }
        self.saved = checkpoints.save(place, self.learner.steps, parts, state, self.config.keep_checkpoints)
        self.saved_version = self.learner.version
        path = self.run / "config.json"
        if self.folder and not self.folder.lost and not path.exists():  # another removed it, and resuming needs it
            checkpoints.write_json(path, to_plain(self.config))

    def train(self, display: Display, stop: StopRequest) -> None:
        """Trains until the run's frames are reached, a stop is requested or the folder is lost that was claimed; leaves
        a checkpoint in any case.

        A new run begins with one, so that it can be resumed whatever happens, and a full disk shows at once.

        Raises:
            OSError: if the run's folder cannot be written to.
            StorageError: if its URL cannot be written to.
            FloatingPointError: if a loss or gradient is not finite. The batch is kept, and so are the checkpoints.
            Exception: whatever actors and learners raise that is not a death; what was learned so far is saved before.
        """

        learner: Learner | LearnerGroup = self.learner
        pool: Pool | None = None
        with ExitStack() as stack:
            head = stack.enter_context(watch_head(self.local))

            def check() -> None:
                if stop.requested or (self.folder and self.folder.lost):
                    raise Stopped
                if head:
                    head.check(lambda: self._save_new(learner, pool))

            with suppress(Stopped):
                learner = stack.enter_context(make_learners(self.config, self.learner, check))
                pool = stack.enter_context(make_pool(self.config, self.generation, self.local))
                if self.pool_state:
                    self._require_alike(pool.state_dict())
                    pool.load_state_dict(self.pool_state)
                if self.restored:  # last, for making actors draws random numbers
                    checkpoints.restore_rng(self.restored.state["rng"])
                if self.saved is None:
                    self.run.mkdir(parents=True, exist_ok=True)
                    self.save(learner, pool)
                mirror = make_mirror(self.run, self.local)
                writer = stack.enter_context(MetricsWriter(self.run, learner.steps, mirror, LAYOUT))
                self._loop(learner, pool, writer, display, check)
            self._save_new(learner, pool)

    def _save_new(self, learner: "Learner | LearnerGroup", pool: Pool | None = None) -> Path | str | None:
        """Writes a checkpoint if something was learned since the last; returns where the newest is."""
        if self.saved_version != self.learner.version:
            self.save(learner, pool)
        return self.saved

    def _loop(
        self,
        learner: "Learner | LearnerGroup",
        pool: Pool,
        writer: MetricsWriter,
        display: Display,
        check: Callable[[], None],
    ) -> None:
        """Trains until the run's frames are reached; raises as `train` does, and what `check` does, at any time."""
        config, clock, saved = self.config, Clock(learner.steps), time.monotonic()
        pool.publish(learner.weights(), learner.version)
        while self.frames < config.frames:
            try:
                check()
                with clock.waiting():
                    unrolls = [self._get(pool, check) for _ in range(config.unrolls_per_update)]
                trajectory = concatenate_states([unroll.trajectory for unroll in unrolls])
                try:
                    metrics = learner.update(trajectory)
                except FloatingPointError as error:
                    raise FloatingPointError(f"{error} The batch is kept in {self._keep(trajectory)}") from error
                pool.publish(learner.weights(), learner.version)
                display.update(self._progress(clock.rate(learner.steps), pool.status()))
                if learner.version % config.log_every == 0 or self.frames >= config.frames:
                    metrics |= attention_mass(self.agent, trajectory) | self._row(clock, pool.status())
                    writer.write(learner.steps, metrics)
            except (FloatingPointError, Stopped):
                raise
            except Exception:  # what was learned is not lost with actors or learners, who are asked for nothing more
                try:
                    self._save_new(learner)
                except Exception:  # nor can they say how they stand: the optimizer is that of the last checkpoint
                    self._save_new(self.learner)
                raise
            if time.monotonic() - saved > config.checkpoint_seconds:
                self.save(learner, pool)
                saved = time.monotonic()

    def _get(self, pool: Pool, check: Callable[[], object]) -> Unroll:
        """The next unroll that is not too old to learn from. Episodes count in any case: they have been played.

        The version stands still meanwhile, so actors catch up and one will do.
        """
        while True:
            unroll = pool.get(check)
            self._remember(unroll.episodes)
            self.episodes += len(unroll.episodes)
            limit, lag = self.config.max_policy_lag, self.learner.version - int(unroll.trajectory.version.min())
            if limit is None or lag <= limit:
                return unroll
            self.dropped += 1

    def _remember(self, episodes: list[Episode]) -> None:
        """Keeps episodes by task, for the means that are shown; one without a name is of the first."""
        for episode in episodes:
            self.recent[episode.task or next(iter(self.recent))].append(episode)

    def _keep(self, trajectory: Trajectory) -> Path:
        """Writes a batch that cannot be learned from, so that the reason can be found."""
        tensors = {name: value for name, value in trajectory._asdict().items() if isinstance(value, Tensor)}
        for name in trajectory._asdict().keys() - tensors.keys():
            tensors |= {f"{name}/{index}": leaf for index, leaf in enumerate(leaves(getattr(trajectory, name)))}
        path = self.run / f"not-finite-{self.learner.version + 1}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return path

    def _scores(self) -> dict[str, float]:
        """Mean return over the last episodes of each task that has had any."""
        return {task: float(np.mean([e.score for e in episodes])) for task, episodes in self.recent.items() if episodes}

    def _progress(self, rate: float, pool: PoolStatus) -> Progress:
        scores = self._scores()
        return Progress(
            steps=self.learner.steps,
            frames=self.frames,
            total_frames=self.config.frames,
            frames_per_second=rate * self.action_repeat,
            score=float(np.mean(list(scores.values()))) if scores else float("nan"),
            correct=correct_fraction([episode for episodes in self.recent.values() for episode in episodes]),
            episodes=self.episodes,
            pool=pool,
            tasks=(len(scores), len(self.recent)),
        )

    def _row(self, clock: Clock, pool: PoolStatus) -> dict[str, float]:
        """What the loop itself measures; values that do not exist yet are left out."""
        progress = self._progress(clock.rate(self.learner.steps), pool)
        row = {
            "episode/return": progress.score,
            "episode/correct_choices": progress.correct,
            "episode/count": float(self.episodes),
            **{f"episode/{name}": value for name, value in mean_normalised(self._scores()).items()},
            "speed/steps_per_second": progress.frames_per_second / self.action_repeat,
            "speed/frames_per_second": progress.frames_per_second,
            "learner/frames": float(self.frames),
            "learner/idle_fraction": clock.idle_fraction(),
            "actors/alive": float(pool.alive),
            "actors/restarts": float(pool.restarts),
            "actors/unrolls_waiting": float(pool.waiting),
            "actors/unrolls_dropped": float(self.dropped),
        }
        if len(self.recent) > 1:
            row |= self._task_row()
        return {name: value for name, value in row.items() if not math.isnan(value)}

    def _task_row(self) -> dict[str, float]:
        """Of several tasks: how many have had an episode, and what `_row` says of all, of each."""
        scores = self._scores()
        row = {"tasks/seen": float(len(scores)), "tasks/count": float(len(self.recent))}
        for task, score in scores.items():
            measured = {"return": score, "correct_choices": correct_fraction(list(self.recent[task]))}
            row |= {f"{task}/{name}": value for name, value in (measured | mean_normalised({task: score})).items()}
        return row
