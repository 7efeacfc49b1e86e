"""`compressive visualize`: plays episodes and shows the agent's memory, as a video and as a page."""

from collections.abc import Sequence

import torch
from rich.console import Console

from commands.arguments import VisualizeOptions
from commands.evaluate import load
from commands.options import parse, user_errors
from learner.files import require_output
from reports.episode import show
from training import UserError
from training.config import core_name
from training.console import quantity, say_all
from training.evaluation import record
from training.factories import interface
from training.run import Run


def visualize(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options: VisualizeOptions = parse(VisualizeOptions, "compressive visualize", arguments)
    run, console = Run(options.run), Console()
    torch.set_num_threads(1)
    _, config, agent, _, checkpoint = load(run, options, console)
    if not interface(config.env).filmable:
        seen = list(interface(config.env).observation_shape)
        raise UserError(f"{run}: expected images in RGB to show, got {seen} from {config.env}")
    stem = (options.output or run.videos) / "episodes"
    with user_errors("output"):
        for ending in (".mp4", ".html"):
            require_output(stem.with_suffix(ending))
    with console.status("playing"):
        recordings = record(config, agent, options.episodes, options.seed, not options.greedy)
    title = f"{run.name}, {quantity(checkpoint.step)} steps"
    with console.status("drawing"), user_errors("output"):
        rows = show(recordings, stem, title, core_name(config))
    scores = ", ".join(f"{recording.episode.score:g}" for recording in recordings)
    say_all(console, {"checkpoint": str(checkpoint.path), "score": scores} | rows)
