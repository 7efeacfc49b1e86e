"""The command line, `compressive COMMAND`: finds the module of a command and turns errors into messages.

Bad input ends with one line on standard error and exit status 2, before any work is done. An error in the code of an
environment ends with its name, the place where it was raised, and status 1.
"""

import difflib
import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from training import UserError

USAGE = """usage: compressive COMMAND [OPTIONS]

Trains agents that remember: IMPALA on Ray, with a Compressive Transformer as memory.

  launch     train an agent, on this machine or on a Ray cluster, then evaluate and film it
  evaluate   play episodes with trained agents, an oracle or at random, and report the scores
  visualize  play episodes and show what the agent attends to: a video, and a page for the browser
  report     one page about a run: configuration, curves, memory, evaluation
  compare    train variants of a model with several seeds each, and compare them in a report
  status     show the progress of a run: scores, actors, policy lag, last checkpoint
  text       train, evaluate and sample language models on the same core
  speech     train, evaluate and sample models of raw waveforms on the same core
  completion print a script for the completion of commands and options in bash and zsh

`compressive COMMAND --help` explains a command's options. To begin:

  compressive launch                 train on two CPU cores, under 10 minutes
  compressive evaluate runs/NAME     evaluate the agent of that run again
  compressive visualize runs/NAME    what it remembers, step by step

  compressive --version              the version of this program
"""
COMMANDS = {name: name for name in ("launch", "evaluate", "visualize", "report", "compare", "status", "completion")}
COMMANDS |= {"text": "sequence", "speech": "sequence"}
"""Modules of commands by the name of the command, which is that of the function as well."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console command `compressive`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return
    if arguments[0] == "--version":
        print(f"compressive {_version()}")
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may lack a character, or a name not be valid text
            stream.reconfigure(errors="backslashreplace")
    try:
        name, rest = arguments[0], arguments[1:]
        if name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"perhaps you meant {close[0]}" if close else "see compressive --help"
            raise UserError(f"expected a command out of {', '.join(COMMANDS)}, got {name!r} ({hint})")
        if {"-h", "--help"} & set(rest):
            _help(name, rest)
        _prepare_logging()
        # The user's own environments are found in the working directory. It is last, so that it hides no package.
        sys.path += [path for path in (str(Path(__file__).parents[1]), os.getcwd()) if path not in ("", *sys.path)]
        command: Callable[[Sequence[str]], None] = getattr(importlib.import_module(f"commands.{COMMANDS[name]}"), name)
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
        from envs import EnvironmentFailed  # here, because --help must be fast

        if not isinstance(error, EnvironmentFailed):
            raise
        # Ray's own message is its whole traceback; only the cause is shown.
        print("compressive:", getattr(error, "cause", error), file=sys.stderr)
        sys.exit(1)


def _help(name: str, rest: Sequence[str]) -> None:
    """Prints the options of a command and exits, without importing the command itself, which needs torch."""
    if name in ("text", "speech"):
        from commands.sequence_arguments import parse_sequence

        parse_sequence(name, rest)
    elif name == "completion":
        print("usage: compressive completion\n\nPrints a script; bash: source <(compressive completion)")
    else:
        from commands.arguments import PARSERS

        PARSERS[name][1](rest)
    sys.exit()


def _version() -> str:
    """The installed version; in a clone that is not installed, as in a Ray job, it is unknown."""
    try:
        return version("compressive-impala")
    except PackageNotFoundError:
        return "(not installed)"


def _prepare_logging() -> None:
    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)
    threading.excepthook = _thread_failed


def _refuse(message: str) -> NoReturn:
    """Ends the program with one line; the middle of a very long one is left out."""
    from learner.files import redact  # here, because --help must be fast

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
    """Prints the error of a thread, except for TensorBoard's: that is raised again where rows are written."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)
