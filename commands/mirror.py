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
        raise UserError("mirror: needs wandb: pip install -e '.[wandb]'") from error
    run = Run(options.run)
    console = Console()
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
    first_missing = copy.step  # where a copy is continued; 0 offline
    count = 0
    position = 0
    goes_on = True
    while goes_on:
        # Asked before the rows are read, so that nothing is written after the last of them was.
        goes_on = follow and run.in_use
        rows, position = _read(run, position)
        for row in rows:
            step = row["step"]
            if first_missing <= step < 2**63:  # the largest that W&B has
                copy.log(row | {"_timestamp": row.get("time")}, step=int(step))
                count += 1
        if goes_on:
            time.sleep(EVERY)
    return count


def _read(run: Run, position: int = 0) -> tuple[list[dict[str, Any]], int]:
    with suppress(FileNotFoundError):  # nothing was measured yet
        return read_on(run.path, position)
    return [], 0


def _identity(run: Run) -> str:
    """The id of a run in W&B, by its first launch: so its folder may be moved. Without launches, by its folder."""
    launches = read_launches(run)
    origin: object = run.path.resolve()
    if launches:
        origin = launches[0]
    return hashlib.sha256(repr(origin).encode()).hexdigest()[:16]
