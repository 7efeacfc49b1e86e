"""Endurance: training on Ray while actors, and learners if there are several, are killed again and again.

    python -m benchmarks.soak [--minutes 20] [--kill-seconds 20] [--learners 1] [--core compressive]

About every `kill-seconds` one process gets SIGKILL. "failed" lists what does not hold of the following:

* No hang: at most `patience` seconds between two updates, and all processes are back at the end.
* Every frame counts exactly once. A ledger takes the digest of each unroll: none is repeated, and each begins where the
  last one of its actor ended, or with new episodes (at most as often as actors were replaced). Their steps are those of
  the learner after every single update, of every row of metrics and of the last checkpoint.
* No leak, from the first to the last quarter of the time: medians of the memory of each kind of process, of the number
  of processes, of the files and threads of this one, and of the object store. Memory is that which a process does not
  share; the object store is shared.
* It learns: the return of the last quarter against those before.

Linux only: it reads /proc.
"""

import faulthandler
import hashlib
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from actors import Unroll
from agent import Trajectory
from agent.core import leaves
from benchmarks.common import family, local_ray, make_config, process, processes, run, summary
from learner import checkpoints
from learner.metrics import read_metrics
from training.config import RunConfig
from training.impala import Trainer
from training.progress import Progress
from training.run import Run

SAMPLE_SECONDS = 10.0
VICTIMS = {"actor": "RemoteActor", "learner": "RemoteLearner"}
LEARNER_SHARE = 0.25
"""Fraction of the kills that hit learners, if there are several."""
MOST_PENDING = 4
"""No more kills while so many have not recovered: the program gives up if six in a row hit one actor."""
PASSING = {"IDLE", "default_worker.py", "zombie"}
"""Kinds of processes that soon become others."""
GROWTH = {
    "memory_mb": (24.0, 0.1),
    "object_store_mb": (32.0, 0.0),
    "processes": (2.0, 0.0),
    "driver": (8.0, 0.1),
}
"""Allowed growth of each group of series from the first to the last quarter: absolute, or relative to the first."""


@dataclass
class Options:
    minutes: float = 20.0
    kill_seconds: float = 20.0
    """Mean time between two kills; 0 kills nothing, which shows the growth of actors that are not replaced."""
    learners: int = 1
    core: str = "compressive"
    seed: int = 0
    patience: float = 120.0
    """Longest time without an update, and until the last killed processes are back, in seconds."""
    run: Path | None = None
    """Folder of the run, new or empty; a temporary one if not given."""


def digest(trajectory: Trajectory, step: slice) -> bytes:
    """A hash of the environments' output at some steps."""
    value = hashlib.blake2b(trajectory.actor_id.numpy().data, digest_size=16)
    for leaf in leaves(trajectory[: Trajectory._fields.index("action")]):
        value.update(leaf[:, step].contiguous().numpy().data)
    return value.digest()


@dataclass
class Ledger:
    """Counts what is learned from, independently of the program's own counters.

    seen: digests of the unrolls. ends: digest of the last environment output, by actor. repeated: unrolls that came
    before. torn: unrolls that neither begin where their actor's last one ended nor with new episodes. fresh: unrolls
    that begin with new episodes, except for the first of each actor. wrong: updates after which the learner's steps
    were not those of the unrolls so far. episodes_at: episodes by the steps after each update.
    """

    seen: set[bytes] = field(default_factory=set)
    ends: dict[int, bytes] = field(default_factory=dict)
    steps: int = 0
    episodes: int = 0
    repeated: int = 0
    torn: int = 0
    fresh: int = 0
    wrong: int = 0
    episodes_at: dict[int, int] = field(default_factory=dict)

    def enter(self, unroll: Unroll) -> None:
        """Counts one unroll."""
        trajectory = unroll.trajectory
        actor = int(trajectory.actor_id[0])
        name, first, last = (digest(trajectory, slice(*steps)) for steps in ((None,), (1,), (-1, None)))
        self.repeated += name in self.seen
        self.seen.add(name)
        self.steps += int((~trajectory.reset[:, 1:]).sum())
        self.episodes += len(unroll.episodes)
        if self.ends.get(actor, first) != first:
            fresh = bool(trajectory.reset[:, 0].all())
            self.fresh, self.torn = self.fresh + fresh, self.torn + (not fresh)
        self.ends[actor] = last

    def check_steps(self, steps: int) -> None:
        """Compares with the learner's steps after an update."""
        self.wrong += steps != self.steps
        self.episodes_at[self.steps] = self.episodes

    def disagrees(self, row: dict[str, Any], action_repeat: int) -> bool:
        """Whether a row of metrics does not match the ledger after that update."""
        episodes = self.episodes_at.get(row["step"])
        return row["learner/frames"] != row["step"] * action_repeat or row["episode/count"] != episodes


