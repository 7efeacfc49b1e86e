"""Every benchmark runs from its command line to its JSON object with the smallest sizes that it accepts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fidelity import COLUMNS
from tests.commands.cli import ENVIRONMENT

ROOT = Path(__file__).parents[2]
RAY = ("kill_driver", "peers", "scaling", "soak", "system", "text")
SMALLEST = {
    "balanced": "bits --steps 4 --updates 1 --rows 2 --measured 2 --window 2",
    "causes": "pretrained/small --episodes 1 --plot {folder}/causes.svg",
    "cores": "--seconds 0.01 --turns 1 --cores gru compressive",
    "core": "--seconds 0.01 --turns 1 --batch 1 --plot {folder}/core.svg",
    "cubes": "--targets 20",
    "density": "storage",
    "digests": "--no-ray --only lstm",
    "environment": "--seconds 0.01 --specs rooms:small gym:tests.envs.odd:Many --levels small --episodes 8",
    "exported": "--steps 12 --rows 2 --cores gru compressive",
    "fidelity": "--traces {folder}/traces.csv",
    "kill_driver": "--kills 2",
    "oracle": "--episodes 2",
    "peers": "--rllib {folder}/python --sample-factory {folder}/python --ppo-trxl {folder}/python "
    "--ppo-trxl-python {folder}/python --envs 2 --unroll-length 16 --batch 64 --turns 1 --seconds 1 --warm-up 0",
    "reach": "--plot {folder}/reach.svg",
    "recall": "{folder}/recall --seeds 0 --updates 2 --processes 1",
    "resident": "--device cpu --preset cpu --env rooms:small --envs 64 --seconds 0.01 --check-steps 2",
    "scaling": "--presets cpu --gpus 1 --seconds 0.1",
    "soak": "--minutes 0.5 --kill-seconds 5 --learners 2",
    "system": "--seconds 0.2 --actors 1 --learners 1 2 --turns 1 --updates 1",
    "text": "--corpus folder --path {folder}/corpus --tokens bytes --seeds 0 --steps 1 --out {folder}/text",
}
TOO_SHORT = {"return by quarter", "growth: too short"}
"""Checks of the endurance benchmarks that need more time than a test has."""
PYTHON = """#!/bin/sh
steps=0; while :; do steps=$((steps + 64)); echo "{\\"steps\\": $steps}"; sleep 0.1; done
"""
"""Replaces the halves of other systems, which need environments of their own."""
TRACES = f"""{",".join(COLUMNS)}
one,0,,-232,-64,24.125,0,0,0,0,0,0,0
one,1,forward,-231.37,-64,24.125,0,0,0,45,0,0,0
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.ray] * (name in RAY)) for name in SMALLEST])
def test_every_benchmark_runs_with_its_smallest_sizes(name: str, tmp_path: Path) -> None:
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "traces.csv").write_text(TRACES)
    (tmp_path / "corpus").write_text("".join(f"line {index}\n" for index in range(3000)))
    script = [sys.executable, "-m", f"benchmarks.{name}", *SMALLEST[name].format(folder=tmp_path).split()]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=800, env=ENVIRONMENT)
    assert ended.stdout, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["benchmark"] == name
    assert ended.returncode == bool(printed.get("failed")), ended.stderr
    assert set(printed.get("failed", ())) <= TOO_SHORT, ended.stderr


def test_make_bench_runs_what_measures_speed_with_its_defaults() -> None:
    """Others measure something else, need a GPU or programs of their own, or write files."""
    listed = subprocess.run(
        ["make", "--dry-run", "--assume-old=venv", "bench"], cwd=ROOT, capture_output=True, text=True
    )
    (names,) = re.findall(r"for name in (.*?);", listed.stdout)
    assert sorted(names.split()) == ["core", "cores", "environment", "scaling", "system"]


def test_no_benchmark_is_left_out() -> None:
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert found == set(SMALLEST) | {"common", "fidelity_frames", "mutation"}


def test_the_page_of_benchmarks_lists_each_of_them() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert sorted(listed) == sorted(there - {"common", "fidelity_frames"})
