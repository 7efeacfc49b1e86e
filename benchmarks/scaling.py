"""Scale on paper: how many actors a learner needs and what saturates on 1, 8 and 64 GPUs, from measurements on CPUs.

    python -m benchmarks.scaling [--gpu-tflops 5] [--network-gbit 25] [--gpus 1 8 64]
    python -m benchmarks.scaling --real

Measured on this machine, one thread a process; assumed: the options. docs/scaling.md has the formulas (`Loop`) and the
tables, which are printed to standard error. The paper preset acts in the re-created level.
"""

import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from actors import ActorsConfig, Pool, Unroll
from agent import Trajectory
from agent.core import state_bytes
from benchmarks.common import in_turns, local_ray, make_config, markdown, require_least, require_some, run
from learner.loading import load
from storage.run import Run
from training.config import RunConfig
from training.factories import interface, make_actor, make_agent, make_learner, unroll_bytes
from training.trainer import Trainer


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
    real: bool = False
    """Instead of this, train with one and two learners and four actors here, and count what passes the driver."""
    updates: int = 40
    """Updates of each such run."""


ASSUMED = ("gpus", "gpu_tflops", "call_microseconds", "network_gbit", "node_cores", "node_gpus")
MOST_GPUS = 100_000
WARM_UP = 10
"""Updates before the measurement of a run."""


@dataclass(frozen=True)
class Loop:
    """The training loop on G GPUs as a formula: what runs side by side takes the longest of its times.

    A batch is G times the preset's. One GPU learns in the driver's process; several fetch the unrolls by themselves.

    batch_unrolls: of a GPU's share of a batch. actor_steps_per_second: of one actor on one core. learning_seconds: of a
    GPU for its share; assumed. weights_seconds: to take the weights from a learner and to put them into the object
    store; a learner's, and the driver's, which publishes them. request_seconds: of an unroll, for the driver, without
    its bytes. wait_seconds: what each actor adds to that. receive_seconds: of an unroll, to copy it from the object
    store into the batch. call_seconds: of the driver for a call of a learner and its result. node_gpus: learners of a
    node. network: bytes a second of a node.
    """

    unroll_steps: int
    unroll_bytes: int
    batch_unrolls: int
    weight_bytes: int
    actor_steps_per_second: float
    learning_seconds: float
    weights_seconds: float
    request_seconds: float
    wait_seconds: float
    receive_seconds: float
    call_seconds: float
    node_gpus: int = 8
    network: float = math.inf

    def driver_seconds(self, gpus: int, actors: float) -> float:
        """The driver's time for a batch, over its threads, which share Python's lock."""
        an_unroll = self.request_seconds + self.wait_seconds * actors
        calls = 0.0
        if gpus == 1:
            an_unroll += self.receive_seconds
        else:
            calls = 2 * gpus * self.call_seconds
        return gpus * self.batch_unrolls * an_unroll + calls + self.weights_seconds

    def seconds(self, gpus: int) -> dict[str, float]:
        """The times of a batch that pass side by side, with as many actors as the system needs."""
        # A learner that is not the driver's also gives its weights and is called.
        update = self.learning_seconds
        if gpus > 1:
            update += self.weights_seconds + gpus * self.call_seconds

        # The driver takes longer with more actors. A batch that takes it the time t comes from b / t actors, where b
        # actors make one a second. So t solves t = constant + slope b / t.
        constant = self.driver_seconds(gpus, 0)
        slope = self.driver_seconds(gpus, 1) - constant
        actors = self.batch_steps(gpus) / self.actor_steps_per_second
        driver = (constant + math.sqrt(constant**2 + 4 * slope * actors)) / 2

        # A node receives the shares of all its learners.
        share = self.batch_unrolls * self.unroll_bytes
        network = min(gpus, self.node_gpus) * share / self.network
        fetch = self.batch_unrolls * self.receive_seconds
        return {"update": update, "driver": driver, "fetch": fetch, "network": network}

    def batch_steps(self, gpus: int) -> int:
        """Steps of a batch."""
        return gpus * self.batch_unrolls * self.unroll_steps

    def steps_per_second(self, gpus: int) -> float:
        """Of the whole system."""
        return self.batch_steps(gpus) / max(self.seconds(gpus).values())

    def gpu_busy(self, gpus: int) -> float:
        """Fraction of the time in which GPUs learn."""
        return self.learning_seconds / max(self.seconds(gpus).values())

    def gpus_at_half(self) -> int | None:
        """The least number of GPUs that learn less than half of the time; None if none does up to `MOST_GPUS`."""
        for gpus in range(1, MOST_GPUS + 1):
            if self.gpu_busy(gpus) <= 0.5:
                return gpus
        return None

    def row(self, gpus: int, options: Options) -> dict[str, float | str]:
        """Actors, what takes longest, and the load of the busiest node: its network (a fraction) and object store."""
        seconds = self.seconds(gpus)
        steps = self.steps_per_second(gpus)
        updates = steps / self.batch_steps(gpus)
        actors = steps / self.actor_steps_per_second
        actor_nodes = math.ceil(actors / options.node_cores)
        learner_nodes = math.ceil(gpus / options.node_gpus)
        gpus_of_node = min(gpus, options.node_gpus)

        # Bytes a second: of all unrolls, of the weights that go to each node of actors, and of the gradients that a
        # node of learners sends and receives.
        unrolls = steps / self.unroll_steps * self.unroll_bytes
        weights = updates * self.weight_bytes * actor_nodes
        gradients = 0.0
        if learner_nodes > 1:
            gradients = 2 * updates * self.weight_bytes

        # Bytes in object stores: an unroll of each actor, and for each GPU two shares of a batch, since one is learned
        # from while the next is received. With one GPU all are in one store, else in those of the actors' nodes. That
        # of a node of learners has at least their shares.
        share = self.batch_unrolls * self.unroll_bytes
        kept = actors * self.unroll_bytes + 2 * gpus * share
        stores = 1 if gpus == 1 else actor_nodes
        store = max(kept / stores, 2 * gpus_of_node * share)
        return {
            "gpus": gpus,
            "steps_per_second": round(steps),
            "gpu_busy": round(self.gpu_busy(gpus), 3),
            "longest": max(seconds, key=seconds.__getitem__),
            "actors": math.ceil(actors),
            "actor_nodes": actor_nodes,
            "unrolls_gb_per_second": round(unrolls / 1e9, 3),
            "network_in": round((unrolls * gpus_of_node / gpus + gradients) / self.network, 3),
            "network_out": round(max(gradients, weights) / self.network, 3),
            "object_store_gb": round(store / 1e9, 2),
        }