class SoakTrainer(Trainer):
    """A trainer that enters every unroll that it learns from into a ledger."""

    def __init__(self, config: RunConfig, run: Run) -> None:
        super().__init__(config, run, local=False)
        self.ledger = Ledger()

    def _next_unroll(self) -> Unroll:
        unroll = super()._next_unroll()
        self.ledger.enter(unroll)
        return unroll


class Kill(NamedTuple):
    """A kill at a time. restarts: those of its kind at which it has been noticed."""

    kind: str
    time: float
    restarts: int


class Watch(threading.Thread):
    """Kills processes and takes samples beside the training, from the first update on."""

    def __init__(self, trainer: SoakTrainer, options: Options) -> None:
        super().__init__(daemon=True)
        self.trainer, self.options = trainer, options
        self.random = random.Random(options.seed)
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.restarts: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.pending: list[Kill] = []
        self.seconds_until_back: dict[str, list[float]] = {kind: [] for kind in VICTIMS}
        self.begin = self.last = self.longest_gap = 0.0
        self.memory = 0  # of this process after an update, when activations are freed
        self.texts: tuple[str, ...] = ()
        self.series: dict[str, list[tuple[float, float]]] = {}
        self.seen: set[tuple[int, int]] = set()
        self.finished = threading.Event()

    def show(self, progress: Progress) -> None:
        """Called by the trainer after each update."""
        now, status, own = time.monotonic(), self.trainer.pool.status(), process(Path(f"/proc/{os.getpid()}"))  # type: ignore[union-attr]
        assert own
        faulthandler.dump_traceback_later(3 * self.options.patience, exit=True)  # if there is no update until then
        self.begin = self.begin or now
        self.longest_gap = max(self.longest_gap, now - (self.last or now))
        self.last, self.texts, self.memory = now, progress.texts, own.memory
        self.restarts = {"actor": status.restarts, "learner": getattr(self.trainer.updater, "restarts", 0)}
        self.trainer.ledger.check_steps(self.trainer.learner.steps)
        for kill in list(self.pending):
            complete = kill.kind == "learner" or status.alive == self.trainer.config.actors.num_actors
            if complete and self.restarts[kill.kind] >= kill.restarts:
                self.pending.remove(kill)
                self.seconds_until_back[kill.kind].append(now - kill.time)

    @property
    def over(self) -> bool:
        """Whether the time is over, and all killed processes are back or have taken too long."""
        late = time.monotonic() - self.begin - 60 * self.options.minutes
        return bool(self.begin) and late > (self.options.patience if self.pending else 0)

    def run(self) -> None:
        next_sample, next_kill = 0.0, self._pause()
        while not self.finished.wait(0.1):
            seconds = time.monotonic() - self.begin
            if not self.begin or seconds > 60 * self.options.minutes:
                continue
            if seconds >= next_sample:
                self._sample(seconds)
                next_sample = seconds + SAMPLE_SECONDS
            if seconds >= next_kill:
                self._kill()
                next_kill = seconds + self._pause()

    def _pause(self) -> float:
        return self.options.kill_seconds * self.random.uniform(0.5, 1.5) or math.inf

    def _kill(self) -> None:
        learner = self.options.learners > 1 and self.random.random() < LEARNER_SHARE
        kind = "learner" if learner else "actor"
        victims = [each.pid for each in family(os.getpid()) if each.kind == VICTIMS[kind]]
        if victims and len(self.pending) < MOST_PENDING:
            self.kills[kind] += 1
            noticed = self.restarts[kind] + 1 if learner else self.kills[kind]
            self.pending.append(Kill(kind, time.monotonic(), noticed))
            os.kill(self.random.choice(victims), signal.SIGKILL)

    def _sample(self, seconds: float) -> None:
        import ray

        members = family(os.getpid())
        self.seen |= {(each.pid, each.started) for each in members if each.kind != "driver"}
        store = "object_store_memory"
        used = ray.cluster_resources().get(store, 0.0) - ray.available_resources().get(store, 0.0)
        values: dict[str, float] = {
            "processes": len(members),
            "driver/files": len(os.listdir("/proc/self/fd")),
            "driver/threads": next(each.threads for each in members if each.kind == "driver"),
            "object_store_mb": used / 2**20,
        }
        for kind in {each.kind for each in members} - PASSING:
            values[f"memory_mb/{kind}"] = statistics.mean(e.memory for e in members if e.kind == kind) / 2**20
        values["memory_mb/driver"] = self.memory / 2**20
        for name, value in values.items():
            self.series.setdefault(name, []).append((seconds, value))
        shown = [*self.texts, f"{sum(self.kills.values())} kills", f"driver {values['memory_mb/driver']:.0f} MB"]
        print(f"{seconds:6.0f} s  {'  '.join(shown)}", file=sys.stderr)


