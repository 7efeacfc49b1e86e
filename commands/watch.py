"""`compressive watch`: the pages of a folder's runs in the browser, updated while the runs train."""

from rich.console import Console

from commands.options import WatchOptions
from reports.overview import find_runs
from reports.server import Watch
from storage.errors import user_errors
from training.console import plural, say


def watch(options: WatchOptions) -> None:
    """Runs the command."""
    console = Console()
    say(console, f"looking for runs in {options.folder}")
    with user_errors():
        count = len(find_runs(options.folder))
    with user_errors("port"), Watch(options.folder, options.port, options.allow) as server:
        say(console, f"{plural(count, 'run')} in {options.folder}: {server.url}  (Ctrl-C ends it)")
        server.serve_forever()
