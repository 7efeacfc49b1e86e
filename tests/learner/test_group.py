"""Learners that share a batch by rows against one learner of the whole batch, with gloo: in threads and on Ray."""

import dataclasses
import functools
import itertools
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist

from agent import Agent, Trajectory
from agent.core import CompressiveTransformerConfig, LSTMConfig, detach_state, index_state, map_state
from agent.trajectory import loss_mask
from learner import group as learner_group
from learner import remote_learner
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.errors import BatchLost, PeerLost
from learner.group import LearnerGroup
from learner.learner import Learner
from tests.agent import agents
from tests.learner import threads

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


def make(core: str = "compressive") -> Learner:
    return Learner(make_agent(core), CPU, 2000)


def make_group(learner: Learner, device: str = "cpu", **options: Any) -> LearnerGroup:
    return LearnerGroup(learner, learner.replicate(), 2, device, **options)


assert_close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def kill(group: LearnerGroup, *ranks: int) -> None:
    for pid in ray.get([group.members[rank].pid.remote() for rank in ranks]):
        os.kill(pid, signal.SIGKILL)


class Place(NamedTuple):
    """Where the learners of a group are."""

    kill: Callable[..., None]
    lost_object: Callable[[], Any]


@pytest.fixture(params=["threads", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Threads of this process or, in slow tests, processes on Ray."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return Place(kill, lost_object)
    threads.replace_ray(monkeypatch)
    return Place(lambda group, *ranks: [group.members[rank].kill() for rank in ranks], threads.lost_object)


def test_a_group_is_one_learner_when_any_of_them_die(place: Place, caplog, monkeypatch) -> None:
    """Equal to one learner throughout: after deaths, after an update that is not finite, after saving and resuming."""
    batches, alone, follower = make_batches("compressive", 7), make(), make()
    for learner in (alone, follower):
        learner.update(batches[0])
    bad = batches[0]._replace(reward=torch.full_like(batches[0].reward, math.nan))
    with make_group(follower) as group:
        for batch in batches[1:3]:
            assert group.update(batch) == pytest.approx(alone.update(batch), rel=1e-5, abs=1e-6)
        assert (group.version, follower.steps) == (alone.version, alone.steps) == (3, alone.steps)
        with pytest.raises(FloatingPointError, match=r"^update 4 is not finite: .*: reward\. The weights were not"):
            group.update(bad)
        assert_close(group.weights(), alone.weights())

        def resume(batch: Trajectory) -> dict[str, Any]:
            resumed, saved = make(), group.state_dict()
            assert saved.keys() == alone.state_dict().keys()
            resumed.load_state_dict(saved)
            for learner in (resumed, alone, group):
                learner.update(batch)
            assert_close(group.weights(), alone.weights())
            assert_close(resumed.weights(), alone.weights())
            return saved

        resume(batches[3])
        # One dies after an update, before it reports it: the update is not repeated.
        number = group.send(store(batches[6]))
        learner_group.ray.get([member.update.remote(number)[0] for member in group.members])
        place.kill(group, 0)
        assert group.update(batches[6]) == pytest.approx(alone.update(batches[6]), rel=1e-5, abs=1e-6)
        assert (group.version, follower.steps) == (alone.version, alone.steps)
        assert_close(group.weights(), alone.weights())
        (said,) = [record.getMessage() for record in caplog.records if record.name == "learner.group"]
        assert re.fullmatch(".*learner 0 died.*all learners are restarted at version 5", said)
        # Nothing is lost if the wait for resources for the restart is ended.
        with monkeypatch.context() as waiting:
            waiting.setattr(group, "check", leave)
            waiting.setattr(group.placement, "wait", lambda seconds: False)  # as where a node is lost
            with pytest.raises(Left):
                group.update(batches[5])
        assert not group.members
        saved = resume(batches[5])
        # If all die, only the optimizer's last update is lost (it is that of `saved`). `state_dict` restarts none.
        place.kill(group, 0, 1)
        assert group.state_dict()["version"] == 6
        assert not group.members
        group.update(batches[4])
        assert caplog.messages[-1].endswith("all learners are restarted at version 6, optimizer 5")
        alone.load_state_dict({**alone.state_dict(), "optimizer": saved["optimizer"]})
        alone.update(batches[4])
        assert_close(group.weights(), alone.weights())
        with pytest.raises(ValueError, match="rows divisible by 2 learners, got 3"):
            group.update(shard(batches[0], 0))
        with pytest.raises(ray.exceptions.RayTaskError, match=r"expected uint8 \[N, 12, 16, 3\]"):
            group.update(batches[0]._replace(observation=batches[0].observation[:, :, 1:]))
    assert group.restarts == 2


@pytest.mark.parametrize(
    ("rows", "size"), [((6,), 1), ((6,), 3), ((4, 2), 2), ((1, 5), 2), ((1, 1, 1, 3), 3), ((2, 2, 2), 3)]
)
def test_each_learner_gets_an_equal_share_of_consecutive_rows(rows: tuple[int, ...], size: int) -> None:
    unrolls: list[Any] = [(f"unroll {index}", count) for index, count in enumerate(rows)]
    expected = [(name, row) for name, count in unrolls for row in range(count)]
    parts = learner_group._divide(unrolls, size)
    found = [[(name, row) for name, *part in each for row in range(*part)] for each in parts]
    assert [len(each) for each in found] == [6 // size] * size
    assert list(itertools.chain(*found)) == expected
    with pytest.raises(ValueError, match="rows divisible by 4 learners, got 6"):
        learner_group._divide(unrolls, 4)


def store(*trajectories: Trajectory) -> list[tuple[ray.ObjectRef, int]]:
    """Unrolls as actors leave them in the object store."""
    put = [learner_group.ray.put(map_state(lambda leaf: leaf.numpy(), each)) for each in trajectories]
    return [(reference, len(each.action)) for reference, each in zip(put, trajectories)]


@ray.remote(num_cpus=0)
class Owner:
    def put(self) -> list[ray.ObjectRef]:
        return [ray.put(np.zeros(10**6))]


def lost_object() -> ray.ObjectRef:
    """A reference to an object that is lost, as if its node were."""
    owner: Any = Owner.remote()  # type: ignore[attr-defined]
    (reference,) = ray.get(owner.put.remote())
    ray.kill(owner)
    while True:  # until Ray has noticed it
        try:
            ray.get(reference)
        except ray.exceptions.ObjectLostError:
            return reference


@pytest.mark.ray
def test_a_learner_that_does_not_answer_is_lost(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_learner, "GRACE_SECONDS", 0.1)
    asked, silent = list[int](), wait_forever.remote()
    with pytest.raises(PeerLost, match="learner 0 has not answered for 1 s"):
        remote_learner.results_of([silent, ray.put(0)], lambda: asked.append(0), patience=1.0)
    assert asked
    ray.cancel(silent, force=True)


@ray.remote(num_cpus=0)
def wait_forever() -> None:
    threading.Event().wait()


def test_learners_fetch_batches_ahead_and_outlive_what_is_lost(place: Place, caplog, monkeypatch) -> None:
    """Deaths and lost unrolls with a batch ahead, then lost weights; equal to one learner throughout."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(Owner, "__module__", __name__, raising=False)
    batches, alone = make_batches("lstm", 8), make("lstm")
    unrolls = [(index_state(batch, slice(0, 4)), index_state(batch, slice(4, ROWS))) for batch in batches]
    with make_group(make("lstm")) as group:

        def learn(number: int, index: int) -> None:
            expected = alone.update(batches[index])
            assert group.update(number) == pytest.approx(expected, rel=1e-5, abs=1e-6)
            assert (group.version, group.learner.steps) == (alone.version, alone.steps)

        ahead = group.send(store(*unrolls[0]))
        for index in range(3):
            number, ahead = ahead, group.send(store(*unrolls[index + 1]))
            learn(number, index)
        assert not group.learner.agent.state_dict()["value.bias"].equal(alone.weights()["value.bias"])
        assert_close({name: torch.tensor(array) for name, array in group.snapshot()().items()}, alone.weights())
        assert_close(group.weights(), alone.weights())

        number, ahead = ahead, group.send(store(*unrolls[4]))
        place.kill(group, 1)
        learn(number, 3)
        learn(ahead, 4)
        assert_close(group.weights(), alone.weights())

        lost = group.send([(place.lost_object(), 4), *store(unrolls[5][1])])
        ahead = group.send(store(*unrolls[5]))
        with pytest.raises(BatchLost, match=f"a part of batch {lost} was lost with its node"):
            group.update(lost)
        learn(ahead, 5)
        assert group.restarts == 1

        # All die, and the weights of the last update are lost with their node.
        saved = group.state_dict()
        learn(group.send(store(*unrolls[6])), 6)
        group.newest = place.lost_object()
        with pytest.raises(PeerLost, match="the weights of the last update were lost"):
            group.snapshot()()
        place.kill(group, 0, 1)
        group.update(batches[7])
        assert caplog.messages[-1].endswith("all learners are restarted at version 7, optimizer 6, weights 6")
        assert group.version == 8
        alone.load_state_dict({**saved, "version": 7, "steps": alone.steps})
        alone.update(batches[7])
        assert_close(group.weights(), alone.weights())
        assert not group.sent
        assert not group.fetches


def test_learners_that_die_again_and_again_stop_the_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_group, "MAX_FAILURES", 1)
    batch = make_batch(make_agent("lstm"), 0)
    with make_group(make("lstm")) as group:
        start = group._start

        def start_and_kill() -> None:
            start()
            place.kill(group, 0)

        group.update(batch)
        monkeypatch.setattr(group, "_start", start_and_kill)
        place.kill(group, 1)
        with pytest.raises(RuntimeError, match="learners were lost 2 times in a row without an update: learner 0 died"):
            group.update(batch)
        assert group.version == 1


@pytest.mark.ray
def test_more_learners_than_gpus_are_refused(cluster: None) -> None:
    with pytest.raises(ValueError, match="learners: expected at most one for each of the cluster's 0 GPUs, got 2"):
        make_group(make("lstm"), "cuda")


class Left(Exception):
    """Raised by what has waited long enough."""


def leave() -> None:
    raise Left


@pytest.mark.ray
def test_a_wait_for_resources_can_be_ended(cluster: None) -> None:
    before = ray.util.placement_group_table().keys()
    with pytest.raises(Left), make_group(make("lstm"), labels={"for": "others"}, check=leave):
        raise AssertionError("there is no such node")
    groups = ray.util.placement_group_table()
    assert [groups[new]["state"] for new in groups.keys() - before] == ["REMOVED"]


def test_seeds_differ_by_learner_restart_version_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups whose copies are equal in all else; a group that is made anew has the same."""
    threads.replace_ray(monkeypatch)
    seeds = list[int]()
    monkeypatch.setattr(remote_learner.torch, "manual_seed", seeds.append)
    batch = make_batches("lstm", 1)[0]

    def started(seed: int, version: int, restart: bool = False) -> set[int]:
        learner = make("lstm")
        learner.version = version
        seeds.clear()
        with make_group(learner, seed=seed) as group:
            group._join()
            if restart:
                group.members[1].kill()
                group.update(batch)
        return set(seeds)

    usual, again, other_run, later = started(3, 0), started(3, 0), started(4, 0), started(3, 1)
    restarted = started(3, 0, restart=True)
    assert usual == again < restarted
    assert [len(each) for each in (usual, restarted)] == [2, 4]
    assert len(usual | other_run | later | restarted) == 8
    assert all(seed == int(seed) >= 0 for seed in restarted)


@pytest.mark.parametrize("newer", [0, 1])
def test_of_survivors_the_one_that_finished_the_update_counts(newer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death interrupted the other; the update is not repeated."""
    threads.replace_ray(monkeypatch)
    batches, alone = make_batches("lstm", 3), make("lstm")
    with LearnerGroup(make("lstm"), make("lstm").replicate(), 3, "cpu") as group:
        group.update(batches[0])
        alone.update(batches[0])
        expected = alone.update(batches[1])
        finish = functools.partial(Learner.load_state_dict, state=alone.state_dict())
        group.members[newer].instance.metrics = expected
        threads.get(group.members[newer].call.remote(finish))
        group.members[2].kill()
        assert group.update(batches[1]) == expected
        assert (group.version, group.restarts) == (2, 1)
        assert_close(group.weights(), alone.weights())
        assert group.update(batches[2]) == pytest.approx(alone.update(batches[2]), rel=1e-5, abs=1e-6)
        assert_close(group.weights(), alone.weights())
        optimizers = [each.state_dict()["optimizer"]["state"] for each in (group, alone)]
        assert_close(*optimizers)


def test_a_learner_keeps_a_batch_and_the_one_ahead_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an update does not take its batch, because another learner's part of it was lost."""
    threads.replace_ray(monkeypatch)
    with make_group(make("lstm")) as group:
        group._join()
        for batch in make_batches("lstm", 3):
            number = group.send(store(batch))
            held = [sorted(member.instance.batches) for member in group.members]
            assert held == [list(range(max(1, number - 1), number + 1))] * 2
