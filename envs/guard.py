"""Calls into environments, which are foreign code: an error names the environment, the call and the place, and a call
that does not return is interrupted. Every such call, in every process, is made within `calling`.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

STEP_SECONDS = 300.0  # longest duration of a call, unless `limit_calls` sets another: the first one may compile
GRACE_SECONDS = 10.0  # for an interrupted call to return before its process is ended
FRAMES = 4  # of a traceback that errors show
#: Packages whose frames are not an environment's code, except for gymnasium's own environments.
OURS = {"envs", "actors", "commands", "gymnasium", *sys.stdlib_module_names}


class EnvironmentFailed(RuntimeError):
    """An environment raised or exited; the message has its name, the call and, on further lines, the place."""


class WrongOutput(EnvironmentFailed):
    """An environment returned what its spaces or gymnasium's interface do not allow; the message is one line."""


class EnvironmentLost(EnvironmentFailed):
    """A call did not return in time and was interrupted, or the environment's process died."""


class ForeignError(RuntimeError):
    """An error in an environment's own process. The message has the place, too."""


class OutputError(RuntimeError):
    """What is wrong with something that an environment returned: the call, the field, what was expected and came."""


class ProcessDied(RuntimeError):
    """An environment's own process has died."""


class Interrupted(BaseException):
    """Raised within a call that takes too long. Not an Exception, so that few environments catch it."""


_limit = STEP_SECONDS
_call: "calling | None" = None  # which the main thread makes now
_watchdog: threading.Thread | None = None


def limit_calls(seconds: float) -> None:
    """Sets the longest duration of a call into environments in this process: making, resetting or stepping a batch."""
    global _limit
    _limit = seconds


class calling:
    """Context of one call into environments: raises an `EnvironmentFailed` for its errors.

    That is an `EnvironmentLost` if it hangs or dies, and a `WrongOutput` for what it returned.

    Ctrl-C passes, and while environments are made so do errors that are about the user's options, as ValueErrors and
    ImportErrors. Only calls in the main thread are limited in time.

    Args:
        task: the environment's spec.
        when: the call: "while it was made", "in reset", "in step", "in render" and alike.
        actions: of a step.
    """

    def __init__(self, task: str, when: str, actions: Any = None) -> None:
        self.task, self.when, self.actions, self.waited = task, when, actions, 0.0

    def __str__(self) -> str:
        if self.actions is None:
            return self.when
        return f"{self.when} with actions {np.array2string(np.asarray(self.actions), max_line_width=10**6)}"

    def __enter__(self) -> None:
        global _call
        if threading.current_thread() is threading.main_thread():
            if _watchdog is None or not _watchdog.is_alive():  # a fork has none
                _start()
            _call = self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        global _call
        if _call is self:
            _call = None
        if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit, EnvironmentFailed)):
            return
        if isinstance(error, Interrupted):
            problem = f"expected it to return within {_limit:g} s (step-seconds){error}{_place(error)}"
            raise EnvironmentLost(f"environment {self.task} hangs {self}: {problem}") from error
        if isinstance(error, OutputError):
            raise WrongOutput(f"environment {self.task}, {error}") from error
        mistake = about_options(error, making=self.when == "while it was made")
        if mistake and isinstance(error, ImportError):
            return
        if mistake:
            raise type(mistake)(f"environment {self.task}: {mistake}") from error
        failed = EnvironmentLost if isinstance(error, ProcessDied) else EnvironmentFailed
        raise failed(f"environment {self.task} failed {self}: {described(error)}") from error


def close(envs: "VectorEnv", task: str) -> None:
    """Closes environments. Errors are ignored while another error is being handled."""
    failing = sys.exc_info()[1] is not None
    with suppress(EnvironmentFailed) if failing else nullcontext(), calling(task, "in close"):
        envs.close()


