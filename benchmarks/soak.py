"""Endurance: training on Ray while actors, and learners if there are several, are killed over and over.

    python benchmarks/soak.py [--minutes 20] [--kill-seconds 20] [--learners 1] [--core compressive]

Every `kill-seconds` or so one process gets SIGKILL. Four things must hold, or "failed" says which do not and the exit
status is 1:

* No hang: never more than `patience` seconds between two updates, and every actor is back at the end.
* Every frame counts exactly once. A ledger of its own takes the digest of each unroll that is learned from: none comes
  twice, each begins where the last one of its actor ended or else afresh (at most as often as actors were replaced);
  their steps are those of the learner after every single update, of every row of metrics and of the last checkpoint.
* No leak: medians of the last quarter of the time against the first, of the memory of each kind of process, the number
  of processes, the files and threads of this one, and the object store. Memory is what a process has for itself
  (resident and anonymous); what it shares is the object store's.
* It learns: the return of the last quarter against those before.

Progress goes to standard error, one JSON object to standard output. Linux only: it reads /proc.
"""

import dataclasses
import faulthandler
import hashlib
import json
import logging
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from rich.console import Console

from actors import Pool, Unroll
from agent import Trajectory
from agent.core import leaves
from agent.trajectory import loss_mask
from commands import launch
from envs import prepare
from learner import checkpoints
from learner.metrics import read_metrics
from training.config import RunConfig
from training.impala import Progress, StopRequest, Trainer
from training.presets import make_preset

SAMPLE_SECONDS = 10.0
VICTIMS = {"actor": "RemoteActor", "learner": "RemoteLearner"}
LEARNER_SHARE = 0.25
"""Of the kills, where there are several learners."""
PATIENT_KILLS = 4
"""Kills without a recovery after which the next ones are left out: the program gives up where six in a row hit one."""
PASSING = {"IDLE", "default_worker.py", "zombie"}
"""Kinds of processes that are there now and then, and soon become others."""
GROWTH = {
    "memory_mb": (24.0, 0.1),
    "object_store_mb": (32.0, 0.0),
    "shared_memory_mb": (128.0, 0.0),
    "processes": (2.0, 0.0),
    "driver": (8.0, 0.1),
}
"""What each group of series may grow by from the first to the last quarter: so much, or this share of what it was."""


@dataclass
class Options:
    """Trains while processes are killed."""

    minutes: float = 20.0
    kill_seconds: float = 20.0
    """Mean time between two kills; 0 to kill nothing, which shows what actors themselves grow by."""
    learners: int = 1
    core: str = "compressive"
    seed: int = 0
    patience: float = 120.0
    """Longest time without an update, and for the last actors to be back, in seconds."""
    run: Path | None = None
    """Folder of the run, new or empty; a temporary one if not given."""


class Process(NamedTuple):
    """pid, started: together its identity. kind: what it is. memory: bytes of its own. threads: how many."""

    pid: int
    started: int
    kind: str
    memory: int
    threads: int


def kind_of(words: list[str]) -> str:
    """A short name for the words of a command line: raylet, dashboard.py, RemoteActor; zombies have none."""
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").partition(".")[0].strip()
    scripts = [word for word in words if word.endswith(".py")]
    return Path((scripts or words)[0]).name or "zombie"


def status(process: Path) -> dict[str, str]:
    """The fields of a process's status, given its folder in /proc."""
    return dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)


def own_memory(fields: dict[str, str]) -> int:
    """Bytes that a process has for itself: resident and anonymous."""
    return 1024 * int(fields.get("RssAnon", "0").split()[0])  # zombies have none


def family(root: int) -> list[Process]:
    """A process and all its descendants, zombies included."""
    found: dict[int, Process] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = status(entry)
            started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
            kind = kind_of((entry / "cmdline").read_text().split("\0"))
        except (OSError, ValueError):
            continue  # gone meanwhile
        pid = int(entry.name)
        kind = "driver" if pid == root else kind
        found[pid] = Process(pid, started, kind, own_memory(fields), int(fields["Threads"]))
        parents[pid] = int(fields["PPid"])
    members = {root}
    while more := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= more
    return [found[pid] for pid in members if pid in found]


