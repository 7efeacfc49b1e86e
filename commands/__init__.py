"""The command line, `compressive COMMAND`: finds the module of a command and turns errors into messages.

Bad input ends with one line on standard error and exit status 2, before any work is done. An error in the code of an
environment ends with its name, the place where it was raised, and status 1; what an environment returns and should not,
with one line and status 2.
"""

import difflib
import errno
import importlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

from commands.streams import surviving_streams
from storage.errors import UserError
from training.signals import terminated_by_error

USAGE = """compressive: agents that remember. IMPALA on Ray, with a Compressive Transformer.

train   launch      an agent, here or on a Ray cluster; then evaluate and film it
        text        a language model on the same core; also evaluate, sample
        speech      a model of raw waveforms on the same core
        images      a model of pixels on the same core
        compare     variants with several seeds each, and compare them in a report
look    runs        the runs of a folder: state, score, and what to type next
        status      one run: scores, actors, policy lag, last checkpoint
        report      one page about a run: curves, evaluation, memory, provenance
        visualize   what an agent attends to, step by step: a video and a page
        watch       these pages in the browser, live while runs train
        mirror      a run's metrics in Weights & Biases
use     evaluate    scores of trained agents, of an oracle, or of random actions
        export      a trained agent in a small folder, or as ONNX for other programs
        push, pull  share agents through the Hugging Face Hub
        record      episodes of an agent as a Minari dataset
        completion  commands and options for bash and zsh

begin   compressive launch              two CPU cores, under 10 minutes
        compressive COMMAND --help      the options of a command
        compressive --version
"""
_NAMES = "launch evaluate visualize report compare export push pull record status runs watch mirror completion"
COMMANDS = {name: name for name in _NAMES.split()} | dict.fromkeys(("text", "speech", "images"), "sequence")
"""Modules of commands by the name of the command; each has a function of its own name."""

PRINTING = {"status", "runs", "evaluate", "completion"}
PRINTING |= {"text sample", "text evaluate", "speech evaluate", "images evaluate"}
"""Commands whose only result, or whose main one, is what they print."""

TALKATIVE = ("httpx", "httpx2", "matplotlib.font_manager", "torch")
"""Loggers that say what is no news: every request, where fonts are, and how a cache was used."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console command `compressive`."""
    typed = sys.argv[1:] if arguments is None else arguments
    with surviving_streams(only_prints=_only_prints(typed)):
        _main(typed)


def _only_prints(typed: Sequence[str]) -> bool:
    """Whether a command does nothing but print: others also train, write files or serve pages."""
    name, *words = typed or ["help"]
    asks_for_help = not {"-h", "--help", "help"}.isdisjoint(words)
    part = " ".join([name, *words[:1]])
    return name not in COMMANDS or not PRINTING.isdisjoint({name, part}) or asks_for_help


def _main(typed: Sequence[str]) -> None:
    name, *words = typed or ["help"]
    try:
        if name in ("-h", "--help", "help"):
            print(USAGE, end="")
        elif name == "--version":
            print("compressive", _version())
        else:
            with terminated_by_error():
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
    except KeyboardInterrupt as interrupt:
        sys.exit(getattr(interrupt, "status", 130))
    except Exception as error:
        from actors import ClusterError  # here, because --help must be fast
        from agent.cuda_graphs import RecordingFailed
        from envs import EnvironmentFailed, WrongOutput
        from learner.errors import LearnersLost

        expected = (EnvironmentFailed, ClusterError, LearnersLost, RecordingFailed, FloatingPointError)
        if not isinstance(error, expected):
            raise
        cause = getattr(error, "cause", error)  # of an error of Ray, whose own message is a traceback
        status = 2 if isinstance(cause, WrongOutput) else 1
        _fail(str(cause), status)


def _version() -> str:
    """The version that is installed. A Ray job runs from a folder, without an installation."""
    for installed in distributions(name="compressive-impala"):
        return installed.version
    return "(not installed)"


def _run(name: str, words: list[str]) -> None:
    if name not in COMMANDS:
        hint = "see compressive --help"
        for close in difflib.get_close_matches(name, COMMANDS, 1):
            hint = f"perhaps you meant {close}"
        raise UserError(f"expected a command out of {', '.join(COMMANDS)}, got {name!r} ({hint})")
    # Options are read before the module of the command is imported, which needs torch.
    from commands.parsing import parse_command

    options = parse_command(name, words)

    from envs.caches import ensure_cache_folder

    line = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, datefmt="%H:%M:%S", handlers=[_Log()], force=True)
    for package in TALKATIVE:
        logging.getLogger(package).setLevel(logging.WARNING)
    threading.excepthook = _thread_failed
    ensure_cache_folder()
    # Without an installation, other modules of the project are found beside this package.
    root = str(Path(__file__).parents[1])
    if root not in sys.path:
        sys.path.append(root)

    from rich.console import Console

    Console.on_broken_pipe = _broken_pipe  # type: ignore[assignment,method-assign]

    module = importlib.import_module(f"commands.{COMMANDS[name]}")
    command = getattr(module, COMMANDS[name])
    command(*options)


def _broken_pipe(console: Any) -> NoReturn:
    """What rich does when its output is closed. By itself it would end the program before a training has been saved."""
    console.quiet = True
    raise BrokenPipeError(errno.EPIPE, "standard output was closed")


class _Log(logging.StreamHandler):
    """Writes to what standard error is at the moment: a live line redirects it, to stay below."""

    def format(self, record: logging.LogRecord) -> str:
        from storage.files import printable  # here, because --help must be fast

        return printable(super().format(record), layout="\n\t")

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _fail(message: str, status: int) -> None:
    """Ends the program with a message; status 2 stands for one line, of which the middle is left out if it is long."""
    from storage.files import printable, redact  # here, because --help must be fast

    if status == 2:
        message = " ".join(message.split())
    message = printable(redact(message), layout="\n\t")
    if len(message) > 2000:
        message = f"{message[:1500]} ... {message[-400:]}"
    print("compressive:", message, file=sys.stderr)
    sys.exit(status)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Prints the error of a thread, except for TensorBoard's: that is raised again where rows are written."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)
