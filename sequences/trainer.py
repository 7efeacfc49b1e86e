"""The training of sequence models of every modality: `train_model` trains or resumes a run and evaluates it.

The loop is `training.loop`; data, model and measures are those of a `sequences.modality.Modality`.
"""

import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from learner.communicator import Communicator
from learner.learner import resolve_device
from sequences.config import SequenceConfig, SequenceLearnerConfig
from sequences.images.modality import Images
from sequences.learner import SequenceLearner
from sequences.modality import Counting, Modality, quiet
from sequences.model import SequenceModel
from sequences.speech.modality import Speech
from sequences.text.modality import Text
from storage.checkpoints import Checkpoint, load_weights
from storage.errors import UserError, user_errors
from storage.files import Json, read_json, require_schema, write_json
from storage.run import RUN_COMMANDS, Run
from training.console import program, quantity
from training.loop import Stopped, Training
from training.progress import Progress

if TYPE_CHECKING:
    from learner.group import MakeReplica

MODALITIES: dict[str, type[Modality]] = {"text": Text, "speech": Speech, "images": Images}
"""Modalities by kind of run."""


def open_data(
    config: SequenceConfig, run: Run | None = None, show: Callable[[int, int], None] = lambda done, total: None
) -> Modality:
    """Opens the data of a configuration, on which `run` was trained if it is given; see `Modality.prepare`.

    Raises:
        UserError: if the run was trained on other data, or does not say on which.
        ValueError, ImportError, OSError: see `Modality.prepare`.
    """
    if run:
        path = run.record_file(config.kind)
        record = read_json(path)
        require_schema(record, {"digest": str}, str(path))
    data = MODALITIES[config.kind].prepare(config, show)
    if run and data.digest != record["digest"]:
        advice = "give their path"
        if getattr(config, "corpus", "") == "python":
            advice += ", or use the same version of Python"
        raise UserError(
            f"corpus: expected the data that {run} was trained on (SHA-256 {record['digest'][:12]}), got others "
            f"({data.digest[:12]}); {advice}"
        )
    return data


def load_model(run: Run, model: SequenceModel, device: str) -> Checkpoint:
    """Moves a model to a device, in evaluation mode, and loads the weights of the run's last readable checkpoint.

    If the run names a checkpoint, they are those of that one.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: if there is no such device, or the weights do not fit the model.
    """
    model.to(resolve_device(device)).eval()
    return load_weights(model.load_state_dict, run.path, run.config_file, run.checkpoint)


class ModalityLearner(SequenceLearner):
    """A learner with the data of a modality, its rows of the training split and the validation split."""

    def __init__(
        self, data: Modality, model: SequenceModel, config: SequenceLearnerConfig, comm: Communicator | None = None
    ) -> None:
        comm = comm or Communicator()
        super().__init__(model, data.source(comm.rank, comm.size), config, comm)
        self.data = data

    def validate(self, count: Counting = quiet) -> dict[str, float]:
        """See `Modality.validate`."""
        return self.data.validate(self.model, count)


