"""What every kind of sequence (modality) shares: fields of its configuration, data that are prepared once, batches.

A modality is a subclass of `SequenceConfig` and one of `Modality`, as in `text` and `speech`. Its training is in
`training.sequence`.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from agent.fields import AtLeast0, Checked, Count, Positive, Range, Several
from agent.language_model import IGNORE, SequenceModel
from learner.sequence_learner import SequenceLearnerConfig
from learner.streams import Batch, Streams, one_pass

Counting = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: takes an activity, a total and its unit, and returns a context whose value is called with the number
done so far. See `training.console.counting`."""
Table = Sequence[tuple[str, ...]]
"""Rows of a table for people; the first row is the header."""


@contextmanager
def quiet(activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """The `Counting` that shows nothing."""
    yield lambda done: None


@dataclass(frozen=True)
class SequenceConfig(Checked):
    """The training of a sequence model. Impossible values raise a ValueError that names the field.

    A subclass has the class attributes `kind` and `cores` of `training.config`.
    """

    kind = ""

    preset: str = "cpu"
    """Where all other defaults come from; a wrong name lists those that exist."""
    seed: Count = 0
    """Seed of weights and dropout."""
    learners: Several = 1
    """Learners that share each batch, one a GPU, placed by Ray Train; 1 learns in the program's own process."""
    reset_at_starts: bool = False
    """Reset the memory where a document or a file starts; the paper does not."""
    log_every: Positive = 20
    """Updates between two rows of metrics."""
    evaluate_every: Positive | None = 1_000
    """Steps between two evaluations on the validation split; there is also one at the end. None for no evaluation."""
    evaluate_tokens: Annotated[int, Range(2, 2**63 - 1)] | None = 200_000
    """Tokens (samples of sound) of the validation split in each of these evaluations; None for all."""
    checkpoint_seconds: AtLeast0 = 60.0
    """Time between two checkpoints; there is also one at the end or after Ctrl-C."""
    keep_checkpoints: Positive = 3
    """How many of the newest checkpoints are kept."""
    learner: SequenceLearnerConfig = field(default_factory=SequenceLearnerConfig)
    """The learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner.require_whole_segments(self.core_config)

    @property
    def core_config(self) -> Any:
        """The configuration of the core."""
        raise NotImplementedError

    def located(self, absolute: Callable[[str], str], path: str | None = None) -> Self:
        """The same configuration with data at another path, or at its own, made absolute."""
        raise NotImplementedError


class Modality(ABC):
    """Data, model and measures of one configuration.

    Attributes:
        config: the configuration.
        folder: where the data are prepared. Another process opens them by `type(modality)(config, folder)`.
        splits: parts of the data by name, "train" and "test" among them; `tokens` [N] integers, `starts` ascending
            positions where documents or files start.
        digest: SHA-256 of the data.
        config_type: class of the configuration.
        fixed: prefixes of the names of fields that a resumed run cannot change: its checkpoints depend on them.
    """

    config_type: ClassVar[type[SequenceConfig]]
    fixed: ClassVar[tuple[str, ...]] = (
        *("preset", "seed", "reset_at_starts", "model", "learner.batch_size", "learner.sequence_length"),
    )
    splits: Mapping[str, Any]
    digest: str

    def __init__(self, config: Any, folder: Path) -> None:
        self.config, self.folder = config, folder

    @staticmethod
    @abstractmethod
    def make_preset(preset: str, core: str) -> SequenceConfig:
        """The configuration of a preset and a core. Raises a ValueError that names those that exist."""

    @classmethod
    @abstractmethod
    def prepare(cls, config: Any, show: Callable[[int, int], None] = lambda done, total: None) -> Self:
        """Opens the data of a configuration, which are prepared first if they were not before.

        Args:
            config: the configuration.
            show: is called with the number of files done, and of all.

        Raises:
            ValueError, ImportError, OSError: says what is wrong with the files or the cache.
        """

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What a run keeps of its data, for JSON: the digest, and what a trained model needs of them."""

    @abstractmethod
    def describe(self) -> str:
        """The data in one line."""

    @abstractmethod
    def make_model(self) -> SequenceModel:
        """The network with fresh weights from torch's global generator. Raises a ValueError if it is impossible."""

    @abstractmethod
    def validate(self, model: SequenceModel) -> dict[str, float]:
        """Metrics of the model during training, named valid/...; "valid/nll" is in nats a token."""

    @abstractmethod
    def evaluate(self, model: SequenceModel, options: Any, count: Counting = quiet) -> Iterator[dict[str, Any]]:
        """Measures a model on a split and yields the results for JSON, part by part; each part has other keys.

        Args:
            model: may be changed by the last part.
            options: what to measure; a dataclass of the modality with `split`, the name of the split.
            count: shows the progress.

        Raises:
            ValueError: if an option is impossible for the model.
        """

    @abstractmethod
    def final_options(self) -> Any:
        """The options of the evaluation at the end of the training."""

    @abstractmethod
    def tables(self, part: dict[str, Any]) -> Iterator[Table]:
        """A part of an evaluation as tables."""

    @abstractmethod
    def unit(self, nll: float) -> str:
        """Nats a token in the unit that the field uses, such as "1.234 bpc"."""

    def finish(self, model: SequenceModel, run: Path, step: int, count: Counting = quiet) -> dict[str, Any]:
        """What the evaluation at the end has beside `evaluate`; may write to the run's folder."""
        return {}

    def source(self, rank: int = 0, size: int = 1) -> Streams:
        """Batches of the training split: the rows of learner number `rank` out of `size`.

        Raises:
            ValueError: if the split is too short for a batch, or the rows cannot be shared.
        """
        learner, train = self.config.learner, self.splits["train"]
        try:
            return Streams(train.tokens, learner.batch_size, learner.sequence_length, self._starts(train), (rank, size))
        except ValueError as error:
            raise ValueError(f"{self.describe().partition(':')[0]}, split train: {error}") from error

    def batches(
        self, part: Any, rows: int, count: Counting = quiet, activity: str = "", steps: int | None = None
    ) -> Iterator[Batch]:
        """One pass over a split or a part of it, with progress; see `learner.streams.one_pass`.

        Args:
            part: has `tokens` and `starts`.
            rows: contiguous parts that are read side by side.
            count, activity: how the progress is shown.
            steps: tokens of a batch; by default those of the training.
        """
        done, steps = 0, steps or self.config.learner.sequence_length
        with count(activity, len(part.tokens) - 1, "tokens") as show:
            for batch in one_pass(part.tokens, rows, steps, self._starts(part)):
                yield batch
                done += int((batch.targets != IGNORE).sum())
                show(done)

    def _starts(self, part: Any) -> Any:
        return part.starts if self.config.reset_at_starts else None


def cache_folder(kind: str) -> Path:
    """Where the prepared data of a kind are kept: under XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "compressive-impala" / kind


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Creates a folder, whole or not at all, unless it exists. Several processes may do so at once.

    Args:
        target: the folder.
        build: writes the content into the empty folder that it is called with.

    Raises:
        OSError: if the folder cannot be written; also what `build` raises.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-", suffix=".tmp"))
    try:
        build(temporary)
        temporary.rename(target)
    except Exception:
        if not target.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
