"""How fast a run is that never leaves its device: the level, acting, learning, and all of it.

First the level is compared with the CPU's, which starts every step from the device's state: a GPU rounds differently.
"failed" says if they differ by more than that (`LARGEST_ERROR`, `MOST_PIXELS`), or if there was nothing to compare.
Every rate has a bound that follows from the arithmetic that was counted and from what this device reaches in one large
matrix product in the learner's precision (`share_of_bound`). On the CPU the same code runs, to test it. Nothing needs
Ray.

    python -m benchmarks.resident --envs 128 256 512
    python -m benchmarks.resident --device cpu --preset cpu --env rooms:small --envs 32 --seconds 2
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from actors.resident import ResidentActor
from agent.core import map_state
from agent.cuda_graphs import cuda_graph
from benchmarks.common import make_config, run
from envs import make_device, make_vector
from envs.device import DeviceEnv
from envs.rooms import RoomsVectorEnv, oracle_actions
from learner.learner import WARM_UP, Learner, resolve_device
from training.config import RunConfig
from training.factories import make_agent, make_learner, make_pool, resolve_precisions

Part = Literal["check", "level", "acting", "learning", "whole"]
LARGEST_ERROR = 1.0
"""Most that a number of the state may differ by: the level rounds velocities to whole units."""
MOST_PIXELS = 0.001
"""Most color values that may differ, as a share of all; 0.00009 do on an H200."""


@dataclass
class Options:
    """What is measured."""

    preset: str = "paper"
    core: str = "compressive"
    env: str = "rooms:full"
    envs: tuple[int, ...] = (256,)
    """Numbers of environments."""
    device: str = "cuda"
    parts: tuple[Part, ...] = ("check", "level", "acting", "learning", "whole")
    seconds: float = 10.0
    """Time for each rate."""
    check_steps: int = 200
    """Steps of 64 environments in the comparison with the CPU."""
    compile: bool = True
    """Compile the learner's torso, except on the CPU."""
    cuda_graph: bool = True
    """Replay updates as a CUDA graph, except on the CPU."""


def check(env: str, device: torch.device, steps: int) -> dict[str, float]:
    """Differences to the CPU after single steps from equal states, of a scripted player and of random actions."""
    rows = 64
    rng = np.random.default_rng(0)
    there: Any = make_device(env, rows, str(device))
    here: Any = make_vector(env, rows)
    scripted = here.oracle_actions
    if isinstance(here, RoomsVectorEnv):  # its oracle would plan anew for every random action
        scripted = functools.partial(oracle_actions, here)
    here.reset(seed=3)
    there.reset(3)
    wrong = 0
    furthest = 0.0
    pixels = 0.0
    for step in range(steps):
        state = _state_of(there, here.arrays)
        here.set_state({name: state[name] for name in here.arrays})
        here.over[:] = state["over"]
        actions = scripted() if step % 3 else rng.integers(0, there.num_actions, rows)
        seen, *_ = here.step(actions)
        there.step(torch.from_numpy(actions).to(device))
        pixels += _share_that_differs(there.observation, seen) / steps
        after = _state_of(there, here.arrays)
        for name, expected in here.arrays.items():
            found = after[name]
            if expected.dtype.kind == "f":
                furthest = max(furthest, float(np.abs(found - expected).max()))
            else:
                wrong += int((found != expected).sum())
    return {
        "steps": rows * steps,
        "integers_that_differ": wrong,
        "greatest_error": furthest,
        "pixels_that_differ": pixels,
    }


def _share_that_differs(observation: Tensor | tuple[Tensor, ...], expected: Any) -> float:
    """The share of all values of an observation, or of the one of several views where it is largest."""
    views = observation if isinstance(observation, tuple) else (observation,)
    expected_views = expected if isinstance(expected, tuple) else (expected,)
    shares = []
    for view, expected_view in zip(views, expected_views, strict=True):
        shares.append(float((view.cpu().numpy() != expected_view).mean()))
    return max(shares)


