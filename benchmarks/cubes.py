"""Which targets of Color-Cubes an agent takes, by the cell where they are: where it fails, and whether memory is why.

    python -m benchmarks.cubes runs/NAME [RUN ...] [--env diagnostic:color-cubes] [--targets 4000]

For each run, and for the oracle: the share of targets that were taken, and the same by the cell of the grid in which
the target was at the end. An agent that does not remember fails everywhere, one that never learned a way in the cells
at its end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from actors.actor import Player
from actors.evaluation import ScriptedActor
from benchmarks.common import run
from envs import make_vector
from envs.rewriting import ColorCubes
from storage.run import Run
from training.evaluation import load_trained_agent, make_evaluator

ROWS = 64


@dataclass
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    env: str = "diagnostic:color-cubes"
    targets: int = 4000
    seed: int = 0


def measure(options: Options) -> dict[str, Any]:
    torch.set_num_threads(1)
    oracle = ScriptedActor(make_vector(options.env, ROWS), "oracle", options.seed, options.env)
    found: dict[str, Any] = {"targets": options.targets, "oracle": _taken(oracle, options.targets)}
    for path in options.runs:
        trained = load_trained_agent(Run(path))
        player = make_evaluator(trained.config, trained.agent, ROWS, options.seed, True, options.env, film=False)
        found[str(path)] = _taken(player, options.targets)
    return found


def _taken(player: Player, targets: int) -> dict[str, Any]:
    """The share of targets that are taken: of all, and by cell."""
    cubes = player.envs
    if not isinstance(cubes, ColorCubes):
        raise ValueError(f"env: expected diagnostic:color-cubes, got {player.name}")
    rows = np.arange(cubes.num_envs)
    asked = np.zeros((cubes.size, cubes.size), int)
    taken = np.zeros_like(asked)
    while asked.sum() < targets:
        found_before = cubes.found.copy()
        cell = cubes.cell[rows, cubes.target]
        place = (cubes.top + cell // cubes.area, cubes.left + cell % cubes.area)
        player.play()
        is_taken = cubes.found > found_before
        np.add.at(taken, place, is_taken)
        np.add.at(asked, place, is_taken | player.over)
    player.close()
    by_cell = taken / np.maximum(asked, 1)
    return {"share": round(float(taken.sum() / asked.sum()), 3), "by cell": by_cell.round(2).tolist()}


if __name__ == "__main__":
    run(measure, Options)
