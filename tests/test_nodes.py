"""Nodes of a real Ray cluster come and go while actors act and learners learn; and its object store fills up.

The nodes are all on this machine (`ray.cluster_utils`); to lose one is to kill its raylet and all that runs there.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from actors import Actor, ActorsConfig, ClusterError, Unroll
from actors.ray_pool import RayPool
from commands import main
from learner.errors import LearnersLost
from learner.learner import Learner
from storage import checkpoints
from storage.metrics import last_metrics
from tests.actors import counting
from tests.actors.counting import make_counting_actor
from tests.commands.cli import ENVIRONMENT, PATIENCE, TINY, refusal, saved_steps, start, wait_until
from tests.learner import test_group, test_learner_group
from tests.learner.test_group import CPU, assert_close, make_agent, make_batches

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ENVS = 3
SOON = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
"""Ray notices a lost node within 2 s instead of about 15 s."""
START = {"log_to_driver": False, "logging_level": "ERROR"}


@pytest.fixture
def make_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Makes a cluster whose first node has one CPU."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.shutdown()
    clusters = []

    def make(**head: Any) -> Cluster:
        clusters.append(Cluster())
        clusters[0].add_node(**{"num_cpus": 1, "include_dashboard": False, **head})
        return clusters[0]

    yield make
    ray.shutdown()
    for cluster in clusters:
        cluster.shutdown()


def bigger(times: int) -> Callable[[int, int], Actor]:
    """Makes counting actors whose observations come so many times over, for unrolls that lie in the object store."""

    def make(actor_id: int, incarnation: int) -> Actor:
        actor = make_counting_actor(ENVS, actor_id, incarnation)
        unroll = actor.unroll

        def unroll_bigger(length: int) -> Unroll:
            found = unroll(length)
            observation = found.trajectory.observation.repeat(1, 1, times)
            return found._replace(trajectory=found.trajectory._replace(observation=observation))

        actor.unroll = unroll_bigger  # type: ignore[method-assign]
        return actor

    return make


def test_actors_and_learners_outlive_a_node_and_use_a_new_one(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(_system_config=SOON)
    ray.init(address=cluster.address, **START)
    for module in (counting, test_group, test_learner_group):
        ray.cloudpickle.register_pickle_by_value(module)
    actors_survive(cluster)
    learners_survive(cluster)


def actors_survive(cluster: Cluster) -> None:
    """An elastic pool uses a node that joins, continues without it when it is lost, and uses the next one."""
    config = ActorsConfig(num_actors=1, max_actors=3, envs_per_actor=ENVS, unroll_length=8)
    acting = {"num_cpus": 2, "labels": {"for": "acting"}}
    labelled = ActorsConfig(num_actors=1, envs_per_actor=ENVS, unroll_length=8, cpus=0, labels=("for=acting",))
    seen: set[tuple[int, ...]] = set()
    with RayPool(bigger(1_000), config) as pool:  # 324 kB each
        version = 0

        def learn_until(condition: Callable[[], bool]) -> None:
            nonlocal version
            for _ in range(20_000):
                pool.publish({"marker": torch.zeros(1)}, version)
                if condition():
                    return
                trajectory = pool.get().load()
                version += 1
                assert not trajectory.policy_parameters.any(), "an environment got a state that is not its own"
                steps = set(map(tuple, trajectory.observation[:, :-1, :3].flatten(0, 1).long().tolist()))
                assert len(steps) == ENVS * 8
                assert not steps & seen, "a step is learned from twice"
                seen.update(steps)
            raise AssertionError(f"20,000 unrolls, and still {pool.status()}")

        learn_until(lambda: pool.status().alive == 1)
        node = cluster.add_node(**acting)
        learn_until(lambda: pool.status().alive == 3)
        cluster.remove_node(node, allow_graceful=False)
        learn_until(lambda: pool.status().alive == 1 and pool.status().restarts == 2)
        before = version
        learn_until(lambda: version == before + 20)
        node = cluster.add_node(**acting)
        learn_until(lambda: pool.status().alive == 3)
        assert pool.status().restarts == 2
        with RayPool(partial(make_counting_actor, ENVS), labelled) as there:
            there.publish({"marker": torch.zeros(1)}, 0)
            there.get()
            place = there.members[0].handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
            assert ray.get(place) == node.node_id
    cluster.remove_node(node)


def learners_survive(cluster: Cluster) -> None:
    """Two learners on a node each are one learner, though one of the nodes is lost and replaced."""

    def make() -> Learner:
        return Learner(make_agent("lstm"), CPU, 10_000)

    batches, alone = make_batches("lstm", 4), make()
    node = cluster.add_node()
    with test_learner_group.make_group(make(), placement="strict_spread") as group, ThreadPoolExecutor() as threads:
        for batch in batches[:2]:
            alone.update(batch)
            group.update(batch)
        cluster.remove_node(node, allow_graceful=False)
        update = threads.submit(group.update, batches[2])
        node = cluster.add_node()
        update.result()
        group.update(batches[3])
        for batch in batches[2:]:
            alone.update(batch)
        assert group.restarts > 0
        assert_close(group.weights(), alone.weights())
    cluster.remove_node(node)


def test_processes_killed_for_lack_of_memory_are_replaced(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's memory monitor ends every process that works, as if there were no memory left.

    Before each new attempt there is a pause, of 2 s, 4 s and so on.
    """
    monitor = {"memory_usage_threshold": 0.0, "min_memory_free_bytes": -1, "memory_monitor_refresh_ms": 100}
    ray.init(address=make_cluster(num_cpus=2, _system_config=monitor).address, **START)
    for module in (counting, test_group, test_learner_group):
        ray.cloudpickle.register_pickle_by_value(module)
    monkeypatch.setattr("agent.failures.MAX_FAILURES", 0)
    monkeypatch.setattr("agent.failures.MEMORY_SECONDS", 5.0)
    config = ActorsConfig(num_actors=1, envs_per_actor=ENVS, unroll_length=8)
    with RayPool(partial(make_counting_actor, ENVS), config) as pool:
        pool.publish({"marker": torch.zeros(1)}, 0)
        begin = time.monotonic()
        with pytest.raises(ClusterError, match=r"actor 0 died \d times in a row .*: .* node running low on memory"):
            pool.get()
        assert time.monotonic() - begin >= 5
        assert 1 <= pool.status().restarts <= 3
    with test_learner_group.make_group(Learner(make_agent("lstm"), CPU, 10_000)) as group:
        begin = time.monotonic()
        with pytest.raises(LearnersLost, match=r"learners were lost \d times .*: learner .* running low on memory"):
            group.update(make_batches("lstm", 1)[0])
        assert time.monotonic() - begin >= 5
        assert 1 <= group.restarts <= 3


