"""Other systems beside ours on the same level: agent steps a second with learning, CPU time a step, and our ratios.

RLlib's IMPALA (with our network, and with its defaults), Sample Factory's asynchronous PPO with V-trace, and CleanRL's
PPO with a Transformer-XL (https://github.com/vwxyzjn/cleanrl). Each has a virtual environment of its own, because they
require other versions of gymnasium. A system whose interpreter is not given is left out.

    python -m venv rllib; python -m venv sf; python -m venv trxl
    for each of them: pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0
    rllib/bin/pip install 'ray[rllib]==2.60.0' numba==0.68.1 dm-env==1.6
    sf/bin/pip install sample-factory==2.1.1 'wandb<0.20' numba==0.68.1 dm-env==1.6
    trxl/bin/pip install memory-gym==1.0.2 'einops<0.8' 'minigrid<3' 'tyro<0.9' tensorboard numba==0.68.1 dm-env==1.6
    python -m benchmarks.peers --rllib rllib/bin/python --sample-factory sf/bin/python \
        --ppo-trxl cleanrl/cleanrl/ppo_trxl/ppo_trxl.py --ppo-trxl-python trxl/bin/python

The systems take turns, and the figures are medians over them. In a turn each starts anew, learns for a while, and is
then measured, with several numbers of environments, of which its best counts. The files in benchmarks/foreign/, which
these interpreters run, say what is equal and what is not. CPU time is that of all processes (Linux only).
"""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from actors import ActorsConfig
from agent.core.fields import Precision
from benchmarks.common import cpu_seconds, local_ray, ray_psutil, require_least, rounded, run
from envs import prepare
from storage.run import Run
from training.config import RunConfig
from training.presets import make_preset
from training.trainer import Trainer

Steps = Generator[int, None, None]
"""The number of steps learned from so far, after each update, until it is closed."""


@dataclass
class Options:
    rllib: Path | None = None
    """Interpreter of the virtual environment that has RLlib."""
    sample_factory: Path | None = None
    """Interpreter of the one that has Sample Factory 2."""
    ppo_trxl: Path | None = None
    """CleanRL's file ppo_trxl.py, unchanged and beside its pom_env.py."""
    ppo_trxl_python: Path | None = None
    """Interpreter of the virtual environment that has what this file imports."""
    env: str = "rooms:full"
    torso: Literal["shallow", "deep"] = "shallow"
    """Image encoder: IMPALA's shallow one, so that the system dominates, or deep, which takes most of the CPU time."""
    precision: Precision = "auto"
    """Precision of our system; the others compute in float32."""
    unroll_length: int = 100
    batch: int = 1600
    """Steps of an update."""
    actors: int = 2
    """Processes that act."""
    envs: tuple[int, ...] = (8, 16)
    """Environments of each of them; all are tried."""
    turns: int = 3
    seconds: float = 12.0
    """Time for each figure in each turn, and at least one update."""
    warm_up: float = 8.0
    """Seconds before that, after the first update."""


def our_config(options: Options, envs: int) -> RunConfig:
    """Our half as a run. Raises a ValueError if a batch is not a whole number of unrolls."""
    unrolls, rest = divmod(options.batch, envs * options.unroll_length)
    if rest or not unrolls:
        sizes = f"{envs} environments x {options.unroll_length} steps"
        raise ValueError(f"batch: expected a multiple of {sizes}, got {options.batch}")
    config = make_preset("paper", "lstm")
    return dataclasses.replace(
        config,
        env=options.env,
        unrolls_per_update=unrolls,
        agent=dataclasses.replace(config.agent, torso=options.torso),
        learner=dataclasses.replace(config.learner, precision=options.precision),
        actors=ActorsConfig(
            num_actors=options.actors,
            envs_per_actor=envs,
            unroll_length=options.unroll_length,
            precision=options.precision,
        ),
    )


def ours(options: Options, envs: int) -> Steps:
    """Our system, on a Ray cluster of its own."""
    with local_ray(options.actors + 2), ExitStack() as stack:
        trainer = Trainer(our_config(options, envs), Run(""), local=False)
        trainer.start_workers(stack)
        trainer.publish()
        while True:
            trainer.update()
            yield trainer.step


