"""Standard output and standard error of a command, which may be closed, or on a disk that is full.

What is printed is then lost, and nothing else: a training continues, only its log is missing. A pipe whose reader has
ended is left to the command.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class _Stream:
    """A stream of text whose writes raise no error when the disk behind it is full.

    error: the first error of a write.
    is_closed: whether there was no stream when the program began.
    has_lost: whether something was to be written to a stream that is closed.
    """

    def __init__(self, stream: Any) -> None:
        self.is_closed = stream is None
        self.has_lost = False
        # A file that is opened later must not become standard output, into which libraries write.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | None = None
        if isinstance(self._stream, io.TextIOWrapper):  # the terminal may lack a character, or a name not be valid text
            self._stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self.has_lost = self.is_closed
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    def close(self) -> None:
        """Leaves it open: an environment that closes standard output does not know who else writes there."""
        self.flush()

    def drop(self) -> None:
        """Drops what cannot be written, of which Python would complain once more at its end."""
        try:
            self._stream.flush()
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = self.error or error


@contextmanager
def surviving_streams(only_prints: bool = False) -> Iterator[None]:
    """In the block, prints that cannot be written are lost. Then the program ends with one line and status 1.

    Standard output that is closed from the beginning means that no log is wanted. It is an error only for a program
    that `only_prints`.
    """
    before = sys.stdout, sys.stderr
    output: Any = _Stream(sys.stdout)
    errors: Any = _Stream(sys.stderr)
    sys.stdout = output
    sys.stderr = errors
    try:
        yield
        _require_written(output, only_prints)
    except SystemExit as stop:
        if not stop.code:  # as after --help
            _require_written(output, only_prints)
        raise
    finally:
        output.drop()
        errors.drop()
        sys.stdout, sys.stderr = before


def _require_written(output: _Stream, only_prints: bool) -> None:
    """Ends the program if something that was printed is lost; see `surviving_streams`."""
    output.flush()
    if output.is_closed and only_prints and output.has_lost:
        print("compressive: standard output is closed", file=sys.stderr)
        sys.exit(1)
    if output.error:
        print(f"compressive: standard output: {output.error.strerror}", file=sys.stderr)
        sys.exit(1)
