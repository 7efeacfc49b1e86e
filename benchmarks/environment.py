"""How fast the rooms level runs on one core, what an oracle and random actions score on it and how far back the oracle
must remember. Prints one JSON object.

Speed is that of `RoomsVectorEnv.step`, rendering included, in agent steps a second: the median of short stretches, for
a random and for the oracle's player, all variants in turns. Learning is not measured here.

    python benchmarks/environment.py
    python benchmarks/environment.py --num-envs 32 --episodes 16384
    python benchmarks/environment.py --sheet looks.png      # instead, a picture of 24 randomised looks
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
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, memory_spans, oracle_actions  # noqa: E402
from envs.rooms.level import ROOM_2  # noqa: E402


def speeds(configs: dict[str, RoomsConfig], num_envs: int, oracle: bool, steps: int = 360) -> dict[str, int]:
    """Agent steps a second of one process by variant, in turns; choosing the actions is not counted."""
    envs = {name: RoomsVectorEnv(num_envs, config) for name, config in configs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in envs}
    rng = np.random.default_rng(0)
    for env in envs.values():
        env.reset(seed=0)
    for _ in range(steps):
        for name, env in envs.items():
            actions = oracle_actions(env) if oracle else rng.integers(0, 9, num_envs)
            begin = time.perf_counter()
            env.step(actions)
            seconds[name].append(time.perf_counter() - begin)
    return {n: round(num_envs / float(np.median(np.mean(np.reshape(s, (-1, 10)), axis=1)))) for n, s in seconds.items()}


def score(config: RoomsConfig, episodes: int, oracle: bool) -> dict[str, float]:
    """Mean score, its standard error, and choices an episode; the picture is made tiny, for it is not looked at."""
    blind = RoomsConfig(**{**vars(config), "image_height": 8, "image_width": 8, "hud": False})
    env = RoomsVectorEnv(episodes, blind)
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


def spans(config: RoomsConfig) -> dict[str, int]:
    """Steps between the last look at an example and the first at the choice about it, of the oracle."""
    steps = memory_spans(config)
    return {"least": int(steps.min()), "median": int(np.median(steps)), "most": int(steps.max())}


def contact_sheet() -> Image.Image:
    """24 randomised looks, as seen from the start and, below, from the arrival in the second room; the first column is
    the level's own look."""
    start, arrival = [], []
    for config, members in ((VARIANTS["full"], 4), (VARIANTS["full-randomised"], 24)):
        env = RoomsVectorEnv(members, config)
        start.append(env.reset(seed=0)[0])
        env.state.room[:], env.state.x[:] = ROOM_2, env.level.arrival[0]
        arrival.append(env.set_state(env.get_state()))
    own, drawn = np.stack([start[0], arrival[0]], 1), np.stack([start[1], arrival[1]], 1)
    rows = np.concatenate([own[:, None], drawn.reshape(4, 6, *drawn.shape[1:])], 1)  # [4, 7, 2, H, W, 3]
    return Image.fromarray(rows.transpose(0, 2, 3, 1, 4, 5).reshape(4 * 2 * 72, 7 * 96, 3))


def compile_seconds() -> dict[str, float]:
    """Seconds from starting Python to a warm environment, with an empty cache and with a full one."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", "from envs.rooms import RoomsVectorEnv; RoomsVectorEnv(1).reset()"],
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
    parser.add_argument("--sheet", type=Path, help="write a picture of randomised looks there and measure nothing")
    arguments = parser.parse_args()
    if arguments.sheet:
        contact_sheet().save(arguments.sheet)
        return
    RoomsVectorEnv(1).reset()
    report: dict[str, object] = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "num_envs": arguments.num_envs,
        "start_seconds": compile_seconds(),
    }
    fast = {player: speeds(VARIANTS, arguments.num_envs, player == "oracle") for player in ("random", "oracle")}
    for name, config in VARIANTS.items():
        report[name] = {
            "image": [config.image_height, config.image_width],
            "steps_per_second": {player: by_variant[name] for player, by_variant in fast.items()},
            "frames_per_step": config.action_repeat,
            "episode_steps": config.episode_steps,
            "memory_span": spans(config),
            "oracle": score(config, 64, oracle=True),
            "random": score(config, arguments.episodes, oracle=False),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
