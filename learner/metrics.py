"""What a run measures over time: one row a call, in `metrics.jsonl` for programs and as TensorBoard events for people.

Names are `group/name`, as in `episode/return` or `speed/frames_per_second`; what has no group, such as `learning_rate`,
has a name alone. The callers decide what is measured.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summary

from learner.files import open_regular

FILE = "metrics.jsonl"
SAMPLE = 4_000
"""Rows that are read of a long run; see `sample_metrics`."""
_BLOCK, _LONGEST, _WHOLE, _REACH = 1 << 16, 1 << 18, 1 << 23, 1 << 26
"""Bytes: read at a time, of a row at most, of a file that is read as a whole, searched from the end of one."""


class MetricsWriter:
    """Appends rows of metrics to a run, in a `with` block.

    A row is one line of `metrics.jsonl`, an object with "step" (agent steps, or batches of a sequence model), "time"
    (seconds since 1970) and a number for each metric (null where it is not finite). It is flushed before `write`
    returns. TensorBoard events lie in the run's folder itself.
    """

    def __init__(
        self,
        run: Path | str,
        resumed_step: int | None = None,
        mirror: Callable[[Mapping[str, float]], None] | None = None,
        layout: dict[str, dict[str, list[Any]]] | None = None,
    ) -> None:
        """Opens a run for rows.

        Args:
            run: the run's folder; made if it does not exist.
            resumed_step: the step from which the run goes on (0 if it begins anew): rows of later steps, which an
                interrupted run wrote after its last checkpoint, are cut off, and hidden in TensorBoard. None keeps
                all. A torn last line is cut off in any case.
            mirror: is called with the numbers of every row as well.
            layout: charts of TensorBoard's custom scalars, as `SummaryWriter.add_custom_scalars` takes them.

        Raises:
            OSError: if the folder or its file cannot be written to, or what has the file's name is none.
        """
        run = Path(run)
        run.mkdir(parents=True, exist_ok=True)
        path = run / FILE
        _require_file(path)
        resuming = path.exists()
        if resuming:
            _truncate(path, resumed_step)
        self._file = os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "a")
        purge = resumed_step + 1 if resuming and resumed_step is not None else None
        # TensorBoard opens its file by name again and again: not in another folder that takes the place of this one.
        self._folder: int | None = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        events = Path(f"/proc/self/fd/{self._folder}")
        self._events = SummaryWriter(str(events if events.exists() else run), purge_step=purge, flush_secs=10)
        self._mirror = mirror
        if layout:
            self._events.add_custom_scalars(layout)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one row.

        Args:
            step: agent steps so far, or batches of a sequence model.
            metrics: numbers by name.

        Raises:
            ValueError: if a name is empty, or "step" or "time", which rows have anyway.
        """
        for name in metrics:
            if name in ("", "step", "time"):
                raise ValueError(f"metrics: expected names other than '', 'step' and 'time', got {name!r}")
        now = time.time()
        row: dict[str, Any] = {"step": step, "time": now}
        row |= {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step, walltime=now)
        if self._mirror:
            self._mirror(metrics)

    def close(self) -> None:
        """Flushes and closes both files; more calls do nothing."""
        self._file.close()
        try:
            self._events.close()
        finally:
            if self._folder is not None:
                os.close(self._folder)
            self._folder = None

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(run: Path | str, name: str = "step") -> list[dict[str, Any]]:
    """The rows of a run that have a metric (all of them have "step") in the order in which they were written.

    The file may be written to meanwhile. What is torn or damaged is left out; NaN stands where a metric is no finite
    number. Takes 30 microseconds and some 5 kB a row: for the curves of a run of any length see `sample_metrics`.

    Raises:
        FileNotFoundError: if the folder has no metrics.
        OSError: if they cannot be read, or what has their name is no file.
    """
    token = json.dumps(name).encode()
    with _open(run) as file:
        lines = (line for line in iter(lambda: file.readline(_LONGEST), b"") if token in line)
        return [row for line in lines if (row := _parse(line)) is not None and name in row]