def _state_of(env: DeviceEnv, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state of a device's environments as those of a CPU have it: their arrays by name, and which are over."""
    state = {name: tensor.numpy() for name, tensor in env.get_state().items()}
    state["over"] = state["terminated"] | state["truncated"]
    own = {name: state[name].view(array.dtype) for name, array in arrays.items()}  # random streams may be signed
    return {**own, "over": state["over"]}


def faults_of(found: dict[str, float]) -> list[str]:
    """What does not hold of the comparison with the CPU, of which integers have to be equal."""
    bounds = {"integers_that_differ": 0, "greatest_error": LARGEST_ERROR, "pixels_that_differ": MOST_PIXELS}
    faults = []
    if not found["steps"]:
        faults.append("check: no steps were compared")
    for name, most in bounds.items():
        if not found[name] <= most:  # NaN is a fault, too
            faults.append(f"check: {name}: expected at most {most:g}, got {found[name]:g}")
    return faults


class Meter:
    """Measures rates on a device, and shows each as soon as it is known."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seconds: float) -> None:
        self.device = device
        self.seconds = seconds
        self.rates: dict[str, dict[str, float]] = {}
        self.peak = self._product(dtype)

    def rate(self, work: Callable[[], object], amount: float) -> float:
        """Amounts of work a second; calls before that warm up, and capture what is captured."""
        for _ in range(WARM_UP + 1):
            work()
        self.wait()
        begin = time.perf_counter()
        elapsed = 0.0
        done = 0.0
        while elapsed < self.seconds or not done:
            work()
            self.wait()
            done += amount
            elapsed = time.perf_counter() - begin
        return done / elapsed

    def note(self, name: str, steps_per_second: float, flops: float = 0.0) -> None:
        """Keeps a rate; `flops` of a step give its bound."""
        figures = {"steps_per_second": float(round(steps_per_second))}
        if flops:
            figures |= {
                "bound": round(self.peak / flops),
                "share_of_bound": round(steps_per_second * flops / self.peak, 3),
            }
        self.rates[name] = figures
        print(name, figures, file=sys.stderr, flush=True)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _product(self, dtype: torch.dtype) -> float:
        """Floating point operations a second in a product of large matrices."""
        size = 8192 if self.device.type == "cuda" else 1024
        a = torch.randn(size, size, device=self.device, dtype=dtype)
        b = torch.randn(size, size, device=self.device, dtype=dtype)
        for _ in range(3):  # warms up
            a @ b
        self.wait()
        products = 20
        begin = time.perf_counter()
        for _ in range(products):
            a @ b
        self.wait()
        return products * 2.0 * size**3 / (time.perf_counter() - begin)


def count_flops(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def measure_level(env: str, rows: int, meter: Meter) -> None:
    envs = make_device(env, rows, str(meter.device))
    envs.reset(0)
    actions = torch.randint(0, envs.num_actions, (rows,), device=meter.device)
    step: Callable[[], None] = functools.partial(DeviceEnv.step, envs, actions)
    step()
    if meter.device.type == "cuda":
        step = cuda_graph(meter.device)(step)
    meter.note(f"level, {rows}", meter.rate(step, rows))


def make_base(options: Options) -> RunConfig:
    """The configuration of a run, but for the number of environments.

    Raises:
        SystemExit: if a number of environments is not a whole number of actors, whose parts the preset chooses.
    """
    base = make_config(options.preset, options.core, options.env, resident=True)
    for rows in options.envs:
        if rows % base.actors.envs_per_actor:
            expected = f"multiples of {base.actors.envs_per_actor}, the preset's envs_per_actor"
            raise SystemExit(f"--envs: expected {expected}, got {rows}")
    compiled = options.compile and resolve_device(options.device).type == "cuda"
    learning = dataclasses.replace(base.learner, device=options.device, compile=compiled, cuda_graph=options.cuda_graph)
    return resolve_precisions(dataclasses.replace(base, learner=learning))


def measure(options: Options) -> dict[str, Any]:
    device = resolve_device(options.device)
    base = make_base(options)
    name_of_device = "cpu"
    if device.type == "cuda":
        name_of_device = torch.cuda.get_device_name(device)
    figures: dict[str, Any] = {"device": name_of_device, "precision": base.learner.precision}
    failed = []
    if "check" in options.parts:
        figures["check"] = check(options.env, device, options.check_steps)
        failed = faults_of(figures["check"])
        print("check", figures["check"], file=sys.stderr, flush=True)
    meter = Meter(device, getattr(torch, base.learner.precision), options.seconds)
    figures["teraflops_of_a_product"] = round(meter.peak / 1e12, 2)
    for rows in options.envs:
        if "level" in options.parts:
            measure_level(options.env, rows, meter)
        if set(options.parts) & {"acting", "learning", "whole"}:
            measure_agent(base, rows, options.parts, meter)
    return figures | {"rates": meter.rates, "failed": failed}


def measure_agent(base: RunConfig, rows: int, parts: tuple[Part, ...], meter: Meter) -> None:
    """Acting, learning, and both in turn, with so many environments."""
    acting = dataclasses.replace(base.actors, num_actors=rows // base.actors.envs_per_actor)
    config = dataclasses.replace(base, actors=acting)
    if meter.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(meter.device)
    torch.manual_seed(0)
    learner = make_learner(config, make_agent(config))
    # Acting is a graph in any case.
    recorded = dataclasses.replace(config, learner=dataclasses.replace(config.learner, cuda_graph=True))
    pool = make_pool(recorded, config.env, 0, True, learner)
    assert isinstance(pool, ResidentActor)
    steps = rows * acting.unroll_length
    pool.publish({}, 0)
    trajectory = pool.get().trajectory
    act_flops, learn_flops = _flops(learner, trajectory)
    if "acting" in parts:
        meter.note(f"acting, {rows}", meter.rate(pool.unroll, steps), act_flops)
    if "learning" in parts:
        meter.note(f"learning, {rows}", meter.rate(lambda: learner.update(trajectory), steps), learn_flops)
    if "whole" in parts:

        def work() -> None:
            learner.update(pool.get().trajectory)
            pool.publish({}, learner.version)

        meter.note(f"whole, {rows}", meter.rate(work, steps), act_flops + learn_flops)
    if meter.device.type == "cuda":
        gib = torch.cuda.max_memory_allocated(meter.device) / 2**30
        print(f"greatest memory {gib:.1f} GiB", file=sys.stderr, flush=True)


def _flops(learner: Learner, trajectory: Any) -> tuple[float, float]:
    """Of one step: of acting, and of learning, forward and backward; counted on one row, uncompiled."""
    row: Any = map_state(lambda leaf: leaf[:1], trajectory)
    agent: Any = learner.agent
    inputs = row.observation, row.last_action, row.reward, row.reset

    steps = row.action.shape[1]

    def act() -> None:
        with torch.no_grad():
            state = agent.with_cache(row.core_state)
            for step in range(steps):
                of_step = [part[:, step : step + 1] for part in inputs]
                state = agent(*of_step, state).state

    def learn() -> None:
        output = agent(*inputs, row.core_state)
        loss = output.policy_parameters.sum() + output.value.sum()
        for own in output.losses.values():
            loss = loss + own.value
        loss.backward()

    # Compiled code hides its operations from the counter.
    compiled = agent.vision._compiled_call_impl
    agent.vision._compiled_call_impl = None
    try:
        acting = count_flops(act)
        learning = count_flops(learn)
    finally:
        agent.vision._compiled_call_impl = compiled
        agent.zero_grad(set_to_none=True)
    return acting / steps, learning / steps


if __name__ == "__main__":
    run(measure, Options)