class SequenceTrainer(Training):
    """A run of a sequence model in progress. Raises a ValueError if network, device or batches are impossible."""

    state_schema: ClassVar = {
        "learner": {"step": int, "updates": int, "tokens": int, "optimizer": dict, "memory": object},
        "rng": dict,
    }
    config: SequenceConfig
    learner: ModalityLearner

    def __init__(self, data: Modality, run: Run) -> None:
        config = data.config
        several = config.learners > 1
        learning = config.learner
        if several:
            # The learners in other processes have the devices; the one here has the weights to start with.
            learning = dataclasses.replace(learning, device="cpu")
        torch.manual_seed(config.seed)
        learner = ModalityLearner(data, data.make_model(), learning)
        super().__init__(config, run, learner, on_ray=several)
        self.data = data
        # The loss that is shown is a mean over the last updates, weighted by their age: `loss` is the sum of these
        # weighted losses, `weight` that of the weights.
        self.loss = 0.0
        self.weight = 0.0
        self.valid: dict[str, float] = {}

    def make_replica(self) -> "MakeReplica":
        return functools.partial(_replica, self.config, self.data.folder.resolve(), self.learner.model)

    @property
    def done(self) -> bool:
        return self.step >= self.config.learner.steps

    @property
    def step(self) -> int:
        return self.learner.step

    @property
    def clocked(self) -> int:
        return self.learner.tokens

    def update(self) -> dict[str, float]:
        """Learns once, and evaluates on the validation split when that is due."""
        before = self.step
        metrics = self.updater.update()
        self.clock.mark(self.clocked)
        self.loss = 0.95 * self.loss + 0.05 * metrics["loss/nll"]
        self.weight = 0.95 * self.weight + 0.05
        if self._is_evaluation_due(before):
            try:
                with self.clock.paused():
                    self.valid = self._validate()
            except Stopped:  # what was learned is in the metrics without it
                self.log(metrics)
                raise
            metrics |= self.valid
        return metrics

    def _validate(self) -> dict[str, float]:
        """The metrics of a validation, which in this process ends early if the training is to."""
        if self.updater is not self.learner:
            return self.updater.call(ModalityLearner.validate)

        @contextmanager
        def checking(activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
            yield lambda done: self.check()

        return self.learner.validate(checking)

    def _is_evaluation_due(self, before: int) -> bool:
        """Whether an update that began at step `before` has passed a multiple of `evaluate_every`, or is the last."""
        every = self.config.evaluate_every
        if every is None:
            return False
        return self.done or self.step // every > before // every

    def progress(self) -> Progress:
        learning = self.config.learner
        texts = [f"{quantity(self.clock.rate)} tokens/s", f"train {self.data.unit(self.loss / self.weight)}"]
        if self.valid:
            texts.append(f"valid {self.data.unit(self.valid['valid/nll'])}")
        return Progress(self.step, learning.steps, "steps", tuple(texts))

    def log(self, metrics: dict[str, float]) -> None:
        is_due = self.learner.updates % self.config.log_every == 0
        if is_due or self.done or "valid/nll" in metrics:
            speed = {"speed/tokens_per_second": self.clock.rate, "learner/tokens": self.learner.tokens}
            self.writer.write(self.step, metrics | speed)


def _replica(
    config: SequenceConfig, folder: Path, model: SequenceModel, comm: Communicator, device: str
) -> ModalityLearner:
    """One of several learners, in its own process."""
    data = MODALITIES[config.kind](config, folder)
    return ModalityLearner(data, model, dataclasses.replace(config.learner, device=device), comm)


def train_model(
    config: SequenceConfig,
    run: Run,
    *,
    new: bool | None = None,
    data: Modality | None = None,
    start: Callable[[SequenceTrainer], None] = lambda trainer: None,
    show: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    count: Counting = quiet,
    say: Callable[[str], None] = lambda line: None,
    patience: float = 0.0,
    how: str = "",
) -> Json | None:
    """Trains a run to its end, or resumes it, and evaluates it on the test split.

    Args:
        new: whether the folder must be new or empty; if None, a run that has checkpoints is resumed.
        data: the opened data, if the caller has them.
        start: is called with the trainer before the first update; `show` and `stop` after each.
        count: shows the progress of the evaluation.
        say: is called with the command that resumes the run when Ctrl-C ends it at once.
        patience: seconds to wait for another process to leave the folder.
        how: words behind the command that resumes the run, each behind a space.

    Returns:
        the evaluation, which is also written to `evaluation.json`; None if it was stopped before its end.

    Raises:
        UserError: if the folder, the configuration or a checkpoint cannot be used.
        Exception: see `training.advice.advising`.
    """
    if new is None:
        run.wait_for_others(patience)
        new = not run.has_checkpoints
    with run.claim(new, patience=patience):
        with user_errors():
            data = data or open_data(config, None if new else run)
            trainer = SequenceTrainer(data, run)

        def ready() -> None:
            write_json(run.record_file(config.kind), trainer.data.record())
            start(trainer)

        def again(folder: Path | str) -> str:
            return f"{resume_command(config, folder)}{how}"

        with trainer.opened(new, again, say, ready):
            trainer.train(show, stop)
            if not trainer.done:
                return None
            try:
                found = _evaluate(trainer, _until(stop, count))
            except Stopped:
                return None  # what was trained is saved, and is evaluated when it is resumed
            trainer.finish(found)
            return found


def _until(stop: Callable[[], bool], count: Counting) -> Counting:
    """`count`, which raises `Stopped` at the next progress after the user asked to stop."""

    @contextmanager
    def counting(activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        with count(activity, total, unit) as show:

            def shown(done: int) -> None:
                show(done)
                if stop():
                    raise Stopped

            yield shown

    return counting


def _evaluate(trainer: SequenceTrainer, count: Counting) -> Json:
    """Measures the test split."""
    device = trainer.config.learner.device
    if trainer.config.learners > 1:
        device = "auto"  # those of the learners may be on other machines
    model = trainer.learner.model.to(resolve_device(device))

    found: Json = {"step": trainer.step}
    for part in trainer.data.evaluate(model, count=count):
        found |= part
    found |= trainer.data.finish(model, trainer.run.path, trainer.step, count)
    return found


def resume_command(config: SequenceConfig, run: Path | str) -> str:
    """The command that resumes a run."""
    command = RUN_COMMANDS[config.kind][0].removeprefix("compressive")
    return f"{program()}{command} --resume {shlex.quote(str(run))}"
