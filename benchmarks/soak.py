"""Endurance: training on Ray while actors, and learners if there are several, are killed again and again.

    python -m benchmarks.soak [--minutes 20] [--kill-seconds 20] [--learners 1] [--core compressive]

About every `kill-seconds`, and not before the last victim is back, one process gets SIGKILL. "failed" lists what does
not hold of `checks_of` and `growth_checks`; docs/faults.md explains them. Linux only.
"""

import faulthandler
import hashlib
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors import Unroll
from agent import Trajectory
from agent.core import leaves
from benchmarks.common import Process, family, local_ray, make_config, run, summary
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from training.config import RunConfig
from training.progress import Progress
from training.trainer import Trainer

SAMPLE_SECONDS = 10.0
VICTIMS = {"actor": "RemoteActor", "learner": "RemoteLearner"}
LEARNER_SHARE = 0.25
"""Fraction of the kills that hit learners, if there are several."""
PASSING = {"IDLE", "default_worker.py", "zombie"}
"""Kinds of processes that soon become others."""
GROWTH = {"memory_mb": (24.0, 0.1), "object_store_mb": (32.0, 0.0), "processes": (2.0, 0.0), "driver": (8.0, 0.1)}
"""Allowed growth of each group of series from the first to the last quarter: absolute, or relative to the first."""
SHORT = 3
"""A series of so many samples or fewer says nothing of growth."""
Series = list[tuple[float, float]]
"""Times in seconds, and values."""


@dataclass
class Options:
    minutes: float = 20.0
    kill_seconds: float = 20.0
    """Mean time between two kills; 0 kills nothing, which shows the growth of actors that are not replaced."""
    learners: int = 1
    core: str = "compressive"
    seed: int = 0
    patience: float = 120.0
    """Longest time without an update, and until a killed process is back, in seconds."""
    run: Path | None = None
    """Folder of the run, new or empty; by default a new one among the temporary files, which is kept."""


def digest(trajectory: Trajectory, step: slice) -> bytes:
    """A hash of the environments' output at some steps."""
    value = hashlib.blake2b(trajectory.actor_id.numpy().data, digest_size=16)
    for leaf in leaves(trajectory.env_output):
        value.update(leaf[:, step].contiguous().numpy().data)
    return value.digest()


