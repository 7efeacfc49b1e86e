"""`compressive status`: the progress of a run, read from its files; another process may be running it."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from commands.options import StatusOptions
from reports.overview import Entry, read_entry
from reports.tables import CANNOT_RESUME, number, progress_rows, say_how_to_resume, since
from sequences.kinds import CONFIGS
from storage import checkpoints
from storage.errors import StorageError, describe, user_errors
from storage.run import Run
from training.config import core_name
from training.console import quantity, say_all
from training.plain import read_config
from training.trust import checkpoint_place


def status(options: StatusOptions) -> None:
    """Runs the command."""
    run = Run(options.run)
    console = Console()
    with user_errors():
        entry = read_entry(run.name, run)
        config = read_config(run, CONFIGS[entry.kind])
        row = run.last_row()
        lines = {"run": str(run), "state": entry.state}
        if entry.kind == "launch":
            lines["environment"] = config.env
        else:
            lines["kind"] = entry.kind
        lines["core"] = core_name(config)
        # The same words as those of `compressive runs`.
        if entry.progress:
            lines["progress"] = entry.progress
        if entry.score is not None:
            lines["score"] = str(entry.score)
        if entry.kind == "launch":
            lines |= progress_rows(config, row, live=entry.state.startswith("running"))
        else:
            lines |= _sequence_rows(run, row)
        lines |= _last_checkpoint(config, run, entry, options.allow)
    say_all(console, lines)
    say_how_to_resume(console, run, config, entry.state)


def _sequence_rows(run: Run, row: dict[str, Any]) -> dict[str, str]:
    """The last rows of metrics of a run of a sequence model, in words; a token of speech is a sample of sound."""
    lines: dict[str, str] = {}
    valid = run.last_row("valid/nll")
    if row:
        lines = {
            "tokens/s": quantity(row.get("speed/tokens_per_second", math.nan)),
            "loss in training": number(row, "loss/nll", ".4f", unit=" nats a token"),
            "gradient": f"norm {number(row, 'gradient/norm', '.3g')}",
            "measured": since(row.get("time", math.nan)),
        }
    for name in valid:
        if name.startswith("valid/"):
            words = name.replace("/", " ").replace("_", " ")
            lines[words] = f"{number(valid, name, '.4f')} at step {quantity(valid['step'])}"
    return lines


def _lost_since(config: Any, row: dict[str, Any], saved: int) -> str:
    """Where a run that was killed resumes, and how much of what its last row counts is lost; empty if nothing is.

    Frames and steps are in proportion, since the action repeat is the same in all of a run.
    """
    counter, _ = config.goal
    done = row.get(counter, math.nan)
    steps = row.get("step", math.nan)
    if not steps > saved or not done > 0:
        return ""
    unit = "frames" if config.kind == "launch" else "steps"
    kept = done * saved / steps
    return f"{quantity(kept)} {unit}; {quantity(done - kept)} since then are lost"


def _last_checkpoint(config: Any, run: Run, entry: Entry, allow: str | None) -> dict[str, str]:
    """The checkpoint from which a run would be resumed, in its folder or at its URL, what was learned since and is
    lost, and unreadable newer ones."""
    try:
        checkpoint = checkpoints.load_latest(checkpoint_place(config, run, allow), needed=())
    except (OSError, StorageError, ValueError) as error:
        return {"checkpoint": describe(error)}
    name = checkpoint.path.name if isinstance(checkpoint.path, Path) else checkpoint.path
    lines = {"checkpoint": f"{name} ({quantity(checkpoint.step)} steps), {since(checkpoint.time)}"}
    if not entry.state.startswith(CANNOT_RESUME) and (lost := _lost_since(config, run.last_row(), checkpoint.step)):
        lines["resumes at"] = lost
    return lines | {f"skipped {index}": text for index, text in enumerate(checkpoint.skipped, 1)}
