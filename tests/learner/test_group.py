"""Learners that share a batch by rows against one learner of the whole batch: in threads, with gloo."""

import dataclasses
import functools
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
    with torch.no_grad():
        state = agent(**agents.agent_inputs(ROWS, STEPS, seed), state=agent.initial_state(ROWS)).state
    batch = agents.make_trajectory(ROWS, STEPS, seed + 100)

    # Episodes of two steps or more. The first row has one episode only.
    probability = torch.linspace(0, 0.4, ROWS)[:, None]
    reset = torch.rand(ROWS, STEPS + 1, generator=torch.Generator().manual_seed(seed)) < probability
    reset[:, 1:] &= ~reset[:, :-1]
    return batch._replace(reset=reset, core_state=detach_state(state), version=-torch.arange(ROWS))


@functools.cache
def make_batches(core: str, count: int) -> list[Trajectory]:
    agent = make_agent(core)
    return [make_batch(agent, seed) for seed in range(count)]


def together(work: Callable[[Communicator, int], Any], seconds: float = 20.0) -> list[Any]:
    """Results of `work(comm, rank)` in the two threads of a process group, whose collectives wait for `seconds`."""
    store = dist.HashStore()

    def run(rank: int) -> Any:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=seconds))
        return work(Communicator(group), rank)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def shard(batch: Trajectory, rank: int) -> Trajectory:
    """The first or the second half of the rows."""
    rows = ROWS // 2
    return index_state(batch, slice(rank * rows, (rank + 1) * rows))


def has_weights(learner: Learner, expected: dict[str, torch.Tensor]) -> bool:
    """Its weights are these, bit by bit."""
    return all(expected[name].equal(weight) for name, weight in learner.weights().items())


@pytest.mark.parametrize(
    ("core", "optimizer", "reduction"),
    [
        ("compressive", "adam", "sum"),
        ("compressive", "rmsprop", "mean"),
        ("lstm", "adam", "mean"),
        ("lstm", "rmsprop", "sum"),
        ("autoencoding", "adam", "mean"),
    ],
)
def test_two_learners_of_half_a_batch_are_one_of_the_whole(core: str, optimizer: str, reduction: Any) -> None:
    config = dataclasses.replace(CPU, reduction=reduction, **OPTIMIZERS[optimizer])

    # In one batch, a shard has no steps and no compression.
    batches = list(make_batches(core, 20))
    idle = batches[7]._replace(reset=batches[7].reset.clone())
    idle.reset[: ROWS // 2, 1:] = True
    batches[7] = idle
    for batch in batches:
        first_count, second_count = [int(loss_mask(shard(batch, rank)).sum()) for rank in range(2)]
        assert first_count != second_count
    assert not loss_mask(shard(idle, 0)).any()

    models = [make_agent(core) for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> tuple[Learner, list[dict[str, float]]]:
        learner = Learner(models[rank], config, 2000, comm)
        return learner, [learner.update(shard(batch, rank)) for batch in batches]

    (first, metrics), (second, other_metrics) = together(learn)
    alone = Learner(make_agent(core), config, 2000)
    start = alone.weights()
    expected = [alone.update(batch) for batch in batches]

    # The learners are equal bit by bit, and equal to the one that learns alone up to rounding.
    assert first.steps == second.steps == alone.steps
    assert has_weights(second, first.weights())
    assert_close(first.weights(), alone.weights())
    changes = [float((weight - start[name]).abs().max()) for name, weight in alone.weights().items()]
    assert max(changes) > 1e-2, "they have learned"

    assert metrics == other_metrics
    for actual, wanted in zip(metrics, expected, strict=True):
        # The total is in float32, and its parts may cancel.
        size = sum(abs(value) for name, value in wanted.items() if name.startswith("loss/"))
        total = wanted.pop("loss/total")
        assert actual.pop("loss/total") == pytest.approx(total, rel=1e-5, abs=1e-6 * max(1.0, size))
        assert actual == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert {"loss/reconstruction", "policy_lag/max"} <= set(metrics[0])
    assert ("loss/compression/layer_1" in metrics[0]) == (core != "lstm")


def test_a_shard_that_is_not_finite_stops_all_learners() -> None:
    good = make_batch(make_agent("compressive"), 0)
    bad = good._replace(reward=good.reward.clone())
    bad.reward[-1, 3] = math.nan
    models = [make_agent("compressive") for _ in range(2)]

    def learn(comm: Communicator, rank: int) -> str:
        learner = Learner(models[rank], CPU, 2000, comm)
        before = learner.weights()
        with pytest.raises(FloatingPointError) as error:
            learner.update(shard(bad, rank))
        assert has_weights(learner, before)
        learner.update(shard(good, rank))
        assert learner.version == 1
        return str(error.value)

    first, second = together(learn)
    assert first == second
    assert "trajectory that are not finite: reward." in first


@pytest.mark.parametrize("reason", ["gone", "late"])
def test_a_lost_learner_leaves_the_others_as_they_were(reason: str) -> None:
    (batch,) = make_batches("lstm", 1)
    models = [make_agent("lstm") for _ in range(2)]
    noticed = threading.Event()

    def learn(comm: Communicator, rank: int) -> bool:
        """The second learner takes no part in the update. The first one returns that it noticed."""
        learner = Learner(models[rank], CPU, 2000, comm)
        if rank == 1:
            if reason == "late":
                noticed.wait()
            return False
        before = learner.weights()
        with pytest.raises(PeerLost):
            learner.update(shard(batch, rank))
        noticed.set()
        assert has_weights(learner, before)
        assert learner.version == 0
        return True

    assert together(learn, seconds=2.0) == [True, False]


assert_close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-10)