class Calls(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(keywords or {}))


def replay_pool(trajectory: Any, number: int = 2, by_reference: bool = False) -> Pool:
    """Actors on Ray that do nothing but send an unroll; they share two processes."""
    from actors.ray_pool import RayPool

    config = ActorsConfig(num_actors=number, in_flight=2, cpus=0)
    replay: Any = SimpleNamespace(set_weights=lambda *_: None, unroll=lambda length: Unroll(trajectory, [], 0, 0))

    def make_actor_of(*_: Any) -> Any:
        return replay

    class Replay(RayPool):
        handles: tuple[Any, ...] = ()

        def _start(self) -> None:
            if not self.handles:
                self.handles = tuple(self.remote_class.remote(make_actor_of, index, 0, config) for index in range(2))
            for index, member in enumerate(self.members):
                if member.handle is None:
                    member.handle = self.handles[index % 2]
                    self._ask(index)

    pool = Replay(make_actor_of, config, by_reference)
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

    length = config.actors.unroll_length
    actor = make_actor(config, 0, 0, 0)
    unroll = actor.unroll(length).trajectory
    acting = seconds_of(lambda: actor.unroll(length), seconds, time.process_time)
    learner = make_learner(config, make_agent(config))
    with FlopCounterMode(display=False) as operations, Calls() as calls:
        learner.update(unroll)
    learning = seconds_of(lambda: learner.update(unroll), 0, time.process_time)
    rows, steps_of_row = unroll.action.shape[:2]
    steps = rows * steps_of_row
    weight_bytes = sum(weight.nbytes for weight in learner.weights().values())

    def take() -> None:
        ray.put({name: weight.numpy() for name, weight in learner.weights().items()})

    return unroll, {
        "unroll_steps": steps,
        "unroll_bytes": state_bytes(unroll),
        "unroll_observation_bytes": state_bytes(unroll.observation),
        "unroll_core_state_bytes": state_bytes(unroll.core_state),
        "weight_bytes": weight_bytes,
        "actor_steps_per_second": steps / acting,
        "learner_steps_per_second": steps / learning,
        "flops_per_step": operations.get_total_flops() / steps,
        "calls_per_update": calls.count,
        "weights_seconds": seconds_of(take, 1, time.process_time),
    }


