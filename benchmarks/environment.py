"""How fast environments are on one core, beside the plain library's; scores and memory of the rooms level.

    python -m benchmarks.environment [--seconds 5] [--episodes 4096]     (MiniGrid, POPGym: pip install -e '.[envs]')

Speed is in agent steps of random actions a second of CPU time, in batches of 16 in this process, rendering included.
"plain" is the library's own environment with its own observations, without any of our wrappers. Where a package is
missing, its line says so. "failed" names environments that do not exist.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from benchmarks.common import in_turns, require_least, rounded, run
from envs import make_vector
from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, memory_spans
from training.config import require_one_of

ROWS = 16
DRAWS = 1000
"""Random actions of all rows that are drawn for one environment; then they are repeated."""
SPECS = (
    *(f"rooms:{name}" for name in VARIANTS),
    "diagnostic:recall",
    "diagnostic:tmaze",
    "diagnostic:passive-tmaze",
    "diagnostic:repeat-previous",
    "diagnostic:visual-match",
    "diagnostic:key-to-door",
    "diagnostic:endless-tmaze",
    "diagnostic:association",
    "diagnostic:color-cubes",
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
    """Environments whose speed is measured."""
    seconds: float = 5.0
    """CPU time for each figure."""
    levels: tuple[str, ...] = tuple(VARIANTS)
    """Variants of the rooms level whose scores are measured."""
    episodes: int = 4096
    """Random episodes of each variant."""
    oracle_episodes: int = 64
    """Episodes of the oracle in each variant; all are equal except in those with delays and in transfer."""


def step(envs: VectorEnv) -> Callable[[], float]:
    """A function that makes a step in all environments and returns their number."""
    envs.reset(seed=0)
    # Drawn beforehand: to draw from a space takes longer than many a step.
    envs.action_space.seed(0)
    drawn = itertools.cycle([envs.action_space.sample() for _ in range(DRAWS)])

    def work() -> float:
        envs.step(next(drawn))
        return ROWS

    return work


def plain(spec: str) -> dict[str, VectorEnv]:
    """The library's own environment, where there is one."""
    kind, _, rest = spec.partition(":")
    name, _, _ = rest.partition(",")
    if kind != "gym":
        return {}
    make = [lambda: gymnasium.make(name, disable_env_checker=True)] * ROWS
    return {"plain": SyncVectorEnv(make)}


def speed(spec: str, seconds: float) -> dict[str, float]:
    """Steps a second of our environment and of the plain one. Raises as `make_vector`."""
    envs = {"steps_per_second": make_vector(spec, ROWS), **plain(spec)}
    rates = in_turns({name: step(each) for name, each in envs.items()}, seconds, clock=time.process_time)
    for each in envs.values():
        each.close()
    found = rounded(rates)
    if "plain" in rates:
        found["of_plain"] = round(rates["steps_per_second"] / rates["plain"], 2)
    return found


def score(config: RoomsConfig, episodes: int, oracle: bool) -> dict[str, float]:
    """Mean score, its standard error, and choices an episode; images are tiny, because they are not used."""
    blind = dataclasses.replace(config, image_height=8, image_width=8, hud=False)
    env = RoomsVectorEnv(episodes, blind)
    env.reset(seed=0)
    random = np.random.default_rng(0)
    total = np.zeros(episodes)
    for _ in range(blind.episode_steps):
        actions = env.oracle_actions() if oracle else random.integers(0, 9, episodes)
        _, reward, _, _, infos = env.step(actions)
        total += reward
    found = {
        "score": total.mean(),
        "standard_error": total.std() / np.sqrt(episodes),
        "correct_choices": infos["correct_choices"].mean(),
        "wrong_choices": infos["wrong_choices"].mean(),
    }
    return rounded(found, digits=3)


def describe(config: RoomsConfig, options: Options) -> dict[str, Any]:
    """The figures of a variant; spans are steps from the oracle's last look at an example to its choice about it."""
    spans = memory_spans(RoomsVectorEnv(32, config), RoomsVectorEnv(32, config))
    return {
        "episode_steps": config.episode_steps,
        "memory_span": {"least": int(spans.min()), "median": int(np.median(spans)), "most": int(spans.max())},
        "oracle": score(config, options.oracle_episodes, oracle=True),
        "random": score(config, options.episodes, oracle=False),
    }


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    for name in options.levels:
        require_one_of("--levels", name, VARIANTS)
    require_least("episodes", options.episodes, 1)
    require_least("oracle-episodes", options.oracle_episodes, 1)

    speeds: dict[str, dict[str, float] | str] = {}
    failed = []
    for spec in options.specs:
        try:
            speeds[spec] = speed(spec, options.seconds)
        except ImportError as error:
            speeds[spec] = str(error)
        except ValueError as error:  # there is no such environment
            speeds[spec] = str(error)
            failed.append(spec)
    levels = {name: describe(VARIANTS[name], options) for name in options.levels}
    return {"speed": speeds, "levels": levels, "failed": failed}


if __name__ == "__main__":
    run(main, Options)
