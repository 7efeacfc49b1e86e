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
from tests.commands.cli import ENVIRONMENT, TINY, refusal, saved_steps, start
from tests.learner import test_group, test_learner_group
from tests.learner.test_group import CPU, assert_close, make_agent, make_batches
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ENVS = 3
UNROLL = 8
SOON = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
"""Ray notices a lost node within 2 s instead of about 15 s."""


@pytest.fixture
def make_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Makes a cluster whose first node has one CPU."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.shutdown()
    clusters: list[Cluster] = []

    def make(**head: Any) -> Cluster:
        cluster = Cluster()
        clusters.append(cluster)
        cluster.add_node(**{"num_cpus": 1, "include_dashboard": False, **head})
        return cluster

    yield make
    ray.shutdown()
    for cluster in clusters:
        cluster.shutdown()


def connect(cluster: Cluster) -> None:
    """Makes this process a driver of the cluster, whose processes get what the tests define."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    for module in (counting, test_group, test_learner_group):
        ray.cloudpickle.register_pickle_by_value(module)


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
    connect(cluster)
    actors_survive(cluster)
    learners_survive(cluster)


class Followed:
    """A pool of counting actors whose every step is checked: none is learned from twice."""

    def __init__(self, pool: RayPool) -> None:
        self.pool = pool
        self.version = 0
        self.seen: set[tuple[int, ...]] = set()

    def learn(self) -> None:
        """Takes an unroll, as a learner does."""
        trajectory = self.pool.get().load()
        self.version += 1
        assert not trajectory.policy_parameters.any(), "an environment got a state that is not its own"
        steps = trajectory.observation[:, :-1, :3].flatten(0, 1).long()
        new = set(map(tuple, steps.tolist()))
        assert len(new) == ENVS * UNROLL
        assert not new & self.seen, "a step is learned from twice"
        self.seen.update(new)

    def learn_until(self, condition: Callable[[], bool]) -> None:
        """Goes on until a condition holds, with new weights for each unroll."""
        for _ in range(20_000):
            self.pool.publish({"marker": torch.zeros(1)}, self.version)
            if condition():
                return
            self.learn()
        raise AssertionError(f"20,000 unrolls, and still {self.pool.status()}")

    def alive(self, actors: int, restarts: int = 0) -> Callable[[], bool]:
        """Whether so many actors live, after so many restarts."""
        return lambda: (self.pool.status().alive, self.pool.status().restarts) == (actors, restarts)


def actors_survive(cluster: Cluster) -> None:
    """An elastic pool uses a node that joins, continues without it when it is lost, and uses the next one."""
    config = ActorsConfig(num_actors=1, max_actors=3, envs_per_actor=ENVS, unroll_length=UNROLL)
    acting = {"num_cpus": 2, "labels": {"for": "acting"}}
    with RayPool(bigger(1_000), config) as pool:  # 324 kB each
        followed = Followed(pool)
        followed.learn_until(followed.alive(1))
        node = cluster.add_node(**acting)
        followed.learn_until(followed.alive(3))

        cluster.remove_node(node, allow_graceful=False)
        followed.learn_until(followed.alive(1, restarts=2))
        before = followed.version
        followed.learn_until(lambda: followed.version == before + 20)

        node = cluster.add_node(**acting)
        followed.learn_until(followed.alive(3, restarts=2))
        assert place_of_labeled_actor() == node.node_id
    cluster.remove_node(node)


def place_of_labeled_actor() -> str:
    """The node on which an actor acts that asks for the label of the acting nodes."""
    config = ActorsConfig(num_actors=1, envs_per_actor=ENVS, unroll_length=UNROLL, cpus=0, labels=("for=acting",))
    with RayPool(partial(make_counting_actor, ENVS), config) as pool:
        pool.publish({"marker": torch.zeros(1)}, 0)
        pool.get()
        (member,) = pool.members
        return ray.get(member.handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))


def make_learner() -> Learner:
    return Learner(make_agent("lstm"), CPU, 10_000)


def learners_survive(cluster: Cluster) -> None:
    """Two learners on a node each are one learner, though one of the nodes is lost and replaced."""
    batches = make_batches("lstm", 4)
    alone = make_learner()
    for batch in batches:
        alone.update(batch)

    node = cluster.add_node()
    group = test_learner_group.make_group(make_learner(), placement="strict_spread")
    with group, ThreadPoolExecutor() as threads:
        for batch in batches[:2]:
            group.update(batch)
        cluster.remove_node(node, allow_graceful=False)
        update = threads.submit(group.update, batches[2])  # it waits for a node
        node = cluster.add_node()
        update.result()
        group.update(batches[3])
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
    connect(make_cluster(num_cpus=2, _system_config=monitor))
    monkeypatch.setattr("agent.failures.MAX_FAILURES", 0)
    monkeypatch.setattr("agent.failures.MEMORY_SECONDS", 5.0)

    # An actor.
    config = ActorsConfig(num_actors=1, envs_per_actor=ENVS, unroll_length=UNROLL)
    with RayPool(partial(make_counting_actor, ENVS), config) as pool:
        pool.publish({"marker": torch.zeros(1)}, 0)
        begin = time.monotonic()
        with pytest.raises(ClusterError, match=r"actor 0 died \d times in a row .*: .* node running low on memory"):
            pool.get()
        assert time.monotonic() - begin >= 5
        assert 1 <= pool.status().restarts <= 3

    # Learners.
    with test_learner_group.make_group(make_learner()) as group:
        begin = time.monotonic()
        with pytest.raises(LearnersLost, match=r"learners were lost \d times .*: learner .* running low on memory"):
            group.update(make_batches("lstm", 1)[0])
        assert time.monotonic() - begin >= 5
        assert 1 <= group.restarts <= 3


SMALL_STORE = 80 << 20
"""Bytes of an object store; the least that Ray takes is 75 MiB."""
BIG = [*TINY, "--env=rooms:full", "--frames=100000", "--actors.envs-per-actor=8", "--actors.num-actors=1"]
"""A run whose unrolls are 166 kB a step."""


def test_a_full_object_store_and_a_full_disk_stop_the_run(
    make_cluster: Callable[..., Cluster], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(object_store_memory=SMALL_STORE, _system_config={"local_fs_capacity_threshold": 0.0})
    run = tmp_path / "run"
    words = ["launch", "--run", str(run), "--ray-address", cluster.address, *BIG, "--actors.unroll-length=640"]
    error = refusal(words, capfd)  # an unroll is 106 MB
    assert "Ray's object store is full, and so is the disk that it moves objects to" in error
    assert f"resume from {run}/checkpoints/{0:012d} with: compressive launch --resume {run}" in error
    assert checkpoints.load_latest(run).step == 0


def test_a_full_object_store_moves_to_disk(make_cluster: Callable[..., Cluster]) -> None:
    connect(make_cluster(object_store_memory=SMALL_STORE))
    config = ActorsConfig(num_actors=2, envs_per_actor=ENVS, unroll_length=UNROLL, in_flight=2, cpus=0.1)
    with RayPool(bigger(90_000), config) as pool:
        pool.publish({"marker": torch.zeros(1)}, 0)
        pool.get()
        wait_until(lambda: pool.status().waiting == 4)  # 4 x 30 MB
        last: dict[int, torch.Tensor] = {}
        for _ in range(16):
            trajectory = pool.get().load()
            actor = int(trajectory.actor_id[0])
            counts = trajectory.observation[..., :3]
            assert trajectory.observation.equal(counts.repeat(1, 1, 90_000))
            if actor in last:
                assert counts[:, 0].equal(last[actor]), "an unroll was lost"
            last[actor] = counts[:, -1]


def test_a_lost_head_node_is_noticed_and_nothing_learned_is_lost(
    make_cluster: Callable[..., Cluster], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(num_cpus=3)
    run = tmp_path / "run"
    environment = {**ENVIRONMENT, "RAY_gcs_rpc_server_reconnect_timeout_s": "40"}  # the program waits for half of it
    arguments = ["launch", "--run", run, "--ray-address", cluster.address, *TINY, "--learners=2", "--actors=1"]
    screen = tmp_path / "screen"
    with screen.open("w") as output:
        process = start(*arguments, "--checkpoint-seconds=1e6", output=output, env=environment)
    wait_until(lambda: last_metrics(run).get("step", 0) > 0, process)
    (service,) = cluster.head_node.all_processes["gcs_server"]
    service.process.kill()
    reached = last_metrics(run)["step"]
    wait_until(lambda: saved_steps(run)[-1] >= reached, process)
    assert process.wait(PATIENCE) == 1

    printed = screen.read_text()
    assert f"the head of the Ray cluster ({cluster.address}) does not answer, waiting 20 s for it" in printed
    step = checkpoints.load_latest(run).step
    assert step >= last_metrics(run)["step"], "what was learned while the program waited is saved as well"
    last = f"compressive: the head of the Ray cluster ({cluster.address}) is lost; resume from "
    assert printed.strip().splitlines()[-1].startswith(f"{last}{run}/checkpoints/{step:012d} with: compressive launch")
    assert "Traceback" not in printed

    main(["launch", "--local", "--learners=1", "--resume", str(run), f"--frames={4 * step + 500}"])
    assert f"resumed from {run}/checkpoints/{step:012d}" in capfd.readouterr().out
