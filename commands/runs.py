"""`compressive runs`: the runs below a folder, their state, their score, and what to type next."""

from rich.console import Console
from rich.text import Text

from commands.options import RunsOptions
from reports.overview import ago, describe, find_runs
from storage.errors import user_errors
from storage.files import printable
from training.console import say

STYLES = {"running": "bold green", "finished": "green", "damaged": "red"}


def runs(options: RunsOptions) -> None:
    """Runs the command."""
    console = Console(highlight=False)
    with user_errors():
        found = find_runs(options.folder)
    if not found:
        say(console, f"no runs in {options.folder}; to begin: compressive launch")
    entries = sorted((describe(name, run) for name, run in found.items()), key=lambda entry: -entry.age)
    for entry in entries:  # the newest is the last, just above the prompt
        say(console, str(entry.run), "bold")
        state = Text(f"  {entry.state}", STYLES.get(entry.state.partition(";")[0], "yellow"))
        facts = [printable(entry.about), entry.progress, ago(entry.age)]
        console.print(Text.assemble(state, *(f"  {fact}" for fact in facts if fact)), soft_wrap=True)
        score = str(entry.score or "")
        for line in (entry.error, score, entry.next):
            if line:
                say(console, f"  {line}")
