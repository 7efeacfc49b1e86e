"""Metrics of a run over time: one row per call, in `metrics.jsonl` and as TensorBoard events.

Names are `group/name`, as in `episode/return`, or `name`, as in `learning_rate`.
"""

import errno
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from torch.utils.tensorboard import SummaryWriter

from storage.files import Json, is_finite, open_regular

FILE = "metrics.jsonl"
Layout = dict[str, dict[str, list[Sequence[str]]]]
"""Charts of TensorBoard, as `SummaryWriter.add_custom_scalars` takes them."""
SAMPLE = 4_000
"""Number of rows that `sample_metrics` reads."""
MOST_BYTES = 512 << 20
"""Of larger files only the last rows are read, and they still grow. A row has one kilobyte or two."""
_BLOCK = 1 << 20
"""Bytes that are read at once. Longer lines are damaged rows; those of a run have some kB."""
_END = 1 << 16
"""Bytes at the end of the file in which the last row is looked for first."""


class MetricsWriter:
    """Appends rows of metrics to a run, in a `with` block.

    A row is one line of `metrics.jsonl`: an object with "step" (agent steps, or batches of a sequence model), "time"
    (seconds since 1970) and a number for each metric (null if it is not finite). TensorBoard events are in the run's
    folder itself.

    Args:
        run: the run's folder; it is made if it does not exist.
        resumed_step: the step from which the run is resumed (0 for a new run): rows of later steps, which an
            interrupted run wrote after its last checkpoint, are deleted, and hidden in TensorBoard.
        gauges: is called with the metrics of every row.
        layout: TensorBoard's custom charts.

    Raises:
        OSError: if the folder or its file cannot be written, or `metrics.jsonl` is not a file.
    """

    def __init__(
        self,
        run: Path | str,
        resumed_step: int = 0,
        gauges: Callable[[Mapping[str, float]], None] | None = None,
        layout: Layout | None = None,
    ) -> None:
        run = Path(run)
        run.mkdir(parents=True, exist_ok=True)
        # The rows up to the checkpoint are kept.
        self._stack = ExitStack()
        self._file = self._stack.enter_context(_open(run, os.O_RDWR | os.O_APPEND | os.O_CREAT, any_size=True))
        end, _ = _last_row(self._file, most=resumed_step)
        self._file.truncate(end)

        self._events = SummaryWriter(str(run), purge_step=resumed_step + 1, flush_secs=10)
        self._stack.callback(self._events.close)
        self._gauges = gauges
        if layout:
            self._events.add_custom_scalars(layout)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes and flushes one row."""
        # A line for our own pages, which is readable at once; TensorBoard's thread writes its file later.
        now = time.time()
        row: Json = {"step": step, "time": now}
        for name, value in metrics.items():
            # JSON has no NaN and no infinity.
            row[name] = float(value) if math.isfinite(value) else None
        line = json.dumps(row, allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()

        for name, value in metrics.items():
            self._events.add_scalar(name, value, step, walltime=now)
        if self._gauges:
            self._gauges(metrics)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def read_metrics(run: Path | str) -> list[Json]:
    """The rows of a run, in order; another process may be writing them.

    Incomplete and damaged rows are omitted; a metric that is not a finite number is NaN. Takes about 30 microseconds
    and 5 kB per row; `sample_metrics` is for runs of any length.

    Raises:
        FileNotFoundError: if the folder has no metrics.
        OSError: if `metrics.jsonl` is not a file, cannot be read, or has more than `MOST_BYTES`.
    """
    rows, _ = read_on(run)
    return rows


def read_on(run: Path | str, position: int = 0) -> tuple[list[Json], int]:
    """The rows of a run from a byte of `metrics.jsonl` on, and where to read on later; errors as in `read_metrics`.

    All rows come again if the file has become shorter, as it does when a run is resumed; if it has also grown beyond
    `position` since, that is not noticed.
    """
    with _open(run) as file:
        size = os.fstat(file.fileno()).st_size
        if position > size:
            position = 0
        file.seek(position)
        rows = []
        for line in _lines(file, size - position):
            # The last line may be in the middle of being written; it is read the next time.
            is_complete = line.endswith(b"\n")
            if not is_complete and len(line) < _BLOCK:
                break
            position += len(line)
            row = _parse(line)
            if row:
                rows.append(row)
    return rows, position


def sample_metrics(run: Path | str, kept: str = "") -> list[Json]:
    """Like `read_metrics`, but about `SAMPLE` rows at equal distances, the first and the last included, and all rows
    that have the metric `kept`. Only these are parsed: less than a second for 100,000 rows."""
    key = json.dumps(kept).encode()
    rows = []
    with _open(run) as file:
        size = os.fstat(file.fileno()).st_size
        count = sum(1 for _ in _lines(file, size))

        # Most of the time would be that of parsing, so that only what is returned is parsed.
        stride = max(1, math.ceil(count / SAMPLE))
        file.seek(0)
        for index, line in enumerate(_lines(file, size)):
            is_kept = bool(kept) and key in line
            is_sampled = index % stride == 0
            if not is_sampled and not is_kept:
                continue
            row = _parse(line)
            if row:
                rows.append(row)

        # Readers ask the last row how far the run is.
        _, last = _last_row(file)
    if last and last not in rows[-1:]:
        rows.append(last)
    return rows


def last_metrics(run: Path | str, name: str = "step") -> Json:
    """The last complete row that has a metric, empty if there is none.

    Raises an OSError if `metrics.jsonl` is not a file or cannot be read.
    """
    try:
        with _open(run, any_size=True) as file:
            _, row = _last_row(file, name)
            return row
    except FileNotFoundError:
        return {}


def _open(run: Path | str, flags: int = os.O_RDONLY, any_size: bool = False) -> BinaryIO:
    """The metrics of a run, to be read, and with other flags also written."""
    path = Path(run) / FILE
    descriptor = open_regular(path, flags)
    file = os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b")
    size = os.fstat(descriptor).st_size
    if size > MOST_BYTES and not any_size:
        file.close()
        raise OSError(errno.EFBIG, f"expected at most {MOST_BYTES} bytes, got {size}", str(path))
    return file


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The lines of the next `size` bytes of a file. One that is longer than a block comes in pieces."""
    while size > 0:
        line = file.readline(min(size, _BLOCK))
        if not line:
            return  # the file has become shorter
        size -= len(line)
        yield line


