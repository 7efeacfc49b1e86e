"""The trained agents in `pretrained/` are small, and play as its table says."""

import json
from pathlib import Path

import pytest

from tests.commands.cli import Commands

FOLDER = Path(__file__).parents[2] / "pretrained"
AGENTS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


@pytest.mark.parametrize("name", AGENTS)
def test_a_trained_agent_plays_as_its_table_says(name: str, cli: Commands) -> None:
    folder, table = FOLDER / name, (FOLDER / "README.md").read_text()
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2e6
    known = json.loads((folder / "evaluation.json").read_text())["correct_choices"]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    assert f"{100 * known['mean']:.1f} % [{100 * known['low']:.1f}, {100 * known['high']:.1f}]" in row
    (found,) = json.loads(cli.run("evaluate", folder, "--episodes=64", "--json"))
    assert found["correct_choices"]["high"] >= known["low"]
    assert found["correct_choices"]["low"] <= known["high"]


def test_there_are_some() -> None:
    assert "small" in AGENTS