def measure_receiving(unroll: Trajectory, unrolls: int, seconds: float) -> dict[str, float]:
    """The cost of an unroll for a thread that receives batches, while actors do nothing but send unrolls."""
    with replay_pool(unroll) as pool:

        def receive() -> Trajectory:
            return load([pool.get().trajectory for _ in range(unrolls)], torch.device("cpu"))()

        return {"receive_seconds": seconds_of(receive, seconds, time.thread_time) / unrolls}


def measure_requests(seconds: float) -> dict[str, float]:
    """The driver's costs without bytes: of an unroll, of each actor that it waits for, and of a call of a learner."""
    import ray

    from learner.remote_learner import results_of

    def requests(number: int) -> float:
        with replay_pool((torch.zeros(1),), number, by_reference=True) as pool:
            while pool.status().alive < number:
                pool.get()
            return seconds_of(lambda: [pool.get() for _ in range(200)], seconds, time.thread_time) / 200

    @ray.remote(num_cpus=0)
    class Learner:
        def update(self, number: int) -> tuple[dict[str, float], dict[str, int]]:
            return dict.fromkeys("abcdefghijklmnopqrst", 0.0), {"version": number, "steps": number}

    learners = [cast(Any, Learner).remote() for _ in range(2)]

    def call_both() -> Any:
        return results_of([learner.update.remote(0) for learner in learners])

    calling = seconds_of(call_both, seconds / 2, time.thread_time)
    for learner in learners:
        ray.kill(learner)

    # A line through two points: what an unroll costs with 8 actors and with 1024.
    with_few = requests(8)
    with_many = requests(1024)
    an_actor = max(0.0, with_many - with_few) / (1024 - 8)
    return {
        "request_seconds": with_few - 8 * an_actor,
        "wait_seconds": an_actor,
        "call_seconds": calling / len(learners),
    }


@contextmanager
def counted_bytes() -> Iterator[dict[str, int]]:
    """Counts the bytes of all objects that this process gets from Ray or gives to it, arguments of calls included."""
    from ray._private.serialization import SerializationContext

    count = {"got": 0, "put": 0}
    context: Any = SerializationContext
    serialize = context.serialize
    deserialize = context.deserialize_objects

    def counted_serialize(self: Any, value: Any) -> Any:
        done = serialize(self, value)
        count["put"] += done.total_bytes
        return done

    def counted_deserialize(self: Any, found: Any, *rest: Any) -> Any:
        count["got"] += sum(len(data) for data, *_ in found if data is not None)
        return deserialize(self, found, *rest)

    context.serialize = counted_serialize
    context.deserialize_objects = counted_deserialize
    try:
        yield count
    finally:
        context.serialize = serialize
        context.deserialize_objects = deserialize


class Mark(NamedTuple):
    """How far a run is: the time, steps learned from, and bytes that the driver got and gave."""

    seconds: float
    steps: int
    got: int
    put: int


def measure_run(learners: int, actors: int, core: str, updates: int) -> dict[str, float]:
    """A real run of the preset `cpu` on this machine: what passes through the driver, and how fast it is."""
    config = make_config("cpu", core, learners=learners, frames=10**12, checkpoint_seconds=1e9)
    config = dataclasses.replace(config, actors=dataclasses.replace(config.actors, num_actors=actors))
    marks: list[Mark] = []  # after each update
    with tempfile.TemporaryDirectory() as folder, local_ray(actors + learners), counted_bytes() as count:
        trainer = Trainer(config, Run(folder), local=False)

        def mark(progress: Any) -> None:
            marks.append(Mark(time.monotonic(), trainer.learner.steps, count["got"], count["put"]))

        trainer.train(mark, lambda: len(marks) > updates + WARM_UP)
    first = marks[WARM_UP]
    last = marks[-1]
    weight_bytes = sum(weight.nbytes for weight in trainer.learner.weights().values())
    return {
        "steps_per_second": round((last.steps - first.steps) / (last.seconds - first.seconds)),
        "driver_got_mb_per_update": round((last.got - first.got) / updates / 1e6, 3),
        "driver_put_mb_per_update": round((last.put - first.put) / updates / 1e6, 3),
        "unroll_mb": round(unroll_bytes(trainer.config, trainer.agent) / 1e6, 3),
        "weights_mb": round(weight_bytes / 1e6, 3),
    }


