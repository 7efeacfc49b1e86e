"""The main loop where it must end: on a real Ray cluster that has no room, or whose learners die, and on errors."""

import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import ActorsConfig, LocalPool
from agent import AgentConfig
from agent.core import LSTMConfig
from learner import checkpoints
from learner.learner import Learner
from training import impala as training
from training.config import RunConfig
from training.impala import Progress, Trainer
from training.signals import StopRequest, stop_on_signals

CONFIG = RunConfig(
    env="rooms:small,episode_frames=120",
    frames=10**6,
    agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8)),
    actors=ActorsConfig(num_actors=2, envs_per_actor=2, unroll_length=20, cpus=0.5),
)
CROWDED = {
    "actors": dataclasses.replace(CONFIG, actors=dataclasses.replace(CONFIG.actors, cpus=100)),
    "learners": dataclasses.replace(CONFIG, learners=2, learner_labels=("for=nobody",)),
}
"""Runs for which the cluster has no room."""


class After:
    """A display that does something once, after some updates."""

    def __init__(self, updates: int, act: Callable[[], Any]) -> None:
        self.left, self.act = updates, act

    def update(self, progress: Progress) -> None:
        self.left -= 1
        if not self.left:
            self.act()


@pytest.mark.ray
@pytest.mark.parametrize("lacking", CROWDED)
def test_ctrl_c_ends_a_run_that_waits_for_the_cluster(lacking: str, cluster: None, tmp_path: Path) -> None:
    """The first one, within a moment, with a checkpoint."""
    trainer = Trainer(CROWDED[lacking], tmp_path, local=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    with stop_on_signals() as stop:
        timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            trainer.train(After(0, int), stop)
        finally:
            timer.cancel()
    assert stop.signal == signal.SIGINT
    assert checkpoints.load_latest(tmp_path).step == 0


@pytest.mark.ray
@pytest.mark.slow
def test_what_was_learned_is_saved_when_learners_cannot_go_on(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are killed once too often: weights are those of the last update, and none is started to ask it."""
    monkeypatch.setattr("learner.group.MAX_FAILURES", 0)
    groups: list[Any] = []
    make = training.make_learners

    def watched(*arguments: Any) -> Any:
        groups.append(make(*arguments))
        return groups[0]

    def kill() -> None:
        for pid in ray.get([member.pid.remote() for member in groups[0].members]):
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(training, "make_learners", watched)
    actors = dataclasses.replace(CONFIG.actors, num_actors=1)
    config = dataclasses.replace(CONFIG, actors=actors, learners=2, checkpoint_seconds=1e9)
    trainer = Trainer(config, tmp_path, local=False)
    with pytest.raises(RuntimeError, match="learners were lost 1 times in a row"):
        trainer.train(After(3, kill), StopRequest())
    checkpoint = checkpoints.load_latest(tmp_path)
    assert checkpoint.state["learner"]["version"] == trainer.learner.version == 3
    assert checkpoint.step == trainer.learner.steps
    weights = trainer.learner.weights()
    assert all(weights[name].equal(weight) for name, weight in checkpoint.parts["weights"].items())


@pytest.mark.parametrize(
    ("owner", "method", "call"), [(LocalPool, "get", 6), (Learner, "update", 6), (LocalPool, "publish", 6)]
)
def test_what_was_learned_is_saved_whatever_raises(
    owner: type, method: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, calls = getattr(owner, method), []

    def fails_in_the_end(*arguments: Any) -> Any:
        calls.append(method)
        if len(calls) == call:
            raise RuntimeError("it cannot go on")
        return function(*arguments)

    monkeypatch.setattr(owner, method, fails_in_the_end)
    trainer = Trainer(CONFIG, tmp_path, local=True)
    with pytest.raises(RuntimeError, match="it cannot go on"):
        trainer.train(After(0, int), StopRequest())
    checkpoint = checkpoints.load_latest(tmp_path)
    assert (checkpoint.step, checkpoint.state["learner"]["version"]) == (trainer.learner.steps, 5)
    assert "actors" not in checkpoint.parts, "the actors are in the middle of something"

    monkeypatch.setattr(owner, method, function)
    resumed = Trainer(dataclasses.replace(CONFIG, frames=trainer.frames + 1), tmp_path, local=True)
    resumed.restore()
    resumed.train(After(0, int), StopRequest())
    assert resumed.learner.version == 6


def test_nothing_is_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last checkpoint that is due anyway is the last one; what has learned nothing more saves nothing."""
    steps: list[int] = []
    save = checkpoints.save

    def counted(place: Any, step: int, *rest: Any) -> Any:
        steps.append(step)
        return save(place, step, *rest)

    monkeypatch.setattr(checkpoints, "save", counted)
    stop = StopRequest()

    def ask() -> None:
        stop.signal = signal.SIGINT

    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0)
    trainer = Trainer(config, tmp_path, local=True)
    trainer.train(After(4, ask), stop)
    assert len(steps) == 5
    assert steps == sorted(set(steps))
    again = Trainer(config, tmp_path, local=True)
    again.restore()
    again.train(After(0, int), stop)
    assert len(steps) == 5
    assert again.saved == trainer.saved
