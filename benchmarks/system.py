"""Where the time goes: environment, actor and learners alone, then the whole system by numbers of actors and learners.

    python -m benchmarks.system [--preset cpu] [--actors 1 2 4] [--learners 1 2]

* "alone": the environment, an actor and a learner in this process, and learners on Ray, which all learn from the same
  batch. One learner on Ray shows the cost of Ray; "cores" bounds what more learners can bring on a CPU.
* "local": the whole system in this process. In the others actors are processes on Ray; one learner is in this process,
  as in `compressive launch`. The cost of Ray is the CPU time of a step beyond that of "local", over all processes
  (Linux only); on fewer cores than processes the rates only tell how well the machine is shared.

Rates are agent steps a second, medians over turns; one thread a process. Nothing is replayed, because several learners
cannot.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent import Trajectory
from agent.core import concatenate_states
from benchmarks.common import cpu_seconds, in_turns, local_ray, make_config, require_least, rounded, run
from envs import make_vector
from learner.config import ReplayConfig
from storage.run import Run
from training.config import RunConfig
from training.console import plural
from training.factories import interface, make_actor, make_agent, make_learner
from training.trainer import Trainer


@dataclass
class Options:
    preset: str = "cpu"
    core: str = "compressive"
    env: str | None = None
    """Environment, if not that of the preset."""
    seconds: float = 8.0
    """Time for each part alone."""
    actors: tuple[int, ...] = (1, 2, 4)
    """Numbers of actors of the whole system on Ray."""
    learners: tuple[int, ...] = (1, 2)
    """Numbers of learners."""
    turns: int = 5
    updates: int = 5
    """Updates of each system in each turn."""


def steps_of(batch: Trajectory) -> int:
    """B x T: how many actions there are, each of one or several columns."""
    return batch.reset[:, 1:].numel()


def part_rates(config: RunConfig, learners: dict[str, Any], options: Options) -> dict[str, float]:
    """Steps a second of the environment, of an actor, and of learners, weights for the actors included."""
    rows = config.actors.envs_per_actor
    length = config.actors.unroll_length
    envs = make_vector(config.env, rows)
    envs.action_space.seed(0)
    actor = make_actor(config, 0, 0, 0)
    batch = concatenate_states([actor.unroll(length).trajectory for _ in range(config.unrolls_per_update)])
    envs.reset(seed=0)
    # Drawn beforehand, because drawing an action of many parts takes as long as a step of a fast environment.
    actions = [envs.action_space.sample() for _ in range(length)]

    def act_at_random() -> int:
        for action in actions:
            envs.step(action)
        return rows * length

    def learn(learner: Any) -> int:
        learner.update(batch)
        learner.weights()
        return steps_of(batch)

    works: dict[str, Callable[[], int]] = {
        "environment": act_at_random,
        "actor": lambda: steps_of(actor.unroll(length).trajectory),
    }
    for name, learner in learners.items():
        works[name] = partial(learn, learner)
    return in_turns(works, options.seconds, options.turns, warm_up=3)


def system_rates(systems: dict[str, Trainer], options: Options) -> tuple[dict[str, float], dict[str, float]]:
    """Steps a second, and CPU seconds a step, of whole systems: medians over turns."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    cpu_of_step: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(options.turns + 1):
        for name, trainer in systems.items():
            rate, cpu = measure_turn(trainer, options.updates)
            if turn > 0:  # in the first one all processes start
                rates[name].append(rate)
                cpu_of_step[name].append(cpu)
    return medians(rates), medians(cpu_of_step)


def measure_turn(trainer: Trainer, updates: int) -> tuple[float, float]:
    """Steps a second and CPU seconds a step of one system while the others are idle."""
    clock = cpu_seconds
    queue = trainer.feed.pool.status().alive * trainer.config.actors.in_flight
    if trainer.local:
        clock = time.process_time
        queue = 0

    # What was finished before, and an update.
    for _ in range(2 + math.ceil(queue / trainer.config.unrolls_per_update)):
        trainer.update()

    begin = time.perf_counter()
    cpu_before = clock()
    steps_before = trainer.step
    for _ in range(updates):
        trainer.update()
    steps = trainer.step - steps_before
    rate = steps / (time.perf_counter() - begin)
    cpu = (clock() - cpu_before) / steps

    # Until its actors are idle and do not slow down the next system.
    while trainer.feed.pool.status().waiting < queue:
        time.sleep(0.02)
    return rate, cpu


def medians(values: dict[str, list[float]]) -> dict[str, float]:
    """The median of each series."""
    return {name: statistics.median(series) for name, series in values.items()}


def start(config: RunConfig, actors: int, learners: int, stack: ExitStack, local: bool = False) -> Trainer:
    """A whole system, as a run has it."""
    acting = dataclasses.replace(config.actors, num_actors=actors)
    trainer = Trainer(dataclasses.replace(config, actors=acting, learners=learners), Run(""), local)
    trainer.start_workers(stack)
    trainer.publish()
    return trainer


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    require_least("turns", options.turns, 1)
    require_least("updates", options.updates, 1)
    config = make_config(options.preset, options.core, options.env, replay=ReplayConfig())
    with local_ray(sum(options.actors) * len(options.learners) + sum(options.learners) + 1):
        from learner.group import LearnerGroup

        with ExitStack() as stack:
            learners: dict[str, Any] = {"learner": make_learner(config, make_agent(config))}
            for size in sorted({1, *options.learners}):
                follower = make_learner(dataclasses.replace(config, learners=2), make_agent(config))
                group = LearnerGroup(follower, follower.replicate(), size, config.learner.device)
                learners[f"{plural(size, 'learner')} on Ray"] = stack.enter_context(group)
            alone = part_rates(config, learners, options)
        with ExitStack() as stack:
            systems = {"local": start(config, 1, 1, stack, local=True)}
            for actors in options.actors:
                for size in options.learners:
                    name = f"{plural(actors, 'actor')}, {plural(size, 'learner')}"
                    systems[name] = start(config, actors, size, stack)
            rates, cpu = system_rates(systems, options)
    return {
        "preset": config.preset,
        "core": options.core,
        "env": config.env,
        "frames_per_step": interface(config.env).action_repeat,
        "alone": rounded(alone),
        "learners_over_one": rounded({name: alone[name] for name in learners}, alone["learner"], 3),
        "steps_per_second": rounded(rates),
        "of_environment": rounded(rates, alone["environment"], 3),
        "over_local": rounded(rates, rates["local"], 3),
        "cpu_ms_a_step": rounded(cpu, 1e-3, 4),
        "cpu_over_local": rounded(cpu, cpu["local"], 3),
    }


if __name__ == "__main__":
    run(main, Options)
