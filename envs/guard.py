"""Calls into environments, which are foreign code: an error names the environment, the call and the place, and a call
that does not return is interrupted. Every such call, in every process, is made within `calling`.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
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


class EnvironmentHung(EnvironmentFailed):
    """A call into an environment did not return in time and was interrupted."""


class Interrupted(BaseException):
    """Raised within a call that takes too long. Not an Exception, so that few environments catch it."""


_limit = STEP_SECONDS
_calls: dict[int, "calling"] = {}  # by thread
_watchdog: threading.Thread | None = None


def limit_calls(seconds: float) -> None:
    """Sets the longest duration of a call into environments in this process: making, resetting or stepping a batch."""
    global _limit
    _limit = seconds


class calling:
    """Context of one call into environments: raises `EnvironmentFailed` or `EnvironmentHung` for its errors.

    Ctrl-C passes. So do, while environments are made, ValueErrors and ImportErrors that their code did not raise: they
    are about the user's options.

    Args:
        task: the environment's spec.
        when: the call: "while it was made", "in reset", "in step" or "in close".
        actions: of a step.
    """

    __slots__ = ("actions", "interrupted", "outer", "task", "thread", "waited", "when")

    def __init__(self, task: str, when: str, actions: Any = None) -> None:
        self.task, self.when, self.actions = task, when, actions
        self.waited, self.interrupted = 0.0, False

    def __str__(self) -> str:
        if self.actions is None:
            return self.when
        return f"{self.when} with actions {np.array2string(np.asarray(self.actions), max_line_width=10**6)}"

    def __enter__(self) -> None:
        if _watchdog is None or not _watchdog.is_alive():  # a fork has none
            _start()
        self.thread = threading.get_ident()
        self.outer = _calls.get(self.thread)
        _calls[self.thread] = self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.outer is None:
            del _calls[self.thread]
        else:
            _calls[self.thread] = self.outer
        if self.interrupted:  # cancels an exception that was set for this thread and not raised yet
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)
        if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit, EnvironmentFailed)):
            return
        if isinstance(error, Interrupted):
            expected = f"expected it to return within {_limit:g} s (step-seconds)"
            raise EnvironmentHung(f"environment {self.task} hangs {self}: {expected}{_place(error)}") from error
        making = self.when == "while it was made"
        if making and isinstance(error, (ValueError, ImportError)) and not is_foreign(error):
            return
        said = traceback.format_exception_only(error)
        text = "".join(said[:1] if _notes(error) else said).strip()  # such notes are the place
        raise EnvironmentFailed(f"environment {self.task} failed {self}: {text}{_place(error)}") from error


def close(envs: "VectorEnv", task: str) -> None:
    """Closes environments. Errors are ignored while another error is being handled."""
    failing = sys.exc_info()[1] is not None
    with suppress(EnvironmentFailed) if failing else nullcontext(), calling(task, "in close"):
        envs.close()


def is_foreign(error: BaseException) -> bool:
    """Whether an environment's code raised an error or called what raised it, in this process or another."""
    frames = traceback.walk_tb(error.__traceback__)
    return bool(_notes(error)) or any(not _is_ours(frame.f_globals) for frame, _ in frames)


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether a frame with these globals is not an environment's code."""
    package, _, rest = str(names.get("__name__")).partition(".")
    if package == "gymnasium" and rest.startswith("envs."):
        return rest == "envs.registration"
    return package in OURS


def _notes(error: BaseException) -> list[str]:
    """Lines that an environment's process added to an error; see `envs.processes`."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in environment process")]
    return "".join(notes).strip().splitlines()


def _place(error: BaseException) -> str:
    """The last frames of an environment's code in an error, each line preceded by a newline."""
    if lines := _notes(error):
        return "".join(f"\n  {line}" for line in [lines[0], *lines[1:][-2 * FRAMES :]])
    walk = traceback.walk_tb(error.__traceback__)
    frames = [entry for entry in walk if entry[0].f_globals is not globals()]  # not `_interrupt_here`
    first = next((index for index, (frame, _) in enumerate(frames) if not _is_ours(frame.f_globals)), 0)
    return _lines(traceback.StackSummary.extract(iter(frames[first:][-FRAMES:])))


def _lines(summary: traceback.StackSummary) -> str:
    return "\n" + "".join(summary.format()).rstrip() if summary else ""


_SIGNAL = signal.SIGURG  # interrupts the main thread's waits; no other code uses it, and by default it is ignored


def _start() -> None:
    """Starts the process's watchdog. Started from the main thread, it can also interrupt that thread's waits."""
    global _watchdog
    if threading.current_thread() is threading.main_thread():
        signal.signal(_SIGNAL, _interrupt_here)
    if last_resort := signal.getsignal(signal.SIGPROF) == signal.SIG_DFL:
        faulthandler.register(signal.SIGPROF, file=2, chain=True)
    _watchdog = threading.Thread(target=_watch, args=(last_resort,), name="environments", daemon=True)
    _watchdog.start()


def _watch(last_resort: bool) -> None:
    """Checks all calls periodically. Counts its own checks: the clock does not stop while a process is stopped.

    A call that never releases Python's lock stops this thread, too. Then a timer of CPU time, which this thread resets
    at every check, ends the process by SIGPROF after showing the stack.
    """
    never = threading.Event()
    while True:
        seconds = min(1.0, _limit / 4)
        if last_resort:
            signal.setitimer(signal.ITIMER_PROF, 2 * _limit + GRACE_SECONDS)
        never.wait(seconds)
        for call in list(_calls.values()):
            call.waited += seconds
            if call.waited > _limit + GRACE_SECONDS:
                _give_up(call)
            elif call.waited > _limit and not call.interrupted:
                call.interrupted = True
                _interrupt(call)


def _interrupt(call: calling) -> None:
    if call.thread == threading.main_thread().ident and signal.getsignal(_SIGNAL) is _interrupt_here:
        signal.pthread_kill(call.thread, _SIGNAL)
    else:  # is raised once the thread runs Python code again
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(call.thread), ctypes.py_object(Interrupted))


def _interrupt_here(number: int, frame: Any) -> None:
    call = _calls.get(threading.get_ident())
    if call is not None and call.interrupted:
        raise Interrupted


def _give_up(call: calling) -> None:
    """Ends the process: code that does not return to Python cannot be interrupted."""
    stack = list(traceback.walk_stack(sys._current_frames().get(call.thread)))[:FRAMES]
    where = _lines(traceback.StackSummary.extract(iter(stack[::-1])))
    ends = f"it did not return within {_limit:g} s (step-seconds) and cannot be interrupted: this process ends"
    os.write(2, f"compressive: environment {call.task} hangs {call}; {ends}{where}\n".encode(errors="replace"))
    os._exit(1)
