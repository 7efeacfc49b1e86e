"""Groups of learners, of which some die, against one learner: in threads and, in slow tests, in processes on Ray."""

import functools
import itertools
import math
import re
import threading
from typing import Any

import pytest
import ray
import torch

from agent import Trajectory
from agent.core import index_state, map_state
from learner import group as learner_group
from learner import remote_learner
from learner.errors import BatchLost, PeerLost
from learner.group import LearnerGroup
from learner.learner import Learner
from tests.learner import threads
from tests.learner.places import Place
from tests.learner.test_group import CPU, ROWS, assert_close, make_agent, make_batch, make_batches, shard


def make(core: str = "compressive") -> Learner:
    return Learner(make_agent(core), CPU, 2000)


def make_group(learner: Learner, device: str = "cpu", **options: Any) -> LearnerGroup:
    return LearnerGroup(learner, learner.replicate(), 2, device, **options)


def test_a_group_is_one_learner_when_any_of_them_die(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_learners_fetch_batches_ahead_and_outlive_what_is_lost(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths and lost unrolls with a batch ahead, then lost weights; equal to one learner throughout."""
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
    monkeypatch.setattr("agent.failures.MAX_FAILURES", 1)
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
