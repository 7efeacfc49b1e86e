"""Scale on paper: what a learner feeds on and what saturates on 1, 8 and 64 GPUs, computed from what is measured here.

    python benchmarks/scaling.py [--gpu-tflops 5] [--network-gbit 25] [--gpus 1 8 64]

Measured on this machine, one thread a process: bytes of an unroll and of the weights; steps/s of an actor and of a
learner on one core; floating-point operations of an update and how many calls of torch it makes; what an unroll costs
the driver's thread (to receive it, and to hand it on to several learners), what a request costs apart from its bytes,
and what each actor adds to it; what it takes to publish weights, also to several nodes, here processes of one host.
Assumed: the options. `docs/scaling.md` has the formulas, which are `Loop`; prints tables to stderr and one JSON object.

The paper preset acts in the re-created level, which has the pixels of the original but not its cost.
"""

import dataclasses
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import ray
import torch
import tyro
from ray.cluster_utils import Cluster
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from actors import ActorsConfig
from actors.actor import Unroll
from actors.ray_pool import RayPool
from agent import Trajectory
from agent.core import concatenate_states, index_state, map_state, state_bytes
from envs import prepare
from training.config import RunConfig
from training.impala import interface, make_actor, make_agent, make_learner
from training.presets import make_preset


@dataclass
class Options:
    """Measures what scaling depends on, and computes the rest."""

    presets: tuple[str, ...] = ("paper", "cpu")
    core: str = "compressive"
    gpus: tuple[int, ...] = (1, 8, 64)
    """Learners, one a GPU, for which to compute; each has the preset's batch as its share."""
    gpu_tflops: float = 5.0
    """Assumed: 10^12 floating-point operations a second that a GPU sustains in an update."""
    call_microseconds: float = 10.0
    """Assumed: time that a GPU's process spends at least on a call of torch."""
    network_gbit: float = 25.0
    """Assumed: network of a node, 10^9 bits a second in each direction."""
    node_cores: int = 64
    """Assumed: actors of a node."""
    node_gpus: int = 8
    """Assumed: learners of a node."""
    seconds: float = 4.0
    """Time for each rate."""
    nodes: int = 4
    """Nodes that weights are published to, as processes of this host."""


