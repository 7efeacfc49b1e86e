"""The folder in which libraries keep what they compile or prepare once, where the user has none that can be written to.

A user without a home, as in `docker run --user 54321`, has HOME=/ or no HOME. There numba refuses to compile what is to
be cached, other libraries fail or warn, and some create a folder named "~".
"""

import functools
import logging
import os
import stat
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)


@functools.cache
def ensure_cache_folder() -> None:
    """Lets libraries of this process, and of those it starts, cache in the temporary folder if they cannot at home.

    Sets environment variables, and logs a warning that says where. Does nothing if there is a folder for caches that
    can be written to, or a parent in which it can be made, and at later calls.
    """
    try:
        Path.home()
    except RuntimeError:  # HOME is not set, and the user has no name
        os.environ["HOME"] = "/"  # as Docker does
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    if is_writable(wanted):
        return
    folder = _private_folder()
    if folder is None:
        logger.warning("%s cannot be written to, nor can a temporary folder: nothing is cached", wanted)
        return
    os.environ["XDG_CACHE_HOME"] = str(folder)
    os.environ.setdefault("MPLCONFIGDIR", str(folder / "matplotlib"))
    logger.warning("%s cannot be written to: caching in %s; XDG_CACHE_HOME names another folder", wanted, folder)


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written to or, if it does not exist, be made."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _private_folder() -> Path | None:
    """A folder of this user in the temporary folder; None if it cannot be written to, or another user made it.

    What numba caches is code: no other user may write there.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"compressive-impala-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_may_write:
        return folder
    return None
