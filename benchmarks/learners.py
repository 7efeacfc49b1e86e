"""What more learners bring: updates of one learner in this process, of one on Ray, and of several on Ray.

    python benchmarks/learners.py [--preset cpu] [--learners 2] [--updates 30]

All learn from the same batch, in one run on the same machine, with one thread a process; they take turns, and each
figure is the median over the turns. The difference between the first two is what Ray and the way to another process
cost; "cores" bounds what more of them can bring on a CPU. Prints one JSON object.
"""

import dataclasses
import json
import logging
import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import tyro

from agent import Trajectory
from agent.core import concatenate_states
from envs import prepare
from training.impala import make_actor, make_agent, make_learner
from training.presets import make_preset


@dataclass
class Options:
    """Measures one learner and several."""

    preset: str = "cpu"
    core: str = "compressive"
    env: str | None = None
    """Environment, if not that of the preset."""
    learners: int = 2
    updates: int = 30
    """Updates of each, after a warm-up."""


def seconds_of_update(learner: Any, batch: Trajectory) -> float:
    """Seconds of one update, weights for the actors included."""
    begin = time.perf_counter()
    learner.update(batch)
    learner.weights()
    return time.perf_counter() - begin


def main(options: Options) -> dict:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    config = make_preset(options.preset, options.core)
    config = dataclasses.replace(config, learners=options.learners, env=options.env or config.env)
    prepare(config.env)
    actor = make_actor(config, 0, 0, 0)
    length = config.actors.unroll_length
    batch = concatenate_states([actor.unroll(length).trajectory for _ in range(config.unrolls_per_update)])

    import ray

    from learner.group import LearnerGroup

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cpus = max(os.cpu_count() or 1, options.learners + 1)
    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    learners: dict[str, Any] = {"one_in_process": make_learner(config, make_agent(config))}
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for size in (1, options.learners):
            follower = make_learner(config, make_agent(config))
            group = LearnerGroup(follower, size, config.learner.device)
            learners[f"{size}_on_ray"] = stack.enter_context(group)
        for turn in range(options.updates + 3):  # the first while processes and caches warm up
            for name, learner in learners.items():
                seconds = seconds_of_update(learner, batch)
                if turn >= 3:
                    times.setdefault(name, []).append(seconds)
    ray.shutdown()
    medians = {name: statistics.median(values) for name, values in times.items()}

    return {
        "benchmark": "learners",
        "preset": config.preset,
        "core": options.core,
        "env": config.env,
        "rows": batch.action.shape[0],
        "cores": os.cpu_count(),
        "updates_per_second": {name: round(1 / median, 3) for name, median in medians.items()},
        "several_over_one": round(medians["one_in_process"] / medians[f"{options.learners}_on_ray"], 3),
    }


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options)), sys.stdout, indent=2)
    print()
