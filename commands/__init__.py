"""What a person types: `compressive <command>`. Each command is one module; this one only finds it.

Bad input ends with one line on standard error and exit status 2, before any work is done; an error in the code of an
environment with its name, the place where it was raised and status 1.
"""

import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.logging import RichHandler

from training import UserError

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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack a character, or a name be no text at all
            stream.reconfigure(errors="backslashreplace")
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
        _refuse(str(error))
    except BrokenPipeError:  # the program that read our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if not _named(error.filename, arguments):
            raise
        _refuse(f"{os.fsdecode(error.filename)}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from envs import EnvironmentFailed  # not before: --help is to be quick

        if not isinstance(error, EnvironmentFailed):
            raise
        # Of an actor on Ray only the cause: Ray's own words are its whole traceback.
        print("compressive:", getattr(error, "cause", error), file=sys.stderr)
        sys.exit(1)


def _refuse(message: str) -> NoReturn:
    """Ends the program with one line, whose middle is left out if it is too long to read."""
    from learner.files import redact  # not before: --help is to be quick

    line = redact(" ".join(message.split()))
    print("compressive:", line if len(line) <= 2000 else f"{line[:1500]} ... {line[-400:]}", file=sys.stderr)
    sys.exit(2)


def _named(path: Any, arguments: Sequence[str]) -> bool:
    """Whether a path is one that the user typed, or lies below it."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    typed = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    return any(Path(os.path.abspath(os.fsdecode(path))).is_relative_to(os.path.abspath(word)) for word in typed if word)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Says what a thread failed with, but for TensorBoard's: that error is raised again where rows are written."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)
