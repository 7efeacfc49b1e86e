"""The threads beside the training loop: what they do during an update, their errors, and their end."""

import dataclasses
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from actors import LocalPool, Unroll
from agent.core import concatenate_states, leaves, map_state
from learner.errors import PeerLost
from learner.learner import Learner
from learner.loading import load
from learner.optimization import snapshot
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.agent import agents
from tests.commands.cli import PATIENCE, wait_until
from tests.training.test_trainer import CONFIG, timeless
from training.background import Background, wait_for
from training.feeds import Batch
from training.trainer import Trainer


def arrays(trajectory: Any) -> Any:
    """As they come from Ray: read-only."""

    def frozen(leaf: torch.Tensor) -> Any:
        array = leaf.numpy()
        array.setflags(write=False)
        return array

    return map_state(frozen, trajectory)


class Sender(LocalPool):
    """Actors in this process whose unrolls come as if from Ray."""

    lock = threading.Lock()

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        check()
        with self.lock:
            unroll = super().get()
        return unroll._replace(trajectory=arrays(unroll.trajectory))

    def publish(self, weights: dict[str, Any], version: int) -> None:
        with self.lock:
            super().publish(weights, version)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trainer]:
    """Trains as on Ray, without Ray."""

    def make_pool(config: Any, env: str, *_: Any) -> Sender:
        return Sender(make_actor(config, env), config.actors)

    monkeypatch.setattr("training.feeds.make_pool", make_pool)

    def train(folder: Path, updates: int, resume: bool = False, **fields: Any) -> Trainer:
        trainer, count = Trainer(dataclasses.replace(CONFIG, **fields), Run(folder), local=False), itertools.count(1)
        trainer.on_ray, stop = False, list[bool]()
        if resume:
            trainer.restore()
        trainer.train(lambda progress: next(count) == updates and stop.append(True), lambda: any(stop))
        return trainer

    return train


def make_actor(config: Any, env: str) -> Callable[[int, int], Any]:
    from training.factories import make_actor

    return lambda actor_id, incarnation: make_actor(config, 0, actor_id, incarnation, env)