def sample_metrics(run: Path | str) -> list[dict[str, Any]]:
    """About `SAMPLE` rows of a run at equal distances in the file, the first and the last among them; all if it has no
    more. What that costs does not grow with the file. Otherwise as `read_metrics`.
    """
    with _open(run) as file:
        size, rows, end = file.seek(0, os.SEEK_END), [], 0
        file.seek(0)
        if size <= _WHOLE:
            lines = [line for line in file.read(size).splitlines(keepends=True) if b'"step"' in line]
            rows = [_parse(line) for line in lines[:: max(1, math.ceil(len(lines) / SAMPLE))]]
        elif hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # reading ahead would read half of the file
        for offset in range(0, size, size // SAMPLE) if size > _WHOLE else ():
            if offset >= end:
                file.seek(max(0, offset - 1))
                if offset == 0 or file.readline(_LONGEST).endswith(b"\n"):
                    rows.append(_parse(file.readline(_LONGEST)))
                end = file.tell()
        last = [row for _, row in itertools.islice(_backwards(file, reach=_REACH), 1)]
    found = [row for row in rows if row is not None]
    return found + (last if found[-1:] != last else [])


def last_metrics(run: Path | str, name: str = "step") -> dict[str, Any]:
    """The last whole row that has a metric, empty if none of the last 64 MB has it or there are no rows yet.

    Raises:
        OSError: if the file cannot be read, or is no file.
    """
    try:
        with _open(run) as file:
            return next((row for _, row in _backwards(file, name, _REACH)), {})
    except FileNotFoundError:
        return {}


def _open(run: Path | str) -> BinaryIO:
    path = Path(run) / FILE
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path}: there is no such file; expected the folder of a run that has begun to learn")
    _require_file(path)
    return path.open("rb")


def _require_file(path: Path) -> None:
    """A pipe would be waited for, a device may have no end."""
    if os.path.lexists(path) and not path.is_file():
        raise OSError(f"{path}: expected a file with rows of metrics, got a folder, a device or a link to no file")


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line, with NaN for what is no finite number; None if it is torn, too long or no row."""
    if len(line) > _LONGEST or not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    row = {name: value if _is_finite(value) else math.nan for name, value in row.items()}
    return None if math.isnan(row.get("step", math.nan)) else row


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _backwards(file: BinaryIO, name: str = "step", reach: float = math.inf) -> Iterator[tuple[int, dict[str, Any]]]:
    """Whole rows that have a metric, the last one first, each with where it ends. Reads a block at a time, as far back
    as `reach` bytes."""
    token, tail = json.dumps(name).encode(), b""
    end = begin = file.seek(0, os.SEEK_END)
    while begin > 0 and end - begin < reach:
        size = min(_BLOCK, begin)
        begin -= size
        file.seek(begin)
        block = file.read(size) + tail
        cut = (block.find(b"\n") + 1 or len(block)) if begin else 0  # before it ends a line that began earlier
        tail, block, stop = block[:cut], block[cut:], begin + cut
        if len(tail) > _LONGEST:
            tail = b"\0\n"  # no row, whatever it begins with
        found = []
        for line in block.splitlines(keepends=True) if token in block else ():
            stop += len(line)
            if token in line and (row := _parse(line)) is not None and name in row:
                found.append((stop, row))
        yield from reversed(found)


def _truncate(path: Path, last_step: int | None) -> None:
    """Cuts the file off behind the last row of a step or of one before it (None for any); reads only what is cut."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
        rows = _backwards(file)
        file.truncate(next((end for end, row in rows if last_step is None or row["step"] <= last_step), 0))


def write_hparams(run: Path | str, step: int, hparams: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Adds a run to TensorBoard's table of hyperparameters, with its final metrics.

    Args:
        run: the run's folder.
        step: agent steps in all, or batches of a sequence model.
        hparams: what tells the run from others; values that are no numbers, texts or booleans are shown as texts.
        metrics: numbers by name, which become scalars at `step` too.
    """
    plain = {
        name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in hparams.items()
    }
    with SummaryWriter(str(run)) as events:
        for summary in hparams_summary(plain, dict(metrics)):
            events.file_writer.add_summary(summary)
        for name, value in metrics.items():
            events.add_scalar(name, value, step)
