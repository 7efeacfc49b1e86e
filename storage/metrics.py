"""Metrics of a run over time: one row per call, in `metrics.jsonl` and as TensorBoard events.

Names are `group/name`, as in `episode/return`, or `name`, as in `learning_rate`.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from torch.utils.tensorboard import SummaryWriter

from storage.files import open_regular

FILE = "metrics.jsonl"
SAMPLE = 4_000
"""Number of rows that `sample_metrics` reads."""
_BLOCK, _LONGEST, _SHORT, _REACH = 1 << 16, 1 << 18, 1 << 23, 1 << 26
"""Bytes: of a block, of the longest row, of the longest file that is read whole, of a search from the end."""


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
        gauges: is called with the metrics of every row.
        layout: charts for `SummaryWriter.add_custom_scalars`.

    Raises:
        OSError: if the folder or its file cannot be written, or `metrics.jsonl` is not a file.
    """

    def __init__(
        self,
        run: Path | str,
        resumed_step: int | None = None,
        gauges: Callable[[Mapping[str, float]], None] | None = None,
        layout: dict[str, dict[str, list[Any]]] | None = None,
    ) -> None:
        run = Path(run)
        run.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self._file = self._stack.enter_context(os.fdopen(open_regular(run / FILE, flags), "r+b"))
        self._file.truncate(_last_row(self._file, most=math.inf if resumed_step is None else resumed_step)[0])
        # TensorBoard reopens its file by name; the descriptor keeps it in this folder if that is moved or replaced.
        folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.callback(os.close, folder)
        events = Path(f"/proc/self/fd/{folder}")
        purge = None if resumed_step is None else resumed_step + 1
        self._events = SummaryWriter(str(events if events.exists() else run), purge_step=purge, flush_secs=10)
        self._stack.callback(self._events.close)
        self._gauges = gauges
        if layout:
            self._events.add_custom_scalars(layout)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes and flushes one row."""
        now = time.time()
        row: dict[str, Any] = {"step": step, "time": now}
        row |= {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step, walltime=now)
        if self._gauges:
            self._gauges(metrics)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def read_metrics(run: Path | str, name: str = "step") -> list[dict[str, Any]]:
    """The rows of a run that have a metric (all of them have "step"), in order; another process may be writing them.

    Incomplete and damaged rows are omitted; a metric that is not a finite number is NaN. Takes about 30 microseconds
    and 5 kB per row; `sample_metrics` is for runs of any length.

    Raises:
        FileNotFoundError: if the folder has no metrics.
        OSError: if `metrics.jsonl` is not a file or cannot be read.
    """
    return [row for row in read_on(run)[0] if name in row]


def read_on(run: Path | str, position: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The rows of a run from a byte of `metrics.jsonl` on, and where to read on later; errors as in `read_metrics`.

    All rows come again if the file has become shorter, as it does when a run is resumed; if it has also grown beyond
    `position` since, that is not noticed.
    """
    rows = []
    with _open(run) as file:
        position = position if position <= os.fstat(file.fileno()).st_size else 0
        file.seek(position)
        for line in _lines(file):
            position += len(line) if line.endswith(b"\n") or len(line) == _LONGEST else 0
            rows += [row] if (row := _parse(line)) else []
    return rows, position


def sample_metrics(run: Path | str, kept: str = "") -> list[dict[str, Any]]:
    """Like `read_metrics`, but about `SAMPLE` rows at equal distances, the first and the last included, and all rows
    that have the metric `kept`.

    In files above 8 MB the distances are in bytes, and only these rows are parsed: about a second per gigabyte.
    """
    with _open(run) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _SHORT:
            begins = {0, *(_find(file, json.dumps(kept).encode()) if kept else ())}
            for position in range(size // SAMPLE, size, size // SAMPLE):
                file.seek(position)
                file.readline(_LONGEST)
                begins.add(file.tell())
            rows = [row for begin in sorted(begins) if (row := _parse(_line(file, begin)))]
            last = _last_row(file, reach=_REACH)[1]
            return rows if rows[-1:] == [last] or not last else [*rows, last]
        rows = [row for line in _lines(file) if (row := _parse(line))]
    stride = math.ceil(len(rows) / SAMPLE) or 1
    end = len(rows) - 1
    return [row for index, row in enumerate(rows) if index % stride == 0 or index == end or kept in row]


def last_metrics(run: Path | str, name: str = "step") -> dict[str, Any]:
    """The last complete row that has a metric, empty if there is none in the last 64 MB.

    Raises an OSError if `metrics.jsonl` is not a file or cannot be read.
    """
    try:
        with _open(run) as file:
            return _last_row(file, name, reach=_REACH)[1]
    except FileNotFoundError:
        return {}


def _open(run: Path | str) -> BinaryIO:
    return os.fdopen(open_regular(Path(run) / FILE), "rb")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one that is too long for a row comes in pieces."""
    return iter(lambda: file.readline(_LONGEST), b"")


def _line(file: BinaryIO, begin: int) -> bytes:
    file.seek(begin)
    return file.readline(_LONGEST)


def _find(file: BinaryIO, text: bytes) -> Iterator[int]:
    """Where lines that contain a text begin; a line of which a block has only a part may come twice."""
    begin, rest = 0, b""
    file.seek(0)
    while read := file.read(_REACH >> 2):
        block = rest + read
        hit = block.find(text)
        while hit >= 0:
            yield begin + block.rfind(b"\n", 0, hit) + 1
            hit = block.find(text, end) if (end := block.find(b"\n", hit)) >= 0 else -1
        done = max(block.rfind(b"\n") + 1, len(block) - _LONGEST)
        begin, rest = begin + done, block[done:]


def _parse(line: bytes, name: str = "step") -> dict[str, Any]:
    """The row of a line, with NaN for values that are not finite numbers; empty if it is not a complete row that has
    a metric."""
    if len(line) > _LONGEST or not line.endswith(b"\n") or json.dumps(name).encode() not in line:
        return {}
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(row, dict) or name not in row:
        return {}
    for metric, value in row.items():
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            row[metric] = math.nan
    return {} if math.isnan(row.get("step", math.nan)) else row


def _last_row(
    file: BinaryIO, name: str = "step", most: float = math.inf, reach: float = math.inf
) -> tuple[int, dict[str, Any]]:
    """The offset of the end of the last complete row that has a metric and a step up to `most`, and the row.

    Returns (0, {}) if there is none. Reads from the end of the file, more and more until `reach` bytes.
    """
    size, window = file.seek(0, os.SEEK_END), _BLOCK
    while True:
        end, begin = size, max(0, size - window)
        file.seek(begin)
        lines = file.read(size - begin).splitlines(keepends=True)
        for line in reversed(lines[begin > 0 :]):  # without the end of a line that begins earlier
            row = _parse(line, name)
            if row and row["step"] <= most:
                return end, row
            end -= len(line)
        if begin == 0 or window >= reach:
            return 0, {}
        window *= 8


def write_hparams(run: Path | str, step: int, hparams: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Adds a run to TensorBoard's table of hyperparameters, with its final metrics, which become scalars at `step`.

    Values of `hparams` that are not numbers, strings or booleans are shown as strings.
    """
    kinds = bool | int | float | str
    plain = {name: value if isinstance(value, kinds) else str(value) for name, value in hparams.items()}
    with SummaryWriter(str(run)) as events:
        events.add_hparams(plain, dict(metrics), run_name=".", global_step=step)
