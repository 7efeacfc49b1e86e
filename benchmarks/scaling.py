"""Scale on paper: how many actors a learner needs and what saturates on 1, 8 and 64 GPUs, from measurements on CPUs.

    python -m benchmarks.scaling [--gpu-tflops 5] [--network-gbit 25] [--gpus 1 8 64]

Measured on this machine, one thread a process; assumed: the options. docs/scaling.md has the formulas (`Loop`) and the
tables, which are printed to standard error. The paper preset acts in the re-created level.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from actors import ActorsConfig, Pool, Unroll
from agent import Trajectory
from agent.core import concatenate_states, index_state, map_state, state_bytes
from benchmarks.common import in_turns, local_ray, make_config, markdown, run
from training.config import RunConfig
from training.factories import interface, make_actor, make_agent, make_learner


@dataclass
class Options:
    presets: tuple[str, ...] = ("paper", "cpu")
    core: str = "compressive"
    gpus: tuple[int, ...] = (1, 8, 64)
    """Learners, one a GPU, for which to compute; each has the preset's batch as its share."""
    gpu_tflops: float = 5.0
    """Assumed: 10^12 floating-point operations a second that a GPU sustains in an update."""
    call_microseconds: float = 10.0
    """Assumed: least time of a call of torch in a GPU's process."""
    network_gbit: float = 25.0
    """Assumed: network of a node, 10^9 bits a second in each direction."""
    node_cores: int = 64
    """Assumed: actors of a node."""
    node_gpus: int = 8
    """Assumed: learners of a node."""
    seconds: float = 4.0
    """Time for each rate."""


@dataclass(frozen=True)
class Loop:
    """The training loop on G GPUs as a formula: receive a batch, pass it to the learners, update, publish; in sequence.

    A batch is G times the preset's. Times are those of the driver's thread unless stated otherwise.

    batch_unrolls: of a GPU's share of a batch. actor_steps_per_second: of one actor on one core. update_seconds: of a
    GPU for its share; assumed. request_seconds: of an unroll, without its bytes. wait_seconds: what each actor adds to
    that, because `ray.wait` looks at all of them. receive_seconds: of an unroll, request included, to copy it from the
    object store into the batch. scatter_seconds: of an unroll, to put it into the object store again, for several
    learners. publish_seconds: to take the weights from the learners and to put them into the object store.
    by_reference: the driver only passes on where the unrolls are, and learners fetch them.
    """

    unroll_steps: int
    unroll_bytes: int
    batch_unrolls: int
    weight_bytes: int
    actor_steps_per_second: float
    update_seconds: float
    request_seconds: float
    wait_seconds: float
    receive_seconds: float
    scatter_seconds: float
    publish_seconds: float
    by_reference: bool = False

    def driver_seconds(self, gpus: int, actors: float) -> float:
        """The driver's time for a batch."""
        copying = self.receive_seconds + (self.scatter_seconds if gpus > 1 else 0)
        unroll = self.wait_seconds * actors + (self.request_seconds if self.by_reference else copying)
        return gpus * self.batch_unrolls * unroll + self.publish_seconds

    def batch_steps(self, gpus: int) -> int:
        """Steps of a batch."""
        return gpus * self.batch_unrolls * self.unroll_steps

    def steps_per_second(self, gpus: int) -> float:
        """Of the whole system, with as many actors as it needs."""
        steps = self.batch_steps(gpus)
        # Waiting takes longer with more actors: the loop's time t solves t = a + b / t.
        constant = self.update_seconds + self.driver_seconds(gpus, 0)
        slope = self.driver_seconds(gpus, 1) - self.driver_seconds(gpus, 0)
        seconds = (constant + math.sqrt(constant**2 + 4 * slope * steps / self.actor_steps_per_second)) / 2
        return steps / seconds

    def gpu_busy(self, gpus: int) -> float:
        """Fraction of the time in which GPUs learn."""
        return self.steps_per_second(gpus) * self.update_seconds / self.batch_steps(gpus)

    def gpus_at_half(self) -> int:
        """The least number of GPUs at which the driver needs as much time as learning."""
        return next(gpus for gpus in range(1, 10**6) if self.gpu_busy(gpus) <= 0.5)

    def row(self, gpus: int, options: Options) -> dict[str, float]:
        """Actors, and the load of the busiest node: its network (as a fraction) and its object store."""
        steps = self.steps_per_second(gpus)
        updates, actors = steps / self.batch_steps(gpus), steps / self.actor_steps_per_second
        actor_nodes, learner_nodes = math.ceil(actors / options.node_cores), math.ceil(gpus / options.node_gpus)
        unrolls = steps / self.unroll_steps * self.unroll_bytes
        weights = updates * self.weight_bytes * actor_nodes
        gradients = 2 * updates * self.weight_bytes if learner_nodes > 1 else 0
        if self.by_reference:  # the busiest node has learners only; the driver's sends weights
            received, sent, kept = unrolls / learner_nodes + gradients, max(gradients, weights), actors / learner_nodes
        else:  # the driver's node has the first learners, too
            received, kept = unrolls + gradients, actors
            sent = unrolls * (1 - 1 / learner_nodes) + weights + gradients
        network = options.network_gbit / 8 * 1e9
        return {
            "gpus": gpus,
            "steps_per_second": round(steps),
            "gpu_busy": round(self.gpu_busy(gpus), 3),
            "actors": math.ceil(actors),
            "actor_nodes": actor_nodes,
            "unrolls_gb_per_second": round(unrolls / 1e9, 3),
            "network_in": round(received / network, 3),
            "network_out": round(sent / network, 3),
            "object_store_gb": round(kept * self.unroll_bytes / 1e9, 2),
        }


