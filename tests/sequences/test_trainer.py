"""The training of sequence models: exact resumption, several learners, and checkpoints that do not fit."""

import dataclasses
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
from storage.metrics import read_metrics
from storage.run import Run
from tests.learner.test_group import together
from tests.sequences.speech.tiny import TINY, noise

LEARNER = SequenceLearnerConfig(
    batch_size=4, sequence_length=8, steps=12, learning_rate=1e-2, warmup_steps=2, decay_steps=10, late_start=None
)
DROPOUT = dataclasses.replace(TINY["compressive"], dropout=0.2)


class Sound(Speech):
    """The modality with the same noise in every split."""

    def __init__(self, config: SpeechConfig, folder: Path) -> None:
        self.config, self.folder, self.name, self.sample_rate, self.digest = config, folder, "noise", 8000, ""
        self.splits = dict.fromkeys(("train", "validation", "test"), Split(noise(301), ["a"], np.array([0])))


def make_trainer(run: Path, core: Any = TINY["compressive"], **changes: Any) -> SequenceTrainer:
    run.mkdir(exist_ok=True)
    learner = dataclasses.replace(LEARNER, **changes)
    config = SpeechConfig(model=core, learner=learner, log_every=1, evaluate_every=5, keep_checkpoints=1)
    return SequenceTrainer(Sound(config, run), Run(run))


def go(run: Path, core: Any, updates: int = 99, resume: bool = False, **changes: Any) -> SequenceTrainer:
    """Trains for some updates."""
    trainer, left = make_trainer(run, core, **changes), [updates + 1]
    if resume:
        trainer.restore()

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    trainer.train(lambda progress: None, stop)
    return trainer


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
    rows = [
        [{name: row[name] for name in row if name not in ("time", "speed/tokens_per_second")} for row in read]
        for read in (read_metrics(tmp_path / run) for run in ("straight", "stopped"))
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0] if "valid/nll" in row] == [5, 11, 12]


def test_other_weights_or_memory_are_refused(tmp_path: Path) -> None:
    go(tmp_path, TINY["compressive"], steps=1)
    trainers = [make_trainer(tmp_path, LSTMConfig(8)), make_trainer(tmp_path, batch_size=2)]
    for trainer, message in zip(trainers, ("expected 2 parts", r"expected a tensor of \[2, .*, got a tensor of \[4, ")):
        with pytest.raises(ValueError, match=f"does not fit .*: .*{message}"):
            trainer.restore()


def test_a_loss_that_is_not_finite_says_how_to_resume(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, TINY["compressive"])
    next(trainer.learner.model.parameters()).data.fill_(float("nan"))
    begin = (
        r"^step 1 is not finite: loss/nll = nan.*; resume from .*/000000000000 with: again \S+ --learner.learning-rate"
    )
    with pytest.raises(NotFinite, match=begin), trainer.advising(lambda folder: f"again {folder}", print):
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
        parts = [learner.source.next(step).tokens for learner in learners]
        assert torch.equal(torch.cat(parts), trainer.learner.source.next(step).tokens)
        assert not torch.equal(*parts)


def test_a_driver_without_a_gpu_evaluates(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, TINY["compressive"])
    trainer.config = dataclasses.replace(
        trainer.config, learners=2, learner=dataclasses.replace(LEARNER, device="cuda")
    )
    assert _evaluate(trainer, quiet)["step"] == 0
