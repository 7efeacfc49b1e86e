"""`compressive mirror`: a run's metrics in Weights & Biases, copied from its files while it trains or afterwards."""

import hashlib
import time
from contextlib import suppress
from typing import Any

from rich.console import Console

from commands.options import MirrorOptions
from sequences.kinds import CONFIGS
from storage.errors import UserError, user_errors
from storage.metrics import read_on
from storage.provenance import read_launches
from storage.run import Run
from training.console import say
from training.plain import read_config, to_plain

EVERY = 5.0
"""Seconds between two looks at a run that trains."""


def mirror(options: MirrorOptions) -> None:
    """Runs the command. Whether and where W&B sends anything is up to its own settings, such as WANDB_MODE."""
    try:
        import wandb
    except ImportError as error:
        raise UserError("mirror: needs wandb: pip install 'compressive-impala[wandb]'") from error
    run, console = Run(options.run), Console()
    with user_errors():
        config = to_plain(read_config(run, CONFIGS[run.read_kind()[0]]))
        _read(run)
    # This machine, folder and commit need not be those that trained the run.
    settings = wandb.Settings(
        console="off",
        silent=True,
        host="",
        disable_git=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    try:
        with wandb.init(
            project=options.project, id=_identity(run), name=run.name, config=config, resume="allow", settings=settings
        ) as copy:
            say(console, f"{run} goes to {copy.dir if copy.offline else copy.url}")
            count = _copy(run, copy, options.follow)
    except wandb.errors.Error as error:
        raise UserError(f"mirror: {error}") from error
    say(console, f"{count} rows of metrics copied")


def _copy(run: Run, copy: Any, follow: bool) -> int:
    """Copies the rows that W&B does not have; returns how many."""
    count, position, running = 0, 0, True
    begin = copy.step  # of a copy that is continued; 0 offline
    while running:
        running = follow and run.in_use  # looked at first, so that nothing is written after the last look
        rows, position = _read(run, position)
        for row in rows:
            if begin <= row["step"] < 2**63:
                copy.log(row | {"_timestamp": row.get("time")}, step=int(row["step"]))
                count += 1
        if running:
            time.sleep(EVERY)
    return count


def _read(run: Run, position: int = 0) -> tuple[list[dict[str, Any]], int]:
    with suppress(FileNotFoundError):  # nothing was measured yet
        return read_on(run.path, position)
    return [], 0


def _identity(run: Run) -> str:
    """Of a run in W&B: that of its first launch, so that its folder may be moved; else that of the folder."""
    launches: list[Any] = read_launches(run)
    return hashlib.sha256(repr(launches[0] if launches else run.path.resolve()).encode()).hexdigest()[:16]
