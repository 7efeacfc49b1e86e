"""Several tasks in one run, from `launch` to `evaluate`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import envs
from envs.dmlab30 import LEVELS
from storage.metrics import read_metrics
from tests.commands.cli import Commands
from tests.envs.lab import Lab

SHORT = "episode_frames=64"
TWO = f"rooms:small,{SHORT},rooms:small,{SHORT},spin_seconds=4"
TINY = ["--core=lstm", "--agent.torso=small", "--agent.torso-size=8", "--agent.core.model-size=8"]
TINY += ["--actors.envs-per-actor=1", "--eval-episodes=1", "--log-every=1", "--video-episodes=1"]


def test_two_tasks_from_launch_to_evaluate(tmp_path: Path, cli: Commands) -> None:
    folder = tmp_path / "run"
    first, second = envs.tasks(TWO)
    options = ["--actors.num-actors=3", "--actors.unroll-length=20", "--frames=400"]
    printed = cli.run("launch", "--local", "--run", folder, "--env", TWO, *TINY, *options)
    assert "2 tasks" in printed
    assert "over 2 of 2 tasks" in printed

    # Metrics: the return is the mean over tasks.
    rows = read_metrics(folder)
    assert (rows[0]["tasks/seen"], rows[0]["tasks/count"]) == (1, 2)
    assert rows[-1]["tasks/seen"] == 2
    means = [rows[-1][f"{task}/return"] for task in (first, second)]
    assert rows[-1]["episode/return"] == pytest.approx(sum(means) / 2)

    # Each task is in the evaluation and in its table.
    summary = json.loads((folder / "evaluation.json").read_text())
    assert [(part["environment"], part["episodes"]) for part in summary["tasks"]] == [(first, 1), (second, 1)]
    for table in (printed, cli.run("evaluate", folder, "--episodes", "1")):
        assert [len(re.findall(rf"^ +{re.escape(task)} ", table, re.M)) for task in (first, second)] == [1, 1]

    # Other commands. No gymnasium environment has several tasks, so the example cannot play the exported agent.
    assert "over 2 of 2 tasks" in cli.run("status", folder)
    assert "play with it" not in cli.run("export", folder, tmp_path / "agent.pt2")
    cli.run("launch", "--local", "--resume", folder, "--frames=500", "--video-episodes=0")
    assert read_metrics(folder)[-1]["tasks/seen"] == 2


def test_all_of_dmlab30(lab: Any, tmp_path: Path, cli: Commands) -> None:
    """Thirty actors, one a level, with instructions; then the test levels, two of which are held out."""
    folder = tmp_path / "run"
    env = "dmlab:dmlab30,image_height=24,image_width=32,cache_gigabytes=0,processes=0"
    options = ["--actors.num-actors=30", "--actors.unroll-length=8", "--unrolls-per-update=30", "--frames=900"]
    launch = ["launch", "--preset=dmlab30", "--local", "--run", folder, "--env", env, "--learner.device=cpu"]
    assert "mean of 30 of 30 tasks" in cli.run(*launch, *TINY, *options)
    row = read_metrics(folder)[-1]
    assert row["tasks/seen"] == row["tasks/count"] == 30
    assert row["episode/return"] == 2.0
    normalized = [100 * (2.0 - level.random) / (level.human - level.random) for level in LEVELS]
    expected = sum(normalized) / 30
    assert row["episode/human_normalized"] == pytest.approx(expected)

    # The test levels.
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["human_normalized"] == pytest.approx(expected)
    tested = [part["environment"].split(",")[0] for part in summary["tasks"]]
    assert tested == [f"dmlab:{level.test}" for level in LEVELS]

    # Without instructions.
    paper = ["launch", "--preset=paper", "--local", "--env", env, "--actors.num-actors=30", "--agent.instruction=False"]
    cli.refuse(*paper, words="instruction: expected True")


def test_levels_whose_data_is_missing(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands) -> None:
    """They are named before a run begins, or left out of it for good."""
    folder = tmp_path / "run"
    reset = Lab.reset

    def lacks_data(self: Lab, **seed: int) -> None:
        if "natlab" in self.level:
            raise RuntimeError("Failed to start environment - no data")
        if "psychlab" in self.level:
            raise KeyError("map")
        reset(self, **seed)

    monkeypatch.setattr(Lab, "reset", lacks_data)
    here, *missing = (
        f"dmlab:{level},image_height=24,image_width=32,cache_gigabytes=0,processes=0"
        for level in ("rooms_watermaze", "natlab_fixed_large_map", "psychlab_visual_search")
    )
    named = ", ".join(missing)
    options = ["--actors.num-actors=2", "--actors.unroll-length=8", "--frames=60", *TINY, "--video-episodes=0"]
    launch = ["launch", "--local", "--run", folder, *options, "--env"]

    # Named.
    words = [f"2 of 3 levels cannot be played here: {named}; the first: ", "no data", "or --skip-missing-levels"]
    cli.refuse(*launch, ",".join([here, *missing]), words=words)
    cli.refuse(*launch, ",".join(missing), "--skip-missing-levels", words="2 of 2 levels cannot be played here")
    assert not folder.exists()

    # Left out, also when the run is resumed.
    printed = cli.run(*launch, ",".join([here, *missing]), "--skip-missing-levels")
    assert f"left out, because they cannot be played here: {named}" in printed
    assert json.loads((folder / "config.json").read_text())["env"] == here
    cli.run("launch", "--local", "--resume", folder, "--frames=120")
