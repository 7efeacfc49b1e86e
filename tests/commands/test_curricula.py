"""Curricula on the command line: runs in stages, and runs that start from another run's weights."""

import json
from collections.abc import Callable
from pathlib import Path

from commands.parsing import parse_launch
from reports.comparison import KIND, read_run
from storage import checkpoints
from storage.metrics import read_metrics
from tests.commands.cli import SMALL, TINY, Commands, saved_steps
from tests.commands.pages import embedded

RECALL = ["launch", "--local", *SMALL, "--env=diagnostic:recall,delay=5"]


def test_a_run_in_stages(tmp_path: Path, cli: Commands) -> None:
    """It says so when it starts, in its status and in its report, and is resumed where it was."""
    folder, stage = tmp_path / "run", "diagnostic:recall,delay=2 until return 0.9 or frames 100"
    said = cli.run(*RECALL, "--stages", stage, "--frames=60", "--run", folder)
    assert f"stage 1      {stage}\n" in said
    unseen = f"the frames ended in stage {stage!r}: nothing was learned in diagnostic:recall,delay=5 (--frames)"
    assert unseen in " ".join(said.split())
    assert "1 of 2" in cli.run("status", folder)
    assert {row["stage"] for row in read_metrics(folder)} == {1}
    assert "nothing was learned" not in cli.run("launch", "--local", "--resume", folder, "--frames=240")
    assert "2 of 2" in cli.run("status", folder)
    assert {row["stage"] for row in read_metrics(folder)} == {1, 2}
    assert json.loads((folder / "evaluation.json").read_text())["environment"] == "diagnostic:recall,delay=5"
    cli.run("report", folder, "--episodes=0")
    first, second = embedded(folder / "report.html")["stages"]
    assert (first["name"], second["name"]) == (stage, "diagnostic:recall,delay=5")
    assert 0 == first["from"] < 100 <= first["to"] == second["from"] < second["to"]
    assert f"<td>{stage}</td>" in (folder / "report.html").read_text()
    finished = read_run(folder)
    assert finished.curve(KIND["launch"].scales[-1])[0].min() > second["from"], "no scores of the first stage"
    assert finished.curve(KIND["launch"].scales[-1])[0].max() == finished.rows[-1]["learner/frames"]


def test_tasks_have_an_actor_each(tmp_path: Path) -> None:
    """Of all stages; unless a number of actors is given, which is refused if it is too small."""
    two = "diagnostic:recall,delay=2,diagnostic:recall,delay=3"
    words = ["--local", "--env", f"{two},diagnostic:recall,delay=4"]
    assert parse_launch(words).actors.num_actors == 3
    assert (
        parse_launch(["--local", "--env", "diagnostic:recall", "--stages", f"{two} until frames 9"]).actors.count == "2"
    )
    assert parse_launch(["--local", "--env", "diagnostic:recall"]).actors.num_actors == 1
    for given in (["--actors", "2"], ["--actors.num-actors=2"], ["--actors.num_actors", "2"]):
        assert parse_launch([*words, *given]).actors.num_actors == 2


def test_a_run_like_another(copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    """With its configuration, but for what options change, and with none of its weights or checkpoints."""
    source = copied("source", checkpoint_url=f"file://{tmp_path}/elsewhere")
    folder = tmp_path / "run"
    changed = ["--seed=7", "--learner.discount=0.5", "--frames=128", "--video-episodes=0"]
    cli.run("launch", "--local", "--like", source, "--run", folder, *changed)
    config, other = (json.loads((run / "config.json").read_text()) for run in (folder, source))
    assert (config["seed"], config["learner"].pop("discount"), config["frames"]) == (7, 0.5, 128)
    assert config["checkpoint_url"] is None
    assert other["learner"].pop("discount") != 0.5
    for name in ("seed", "frames", "checkpoint_url", "video_episodes"):
        del config[name], other[name]
    assert config == other
    assert saved_steps(folder)[0] == 0

    for words, error in (
        (["--preset", "level"], "--like takes the place of --preset: give only one of them"),
        (["--resume", folder], "--like begins a new run and --resume continues an old one: give only one of them"),
        (["--core", "lstm"], f"core: expected compressive as in {source}, got lstm"),
    ):
        cli.refuse("launch", "--like", source, *words, words=error)

    # Another person's environment needs a permission, unless it is named.
    foreign = copied("foreign", env="gym:my_module:MyEnv")
    cli.refuse("launch", "--like", foreign, words="permit it with --allow gym:my_module:MyEnv")


def test_a_run_from_another(copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    """The network is that of the other run, whatever the preset's; the other run is named, and may be lost later."""
    source, folder, env = copied("source"), tmp_path / "run", "rooms:small,object_scale=2.5"
    launch = ["launch", "--local", "--from-run", source, "--frames=128", *TINY[3:]]
    last = checkpoints.load_latest(source).path
    assert f"from         {last}\n" in cli.run(*launch, "--env", env, "--run", folder)
    config, other = (json.loads((run / "config.json").read_text()) for run in (folder, source))
    assert (config["from_run"], config["env"], config["agent"]) == (str(last), env, other["agent"])
    assert saved_steps(folder)[0] == 0
    first = checkpoints.load_latest(source).parts["weights"]
    begun = checkpoints.read(checkpoints.open_store(folder), f"{0:012d}").parts["weights"]
    assert all((begun[name] == first[name]).all() for name in first)
    (last.parent.parent / "config.json").unlink()
    cli.run("launch", "--local", "--resume", folder, "--frames=256")
    cli.refuse("launch", "--resume", folder, "--from-run", tmp_path, words=f"from_run: expected {last} as in {folder}")
