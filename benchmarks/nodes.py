"""How long training takes to get over the loss of a node: a real Ray cluster whose second node is killed and replaced.

    python benchmarks/nodes.py [--core lstm]

First an elastic pool trains, with one actor on the first node and two on the second; then two learners share batches,
one on each. Both nodes are on this machine; Ray's own settings decide how soon it notices. Prints one JSON object.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import tyro

from agent.core import concatenate_states
from envs import prepare
from training.impala import make_actor, make_agent, make_learner
from training.presets import make_preset


@dataclass
class Options:
    """Takes a node away and gives it back."""

    core: str = "lstm"
    without_seconds: float = 30.0
    """Time that training has to do without the node."""


def lose_actors(cluster: Any, core: str, without_seconds: float) -> dict[str, float]:
    """Training with an elastic pool: seconds until a node is used, how long its loss is felt, until it is back."""
    from actors.ray_pool import RayPool

    config = make_preset("cpu", core)
    actors = dataclasses.replace(config.actors, num_actors=1, max_actors=3, envs_per_actor=16)
    config = dataclasses.replace(config, actors=actors)
    learner = make_learner(config, make_agent(config))
    with RayPool(functools.partial(make_actor, config, 0), actors) as pool:
        pool.publish(learner.weights(), learner.version)

        def train_until(condition: Callable[[], bool]) -> tuple[float, float]:
            """Seconds until something holds, and the longest time between two updates meanwhile."""
            begin = last = time.monotonic()
            gap = 0.0
            while not condition():
                learner.update(concatenate_states([pool.get().trajectory]))
                pool.publish(learner.weights(), learner.version)
                gap, last = max(gap, time.monotonic() - last), time.monotonic()
            return time.monotonic() - begin, gap

        def train_for(seconds: float) -> tuple[float, float]:
            end = time.monotonic() + seconds
            return train_until(lambda: time.monotonic() > end)

        train_until(lambda: pool.status().alive == 1)
        node = cluster.add_node(num_cpus=2)
        joined, _ = train_until(lambda: pool.status().alive == 3)
        _, usual = train_for(10)
        cluster.remove_node(node, allow_graceful=False)
        noticed, gap = train_until(lambda: pool.status().alive == 1)
        _, later = train_for(without_seconds)
        node = cluster.add_node(num_cpus=2)
        back, _ = train_until(lambda: pool.status().alive == 3)
    cluster.remove_node(node)
    return {
        "until_a_new_node_acts": joined,
        "longest_gap_before": usual,
        "until_lost_actors_are_given_up": noticed,
        "longest_gap_after_the_loss": max(gap, later),
        "until_the_replacement_acts": back,
    }


def lose_a_learner(cluster: Any, core: str, without_seconds: float) -> dict[str, float]:
    """Updates of two learners: seconds of a usual one, and of one in which a learner's node is lost and comes back."""
    from learner.group import LearnerGroup

    config = make_preset("cpu", core)
    actor = make_actor(config, 0, 0, 0)
    batch = concatenate_states([actor.unroll(config.actors.unroll_length).trajectory])
    node = cluster.add_node(num_cpus=1)
    group = LearnerGroup(make_learner(config, make_agent(config)), 2, "cpu", placement="strict_spread")
    with group, ThreadPoolExecutor() as threads:
        group.update(batch)
        begin = time.monotonic()
        group.update(batch)
        usual = time.monotonic() - begin
        cluster.remove_node(node, allow_graceful=False)
        update = threads.submit(group.update, batch)
        time.sleep(without_seconds)
        cluster.add_node(num_cpus=1)
        begin = time.monotonic()
        update.result()
        back = time.monotonic() - begin
    return {"usual_update": usual, "until_the_update_is_done_after_the_replacement_joined": back}


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    prepare(make_preset("cpu", options.core).env)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=1, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    measured = {
        "actors": lose_actors(cluster, options.core, options.without_seconds),
        "learners": lose_a_learner(cluster, options.core, options.without_seconds),
    }
    ray.shutdown()
    cluster.shutdown()
    seconds = {part: {name: round(value, 2) for name, value in values.items()} for part, values in measured.items()}
    return {"benchmark": "nodes", "core": options.core, "cores": os.cpu_count(), "seconds": seconds}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints there that a raylet ended
        figures = main(tyro.cli(Options))
    json.dump(figures, sys.stdout, indent=2)
    print()
