"""Learning curves of finished runs as one picture: correct choices and return against environment frames.

    python benchmarks/curves.py docs/cpu.svg runs/compressive-0 runs/lstm-0 ...     (needs: pip install -e '.[plot]')

Runs of the same core share a colour; the core is read from each run's configuration. Prints one JSON object with the
frames at which each run first kept 85 % correct choices.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import tyro

from learner.metrics import read_metrics
from training.config import core_name, read_config
from training.run import Run

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {"compressive": "C0", "transformer-xl": "C1", "lstm": "C2", "memoryless": "C7"}
THRESHOLD = 0.85


@dataclass
class Options:
    """Draws learning curves."""

    picture: tyro.conf.Positional[Path]
    """File to write, .svg or .png."""
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""


def main(options: Options) -> dict[str, float | None]:
    """Draws the picture and returns, by run, the frames at which correct choices first stayed above the threshold."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    reached: dict[str, float | None] = {}
    named: set[str] = set()
    for run in options.runs:
        core = core_name(read_config(Run(run)))
        rows = [row for row in read_metrics(run) if row.get("episode/correct_choices") is not None]
        frames = [row["learner/frames"] / 1e6 for row in rows]
        correct = [100 * row["episode/correct_choices"] for row in rows]
        label = core if core not in named else None
        named.add(core)
        left.plot(frames, correct, color=COLOURS.get(core), label=label, linewidth=1.2)
        right.plot(frames, [row["episode/return"] for row in rows], color=COLOURS.get(core), linewidth=1.2)
        below = [index for index, value in enumerate(correct) if value < 100 * THRESHOLD]
        first = below[-1] + 1 if below else 0
        reached[run.name] = round(frames[first] * 1e6) if first < len(frames) else None
    left.axhline(50, color="0.7", linewidth=0.8, linestyle=":")
    left.set(xlabel="environment frames (millions)", ylabel="correct choices (%)", ylim=(40, 102))
    right.set(xlabel="environment frames (millions)", ylabel="return an episode")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.picture, metadata={"Date": None} if options.picture.suffix == ".svg" else None)
    return reached


if __name__ == "__main__":
    json.dump({"benchmark": "curves", "frames_to_85_percent": main(tyro.cli(Options))}, sys.stdout, indent=2)
    print()
