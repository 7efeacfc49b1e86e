"""The training of sequence models: exact resumption, several learners, and checkpoints that do not fit."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent.core import LSTMConfig
from learner.errors import NotFinite
from sequences import trainer as sequence
from sequences.config import SequenceLearnerConfig
from sequences.modality import quiet
from sequences.speech.config import SpeechConfig
from sequences.speech.corpus import Split
from sequences.speech.modality import Speech
from sequences.trainer import SequenceTrainer, _evaluate
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.learner.test_group import together
from tests.sequences.speech.tiny import TINY, noise
from training.advice import advising

LEARNER = SequenceLearnerConfig(
    batch_size=4, sequence_length=8, steps=12, learning_rate=1e-2, warmup_steps=2, decay_steps=10, late_start=None
)
DROPOUT = dataclasses.replace(TINY["compressive"], dropout=0.2)


class Sound(Speech):
    """The modality with the same noise in every split."""

    def __init__(self, config: SpeechConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.name = "noise"
        self.sample_rate = 8000
        self.digest = ""
        one_file = Split(noise(301), ["a"], np.array([0]))
        self.splits = dict.fromkeys(("train", "validation", "test"), one_file)


def make_trainer(
    run: Path, core: Any = TINY["compressive"], log_every: int = 1, evaluate_every: int | None = 5, **changes: Any
) -> SequenceTrainer:
    """A trainer in the folder `run`; `changes` are other options of its learner."""
    run.mkdir(exist_ok=True)
    learner = dataclasses.replace(LEARNER, **changes)
    config = SpeechConfig(
        model=core, learner=learner, log_every=log_every, evaluate_every=evaluate_every, keep_checkpoints=1
    )
    return SequenceTrainer(Sound(config, run), Run(run))


def go(run: Path, core: Any, updates: int = 99, resume: bool = False, **changes: Any) -> SequenceTrainer:
    """Trains for a number of updates, or to the end of the run if it is before that."""
    trainer = make_trainer(run, core, **changes)
    if resume:
        trainer.restore()

    done = 0

    def show(progress: Any) -> None:
        nonlocal done
        done += 1

    trainer.train(show, lambda: done >= updates)
    return trainer


def timeless(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics without measured times, which differ between equal runs."""
    rows = read_metrics(folder)
    return [{name: row[name] for name in row if name not in ("time", "speed/tokens_per_second")} for row in rows]


def test_rows_of_metrics_are_as_rare_as_asked(tmp_path: Path) -> None:
    """And of each validation, and of the last update."""
    go(tmp_path / "a", TINY["lstm"], log_every=5, evaluate_every=None)
    go(tmp_path / "b", TINY["lstm"], log_every=5, evaluate_every=4)
    assert [row["step"] for row in read_metrics(tmp_path / "a")] == [5, 10, 12]
    assert [row["step"] for row in read_metrics(tmp_path / "b")] == [4, 5, 8, 10, 12]


@pytest.mark.parametrize("length", [8, 16])
@pytest.mark.parametrize("core", [DROPOUT, *(TINY[name] for name in ("transformer-xl", "lstm", "wavenet"))])
def test_stopping_anywhere_changes_nothing(core: Any, length: int, tmp_path: Path) -> None:
    """Weights, optimizer, memory, metrics and dropout masks."""
    changes = {"sequence_length": length, "late_start": 5, "late_accumulation_steps": 2}
    straight = go(tmp_path / "straight", core, **changes)
    go(tmp_path / "stopped", core, 2, **changes)
    go(tmp_path / "stopped", core, 4, resume=True, **changes)
    stopped = go(tmp_path / "stopped", core, resume=True, **changes)
    assert stopped.learner.step == straight.learner.step == 12
    assert stopped.learner.tokens == straight.learner.tokens
    for part in ("weights", "optimizer", "memory"):
        file = f"checkpoints/000000000012/{part}.safetensors"
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes(), part
    rows = timeless(tmp_path / "straight")
    assert timeless(tmp_path / "stopped") == rows
    assert [row["step"] for row in rows if "valid/nll" in row] == [5, 11, 12]


