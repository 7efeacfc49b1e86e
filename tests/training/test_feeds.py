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
from tests.training.test_trainer import CONFIG, timeless
from tests.waiting import PATIENCE, wait_until
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
        """Trains for a number of updates, with other fields of the configuration."""
        trainer = Trainer(dataclasses.replace(CONFIG, **fields), Run(folder), local=False)
        trainer.on_ray = False
        if resume:
            trainer.restore()

        done = 0

        def show(progress: Any) -> None:
            nonlocal done
            done += 1

        trainer.train(show, lambda: done >= updates)
        return trainer

    return train


def make_actor(config: Any, env: str) -> Callable[[int, int], Any]:
    """Makes the actors of a run that was never resumed, as pools want them."""
    from training.factories import make_actor

    return lambda actor_id, incarnation: make_actor(config, 0, actor_id, incarnation, env)


def leave() -> None:
    """A check that ends any wait."""
    raise EOFError


def test_functions_of_a_thread_are_called_in_turn() -> None:
    """An error reaches the caller that waits for it. A function that waits is canceled when the thread closes."""
    order: list[int] = []
    waiting = threading.Event()

    def divide_10_by(number: int) -> int:
        order.append(number)
        return 10 // number

    def wait(thread: Background) -> None:
        while True:
            waiting.set()
            thread.check()

    with closing(Background()) as thread:
        by_2 = thread.start(lambda: divide_10_by(2))
        by_1 = thread.start(lambda: divide_10_by(1))
        by_0 = thread.start(lambda: divide_10_by(0))
        assert wait_for(by_2, lambda: None) == 5
        assert wait_for(by_1, lambda: None) == 10
        with pytest.raises(ZeroDivisionError):
            wait_for(by_0, lambda: None)

        endless = thread.start(lambda: wait(thread))
        with pytest.raises(EOFError):
            wait_for(endless, leave)
        assert waiting.wait(PATIENCE)
    assert order == [2, 1, 0]
    assert not thread.thread.is_alive()
    with pytest.raises(CancelledError):
        endless.result()


def test_the_next_batch_and_weights_are_on_their_way_during_an_update(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second update ends when the third batch is here; the weights of the first are published after it began."""
    update = Learner.update
    get = Sender.get
    publish = Sender.publish
    received: list[int] = []  # the version that played each unroll
    second_began = threading.Event()
    threads = {threading.get_ident()}

    def watched_get(pool: Sender, *arguments: Any) -> Unroll:
        threads.add(threading.get_ident())
        unroll = get(pool, *arguments)
        received.append(unroll.version)
        return unroll

    def late_publish(pool: Sender, weights: Any, version: int) -> None:
        threads.add(threading.get_ident())
        if version == 1:
            assert second_began.wait(PATIENCE)
        publish(pool, weights, version)

    def patient_update(learner: Learner, batch: Any) -> Any:
        if learner.version == 1:
            second_began.set()
            wait_until(lambda: len(received) == 3)
        return update(learner, batch)

    monkeypatch.setattr(Sender, "get", watched_get)
    monkeypatch.setattr(Sender, "publish", late_publish)
    monkeypatch.setattr(Learner, "update", patient_update)
    train(tmp_path, 4)
    assert received[:2] == [0, 0]
    assert len(threads) == 3, "the loop's, one that receives and one that publishes"


def test_frames_are_counted_once_and_a_run_resumes(train: Callable[..., Trainer], tmp_path: Path) -> None:
    """Neither the steps nor the episodes of a batch that is ahead when the run ends are counted."""
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
    """The fourth call fails, after three updates or four: threads do not wait for the loop."""
    function = getattr(Sender, method)
    calls = itertools.count(1)

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
    """As if the node of several learners were lost before the weights were taken from it. Actors wait for them,
    because no lag is allowed."""
    take_snapshot = Learner.snapshot
    published: list[int] = []
    lost: list[int] = []

    def fails_once(learner: Learner) -> Callable[[], Any]:
        def lose() -> Any:
            lost.append(learner.version)
            raise PeerLost("lost")

        if learner.version == 2 and not lost:
            return lose
        return take_snapshot(learner)

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
    assert parts[0].observation.any(), "zeros in the batch left the unrolls as they were"


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
    """If several learners have the batch, it is fetched from its unrolls; otherwise it is the payload, if any."""
    trajectories = [agents.make_trajectory(2, 4, seed) for seed in range(2)]
    fetched: list[int] = []

    def fetch(number: int) -> Callable[[Any], Any]:
        def fetch_this(reference: Any) -> Any:
            fetched.append(number)
            return trajectories[number]

        return fetch_this

    unrolls = [Unroll(None, [], 0, 2, fetch(number)) for number in range(2)]
    several = Batch(5, [], 0, unrolls).trajectories()
    assert fetched == []
    next(several)
    assert fetched == [0]

    payload = trajectories[0]
    assert list(Batch(payload, [], 0, []).trajectories()) == [payload]
    assert list(Batch(None, [], 0, []).trajectories()) == []


@pytest.mark.gpu
def test_a_batch_and_a_snapshot_of_a_gpu_are_what_plain_copies_are() -> None:
    """While the GPU computes, from another thread, and twenty times in the same memory."""
    device = torch.device("cuda")
    weights = torch.nn.Linear(512, 512, device=device)
    with closing(Background()) as thread:
        for seed in range(20):
            parts = [agents.make_trajectory(8, 64, 3 * seed + part) for part in range(3)]
            ahead = thread.start(lambda parts=parts: load([arrays(part) for part in parts], device))  # type: ignore
            batch = wait_for(ahead, lambda: None)()
            doubled = [2 * leaf.float() for leaf in leaves(batch)]
            del batch  # so that the next one may have its memory

            # The weights change while the thread completes the snapshot.
            expected = weights.weight.detach().cpu()
            complete = snapshot(weights)
            published = thread.start(complete)
            with torch.no_grad():
                weights.weight.add_(torch.randn_like(weights.weight) @ torch.randn_like(weights.weight))
            assert wait_for(published, lambda: None)["weight"].equal(expected)
            for plain, value in zip(leaves(concatenate_states(parts)), doubled, strict=True):
                assert value.equal(2 * plain.to(device).float())
