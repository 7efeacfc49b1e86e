"""What an error says of a run: what became of what it had learned, and the command that resumes it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from actors import ClusterError
from agent.cuda_graphs import RecordingFailed
from envs import EnvironmentFailed, WrongOutput
from learner.errors import LearnersLost, NotFinite
from storage.errors import StorageError, UserError, describe
from storage.run import LOST, Run
from training.config import Configuration

Again = Callable[[Path | str], str]
"""The command that resumes a run from a folder or URL."""


class Resumable(Protocol):
    """What is said of a `training.loop.Training`, which explains these."""

    config: Configuration
    run: Run
    place: Path | str
    saved: Path | str | None
    took_back: bool


@contextmanager
def advising(training: Resumable, again: Again, say: Callable[[str], None]) -> Iterator[None]:
    """Adds to errors of the block what became of the run, and the command that resumes it.

    Args:
        say: is called with that command if Ctrl-C ends the process at once.

    Raises:
        UserError: for a disk, a memory or a store that is full or fails, and for a folder that is lost.
        Exception: other errors of the block, the causes of Ray's in place of them.
    """
    try:
        yield
    except ConnectionError:  # of standard output, not of a disk
        if training.saved:
            print(f"standard output was closed; {_how_to_resume(training, again, training.run.path)}", file=sys.stderr)
        raise
    except (OSError, StorageError, MemoryError) as error:
        raise UserError(_storage_problem(training, error, again)) from error
    except (EnvironmentFailed, ClusterError, LearnersLost, RecordingFailed, FloatingPointError) as error:
        if not training.saved:
            raise
        cause = getattr(error, "cause", error)  # of an error of Ray
        advice = _how_to_resume(training, again, training.run.path) + _other_options(training.config, cause)
        if training.took_back:
            advice += " (nothing was saved in this launch, so that config.json is as before)"
        # An environment's error has several lines, of which the last is a place in its code.
        has_place = isinstance(error, EnvironmentFailed) and not isinstance(error, WrongOutput)
        separator = "\n" if has_place else "; "
        raise type(cause)(f"{cause}{separator}{advice}") from error
    except KeyboardInterrupt:
        if training.saved:
            say(f"interrupted; {_how_to_resume(training, again, training.run.path)}")
        raise


def _how_to_resume(training: Resumable, again: Again, folder: Path | str) -> str:
    return f"resume from {training.saved} with: {again(folder)}"


def _storage_problem(training: Resumable, error: Exception, again: Again) -> str:
    """What happened to the place where the run is written, and how to resume it."""
    run = training.run
    folder: Path | str = run.path
    problem = str(error) or "out of memory"  # a MemoryError has no text
    if run.lost:
        if training.place == run.path:
            return f"{run}: {LOST}; its last checkpoint is where the folder now is"
        folder = training.place  # a URL
        problem = f"{run}: {LOST}"
    elif isinstance(error, OSError):
        problem = f"{run} cannot be written to: {describe(error)}"
    if training.saved:
        problem += f"; {_how_to_resume(training, again, folder)}"
    return problem


def _other_options(config: Configuration, cause: Exception) -> str:
    """What to resume with: no CUDA graphs if they cannot be recorded, and a smaller learning rate if an update was not
    finite for another reason than its inputs."""
    if isinstance(cause, RecordingFailed):
        return " --learner.no-cuda-graph"
    from_inputs = isinstance(cause, NotFinite) and (cause.from_environments or cause.number == 1)
    if not isinstance(cause, FloatingPointError) or from_inputs:
        return ""
    # The least rate of a schedule may not be above its largest.
    rate = config.learner.learning_rate / 4
    options = f" --learner.learning-rate {rate:.3g}"
    if rate < getattr(config.learner, "least_learning_rate", 0):
        options += f" --learner.least-learning-rate {rate:.3g}"
    return options
