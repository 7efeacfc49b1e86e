"""`compressive visualize`: plays episodes and shows the agent's memory, as a video and as a page."""

import dataclasses
import re

from rich.console import Console

from actors.recording import Recording
from commands.evaluate import load, opened_runs
from commands.options import VisualizeOptions
from reports.episode import show
from reports.pages import write_page
from storage.errors import UserError, user_errors
from storage.files import require_output
from storage.run import Run
from training.config import core_name
from training.console import say_all
from training.evaluation import TrainedAgent, record, recording_title


def visualize(options: VisualizeOptions) -> None:
    """Runs the command."""
    console = Console()
    with opened_runs(options.runs, console) as runs:
        _visualize(options, runs, console)


def _visualize(options: VisualizeOptions, runs: list[Run], console: Console) -> None:
    players = [load(run, options, console) for run in runs]  # all, before any plays
    if len(envs := sorted({each.env for each in players})) > 1:
        raise UserError(f"DIR: expected runs in one environment, got {' and '.join(envs)}")
    folder, together = options.output or players[0].run.videos, len(players) > 1
    names = ["episodes"]
    if together:
        names = [f"{number}-{re.sub(r'[^A-Za-z0-9._-]', '_', each.run.name)}" for number, each in enumerate(players, 1)]
    with user_errors("output"):
        for name in ["episodes", *names] if together else names:
            for ending in (".mp4", ".html"):
                require_output(folder / f"{name}{ending}")
    for player, name in zip(players, names):
        with console.status("playing"):
            recordings = play(player, options, together)
        title = recording_title(player.run, player.config, player.checkpoint.step)
        with console.status("drawing"), user_errors("output"):
            rows = show(recordings, folder / name, title, core_name(player.config), player.run.path)
        scores = ", ".join(f"{recording.episode.score:g}" for recording in recordings)
        say_all(console, {"checkpoint": str(player.checkpoint.path), "score": scores} | rows)
    if together:
        pages = [{"name": player.run.name, "page": f"{name}.html"} for player, name in zip(players, names)]
        with user_errors("output"):
            page = write_page(folder / "episodes.html", "together", {"title": "Side by side", "pages": pages})
        say_all(console, {"together": f"{page}  (open it in a browser)"})


def play(player: TrainedAgent, options: VisualizeOptions, together: bool) -> list[Recording]:
    """Recorded episodes; those of several agents begin alike, whatever the seeds of their runs."""
    _, config, agent, _, _ = player
    if not together:
        return record(config, agent, options.episodes, options.seed, not options.greedy)
    config, seeds = dataclasses.replace(config, seed=0), range(options.seed, options.seed + options.episodes)
    return [record(config, agent, 1, seed, not options.greedy)[0] for seed in seeds]