def shared_memory(raylets: Iterable[int]) -> int:
    """Bytes of shared memory that raylets hold: what the object store has used at most."""
    blocks = 0
    for pid in raylets:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                if os.readlink(entry).startswith("/dev/shm/"):
                    blocks += entry.stat().st_blocks
            except OSError:
                continue
    return 512 * blocks


def digest(arrays: Iterable[torch.Tensor]) -> bytes:
    """One for all the bytes."""
    value = hashlib.blake2b(digest_size=16)
    for array in arrays:
        value.update(array.contiguous().numpy().data)
    return value.digest()


def moment(trajectory: Trajectory, step: int) -> bytes:
    """Digest of what the environments say at a step."""
    fields = (trajectory.observation, trajectory.last_action, trajectory.reward, trajectory.discount, trajectory.reset)
    return digest(leaf[:, step] for leaf in leaves(fields))


@dataclass
class Ledger:
    """Counts what is learned from, apart from the program's own counters."""

    seen: set[bytes] = field(default_factory=set)
    ends: dict[int, bytes] = field(default_factory=dict)
    """Digest of the last moment of each actor's last unroll."""
    steps: int = 0
    episodes: int = 0
    repeated: int = 0
    """Unrolls that came before."""
    torn: int = 0
    """Unrolls that neither go on where their actor's last one ended nor begin afresh."""
    fresh: int = 0
    """Unrolls that begin afresh, the first of each actor left out."""
    wrong: int = 0
    """Updates after which the learner's steps were not those of the unrolls so far."""
    episodes_at: dict[int, int] = field(default_factory=dict)
    """Episodes by the steps after each update."""

    def enter(self, unroll: Unroll) -> bool:
        """Takes one unroll; returns whether it is the first of an actor that took another's place."""
        trajectory = unroll.trajectory
        actor = int(trajectory.actor_id[0])
        name = digest(leaves((trajectory.actor_id, trajectory.observation, trajectory.reward, trajectory.action)))
        self.repeated += name in self.seen
        self.seen.add(name)
        self.steps += int(loss_mask(trajectory).sum())
        self.episodes += len(unroll.episodes)
        first, goes_on = actor not in self.ends, self.ends.get(actor) == moment(trajectory, 0)
        self.ends[actor] = moment(trajectory, -1)
        afresh = not goes_on and bool(trajectory.reset[:, 0].all())
        self.torn += not goes_on and not afresh
        self.fresh += afresh and not first
        return afresh and not first

    def updated(self, steps: int) -> None:
        """Takes the learner's steps after an update."""
        self.wrong += steps != self.steps
        self.episodes_at[self.steps] = self.episodes

    def disagrees(self, row: dict[str, Any], action_repeat: int) -> bool:
        """Whether a row of metrics is not of a moment in this ledger."""
        episodes = self.episodes_at.get(row["step"])
        return row["learner/frames"] != row["step"] * action_repeat or row["episode/count"] != episodes


class Kill(NamedTuple):
    """time: when. kind: actor or learner. restarts: how often learners had been started again then."""

    time: float
    kind: str
    restarts: int


