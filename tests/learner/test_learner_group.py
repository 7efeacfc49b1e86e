"""Groups of learners, of which some die, against one learner: in threads and, in slow tests, in processes on Ray."""

import functools
import itertools
import math
import os
import re
import signal
import threading
import time
from pathlib import Path
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
from tests.waiting import wait_until

CLOSE = {"rel": 1e-5, "abs": 1e-6}
"""Tolerance of metrics, whose totals are in float32."""


def make(core: str = "compressive") -> Learner:
    return Learner(make_agent(core), CPU, 2000)


def make_group(learner: Learner, device: str = "cpu", **options: Any) -> LearnerGroup:
    """A group of two learners."""
    return LearnerGroup(learner, learner.replicate(), 2, device, **options)


def check_resuming(group: LearnerGroup, alone: Learner, batch: Trajectory) -> dict[str, Any]:
    """A group, one learner, and one that resumes from the group's state make the same update; returns that state."""
    saved = group.state_dict()
    assert saved.keys() == alone.state_dict().keys()
    resumed = make()
    resumed.load_state_dict(saved)
    for learner in (resumed, alone, group):
        learner.update(batch)
    assert_close(group.weights(), alone.weights())
    assert_close(resumed.weights(), alone.weights())
    return saved


def test_a_group_is_one_learner_when_any_of_them_die(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to one learner throughout: after deaths, after an update that is not finite, after saving and resuming."""
    batches = make_batches("compressive", 7)
    alone = make()
    follower = make()
    for learner in (alone, follower):
        learner.update(batches[0])
    bad = batches[0]._replace(reward=torch.full_like(batches[0].reward, math.nan))

    with make_group(follower) as group:

        def learn(batch: Trajectory) -> None:
            """The group and the one learner make the same update."""
            assert group.update(batch) == pytest.approx(alone.update(batch), **CLOSE)
            assert group.version == alone.version
            assert follower.steps == alone.steps

        # Plain updates.
        learn(batches[1])
        learn(batches[2])
        assert group.version == 3

        # An update that is not finite changes nothing.
        with pytest.raises(FloatingPointError, match=r"^update 4 is not finite: .*: reward\. The weights were not"):
            group.update(bad)
        assert_close(group.weights(), alone.weights())

        check_resuming(group, alone, batches[3])

        # One dies after an update, before it reports it: the update is not repeated.
        number = group.send(store(batches[6]))
        learner_group.ray.get([member.update.remote(number)[0] for member in group.members])
        place.kill(group, 0)
        learn(batches[6])
        assert_close(group.weights(), alone.weights())
        (warning,) = [record.getMessage() for record in caplog.records if record.name == "learner.group"]
        assert re.fullmatch(".*learner 0 died.*all learners are restarted at version 5", warning)

        # Nothing is lost if the wait for resources for the restart is ended.
        with monkeypatch.context() as waiting:
            waiting.setattr(group, "check", leave)
            waiting.setattr(group.placement.group, "wait", lambda seconds: False)  # as where a node is lost
            with pytest.raises(Left):
                group.update(batches[5])
        assert not group.members
        saved = check_resuming(group, alone, batches[5])

        # If all die, the weights survive. The optimizer is that of `saved`, one update older.
        place.kill(group, 0, 1)
        assert group.state_dict()["version"] == 6
        assert not group.members, "state_dict restarts no learner"
        group.update(batches[4])
        assert caplog.messages[-1].endswith("all learners are restarted at version 6, optimizer 5")
        alone.load_state_dict({**alone.state_dict(), "optimizer": saved["optimizer"]})
        alone.update(batches[4])
        assert_close(group.weights(), alone.weights())

        # Errors of callers restart no learner.
        with pytest.raises(ValueError, match="rows divisible by 2 learners, got 3"):
            group.update(shard(batches[0], 0))
        with pytest.raises(ray.exceptions.RayTaskError, match=r"expected uint8 \[N, 12, 16, 3\]"):
            group.update(batches[0]._replace(observation=batches[0].observation[:, :, 1:]))
    assert group.restarts == 2


def test_a_state_waits_for_a_call_that_was_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a validation that the user ends: the first learner is busy with it, and not lost."""
    (batch,) = make_batches("compressive", 1)
    with make_group(make()) as group:
        group.update(batch)
        monkeypatch.setattr(learner_group, "PEER_SECONDS", 0.3)
        monkeypatch.setattr(group, "check", leave)
        with pytest.raises(Left):
            group.call(busy)
        assert group.state_dict()["version"] == 1
        assert group.restarts == 0


def busy(learner: Learner) -> None:
    time.sleep(2)


@pytest.mark.ray
@pytest.mark.slow
def test_a_learner_that_hangs_when_its_state_is_needed_is_lost(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is that of the other one."""
    monkeypatch.setattr(learner_group, "PEER_SECONDS", 2.0)
    first, second = make_batches("compressive", 2)
    alone = make()
    alone.update(first)
    alone.update(second)
    with make_group(make()) as group:
        group.update(first)
        group.update(second)
        stopped = ray.get(group.members[0].pid.remote())
        os.kill(stopped, signal.SIGSTOP)
        assert group.state_dict()["version"] == 2
        assert_close(group.weights(), alone.weights())
        wait_until(lambda: not Path(f"/proc/{stopped}").exists())


@pytest.mark.parametrize(
    ("rows", "size"), [((6,), 1), ((6,), 3), ((4, 2), 2), ((1, 5), 2), ((1, 1, 1, 3), 3), ((2, 2, 2), 3)]
)
def test_each_learner_gets_an_equal_share_of_consecutive_rows(rows: tuple[int, ...], size: int) -> None:
    unrolls: list[Any] = [(f"unroll {index}", count) for index, count in enumerate(rows)]
    # Each row as the name of its unroll and its place in it.
    expected = [(name, row) for name, count in unrolls for row in range(count)]

    found = []
    for parts in learner_group._divide(unrolls, size):
        rows_of_learner = []
        for name, start, stop in parts:
            rows_of_learner += [(name, row) for row in range(start, stop)]
        assert len(rows_of_learner) == 6 // size
        found.append(rows_of_learner)
    assert len(found) == size
    assert list(itertools.chain(*found)) == expected

    with pytest.raises(ValueError, match="rows divisible by 4 learners, got 6"):
        learner_group._divide(unrolls, 4)


def store(*trajectories: Trajectory) -> list[tuple[ray.ObjectRef, int]]:
    """Unrolls as actors leave them in the object store, each with the number of its rows."""
    stored = []
    for trajectory in trajectories:
        arrays = map_state(lambda leaf: leaf.numpy(), trajectory)
        stored.append((learner_group.ray.put(arrays), len(trajectory.action)))
    return stored


@pytest.mark.ray
def test_a_learner_that_does_not_answer_is_lost(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_learner, "GRACE_SECONDS", 0.1)
    checks = list[int]()
    silent = wait_forever.remote()
    with pytest.raises(PeerLost, match="learner 0 has not answered for 1 s"):
        remote_learner.results_of([silent, ray.put(0)], lambda: checks.append(0), patience=1.0)
    assert checks, "the caller's check was called during the wait"
    ray.cancel(silent, force=True)


@ray.remote(num_cpus=0)
def wait_forever() -> None:
    threading.Event().wait()


def test_learners_fetch_batches_ahead_and_outlive_what_is_lost(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths and lost unrolls with a batch ahead, then lost weights; equal to one learner throughout."""
    batches = make_batches("lstm", 8)
    alone = make("lstm")
    # Each batch comes as two unrolls, which are not the halves of the two learners.
    unrolls = []
    for batch in batches:
        unrolls.append([index_state(batch, slice(0, 4)), index_state(batch, slice(4, ROWS))])

    with make_group(make("lstm")) as group:

        def learn(number: int, index: int) -> None:
            """The group learns from the batch that was sent as `number`, one learner from `batches[index]`."""
            expected = alone.update(batches[index])
            assert group.update(number) == pytest.approx(expected, **CLOSE)
            assert group.version == alone.version
            assert group.learner.steps == alone.steps

        # The next batch is always sent before the update of this one.
        ahead = group.send(store(*unrolls[0]))
        for index in range(3):
            number = ahead
            ahead = group.send(store(*unrolls[index + 1]))
            learn(number, index)

        # The weights are copied when they are asked for, and not before.
        assert not group.learner.agent.state_dict()["value.bias"].equal(alone.weights()["value.bias"])
        snapshot = group.snapshot()()
        assert_close({name: torch.tensor(array) for name, array in snapshot.items()}, alone.weights())
        assert_close(group.weights(), alone.weights())

        # One learner dies with a batch ahead.
        number = ahead
        ahead = group.send(store(*unrolls[4]))
        place.kill(group, 1)
        learn(number, 3)
        learn(ahead, 4)
        assert_close(group.weights(), alone.weights())

        # An unroll is lost: its batch is given up, and the one ahead of it is learned from.
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

        # Nothing is kept of batches that were learned from or lost.
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
    """A check of waits that ends them."""
    raise Left


@pytest.mark.ray
def test_a_wait_for_resources_can_be_ended(cluster: None) -> None:
    before = ray.util.placement_group_table().keys()
    no_such_node = {"for": "others"}
    with pytest.raises(Left), make_group(make("lstm"), labels=no_such_node, check=leave):
        raise AssertionError("there is no such node")
    groups = ray.util.placement_group_table()
    added = groups.keys() - before
    assert [groups[each]["state"] for each in added] == ["REMOVED"]


def test_seeds_differ_by_learner_restart_version_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups whose copies are equal in all else; a group that is made anew has the same."""
    threads.replace_ray(monkeypatch)
    seeds = list[int]()
    monkeypatch.setattr(remote_learner.torch, "manual_seed", seeds.append)
    batch = make_batches("lstm", 1)[0]

    def seeds_of_group(seed: int, version: int, restart: bool = False) -> set[int]:
        """The seeds of the two learners; and, if one dies, those of the two that are started in their place."""
        learner = make("lstm")
        learner.version = version
        seeds.clear()
        with make_group(learner, seed=seed) as group:
            group._join()
            if restart:
                group.members[1].kill()
                group.update(batch)
        return set(seeds)

    usual = seeds_of_group(seed=3, version=0)
    again = seeds_of_group(seed=3, version=0)
    other_run = seeds_of_group(seed=4, version=0)
    later = seeds_of_group(seed=3, version=1)
    restarted = seeds_of_group(seed=3, version=0, restart=True)
    assert usual == again
    assert len(usual) == 2
    assert usual < restarted
    assert len(restarted) == 4
    # Two of each: `usual`, `other_run`, `later`, and those after the restart.
    assert len(usual | other_run | later | restarted) == 8
    assert all(seed == int(seed) >= 0 for seed in restarted)


@pytest.mark.parametrize("newer", [0, 1])
def test_of_survivors_the_one_that_finished_the_update_counts(newer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death interrupted the other; the update is not repeated."""
    threads.replace_ray(monkeypatch)
    batches = make_batches("lstm", 3)
    alone = make("lstm")
    with LearnerGroup(make("lstm"), make("lstm").replicate(), 3, "cpu") as group:
        group.update(batches[0])
        alone.update(batches[0])

        # One of three learners has made the second update, and another one dies.
        expected = alone.update(batches[1])
        finish = functools.partial(Learner.load_state_dict, state=alone.state_dict())
        group.members[newer].instance.metrics = expected
        threads.get(group.members[newer].call.remote(finish))
        group.members[2].kill()

        assert group.update(batches[1]) == expected
        assert group.version == 2
        assert group.restarts == 1
        assert_close(group.weights(), alone.weights())

        assert group.update(batches[2]) == pytest.approx(alone.update(batches[2]), **CLOSE)
        assert_close(group.weights(), alone.weights())
        assert_close(group.state_dict()["optimizer"]["state"], alone.state_dict()["optimizer"]["state"])


def test_a_learner_keeps_a_batch_and_the_one_ahead_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an update does not take its batch, because another learner's part of it was lost."""
    threads.replace_ray(monkeypatch)
    with make_group(make("lstm")) as group:
        group._join()
        for batch in make_batches("lstm", 3):
            number = group.send(store(batch))
            kept = [number] if number == 1 else [number - 1, number]
            for member in group.members:
                assert sorted(member.instance.batches) == kept
