"""What a command must allow of a run that another person made: URLs of checkpoints, and code that environments name.

Code is checked by `envs.require_consent`; see `Trust` in docs/decisions.md.
"""

import shlex
from pathlib import Path

from storage.run import Run
from training.config import Configuration


def checkpoint_place(config: Configuration, run: Run, *allowed: str | None) -> Path | str:
    """Where the checkpoints of a run with a configuration are: in its folder, or at a URL.

    Raises a ValueError for a URL that is not among those that the user has typed, joined by commas; see `Trust` in
    docs/decisions.md.
    """
    url = getattr(config, "checkpoint_url", None)
    if not url:
        return run.path
    known: set[str] = set()
    for names in allowed:
        if names:
            # A URL may have commas in it, so that the whole text may also be one.
            known |= {names, *names.split(",")}
    if url not in known:
        raise ValueError(
            f"{run} has its checkpoints at a URL: expected one that is allowed; if you trust it, "
            f"--allow {shlex.quote(url)}"
        )
    return url


def permissions(*configs: Configuration) -> str:
    """The words behind a command that allow what runs name: the user's own code, and URLs; empty if there is none."""
    from envs import foreign_code  # here, because it imports gymnasium

    code: dict[str, None] = {}  # in order, each name once
    urls: dict[str, None] = {}
    for config in configs:
        for env in getattr(config, "named_environments", ()):
            code |= dict.fromkeys(foreign_code(env))
        if url := getattr(config, "checkpoint_url", None):
            urls[url] = None
    if not code and not urls:
        return ""
    return f" --allow {shlex.quote(','.join(code | urls))}"
