"""Errors that the user can correct, and those of stores. Nothing here imports torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can correct. Commands show it as one line, without a traceback."""


class StorageError(Exception):
    """A URL cannot be used (a package may be missing) or fails in spite of retries; the message names the URL."""


@contextmanager
def user_errors(option: str = "") -> Iterator[None]:
    """Turns errors that the user can correct into a UserError, which names the option if one is given."""
    try:
        yield
    except (ValueError, ImportError, OSError, StorageError) as error:
        problem = describe(error)
        raise UserError(f"{option}: {problem}" if option else problem) from error


def describe(error: Exception) -> str:
    """An error in words: without the number that the system gives it, and behind the file that it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
