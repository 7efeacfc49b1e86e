"""`compressive status`: what a run is doing now, from what it wrote alone; another process may be running it."""

import fcntl
import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agent.fields import Checked
from commands.options import parse
from learner import checkpoints
from learner.checkpoints import StorageError
from learner.files import open_regular
from learner.metrics import last_metrics
from training import UserError
from training.config import KINDS, RunConfig, read_config, read_kind
from training.console import duration, quantity, say, table

Row = dict[str, Any]
"""The last one of metrics, with NaN where one is not finite; empty where nothing was measured yet."""


@dataclass(frozen=True)
class Options(Checked):
    """Shows what a run is doing: progress, scores or losses, actors, policy lag and its last readable checkpoint."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, as `compressive launch`, `text train` or `speech train` made it."""


def status(arguments: Sequence[str]) -> None:
    """Runs the command."""
    run, console = parse(Options, "compressive status", args=list(arguments)).run, Console()
    try:
        kind, plain = read_kind(run)
        row = last_metrics(run)
        lines = _launched(run, row) if kind == "launch" else _trained(run, kind, plain, row)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    console.print(table(str(run), lines))
    say_how_to_go_on(console, run, kind, lines["state"])


def _launched(run: Path, row: Row) -> dict[str, str]:
    """What a run of `compressive launch` is doing, in words."""
    config = read_config(run)
    lines = {"state": state(run, row, "learner/frames", config.frames)}
    lines |= {"environment": config.env, "core": config.core_name}
    return lines | progress(config, row) | last_checkpoint(run, config.checkpoint_url)


def _trained(run: Path, kind: str, plain: dict[str, Any], row: Row) -> dict[str, str]:
    """What a run of text or speech is doing; a token of speech is a sample of sound."""
    try:
        total, core = int(plain["learner"]["steps"]), plain["model"].get("core", plain["model"])["name"]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{run / 'config.json'}: expected a configuration of {kind}, got none: {error!r}") from error
    lines = {"state": state(run, row, "step", total), "kind": kind, "core": str(core)}
    if row:
        share = min(1, row["step"] / max(1, total))
        lines |= {
            "steps": f"{quantity(row['step'])} of {quantity(total)} ({100 * share:.1f} %)",
            "tokens/s": quantity(row.get("speed/tokens_per_second", math.nan)),
            "loss": number(row, "loss/nll", ".4f", unit=" nats a token"),
            "gradient": f"norm {number(row, 'gradient/norm', '.3g')}",
            "measured": ago(row.get("time", math.nan)),
        }
    valid = last_metrics(run, "valid/nll")
    for name in (name for name in valid if name.startswith("valid/")):
        words = name.removeprefix("valid/").replace("_", " ")
        lines[f"valid {words}"] = f"{number(valid, name, '.4f')} at step {quantity(valid['step'])}"
    return lines | last_checkpoint(run)


def state(run: Path, row: Row, counter: str, total: int) -> str:
    """Whether a run is running, stopped, trained or finished, which is to say evaluated as well.

    Args:
        run: its folder, whose lock a run in progress holds.
        row: its last metrics.
        counter: the metric that says how far it is.
        total: how far it is to go.
    """
    if in_use(run):
        return "running" if row else "running; nothing measured yet"
    if not row.get(counter, 0) >= total:
        return "stopped"
    return "finished" if (run / "evaluation.json").is_file() else "trained, but not evaluated"


def say_how_to_go_on(console: Console, run: Path, kind: str, state: str) -> None:
    """Prints the command that goes on with a run which neither runs nor is finished."""
    if not state.startswith(("running", "finished")):
        say(console, f"go on with: {KINDS[kind][0]} --resume {shlex.quote(str(run))}")


def in_use(run: Path) -> bool:
    """Whether a process on this machine has the run."""
    try:
        with os.fdopen(open_regular(run / ".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or none that can be asked
        return False
    return False


def number(row: Row, name: str, form: str = ".1f", factor: float = 1.0, unit: str = "") -> str:
    """A metric in words, - where there is none."""
    value = row.get(name, math.nan)
    return "-" if math.isnan(value) else f"{value * factor:{form}}{unit}"


def ago(then: float) -> str:
    """How long ago a time in seconds since 1970 was."""
    return f"{duration(max(time.time() - then, 0.0))} ago"  # this way round NaN stays


def progress(config: RunConfig, row: Row) -> dict[str, str]:
    """The last row of metrics, in words."""
    if not row:
        return {}
    frames = row.get("learner/frames", 0.0)
    tasks = number(row, "tasks/seen", ".0f"), number(row, "tasks/count", ".0f")
    over = f" over {tasks[0]} of {tasks[1]} tasks" if "tasks/seen" in row else ""
    return {
        "frames": f"{quantity(frames)} of {quantity(config.frames)} ({100 * min(1, frames / config.frames):.1f} %)",
        "frames/s": quantity(row.get("speed/frames_per_second", math.nan)),
        "return": number(row, "episode/return") + over,
        "correct choices": number(row, "episode/correct_choices", factor=100, unit=" %"),
        "actors": f"{number(row, 'actors/alive', '.0f')} alive, {number(row, 'actors/restarts', '.0f')} restarts",
        "policy lag": f"mean {number(row, 'policy_lag/mean')}, at most {number(row, 'policy_lag/max', '.0f')} "
        f"versions; {number(row, 'actors/unrolls_dropped', '.0f')} unrolls dropped",
        "learner idle": number(row, "learner/idle_fraction", ".0f", 100, " % of the time"),
        "measured": ago(row.get("time", math.nan)),
    }


def last_checkpoint(run: Path, url: str | None = None) -> dict[str, str]:
    """The checkpoint from which the run would go on, there or at its URL, and those that cannot be read."""
    try:
        checkpoint = checkpoints.load_latest(url or run)
    except (FileNotFoundError, StorageError) as error:
        return {"checkpoint": str(error)}
    name = str(checkpoint.path) if url else Path(checkpoint.path).name
    lines = {"checkpoint": f"{name} ({quantity(checkpoint.step)} steps), {ago(checkpoint.time)}"}
    return lines | {f"skipped {index}": text for index, text in enumerate(checkpoint.skipped, 1)}
