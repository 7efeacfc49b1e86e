"""Runs that start with the weights of another run."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.core import LSTMConfig
from storage.run import Run
from tests.training.test_trainer import AGENT, CONFIG, train
from training.plain import to_plain
from training.trainer import Trainer


def inheriting(source: Path, **changes: Any) -> Trainer:
    """A new run that is to begin with the weights of the run `source`."""
    return Trainer(dataclasses.replace(CONFIG, from_run=str(source), **changes), Run(""), local=True)


def test_a_run_starts_with_the_weights_of_another(tmp_path: Path) -> None:
    """With a new optimizer, in another environment, and reading the other run only once."""
    source = train(CONFIG, tmp_path / "source", 2)
    trainer = inheriting(tmp_path / "source", env="rooms:small,object_scale=2.5,action_repeat=2")
    before = trainer.learner.weights()
    trainer.inherit()

    # The weights are those of the other run, and nothing else is.
    weights = trainer.learner.weights()
    expected = source.learner.weights()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert any(not torch.equal(weights[name], before[name]) for name in expected)
    fresh = Trainer(CONFIG, Run(""), local=True).learner.state_dict()["optimizer"]
    assert str(trainer.learner.state_dict()["optimizer"]) == str(fresh)
    assert trainer.learner.version == trainer.learner.steps == 0
    assert trainer.config.from_run == str(source.saved)

    # The new run is resumed without the other.
    trainer.run = Run(tmp_path / "new")
    trainer.place = trainer.run.path
    trainer.train(lambda _: None, lambda: trainer.learner.version == 1)
    (tmp_path / "source").rename(tmp_path / "gone")
    assert train(trainer.config, tmp_path / "new", 1, resume=True).learner.version == 2


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 0), (0, 1)])
def test_values_begin_anew_for_other_tasks(before: int, after: int, tmp_path: Path) -> None:
    """With normalized values of so many tasks; 0 stands for one whose values are not normalized."""
    changes = []
    for count in (before, after):
        env = "rooms:small" if count < 2 else "rooms:small,rooms:small,glow_pulse=1"
        learner = dataclasses.replace(CONFIG.learner, popart=count > 0)
        actors = dataclasses.replace(CONFIG.actors, num_actors=2)
        changes.append({"env": env, "learner": learner, "actors": actors})
    source = train(dataclasses.replace(CONFIG, **changes[0]), tmp_path / "source", 1)
    trainer = inheriting(tmp_path / "source", **changes[1])
    own = trainer.learner.weights()
    trainer.inherit()
    weights = trainer.learner.weights()
    expected = source.learner.weights()
    for name, weight in weights.items():
        if name.startswith("value."):
            assert torch.equal(weight, own[name]), name
        else:
            assert torch.equal(weight, expected[name]), name


def test_what_a_run_cannot_start_from(tmp_path: Path) -> None:
    train(CONFIG, tmp_path / "source", 1)
    Run(tmp_path / "source").write_config(to_plain(CONFIG))
    wider = dataclasses.replace(AGENT, torso_size=9)
    for changes, words in (
        ({"agent": wider}, r"^agent\.torso_size: expected 8 as in .*source, got 9$"),
        ({"agent": dataclasses.replace(AGENT, core=LSTMConfig(9))}, r"^agent\.core\.model_size: expected 8 as in"),
        ({"env": "rooms:small,image_width=40"}, r"^env: expected observations \[24, 32, 3\].* got .*\[24, 40, 3\]"),
        ({"env": "gym:CartPole-v1"}, "^env: expected .*9 actions.*, got .*2 actions.*without --env"),
    ):
        with pytest.raises(ValueError, match=words):
            inheriting(tmp_path / "source", **changes).inherit()
    with pytest.raises(FileNotFoundError, match="is not a run"):
        inheriting(tmp_path / "nothing").inherit()
