"""Calls into environments, which are foreign code: an error names the environment, the call and the place, and a call
that does not return is interrupted. Every such call, in every process, is made within `calling`.
"""

import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

STEP_SECONDS = 300.0  # longest duration of a call, unless `limit_calls` sets another: the first one may compile
FRAMES = 4  # of a traceback that errors show
OURS = {"envs", "actors", "commands", "gymnasium", *sys.stdlib_module_names}
"""Packages whose frames are not an environment's code, except for gymnasium's own environments."""


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


def limit_calls(seconds: float) -> None:
    """Sets the longest duration of a call into environments in this process: making, resetting or stepping a batch."""
    global _limit
    _limit = seconds


class _Switches(NamedTuple):
    """What holds for the whole process, and environments' code is known to change.

    Modules that run networks of their own turn gradients off, or choose float64; noisy ones silence what is printed.
    """

    output: Any
    errors: Any
    gradients: bool | None
    dtype: Any

    @classmethod
    def now(cls) -> "_Switches":
        """As they are; those of torch are None where it was not imported."""
        torch = sys.modules.get("torch")
        if torch is None:
            return cls(sys.stdout, sys.stderr, None, None)
        return cls(sys.stdout, sys.stderr, torch.is_grad_enabled(), torch.get_default_dtype())

    def restore(self) -> None:
        """Sets them to what they were."""
        sys.stdout, sys.stderr = self.output, self.errors
        if self.dtype is not None:
            torch = sys.modules["torch"]
            torch.set_grad_enabled(self.gradients)
            torch.set_default_dtype(self.dtype)


class calling:
    """Context of one call into environments: raises an `EnvironmentFailed` for its errors.

    That is an `EnvironmentLost` if it hangs or dies, and a `WrongOutput` for what it returned.

    Ctrl-C passes, and while environments are made so do errors that are about the user's options, as ValueErrors and
    ImportErrors. Only calls in the main thread are limited in time, by a signal (SIGALRM): it ends waits, too, but not
    code that does not return to Python. On Ray the pool replaces an actor that such code stops.

    What the call switches for the whole process, such as torch's default dtype, is as before after it.

    Args:
        task: the environment's spec.
        when: the call: "while it was made", "in reset", "in step", "in render" and alike.
        actions: of a step.
    """

    def __init__(self, task: str, when: str, actions: Any = None) -> None:
        self.task = task
        self.when = when
        self.actions = actions
        self.rings = 0
        self.switches = _Switches.now()

    def __str__(self) -> str:
        if self.actions is None:
            return self.when
        return f"{self.when} with actions {np.array2string(np.asarray(self.actions), max_line_width=10**6)}"

    def __enter__(self) -> None:
        global _call
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, _ring)  # at every call: other code may have set a handler of its own
            _call = self
            _wind(_limit / 2)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        global _call
        if _call is self:
            _wind(0)
            _call = None
        if _Switches.now() != self.switches:
            self.switches.restore()
        if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit, EnvironmentFailed)):
            return
        if isinstance(error, Interrupted):
            expected = f"expected it to return within {_limit:g} s (step-seconds)"
            raise EnvironmentLost(f"environment {self.task} hangs {self}: {expected}{error}{_place(error)}") from error
        if isinstance(error, OutputError):
            raise WrongOutput(f"environment {self.task}, {error}") from error
        mistake = about_options(error, making=self.when == "while it was made")
        if mistake and isinstance(error, ImportError):
            return
        if mistake:
            raise type(mistake)(f"environment {self.task}: {mistake}") from error
        failed = EnvironmentFailed
        if isinstance(error, ProcessDied):
            failed = EnvironmentLost
        raise failed(f"environment {self.task} failed {self}: {describe_error(error)}") from error


@contextmanager
def not_counted() -> Iterator[None]:
    """Within the call that is made now: this block does not count, and the whole time is left after it."""
    is_limited = _call is not None and threading.current_thread() is threading.main_thread()
    if is_limited:
        _wind(0)
    try:
        yield
    finally:
        if is_limited and _call is not None:
            _call.rings = 0
            _wind(_limit / 2)


def close(envs: "VectorEnv", task: str) -> None:
    """Closes environments. Errors are ignored while another error is being handled."""
    is_handling_another = sys.exc_info()[1] is not None
    try:
        with calling(task, "in close"):
            envs.close()
    except EnvironmentFailed:
        if not is_handling_another:
            raise


@contextmanager
def closed_on_error(envs: "VectorEnv", task: str) -> Iterator[None]:
    """Closes environments, which may have processes, if the block raises: their actor could not be made, say."""
    try:
        yield
    except BaseException:
        close(envs, task)
        raise


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
    if _foreign(error):
        return None
    if isinstance(error, ImportError):
        return ImportError(str(error))
    if isinstance(error, TypeError):
        return ValueError(_about_arguments(str(error)))
    if isinstance(error, (ValueError, AttributeError)):
        return ValueError(str(error))
    return None


def _about_arguments(text: str) -> str:
    """The text of a TypeError without what gymnasium adds, and with how an argument that is missing is given."""
    text, _, _ = text.partition(" was raised from the environment creator for ")
    missing = re.search(r"missing \d+ required .*?'(\w+)'", text)
    if missing is None:
        return text
    return f"{text}; arguments stand behind the name, as in ,{missing[1]}=VALUE"


def describe_error(error: BaseException) -> str:
    """An error's type and text and, on further lines, its place in the environment's code."""
    if isinstance(error, (ForeignError, ProcessDied)):
        return str(error)
    error = _foreign(error) or error
    return "".join(traceback.format_exception_only(error)).strip() + _place(error)


def _foreign(error: BaseException | None) -> BaseException | None:
    """The error or the first of its causes that went through an environment's code. Gymnasium wraps such errors."""
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not all(_is_ours(frame.f_globals) for frame in frames):
            return error
        error = error.__cause__
    return None


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether a frame with these globals is not an environment's code."""
    package, _, rest = str(names.get("__name__")).partition(".")
    if package == "gymnasium" and rest.startswith("envs."):
        return rest == "envs.registration"
    return package in OURS


def _place(error: BaseException) -> str:
    """The last frames of an environment's code in an error, each line preceded by a newline."""
    walk = traceback.walk_tb(error.__traceback__)
    frames = [entry for entry in walk if entry[0].f_globals is not globals()]  # not `_ring`

    # From the environment's own code on, if it is there.
    for index, (frame, _) in enumerate(frames):
        if not _is_ours(frame.f_globals):
            frames = frames[index:]
            break

    lines = traceback.StackSummary.extract(iter(frames[-FRAMES:])).format()
    if not lines:
        return ""
    return "\n" + "".join(lines).rstrip()


def _wind(seconds: float) -> None:
    """Lets the timer ring every so many seconds; never for 0."""
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def _ring(number: int, frame: Any) -> None:
    """Interrupts the call that is made now when the timer rings for the second time, and whenever it rings after that.

    One ring would not do: it is all that is left of the time in which a process was stopped, by Ctrl-Z for example.
    """
    if _call is not None:
        _call.rings += 1
        if _call.rings >= 2:
            raise Interrupted
