"""Every benchmark runs from its command line to its JSON object with the smallest sizes it takes.

What the figures mean is tested beside this file; here only that no benchmark stops working unnoticed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.cli import ENVIRONMENT, TINY, frames

ROOT = Path(__file__).parents[2]
RAY = ("kill_driver", "learners", "nodes", "rllib", "scaling", "soak", "system")
SMALLEST = {
    "adapters": "--seconds 0.01 --specs rooms:small diagnostic:recall",
    "core": "--seconds 0.01 --turns 1 --batch 1 --plot {folder}/core.svg",
    "curves": "{folder}/curves.svg {folder}/run",
    "environment": "--num-envs 2 --episodes 8",
    "kill_driver": "--kills 2",
    "learners": "--updates 2",
    "nodes": "--without-seconds 2",
    "recall": "{folder}/recall --seeds 0 --updates 2 --processes 1",
    "rllib": "--python {folder}/rllib --envs 2 --unroll-length 16 --batch 64 --seconds 1 --warm-up 1",
    "scaling": "--presets cpu --gpus 1 --seconds 0.1 --nodes 1",
    "soak": "--minutes 0.5 --kill-seconds 5 --learners 2",
    "system": "--seconds 0.2 --actors 1 --learners 1 --turns 1 --updates 1",
    "text": "--corpus folder --path {folder}/corpus --tokens bytes --seeds 0 --steps 1 --out {folder}/text",
}
TOO_SHORT = {"return does not rise"}
"""Checks of the endurance benchmarks that need more time than a test has."""
RLLIB = """#!/bin/sh
for steps in 1 2 3; do echo "{\\"envs\\": 2, \\"steps\\": $steps}"; sleep 0.1; done
"""
"""Stands in for RLlib's half, which needs an environment of its own."""


def benchmark(name: str, folder: Path) -> dict[str, Any]:
    """What a benchmark prints, run as its documentation says."""
    words = SMALLEST[name].format(folder=folder).split()
    script = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=800, env=ENVIRONMENT)
    printed = json.loads(ended.stdout) if ended.stdout else {}
    assert ended.returncode == bool(printed.get("failed")), f"{ended.stderr}\n{ended.stdout}"
    return printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=pytest.mark.ray if path.stem in RAY else ())
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
    ],
)
def test_every_benchmark_runs_with_its_smallest_sizes(name: str, tmp_path: Path) -> None:
    if name == "curves":
        launch = "from commands import main; main()", "launch", "--local", "--run", str(tmp_path / "run"), *TINY
        subprocess.run([sys.executable, "-c", *launch, f"--frames={frames(30)}"], check=True, env=ENVIRONMENT)
    (tmp_path / "rllib").write_text(RLLIB)
    (tmp_path / "rllib").chmod(0o755)
    (tmp_path / "corpus").write_text("".join(f"line {index}\n" for index in range(3000)))
    printed = benchmark(name, tmp_path)
    assert printed
    assert set(printed.get("failed", ())) <= TOO_SHORT
