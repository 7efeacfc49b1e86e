"""A run in an environment that refuses impossible actions."""

from pathlib import Path

import numpy as np

from tests.commands.cli import SMALL, Commands
from tests.commands.pages import embedded, unpacked
from tests.envs.masked import ACTIONS, Dials

DOORS = "gym:tests.envs.masked:Doors,in_infos=True,action_mask=True"
DIALS = "gym:tests.envs.masked:Dials"
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


def test_a_run_with_a_mask_of_several_choices(tmp_path: Path, cli: Commands) -> None:
    """No impossible value is probable in its film; the environment refuses them."""
    folder = tmp_path / "run"
    shown = cli.run(
        "launch", "--local", "--run", folder, "--env", DIALS, *SMALL, *CORE, "--frames=64", "--video-episodes=1"
    )
    assert f"environment  {DIALS} (18 with a mask of actions), 1 frame a step" in shown
    (episode,) = embedded(folder / "videos" / "final.html")["episodes"]
    probabilities = unpacked(episode["probabilities"], "<u2").reshape(-1, sum(Dials.sizes))
    is_probable = probabilities > 0
    counts = [part.sum(axis=1) for part in np.split(is_probable, np.cumsum(Dials.sizes)[:-1], axis=1)]
    assert np.all(np.stack(counts, axis=1) == [2, 1, 2])
    cli.run("evaluate", folder, "--episodes=4", "--allow", DIALS)