def peer(half: str, python: Path, options: Options, envs: int, **fields: Any) -> Steps:
    """Another system: `python` runs benchmarks/foreign/HALF.py, which prints a line of JSON after each update.

    Ends the program if it ends by itself.
    """
    sizes = {
        "env": options.env,
        "torso": options.torso,
        "unroll_length": options.unroll_length,
        "batch": options.batch,
        "actors": options.actors,
    }
    sent = json.dumps({**sizes, "envs": envs, **fields})
    command = [str(python.absolute()), "-m", f"benchmarks.foreign.{half}", sent]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # for what it writes
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    yield json.loads(line)["steps"]
        finally:
            end(process)
    raise SystemExit(f"{half}: expected updates until it is measured, but it ended (its output is above): {command}")


def end(process: subprocess.Popen[str], seconds: float = 20.0) -> None:
    """Asks a process to end, waits, and kills what is left of it and its descendants."""
    psutil = ray_psutil()
    descendants = []
    if process.poll() is None:
        descendants = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)  # reads what it prints, so that it does not wait for that
    process.kill()
    _, still_alive = psutil.wait_procs(descendants, seconds)
    for left in still_alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    psutil.wait_procs(descendants, seconds)


class Mark(NamedTuple):
    """How far a system is after an update: steps learned from, the time, and CPU seconds of all processes."""

    steps: int
    seconds: float
    cpu: float


def measure(progress: Steps, options: Options) -> tuple[float, float]:
    """Steps a second and CPU milliseconds a step, from the last update of the warm-up to the first after the time."""
    with contextlib.closing(progress):
        for count, steps in enumerate(progress):
            now = Mark(steps, time.perf_counter(), cpu_seconds())
            if count == 0:
                begin = now
                first = now
            elif now.seconds - begin.seconds <= options.warm_up:
                first = now
            elif now.seconds - first.seconds >= options.seconds:
                break
    done = now.steps - first.steps
    return done / (now.seconds - first.seconds), 1000 * (now.cpu - first.cpu) / done


def find_systems(options: Options) -> dict[str, Callable[[int], Steps] | None]:
    """Functions that start a system with a number of environments, by name; None for those without an interpreter.

    Ends the program if a file is missing, or one of the two options of ppo_trxl.
    """
    for name, path in vars(options).items():
        if isinstance(path, Path) and not path.is_file():
            raise SystemExit(f"--{name.replace('_', '-')}: expected a file (see --help), got {path}")
    if bool(options.ppo_trxl) != bool(options.ppo_trxl_python):
        raise SystemExit("--ppo-trxl and --ppo-trxl-python: expected both or neither, got one of them")
    peers: dict[str, tuple[str, Path | None, dict[str, Any]]] = {
        "rllib": ("rllib", options.rllib, {"defaults": False}),
        "rllib_defaults": ("rllib", options.rllib, {"defaults": True}),
        "sample_factory": ("sample_factory", options.sample_factory, {}),
        "ppo_trxl": ("ppo_trxl", options.ppo_trxl_python, {"file": str(Path(options.ppo_trxl or "").absolute())}),
    }
    found: dict[str, Any] = {"ours": functools.partial(ours, options)}
    for name, (half, python, fields) in peers.items():
        found[name] = functools.partial(peer, half, python, options, **fields) if python else None
    return found


def main(options: Options) -> dict[str, Any]:
    """Measures all in turns and returns the figures."""
    require_least("turns", options.turns, 1)
    found = find_systems(options)
    systems = {name: start for name, start in found.items() if start}
    for envs in options.envs:
        our_config(options, envs)  # raises before the work begins
    prepare(options.env)

    measured: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(options.turns):
        for envs in options.envs:
            for name, start in systems.items():
                measured[name, envs].append(measure(start(envs), options))

    # Medians over the turns, by system and number of environments.
    speeds: dict[str, dict[int, float]] = {}
    cpu: dict[str, dict[int, float]] = {}
    for (name, envs), of_turns in measured.items():
        speeds.setdefault(name, {})[envs] = statistics.median(rate for rate, _ in of_turns)
        cpu.setdefault(name, {})[envs] = statistics.median(cost for _, cost in of_turns)
    best = {name: max(by_envs.values()) for name, by_envs in speeds.items()}
    return {
        **{name: value for name, value in vars(options).items() if not isinstance(value, Path | None)},
        "left_out": [name for name in found if name not in systems],
        "steps_per_second": {name: rounded(each) for name, each in speeds.items()},
        "cpu_ms_a_step": {name: rounded(each, digits=3) for name, each in cpu.items()},
        "ours_over": {name: round(best["ours"] / best[name], 2) for name in systems if name != "ours"},
    }


if __name__ == "__main__":
    run(main, Options)