class SoakTrainer(Trainer):
    """A trainer that keeps the ledger, and times: when updates were made and how long what was killed took to be back.

    It is its own display.
    """

    def __init__(self, config: RunConfig, run: Path, options: Options) -> None:
        super().__init__(config, run, local=False)
        self.options, self.stop = options, StopRequest()
        self.ledger = Ledger()
        self.kills: list[Kill] = []
        self.unsettled: list[Kill] = []
        self.back: dict[str, list[float]] = {kind: [] for kind in VICTIMS}
        self.interrupted = 0  # kills of what was not yet back from the one before
        self.begin, self.last_update, self.longest_gap = 0.0, 0.0, 0.0
        self.arrivals: dict[int, float] = {}
        self.complete_since: float | None = None
        self.memory = 0  # of this process after an update, when its activations are gone
        self.last: Progress | None = None
        self.group: Any = None

    @property
    def learner_restarts(self) -> int:
        """Times that several learners were started again."""
        return getattr(self.group, "restarts", 0)

    def killed(self, kind: str) -> None:
        """Notes a kill that is about to happen."""
        kill = Kill(time.monotonic(), kind, self.learner_restarts)
        self.kills.append(kill)
        self.unsettled.append(kill)

    def save(self, learner: Any, pool: Pool | None = None) -> None:
        self.group = learner
        super().save(learner, pool)

    def _get(self, pool: Pool, check: Callable[[], object]) -> Unroll:
        unroll, now = super()._get(pool, check), time.monotonic()
        actor = int(unroll.trajectory.actor_id[0])
        if self.ledger.enter(unroll):
            # Which actor was hit shows only now: it had gone silent when the kill came.
            kills = [kill for kill in self.unsettled if kill.kind == "actor"]
            if kills:
                self._settle(min(kills, key=lambda kill: abs(kill.time - self.arrivals[actor])), now)
        self.arrivals[actor] = now
        return unroll

    def update(self, progress: Progress) -> None:
        """See `training.impala.Display`."""
        now = time.monotonic()
        self.begin = self.begin or now
        self.longest_gap = max(self.longest_gap, now - (self.last_update or now))
        self.last_update, self.last, self.memory = now, progress, own_memory(status(Path("/proc/self")))
        self.ledger.updated(progress.steps)
        for kill in [kill for kill in self.unsettled if kill.kind == "learner"]:
            if self.learner_restarts > kill.restarts:
                self._settle(kill, now)
        # Each actor that is up again has delivered: what is unsettled then was killed once more before it could.
        self.complete_since = (self.complete_since or now) if self.everyone_is_back() else None
        if self.complete_since and min(self.arrivals.values()) > self.complete_since:
            waiting = [kill for kill in self.unsettled if kill.kind == "actor"]
            self.interrupted += len(waiting)
            for kill in waiting:
                self.unsettled.remove(kill)
        end = self.begin + 60 * self.options.minutes
        if now > end and (self.everyone_is_back() or now > end + self.options.patience):
            self.stop.signal = signal.SIGINT

    def everyone_is_back(self) -> bool:
        """Whether all kills of actors were noticed and their successors act."""
        pool = self.last.pool if self.last else None
        kills = sum(kill.kind == "actor" for kill in self.kills)
        return pool is not None and pool.restarts >= kills and pool.alive == self.config.actors.num_actors

    def _settle(self, kill: Kill, now: float) -> None:
        self.unsettled.remove(kill)
        self.back[kill.kind].append(now - kill.time)


