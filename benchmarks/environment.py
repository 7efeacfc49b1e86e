"""How fast the rooms level runs on one core and what an oracle and random actions score on it. Prints one JSON object.

Speed is that of `RoomsVectorEnv.step`, rendering included, in agent steps a second: the median of short stretches, for
a random and for the oracle's player. Learning is not measured here.

    python benchmarks/environment.py
    python benchmarks/environment.py --num-envs 32 --episodes 16384
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, oracle_actions, warm_up  # noqa: E402


def speed(config: RoomsConfig, num_envs: int, oracle: bool, steps: int = 360) -> float:
    """Agent steps a second of one process; choosing the actions is not counted."""
    env = RoomsVectorEnv(num_envs, config)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(steps):
        actions = oracle_actions(env) if oracle else rng.integers(0, 9, num_envs)
        begin = time.perf_counter()
        env.step(actions)
        seconds.append(time.perf_counter() - begin)
    return num_envs / float(np.median(np.mean(np.reshape(seconds, (-1, 10)), axis=1)))


def score(config: RoomsConfig, episodes: int, oracle: bool) -> dict[str, float]:
    """Mean score, its standard error, and choices an episode; the picture is made tiny, for it is not looked at."""
    blind = RoomsConfig(**{**vars(config), "image_height": 8, "image_width": 8, "hud": False})
    env = RoomsVectorEnv(episodes, blind, copy=False)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    total = np.zeros(episodes)
    for _ in range(blind.episode_steps):
        actions = oracle_actions(env) if oracle else rng.integers(0, 9, episodes)
        _, reward, _, _, infos = env.step(actions)
        total += reward
    return {
        "score": round(float(total.mean()), 3),
        "standard_error": round(float(total.std() / np.sqrt(episodes)), 3),
        "correct_choices": round(float(infos["correct_choices"].mean()), 3),
        "wrong_choices": round(float(infos["wrong_choices"].mean()), 3),
    }


def compile_seconds() -> dict[str, float]:
    """Seconds from starting Python to a warm environment, with an empty cache and with a full one."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", "from envs.rooms import warm_up; warm_up()"],
                cwd=ROOT,
                env={**os.environ, "NUMBA_CACHE_DIR": folder},
                check=True,
            )
            out[name] = round(time.perf_counter() - begin, 2)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=16, help="environments in the batch whose speed is measured")
    parser.add_argument("--episodes", type=int, default=4096, help="random episodes of which the score is the mean")
    arguments = parser.parse_args()
    warm_up()
    report: dict[str, object] = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "num_envs": arguments.num_envs,
        "start_seconds": compile_seconds(),
    }
    for name, config in VARIANTS.items():
        report[name] = {
            "image": [config.image_height, config.image_width],
            "steps_per_second": {
                "random": round(speed(config, arguments.num_envs, oracle=False)),
                "oracle": round(speed(config, arguments.num_envs, oracle=True)),
            },
            "frames_per_step": config.action_repeat,
            "oracle": score(config, 64, oracle=True),
            "random": score(config, arguments.episodes, oracle=False),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