def compute(config: RunConfig, measured: dict[str, float], options: Options) -> dict[str, Any]:
    """The model's tables for a preset, from its measurements."""
    steps = measured["unroll_steps"] * config.unrolls_per_update
    calls = measured["calls_per_update"] * options.call_microseconds * 1e-6
    names = [field.name for field in dataclasses.fields(Loop)]
    known: dict[str, Any] = {name: value for name, value in measured.items() if name in names}

    def on_gpus(tflops: float) -> Loop:
        """The loop with GPUs of an assumed speed: they calculate, or they wait for the next call."""
        learning = max(steps * measured["flops_per_step"] / tflops / 1e12, calls)
        network = options.network_gbit / 8 * 1e9
        return Loop(
            **known,
            batch_unrolls=config.unrolls_per_update,
            learning_seconds=learning,
            node_gpus=options.node_gpus,
            network=network,
        )

    loop = on_gpus(options.gpu_tflops)
    table = [loop.row(gpus, options) for gpus in options.gpus]
    header = [column.replace("_", " ") for column in table[0]]
    cells = [header, *(row.values() for row in table)]
    print(f"\n{config.preset}\n\n{markdown(cells)}", file=sys.stderr)

    gpu_steps = loop.batch_steps(1) / loop.learning_seconds
    actor_steps = loop.actor_steps_per_second
    half = {tflops: on_gpus(tflops).gpus_at_half() for tflops in (1.25, 5.0, 20.0)}
    times = {}
    for gpus in options.gpus:
        times[gpus] = {name: significant(seconds, 3) for name, seconds in loop.seconds(gpus).items()}
    return {
        "env": config.env,
        "frames_per_step": interface(config.env).action_repeat,
        "measured": {name: significant(value, 4) for name, value in measured.items()},
        "gpu_steps_per_second": round(gpu_steps),
        "actors_a_gpu_feeds_on": math.ceil(gpu_steps / actor_steps),
        "actors_a_cpu_learner_feeds_on": round(measured["learner_steps_per_second"] / actor_steps, 2),
        "driver_gb_per_second": round(loop.unroll_bytes / loop.receive_seconds / 1e9, 3),
        "half_the_time_is_learning_at_gpus": half,
        "times": times,
        "table": table,
    }


def significant(value: float, digits: int) -> float:
    """A number with so many digits; from 10^4 on, all digits before the point."""
    if value >= 1e4:
        return round(value)
    return float(f"{value:.{digits}g}")


def main(options: Options) -> dict[str, Any]:
    """Measures, computes and returns the figures."""
    require_least("updates", options.updates, 1)
    require_some("gpus", options.gpus)
    require_least("gpus", min(options.gpus), 1)
    require_least("node-cores", options.node_cores, 1)
    require_least("node-gpus", options.node_gpus, 1)
    if options.real:
        runs = {size: measure_run(size, 4, options.core, options.updates) for size in (1, 2)}
        return {"core": options.core, "learners": runs}
    presets: dict[str, Any] = {}
    with local_ray(8):
        requests = measure_requests(options.seconds)
        for preset in options.presets:
            env = None if preset == "cpu" else "rooms:full"
            config = make_config(preset, options.core, env)
            unroll, measured = measure_networks(config, options.seconds)
            measured |= measure_receiving(unroll, config.unrolls_per_update, options.seconds) | requests
            presets[preset] = compute(config, measured, options)
    assumed = {name: value for name, value in vars(options).items() if name in ASSUMED}
    return {"core": options.core, "assumed": assumed, "presets": presets}


if __name__ == "__main__":
    run(main, Options)