def about_options(error: BaseException, making: bool) -> ValueError | ImportError | None:
    """The error that tells the user of a wrong option or a missing package; None if it is a fault of an environment.

    Args:
        error: what a call into environments raised.
        making: whether the call made them. Later errors are faults, but for a package of gymnasium's own environments.
    """
    from gymnasium.error import DependencyNotInstalled

    if isinstance(error, DependencyNotInstalled):
        return ImportError(str(error))
    if not making:
        return None
    if not isinstance(error, (ImportError, ValueError, TypeError, AttributeError)) or _foreign(error):
        return None
    return ImportError(str(error)) if isinstance(error, ImportError) else ValueError(str(error))


def described(error: BaseException) -> str:
    """An error's type and text and, on further lines, its place in the environment's code."""
    if isinstance(error, (ForeignError, ProcessDied)):
        return str(error)
    error = _foreign(error) or error
    return "".join(traceback.format_exception_only(error)).strip() + _place(error)


def _foreign(error: BaseException | None) -> BaseException | None:
    """The error or the first of its causes that went through an environment's code. Gymnasium wraps such errors."""
    while error and all(_is_ours(frame.f_globals) for frame, _ in traceback.walk_tb(error.__traceback__)):
        error = error.__cause__
    return error


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether a frame with these globals is not an environment's code."""
    package, _, rest = str(names.get("__name__")).partition(".")
    if package == "gymnasium" and rest.startswith("envs."):
        return rest == "envs.registration"
    return package in OURS


def _place(error: BaseException) -> str:
    """The last frames of an environment's code in an error, each line preceded by a newline."""
    walk = traceback.walk_tb(error.__traceback__)
    frames = [entry for entry in walk if entry[0].f_globals is not globals()]  # not `_interrupt`
    first = next((index for index, (frame, _) in enumerate(frames) if not _is_ours(frame.f_globals)), 0)
    lines = traceback.StackSummary.extract(iter(frames[first:][-FRAMES:])).format()
    return "\n" + "".join(lines).rstrip() if lines else ""


_SIGNAL = signal.SIGURG  # no other code uses it, and by default it is ignored


def _start() -> None:
    """Starts the process's watchdog. A signal, unlike an asynchronous exception, also ends waits."""
    global _watchdog
    signal.signal(_SIGNAL, _interrupt)
    if last_resort := signal.getsignal(signal.SIGPROF) == signal.SIG_DFL:
        faulthandler.register(signal.SIGPROF, file=2, chain=True)
    _watchdog = threading.Thread(target=_watch, args=(last_resort,), name="environments", daemon=True)
    _watchdog.start()


def _watch(last_resort: bool) -> None:
    """Checks the call periodically. Counts its own checks: the clock does not stop while a process is stopped.

    A call that never releases Python's lock stops this thread, too. Then a timer of CPU time, which this thread resets
    at every check, ends the process by SIGPROF after showing the stack.
    """
    while True:
        seconds = min(1.0, _limit / 4)
        if last_resort:
            signal.setitimer(signal.ITIMER_PROF, 2 * _limit + GRACE_SECONDS)
        time.sleep(seconds)
        _count(seconds)


def _count(seconds: float) -> None:
    """Adds time to the call that is made now, and interrupts it or ends the process when it has taken too long."""
    if (call := _call) is None:
        return
    call.waited += seconds
    if call.waited > _limit + GRACE_SECONDS:
        _give_up(call)
    elif _limit < call.waited <= _limit + seconds:  # once
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)


def _interrupt(number: int, frame: Any) -> None:
    if _call is not None and _call.waited > _limit:
        raise Interrupted


def _give_up(call: calling) -> None:
    """Ends the process: code that does not return to Python cannot be interrupted."""
    ends = f"it did not return within {_limit:g} s (step-seconds) and cannot be interrupted: this process ends"
    os.write(2, f"compressive: environment {call.task} hangs {call}; {ends}\n".encode(errors="replace"))
    faulthandler.dump_traceback(file=2)
    os._exit(1)
