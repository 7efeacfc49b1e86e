"""`compressive status`: the progress of a run, read from its files; another process may be running it."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from commands.arguments import StatusOptions
from commands.options import parse, user_errors
from learner import checkpoints
from learner.errors import StorageError
from reports.tables import number, progress_rows, say_how_to_resume, table
from training.config import core_name, read_config
from training.console import duration, quantity
from training.run import Run

Row = dict[str, Any]
"""The last row of metrics, with NaN for numbers that are not finite; empty if nothing was measured yet."""


def status(arguments: Sequence[str]) -> None:
    """Runs the command."""
    run, console = Run(parse(StatusOptions, "compressive status", arguments).run), Console()
    with user_errors():
        kind, plain = run.read_kind()
        row = run.last_row()
        lines = _agent_lines(run, row) if kind == "launch" else _sequence_lines(run, kind, plain, row)
    console.print(table(str(run), lines))
    say_how_to_resume(console, run, kind, lines["state"])


def _agent_lines(run: Run, row: Row) -> dict[str, str]:
    config = read_config(run)
    lines = {"state": run.state(row, "learner/frames", config.frames)}
    lines |= {"environment": config.env, "core": core_name(config)}
    return lines | progress_rows(config, row) | _last_checkpoint(run, config.checkpoint_url)


def _sequence_lines(run: Run, kind: str, plain: dict[str, Any], row: Row) -> dict[str, str]:
    """A run of text or speech; a token of speech is a sample of sound."""
    try:
        total, core = int(plain["learner"]["steps"]), plain["model"].get("core", plain["model"])["name"]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{run.config_file}: expected a configuration of {kind}, got none: {error!r}") from error
    lines = {"state": run.state(row, "step", total), "kind": kind, "core": str(core)}
    if row:
        share = min(1, row["step"] / max(1, total))
        lines |= {
            "steps": f"{quantity(row['step'])} of {quantity(total)} ({100 * share:.1f} %)",
            "tokens/s": quantity(row.get("speed/tokens_per_second", math.nan)),
            "loss": number(row, "loss/nll", ".4f", unit=" nats a token"),
            "gradient": f"norm {number(row, 'gradient/norm', '.3g')}",
            "measured": _ago(row.get("time", math.nan)),
        }
    valid = run.last_row("valid/nll")
    for name in (name for name in valid if name.startswith("valid/")):
        words = name.removeprefix("valid/").replace("_", " ")
        lines[f"valid {words}"] = f"{number(valid, name, '.4f')} at step {quantity(valid['step'])}"
    return lines | _last_checkpoint(run)


def _last_checkpoint(run: Run, url: str | None = None) -> dict[str, str]:
    """The checkpoint from which the run would be resumed, in its folder or at its URL, and unreadable newer ones."""
    try:
        checkpoint = checkpoints.load_latest(url or run.path)
    except (FileNotFoundError, StorageError) as error:
        return {"checkpoint": str(error)}
    name = str(checkpoint.path) if url else Path(checkpoint.path).name
    lines = {"checkpoint": f"{name} ({quantity(checkpoint.step)} steps), {_ago(checkpoint.time)}"}
    return lines | {f"skipped {index}": text for index, text in enumerate(checkpoint.skipped, 1)}


def _ago(then: float) -> str:
    return f"{duration(max(time.time() - then, 0.0))} ago"  # this way round NaN stays
