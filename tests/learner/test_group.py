"""Learners that share a batch by rows against one learner of the whole batch: in threads, with gloo."""

import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent import Agent, Trajectory
from agent.core import CompressiveTransformerConfig, LSTMConfig, detach_state, index_state
from agent.trajectory import loss_mask
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import PeerLost
from learner.learner import Learner
from tests.agent import agents

ROWS, STEPS = 6, 16
COMPRESSIVE = CompressiveTransformerConfig(
    16, 2, 2, 16, segment_size=8, memory_size=6, compressed_size=4, compression_rate=2, norm="pre"
)
CORES = {
    "compressive": COMPRESSIVE,
    "autoencoding": dataclasses.replace(COMPRESSIVE, compression_loss="autoencoding"),
    "lstm": LSTMConfig(16),
}
CPU = LearnerConfig(
    device="cpu",
    learning_rate=1e-2,
    learning_rate_schedule="linear",
    entropy_cost=0.1,
    entropy_cost_end=0.01,
    max_gradient_norm=0.5,
)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "rmsprop": {"optimizer": "rmsprop", "rmsprop_epsilon": 1e-3, "rmsprop_momentum": 0.5},
}


def make_agent(core: str) -> Agent:
    return agents.make_agent(CORES[core], reconstruction_cost=0.5).double()


def make_batch(agent: Agent, seed: int) -> Trajectory:
    """Episodes of very different lengths, so that counts differ between shards; memories are not empty."""
    often = torch.linspace(0, 0.4, ROWS)[:, None]
    with torch.no_grad():
        state = agent(**agents.agent_inputs(ROWS, STEPS, seed), state=agent.initial_state(ROWS)).state
    batch = agents.make_trajectory(ROWS, STEPS, seed + 100)
    reset = torch.rand(ROWS, STEPS + 1, generator=torch.Generator().manual_seed(seed)) < often
    reset[:, 1:] &= ~reset[:, :-1]
    return batch._replace(reset=reset, core_state=detach_state(state), version=-torch.arange(ROWS))


@functools.cache
def make_batches(core: str, count: int) -> list[Trajectory]:
    agent = make_agent(core)
    return [make_batch(agent, seed) for seed in range(count)]


def together(work: Callable[[Communicator, int], Any], seconds: float = 20.0) -> list[Any]:
    """Results of `work(comm, rank)` in the two threads of a process group."""
    store = dist.HashStore()

    def run(rank: int) -> Any:
        return work(Communicator(dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=seconds))), rank)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def shard(batch: Trajectory, rank: int) -> Trajectory:
    rows = ROWS // 2
    return index_state(batch, slice(rank * rows, (rank + 1) * rows))


@pytest.mark.parametrize(
    ("core", "optimizer", "reduction"),
    [*itertools.product(("compressive", "lstm"), OPTIMIZERS, ("mean", "sum")), ("autoencoding", "adam", "mean")],
)
def test_two_learners_of_half_a_batch_are_one_of_the_whole(core: str, optimizer: str, reduction: Any) -> None:
    config = dataclasses.replace(CPU, reduction=reduction, **OPTIMIZERS[optimizer])
    batches = make_batches(core, 20)
    idle = batches[7]._replace(reset=batches[7].reset.clone())
    idle.reset[: ROWS // 2, 1:] = True  # a shard without steps and compression
    batches = [*batches[:7], idle, *batches[8:]]
    counts = [[int(loss_mask(shard(batch, rank)).sum()) for rank in range(2)] for batch in batches]
    assert all(first != second for first, second in counts)
    assert counts[7][0] == 0

    def learn(comm: Communicator, rank: int) -> tuple[Learner, list[dict[str, float]]]:
        learner = Learner(models[rank], config, 2000, comm)
        return learner, [learner.update(shard(batch, rank)) for batch in batches]

    models, start = [make_agent(core) for _ in range(3)], make_agent(core).state_dict()
    (first, metrics), (second, other_metrics) = together(learn)
    alone = Learner(models[2], config, 2000)
    expected = [alone.update(batch) for batch in batches]

    assert first.steps == second.steps == alone.steps
    assert_close(first.weights(), alone.weights())
    assert all(weight.equal(second.weights()[name]) for name, weight in first.weights().items())
    assert max(float((weight - start[name]).abs().max()) for name, weight in alone.weights().items()) > 1e-2
    assert metrics == other_metrics
    for actual, wanted in zip(metrics, expected, strict=True):
        assert actual == pytest.approx(wanted, rel=1e-5, abs=1e-6)  # totals of losses are in float32
    assert {"loss/reconstruction", "policy_lag/max"} <= set(metrics[0])
    assert ("loss/compression/layer_1" in metrics[0]) == (core != "lstm")


def test_a_shard_that_is_not_finite_stops_all_learners() -> None:
    good = make_batch(make_agent("compressive"), 0)
    bad = good._replace(reward=good.reward.clone())
    bad.reward[-1, 3] = math.nan
    models = [make_agent("compressive") for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> tuple[str, bool, int]:
        learner = Learner(models[rank], CPU, 2000, comm)
        before = learner.weights()
        with pytest.raises(FloatingPointError) as error:
            learner.update(shard(bad, rank))
        unchanged = all(before[name].equal(weight) for name, weight in learner.weights().items())
        learner.update(shard(good, rank))
        return str(error.value), unchanged, learner.version

    first, second = together(learn)
    assert first == second
    assert "trajectory that are not finite: reward." in first[0]
    assert first[1:] == (True, 1)


@pytest.mark.parametrize("reason", ["gone", "late"])
def test_a_lost_learner_leaves_the_others_as_they_were(reason: str) -> None:
    (batch,), done = make_batches("lstm", 1), threading.Event()
    models = [make_agent("lstm") for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> tuple[bool, int]:
        learner = Learner(models[rank], CPU, 2000, comm)
        if rank == 1:
            if reason == "late":
                done.wait()
            return True, 0
        before = learner.weights()
        with pytest.raises(PeerLost):
            learner.update(shard(batch, rank))
        done.set()
        return all(before[name].equal(weight) for name, weight in learner.weights().items()), learner.version

    assert together(learn, seconds=2.0)[0] == (True, 0)


assert_close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-10)
