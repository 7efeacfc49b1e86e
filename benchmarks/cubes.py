"""Which targets of Color-Cubes an agent takes, by the cell where they are: where it fails, and whether memory is why.

    python -m benchmarks.cubes runs/NAME [RUN ...] [--env diagnostic:color-cubes] [--targets 4000]

For each run, and for the oracle: the share of targets that were taken, and the same by the cell of the grid in which
the target was at the end, with the number of targets there; null where there was none. Counted are whole episodes,
equally many of each environment, with --targets or more in all. An agent that does not remember fails everywhere, one
that never learned a way in the cells at its end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from actors.actor import Player
from actors.evaluation import ScriptedActor
from benchmarks.common import require_least, run
from envs import make_vector
from envs.rewriting import ColorCubes
from storage.run import Run
from training.evaluation import load_trained_agent, make_evaluator

ROWS = 64
Counts = NDArray[np.int64]
"""[rows, columns] of the grid."""


@dataclass
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    env: str = "diagnostic:color-cubes"
    targets: int = 4000
    seed: int = 0


def measure(options: Options) -> dict[str, Any]:
    require_least("targets", options.targets, 1)
    torch.set_num_threads(1)
    oracle = ScriptedActor(make_vector(options.env, ROWS), "oracle", options.seed, options.env)
    found: dict[str, Any] = {"oracle": _taken(oracle, options.targets)}
    for path in options.runs:
        trained = load_trained_agent(Run(path))
        player = make_evaluator(trained.config, trained.agent, ROWS, options.seed, True, options.env, film=False)
        found[str(path)] = _taken(player, options.targets)
    return found


def _taken(player: Player, targets: int) -> dict[str, Any]:
    """The share of targets that are taken, of all and by cell, and their numbers.

    The first episodes of each environment count, equally many: the first to end would be the short ones.
    """
    cubes = player.envs
    if not isinstance(cubes, ColorCubes):
        raise ValueError(f"--env: expected diagnostic:color-cubes, got {player.name}")
    rows = np.arange(cubes.num_envs)
    shape = (cubes.num_envs, cubes.size, cubes.size)
    asked = np.zeros(shape, int)  # in the episode of each environment that is not over yet
    taken = np.zeros(shape, int)
    episodes: list[list[tuple[Counts, Counts]]] = [[] for _ in rows]
    total_asked = np.zeros(shape[1:], int)
    total_taken = np.zeros(shape[1:], int)
    whole = 0  # episodes of each environment in the totals
    while total_asked.sum() < targets:
        found_before = cubes.found.copy()
        cell = cubes.cell[rows, cubes.target]
        place = (rows, cubes.top + cell // cubes.area, cubes.left + cell % cubes.area)
        player.play()
        is_taken = cubes.found > found_before
        taken[place] += is_taken
        asked[place] += is_taken | player.over
        for row in np.flatnonzero(player.over):
            episodes[row].append((asked[row].copy(), taken[row].copy()))
            asked[row] = 0
            taken[row] = 0
        if all(len(of_row) > whole for of_row in episodes):
            for of_row in episodes:
                asked_there, taken_there = of_row[whole]
                total_asked += asked_there
                total_taken += taken_there
            whole += 1
    player.close()
    return {
        "targets": int(total_asked.sum()),
        "episodes": whole * cubes.num_envs,
        "share": round(float(total_taken.sum() / total_asked.sum()), 3),
        "by cell": shares(total_asked, total_taken),
        "targets by cell": total_asked.tolist(),
    }


def shares(asked: Counts, taken: Counts) -> list[list[float | None]]:
    """The share of targets that were taken in each cell, None where there was none."""
    table: list[list[float | None]] = []
    for asked_of_row, taken_of_row in zip(asked.tolist(), taken.tolist()):
        row: list[float | None] = []
        for number, hits in zip(asked_of_row, taken_of_row):
            row.append(round(hits / number, 2) if number else None)
        table.append(row)
    return table


if __name__ == "__main__":
    run(measure, Options)