class Calls(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(keywords or {}))


def replay_pool(trajectory: Any) -> Pool:
    """Two actors on Ray that do nothing but send an unroll."""
    from actors.ray_pool import RayPool

    actor: Any = SimpleNamespace(set_weights=lambda *_: None, unroll=lambda length: Unroll(trajectory, []))
    pool = RayPool(lambda *_: actor, ActorsConfig(num_actors=2, in_flight=2))
    pool.publish({}, 0)
    return pool


def seconds_of(work: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Median time of a call by a clock; with CPU time, other load on the machine matters less."""

    def once() -> float:
        work()
        return 1

    return 1 / in_turns({"work": once}, seconds, turns=3, clock=clock)["work"]


def measure_networks(config: RunConfig, seconds: float) -> tuple[Trajectory, dict[str, float]]:
    """An unroll, and the costs of making it and of learning from it in this process."""
    import ray

    actor, length = make_actor(config, 0, 0, 0), config.actors.unroll_length
    unroll = actor.unroll(length).trajectory
    acting = seconds_of(lambda: actor.unroll(length), seconds, time.process_time)
    learner = make_learner(config, make_agent(config))
    with FlopCounterMode(display=False) as operations, Calls() as calls:
        learner.update(unroll)
    learning = seconds_of(lambda: learner.update(unroll), 0, time.process_time)
    weights, steps = learner.weights(), unroll.action.numel()

    def publish() -> None:
        learner.agent.load_state_dict({name: weight.clone() for name, weight in weights.items()})  # as of a group
        ray.put({name: weight.numpy() for name, weight in learner.weights().items()})

    return unroll, {
        "unroll_steps": steps,
        "unroll_bytes": state_bytes(unroll),
        "unroll_observation_bytes": state_bytes(unroll.observation),
        "unroll_core_state_bytes": state_bytes(unroll.core_state),
        "weight_bytes": sum(weight.nbytes for weight in weights.values()),
        "actor_steps_per_second": steps / acting,
        "learner_steps_per_second": steps / learning,
        "flops_per_step": operations.get_total_flops() / steps,
        "calls_per_update": calls.count,
        "publish_seconds": seconds_of(publish, 1, time.process_time),
    }


def measure_driver(unroll: Trajectory, unrolls: int, seconds: float) -> dict[str, float]:
    """The cost of an unroll for the driver's thread, while actors do nothing but send unrolls."""
    import ray

    with replay_pool(unroll) as pool:

        def receive() -> Trajectory:
            return concatenate_states([pool.get().trajectory for _ in range(unrolls)])

        receiving = seconds_of(receive, seconds, time.thread_time) / unrolls
        arrays = map_state(lambda leaf: leaf.numpy(), receive())
    half = arrays.action.shape[0] // 2

    def scatter() -> None:
        for shard in (slice(half), slice(half, None)):
            ray.put(index_state(arrays, shard))

    # Ray copies with several threads: the sum of their times counts.
    scattering = seconds_of(scatter, seconds, time.process_time) / unrolls
    return {"receive_seconds": receiving, "scatter_seconds": scattering}


def measure_requests(seconds: float) -> dict[str, float]:
    """The cost of a request for the driver's thread without its bytes, and of each actor in `ray.wait`."""
    import ray

    with replay_pool((torch.zeros(1),)) as pool:
        requests = seconds_of(lambda: [pool.get() for _ in range(50)], seconds, time.thread_time) / 50

    @ray.remote(num_cpus=0)
    class Busy:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    busy, done = cast(Any, Busy).remote(), ray.put(0)

    def waiting(number: int) -> float:
        pending = [done, *(busy.sleep.remote(3600) for _ in range(number - 1))]

        def wait() -> None:  # as RayPool does
            ray.wait(pending, num_returns=1)
            ray.wait(pending, num_returns=len(pending), timeout=0)

        return seconds_of(wait, seconds / 2, time.thread_time)

    each = (waiting(1024) - waiting(16)) / (1024 - 16)
    ray.kill(busy)
    return {"request_seconds": requests, "wait_seconds": max(0.0, each)}


def compute(config: RunConfig, measured: dict[str, float], options: Options) -> dict[str, Any]:
    """The model's tables for a preset, from its measurements."""
    steps = measured["unroll_steps"] * config.unrolls_per_update
    calls = measured["calls_per_update"] * options.call_microseconds * 1e-6
    names = [field.name for field in dataclasses.fields(Loop)]
    known: dict[str, Any] = {name: value for name, value in measured.items() if name in names}

    def on_gpus(tflops: float, by_reference: bool) -> Loop:
        """The loop with GPUs of an assumed speed: they calculate, or they wait for the next call."""
        update = max(steps * measured["flops_per_step"] / tflops / 1e12, calls)
        return Loop(**known, batch_unrolls=config.unrolls_per_update, update_seconds=update, by_reference=by_reference)

    tables, bounds = {}, {}
    for name, title in (("as_it_is", "as it is"), ("by_reference", "if learners fetched the unrolls")):
        loop = on_gpus(options.gpu_tflops, name == "by_reference")
        tables[name] = [loop.row(gpus, options) for gpus in options.gpus]
        bounds[name] = {tflops: on_gpus(tflops, loop.by_reference).gpus_at_half() for tflops in (1.25, 5.0, 20.0)}
        cells = [[column.replace("_", " ") for column in tables[name][0]], *(row.values() for row in tables[name])]
        print(f"\n{config.preset}, {title}\n\n{markdown(cells)}", file=sys.stderr)
    gpu_steps, actor_steps = loop.batch_steps(1) / loop.update_seconds, loop.actor_steps_per_second
    return {
        "env": config.env,
        "frames_per_step": interface(config.env).action_repeat,
        "measured": {name: float(f"{value:.4g}") if value < 1e4 else round(value) for name, value in measured.items()},
        "gpu_steps_per_second": round(gpu_steps),
        "actors_a_gpu_feeds_on": math.ceil(gpu_steps / actor_steps),
        "actors_a_cpu_learner_feeds_on": round(measured["learner_steps_per_second"] / actor_steps, 2),
        "driver_gb_per_second": round(loop.unroll_bytes / loop.receive_seconds / 1e9, 3),
        "driver_costs_as_much_as_learning_at_gpus": bounds,
        **tables,
    }


def main(options: Options) -> dict[str, Any]:
    """Measures, computes and returns the figures."""
    presets: dict[str, Any] = {}
    with local_ray(8):
        requests = measure_requests(options.seconds)
        for preset in options.presets:
            config = make_config(preset, options.core, None if preset == "cpu" else "rooms:full")
            unroll, measured = measure_networks(config, options.seconds)
            measured |= measure_driver(unroll, config.unrolls_per_update, options.seconds) | requests
            presets[preset] = compute(config, measured, options)
    assumed = {name: value for name, value in vars(options).items() if name not in ("presets", "core", "seconds")}
    return {"core": options.core, "assumed": assumed, "presets": presets}


if __name__ == "__main__":
    run(main, Options)
