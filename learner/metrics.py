"""Metrics of a run over time: one row per call, in `metrics.jsonl` and as TensorBoard events.

Names are `group/name`, as in `episode/return`, or `name`, as in `learning_rate`.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summary

from learner.files import open_regular

FILE = "metrics.jsonl"
SAMPLE = 4_000
"""Number of rows that `sample_metrics` reads."""
_BLOCK, _LONGEST, _WHOLE, _REACH = 1 << 16, 1 << 18, 1 << 23, 1 << 26
"""Bytes: of a block, of the longest row, of the largest file that is read as a whole, of a search from the end."""


class MetricsWriter:
    """Appends rows of metrics to a run, in a `with` block.

    A row is one line of `metrics.jsonl`: an object with "step" (agent steps, or batches of a sequence model), "time"
    (seconds since 1970) and a number for each metric (null if it is not finite). TensorBoard events are in the run's
    folder itself.

    Args:
        run: the run's folder; it is made if it does not exist.
        resumed_step: the step from which the run is resumed (0 for a new run): rows of later steps, which an
            interrupted run wrote after its last checkpoint, are deleted, and hidden in TensorBoard. None keeps all. An
            incomplete last line is always deleted.
        mirror: is called with the metrics of every row.
        layout: charts for `SummaryWriter.add_custom_scalars`.

    Raises:
        OSError: if the folder or its file cannot be written, or `metrics.jsonl` is not a file.
    """

    def __init__(
        self,
        run: Path | str,
        resumed_step: int | None = None,
        mirror: Callable[[Mapping[str, float]], None] | None = None,
        layout: dict[str, dict[str, list[Any]]] | None = None,
    ) -> None:
        run = Path(run)
        run.mkdir(parents=True, exist_ok=True)
        path = run / FILE
        _require_file(path)
        resuming = path.exists()
        if resuming:
            _truncate(path, resumed_step)
        self._file = os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "a")
        purge = resumed_step + 1 if resuming and resumed_step is not None else None
        # TensorBoard reopens its file by name; the descriptor keeps it in this folder if that is moved or replaced.
        self._folder: int | None = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        events = Path(f"/proc/self/fd/{self._folder}")
        self._events = SummaryWriter(str(events if events.exists() else run), purge_step=purge, flush_secs=10)
        self._mirror = mirror
        if layout:
            self._events.add_custom_scalars(layout)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes and flushes one row.

        Raises:
            ValueError: if a name is empty, "step" or "time".
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
        """Flushes and closes both files; further calls do nothing."""
        self._file.close()
        try:
            self._events.close()
        finally:
            if self._folder is not None:
                os.close(self._folder)
            self._folder = None

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(run: Path | str, name: str = "step") -> list[dict[str, Any]]:
    """The rows of a run that have a metric (all of them have "step"), in order; another process may be writing them.

    Incomplete and damaged rows are omitted; a metric that is not a finite number is NaN. Takes about 30 microseconds
    and 5 kB per row; `sample_metrics` is for runs of any length.

    Raises:
        FileNotFoundError: if the folder has no metrics.
        OSError: if `metrics.jsonl` is not a file or cannot be read.
    """
    token = json.dumps(name).encode()
    with _open(run) as file:
        lines = (line for line in iter(lambda: file.readline(_LONGEST), b"") if token in line)
        return [row for line in lines if (row := _parse(line)) is not None and name in row]


def sample_metrics(run: Path | str) -> list[dict[str, Any]]:
    """Like `read_metrics`, but about `SAMPLE` rows at equal distances in the file, the first and the last included, in
    a time that does not grow with the file."""
    with _open(run) as file:
        size, rows, end = file.seek(0, os.SEEK_END), [], 0
        file.seek(0)
        if size <= _WHOLE:
            lines = [line for line in file.read(size).splitlines(keepends=True) if b'"step"' in line]
            rows = [_parse(line) for line in lines[:: max(1, math.ceil(len(lines) / SAMPLE))]]
        elif hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # readahead would read half of the file
        for offset in range(0, size, size // SAMPLE) if size > _WHOLE else ():
            if offset >= end:
                file.seek(max(0, offset - 1))
                if offset == 0 or file.readline(_LONGEST).endswith(b"\n"):
                    rows.append(_parse(file.readline(_LONGEST)))
                end = file.tell()
        rows.append(_last_row(file, lambda row: True, reach=_REACH)[1])
    found = [row for row in rows if row]
    return found[:-1] if found[-2:-1] == found[-1:] else found


def last_metrics(run: Path | str, name: str = "step") -> dict[str, Any]:
    """The last complete row that has a metric, empty if there is none in the last 64 MB.

    Raises:
        OSError: if `metrics.jsonl` is not a file or cannot be read.
    """
    try:
        with _open(run) as file:
            return _last_row(file, lambda row: True, name, _REACH)[1]
    except FileNotFoundError:
        return {}


def _open(run: Path | str) -> BinaryIO:
    path = Path(run) / FILE
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path}: there is no such file; expected the folder of a run that has begun to learn")
    _require_file(path)
    return path.open("rb")


def _require_file(path: Path) -> None:
    """Refuses FIFOs, which would block, and devices, which may be endless."""
    if os.path.lexists(path) and not path.is_file():
        raise OSError(f"{path}: expected a file with rows of metrics, got a folder, a device or a link to no file")


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line, with NaN for values that are not finite numbers; None if it is not a complete row."""
    if len(line) > _LONGEST or not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    for name, value in row.items():
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            row[name] = math.nan
    return None if math.isnan(row.get("step", math.nan)) else row


def _last_row(
    file: BinaryIO, accept: Callable[[dict[str, Any]], bool], name: str = "step", reach: float = math.inf
) -> tuple[int, dict[str, Any]]:
    """The last complete row that has a metric and is accepted, and the offset of its end; (0, {}) if there is none.

    Reads from the end of the file, more and more until `reach` bytes.
    """
    token, size, window = json.dumps(name).encode(), file.seek(0, os.SEEK_END), _BLOCK
    while True:
        end, begin = size, max(0, size - window)
        file.seek(begin)
        lines = file.read(size - begin).splitlines(keepends=True)
        for line in reversed(lines[begin > 0 :]):  # without the end of a line that begins earlier
            if token in line and (row := _parse(line)) is not None and name in row and accept(row):
                return end, row
            end -= len(line)
        if begin == 0 or window >= reach:
            return 0, {}
        window *= 8


def _truncate(path: Path, last_step: int | None) -> None:
    """Truncates the file after the last row up to a step (None: any step)."""
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
        file.truncate(_last_row(file, lambda row: last_step is None or row["step"] <= last_step)[0])


def write_hparams(run: Path | str, step: int, hparams: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Adds a run to TensorBoard's table of hyperparameters, with its final metrics, which become scalars at `step`.

    Values of `hparams` that are not numbers, strings or booleans are shown as strings.
    """
    kinds = bool | int | float | str
    plain = {name: value if isinstance(value, kinds) else str(value) for name, value in hparams.items()}
    with SummaryWriter(str(run)) as events:
        for summary in hparams_summary(plain, dict(metrics)):
            events.file_writer.add_summary(summary)
        for name, value in metrics.items():
            events.add_scalar(name, value, step)
