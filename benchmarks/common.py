"""What the benchmarks share: command line and output, alternatives measured in turns, Ray, and processes."""

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import tyro
from rich.console import Console

from envs import prepare
from storage.errors import UserError
from training.config import RunConfig
from training.presets import make_preset

Name = TypeVar("Name")


def run(measure: Callable[[Any], dict[str, Any]], options: Any) -> None:
    """Parses the options, measures, and prints one JSON object; the exit status is 1 if its "failed" is not empty.

    An option with a value that it cannot have, or a file that is not there, is one line and the exit status 1. Standard
    output becomes standard error while it measures, because Ray prints there.
    """
    parsed = tyro.cli(options, description=sys.modules["__main__"].__doc__)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            figures = {"benchmark": Path(sys.argv[0]).stem, "cores": os.cpu_count(), **measure(parsed)}
    except (ValueError, FileNotFoundError, UserError) as error:
        sys.exit(str(error))
    try:
        printed = json.dumps(figures, indent=2, allow_nan=False)
    except ValueError:
        print(json.dumps(figures, indent=2), file=sys.stderr)
        sys.exit("a figure is not a number or not finite, which JSON has no word for: see above")
    print(printed)
    sys.exit(bool(figures.get("failed")))


def require_least(option: str, value: float, least: float) -> None:
    """Raises a ValueError if the value of an option is less than that."""
    if value < least:
        raise ValueError(f"--{option}: expected at least {least:,}, got {value:,}")


def require_some(option: str, values: Collection[object]) -> None:
    """Raises a ValueError if an option that takes several values has none."""
    if not values:
        raise ValueError(f"--{option}: expected one value or more, got none")


def in_turns(
    works: Mapping[Name, Callable[[], float]],
    seconds: float,
    turns: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 1,
) -> dict[Name, float]:
    """The median rate of each piece of work.

    They take turns, so that other load on the machine affects all of them alike.

    Args:
        works: functions that return the amount of work that a call did.
        seconds: time for each of them, over all turns; each is called once a turn at least.
        turns: number of measurements of each.
        clock: measures the time.
        warm_up: calls of each before that.

    Raises:
        ValueError: if there are no turns.
    """
    require_least("turns", turns, 1)

    def rate(work: Callable[[], float]) -> float:
        done = 0.0
        elapsed = 0.0
        begin = clock()
        while not done or elapsed < seconds / turns:
            done += work()
            elapsed = clock() - begin
        return done / elapsed

    for work in works.values():
        for _ in range(warm_up):
            work()
    rates: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            rates[name].append(rate(work))
    return {name: statistics.median(of_turns) for name, of_turns in rates.items()}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Number, median and maximum; zeros if there are no values."""
    median = statistics.median(values) if values else 0.0
    return {"times": len(values), "median": round(median, 1), "max": round(max(values, default=0.0), 1)}


def rounded(values: Mapping[Name, float], divisor: float = 1.0, digits: int | None = None) -> dict[Name, float]:
    """All values over a divisor, rounded."""
    return {name: round(float(value / divisor), digits) for name, value in values.items()}


def markdown(rows: Sequence[Iterable[Any]]) -> str:
    """A table; the first row is the header. Numbers get separators for thousands."""
    lines = []
    for row in rows:
        cells = [_cell(value) for value in row]
        lines.append(f"| {' | '.join(cells)} |")
        if len(lines) == 1:
            lines.append("|---" * len(cells) + "|")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,}"
    return str(value)


@contextlib.contextmanager
def picture(path: Path, columns: int = 1, size: tuple[float, float] = (9.0, 3.2)) -> Iterator[Any]:
    """Axes to draw on, `columns` of them; saved at the end as SVG. Equal numbers give equal files."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(size, layout="constrained")
    yield figure.subplots(1, columns)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "benchmarks"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def make_config(preset: str, core: str, env: str | None = None, **fields: Any) -> RunConfig:
    """A preset with other fields, in its own environment if none is given; the environment is prepared."""
    config = make_preset(preset, core)
    config = dataclasses.replace(config, env=env or config.env, **fields)
    prepare(config.env)
    return config


def local_ray(cpus: int) -> contextlib.AbstractContextManager[None]:
    """A Ray cluster in this machine with at least so many CPUs."""
    from training.cluster import start_ray  # here, because not all benchmarks need Ray

    return start_ray(None, max(os.cpu_count() or 1, cpus), 0, Console(stderr=True))


class Process(NamedTuple):
    """A process as it was when it was looked at.

    handle: of psutil; equal for the same process. kind: a short name, such as raylet, dashboard.py or RemoteActor.
    memory: resident bytes that it does not share. threads: their number. cpu: seconds of CPU time.
    """

    handle: Any
    kind: str
    memory: int
    threads: int
    cpu: float


def ray_psutil() -> Any:
    """The module psutil, of which Ray has a copy."""
    import ray  # noqa: F401

    return importlib.import_module("psutil")


def family() -> list[Process]:
    """This process, whose kind is "driver", and its living descendants, zombies included. Linux only."""
    psutil = ray_psutil()
    driver = psutil.Process()
    found = []
    for handle in [driver, *driver.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen = handle.as_dict(["cmdline", "memory_info", "num_threads", "cpu_times"])
            memory = seen["memory_info"]
            times = seen["cpu_times"]
            kind = "driver" if handle == driver else kind_of(seen["cmdline"] or [""])
            process = Process(
                handle=handle,
                kind=kind,
                memory=memory.rss - memory.shared,
                threads=seen["num_threads"],
                cpu=times.user + times.system,
            )
            found.append(process)
    return found


def marked(mark: str) -> list[Any]:
    """The processes that were started, however indirectly, with MARK in their environment."""
    found = []
    for process in ray_psutil().process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if environment.get("MARK") == mark:
            found.append(process)
    return found


def kind_of(words: list[str]) -> str:
    """The kind of a process, from its command line; zombies have none."""
    if words[0].startswith("ray::"):
        name_of_class, _, _ = words[0].removeprefix("ray::").partition(".")
        return name_of_class.strip()
    scripts = [word for word in words if word.endswith(".py")]
    program = scripts[0] if scripts else words[0]
    return Path(program).name or "zombie"


def cpu_seconds() -> float:
    """CPU time so far of this process and all its living descendants, Ray's own among them."""
    return sum(process.cpu for process in family())
