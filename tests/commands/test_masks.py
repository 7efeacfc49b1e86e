"""A run in an environment that refuses impossible actions."""

from pathlib import Path

from tests.commands.cli import SMALL, Commands
from tests.commands.pages import embedded, unpacked
from tests.envs.masked import ACTIONS

DOORS = "gym:tests.envs.masked:Doors,in_infos=True,action_mask=True"
CORE = ["--core=compressive", "--agent.core.num-heads=2", "--agent.core.segment-size=8"]


def test_no_command_takes_an_impossible_action(tmp_path: Path, cli: Commands) -> None:
    folder = tmp_path / "run"
    shown = cli.run(
        "launch", "--local", "--run", folder, "--env", DOORS, *SMALL, *CORE, "--frames=64", "--video-episodes=1"
    )
    assert f"environment  {DOORS} (15 with a mask of actions), 1 frame a step" in shown
    assert "filming failed" not in shown
    (episode,) = embedded(folder / "videos" / "final.html")["episodes"]
    probabilities = unpacked(episode["probabilities"], "<u2").reshape(-1, ACTIONS)
    assert ((probabilities > 0).sum(axis=1) == 2).all(), "two doors are open"

    cli.run("evaluate", folder, "--episodes=4", "--allow", DOORS)
    cli.run("evaluate", "--policy=random", "--env", DOORS, "--episodes=8")