BIG = [*TINY, "--env=rooms:full", "--frames=100000", "--actors.envs-per-actor=8", "--actors.num-actors=1"]
"""A run whose unrolls are 166 kB a step."""


def test_a_full_object_store_moves_to_disk_or_stops_the_run(
    make_cluster: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small, full_disk = {"object_store_memory": 80 << 20}, {"local_fs_capacity_threshold": 0.0}
    cluster = make_cluster(**small, _system_config=full_disk)
    run = tmp_path / "run"
    arguments = ["launch", "--run", str(run), "--ray-address", cluster.address, *BIG]
    error = refusal([*arguments, "--actors.unroll-length=640"], capfd)  # 106 MB
    assert "Ray's object store is full, and so is the disk that it moves objects to" in error
    assert f"resume from {run}/checkpoints/{0:012d} with: compressive launch --resume {run}" in error
    assert checkpoints.load_latest(run).step == 0
    ray.shutdown()
    cluster.shutdown()

    cluster = make_cluster(**small)
    ray.init(address=cluster.address, **START)
    ray.cloudpickle.register_pickle_by_value(counting)

    config = ActorsConfig(num_actors=2, envs_per_actor=ENVS, unroll_length=8, in_flight=2, cpus=0.1)
    with RayPool(bigger(90_000), config) as pool:
        pool.publish({"marker": torch.zeros(1)}, 0)
        pool.get()
        wait_until(lambda: pool.status().waiting == 4)  # 4 x 30 MB
        last: dict[int, torch.Tensor] = {}
        for _ in range(16):
            trajectory = pool.get().load()
            actor, seen = int(trajectory.actor_id[0]), trajectory.observation[..., :3]
            assert trajectory.observation.equal(seen.repeat(1, 1, 90_000))
            if actor in last:
                assert seen[:, 0].equal(last[actor]), "an unroll was lost"
            last[actor] = seen[:, -1]


def test_a_lost_head_node_is_noticed_and_nothing_learned_is_lost(
    make_cluster: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster, run = make_cluster(num_cpus=3), tmp_path / "run"
    environment = {**ENVIRONMENT, "RAY_gcs_rpc_server_reconnect_timeout_s": "40"}  # the program waits for half of it
    arguments = ["launch", "--run", run, "--ray-address", cluster.address, *TINY, "--learners=2", "--actors=1"]
    with (tmp_path / "said").open("w+") as said:
        process = start(*arguments, "--checkpoint-seconds=1e6", output=said, env=environment)
        wait_until(lambda: last_metrics(run).get("step", 0) > 0, process)
        (service,) = cluster.head_node.all_processes["gcs_server"]
        service.process.kill()
        reached = last_metrics(run)["step"]
        wait_until(lambda: saved_steps(run)[-1] >= reached, process)
        assert process.wait(PATIENCE) == 1
        said.seek(0)
        printed = said.read()
    assert f"the head of the Ray cluster ({cluster.address}) does not answer, waiting 20 s for it" in printed
    step = checkpoints.load_latest(run).step
    assert step >= last_metrics(run)["step"], "what was learned while the program waited is saved as well"
    last = f"compressive: the head of the Ray cluster ({cluster.address}) is lost; resume from "
    assert printed.strip().splitlines()[-1].startswith(f"{last}{run}/checkpoints/{step:012d} with: compressive launch")
    assert "Traceback" not in printed
    main(["launch", "--local", "--learners=1", "--resume", str(run), f"--frames={4 * step + 500}"])
    assert f"resumed from {run}/checkpoints/{step:012d}" in capfd.readouterr().out
