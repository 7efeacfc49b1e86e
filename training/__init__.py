"""One run from start to end: its folder, configuration, training loop, evaluation and sweeps. No command lines."""


class UserError(Exception):
    """An error that the user can correct. Commands show it as one line, without a traceback."""
