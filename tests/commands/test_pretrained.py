"""The trained agents in `pretrained/` are small, and play as its table says."""

import json
from pathlib import Path

import pytest

from storage.run import Run
from tests.commands.cli import Commands
from training.evaluation import load_trained_agent, play
from training.presets import make_preset

FOLDER = Path(__file__).parents[2] / "pretrained"
AGENTS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
CASES = [pytest.param(name, marks=[] if name == "small" else [pytest.mark.slow]) for name in AGENTS]
"""The level is drawn from 72 x 96 pixels."""


@pytest.mark.parametrize("name", CASES)
def test_a_trained_agent_plays_as_its_table_says(name: str, cli: Commands) -> None:
    folder = FOLDER / name
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2e6, "weights and curves"

    # The table has the numbers of its evaluation: the share of correct choices if there are choices.
    known = json.loads((folder / "evaluation.json").read_text())
    table = (FOLDER / "README.md").read_text()
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    score = "correct_choices" if "correct_choices" in known else "return"
    mean, low, high = (known[score][end] for end in ("mean", "low", "high"))
    if score == "correct_choices":
        assert f"{100 * mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]" in row
    else:
        assert f"{mean:.2f} [{low:.2f}, {high:.2f}]" in row

    # A new evaluation agrees with it: their intervals overlap.
    if "MiniGrid" in known["environment"]:
        pytest.importorskip("minigrid", reason="minigrid is not installed: pip install -e '.[envs]'")
    (found,) = json.loads(cli.run("evaluate", folder, "--episodes=64", "--json"))
    assert found[score]["high"] >= known[score]["low"]
    assert found[score]["low"] <= known[score]["high"]


def test_there_are_some() -> None:
    assert "small" in AGENTS


@pytest.mark.parametrize("core", ["compressive", "transformer-xl"])
def test_the_preset_transfer_has_a_teacher_like_its_agent(core: str) -> None:
    config = make_preset("transfer", core)
    assert config.from_run is not None
    teacher = load_trained_agent(Run(FOLDER.parent / config.from_run))
    assert teacher.config.agent.core == config.agent.core


def test_the_agent_of_the_level_sees_deepmind_lab_as_it_saw_the_level(lab: object) -> None:
    """At 36 x 48 pixels, means of Lab's own, although the spec does not say so."""
    level = "dmlab:rooms_select_nonmatching_object"
    fields = "test=True,processes=0,cache_gigabytes=0"
    player = load_trained_agent(Run(FOLDER / "level"), env=f"{level},{fields}")
    assert player.env == f"{level},{fields},image_height=36,image_width=48,shrink=2"
    (episode,) = play(player.config, player.agent, 1, env=player.env)
    assert episode.score == 2.0, "what Lab's double gives"
