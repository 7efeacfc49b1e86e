"""What the benchmarks share: command line and output, alternatives measured in turns, Ray, and processes in /proc."""

import contextlib
import dataclasses
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from rich.console import Console

from actors import Pool
from agent import Trajectory
from agent.core import concatenate_states
from envs import prepare
from training.cluster import start_ray
from training.config import RunConfig
from training.factories import make_actor
from training.presets import make_preset


def run(measure: Callable[[Any], dict[str, Any]], options: Any) -> None:
    """Parses the options, measures, and prints one JSON object; the exit status is 1 if its "failed" is not empty.

    Standard output becomes standard error while it measures, because Ray prints there.
    """
    parsed = tyro.cli(options, description=sys.modules["__main__"].__doc__)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):
        figures = {"benchmark": Path(sys.argv[0]).stem, "cores": os.cpu_count(), **measure(parsed)}
    print(json.dumps(figures, indent=2))
    sys.exit(bool(figures.get("failed")))


def rate(work: Callable[[], float], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """What `work` returns, per second of a clock; it is called once at least, and until the time is over."""
    done, elapsed, begin = 0.0, 0.0, clock()
    while not done or elapsed < seconds:
        done += work()
        elapsed = clock() - begin
    return done / elapsed


def in_turns(
    works: Mapping[str, Callable[[], float]],
    seconds: float,
    turns: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 1,
) -> dict[str, float]:
    """The median rate of each piece of work.

    They take turns, so that other load on the machine affects all of them alike.

    Args:
        works: functions that return the amount of work that a call did.
        seconds: time for each of them, over all turns.
        turns: number of measurements of each.
        clock: measures the time.
        warm_up: calls of each before that.
    """
    for work in works.values():
        for _ in range(warm_up):
            work()
    measured = [{name: rate(work, seconds / turns, clock) for name, work in works.items()} for _ in range(turns)]
    return {name: statistics.median(turn[name] for turn in measured) for name in works}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Number, median and maximum; zeros if there are no values."""
    median = statistics.median(values) if values else 0.0
    return {"times": len(values), "median": round(median, 1), "max": round(max(values, default=0.0), 1)}


def markdown(rows: Sequence[Iterable[Any]]) -> str:
    """A table; the first row is the header. Numbers get separators for thousands."""
    cells = [[f"{cell:,}" if isinstance(cell, int | float) else str(cell) for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]])


@contextlib.contextmanager
def picture(path: Path, columns: int = 1, width: float = 9.0, height: float = 3.2) -> Iterator[Any]:
    """Axes to draw on, `columns` of them; saved at the end as SVG or PNG. Equal numbers give equal files."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "benchmarks"
    figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    yield axes
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def make_config(preset: str, core: str, env: str | None = None, **fields: Any) -> RunConfig:
    """A preset with other fields, in its own environment if none is given; the environment is prepared."""
    config = make_preset(preset, core)
    config = dataclasses.replace(config, env=env or config.env, **fields)
    prepare(config.env)
    return config


def make_batch(config: RunConfig) -> Trajectory:
    """The unrolls of one update, by a new actor in this process."""
    actor, length = make_actor(config, 0, 0, 0), config.actors.unroll_length
    return concatenate_states([actor.unroll(length).trajectory for _ in range(config.unrolls_per_update)])


def iterate(pool: Pool, learner: Any, unrolls: int) -> int:
    """One iteration of IMPALA: a batch of unrolls, an update, new weights for the actors. Returns the batch's steps."""
    batch = concatenate_states([pool.get().trajectory for _ in range(unrolls)])
    learner.update(batch)
    pool.publish(learner.weights(), learner.version)
    return batch.action.numel()


def local_ray(cpus: int, store: int = 0) -> contextlib.AbstractContextManager[None]:
    """A Ray cluster in this machine with at least so many CPUs and bytes of object store."""
    return start_ray(None, max(os.cpu_count() or 1, cpus), store, Console(stderr=True))


class Process(NamedTuple):
    """A process of this machine; needs Linux's /proc.

    pid, started: together its identity. kind: a short name, such as raylet, dashboard.py or RemoteActor. parent: pid.
    memory: resident bytes that it does not share. threads: their number. cpu: seconds of CPU time.
    """

    pid: int
    started: int
    kind: str
    parent: int
    memory: int
    threads: int
    cpu: float


def kind_of(words: list[str]) -> str:
    """The kind of a process, from its command line; zombies have none."""
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").partition(".")[0].strip()
    scripts = [word for word in words if word.endswith(".py")]
    return Path((scripts or words)[0]).name or "zombie"


def process(entry: Path) -> Process | None:
    """A process by its folder in /proc; None if it has ended."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    try:
        fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        resident, shared = map(int, (entry / "statm").read_text().split()[1:3])
        kind = kind_of((entry / "cmdline").read_text(errors="replace").split("\0"))
    except OSError:
        return None
    parent, user, system, threads, started = (int(fields[index]) for index in (1, 11, 12, 17, 19))
    memory, cpu = (resident - shared) * page, (user + system) / ticks
    return Process(int(entry.name), started, kind, parent, memory, threads, cpu)


def processes() -> dict[int, Process]:
    """All processes by pid."""
    entries = Path("/proc").glob("[0-9]*")
    return {found.pid: found for entry in entries if (found := process(entry))}


def family(root: int) -> list[Process]:
    """A process and its descendants, zombies included; its own kind is "driver"."""
    found, members = processes(), {root}
    while born := {pid for pid, process in found.items() if process.parent in members} - members:
        members |= born
    return [found[pid]._replace(kind="driver" if pid == root else found[pid].kind) for pid in members if pid in found]


def cpu_seconds() -> float:
    """CPU time so far of this process and all its living descendants, Ray's own among them."""
    return sum(process.cpu for process in family(os.getpid()))
