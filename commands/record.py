"""`compressive record`: episodes of a trained agent as a dataset."""

from rich.console import Console

from commands.evaluate import load, opened_runs
from commands.options import RecordOptions
from envs import tasks
from storage.errors import user_errors
from storage.files import folder_bytes
from training.console import counting, say_all
from training.dataset import new_dataset, write_dataset


def record(options: RecordOptions) -> None:
    """Runs the command."""
    console = Console()
    with user_errors("minari"):
        new_dataset(options.minari)
    with opened_runs([options.run], console) as (run,):
        player = load(run, options, console, options.env)
        with counting(console, "playing", options.episodes, "episodes") as progress, user_errors("minari"):
            sample = not options.greedy
            folder = write_dataset(options.minari, player, options.episodes, options.seed, sample, progress)
    size = folder_bytes(folder)
    say_all(
        console,
        {
            "environment": tasks(player.env)[0],
            "episodes": str(options.episodes),
            "dataset": f"{folder}  {size / 1e6:.1f} MB",
            "read it": f'minari.load_dataset("{options.minari}")',
        },
    )
