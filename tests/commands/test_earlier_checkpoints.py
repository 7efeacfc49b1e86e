"""Checkpoints from the middle of a training: kept with --keep-every, and used by the folder of each."""

import json
import shutil
from pathlib import Path

import pytest

from storage.checkpoints import load_latest
from storage.metrics import read_metrics
from storage.run import Run, find_run
from tests.commands.cli import SMALL, Commands, write_corpus
from training.evaluation import load_trained_agent
from training.plain import read_config

STEPS = ("000000000000", "000000000046", "000000000092", "000000000108", "000000000124", "000000000138")
"""What is kept of 0, 16, 32, 46, 62, 78, 92, 108, 124 and 138 steps: the first of each 40, and the last three."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with several checkpoints."""
    from commands import main

    folder = tmp_path_factory.mktemp("runs") / "agent"
    words = ["--local", "--env", "diagnostic:recall", "--frames", 128, "--keep-every", 40, "--run", folder]
    with pytest.MonkeyPatch.context() as patch:
        typed = ["compressive", "launch", *SMALL, "--checkpoint-seconds=0", *map(str, words)]
        patch.setattr("sys.argv", typed)
        main()
    return folder


def test_the_first_of_each_so_many_steps_are_kept(run: Path) -> None:
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(STEPS)


def test_checkpoints_are_evaluated_like_runs(run: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one table, each with its own weights."""
    early, late = (run / "checkpoints" / STEPS[index] for index in (0, -1))
    folders = sorted((run / "checkpoints").iterdir())
    found = json.loads(cli.run("evaluate", *folders, "--episodes=2", "--json"))
    assert [row["checkpoint"] for row in found] == [str(folder) for folder in folders]
    assert [row["run"] for row in found] == [str(folder) for folder in folders]

    def weights(place: Path) -> list[float]:
        return load_trained_agent(find_run(place)).agent.policy.weight.flatten().tolist()

    assert weights(early) != weights(late)
    assert weights(late) == weights(run)
    monkeypatch.chdir(run / "checkpoints")
    assert weights(Path(STEPS[0])) == weights(early), "typed in the folder itself"


def test_what_a_killed_process_left_is_skipped(run: Path, tmp_path: Path, cli: Commands) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    left = copy / "checkpoints" / "000000009999-deadbeef.tmp"
    left.mkdir()
    every = sorted((copy / "checkpoints").iterdir())
    found = cli.run("evaluate", *every, "--episodes=1")
    assert f"skipped {left}: it is no complete checkpoint" in " ".join(found.split())
    cli.refuse("evaluate", left, words=["expected a run or a complete checkpoint", left.name])


def test_pages_have_names_with_dots(run: Path, tmp_path: Path, cli: Commands) -> None:
    runs = [shutil.copytree(run, tmp_path / name) for name in ("lr0.001", "lr0.01")]
    cli.run("visualize", *runs, "--episodes=1", "--output", tmp_path / "pages")
    names = {path.name for path in (tmp_path / "pages").glob("*.html")}
    assert names == {"1-lr0.001.html", "2-lr0.01.html", "episodes.html"}
    together = (tmp_path / "pages" / "episodes.html").read_text()
    assert all(name in together for name in names - {"episodes.html"})


def test_an_earlier_checkpoint_is_filmed_exported_and_begun_with(run: Path, tmp_path: Path, cli: Commands) -> None:
    early = run / "checkpoints" / STEPS[1]
    cli.run("visualize", early, run, "--episodes=1", "--output", tmp_path / "pages")
    pages = {path.name for path in (tmp_path / "pages").glob("*.html")}
    assert pages == {f"1-agent-{STEPS[1]}.html", "2-agent.html", "episodes.html"}
    assert "agent-000000000046, 46 steps" in (tmp_path / "pages" / f"1-agent-{STEPS[1]}.html").read_text()

    # Its evaluation is not that of the end, and neither are its curves.
    small = tmp_path / "small"
    cli.run("export", early, small)
    assert load_latest(small).step == 46
    assert not (small / "evaluation.json").exists()
    assert max(row["step"] for row in read_metrics(small)) == 46
    assert max(row["step"] for row in read_metrics(run)) == 138

    begun = tmp_path / "begun"
    words = ["--local", "--env=diagnostic:recall", "--from-run", early, "--frames=16", "--eval-episodes=1"]
    cli.run("launch", *words, "--video-episodes=0", "--run", begun)
    assert read_config(Run(begun)).from_run == str(early)
    assert read_config(Run(begun)).agent == read_config(Run(run)).agent


def test_a_checkpoint_that_cannot_be_read_is_no_other_one(run: Path, tmp_path: Path, cli: Commands) -> None:
    missing = run / "checkpoints" / "000000000045"
    cli.refuse("evaluate", missing, words=[str(run), "000000000045", "FileNotFoundError"])
    cli.refuse("visualize", missing, words=[str(run), "000000000045"])
    damaged = run / "checkpoints" / STEPS[2] / "weights.safetensors"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    cli.refuse("evaluate", damaged.parent, words=[STEPS[2], "weights.safetensors"])
    damaged.write_bytes(content)

    # Training is resumed from the last one, and not from any other.
    earlier = run / "checkpoints" / STEPS[0]
    words = [f"{earlier} is a checkpoint of {run}: expected --resume {run}", f"--from-run {earlier}"]
    cli.refuse("launch", "--resume", earlier, "--local", words=words)
    cli.refuse("evaluate", tmp_path / "no" / STEPS[0], words=f"{tmp_path}/no/{STEPS[0]} is not a run")
    cli.refuse("evaluate", tmp_path / "checkpoints" / STEPS[0], words=f"{tmp_path}/checkpoints/{STEPS[0]} is not a run")


def test_sequence_models_have_earlier_checkpoints_too(tmp_path: Path, cli: Commands) -> None:
    from tests.commands.cli import COMPRESSIVE_TEXT

    run = tmp_path / "text"
    words = ["--path", write_corpus("text", tmp_path / "texts"), "--learner.steps=6", "--checkpoint-seconds=0"]
    cli.run("text", "train", *COMPRESSIVE_TEXT, *words, "--keep-checkpoints=1", "--keep-every=3", "--run", run)
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [0, 3, 6]
    early = run / "checkpoints" / "000000000003"
    before = {path: path.read_bytes() for path in run.glob("evaluation*.json")}
    cli.run("text", "evaluate", early, "--split=valid")
    found = json.loads((run / "evaluation-valid-at-000000000003.json").read_text())
    assert found["step"] == 3
    assert {path: path.read_bytes() for path in before} == before
    assert cli.run("text", "sample", early, "--length=3")