class Watch(threading.Thread):
    """Kills and takes samples, from the first update on, beside the training; gives up on one that hangs."""

    def __init__(self, trainer: SoakTrainer) -> None:
        super().__init__(daemon=True)
        self.trainer, self.options = trainer, trainer.options
        self.random = random.Random(trainer.options.seed)
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.seen: set[tuple[int, int]] = set()
        self.finished = threading.Event()

    def run(self) -> None:
        trainer, begin = self.trainer, time.monotonic()
        next_sample, next_kill = 0.0, 0.0
        while not self.finished.wait(0.1):
            now = time.monotonic()
            if now - (trainer.last_update or begin) > 3 * self.options.patience:
                faulthandler.dump_traceback()
                print(json.dumps({"benchmark": "soak", "failed": ["hangs"]}))
                sys.stdout.flush()
                os._exit(1)
            if not trainer.begin or now > trainer.begin + 60 * self.options.minutes:
                continue
            next_kill = next_kill or now + self._pause()
            if now >= next_sample:
                self._sample(now - trainer.begin)
                next_sample = now + SAMPLE_SECONDS
            if now >= next_kill:
                self._kill()
                next_kill = now + self._pause()

    def _pause(self) -> float:
        seconds = self.options.kill_seconds
        return self.random.uniform(0.5 * seconds, 1.5 * seconds) if seconds else math.inf

    def _kill(self) -> None:
        several = self.options.learners > 1
        kind = "learner" if several and self.random.random() < LEARNER_SHARE else "actor"
        victims = [process.pid for process in family(os.getpid()) if process.kind == VICTIMS[kind]]
        if victims and len(self.trainer.unsettled) < PATIENT_KILLS:
            self.trainer.killed(kind)
            os.kill(self.random.choice(victims), signal.SIGKILL)

    def _sample(self, seconds: float) -> None:
        import ray

        processes = family(os.getpid())
        self.seen |= {(process.pid, process.started) for process in processes if process.kind != "driver"}
        raylets = [process.pid for process in processes if process.kind == "raylet"]
        name = "object_store_memory"
        used = ray.cluster_resources().get(name, 0.0) - ray.available_resources().get(name, 0.0)
        values: dict[str, float] = {
            "processes": len(processes),
            "driver/files": len(os.listdir("/proc/self/fd")),
            "driver/threads": next(process.threads for process in processes if process.kind == "driver"),
            "object_store_mb": used / 2**20,
            "shared_memory_mb": shared_memory(raylets) / 2**20,
        }
        for kind in {process.kind for process in processes} - PASSING:
            memory = [process.memory for process in processes if process.kind == kind]
            values[f"memory_mb/{kind}"] = statistics.mean(memory) / 2**20
        values["memory_mb/driver"] = self.trainer.memory / 2**20
        for each, value in values.items():
            self.series.setdefault(each, []).append((seconds, value))
        if progress := self.trainer.last:
            print(
                f"{seconds:6.0f} s  {progress.frames / 1e6:.2f} M frames  return {progress.score:.2f}  "
                f"{len(self.trainer.kills)} kills  {progress.pool.alive} actors  {len(processes)} processes  "
                f"driver {values['memory_mb/driver']:.0f} MB",
                file=sys.stderr,
            )


def quarters(series: list[tuple[float, float]]) -> list[list[float]]:
    """The values of each quarter of the time, of which some are empty where values are few."""
    parts: list[list[float]] = [[], [], [], []]
    begin, end = (series[0][0], series[-1][0]) if series else (0.0, 0.0)
    for seconds, value in series:
        parts[min(3, int(4 * (seconds - begin) / max(end - begin, 1e-9)))].append(value)
    return parts


