"""The training of sequence models of every modality: `train_run` trains or resumes a run and evaluates it.

The loop is `training.loop`; data, model and measures are those of a `learner.modality.Modality`. Several learners are
started by `training.sequence_ray`.
"""

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from agent.language_model import SequenceModel
from learner import checkpoints
from learner.checkpoints import Checkpoint
from learner.communicator import Communicator
from learner.config import SequenceConfig
from learner.files import read_json, require_schema, write_json
from learner.learner import resolve_device
from learner.metrics import MetricsWriter
from learner.modality import Counting, Modality, quiet
from learner.sequence_learner import SequenceLearner
from learner.serialization import check_rng, flatten, restore_rng, rng_state, unflatten
from speech.modality import Speech
from text.modality import Text
from text.tokens import tokenizer_file
from training import UserError
from training.config import to_plain
from training.console import quantity
from training.loop import Clock, Progress, train
from training.run import KINDS, Run

MODALITIES: dict[str, type[Modality]] = {"text": Text, "speech": Speech}
"""Modalities by kind of run."""
PEER_SECONDS = 600.0
"""Time that several learners wait for each other; the first one evaluates meanwhile."""
FOLLOW_SECONDS = 1.0
"""Time between two looks at the metrics that learners in other processes write."""
_COUNTERS = {"step": int, "updates": int, "tokens": int}
_STATE = {"learner": {"optimizer": dict, "memory": object, "source": dict, **_COUNTERS}, "rng": dict}
"""Schema of a checkpoint's state."""
_PARTS = {"weights": dict, "optimizer": dict, "memory": dict}


def record_file(run: Run, kind: str) -> Path:
    """The file in which a run of a kind keeps `Modality.record`."""
    return tokenizer_file(run.path) if kind == "text" else run.corpus_file


def open_data(
    config: SequenceConfig, run: Run | None = None, show: Callable[[int, int], None] = lambda done, total: None
) -> Modality:
    """Opens the data of a configuration, which are prepared first if they were not before.

    Args:
        config: the configuration.
        run: a run that was trained on these data.
        show: see `Modality.prepare`.

    Raises:
        UserError: if the run was trained on other data, or does not say on which.
        ValueError, ImportError, OSError: see `Modality.prepare`.
    """
    if run:
        path = record_file(run, config.kind)
        record = read_json(path)
        require_schema(record, {"digest": str}, str(path))
    data = MODALITIES[config.kind].prepare(config, show)
    if run and data.digest != record["digest"]:
        raise UserError(
            f"corpus: expected the data that {run} was trained on (SHA-256 {record['digest'][:12]}), got others "
            f"({data.digest[:12]}); give their path, and use the same Python for --corpus python"
        )
    return data


def load_model(run: Run, model: SequenceModel, device: str) -> Checkpoint:
    """Moves a model to a device, in evaluation mode, and loads the weights of the run's last readable checkpoint.

    Raises:
        UserError: if the weights do not fit the model.
        FileNotFoundError: if there is no checkpoint.
        ValueError: if there is no such device.
    """
    model.to(resolve_device(device)).eval()
    checkpoint = checkpoints.load_latest(run.path)
    try:
        model.load_state_dict(checkpoint.parts["weights"])
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{checkpoint.path} does not fit {run.config_file}: {error}") from error
    return checkpoint


