"""`compressive visualize`: plays episodes and shows the agent's memory, as a video and as a page."""

from rich.console import Console

from commands.evaluate import load
from commands.options import VisualizeOptions
from commands.parsing import user_errors
from learner.files import require_output
from reports.episode import show
from training.config import core_name
from training.console import quantity, say_all
from training.evaluation import record
from training.run import Run


def visualize(options: VisualizeOptions) -> None:
    """Runs the command."""
    run, console = Run(options.run), Console()
    player = load(run, options, console)
    stem = (options.output or run.videos) / "episodes"
    with user_errors("output"):
        for ending in (".mp4", ".html"):
            require_output(stem.with_suffix(ending))
    with console.status("playing"):
        recordings = record(player.config, player.agent, options.episodes, options.seed, not options.greedy)
    title = f"{run.name}, {quantity(player.checkpoint.step)} steps"
    with console.status("drawing"), user_errors("output"):
        rows = show(recordings, stem, title, core_name(player.config))
    scores = ", ".join(f"{recording.episode.score:g}" for recording in recordings)
    say_all(console, {"checkpoint": str(player.checkpoint.path), "score": scores} | rows)
