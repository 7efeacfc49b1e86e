"""What a command must allow of a run that another person made: URLs of checkpoints, and code.

Code is that of environments, which `envs.require_consent` checks, and of a core; see `Trust` in docs/decisions.md.
"""

import shlex
from pathlib import Path

from agent.core import CustomCoreConfig
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


def require_core(config: Configuration, *allowed: str | None) -> None:
    """Raises a ValueError for a custom core that the user has not typed, unless one of the texts allows its code.

    `allowed`: names of code and URLs, joined by commas; that of a core is "core:MODULE:CLASS".
    """
    core = config.core_config
    if not isinstance(core, CustomCoreConfig):
        return
    from envs.specs import split_at_commas  # here, because it imports gymnasium

    name = f"core:{core.name}"
    permitted = [part for text in allowed if text for part in split_at_commas(text)]
    if name not in permitted:
        permit = f"permit it with --allow {shlex.quote(name)}"
        raise ValueError(f"the run's core {core.name!r} can run any code: if you trust it, {permit}")


def code_of(config: Configuration) -> tuple[str, ...]:
    """What a run names that may be code: its environments, and a custom core as "core:MODULE:CLASS"."""
    found = tuple(getattr(config, "named_environments", ()))
    core = config.core_config
    if isinstance(core, CustomCoreConfig):
        found += (f"core:{core.name}",)
    return found


def permissions(*configs: Configuration) -> str:
    """The words behind a command that allow what runs name: the user's own code, and URLs; empty if there is none."""
    from envs import foreign_code  # here, because it imports gymnasium

    code: dict[str, None] = {}  # in order, each name once
    urls: dict[str, None] = {}
    for config in configs:
        for name in code_of(config):
            needed = [name] if name.startswith("core:") else foreign_code(name)
            code |= dict.fromkeys(needed)
        if url := getattr(config, "checkpoint_url", None):
            urls[url] = None
    if not code and not urls:
        return ""
    return f" --allow {shlex.quote(','.join(code | urls))}"
