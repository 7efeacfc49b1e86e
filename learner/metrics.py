"""What a run measures over time: one row a call, in `metrics.jsonl` for programs and as TensorBoard events for people.

Names are `group/name`, as in `episode/return` or `speed/frames_per_second`; what has no group, such as `learning_rate`,
has a name alone. What is measured is the business of the callers.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summary

from learner.files import open_regular, replacing

FILE = "metrics.jsonl"


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
                interrupted run wrote after its last checkpoint, are removed, and hidden in TensorBoard. None keeps
                all. A torn last line is removed in any case.
            mirror: is called with the numbers of every row as well.
            layout: charts of TensorBoard's custom scalars, as `SummaryWriter.add_custom_scalars` takes them.
        """
        run = Path(run)
        run.mkdir(parents=True, exist_ok=True)
        path = run / FILE
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
        self._file.write(json.dumps(row) + "\n")
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


def read_metrics(run: Path | str) -> list[dict[str, Any]]:
    """The rows of a run in the order in which they were written, with NaN where a metric was not finite.

    The file may be written to meanwhile: a torn last line is left out.

    Raises:
        FileNotFoundError: if the folder has no metrics.
    """
    path = Path(run) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file; expected the folder of a run that has begun to learn")
    rows = [row for line in path.read_bytes().splitlines(keepends=True) if (row := _parse(line)) is not None]
    return [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]


def last_metrics(run: Path | str) -> dict[str, Any]:
    """The last whole row, empty if there is none yet; reads only the last 64 kB of the file."""
    try:
        with (Path(run) / FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (64 << 10)))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    row = next((row for line in reversed(lines) if (row := _parse(line)) is not None), {})
    return {name: math.nan if value is None else value for name, value in row.items()}


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line, None for a torn one."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "step" in row else None


def _truncate(path: Path, last_step: int | None) -> None:
    """Keeps the rows up to a step (None for all of them), less what is torn; the file is replaced in one go."""
    lines = path.read_bytes().splitlines(keepends=True)
    rows = [(line, _parse(line)) for line in lines]
    kept = [line for line, row in rows if row is not None and (last_step is None or row["step"] <= last_step)]
    if len(kept) == len(lines):
        return
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(kept))


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
