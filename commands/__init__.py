"""What a person types: `compressive <command>`. Each command is one module; this one only finds it.

Bad input ends with one line on standard error and exit status 2, before any work is done.
"""

import importlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.logging import RichHandler

USAGE = """usage: compressive COMMAND [OPTIONS]

Trains agents that remember: IMPALA on Ray, with a Compressive Transformer as memory.

  launch     train an agent, on this machine or on a Ray cluster, then evaluate and film it
  evaluate   play episodes with trained agents, an oracle or at random, and report the scores
  visualize  play episodes and lay the agent's memory open: a video, and a page for the browser
  report     one page about a run: configuration, curves, memory, evaluation
  compare    train variants of an agent with several seeds each, and compare them in a report
  status     show what a run is doing: progress, actors, policy lag, last checkpoint
  text       train, measure and sample language models on the same core
  speech     train, measure and sample models of raw waveforms on the same core

`compressive COMMAND --help` explains a command's options. To begin:

  compressive launch                 train on two CPU cores, under 10 minutes
  compressive evaluate runs/NAME     the agent of that run once more
  compressive visualize runs/NAME    what it remembers, step by step
"""


COMMANDS = ("launch", "evaluate", "visualize", "report", "compare", "status", "text", "speech")
"""Names of commands, each a function in the module of its name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console command `compressive`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    # The commands say themselves which checkpoints they skipped.
    warnings.filterwarnings("ignore", message="skipped checkpoint")
    threading.excepthook = _thread_failed
    try:
        name, rest = arguments[0], arguments[1:]
        if name not in COMMANDS:
            raise UserError(f"expected a command out of {', '.join(COMMANDS)}, got {name!r} (see compressive --help)")
        command: Callable[[Sequence[str]], None] = getattr(importlib.import_module(f"commands.{name}"), name)
        command(rest)
        sys.stdout.flush()
    except UserError as error:
        from learner.storage import redact

        print("compressive:", redact(" ".join(line.strip() for line in str(error).splitlines())), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Says what a thread failed with, but for TensorBoard's: that error is raised again where rows are written."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)


class UserError(Exception):
    """What the user can mend: shown as one line, without a traceback."""
