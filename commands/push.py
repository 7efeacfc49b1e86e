"""`compressive push`: a trained agent to the Hugging Face Hub, with a card, a learning curve and a film."""

import tempfile
from pathlib import Path

from rich.console import Console

from commands.options import PushOptions
from reports.card import CURVE, FILM, card, main_chart
from reports.report import page_data, read_rows
from storage.errors import UserError, user_errors
from storage.files import Json, folder_bytes, read_json
from storage.remote import push_folder, require_login
from storage.run import Run, find_run, of_checkpoint
from training.config import RunConfig
from training.console import Busy, playing, program, say, say_all
from training.evaluation import load_trained_agent, record
from training.plain import read_config
from training.sharing import share
from training.trust import permissions


def push(options: PushOptions) -> None:
    """Runs the command."""
    console = Console()
    with user_errors():
        run = find_run(options.run)
        kind, _ = run.read_kind()
        name = require_login(options.name)
    if kind != "launch":
        raise UserError(f"DIR: expected the run of an agent, got one of {kind}")
    with tempfile.TemporaryDirectory(prefix="compressive-") as temporary:
        folder = Path(temporary) / "agent"
        with user_errors():
            share(run, folder, options.allow)
            allowed = permissions(read_config(Run(folder), RunConfig))
            _describe(run, folder, name, allowed, options, console)
        size = folder_bytes(folder)
        message = f"{of_checkpoint(run.name, run)} of compressive-impala"
        with Busy(console, "uploading"), user_errors():
            address = push_folder(folder, name, options.private, message)
    say_all(console, {"pushed": f"{size / 1e6:.1f} MB", "address": address})
    say(console, f"play with it: {program()} evaluate hf://{name}{allowed}")


def _describe(run: Run, folder: Path, name: str, allowed: str, options: PushOptions, console: Console) -> None:
    """Adds a film, a curve and the card, which says of the run what the shared files do not.

    Of a checkpoint it says what the shared files do: what came later has not made this agent.

    `allowed`: words behind the card's commands.
    """
    described = Run(folder) if run.checkpoint else run
    data = page_data(described, read_rows(described))
    if options.video_episodes:
        from reports.episode import show_film

        player = load_trained_agent(Run(folder), options.allow)
        with playing(console, "filming", options.video_episodes) as progress:
            recordings = record(player.config, player.agent, options.video_episodes, progress=progress)
        show_film(recordings, folder / FILM, console)
    chart = main_chart(data)
    if chart:
        from reports.figures import draw_chart

        (folder / CURVE).write_bytes(draw_chart(chart, "frames"))
    files = {path.name for path in folder.iterdir()}
    text = card(name, data, _evaluation(Run(folder)), options.license, files, allowed)
    (folder / "README.md").write_text(text)


def _evaluation(run: Run) -> Json:
    """The summary of the evaluation; empty if there is none."""
    if not run.evaluation_file().is_file():
        return {}
    found = read_json(run.evaluation_file())
    return found if isinstance(found, dict) else {}
