"""Errors that the user can correct, and those of stores. Nothing here imports torch."""

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
        raise UserError(f"{option}: {error}" if option else str(error)) from error
