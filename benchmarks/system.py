"""Where the time goes: environment, actor and learner alone, then the whole system by numbers of actors and learners.

    python benchmarks/system.py [--preset cpu] [--actors 1 2 4] [--learners 1 2]

All in one run on the same machine, so the ratios mean something where the absolute numbers are noisy: the systems are
started together, take turns, and each figure is the median over the turns. One thread a process; "actors" are processes
on Ray and one learner learns in this process, as it does for `compressive launch`. "local" is all in this process, so
what Ray costs is the CPU time of a step beyond that of local, over all processes (Linux only); on fewer cores than
processes the rates say how well the machine is shared, no more. Prints one JSON object; rates are agent steps a second.
"""

import dataclasses
import json
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from actors import LocalPool, Pool
from agent.core import concatenate_states
from envs import make_vector, prepare
from training.config import RunConfig
from training.impala import interface, make_actor, make_agent, make_learner, make_learners, make_pool
from training.presets import make_preset


@dataclass
class Options:
    """Measures the parts and the whole."""

    preset: str = "cpu"
    core: str = "compressive"
    env: str | None = None
    """Environment, if not that of the preset."""
    seconds: float = 8.0
    """Time for each part alone, after a warm-up."""
    actors: tuple[int, ...] = (1, 2, 4)
    """Numbers of actors of the whole system on Ray."""
    learners: tuple[int, ...] = (1, 2)
    """Numbers of learners of the whole system on Ray."""
    turns: int = 5
    updates: int = 5
    """Updates of each system in each turn."""


def rate(work: Callable[[], int], seconds: float) -> float:
    """Steps a second of `work`, which returns how many it did."""
    work()
    steps, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        steps += work()
    return steps / elapsed


def iterate(pool: Pool, learner: Any, unrolls: int) -> int:
    """The main loop once: a batch of unrolls, an update, new weights for the actors. Returns the steps of the batch."""
    trajectory = concatenate_states([pool.get().trajectory for _ in range(unrolls)])
    learner.update(trajectory)
    pool.publish(learner.weights(), learner.version)
    return trajectory.action.numel()


def cpu_seconds() -> float:
    """CPU time so far of this process and all its living descendants, Ray's own among them; needs Linux's /proc."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(path.parent.name)], ticks[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while born := {child for child, parent in parents.items() if parent in family} - family:
        family |= born
    return sum(ticks.get(process, 0) for process in family) / os.sysconf("SC_CLK_TCK")


def parts(config: RunConfig, seconds: float) -> dict[str, float]:
    """Steps a second of the environment, of acting and of learning, each alone in this process."""
    rows, length = config.actors.envs_per_actor, config.actors.unroll_length
    envs = make_vector(config.env, rows)
    envs.reset(seed=0)
    random, actions = np.random.default_rng(0), interface(config.env).num_actions

    def act_at_random() -> int:
        for _ in range(length):
            envs.step(random.integers(actions, size=rows))
        return rows * length

    actor = make_actor(config, 0, 0, 0)
    learner = make_learner(config, make_agent(config))
    batch = concatenate_states([actor.unroll(length).trajectory for _ in range(config.unrolls_per_update)])

    def learn() -> int:
        learner.update(batch)
        return batch.action.numel()

    return {
        "environment_alone": rate(act_at_random, seconds),
        "actor_alone": rate(lambda: actor.unroll(length).trajectory.action.numel(), seconds),
        "learner_alone": rate(learn, seconds),
    }


def whole(config: RunConfig, options: Options) -> dict[str, tuple[float, float]]:
    """Steps a second and CPU seconds a step of the whole system: "local" and, on Ray, by actors and learners."""
    local = LocalPool(partial(make_actor, config, 0), dataclasses.replace(config.actors, num_actors=1))
    one = make_learner(config, make_agent(config))
    # And how many unrolls are there before anybody asks, and how CPU time is read.
    systems: dict[str, tuple[Pool, Any, int, Callable[[], float]]] = {"local": (local, one, 0, time.process_time)}
    with ExitStack() as stack:
        pools, groups = {}, {}
        for size in options.learners:
            several = dataclasses.replace(config, learners=size)
            groups[size] = stack.enter_context(make_learners(several, make_learner(several, make_agent(several))))
        for size in options.actors:
            acting = dataclasses.replace(config.actors, num_actors=size)
            pools[size] = stack.enter_context(make_pool(dataclasses.replace(config, actors=acting), 0, local=False))
        for learners, learner in groups.items():
            for actors, pool in pools.items():
                systems[name(actors, learners)] = (pool, learner, actors * config.actors.in_flight, cpu_seconds)
        figures: dict[str, list[tuple[float, float]]] = {system: [] for system in systems}
        for turn in range(options.turns + 1):  # the first until all processes are up
            for system, (pool, learner, waiting, cpu_time) in systems.items():
                pool.publish(learner.weights(), learner.version)
                for _ in range(1 + math.ceil(waiting / config.unrolls_per_update)):  # what was there, and one more
                    iterate(pool, learner, config.unrolls_per_update)
                begin, cpu = time.perf_counter(), cpu_time()
                steps = sum(iterate(pool, learner, config.unrolls_per_update) for _ in range(options.updates))
                if turn:
                    figures[system].append((steps / (time.perf_counter() - begin), (cpu_time() - cpu) / steps))
                while pool.status().waiting < waiting:  # until its actors rest, not to disturb the others
                    time.sleep(0.02)
    return {system: median(turns) for system, turns in figures.items()}


def name(actors: int, learners: int) -> str:
    """Of a system on Ray."""
    return f"{actors} actor{'s' * (actors > 1)}, {learners} learner{'s' * (learners > 1)}"


def median(turns: list[tuple[float, float]]) -> tuple[float, float]:
    """Of each of the two figures."""
    first, second = (statistics.median(column) for column in zip(*turns))
    return first, second


def main(options: Options) -> dict:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    config = make_preset(options.preset, options.core)
    config = dataclasses.replace(config, env=options.env or config.env)
    prepare(config.env)
    alone = parts(config, options.seconds)

    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cpus = max(os.cpu_count() or 1, sum(options.actors) + sum(options.learners))
    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    systems = whole(config, options)
    ray.shutdown()

    (local, local_cpu), *_ = systems.values()
    return {
        "benchmark": "system",
        "preset": config.preset,
        "core": options.core,
        "env": config.env,
        "frames_per_step": interface(config.env).action_repeat,
        "cores": os.cpu_count(),
        "steps_per_second": {
            **{part: round(steps) for part, steps in alone.items()},
            **{system: round(steps) for system, (steps, _) in systems.items()},
        },
        "of_environment": {
            system: round(steps / alone["environment_alone"], 3) for system, (steps, _) in systems.items()
        },
        "over_local": {system: round(steps / local, 3) for system, (steps, _) in systems.items()},
        "cpu_ms_a_step": {system: round(1000 * cpu, 4) for system, (_, cpu) in systems.items()},
        "cpu_over_local": {system: round(cpu / local_cpu, 3) for system, (_, cpu) in systems.items()},
    }


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options)), sys.stdout, indent=2)
    print()