@dataclass
class Ledger:
    """Counts what is learned from, independently of the program's own counters.

    seen: digests of the unrolls. ends: digest of the last environment output, by actor. repeated: unrolls that came
    before. torn: unrolls that neither begin where their actor's last one ended nor with new episodes. fresh: unrolls
    that begin with new episodes, except for the first of each actor. episodes_at: episodes by the steps after each
    update. wrong: updates after which the learner's steps were others.
    """

    seen: set[bytes] = field(default_factory=set)
    ends: dict[int, bytes] = field(default_factory=dict)
    episodes_at: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    episodes: int = 0
    repeated: int = 0
    torn: int = 0
    fresh: int = 0
    wrong: int = 0

    def enter(self, unroll: Unroll) -> None:
        """Counts one unroll."""
        trajectory = unroll.trajectory
        actor = int(trajectory.actor_id[0])
        name = digest(trajectory, slice(None))
        first = digest(trajectory, slice(1))
        last = digest(trajectory, slice(-1, None))
        self.repeated += name in self.seen
        self.seen.add(name)
        self.steps += int((~trajectory.reset[:, 1:]).sum())
        self.episodes += len(unroll.episodes)
        if self.ends.get(actor, first) != first:
            if trajectory.reset[:, 0].all():
                self.fresh += 1
            else:
                self.torn += 1
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
    """A trainer that enters its unrolls into a ledger, kills its own actors and learners, and takes samples.

    kills, restarts: by kind. pending: kind of the last victim, time of its death and restarts of its kind before,
    until it is back. series: samples by name. seen: all descendants so far. unrolls: those of the present batch.
    """

    def __init__(self, config: RunConfig, run: Run, options: Options) -> None:
        super().__init__(config, run, local=False)
        self.options = options
        self.random = random.Random(options.seed)
        self.ledger = Ledger()
        self.kills = dict.fromkeys(VICTIMS, 0)
        self.restarts = dict.fromkeys(VICTIMS, 0)
        self.pending: tuple[str, float, int] | None = None
        self.seconds_until_back: dict[str, list[float]] = {kind: [] for kind in VICTIMS}
        self.began = 0.0
        self.last = 0.0
        self.longest_gap = 0.0
        self.next_sample = 0.0
        self.next_kill = 0.0
        self.series: dict[str, Series] = defaultdict(list)
        self.seen: set[Any] = set()
        self.unrolls: list[Unroll] = []

    def _start_actors(self) -> None:
        """Also keeps the unrolls of the batch that is learned from."""
        super()._start_actors()
        feed: Any = self.feed
        load = feed._load

        def watched(unrolls: list[Unroll]) -> Callable[[], Any]:
            loaded = [unroll._replace(trajectory=unroll.load(), fetch=None) for unroll in unrolls]
            take = load(unrolls)

            def remember() -> Any:  # in the learner's thread: meanwhile the next batch is loaded
                self.unrolls = loaded
                return take()

            return remember

        feed._load = watched

    def _learn(self) -> dict[str, float] | None:
        """Enters the batch in the ledger once it is learned from: the end of the run may come just before that."""
        metrics = super()._learn()
        if metrics is not None:
            for unroll in self.unrolls:
                self.ledger.enter(unroll)
        return metrics

    def watch(self, progress: Progress) -> None:
        """Called after each update."""
        now = time.monotonic()
        status = self.feed.pool.status()
        faulthandler.dump_traceback_later(3 * self.options.patience, exit=True)  # if there is no update until then
        if not self.began:
            self.began = now
            self.last = now
            self.next_kill = now + self._pause()
        self.longest_gap = max(self.longest_gap, now - self.last)
        self.last = now
        self.restarts = {"actor": status.restarts, "learner": getattr(self.updater, "restarts", 0)}
        self.ledger.check_steps(self.learner.steps)

        if self.pending:
            kind, killed, before = self.pending
            complete = kind == "learner" or status.alive == self.config.actors.num_actors
            if complete and self.restarts[kind] > before:
                self.seconds_until_back[kind].append(now - killed)
                self.pending = None

        if now - self.began > 60 * self.options.minutes:
            return
        if now >= self.next_sample:
            self._sample(progress)
            self.next_sample = now + SAMPLE_SECONDS
        if self.options.kill_seconds and now >= self.next_kill and not self.pending:
            self._kill()
            self.next_kill = now + self._pause()

    def over(self) -> bool:
        """Whether the time is over, and a killed process is back or has taken too long."""
        late = time.monotonic() - self.began - 60 * self.options.minutes
        allowed = self.options.patience if self.pending else 0
        return bool(self.began) and late > allowed

    def _pause(self) -> float:
        return self.options.kill_seconds * self.random.uniform(0.5, 1.5)

    def _kill(self) -> None:
        learner = self.options.learners > 1 and self.random.random() < LEARNER_SHARE
        kind = "learner" if learner else "actor"
        if victims := [each.handle for each in family() if each.kind == VICTIMS[kind]]:
            delay = self.random.uniform(0, 1)  # so that it comes at any point of an update
            self.kills[kind] += 1
            self.pending = kind, time.monotonic() + delay, self.restarts[kind]
            threading.Timer(delay, self.random.choice(victims).kill).start()

    def _sample(self, progress: Progress) -> None:
        import ray

        members = family()
        self.seen |= {each.handle for each in members if each.kind != "driver"}
        by_kind: dict[str, list[Process]] = defaultdict(list)
        for each in members:
            by_kind[each.kind].append(each)
        (driver,) = by_kind["driver"]
        store = "object_store_memory"
        used = ray.cluster_resources().get(store, 0.0) - ray.available_resources().get(store, 0.0)
        values: dict[str, float] = {
            "processes": len(members),
            "driver/files": len(os.listdir("/proc/self/fd")),
            "driver/threads": driver.threads,
            "object_store_mb": used / 2**20,
        }
        for kind in by_kind.keys() - PASSING:
            values[f"memory_mb/{kind}"] = statistics.mean(each.memory for each in by_kind[kind]) / 2**20
        seconds = time.monotonic() - self.began
        for name, value in values.items():
            self.series[name].append((seconds, value))
        shown = [*progress.texts, f"{sum(self.kills.values())} kills", f"driver {driver.memory / 2**20:.0f} MB"]
        print(f"{seconds:6.0f} s  {'  '.join(shown)}", file=sys.stderr)


def quarters(series: Series) -> list[list[float]]:
    """The values of each quarter of the time; a quarter may be empty."""
    parts: list[list[float]] = [[], [], [], []]
    if not series:
        return parts
    begin, _ = series[0]
    end, _ = series[-1]
    for seconds, value in series:
        share = (seconds - begin) / max(end - begin, 1e-9)
        parts[min(3, int(4 * share))].append(value)
    return parts