def growth(series: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of the first and the last quarter, and the slope of all of it by least squares."""
    parts = quarters(series)
    times, values = np.array(series).T
    slope = np.polyfit(times / 3600, values, 1)[0] if len(series) > 1 else 0.0
    first, last = statistics.median(parts[0]), statistics.median(parts[3])
    return {"first_quarter": round(first, 1), "last_quarter": round(last, 1), "slope_per_hour": round(float(slope), 1)}


def grows(name: str, figures: dict[str, float]) -> bool:
    """Whether a series grows by more than `GROWTH` allows."""
    absolute, share = GROWTH[name.partition("/")[0]]
    first, last = figures["first_quarter"], figures["last_quarter"]
    return last - first > max(absolute, share * first)


def alive(identity: tuple[int, int]) -> bool:
    """Whether a process is still there."""
    pid, started = identity
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == started


def summary(times: list[float]) -> dict[str, float]:
    """Number, median and maximum."""
    return {
        "times": len(times),
        "median": round(statistics.median(times), 1),
        "max": round(max(times), 1),
    }


def soak(options: Options, run: Path) -> dict[str, Any]:
    """Trains in `run`, and returns the figures."""
    torch.set_num_threads(1)
    config = make_preset("cpu", options.core)
    config = dataclasses.replace(config, frames=10**12, log_every=5, learners=options.learners, seed=options.seed)
    prepare(config.env)
    trainer = SoakTrainer(config, run, options)
    watch = Watch(trainer)
    with launch.ray_cluster(launch.Options(**vars(config), core=options.core), trainer, Console(stderr=True)):
        watch.start()
        try:
            trainer.train(trainer, trainer.stop)
        finally:
            watch.finished.set()
            watch.join()
    deadline = time.monotonic() + options.patience
    while (left := {identity for identity in watch.seen if alive(identity)}) and time.monotonic() < deadline:
        time.sleep(0.5)

    ledger, pool, rows = trainer.ledger, trainer.last.pool, read_metrics(run)  # type: ignore[union-attr]
    kills = {kind: sum(kill.kind == kind for kill in trainer.kills) for kind in VICTIMS}
    steps = [row["step"] for row in rows]
    grown = {name: growth(series) for name, series in sorted(watch.series.items()) if len(series) > 3}
    returns = quarters([(row["time"], row["episode/return"]) for row in rows if "episode/return" in row])
    by_quarter = [statistics.mean(part) if part else 0.0 for part in returns]  # 0: no episode ended
    checks = {
        "nobody was killed": bool(trainer.kills) or not options.kill_seconds,
        "no update for too long": trainer.longest_gap <= options.patience,
        "not everyone is back": trainer.everyone_is_back(),
        "actors died that nobody killed": pool.restarts <= kills["actor"],
        "unrolls learned twice": ledger.repeated == 0,
        "unrolls out of order": ledger.torn == 0,
        "more fresh starts than replaced actors": ledger.fresh <= pool.restarts,
        "steps of the learner": ledger.wrong == 0 and trainer.learner.steps == ledger.steps,
        "order of the rows of metrics": steps == sorted(set(steps)),
        "rows of metrics": not any(ledger.disagrees(row, trainer.action_repeat) for row in rows),
        "last checkpoint": checkpoints.load_latest(run).step == ledger.steps,
        "processes left behind": not left,
        "return does not rise": by_quarter[3] > by_quarter[0] and by_quarter[3] > 0.95 * max(by_quarter[1:3]),
        **{f"{name} grows": not grows(name, figures) for name, figures in grown.items()},
    }
    seconds = trainer.last_update - trainer.begin
    return {
        "benchmark": "soak",
        "core": options.core,
        "learners": options.learners,
        "cores": os.cpu_count(),
        "minutes": round(seconds / 60, 1),
        "frames": trainer.frames,
        "frames_per_second": round(trainer.frames / seconds),
        "updates": trainer.learner.version,
        "kills": kills,
        "restarts": {"actor": pool.restarts, "learner": trainer.learner_restarts},
        "seconds_until_back": {kind: summary(times) for kind, times in trainer.back.items() if times},
        "killed_before_back": trainer.interrupted + len(trainer.unsettled),
        "longest_gap_seconds": round(trainer.longest_gap, 1),
        "unrolls": len(ledger.seen),
        "unrolls_learned_twice": ledger.repeated,
        "unrolls_out_of_order": ledger.torn,
        "fresh_starts": ledger.fresh,
        "steps": {"of_unrolls": ledger.steps, "of_learner": trainer.learner.steps, "updates_that_differ": ledger.wrong},
        "growth": grown,
        "return_by_quarter": [round(value, 2) for value in by_quarter],
        "processes_left": len(left),
        "failed": [name for name, holds in checks.items() if not holds],
    }


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if options.run:
        return soak(options, options.run)
    with tempfile.TemporaryDirectory() as folder:
        return soak(options, Path(folder))


if __name__ == "__main__":
    figures = main(tyro.cli(Options))
    json.dump(figures, sys.stdout, indent=2)
    print()
    sys.exit(bool(figures["failed"]))
