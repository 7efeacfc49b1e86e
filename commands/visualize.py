"""`compressive visualize`: plays episodes and shows the agent's memory, as a video and as a page."""

import dataclasses
import re
import shlex
from collections.abc import Sequence

from rich.console import Console

from actors.recording import Recording
from commands.evaluate import complete, load, opened_runs
from commands.options import VisualizeOptions
from reports.episode import show
from reports.pages import write_page
from storage.errors import UserError, user_errors
from storage.files import require_no_link, require_output
from storage.run import Run, of_checkpoint
from training.config import core_name
from training.console import Busy, playing, program, say, say_all
from training.evaluation import TrainedAgent, record, recording_title


def visualize(options: VisualizeOptions) -> None:
    """Runs the command."""
    console = Console()
    with opened_runs(complete(options.runs, console), console) as runs:
        _visualize(options, runs, console)


def _visualize(options: VisualizeOptions, runs: list[Run], console: Console) -> None:
    # All agents are loaded before any plays.
    with Busy(console, "loading the agent"):
        players = [load(run, options, console) for run in runs]
    envs = sorted({player.env for player in players})
    if len(envs) > 1:
        raise UserError(f"DIR: expected runs in one environment, got {' and '.join(envs)}")
    folder = options.output or players[0].run.videos
    together = len(players) > 1
    names = _names(players)
    if options.output is None:
        with user_errors():
            require_no_link(folder)
    with user_errors("output"):
        for name in {"episodes", *names}:
            for ending in (".mp4", ".html"):
                require_output(folder / f"{name}{ending}")

    for player, name in zip(players, names):
        recordings = play(player, options, together, console)
        title = recording_title(player.run, player.config, player.checkpoint.step)
        with user_errors("output"):
            rows = show(recordings, folder / name, title, core_name(player.config), player.run.path, console)
        scores = ", ".join(f"{recording.episode.score:g}" for recording in recordings)
        say_all(console, {"checkpoint": str(player.checkpoint.path), "score": scores} | rows)

    if together:
        pages = [{"name": player.run.name, "page": f"{name}.html"} for player, name in zip(players, names)]
        with user_errors("output"):
            page = write_page(folder / "episodes.html", "together", {"title": "Side by side", "pages": pages})
        say_all(console, {"together": f"{page}  (open it in a browser)"})
    _say_next(options, console)


def _names(players: Sequence[TrainedAgent]) -> list[str]:
    """The names of the pages of agents, without their endings. Those of a checkpoint do not replace the last one's."""
    if len(players) == 1:
        (player,) = players
        return [of_checkpoint("episodes", player.run)]
    names = []
    for number, player in enumerate(players, 1):
        name = re.sub(r"[^A-Za-z0-9._-]", "_", player.run.name)
        names.append(f"{number}-{name}")
    return names


def _say_next(options: VisualizeOptions, console: Console) -> None:
    """Prints the command that measures what the page shows of a few episodes."""
    runs = shlex.join(options.runs)
    # What needed a permission needs it again.
    allowed = f" --allow {shlex.quote(options.allow)}" if options.allow else ""
    say(console, f"measure the score over many episodes: {program()} evaluate {runs}{allowed}")


def play(player: TrainedAgent, options: VisualizeOptions, together: bool, console: Console) -> list[Recording]:
    """Recorded episodes; those of several agents begin alike, whatever the seeds of their runs."""
    config = player.config
    sample = not options.greedy
    episodes = options.episodes
    activity = f"playing {player.run.name}" if together else "playing"
    with playing(console, activity, episodes) as progress:
        if not together:
            return record(config, player.agent, episodes, options.seed, sample, with_effects=True, progress=progress)

        config = dataclasses.replace(config, seed=0)
        recordings: list[Recording] = []
        for number in range(episodes):

            def count(finished: int, step: int, before: int = number) -> None:
                progress(before + finished, step)

            seed = options.seed + number
            recordings += record(config, player.agent, 1, seed, sample, with_effects=True, progress=count)
        return recordings
