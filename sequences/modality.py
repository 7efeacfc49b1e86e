"""What every kind of sequence (modality) shares: data that are prepared once, batches, and tables of its measures.

A modality is a subclass of `SequenceConfig` and one of `Modality`, as in `text`, `speech` and `images`. Its training is
in `sequences.trainer`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from sequences.config import MemorySizes
from sequences.model import IGNORE, SequenceModel
from sequences.streams import Batch, Streams, one_pass

logger = logging.getLogger(__name__)
Counting = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: takes an activity, a total and its unit, and returns a context whose value is called with the number
done so far. See `training.console.counting`."""
Table = Sequence[tuple[str, ...]]
"""Rows of a table for people; the first row is the header."""


@contextmanager
def quiet(activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """The `Counting` that shows nothing."""
    yield lambda done: None


def in_tensorboard(run: Path, add: Callable[[SummaryWriter], None]) -> None:
    """Adds something to a run's events. That its folder cannot be written to is a warning: files show the same."""
    try:
        with SummaryWriter(str(run)) as events:
            add(events)
    except OSError as error:
        logger.warning("not in TensorBoard: %s", error)


class Modality(ABC):
    """Data, model and measures of one configuration.

    Attributes:
        config: the configuration.
        folder: where the data are prepared. Another process opens them by `type(modality)(config, folder)`.
        splits: parts of the data by name, "train" and "test" among them; `tokens` [N] integers, `starts` ascending
            positions where documents or files start.
        name, digest: of the data; the digest is a SHA-256.
    """

    name: str
    splits: Mapping[str, Any]
    digest: str

    def __init__(self, config: Any, folder: Path) -> None:
        self.config = config
        self.folder = folder

    @classmethod
    @abstractmethod
    def prepare(cls, config: Any, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        """Opens the data of a configuration, which are prepared first if they were not before.

        `show` is called with the number of files done, and of all.

        Raises:
            ValueError, ImportError, OSError: says what is wrong with the files or the cache.
        """

    def record(self) -> dict[str, Any]:
        """What a run keeps of its data, for JSON: name and digest, or what a trained model needs of them."""
        return {"name": self.name, "digest": self.digest}

    @abstractmethod
    def describe(self) -> str:
        """The data in one line."""

    @abstractmethod
    def make_model(self) -> SequenceModel:
        """The network with fresh weights from torch's global generator. Raises a ValueError if it is impossible."""

    @abstractmethod
    def validate(self, model: SequenceModel, count: Counting = quiet) -> dict[str, float]:
        """Metrics of the model during training, named valid/...; "valid/nll" is in nats a token.

        `count`: is told the progress.
        """

    @abstractmethod
    def evaluate(self, model: SequenceModel, options: Any = None, count: Counting = quiet) -> Iterator[dict[str, Any]]:
        """Measures a model on a split and yields the results for JSON, part by part; each part has other keys.

        Args:
            model: may be changed by the last part.
            options: what to measure; a dataclass of the modality with `split`, the name of the split. None for the
                evaluation at the end of the training.
            count: shows the progress.

        Raises:
            ValueError: if an option is impossible for the model.
        """

    @abstractmethod
    def unit(self, nll: float) -> str:
        """Nats a token in the unit that the field uses, such as "1.234 bits per byte"."""

    def finish(self, model: SequenceModel, run: Path, step: int, count: Counting = quiet) -> dict[str, Any]:
        """What the evaluation at the end has beside `evaluate`; may write to the run's folder."""
        return {}

    def tables(self, part: dict[str, Any]) -> Iterator[Table]:
        """A part of an evaluation as tables: one of its plain values, and one of each collection, by their names."""
        plain: dict[str, Any] = {}
        collections: dict[str, Any] = {"measure": plain}
        for name, found in part.items():
            if isinstance(found, list | dict):
                collections[name] = found
            else:
                plain[name.replace("_", " ")] = found

        for name, found in collections.items():
            rows = _rows(name, found)
            if not rows:
                continue
            # The head says of what the table is, if the first column does not.
            columns = [column.replace("_", " ") for column in rows[0]]
            if columns[0] != name:
                columns[0] = f"{name}: {columns[0]}"

            table = [tuple(columns)]
            for row in rows:
                table.append(tuple(_cell(value) for value in row.values()))
            yield table

    def source(self, rank: int = 0, size: int = 1) -> Streams:
        """Batches of the training split: the rows of learner number `rank` out of `size`.

        Raises a ValueError if the split is too short for a batch, or the rows cannot be shared.
        """
        learner = self.config.learner
        train = self.splits["train"]
        try:
            return Streams(
                train.tokens,
                rows=learner.batch_size,
                steps=learner.sequence_length,
                starts=self._starts(train),
                shard=(rank, size),
            )
        except ValueError as error:
            data = self.describe().partition(":")[0]
            raise ValueError(f"{data}, split train: {error}") from error

    def batches(
        self, part: Any, rows: int, count: Counting = quiet, activity: str = "", steps: int | None = None
    ) -> Iterator[Batch]:
        """One pass over a split or a part of it, with progress; see `sequences.streams.one_pass`.

        A batch has as many `steps` as in training, if none are given.
        """
        if steps is None:
            steps = self.config.learner.sequence_length
        done = 0
        with count(activity, len(part.tokens) - 1, "tokens") as show:
            for batch in one_pass(part.tokens, rows, steps, self._cuts(part, rows)):
                yield batch
                done += int((batch.targets != IGNORE).sum())
                show(done)

    def _cuts(self, part: Any, rows: int) -> Any:
        """Where memory is empty in `batches` of so many rows; None for the beginnings of the rows alone."""
        return self._starts(part)

    def _starts(self, part: Any) -> Any:
        """Where the memory is reset in a part of the data, or None."""
        if self.config.reset_at_starts:
            return part.starts
        return None


def resized(model: SequenceModel, options: MemorySizes) -> tuple[SequenceModel, dict[str, int]]:
    """The model with the `memory_size` and `compressed_size` of the options, and those of the two that are not None.

    Raises a ValueError if the model has no memory.
    """
    wanted = {"memory_size": options.memory_size, "compressed_size": options.compressed_size}
    sizes = {name: size for name, size in wanted.items() if size is not None}
    if sizes:
        model = model.resized(**sizes)
    return model, sizes


def _rows(name: str, found: list[dict[str, Any]] | dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a collection, each by column: a list of rows, or an object of rows, of columns or of values."""
    if isinstance(found, list):
        return found
    if not found:
        return []
    first = next(iter(found.values()))
    if isinstance(first, list):
        rows = []
        for place in range(len(first)):
            rows.append({column: values[place] for column, values in found.items()})
        return rows
    if isinstance(first, dict):
        return [{name: key, **row} for key, row in found.items()]
    return [{name: key, "value": value} for key, value in found.items()]


def _cell(value: Any) -> str:
    """A value of a table as text."""
    if isinstance(value, float):
        return f"{value:,.6g}"
    if type(value) is int:
        return f"{value:,}"
    if value is None:
        return "-"
    return str(value)
