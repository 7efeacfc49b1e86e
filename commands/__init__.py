"""What a person types: `compressive <command>`. Each command is one module; this one only finds it.

Bad input ends with one line on standard error and exit status 2, before any work is done.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.logging import RichHandler

USAGE = """usage: compressive COMMAND [OPTIONS]

IMPALA with a Compressive Transformer memory.

  launch     train an agent: on this machine, or on a Ray cluster
  evaluate   play episodes with a trained agent and report scores

`compressive COMMAND --help` explains a command's options.
"""


def _commands() -> dict[str, Callable[[Sequence[str]], None]]:
    # Imported late: `compressive --help` answers at once.
    from commands.evaluate import evaluate
    from commands.launch import launch

    return {"launch": launch, "evaluate": evaluate}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console command `compressive`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    name, rest = arguments[0], arguments[1:]
    commands = _commands()
    if name not in commands:
        _fail(f"expected a command out of {', '.join(commands)}, got {name!r}")
    handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    # The commands say themselves which checkpoints they skipped.
    warnings.filterwarnings("ignore", message="skipped checkpoint")
    try:
        commands[name](rest)
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


class UserError(Exception):
    """What the user can mend: shown as one line, without a traceback."""


def _fail(message: str) -> None:
    print(f"compressive: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
