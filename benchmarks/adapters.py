"""How fast each environment is by itself on one core, beside the plain library's. Prints one JSON object.

    python benchmarks/adapters.py [--seconds 5]        (MiniGrid and POPGym: pip install -e '.[envs]')

Agent steps of random actions a second of CPU time, in batches of 16 in this process; "plain" is the library's own
environment with its own observations: one after the other as gymnasium makes them, without any of our wrappers. Both
are measured in turns, and the figures are medians over the turns. Where a package is missing, its line says so.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import tyro
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envs import make_vector

ROWS, TURNS = 16, 5
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
    """Measures environments alone."""

    specs: tuple[str, ...] = SPECS
    """Environments."""
    seconds: float = 5.0
    """CPU time for each figure, spread over the turns."""


def stepping(envs: VectorEnv) -> Callable[[float], float]:
    """A function that steps for some CPU seconds and returns steps a second."""
    random = np.random.default_rng(0)
    envs.reset(seed=0)

    def rate(seconds: float) -> float:
        steps, begin = 0, time.process_time()
        while (elapsed := time.process_time() - begin) < seconds:
            envs.step(random.integers(envs.single_action_space.n, size=envs.num_envs))  # type: ignore[attr-defined]
            steps += envs.num_envs
        return steps / elapsed

    return rate


def plain(spec: str) -> VectorEnv | None:
    """The library's own environment, where there is one."""
    kind, _, rest = spec.partition(":")
    if kind != "gym":
        return None
    return SyncVectorEnv([lambda: gymnasium.make(rest.partition(",")[0], disable_env_checker=True)] * ROWS)


def measure(spec: str, seconds: float) -> dict[str, float] | str:
    """Steps a second of ours and of the plain one."""
    try:
        ours = make_vector(spec, ROWS)
    except ImportError as error:
        return str(error)
    batches = {"steps_per_second": ours} | ({"plain": other} if (other := plain(spec)) else {})
    rates = {name: stepping(envs) for name, envs in batches.items()}
    figures: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(TURNS):
        for name, rate in rates.items():
            figures[name].append(rate(seconds / TURNS))
    medians = {name: float(np.median(values)) for name, values in figures.items()}
    report = {name: float(round(value)) for name, value in medians.items()}
    if "plain" in medians:
        report["of_plain"] = round(medians["steps_per_second"] / medians["plain"], 2)
    for envs in batches.values():
        envs.close()
    return report


def main(options: Options) -> dict:
    """Measures and returns the figures."""
    figures = {spec: measure(spec, options.seconds) for spec in options.specs}
    return {"benchmark": "adapters", "cores": os.cpu_count(), "rows": ROWS, "environments": figures}


if __name__ == "__main__":
    json.dump(main(tyro.cli(Options)), sys.stdout, indent=2)
    print()
