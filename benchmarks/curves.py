"""Learning curves of finished runs as one picture: correct choices and return against environment frames.

    python -m benchmarks.curves docs/cpu.svg runs/compressive-0 runs/lstm-0 ...     (needs: pip install -e '.[plot]')

Runs of the same core share a color. The result has the frames from which on each run kept 85 % correct choices.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.common import picture, run
from learner.metrics import read_metrics
from training.config import core_name, read_config
from training.run import Run

COLORS = {"compressive": "C0", "transformer-xl": "C1", "lstm": "C2", "memoryless": "C7"}
THRESHOLD = 85


@dataclass
class Options:
    picture: tyro.conf.Positional[Path]
    """File to write, .svg or .png."""
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""


def main(options: Options) -> dict[str, Any]:
    """Draws the picture and returns the frames by run, None where the threshold was not kept."""
    reached: dict[str, float | None] = {}
    labels: set[str] = set()
    with picture(options.picture, columns=2) as (left, right):
        for folder in options.runs:
            core = core_name(read_config(Run(folder)))
            rows = [row for row in read_metrics(folder) if row.get("episode/correct_choices") is not None]
            frames = [row["learner/frames"] / 1e6 for row in rows]
            correct = [100 * row["episode/correct_choices"] for row in rows]
            style = {"color": COLORS.get(core), "linewidth": 1.2}
            left.plot(frames, correct, label=None if core in labels else core, **style)
            right.plot(frames, [row["episode/return"] for row in rows], **style)
            labels.add(core)
            first = max((index + 1 for index, value in enumerate(correct) if value < THRESHOLD), default=0)
            reached[folder.name] = round(frames[first] * 1e6) if first < len(frames) else None
        left.axhline(50, color="0.7", linewidth=0.8, linestyle=":")
        left.set(xlabel="environment frames (millions)", ylabel="correct choices (%)", ylim=(40, 102))
        right.set(xlabel="environment frames (millions)", ylabel="return of an episode")
        left.legend(frameon=False)
    return {"frames_to_85_percent": reached}


if __name__ == "__main__":
    run(main, Options)