@dataclass(frozen=True)
class Loop:
    """The main loop on G GPUs as a formula: receive a batch, hand it to the learners, update, publish; one by one.

    A batch is G times the preset's. Times are of the driver's thread unless something else is said.
    """

    unroll_steps: int
    unroll_bytes: int
    batch_unrolls: int
    """Unrolls of a GPU's share of a batch."""
    weight_bytes: int
    actor_steps_per_second: float
    """Of one actor on one core."""
    update_seconds: float
    """Of a GPU for its share; assumed."""
    request_seconds: float
    """An unroll's, apart from its bytes."""
    wait_seconds: float
    """What each further actor adds to a request: waiting for the oldest looks at all."""
    receive_seconds: float
    """An unroll's, request included: to copy it out of the object store and into the batch."""
    scatter_seconds: float
    """An unroll's: into the object store again, for several learners."""
    publish_seconds: float
    """To take the weights from the learners and to put them into the object store."""

    def driver_seconds(self, gpus: int, actors: float, by_reference: bool = False) -> float:
        """What the driver needs for a batch; with `by_reference` it would only pass on where the unrolls are."""
        an_unroll = self.wait_seconds * actors
        if by_reference:
            an_unroll += self.request_seconds
        else:
            an_unroll += self.receive_seconds + (self.scatter_seconds if gpus > 1 else 0)
        return gpus * self.batch_unrolls * an_unroll + self.publish_seconds

    def steps_per_second(self, gpus: int, by_reference: bool = False) -> float:
        """Of the whole, with as many actors as it takes."""
        steps = gpus * self.batch_unrolls * self.unroll_steps
        # The more actors, the longer they take to wait for: the loop's time t solves t = a + b / t.
        constant = self.update_seconds + self.driver_seconds(gpus, 0, by_reference)
        slope = self.driver_seconds(gpus, 1, by_reference) - self.driver_seconds(gpus, 0, by_reference)
        seconds = (constant + math.sqrt(constant**2 + 4 * slope * steps / self.actor_steps_per_second)) / 2
        return steps / seconds

    def gpu_busy(self, gpus: int, by_reference: bool = False) -> float:
        """Share of the time that GPUs learn."""
        most = gpus * self.batch_unrolls * self.unroll_steps / self.update_seconds
        return self.steps_per_second(gpus, by_reference) / most

    def gpus_at_half(self, by_reference: bool = False) -> int:
        """GPUs at which the driver costs as much time as learning; the first that is too many."""
        return next(gpus for gpus in range(1, 10**6) if self.gpu_busy(gpus, by_reference) <= 0.5)

    def row(self, gpus: int, options: Options, by_reference: bool = False) -> dict[str, float]:
        """What it means for actors, and for the busiest node's network (shares of it) and object store."""
        steps = self.steps_per_second(gpus, by_reference)
        updates = steps / (gpus * self.batch_unrolls * self.unroll_steps)
        actors = steps / self.actor_steps_per_second
        actor_nodes, learner_nodes = math.ceil(actors / options.node_cores), math.ceil(gpus / options.node_gpus)
        unrolls = steps / self.unroll_steps * self.unroll_bytes
        weights = updates * self.weight_bytes * actor_nodes
        gradients = 2 * updates * self.weight_bytes if learner_nodes > 1 else 0
        if by_reference:  # the busiest node has learners only; the driver's sends weights
            received, sent, kept = unrolls / learner_nodes + gradients, max(gradients, weights), actors / learner_nodes
        else:  # the driver's node has the first learners, too
            received, kept = unrolls + gradients, actors
            sent = unrolls * (1 - 1 / learner_nodes) + weights + gradients
        network = options.network_gbit / 8 * 1e9
        return {
            "gpus": gpus,
            "steps_per_second": round(steps),
            "gpu_busy": round(self.gpu_busy(gpus, by_reference), 3),
            "actors": math.ceil(actors),
            "actor_nodes": actor_nodes,
            "unrolls_gb_per_second": round(unrolls / 1e9, 3),
            "network_in": round(received / network, 3),
            "network_out": round(sent / network, 3),
            "object_store_gb": round(kept * self.unroll_bytes / 1e9, 2),
        }


class Calls(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(keywords or {}))


class Replay:
    """An actor that always has the same unroll ready."""

    def __init__(self, trajectory: Any) -> None:
        self.trajectory = trajectory

    def set_weights(self, weights: dict[str, Tensor], version: int) -> None:
        """Has no use for them."""

    def unroll(self, length: int) -> Unroll:
        """The unroll."""
        return Unroll(self.trajectory, [])


