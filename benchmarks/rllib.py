"""The same IMPALA with an LSTM in RLlib and here: agent steps a second with learning, and the ratio.

    python -m venv rllib
    rllib/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0
    rllib/bin/pip install 'ray[rllib]==2.60.0' numba==0.68.1 dm-env==1.6
    python -m benchmarks.rllib --python rllib/bin/python [--as-it-comes] [--single] [--torso deep]

RLlib requires another gymnasium, hence a virtual environment of its own; its half is benchmarks/peers/rllib_impala.py.
Each system runs with several numbers of environments a process, and its best counts; starting and the first updates do
not. docs/log.md says what is equal in both and what is not. CPU time is that of all processes (Linux only).
"""

import dataclasses
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors import ActorsConfig
from benchmarks.common import cpu_seconds, iterate, local_ray, run
from envs import prepare
from training.config import RunConfig
from training.factories import make_agent, make_learner, make_pool
from training.presets import make_preset

PEER = Path(__file__).resolve().parent / "peers" / "rllib_impala.py"


@dataclass
class Options:
    python: Path
    """Interpreter of the virtual environment that has RLlib."""
    env: str = "rooms:full"
    torso: str = "shallow"
    """Image encoder: IMPALA's shallow one, so that the system dominates, or deep, which takes most of the CPU time."""
    single: bool = False
    """RLlib gets single environments, which it steps one after the other, as it does with any gymnasium id."""
    as_it_comes: bool = False
    """RLlib with its own choices and its own network; --torso, --single and --rllib-learners then have no effect on
    it."""
    unroll_length: int = 100
    batch: int = 1600
    """Steps of an update."""
    actors: int = 2
    """Processes that act."""
    envs: tuple[int, ...] = (4, 8, 16)
    """Environments of each of them; all are tried."""
    rllib_learners: int = 0
    """Processes that learn in RLlib; 0 learns in the driver."""
    seconds: float = 25.0
    """Time for each figure."""
    warm_up: int = 3
    """Updates before that."""


def our_config(options: Options, envs: int) -> RunConfig:
    """Our half as a run.

    Raises:
        ValueError: if a batch is not a whole number of unrolls.
    """
    unrolls, rest = divmod(options.batch, envs * options.unroll_length)
    if rest or not unrolls:
        expected = f"a multiple of {envs} environments x {options.unroll_length} steps"
        raise ValueError(f"batch: expected {expected}, got {options.batch}")
    config = make_preset("paper", "lstm")
    return dataclasses.replace(
        config,
        env=options.env,
        unrolls_per_update=unrolls,
        agent=dataclasses.replace(config.agent, torso=options.torso),
        actors=ActorsConfig(num_actors=options.actors, envs_per_actor=envs, unroll_length=options.unroll_length),
    )


def rates(reports: list[tuple[float, float, float]]) -> tuple[int, float]:
    """Steps a second and CPU milliseconds a step, between the first and the last report of steps, time and CPU time."""
    steps, seconds, cpu = (last - first for first, last in zip(reports[0], reports[-1]))
    return round(steps / seconds), round(1000 * cpu / steps, 3)


def measure_ours(options: Options, envs: int) -> tuple[int, float]:
    """Our `rates`, on the Ray cluster that this process is connected to."""
    config = our_config(options, envs)
    learner, steps = make_learner(config, make_agent(config)), 0
    with make_pool(config, 0, local=False) as pool:
        pool.publish(learner.weights(), learner.version)
        for _ in range(options.warm_up):
            iterate(pool, learner, config.unrolls_per_update)
        reports = [(0.0, time.perf_counter(), cpu_seconds())]
        while time.perf_counter() - reports[0][1] < options.seconds:
            steps += iterate(pool, learner, config.unrolls_per_update)
            reports.append((steps, time.perf_counter(), cpu_seconds()))
    return rates(reports)


def measure_rllib(options: Options) -> dict[int, tuple[int, float]]:
    """The `rates` of RLlib by environments of an actor. Ends the program if its interpreter is missing or fails."""
    if not options.python.is_file():
        raise SystemExit(f"python: expected an interpreter with RLlib (see --help), got {options.python}")
    command = [str(options.python), str(PEER), json.dumps({**vars(options), "python": str(options.python)})]
    environment = {**os.environ, "PYTHONPATH": str(PEER.parents[2])}
    reports: dict[int, list[tuple[float, float, float]]] = {envs: [] for envs in options.envs}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("{"):
                report = json.loads(line)
                reports[report["envs"]].append((report["steps"], time.perf_counter(), cpu_seconds()))
    if process.returncode:
        raise SystemExit(f"{options.python} {PEER} ended with status {process.returncode}")
    return {envs: rates(each[max(0, options.warm_up - 1) :]) for envs, each in reports.items()}


def main(options: Options) -> dict[str, Any]:
    """Measures both and returns the figures."""
    for envs in options.envs:
        our_config(options, envs)
    prepare(options.env)
    found = {"rllib": measure_rllib(options)}
    with local_ray(options.actors + 2):
        found["ours"] = {envs: measure_ours(options, envs) for envs in options.envs}
    speeds, cpu = (
        {name: {envs: pair[i] for envs, pair in each.items()} for name, each in found.items()} for i in (0, 1)
    )
    ratios: dict[Any, float] = {envs: round(speeds["ours"][envs] / speeds["rllib"][envs], 2) for envs in options.envs}
    best = max(speeds["ours"].values()) / max(speeds["rllib"].values())
    return {
        **{field: value for field, value in vars(options).items() if field != "python"},
        "steps_per_second": speeds,
        "cpu_ms_a_step": cpu,
        "ours_over_rllib": {**ratios, "best": round(best, 2)},
    }


if __name__ == "__main__":
    run(main, Options)