def quarters(series: list[tuple[float, float]]) -> list[list[float]]:
    """The values of each quarter of the time; a quarter may be empty."""
    parts: list[list[float]] = [[], [], [], []]
    for seconds, value in series:
        parts[min(3, int(4 * (seconds - series[0][0]) / max(series[-1][0] - series[0][0], 1e-9)))].append(value)
    return parts


def growth(series: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of the first and the last quarter."""
    first, *_, last = (round(statistics.median(part), 1) if part else 0.0 for part in quarters(series))
    return {"first_quarter": first, "last_quarter": last}


def grows(name: str, figures: dict[str, float]) -> bool:
    """Whether a series grows by more than `GROWTH` allows."""
    absolute, share = GROWTH[name.partition("/")[0]]
    first, last = figures["first_quarter"], figures["last_quarter"]
    return last - first > max(absolute, share * first)


def soak(options: Options, folder: Path) -> dict[str, Any]:
    """Trains in a folder, and returns the figures."""
    fields: dict[str, Any] = {"frames": 10**12, "log_every": 5, "learners": options.learners, "seed": options.seed}
    config = make_config("cpu", options.core, **fields)
    trainer = SoakTrainer(config, Run(folder))
    watch, ledger, learner = Watch(trainer, options), trainer.ledger, trainer.learner
    with local_ray(config.actors.num_actors + options.learners):
        watch.start()
        try:
            trainer.train(watch.show, lambda: watch.over)
        finally:
            faulthandler.cancel_dump_traceback_later()
            watch.finished.set()
            watch.join()
    deadline, left = time.monotonic() + options.patience, watch.seen
    while left and time.monotonic() < deadline:
        left = watch.seen & {(each.pid, each.started) for each in processes().values()}
        time.sleep(0.5)

    rows = read_metrics(folder)
    steps = [row["step"] for row in rows]
    grown = {name: growth(series) for name, series in sorted(watch.series.items()) if len(series) > 3}
    returns = quarters([(row["time"], row["episode/return"]) for row in rows if "episode/return" in row])
    by_quarter = [statistics.mean(part) if part else 0.0 for part in returns]
    kills, restarts, seconds = watch.kills, watch.restarts, watch.last - watch.begin
    checks = {
        "nothing was killed": any(kills.values()) or not options.kill_seconds,
        "too long without an update": watch.longest_gap <= options.patience,
        "killed processes are not back": not watch.pending,
        "actors died that were not killed": restarts["actor"] <= kills["actor"],
        "unrolls learned twice": ledger.repeated == 0,
        "unrolls out of order": ledger.torn == 0,
        "more fresh starts than replaced actors": ledger.fresh <= restarts["actor"],
        "steps of the learner": ledger.wrong == 0 and learner.steps == ledger.steps,
        "order of the rows of metrics": steps == sorted(set(steps)),
        "rows of metrics": not any(ledger.disagrees(row, trainer.action_repeat) for row in rows),
        "last checkpoint": checkpoints.load_latest(folder).step == ledger.steps,
        "processes left at the end": not left,
        "return does not rise": by_quarter[3] > by_quarter[0] and by_quarter[3] > 0.95 * max(by_quarter[1:3]),
        **{f"{name} grows": not grows(name, figures) for name, figures in grown.items()},
    }
    return {
        "core": options.core,
        "learners": options.learners,
        "minutes": round(seconds / 60, 1),
        "frames": trainer.frames,
        "frames_per_second": round(trainer.frames / seconds),
        "updates": learner.version,
        "kills": kills,
        "restarts": restarts,
        "seconds_until_back": {kind: summary(times) for kind, times in watch.seconds_until_back.items()},
        "longest_gap_seconds": round(watch.longest_gap, 1),
        "unrolls": {"number": len(ledger.seen), "learned_twice": ledger.repeated, "out_of_order": ledger.torn},
        "fresh_starts": ledger.fresh,
        "steps": {"of_unrolls": ledger.steps, "of_learner": learner.steps, "updates_that_differ": ledger.wrong},
        "growth": grown,
        "return_by_quarter": [round(value, 2) for value in by_quarter],
        "processes_left": len(left),
        "failed": [name for name, holds in checks.items() if not holds],
    }


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    with tempfile.TemporaryDirectory() as folder:
        return soak(options, options.run or Path(folder))


if __name__ == "__main__":
    run(main, Options)
