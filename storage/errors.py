"""Errors that the user can correct, and those of stores. Nothing here imports torch."""


class UserError(Exception):
    """An error that the user can correct. Commands show it as one line, without a traceback."""


class StorageError(Exception):
    """A URL cannot be used (a package may be missing) or fails in spite of retries; the message names the URL."""
