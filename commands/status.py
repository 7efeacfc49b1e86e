"""`compressive status`: what a run is doing now, from what it wrote alone; another process may be running it."""

import fcntl
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from commands import UserError
from commands.config import RunConfig, read_config
from commands.display import duration, quantity, table
from commands.options import parse
from learner import checkpoints
from learner.metrics import read_metrics
from learner.storage import StorageError


@dataclass(frozen=True)
class Options:
    """Shows what a run is doing: progress, scores, actors, policy lag and its last readable checkpoint."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, as `compressive launch` made it."""


def status(arguments: Sequence[str]) -> None:
    """Runs the command."""
    run = parse(Options, "compressive status", args=list(arguments)).run
    try:
        config = read_config(run)
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    lines = {"state": state(run, config, rows), "environment": config.env, "core": config.core_name}
    Console().print(table(str(run), lines | progress(config, rows) | last_checkpoint(run, config)))


def state(run: Path, config: RunConfig, rows: list[dict[str, Any]]) -> str:
    """running, finished or stopped; a run in progress holds the lock of its folder."""
    if in_use(run):
        return "running" if rows else "running; nothing measured yet"
    if rows and rows[-1]["learner/frames"] >= config.frames:
        return "finished"
    return f"stopped; go on with: compressive launch --resume {run}"


def in_use(run: Path) -> bool:
    """Whether a process on this machine has the run."""
    try:
        with (run / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def progress(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, str]:
    """The last row of metrics, in words."""
    if not rows:
        return {}
    row = rows[-1]

    def number(name: str, form: str = ".1f", factor: float = 1.0, unit: str = "") -> str:
        value = row.get(name, math.nan)
        return "-" if math.isnan(value) else f"{value * factor:{form}}{unit}"

    frames = row["learner/frames"]
    over = f" over {row['tasks/seen']:.0f} of {row['tasks/count']:.0f} tasks" if "tasks/seen" in row else ""
    return {
        "frames": f"{quantity(frames)} of {quantity(config.frames)} ({100 * min(1, frames / config.frames):.1f} %)",
        "frames/s": quantity(row["speed/frames_per_second"]),
        "return": number("episode/return") + over,
        "correct choices": number("episode/correct_choices", factor=100, unit=" %"),
        "actors": f"{number('actors/alive', '.0f')} alive, {number('actors/restarts', '.0f')} restarts",
        "policy lag": f"mean {number('policy_lag/mean')}, at most {number('policy_lag/max', '.0f')} versions; "
        f"{number('actors/unrolls_dropped', '.0f')} unrolls dropped",
        "learner idle": number("learner/idle_fraction", ".0f", 100, " % of the time"),
        "measured": f"{duration(max(0.0, time.time() - row['time']))} ago",
    }


def last_checkpoint(run: Path, config: RunConfig) -> dict[str, str]:
    """The checkpoint from which the run would go on, and those that cannot be read."""
    try:
        checkpoint = checkpoints.load_latest(config.checkpoint_url or run)
    except (FileNotFoundError, StorageError) as error:
        return {"checkpoint": str(error)}
    name = str(checkpoint.path) if config.checkpoint_url else Path(checkpoint.path).name
    age = duration(max(time.time() - checkpoint.time, 0.0))  # this way round NaN stays
    lines = {"checkpoint": f"{name} ({quantity(checkpoint.step)} steps), {age} ago"}
    return lines | {f"skipped {number}": text for number, text in enumerate(checkpoint.skipped, 1)}