def growth(series: Series) -> dict[str, float]:
    """Medians of the first and the last quarter."""
    first, _, _, last = quarters(series)
    return {
        "first_quarter": round(statistics.median(first or [0.0]), 1),
        "last_quarter": round(statistics.median(last or [0.0]), 1),
    }


def grows(name: str, figures: dict[str, float]) -> bool:
    """Whether a series grows by more than `GROWTH` allows."""
    absolute, share = GROWTH[name.partition("/")[0]]
    first = figures["first_quarter"]
    allowed = max(absolute, share * first)
    return figures["last_quarter"] - first > allowed


def count_running(processes: set[Any]) -> int:
    """How many of some processes have not ended."""
    return sum(process.is_running() for process in processes)


Checks = dict[str, tuple[Any, bool]]
"""By name, what was measured, and whether it is as it should be."""


def main(options: Options) -> dict[str, Any]:
    """Trains, and returns the figures."""
    fields: dict[str, Any] = {"frames": 10**12, "log_every": 5, "learners": options.learners, "seed": options.seed}
    config = make_config("cpu", options.core, **fields)
    folder = Run(options.run or tempfile.mkdtemp(prefix="soak-"))
    trainer = SoakTrainer(config, folder, options)
    with local_ray(config.actors.num_actors + options.learners):
        trainer.train(trainer.watch, trainer.over)
        faulthandler.cancel_dump_traceback_later()
    deadline = time.monotonic() + options.patience
    left = count_running(trainer.seen)
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left = count_running(trainer.seen)

    saved = checkpoints.load_latest(folder.path).step
    checks = checks_of(trainer, read_metrics(folder.path), saved, left) | growth_checks(trainer.series)
    seconds = trainer.last - trainer.began
    return {
        "run": str(folder),
        "core": options.core,
        "learners": options.learners,
        "minutes": round(seconds / 60, 1),
        "frames": trainer.frames,
        "frames_per_second": round(trainer.frames / seconds),
        "unrolls": len(trainer.ledger.seen),
        "seconds_until_back": {kind: summary(times) for kind, times in trainer.seconds_until_back.items()},
        **{name: value for name, (value, _) in checks.items()},
        "failed": [name for name, (_, holds) in checks.items() if not holds],
    }


def checks_of(trainer: SoakTrainer, rows: list[dict[str, Any]], saved: int, left: int) -> Checks:
    """The checks of a run, from its rows of metrics, the step of its last checkpoint and the processes it left."""
    options = trainer.options
    ledger = trainer.ledger
    kills = trainer.kills
    restarts = trainer.restarts
    steps = [row["step"] for row in rows]
    wrong = sum(ledger.disagrees(row, trainer.action_repeat) for row in rows)
    returns = [(row["time"], row["episode/return"]) for row in rows if "episode/return" in row]
    quarter = [round(statistics.mean(part or [0.0]), 2) for part in quarters(returns)]
    return {
        "kills": (kills, any(kills.values()) or not options.kill_seconds),
        "actors replaced": (restarts["actor"], restarts["actor"] <= kills["actor"]),
        "learners replaced": (restarts["learner"], restarts["learner"] <= kills["learner"]),
        "victims not back": (int(bool(trainer.pending)), not trainer.pending),
        "seconds between updates": (round(trainer.longest_gap, 1), trainer.longest_gap <= options.patience),
        "unrolls learned twice": (ledger.repeated, not ledger.repeated),
        "unrolls out of order": (ledger.torn, not ledger.torn),
        "unrolls with fresh starts": (ledger.fresh, ledger.fresh <= restarts["actor"]),
        "updates with other steps": (ledger.wrong, not ledger.wrong and trainer.learner.steps == ledger.steps),
        "rows of metrics": (len(rows), not wrong and steps == sorted(set(steps))),
        "steps of the last checkpoint": (saved, saved == ledger.steps),
        "processes left": (left, not left),
        "return by quarter": (quarter, quarter[3] > quarter[0] and quarter[3] > 0.95 * max(quarter[1:3])),
    }


def growth_checks(series: dict[str, Series]) -> Checks:
    """The growth of each series that is long enough.

    Others are processes that were there for a moment. That of the driver has a value of every sample, so it is short
    only if the run was.
    """
    checks: Checks = {}
    for name, values in sorted(series.items()):
        if len(values) > SHORT:
            figures = growth(values)
            checks[f"growth of {name}"] = figures, not grows(name, figures)
    samples = len(series.get("memory_mb/driver", ()))
    if samples <= SHORT:
        checks["growth: too short"] = samples, False
    return checks


if __name__ == "__main__":
    run(main, Options)
