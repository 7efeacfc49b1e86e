"""How fast each environment is by itself on one core, beside the plain library's.

    python -m benchmarks.adapters [--seconds 5]        (MiniGrid and POPGym: pip install -e '.[envs]')

Agent steps of random actions a second of CPU time, in batches of 16 in this process. "plain" is the library's own
environment with its own observations: one after the other as gymnasium makes them, without any of our wrappers. Where a
package is missing, its line says so.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from benchmarks.common import in_turns, run
from envs import make_vector

ROWS = 16
SPECS = (
    "diagnostic:recall",
    "diagnostic:tmaze",
    "rooms:small",
    "dm:envs.dm:RoomsDmEnv,config=small",
    "gym:CartPole-v1",
    "gym:Taxi-v4",
    "gym:MiniGrid-MemoryS7-v0",
    "gym:MiniGrid-MemoryS7-v0,view=pixels",
    "gym:popgym-RepeatFirstEasy-v0",
    "gym:popgym-AutoencodeEasy-v0",
    "gym:popgym-ConcentrationEasy-v0",
    "gym:MortarMayhem-Grid-v0",
)


@dataclass
class Options:
    specs: tuple[str, ...] = SPECS
    """Environments."""
    seconds: float = 5.0
    """CPU time for each figure."""


def step(envs: VectorEnv) -> Callable[[], float]:
    """A function that makes a step in all environments and returns their number."""
    random, actions = np.random.default_rng(0), envs.single_action_space.n  # type: ignore[attr-defined]
    envs.reset(seed=0)

    def work() -> float:
        envs.step(random.integers(actions, size=ROWS))
        return ROWS

    return work


def plain(spec: str) -> dict[str, VectorEnv]:
    """The library's own environment, where there is one."""
    kind, _, rest = spec.partition(":")
    name = rest.partition(",")[0]
    make = [lambda: gymnasium.make(name, disable_env_checker=True)] * ROWS
    return {"plain": SyncVectorEnv(make)} if kind == "gym" else {}


def measure(spec: str, seconds: float) -> dict[str, float] | str:
    """Steps a second of our environment and of the plain one."""
    try:
        envs = {"steps_per_second": make_vector(spec, ROWS), **plain(spec)}
    except ImportError as error:
        return str(error)
    rates = in_turns({name: step(each) for name, each in envs.items()}, seconds, clock=time.process_time)
    for each in envs.values():
        each.close()
    ratio = {"of_plain": round(rates["steps_per_second"] / rates["plain"], 2)} if "plain" in rates else {}
    return {name: float(round(value)) for name, value in rates.items()} | ratio


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    return {"rows": ROWS, "environments": {spec: measure(spec, options.seconds) for spec in options.specs}}


if __name__ == "__main__":
    run(main, Options)
