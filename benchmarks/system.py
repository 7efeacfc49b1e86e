"""Where the time goes: environment, actor and learner alone, then the whole system in one process and on Ray.

    python benchmarks/system.py [--preset cpu] [--seconds 20]

All in one run on the same machine, so the ratios mean something where the absolute numbers are noisy. Prints one JSON
object; rates are agent steps a second, with one thread a process. "of_environment" is the whole system's rate over that
of the environment alone on one core.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import tyro

from actors import LocalPool, Pool
from agent.core import concatenate_states
from commands.presets import make_preset
from commands.training import action_repeat, make_actor, make_agent, make_pool
from envs import make_vector, prepare
from learner.learner import Learner


@dataclass
class Options:
    """Measures the parts and the whole."""

    preset: str = "cpu"
    core: str = "compressive"
    seconds: float = 20.0
    """Time for each figure, after a warm-up."""


def rate(work: Callable[[], int], seconds: float) -> float:
    """Steps a second of `work`, which returns how many it did."""
    work()
    steps, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        steps += work()
    return steps / elapsed


def main(options: Options) -> dict:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    config = make_preset(options.preset, options.core)
    prepare(config.env)
    rows, length = config.actors.envs_per_actor, config.actors.unroll_length

    envs = make_vector(config.env, rows)
    envs.reset(seed=0)
    random = np.random.default_rng(0)

    def act_at_random() -> int:
        for _ in range(length):
            envs.step(random.integers(envs.single_action_space.n, size=rows))
        return rows * length

    environment = rate(act_at_random, options.seconds)

    actor = make_actor(config, 0, 0, 0)
    acting = rate(lambda: actor.unroll(length).trajectory.action.numel(), options.seconds)

    learner = Learner(make_agent(config), config.learner, 10**9)
    batch = concatenate_states([actor.unroll(length).trajectory for _ in range(config.unrolls_per_update)])

    def learn() -> int:
        learner.update(batch)
        return batch.action.numel()

    learning = rate(learn, options.seconds)

    def whole(pool: Pool) -> float:
        def iterate() -> int:
            unrolls = [pool.get() for _ in range(config.unrolls_per_update)]
            trajectory = concatenate_states([unroll.trajectory for unroll in unrolls])
            learner.update(trajectory)
            pool.publish(learner.weights(), learner.version)
            return trajectory.action.numel()

        with pool:
            pool.publish(learner.weights(), learner.version)
            for _ in range(8):  # every actor process is up before the clock starts
                iterate()
            return rate(iterate, options.seconds)

    local = whole(LocalPool(partial(make_actor, config, 0), config.actors))

    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=max(os.cpu_count() or 1, 4), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    distributed = whole(make_pool(config, 0, local=False))
    ray.shutdown()

    return {
        "benchmark": "system",
        "preset": config.preset,
        "core": options.core,
        "cores": os.cpu_count(),
        "steps_per_second": {
            "environment_alone": round(environment),
            "actor_alone": round(acting),
            "learner_alone": round(learning),
            "whole_local": round(local),
            "whole_ray": round(distributed),
        },
        "frames_per_second_ray": round(distributed * action_repeat(config.env)),
        "of_environment": {"local": round(local / environment, 3), "ray": round(distributed / environment, 3)},
        "ray_over_local": round(distributed / local, 3),
    }


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options)), sys.stdout, indent=2)
    print()
