"""A folder of compiled levels that all environments of a machine share, for `deepmind_lab.Lab(..., level_cache=...)`.

Lab needs seconds to compile a map where a level makes a new one for each episode; other processes copy the result.
"""

import hashlib
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from envs.caches import ensure_cache_folder

logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """The folder of the cache, under XDG_CACHE_HOME or ~/.cache; see `envs.caches`."""
    ensure_cache_folder()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / "levels"


class LevelCache:
    """Files by key, at most `max_bytes` of them at any time; the least recently used are removed.

    Any number of processes may use a folder at once, and each may be killed at any time: a file exists complete or not
    at all. Disk errors are logged, not raised, and the cache is not written to after one: Lab works without it.

    The folder is on a local disk. The first write makes it.
    """

    def __init__(self, folder: Path | str, max_bytes: int) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes

    def fetch(self, key: str, path: str) -> bool:
        """Copies the level of a key to `path`; returns False if there is none."""
        try:
            shutil.copyfile(self._file(key), path)
            os.utime(self._file(key))  # the modification time is the time of the last use
        except FileNotFoundError:
            return False
        except OSError as error:
            logger.warning("the level cache could not be read: %s", error)
            with suppress(OSError):
                os.unlink(path)
            return False
        return True

    def write(self, key: str, path: str) -> None:
        """Copies the level at `path` into the cache, unless the key has one or it is too large."""
        file = self._file(key)
        temporary = file.with_suffix(".tmp")
        try:
            size = os.path.getsize(path)
            if size > self.max_bytes:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):  # is released if its process dies
                if file.exists():
                    return
                self._make_room(size)
                shutil.copyfile(path, temporary)
                with temporary.open("rb") as copy:
                    os.fsync(copy.fileno())
                temporary.replace(file)
        except OSError as error:
            logger.warning("the level cache is not written to any more: %s", error)
            self.max_bytes = -1  # every level is too large from now on

    def _file(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.pk3"

    def _make_room(self, size: int) -> None:
        """Removes partial files of killed writers, and the least recently used levels until `size` more bytes fit."""
        for left in self.folder.glob("*.tmp"):
            left.unlink()
        levels = [(file, file.stat()) for file in self.folder.glob("*.pk3")]
        total = size + sum(stat.st_size for _, stat in levels)
        for file, stat in sorted(levels, key=lambda level: level[1].st_mtime_ns):
            if total <= self.max_bytes:
                break
            file.unlink()
            total -= stat.st_size
