"""The folder of a run: the names of its files, the process that uses it, its configuration, evaluation and state.

Other modules ask a `Run` for the paths of its files. They name files themselves only inside `checkpoints/` and
`samples/`, in the rows of metrics, in links between pages, and where a run is not yet a folder on this disk.
"""

import errno
import fcntl
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from storage.errors import UserError
from storage.files import (
    Json,
    abbreviate,
    is_temporary_name,
    is_url,
    open_regular,
    read_json,
    require_no_link,
    write_json,
)

RUN_COMMANDS = {
    "launch": ("compressive launch", "compressive evaluate, visualize, report, compare --from or launch --resume"),
    "text": ("compressive text train", "compressive text evaluate, sample or train --resume"),
    "speech": ("compressive speech train", "compressive speech evaluate, sample or train --resume"),
    "images": ("compressive images train", "compressive images evaluate, sample or train --resume"),
}
"""Kinds of runs: the command that creates one, and the commands that accept it. `config.json` names the kind, except
for `launch`."""
LOOK_SECONDS = 0.5
"""How long one waits for a lock at least: commands that look at a run hold it for a moment."""
LOST = "the folder was moved, removed or replaced while it was in use"
"""What became of the folder of a run that `Run.lost` is true of."""


class Run:
    """The folder of a run. One process uses it at a time.

    `checkpoint`: the name of the checkpoint to read; None for the newest readable one. See `find_run`.
    """

    def __init__(self, path: Path | str, checkpoint: str | None = None) -> None:
        self.path = Path(path)
        self.checkpoint = checkpoint
        self.config_file = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.videos = self.path / "videos"
        self.samples = self.path / "samples"
        self.report = self.path / "report.html"
        self.metrics_file = self.path / "metrics.jsonl"
        self.tokenizer_file = self.path / "tokenizer.json"
        self.corpus_file = self.path / "corpus.json"
        self.error_file = self.path / "error.txt"
        self.launches_file = self.path / "launches.jsonl"
        self._lock_file = self.path / ".lock"
        self._begun = (self.config_file, self.tokenizer_file, self.corpus_file)
        self._locked: tuple[os.stat_result, os.stat_result] | None = None  # the folder and its lock, while it is locked

    def __str__(self) -> str:
        if self.checkpoint is not None:
            return str(self.checkpoints / self.checkpoint)
        return str(self.path)

    @contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """Keeps other processes out. Waits `patience` seconds for one to leave the folder.

        Raises:
            UserError: if the folder is in use, or was replaced meanwhile.
            OSError: if it does not exist or cannot be written to, the lock is not a regular file, or a folder of the
                run is a link.
        """
        os.stat(self.path)  # before filelock would make the folder
        for folder in (self.checkpoints, self.videos, self.samples):
            require_no_link(folder)
        if os.path.lexists(self._lock_file):  # filelock would follow a link
            os.close(open_regular(self._lock_file))
        lock = FileLock(self._lock_file, timeout=max(patience, LOOK_SECONDS), poll_interval=0.1, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(f"{self.path} is in use by another process") from error

        # While this process waited, the one before may have removed the folder with its lock.
        try:
            self._locked = os.stat(self.path), os.stat(self._lock_file)
            self.require()
            yield
        finally:
            self._locked = None
            lock.release()

    def wait_for_others(self, patience: float) -> None:
        """Waits until no other process uses the folder, if there is one; raises a UserError after `patience` seconds.

        Before that it is not known whether the run has begun: the other process may be about to begin it.
        """
        if not self.path.is_dir():
            return
        # The other process removes a folder in which it has begun nothing.
        with suppress(FileNotFoundError), self.lock(patience):
            pass

    @property
    def lost(self) -> bool:
        """Whether this process locked the folder, and it was moved, removed or replaced since, or locked by another."""
        if self._locked is None:
            return False
        folder, lock = self._locked
        try:
            if os.path.lexists(self._lock_file):
                return not os.path.samestat(os.stat(self._lock_file), lock)
            return not os.path.samestat(os.stat(self.path), folder)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a file server does not answer for a moment
            return False

    def require(self) -> None:
        """Raises an OSError if the folder is lost."""
        if self.lost:
            raise FileNotFoundError(errno.ENOENT, LOST, str(self.path))

    def require_lock(self) -> None:
        """Raises an OSError if the folder is lost, or has no lock any more, so that another process might use it."""
        self.require()
        if self._locked is not None and not os.path.lexists(self._lock_file):
            raise FileNotFoundError(errno.ENOENT, "the lock of the run was removed", str(self._lock_file))

    @property
    def name(self) -> str:
        """The folder's own name, whatever path led to it, and that of the checkpoint to read."""
        folder = self.path.resolve().name
        return folder if self.checkpoint is None else f"{folder}-{self.checkpoint}"

    @property
    def has_checkpoints(self) -> bool:
        """Whether there may be something in the folder to resume from."""
        return any(path.suffix != ".tmp" for path in self.checkpoints.glob("*"))

    @property
    def has_weights_alone(self) -> bool:
        """Whether its newest checkpoint is that of an exported agent, which can be played and not resumed."""
        names = sorted(path.name for path in self.checkpoints.glob("*") if path.suffix != ".tmp")
        if not names:
            return False
        newest = self.checkpoints / names[-1]
        return (newest / "weights.safetensors").is_file() and not (newest / "optimizer.safetensors").exists()

    @contextmanager
    def claim(self, new: bool, saved: Callable[[], bool] = lambda: False, patience: float = 0.0) -> Iterator[None]:
        """Locks the folder. A new one is created, and removed again if there is nothing to resume from at the end.

        Args:
            new: whether the folder must be new, or hold nothing that could be lost.
            saved: whether the run has a checkpoint outside the folder.

        Raises:
            UserError: if the folder is in use, or not new.
            OSError: if it cannot be created or written to.
        """
        made = not self.path.exists()
        begun = self.config_file.exists()
        found = {path for path in (*self._begun, self._lock_file) if os.path.lexists(path)}
        if new:
            self.require_new()
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock(patience):
            if new:
                self.require_new()  # again: another process may have begun a run there in the meantime
            try:
                yield
            finally:
                # A folder that holds nothing to resume from is in the way of the next attempt.
                resumable = (saved() or self.has_checkpoints) and self.config_file.exists()
                if new and not begun and not resumable and not self.lost:
                    self._remove(made, found)

    def _remove(self, folder: bool, kept: Set[Path]) -> None:
        """Removes what a run has before its first checkpoint but for files that are `kept`, and its empty folder."""
        for path in {*self._begun, self._lock_file} - kept:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not there, or not empty
            self.checkpoints.rmdir()
        if folder:
            with suppress(OSError):
                self.path.rmdir()

    def require_new(self) -> None:
        """Raises a UserError if there is more than what a run that was killed before its first checkpoint leaves, or a
        file in place of the folder."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"run: expected a new folder, and {self.path} is a file")
        begun = {path.name for path in self._begun if self._is_own(path)}
        begun |= {self._lock_file.name, self.checkpoints.name}
        others = []
        for path in self.path.iterdir():
            is_being_written = any(is_temporary_name(path.name, each.name) for each in self._begun)
            if path.name not in begun and not is_being_written:
                others.append(path)
        if others or self.has_checkpoints:
            again = f"--resume {shlex.quote(str(self.path))}"
            raise UserError(f"{self.path} already exists and is not empty: expected a new folder, or {again}")

    def _is_own(self, path: Path) -> bool:
        """Whether a file of `_begun` is what a run writes, and not the user's own of that name."""
        always_there = "seed" if path == self.config_file else "digest"
        with suppress(ValueError, OSError):
            content = read_json(path)
            return isinstance(content, dict) and always_there in content
        return False

    def write_config(self, plain: Mapping[str, object]) -> None:
        """Writes `config.json`: the resolved configuration, as `training.plain.to_plain` gives it."""
        write_json(self.config_file, plain)

    def _what_is_expected(self) -> str:
        """What to name in place of a folder that is no run, which may be one of runs, such as a sweep's."""
        inside = sorted(file.parent for file in self.path.glob("*/config.json"))
        if inside:
            return f"expected one of the runs in it, such as {inside[0]}"
        made = ", ".join(f"`{command}`" for command, _ in RUN_COMMANDS.values())
        return f"expected a folder with config.json, created by {made}"

    def read_kind(self) -> tuple[str, Json]:
        """The kind of the run, one of `RUN_COMMANDS`, and the rest of its `config.json`.

        Raises:
            FileNotFoundError: if the folder is not a run.
            ValueError: if the file cannot be read, or names an unknown kind.
        """
        if not self.config_file.is_file():
            raise FileNotFoundError(f"{self} is not a run: {self._what_is_expected()}")

        # It may be another person's, so nothing in it is trusted.
        plain = read_json(self.config_file)
        if not isinstance(plain, dict):
            raise ValueError(f"{self.config_file}: expected an object, got {abbreviate(plain)}")
        kind = plain.pop("kind", "launch")
        if kind not in list(RUN_COMMANDS):  # a list, because JSON's values need not be hashable
            raise ValueError(
                f"{self.config_file}: kind: expected one of {', '.join(RUN_COMMANDS)}, got {abbreviate(kind)}"
            )
        return kind, plain

    def record_file(self, kind: str) -> Path:
        """In which a run of a kind keeps `Modality.record`."""
        if kind == "text":
            return self.tokenizer_file
        return self.corpus_file

    def evaluation_file(self, split: str | None = None) -> Path:
        """The summary of the evaluation at the end, of a later one on a split, or, "at-STEP", of an earlier end."""
        if split:
            return self.path / f"evaluation-{split}.json"
        return self.path / "evaluation.json"

    def not_finite_file(self, update: int) -> Path:
        """A batch that could not be learned from."""
        return self.path / f"not-finite-{update}.safetensors"

    @property
    def in_use(self) -> bool:
        """Whether a process on this machine has locked the run."""
        try:
            with os.fdopen(open_regular(self._lock_file)) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # filelock would need permission to write
        except BlockingIOError:
            return True
        except OSError:  # there is no lock, or none that can be opened
            return False
        return False

    def last_row(self, metric: str = "step") -> Json:
        """The last row of metrics that has a metric; empty if there is none."""
        from storage.metrics import last_metrics  # here, because it imports torch

        return last_metrics(self.path, metric)

    def state(self, row: Mapping[str, float], counter: str, total: int) -> str:
        """Whether the run is running, stopped, trained, or finished, that is evaluated as well; or exported earlier.

        `counter` counts in its last row of metrics what was learned, and is `total` at the end of training.
        """
        if self.in_use:
            return "running" if row else "running; nothing measured yet"
        if not row.get(counter, math.nan) >= total:  # also if it is NaN
            if self.has_weights_alone:
                return "exported"
            return "stopped" if row else "stopped; nothing measured yet"
        if self.evaluation_file().is_file():
            return "finished"
        return "exported" if self.has_weights_alone else "trained, but not evaluated"


def of_checkpoint(name: str, run: Run) -> str:
    """The name of what is made of a run, or, if it stands for one of its checkpoints, of that."""
    return f"{name}-at-{run.checkpoint}" if run.checkpoint else name


def is_of_checkpoint(name: str) -> bool:
    """Whether `of_checkpoint` made a name for a checkpoint."""
    return re.search(r"-at-\d+", name) is not None


def find_run(path: Path | str) -> Run:
    """The run in a folder; of RUN/checkpoints/NAME the run with that checkpoint. Raises a ValueError for a URL."""
    if is_url(str(path)):
        raise ValueError(f"expected the folder of a run, whose checkpoints may be at a URL, got {path}")
    folder = Path(os.path.abspath(path))
    is_checkpoint = folder.parent.name == "checkpoints" and not (folder / "config.json").exists()
    if is_checkpoint:
        return Run(folder.parent.parent, folder.name)
    return Run(path)


def absolute(path: str) -> str:
    """A path that is valid from any working directory, with `~` expanded.

    Raises a UserError if there is no such path, for example because links form a circle.
    """
    try:
        return str(Path(path).expanduser().resolve())
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"path: expected a file or a folder, got {path!r}: {error}") from error