def test_a_validation_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take minutes. What was learned before it is saved."""
    trainer = make_trainer(tmp_path / "run", TINY["lstm"])
    validating = False
    validate = trainer.data.validate

    def begin(*arguments: Any) -> Any:
        nonlocal validating
        validating = True
        validate(*arguments)
        raise AssertionError("it was not stopped")

    monkeypatch.setattr(trainer.data, "validate", begin)
    trainer.train(lambda progress: None, lambda: validating)
    assert validating
    assert trainer.step == 5
    assert checkpoints.load_latest(tmp_path / "run").step == 5
    assert read_metrics(tmp_path / "run")[-1]["step"] == 5, "its row is there without the validation"


def test_a_run_that_has_passed_its_new_total_is_finished(tmp_path: Path) -> None:
    """Its last row of metrics may be of an earlier step."""
    go(tmp_path / "run", TINY["lstm"], 7, log_every=5, evaluate_every=None)
    assert read_metrics(tmp_path / "run")[-1]["step"] == 5
    for _ in range(2):
        trainer = go(tmp_path / "run", TINY["lstm"], resume=True, log_every=5, evaluate_every=None, steps=6)
        assert trainer.step == 7
        assert [row["step"] for row in read_metrics(tmp_path / "run")] == [5, 7]
    assert trainer.run.state(trainer.run.last_row(), *trainer.config.goal) == "trained, but not evaluated"


def test_an_evaluation_that_is_stopped_is_made_when_the_run_is_resumed(tmp_path: Path) -> None:
    """It may take as long as the training, and the training is saved."""
    trainer = make_trainer(tmp_path / "run", TINY["lstm"], steps=3)
    is_evaluating = False

    @contextmanager
    def count(activity: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        nonlocal is_evaluating
        is_evaluating = True
        yield lambda done: None

    def train(stop: Callable[[], bool]) -> Any:
        return sequence.train_model(trainer.config, trainer.run, data=trainer.data, stop=stop, count=count)

    assert train(lambda: is_evaluating) is None
    assert trainer.run.has_checkpoints
    assert not trainer.run.evaluation_file().exists()
    found = train(lambda: False)
    assert found["step"] == trainer.config.goal[1]
    assert trainer.run.evaluation_file().exists()


def test_other_weights_or_memory_are_refused(tmp_path: Path) -> None:
    go(tmp_path, TINY["compressive"], steps=1)
    other_core = make_trainer(tmp_path, LSTMConfig(8))
    with pytest.raises(ValueError, match=r"does not fit .*: .*expected 2 parts"):
        other_core.restore()
    fewer_rows = make_trainer(tmp_path, batch_size=2)
    with pytest.raises(ValueError, match=r"does not fit .*: .*expected a tensor of \[2, .*, got a tensor of \[4, "):
        fewer_rows.restore()


def test_a_loss_that_is_not_finite_says_how_to_resume(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, TINY["compressive"])
    next(trainer.learner.model.parameters()).data.fill_(float("nan"))
    message = r"^step 1 is not finite: loss/nll = nan.*; resume from .*/000000000000 with: again \S+$"
    with pytest.raises(NotFinite, match=message), advising(trainer, lambda folder: f"again {folder}", print):
        trainer.train(lambda progress: None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 8}, r"learner.batch_size: expected a multiple of 3 \(learners x microbatches\), got 8"),
        (
            {"batch_size": 6, "device": "cuda:1"},
            "learner.device: expected auto, cpu or cuda for 3 learners, got 'cuda:1'",
        ),
    ],
)
def test_learners_that_cannot_share_a_batch_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeechConfig(model=TINY["compressive"], learner=dataclasses.replace(LEARNER, **changes), learners=3)


def test_each_learner_of_several_reads_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sequence.MODALITIES, "speech", Sound)
    trainer = make_trainer(tmp_path / "run")
    make = trainer.make_replica()
    learners = together(lambda comm, rank: make(comm, "cpu"))
    for step in range(3):
        first, second = [learner.source.next(step).tokens for learner in learners]
        assert torch.equal(torch.cat([first, second]), trainer.learner.source.next(step).tokens)
        assert not torch.equal(first, second)


def test_a_driver_without_a_gpu_evaluates(tmp_path: Path) -> None:
    """Its learners are elsewhere and have GPUs."""
    trainer = make_trainer(tmp_path, TINY["compressive"])
    on_gpus = dataclasses.replace(LEARNER, device="cuda")
    trainer.config = dataclasses.replace(trainer.config, learners=2, learner=on_gpus)
    assert _evaluate(trainer, quiet)["step"] == 0
