"""`compressive mirror`: a run's metrics in Weights & Biases, copied from its files while it trains or afterwards."""

import hashlib
import time
from contextlib import suppress
from typing import Any

from rich.console import Console

from commands.options import MirrorOptions
from commands.parsing import user_errors
from learner.metrics import read_on
from training import UserError
from training.config import read_config, to_plain
from training.console import say
from training.kinds import CONFIGS
from training.provenance import read_launches
from training.run import Run

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
    settings = wandb.Settings(console="off", silent=True)  # what this command prints is not what the run printed
    with wandb.init(
        project=options.project, id=_identity(run), name=run.name, config=config, resume="allow", settings=settings
    ) as copy:
        say(console, f"{run} goes to {copy.dir if copy.offline else copy.url}")
        count, position, running = 0, 0, True
        begin = copy.step  # a copy that is continued has the rows before this step
        while running:
            running = options.follow and run.in_use  # looked at first, so that nothing is written after the last look
            with suppress(FileNotFoundError):  # nothing was measured yet
                rows, position = read_on(run.path, position)
                for row in rows:
                    if row["step"] >= begin:
                        copy.log(row, step=int(row["step"]))
                        count += 1
            time.sleep(EVERY * running)
    say(console, f"{count} rows of metrics copied")


def _identity(run: Run) -> str:
    """The same for every copy of a run, wherever its folder is."""
    launches: list[Any] = read_launches(run)
    return hashlib.sha256(repr(launches[0] if launches else run.path.resolve()).encode()).hexdigest()[:16]