def _lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first. One that is longer than a block comes in pieces."""
    position = file.seek(0, os.SEEK_END)
    size = _END
    after = b""  # of a line whose beginning has not been read
    while position > 0:
        size = min(size, position)
        position -= size
        file.seek(position)
        lines = io.BytesIO(file.read(size) + after).readlines()
        after = b""
        if position > 0 and lines and len(lines[0]) < _BLOCK:
            after = lines.pop(0)
        yield from reversed(lines)
        size = _BLOCK


def _parse(line: bytes, name: str = "step") -> Json:
    """The row of a line, with NaN for values that are not finite numbers; empty if it is not a complete row that has
    a metric."""
    # Most lines are told apart without parsing them, which would take most of the time.
    is_complete = line.endswith(b"\n")
    quoted_name = json.dumps(name).encode()
    if not is_complete or quoted_name not in line:
        return {}
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(row, dict) or name not in row:
        return {}

    # Foreign values, and null for what is not finite.
    for metric, value in row.items():
        if type(value) is float and math.isfinite(value):
            continue  # most are, and a call for each of them would take a third of the time
        if not is_finite(value):
            row[metric] = math.nan
        elif abs(value) >= 1 << 63:
            row[metric] = float(value)  # a product of whole numbers might fit into no float

    # A row without a step has no place among the others.
    step = row.get("step", math.nan)
    if math.isnan(step):
        return {}
    return row


def _last_row(file: BinaryIO, name: str = "step", most: float = math.inf) -> tuple[int, Json]:
    """The offset of the end of the last complete row that has a metric and a step up to `most`, and the row.

    Returns (0, {}) if there is none. Reads no more of the file's end than it needs, and raises an OSError if that were
    more than `MOST_BYTES`.
    """
    size = file.seek(0, os.SEEK_END)
    end = size
    for line in _lines_from_end(file):
        row = _parse(line, name)
        if row and row["step"] <= most:
            return end, row
        end -= len(line)
        if size - end > MOST_BYTES:
            raise OSError(errno.EFBIG, f"expected such a row in its last {MOST_BYTES} bytes, got {size}", FILE)
    return 0, {}


def write_scalars(run: Path | str, step: int, metrics: Mapping[str, float]) -> None:
    """Adds metrics to a run's curves in TensorBoard alone; rows of metrics are those of the training."""
    with SummaryWriter(str(run)) as events:
        for name, value in metrics.items():
            events.add_scalar(name, value, step)


def write_hparams(run: Path | str, step: int, hparams: Mapping[str, object], metrics: Mapping[str, float]) -> None:
    """Adds a run to TensorBoard's table of hyperparameters, with its final metrics, which become scalars at `step`.

    Values of `hparams` that are not numbers, strings or booleans are shown as strings.
    """
    plain = {}
    for name, value in hparams.items():
        is_plain = isinstance(value, bool | int | float | str)
        plain[name] = value if is_plain else str(value)
    # The run's own folder, not one beside it, so that there is no second entry for it.
    with SummaryWriter(str(run)) as events:
        events.add_hparams(plain, dict(metrics), run_name=".", global_step=step)
