"""How fast the rooms level runs on one core, its scores by an oracle and at random, and the memory that it asks for.

    python -m benchmarks.environment [--num-envs 32] [--episodes 16384]

Speed is that of `RoomsVectorEnv.step`, rendering included, in agent steps a second: the median of short stretches, for
a random and for the oracle's player, all variants in turns.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import run
from envs import prepare
from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, memory_spans, oracle_actions

ROOT = Path(__file__).resolve().parent.parent
STEPS = 360


@dataclass
class Options:
    num_envs: int = 16
    """Environments in the batch whose speed is measured."""
    episodes: int = 4096
    """Random episodes whose mean score is measured."""


def speeds(num_envs: int, oracle: bool) -> dict[str, int]:
    """Agent steps a second by variant; choosing the actions is not counted."""
    envs = {name: RoomsVectorEnv(num_envs, config) for name, config in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in envs}
    random = np.random.default_rng(0)
    for env in envs.values():
        env.reset(seed=0)
    for _ in range(STEPS):
        for name, env in envs.items():
            actions = oracle_actions(env) if oracle else random.integers(0, 9, num_envs)
            begin = time.perf_counter()
            env.step(actions)
            seconds[name].append(time.perf_counter() - begin)
    stretches = {name: np.reshape(values, (-1, 10)).mean(axis=1) for name, values in seconds.items()}
    return {name: round(num_envs / float(np.median(values))) for name, values in stretches.items()}


def score(config: RoomsConfig, episodes: int, oracle: bool) -> dict[str, float]:
    """Mean score, its standard error, and choices an episode; images are tiny, because they are not used."""
    blind = RoomsConfig(**{**vars(config), "image_height": 8, "image_width": 8, "hud": False})
    env, random, total = RoomsVectorEnv(episodes, blind), np.random.default_rng(0), np.zeros(episodes)
    env.reset(seed=0)
    for _ in range(blind.episode_steps):
        _, reward, _, _, infos = env.step(oracle_actions(env) if oracle else random.integers(0, 9, episodes))
        total += reward
    choices = {name: round(float(infos[name].mean()), 3) for name in ("correct_choices", "wrong_choices")}
    error = float(total.std() / np.sqrt(episodes))
    return {"score": round(float(total.mean()), 3), "standard_error": round(error, 3), **choices}


def start_seconds() -> dict[str, float]:
    """Seconds from starting Python to a compiled environment, with an empty cache and with a full one."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from envs import prepare; prepare('rooms:full')"]
        for name in ("cold", "cached"):
            begin = time.perf_counter()
            subprocess.run(command, cwd=ROOT, env={**os.environ, "NUMBA_CACHE_DIR": folder}, check=True)
            seconds[name] = round(time.perf_counter() - begin, 2)
    return seconds


def describe(config: RoomsConfig, episodes: int, rates: dict[str, int]) -> dict[str, Any]:
    """The figures of a variant; spans are steps from the oracle's last look at an example to its choice about it."""
    spans = memory_spans(RoomsVectorEnv(32, config), RoomsVectorEnv(32, config))
    return {
        "image": [config.image_height, config.image_width],
        "steps_per_second": rates,
        "frames_per_step": config.action_repeat,
        "episode_steps": config.episode_steps,
        "memory_span": {"least": int(spans.min()), "median": int(np.median(spans)), "most": int(spans.max())},
        "oracle": score(config, 64, oracle=True),
        "random": score(config, episodes, oracle=False),
    }


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    prepare("rooms:full")
    rates = {player: speeds(options.num_envs, player == "oracle") for player in ("random", "oracle")}
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "num_envs": options.num_envs,
        "start_seconds": start_seconds(),
    } | {
        name: describe(config, options.episodes, {player: each[name] for player, each in rates.items()})
        for name, config in VARIANTS.items()
    }


if __name__ == "__main__":
    run(main, Options)