class SequenceTrainer:
    """A run in progress: learner, clock and files. Implements `training.loop.Job`.

    If several learners share the batches, each has a trainer, and all call the same methods together; the first one
    writes, evaluates and shows.

    Args:
        data: the modality.
        run: its folder.
        comm: the learners; None for a single one.
        device: replaces the device of the configuration.

    Raises:
        ValueError: if the network, the device or the batches are impossible.
    """

    def __init__(self, data: Modality, run: Run, comm: Communicator | None = None, device: str | None = None) -> None:
        self.data, self.run, self.config = data, run, data.config
        comm = comm or Communicator()
        self.first = comm.rank == 0
        learning = self.config.learner
        if device:
            learning = dataclasses.replace(learning, device=device)
        torch.manual_seed(self.config.seed)
        self.learner = SequenceLearner(data.make_model(), data.source(comm.rank, comm.size), learning, comm)
        self.clock = Clock(0)
        self.loss = self.weight = 0.0
        self.valid: dict[str, float] = {}
        self.restored: Checkpoint | None = None
        self.writer: MetricsWriter | None = None

    def restore(self) -> None:
        """Resumes from the run's last readable checkpoint, with its random generators.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it does not fit.
        """
        checkpoint = checkpoints.load_latest(self.run.path)
        try:
            require_schema(checkpoint.state, _STATE, "state")
            require_schema(checkpoint.parts, _PARTS, "parts")
            check_rng(checkpoint.state["rng"])
            state = dict(checkpoint.state["learner"])
            for name in ("optimizer", "memory"):
                state[name] = unflatten(checkpoint.parts[name], state[name])
            self.learner.load_state_dict(state | {"weights": checkpoint.parts["weights"]})
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{checkpoint.path} does not fit: {error}") from error
        restore_rng(checkpoint.state["rng"])
        self.restored = checkpoint

    def seed_rank(self) -> None:
        """Gives each of several learners its own dropout masks; the first one draws those of a single learner."""
        if rank := self.learner.comm.rank:
            seed = np.random.SeedSequence([torch.initial_seed(), rank, self.learner.step]).generate_state(1)[0]
            torch.manual_seed(int(seed))

    def train(self, show: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        """Trains until all steps are done or `stop` returns true; leaves a checkpoint in both cases.

        A new run also starts with a checkpoint, so that it can be resumed from its first update, and a full disk shows
        at once.
        """
        if self.done:
            return
        if self.learner.step == 0:
            self.save()
        self.clock = Clock(self.learner.tokens)
        writer: AbstractContextManager[MetricsWriter | None] = nullcontext()
        if self.first:
            writer = MetricsWriter(self.run.path, self.learner.step)
        with writer as self.writer:
            train(self, show, stop, self.config.checkpoint_seconds, self._agree)
        self.save()

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.learner.step >= self.config.learner.steps

    def update(self) -> dict[str, float]:
        """See `Job`; also evaluates when that is due."""
        before = self.learner.step
        metrics = self.learner.update()
        self.clock.mark(self.learner.tokens)
        self.loss = 0.95 * self.loss + 0.05 * metrics["loss/nll"]
        self.weight = 0.95 * self.weight + 0.05
        every = self.config.evaluate_every
        if self.first and every and (self.done or self.learner.step // every > before // every):
            with self.clock.paused():
                self.valid = self.data.validate(self.learner.model)
            metrics |= self.valid
        return metrics

    def progress(self) -> Progress:
        """See `Job`."""
        return progress(self.data, self.learner.step, self.clock.rate, self.loss / self.weight, self.valid)

    def log(self, metrics: dict[str, float]) -> None:
        """See `Job`."""
        due = self.learner.updates % self.config.log_every == 0 or self.done or "valid/nll" in metrics
        if due and self.writer:
            speed = {"speed/tokens_per_second": self.clock.rate, "learner/tokens": self.learner.tokens}
            self.writer.write(self.learner.step, metrics | speed)

    def save(self) -> None:
        """See `Job`."""
        state = self.learner.state_dict()
        if not self.first:
            return
        tensors = {name: flatten(state.pop(name)) for name in ("optimizer", "memory")}
        parts = {"weights": state.pop("weights")} | {name: part for name, (part, _) in tensors.items()}
        counters = state | {name: plain for name, (_, plain) in tensors.items()}
        content = {"learner": counters, "rng": rng_state(), "config": to_plain(self.config)}
        checkpoints.save(self.run.path, self.learner.step, parts, content, self.config.keep_checkpoints)

    def _agree(self, due: bool, stopping: bool) -> tuple[bool, bool]:
        """Whether any of the learners wants a checkpoint, and whether any wants to stop."""
        if self.learner.comm.size == 1:
            return due, stopping
        wishes = torch.tensor([due, stopping], device=self.learner.device).long()
        due, stopping = map(bool, self.learner.comm.max(wishes).tolist())
        return due, stopping


def progress(data: Modality, step: int, rate: float, nll: float, valid: Mapping[str, float]) -> Progress:
    """How far a training is.

    Args:
        data: gives sizes and the unit of the loss.
        step: steps done.
        rate: tokens a second.
        nll: training loss, in nats a token.
        valid: metrics of the last evaluation; empty if there was none.
    """
    learning = data.config.learner
    texts = [f"{quantity(rate)} tokens/s", f"train {data.unit(nll)}"]
    if "valid/nll" in valid:
        texts.append(f"valid {data.unit(valid['valid/nll'])}")
    per_second = rate / (learning.batch_size * learning.sequence_length)
    return Progress(step, learning.steps, "steps", per_second, tuple(texts))


def train_run(
    config: SequenceConfig,
    run: Run,
    *,
    new: bool | None = None,
    data: Modality | None = None,
    start: Callable[[SequenceTrainer], None] = lambda trainer: None,
    show: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    count: Counting = quiet,
    patience: float = 0.0,
) -> dict[str, Any] | None:
    """Trains a run to its end, or resumes it, and evaluates it on the test split.

    Args:
        config: the configuration of the run.
        run: its folder.
        new: whether the folder must be new or empty; if None, a run that has checkpoints is resumed.
        data: the opened data, if the caller has them.
        start: is called with the trainer before the first update.
        show: is called after each update.
        stop: is asked after each update whether to stop.
        count: shows the progress of the evaluation.
        patience: seconds to wait for another process to leave the folder.

    Returns:
        the evaluation, which is also written to `evaluation.json`; None if the training was stopped before its end.

    Raises:
        UserError: if the folder, the configuration or a checkpoint cannot be used, or the folder is lost or full.
        FloatingPointError: if a loss is not finite; says how to resume more slowly.
    """
    new = not run.has_checkpoints if new is None else new
    with run.claim(new, patience=patience):
        try:
            data = data or open_data(config, None if new else run)
            trainer = SequenceTrainer(data, run, device="cpu" if config.learners > 1 else None)
            if not new:
                trainer.restore()
        except (ValueError, ImportError, OSError) as error:
            raise UserError(str(error)) from error
        with _advice(trainer):
            write_json(record_file(run, data.config.kind), data.record())
            start(trainer)
            run.write_config(to_plain(config))
            if config.learners > 1:
                if not trainer.done:
                    _train_on_ray(trainer, new, show, stop)
                    trainer.restore()
            else:

                def show_in_place(progress: Progress) -> None:
                    run.require()
                    show(progress)

                trainer.train(show_in_place, stop)
            if not trainer.done:
                return None
            run.require()
            return _evaluate(trainer, count)


def _evaluate(trainer: SequenceTrainer, count: Counting) -> dict[str, Any]:
    """Measures the test split and writes `evaluation.json`: last, because it marks the run as finished."""
    data, model, step = trainer.data, trainer.learner.model, trainer.learner.step
    found: dict[str, Any] = {"step": step}
    for part in data.evaluate(model, count=count):
        found |= part
    found |= data.finish(model, trainer.run.path, step, count)
    write_json(trainer.run.evaluation_file(), found)
    return found


def resume_command(config: SequenceConfig, run: Path) -> str:
    """The command that resumes a run."""
    return f"{KINDS[config.kind][0]} --resume {shlex.quote(str(run))}"


@contextmanager
def _advice(trainer: SequenceTrainer) -> Iterator[None]:
    """Turns errors of a training into errors that say what happened to the run and how to resume it."""
    run, config, again = trainer.run, trainer.config, resume_command(trainer.config, trainer.run.path)
    try:
        yield
    except OSError as error:
        if not run.lost:
            hint = f"; resume with: {again}" if run.has_checkpoints else ""
            raise UserError(f"{run} cannot be written to: {error}{hint}") from error
        found = run.find()
        if found is None:
            raise UserError(f"{run.fate}, and with it all that was learned") from error
        if config.learners == 1:
            trainer.run = Run(found)
            trainer.save()
        raise UserError(f"{run.fate}; resume with: {resume_command(config, found)}") from error
    except FloatingPointError as error:
        rate, least = config.learner.learning_rate / 4, config.learner.least_learning_rate
        slower = f"{again} --learner.learning-rate {rate:.3g}"
        slower += f" --learner.least-learning-rate {rate:.3g}" if rate < least else ""
        raise FloatingPointError(f"{error} Resume from the last checkpoint, more slowly, with: {slower}") from error


def _train_on_ray(
    trainer: SequenceTrainer, new: bool, show: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """Trains with several learners on Ray; shows the progress that the first of them writes to the run's metrics."""
    from training.sequence_ray import train_on_ray

    config, data, run = trainer.config, trainer.data, trainer.run
    arguments = {"config": config, "data": data.folder.resolve(), "run": str(run.path.resolve()), "new": new}
    known, looked, valid = trainer.learner.step, 0.0, dict[str, float]()

    def follow() -> None:
        nonlocal known, looked, valid
        if time.monotonic() - looked < FOLLOW_SECONDS:
            return
        looked, row = time.monotonic(), run.last_row()
        if row.get("step", 0) > known:
            known = row["step"]
            valid = {name: value for name, value in row.items() if name.startswith("valid/")} or valid
            show(progress(data, known, row["speed/tokens_per_second"], row["loss/nll"], valid))

    train_on_ray(_learn, arguments, config.learners, run, resume_command(config, run.path), follow, stop)


def _learn(work: dict[str, Any], device: str) -> None:
    """Runs one of several learners, in a process that Ray Train started and connected with the others."""
    torch.set_num_threads(1)
    run, config = Run(work["run"]), work["config"]
    group = dist.new_group(timeout=timedelta(seconds=PEER_SECONDS))
    data = MODALITIES[config.kind](config, work["data"])
    trainer = SequenceTrainer(data, run, Communicator(group), device)
    if not work["new"]:
        trainer.restore()
    trainer.seed_rank()
    trainer.train(lambda progress: None, run.stop_file.exists if trainer.first else lambda: False)