def test_functions_of_a_thread_are_called_in_turn() -> None:
    order, waiting = list[int](), threading.Event()

    def wait(thread: Background) -> None:
        while True:
            waiting.set()
            thread.check()

    with closing(Background()) as thread:
        futures = [thread.start(lambda number=number: order.append(number) or 10 // number) for number in (2, 1, 0)]  # type: ignore
        assert [wait_for(future, lambda: None) for future in futures[:2]] == [5, 10]
        with pytest.raises(ZeroDivisionError):
            wait_for(futures[2], lambda: None)
        endless = thread.start(lambda: wait(thread))
        with pytest.raises(EOFError):
            wait_for(endless, leave)
        waiting.wait(PATIENCE)
    assert order == [2, 1, 0]
    assert not thread.thread.is_alive()
    with pytest.raises(CancelledError):
        endless.result()


def leave() -> None:
    raise EOFError


def test_the_next_batch_and_weights_are_on_their_way_during_an_update(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second update ends when the third batch is here; the weights of the first are published after it began."""
    update, get, publish = Learner.update, Sender.get, Sender.publish
    received, second, threads = list[int](), threading.Event(), dict[str, set[int]](get=set(), publish=set())

    def watched_get(pool: Sender, *arguments: Any) -> Unroll:
        threads["get"].add(threading.get_ident())
        unroll = get(pool, *arguments)
        received.append(unroll.version)
        return unroll

    def late_publish(pool: Sender, weights: Any, version: int) -> None:
        threads["publish"].add(threading.get_ident())
        assert version != 1 or second.wait(PATIENCE)
        publish(pool, weights, version)

    def patient_update(learner: Learner, batch: Any) -> Any:
        if learner.version == 1:
            second.set()
            wait_until(lambda: len(received) == 3)
        return update(learner, batch)

    monkeypatch.setattr(Sender, "get", watched_get)
    monkeypatch.setattr(Sender, "publish", late_publish)
    monkeypatch.setattr(Learner, "update", patient_update)
    train(tmp_path, 4)
    assert received[:2] == [0, 0]
    assert len({threading.get_ident()}.union(*threads.values())) == 3


def test_frames_are_counted_once_and_a_run_resumes(train: Callable[..., Trainer], tmp_path: Path) -> None:
    """A batch that is ahead when the run ends counts nowhere; its episodes neither."""
    first = train(tmp_path, 5, log_every=1)
    rows = read_metrics(tmp_path)
    assert rows[0]["policy_lag/max"] == 0
    assert max(row["policy_lag/max"] for row in rows) <= 2
    again = train(tmp_path, 5, resume=True, log_every=1)
    assert again.learner.version == 10
    steps = 2 * 20  # of an unroll, less the last observations of episodes
    assert 5 * (steps - 4) <= again.learner.steps - first.learner.steps <= 5 * steps
    assert again.episodes >= first.episodes
    assert timeless(tmp_path)[-1]["learner/frames"] == again.frames


@pytest.mark.parametrize("method", ["get", "publish"])
def test_errors_of_threads_reach_the_loop(
    method: str, train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, calls = getattr(Sender, method), itertools.count(1)

    def fails_at_last(*arguments: Any) -> Any:
        if next(calls) == 4:
            raise RuntimeError("broken")
        return function(*arguments)

    monkeypatch.setattr(Sender, method, fails_at_last)
    with pytest.raises(RuntimeError, match="broken"):
        train(tmp_path, 100)
    assert checkpoints.load_latest(tmp_path).state["learner"]["version"] in (3, 4)


def test_weights_that_were_lost_are_published_anew(
    train: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the node of several learners were lost before the weights were taken from it; also if actors wait."""
    take, published, lost = Learner.snapshot, list[int](), list[int]()

    def fails_once(learner: Learner) -> Callable[[], Any]:
        def lose() -> Any:
            lost.append(learner.version)
            raise PeerLost("lost")

        return lose if learner.version == 2 and not lost else take(learner)

    def watched_publish(pool: Any, weights: Any, version: int) -> None:
        published.append(version)
        LocalPool.publish(pool, weights, version)

    monkeypatch.setattr(Learner, "snapshot", fails_once)
    monkeypatch.setattr(Sender, "publish", watched_publish)
    assert train(tmp_path, 5, max_policy_lag=0).learner.version == 5
    assert lost == [2]
    assert published[:4] == [0, 1, 2, 3]


def test_a_batch_is_its_unrolls_in_memory_of_its_own() -> None:
    parts = [agents.make_trajectory(2, 4, seed) for seed in range(3)]
    batch = load([arrays(part) for part in parts], torch.device("cpu"))()
    for expected, value in zip(leaves(concatenate_states(parts)), leaves(batch), strict=True):
        assert value.dtype == expected.dtype
        assert value.equal(expected)
        value.zero_()
    assert parts[0].observation.any()


def test_a_snapshot_is_of_the_weights_when_it_was_taken() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    complete = snapshot(module)
    with torch.no_grad():
        for value in module.state_dict().values():
            value.add_(1)
    for name, value in complete().items():
        assert value.dtype == before[name].dtype
        assert value.equal(before[name])


def test_trajectories_of_a_batch_are_fetched_when_they_are_asked_for() -> None:
    """Where several learners fetch the batch; otherwise it is the payload, or the learners keep it."""
    fetched = list[int]()

    def fetch(number: int) -> Callable[[Any], Any]:
        return lambda reference: fetched.append(number) or trajectories[number]  # type: ignore[func-returns-value]

    trajectories = [agents.make_trajectory(2, 4, seed) for seed in range(2)]
    unrolls = [Unroll(None, [], 0, 2, fetch(number)) for number in range(2)]
    several = Batch(5, [], 0, unrolls).trajectories()
    assert fetched == []
    next(several)
    assert fetched == [0]
    assert list(Batch(trajectories[0], [], 0, []).trajectories()) == trajectories[:1]
    assert list(Batch(None, [], 0, []).trajectories()) == []


@pytest.mark.gpu
def test_a_batch_and_a_snapshot_of_a_gpu_are_what_plain_copies_are() -> None:
    """While the GPU computes, from other threads, and again and again in the same memory."""
    device, weights = torch.device("cuda"), torch.nn.Linear(512, 512, device="cuda")
    with closing(Background()) as thread:
        for seed in range(20):
            parts = [agents.make_trajectory(8, 64, 3 * seed + part) for part in range(3)]
            ahead = thread.start(lambda parts=parts: load([arrays(part) for part in parts], device))  # type: ignore
            batch = wait_for(ahead, lambda: None)()
            doubled = [2 * leaf.float() for leaf in leaves(batch)]
            del batch
            expected, complete = weights.weight.detach().cpu(), snapshot(weights)
            published = thread.start(complete)
            with torch.no_grad():
                weights.weight.add_(torch.randn_like(weights.weight) @ torch.randn_like(weights.weight))
            assert wait_for(published, lambda: None)["weight"].equal(expected)
            for plain, value in zip(leaves(concatenate_states(parts)), doubled, strict=True):
                assert value.equal(2 * plain.to(device).float())
