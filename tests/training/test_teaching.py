"""Runs with a teacher: where it comes from, what is evaluated, exact resumption, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from agent import Agent
from commands.export import export
from commands.options import ExportOptions
from learner.replica import StateDict
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import state
from tests.training.test_trainer import CONFIG, timeless, train
from training.config import RunConfig
from training.evaluation import evaluate, load_trained_agent
from training.plain import to_plain
from training.trainer import Trainer

ENV = "rooms:small,looks=choose"
TAUGHT: dict[str, Any] = {
    "env": f"{ENV},own_view=True",
    "learner": dataclasses.replace(CONFIG.learner, teacher_cost=1.0, teacher_cost_end=0.5),
    "log_every": 1,
}
ON_CPU = dataclasses.replace(TAUGHT["learner"], device="cpu")


def source_of(folder: Path) -> Trainer:
    """A run to learn from."""
    return train(CONFIG, folder, 2)


def taught(folder: Path, source: Path, **changes: Any) -> Trainer:
    """A new run, before its first update."""
    config = dataclasses.replace(CONFIG, **{**TAUGHT, "from_run": str(source), **changes})
    trainer = Trainer(config, Run(folder), local=True)
    trainer.inherit()
    folder.mkdir(parents=True, exist_ok=True)
    trainer.run.write_config(to_plain(trainer.config))
    return trainer


def run(trainer: Trainer, updates: int) -> StateDict:
    """Trains up to a number of updates; returns the learner's state."""
    trainer.train(lambda _: None, lambda: trainer.learner.version == updates)
    return trainer.learner.state_dict()


def test_a_taught_run_is_resumed_exactly_without_its_teachers_run(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source")
    expected = source.learner.weights()
    trainer = taught(tmp_path / "whole", tmp_path / "source")
    for prefix in ("", "teacher."):
        assert all(torch.equal(trainer.learner.weights()[prefix + name], expected[name]) for name in expected)
    whole = run(trainer, 3)
    for row in read_metrics(tmp_path / "whole"):
        assert "loss/teacher" in row
        assert "loss/teacher_features" in row

    first = taught(tmp_path / "parts", tmp_path / "source")
    run(first, 1)
    (tmp_path / "source").rename(tmp_path / "gone")
    again = train(first.config, tmp_path / "parts", 2, resume=True)
    assert str(again.learner.state_dict()) == str(whole)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_a_resident_run_with_a_teacher_learns_what_a_local_one_does(tmp_path: Path) -> None:
    """The same bits, also if it is stopped and resumed."""
    source_of(tmp_path / "source")
    actors = dataclasses.replace(CONFIG.actors, num_actors=1, envs_per_actor=4)
    for resident in (True, False):
        changes = {"learner": ON_CPU, "actors": actors, "unrolls_per_update": 1, "resident": resident}
        folder = tmp_path / str(resident)
        trainer = taught(folder, tmp_path / "source", **changes)
        run(trainer, 2)
        again = train(trainer.config, folder, 1, resume=True)
        assert again.learner.version == 3
    assert state(tmp_path / "True") == state(tmp_path / "False")
    assert timeless(tmp_path / "True") == timeless(tmp_path / "False")


def test_a_taught_agent_plays_alone_and_other_runs_begin_with_it(tmp_path: Path) -> None:
    """It plays without the teacher and its view. A run that begins with its weights may have a teacher or not."""
    source_of(tmp_path / "source")
    trainer = taught(tmp_path / "taught", tmp_path / "source")
    run(trainer, 2)
    weights = trainer.agent.alone().state_dict()
    summary = evaluate(dataclasses.replace(trainer.config, eval_episodes=2), trainer.agent)
    assert summary["episodes"] == 2

    loaded = load_trained_agent(Run(tmp_path / "taught"))
    assert type(loaded.agent) is Agent
    assert loaded.env == ENV
    assert all(torch.equal(loaded.agent.state_dict()[name], weight) for name, weight in weights.items())

    # Other runs: one without a teacher, and one whose agent and teacher both begin with these weights.
    alone = dataclasses.replace(CONFIG, env=ENV, from_run=str(tmp_path / "taught"))
    again_taught = dataclasses.replace(alone, **TAUGHT)
    for config, prefixes in ((alone, ("",)), (again_taught, ("", "teacher."))):
        other = Trainer(config, Run(""), local=True)
        other.inherit()
        begun = other.learner.weights()
        assert len(begun) == len(prefixes) * len(weights)
        for prefix in prefixes:
            assert all(torch.equal(begun[prefix + name], weights[name]) for name in weights)


def test_a_taught_agent_is_exported_alone(tmp_path: Path) -> None:
    source_of(tmp_path / "source")
    trainer = taught(tmp_path / "taught", tmp_path / "source", eval_episodes=2)
    run(trainer, 2)
    export(ExportOptions(run=tmp_path / "taught", output=tmp_path / "small"))
    small = load_trained_agent(Run(tmp_path / "small"))
    assert small.config.env == small.env == ENV
    assert small.config.learner.teacher_cost == 0
    assert small.checkpoint.parts["weights"].keys() == trainer.agent.alone().state_dict().keys()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^from_run: expected the teacher's run, because of"):
        dataclasses.replace(CONFIG, **TAUGHT)

    source_of(tmp_path / "source")
    shows_once = r"^teacher_cost: expected an environment that shows each state twice, such as rooms:transfer"
    with pytest.raises(ValueError, match=shows_once):
        taught(tmp_path / "never", tmp_path / "source", env=ENV)
    no_teacher = r"^env: expected own_view=False without a teacher \(learner.teacher-cost\), got "
    with pytest.raises(ValueError, match=no_teacher):
        taught(tmp_path / "never", tmp_path / "source", learner=CONFIG.learner)
    assert not (tmp_path / "never").exists()


def test_by_default_there_is_no_teacher() -> None:
    assert RunConfig().learner.teacher_cost == 0
