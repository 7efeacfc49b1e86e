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
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from training import UserError

USAGE = """usage: compressive COMMAND [OPTIONS]

Trains agents that remember: IMPALA on Ray, with a Compressive Transformer as memory.

  launch     train an agent, on this machine or on a Ray cluster, then evaluate and film it
  evaluate   play episodes with trained agents, an oracle or at random, and report the scores
  visualize  play episodes and show what the agent attends to: a video, and a page for the browser
  report     one page about a run: configuration, curves, memory, evaluation
  compare    train variants of a model with several seeds each, and compare them in a report
  export     write a trained agent to a small folder, to share it
  status     show the progress of a run: scores, actors, policy lag, last checkpoint
  text       train, evaluate and sample language models on the same core
  speech     train, evaluate and sample models of raw waveforms on the same core
  images     train, evaluate and sample models of pixels on the same core
  completion print a script for the completion of commands and options in bash and zsh

`compressive COMMAND --help` explains a command's options. To begin:

  compressive launch                 train on two CPU cores, under 10 minutes
  compressive evaluate runs/NAME     evaluate the agent of that run again
  compressive visualize runs/NAME    what it remembers, step by step

  compressive --version              the version of this program
"""
COMMANDS = {
    name: name for name in ("launch", "evaluate", "visualize", "report", "compare", "export", "status", "completion")
}
COMMANDS |= dict.fromkeys(("text", "speech", "images"), "sequence")
"""Modules of commands by the name of the command; each has a function of its own name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console command `compressive`."""
    name, *words = list(sys.argv[1:] if arguments is None else arguments) or ["help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may lack a character, or a name not be valid text
            stream.reconfigure(errors="backslashreplace")
    try:
        if name in ("-h", "--help", "help"):
            print(USAGE, end="")
        elif name == "--version":
            found = [each.version for each in distributions(name="compressive-impala")]
            print("compressive", found[0] if found else "(not installed)")  # as in a Ray job
        else:
            _run(name, words)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), 2)
    except BrokenPipeError:  # the program that read our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if not error.filename:
            raise
        _fail(f"{os.fsdecode(error.filename)}: {error.strerror}", 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from actors import ClusterError  # here, because --help must be fast
        from envs import EnvironmentFailed
        from learner.errors import LearnersLost

        cause = getattr(error, "cause", error)  # of an error of Ray, whose own message is a traceback
        if not isinstance(error, EnvironmentFailed | ClusterError | LearnersLost | FloatingPointError):
            raise
        _fail(str(cause), 1)


def _run(name: str, words: list[str]) -> None:
    if [name, *words[:1]] == ["speech", "compare"]:
        from commands.parsing import speech_compare

        name, words = "compare", speech_compare(words[1:])
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"perhaps you meant {close[0]}" if close else "see compressive --help"
        raise UserError(f"expected a command out of {', '.join(COMMANDS)}, got {name!r} ({hint})")
    from commands.parsing import parse_command

    options = parse_command(name, words)  # before the module of the command is imported, which needs torch
    line = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, datefmt="%H:%M:%S", handlers=[_Log()], force=True)
    threading.excepthook = _thread_failed
    # The user's own environments are found in the working directory. It is last, so that it hides no package.
    sys.path += [path for path in (str(Path(__file__).parents[1]), os.getcwd()) if path not in ("", *sys.path)]
    getattr(importlib.import_module(f"commands.{COMMANDS[name]}"), COMMANDS[name])(*options)


class _Log(logging.StreamHandler):
    """Writes to what standard error is at the moment: a live line redirects it, to stay below."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _fail(message: str, status: int) -> None:
    """Ends the program with a message; status 2 stands for one line, of which the middle is left out if it is long."""
    from learner.files import redact  # here, because --help must be fast

    line = redact(" ".join(message.split()) if status == 2 else message)
    print("compressive:", line if len(line) <= 2000 else f"{line[:1500]} ... {line[-400:]}", file=sys.stderr)
    sys.exit(status)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Prints the error of a thread, except for TensorBoard's: that is raised again where rows are written."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)