def seconds_of(work: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Median time of `work` by `clock`, from three times on: of CPU time, so that a busy machine matters less."""
    work()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        before = clock()
        work()
        times.append(clock() - before)
    return statistics.median(times)


def measure_networks(config: RunConfig, seconds: float) -> tuple[Trajectory, dict[str, float]]:
    """An unroll, and what it costs to make it and to learn from it, in this process."""
    actor = make_actor(config, 0, 0, 0)
    unroll = actor.unroll(config.actors.unroll_length).trajectory
    acting = seconds_of(lambda: actor.unroll(config.actors.unroll_length), seconds, time.process_time)
    learner = make_learner(config, make_agent(config))
    with FlopCounterMode(display=False) as operations, Calls() as calls:
        learner.update(unroll)
    learning = seconds_of(lambda: learner.update(unroll), 0, time.process_time)
    weights, steps = learner.weights(), unroll.action.numel()

    def publish() -> None:
        learner.agent.load_state_dict({name: weight.clone() for name, weight in weights.items()})  # as a group follows
        ray.put({name: weight.numpy() for name, weight in learner.weights().items()})

    return unroll, {
        "unroll_steps": steps,
        "unroll_bytes": state_bytes(unroll),
        "unroll_observation_bytes": state_bytes(unroll.observation),
        "unroll_core_state_bytes": state_bytes(unroll.core_state),
        "weight_bytes": sum(weight.numel() * weight.element_size() for weight in weights.values()),
        "actor_steps_per_second": steps / acting,
        "learner_steps_per_second": steps / learning,
        "flops_per_step": operations.get_total_flops() / steps,
        "calls_per_update": calls.count,
        "publish_seconds": seconds_of(publish, 1, time.process_time),
    }


def measure_driver(unroll: Trajectory, unrolls: int, seconds: float) -> dict[str, float]:
    """What an unroll costs the driver's thread, and how many it gets while actors do nothing but send them."""
    config = ActorsConfig(num_actors=2, in_flight=2)
    with RayPool(cast(Any, lambda *_: Replay(unroll)), config) as pool:
        pool.publish({}, 0)

        def receive() -> Trajectory:
            return concatenate_states([pool.get().trajectory for _ in range(unrolls)])

        receiving = seconds_of(receive, seconds, time.thread_time) / unrolls
        wall = seconds_of(receive, seconds, time.perf_counter) / unrolls
        arrays = map_state(lambda leaf: leaf.numpy(), receive())
    rows = arrays.action.shape[0]

    def scatter() -> None:
        for shard in (slice(0, rows // 2), slice(rows // 2, rows)):
            ray.put(index_state(arrays, shard))

    return {
        "receive_seconds": receiving,
        "receive_wall_seconds": wall,
        # Ray copies with several threads: their sum.
        "scatter_seconds": seconds_of(scatter, seconds, time.process_time) / unrolls,
    }


def measure_requests(seconds: float) -> dict[str, float]:
    """What a request costs the driver's thread apart from its bytes, and what each actor adds that is waited for."""
    with RayPool(cast(Any, lambda *_: Replay((torch.zeros(1),))), ActorsConfig(num_actors=2, in_flight=2)) as pool:
        pool.publish({}, 0)
        requests = seconds_of(lambda: [pool.get() for _ in range(50)], seconds, time.thread_time) / 50

    @ray.remote(num_cpus=0)
    class Busy:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    busy, done, waits = cast(Any, Busy).remote(), ray.put(0), {}
    for number in (16, 1024):
        pending = [done, *(busy.sleep.remote(3600) for _ in range(number - 1))]

        def wait(pending: list[Any] = pending) -> None:  # as RayPool does
            ray.wait(pending, num_returns=1)
            ray.wait(pending, num_returns=len(pending), timeout=0)

        waits[number] = seconds_of(wait, seconds / 2, time.thread_time)
    ray.kill(busy)
    return {"request_seconds": requests, "wait_seconds": max(0.0, (waits[1024] - waits[16]) / (1024 - 16))}


def measure_broadcast(cluster: Cluster, sizes: tuple[int, ...], nodes: int) -> dict[int, dict[int, float]]:
    """Seconds until all of that many other nodes hold weights, from before they are put; by bytes and by nodes."""

    @ray.remote(num_cpus=0, resources={"other": 1})
    class Node:
        def hold(self, weights: Tensor) -> None:
            """Has them."""

    for _ in range(nodes):
        cluster.add_node(num_cpus=0, resources={"other": 1}, object_store_memory=200 << 20)
    holders = [cast(Any, Node).remote() for _ in range(nodes)]
    figures: dict[int, dict[int, float]] = {}
    for size in sizes:
        weights = torch.zeros(size // 4).numpy()
        figures[size] = {}
        for number in sorted({1, nodes}):

            def publish(weights: Any = weights, number: int = number) -> None:
                reference = ray.put(weights)
                ray.get([holder.hold.remote(reference) for holder in holders[:number]])

            figures[size][number] = round(seconds_of(publish, 1, time.perf_counter), 4)
    return figures


def table(rows: list[dict[str, float]]) -> str:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(f"{value:,}" for value in row.values()) + " |" for row in rows)])


def main(options: Options) -> dict[str, Any]:
    """Measures, computes and returns the figures."""
    torch.set_num_threads(1)
    presets: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RAY_TMPDIR", folder)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "object_store_memory": 2 << 30})
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        requests = measure_requests(options.seconds)
        for preset in options.presets:
            config = make_preset(preset, options.core)
            config = dataclasses.replace(config, env=config.env if preset == "cpu" else "rooms:full")
            prepare(config.env)
            unroll, measured = measure_networks(config, options.seconds)
            measured |= measure_driver(unroll, config.unrolls_per_update, options.seconds) | requests
            presets[preset] = compute(config, measured, options)
        sizes = tuple(int(figures["measured"]["weight_bytes"]) for figures in presets.values())
        broadcast = measure_broadcast(cluster, sizes, options.nodes)
        ray.shutdown()
        cluster.shutdown()
    return {
        "benchmark": "scaling",
        "core": options.core,
        "assumed": {
            field: value for field, value in vars(options).items() if field not in ("presets", "core", "seconds")
        },
        "cores": os.cpu_count(),
        "presets": presets,
        "broadcast_seconds_by_bytes_and_nodes": broadcast,
    }


def make_loop(config: RunConfig, measured: dict[str, float], options: Options, tflops: float) -> Loop:
    """The model with a GPU that is assumed: it calculates, or it waits for the next call."""
    steps = measured["unroll_steps"] * config.unrolls_per_update
    calls = measured["calls_per_update"] * options.call_microseconds * 1e-6
    fields: dict[str, Any] = {
        field.name: measured[field.name] for field in dataclasses.fields(Loop) if field.name in measured
    }
    return Loop(
        batch_unrolls=config.unrolls_per_update,
        update_seconds=max(steps * measured["flops_per_step"] / tflops / 1e12, calls),
        **fields,
    )


def compute(config: RunConfig, measured: dict[str, float], options: Options) -> dict[str, Any]:
    """The model's tables for a preset, from what was measured."""
    loop = make_loop(config, measured, options, options.gpu_tflops)
    as_it_is = [loop.row(gpus, options) for gpus in options.gpus]
    by_reference = [loop.row(gpus, options, by_reference=True) for gpus in options.gpus]
    print(f"\n{config.preset}, as it is\n\n{table(as_it_is)}", file=sys.stderr)
    print(f"\n{config.preset}, if learners fetched the unrolls\n\n{table(by_reference)}", file=sys.stderr)
    gpu_steps = loop.batch_unrolls * loop.unroll_steps / loop.update_seconds
    others = {tflops: make_loop(config, measured, options, tflops) for tflops in (1.25, 5.0, 20.0)}
    return {
        "env": config.env,
        "frames_per_step": interface(config.env).action_repeat,
        "measured": {name: float(f"{value:.4g}") if value < 1e4 else round(value) for name, value in measured.items()},
        "gpu_steps_per_second": round(gpu_steps),
        "actors_a_gpu_feeds_on": math.ceil(gpu_steps / loop.actor_steps_per_second),
        "actors_a_cpu_learner_feeds_on": round(measured["learner_steps_per_second"] / loop.actor_steps_per_second, 2),
        "driver_gb_per_second": round(loop.unroll_bytes / loop.receive_seconds / 1e9, 3),
        "driver_costs_as_much_as_learning_at_gpus": {
            "as_it_is": {tflops: other.gpus_at_half() for tflops, other in others.items()},
            "by_reference": {tflops: other.gpus_at_half(by_reference=True) for tflops, other in others.items()},
        },
        "as_it_is": as_it_is,
        "by_reference": by_reference,
    }


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options)), sys.stdout, indent=2)
    print()
