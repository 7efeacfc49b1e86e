"""`compressive pull`: an agent of the Hugging Face Hub, or of any fsspec URL, as a folder of this machine."""

import shlex
from pathlib import Path

from rich.console import Console

from commands.options import PullOptions
from storage.checkpoints import load_latest
from storage.errors import UserError, user_errors
from storage.files import folder_bytes, is_url, new_folder
from storage.remote import SCHEME, copy_run, require_hub_name
from storage.run import Run
from training.console import Busy, program, say, say_all
from training.plain import read_config
from training.trust import permissions


def pull(options: PullOptions) -> None:
    """Runs the command."""
    console = Console()
    url = options.name
    with user_errors("NAME"):
        if not is_url(url):
            url = SCHEME + require_hub_name(url)
    folder = options.output or Path("runs") / url.rstrip("/").rpartition("/")[2].partition("@")[0]
    if folder.exists():
        raise UserError(f"output: expected a new folder, and {folder} exists")
    with user_errors(), Busy(console, "downloading"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as temporary:
            copy_run(url, temporary)
            # What cannot be played is not kept.
            run = Run(temporary)
            config = read_config(run)
            elsewhere = getattr(config, "checkpoint_url", None)
            if elsewhere:
                expected = "expected an agent with its weights, as push and export write it"
                raise UserError(f"{url}: {expected}, got one whose checkpoints are at {elsewhere}")
            checkpoint = load_latest(run.path, needed=())
    size = folder_bytes(folder)
    rows = {"environment": config.env, "steps": f"{checkpoint.step:,}", "folder": f"{folder}  {size / 1e6:.1f} MB"}
    say_all(console, rows)
    say(console, f"play with it: {program()} visualize {shlex.quote(str(folder))}{permissions(config)}")
