"""Agents with a core that is in no list: trained, resumed, evaluated, shown, exported and compared by its name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.core import CustomCoreConfig
from commands.parsing import parse_train
from storage.run import Run
from tests.commands.cli import Commands, run_in, saved_steps
from tests.custom_cores import __name__ as HERE
from training.config import RunConfig
from training.grid import make_trials
from training.plain import read_config

AVERAGE = f"{HERE}:Average"
ALLOW = f"--allow=core:{AVERAGE}"
SMALL = [
    "--env=diagnostic:recall", "--agent.torso-size=8", "--agent.core.model-size=8", "--actors.envs-per-actor=2",
    "--actors.unroll-length=8", "--eval-episodes=2", "--log-every=1", "--video-episodes=0", "--frames=64",
    "--learner.learning-rate-schedule=constant", "--learner.entropy-cost-end=None",
]  # fmt: skip


@pytest.fixture
def averaging(tmp_path: Path, cli: Commands) -> Path:
    """A finished run with a custom core."""
    folder = tmp_path / "averaging"
    arguments = ["--core", AVERAGE, "--agent.core.arguments", "keep=0.5"]
    cli.run("launch", "--local", "--run", folder, *arguments, *SMALL)
    return folder


def test_a_run_names_its_core(averaging: Path, cli: Commands) -> None:
    assert f"{AVERAGE} core" in cli.printed
    assert f"evaluate {averaging} --allow core:{AVERAGE}\n" in cli.printed
    plain = json.loads((averaging / "config.json").read_text())["agent"]["core"]
    assert plain == {"name": AVERAGE, "model_size": 8, "arguments": ["keep=0.5"]}
    assert read_config(Run(averaging)).agent.core.keywords == {"model_size": 8, "keep": 0.5}
    assert AVERAGE in cli.run("status", averaging)


def test_a_new_run_is_named_after_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands) -> None:
    monkeypatch.chdir(tmp_path)
    printed = cli.run("launch", "--local", "--core", AVERAGE, *SMALL)
    assert "preparing the environment\n" in printed, "only the level is compiled"
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(rf"\d+-\d+-{HERE}-Average", folder.name)


def test_a_run_with_a_custom_core_goes_on(averaging: Path, tmp_path: Path, cli: Commands) -> None:
    resume = ["launch", "--local", "--resume", averaging, "--frames=128"]
    cli.refuse(*resume, words=f"--allow core:{AVERAGE}")
    cli.refuse(*resume, ALLOW, "--agent.core.arguments=keep=0.6", words="agent.core.arguments: expected ('keep=0.5',)")
    cli.run(*resume, ALLOW)
    cli.run(*resume[:-1], "--frames=160", "--core", AVERAGE)  # what is typed is allowed
    assert saved_steps(averaging)[-1] >= 160

    cli.run("launch", "--local", "--like", averaging, ALLOW, "--seed=1", "--run", tmp_path / "like")
    without_sizes = [option for option in SMALL if not option.startswith("--agent")]
    new = ["launch", "--local", "--from-run", averaging, "--run", tmp_path / "new", *without_sizes]
    cli.refuse(*new, words=f"--allow core:{AVERAGE}")
    cli.run(*new, ALLOW)


def test_a_trained_custom_core_is_shown(averaging: Path, tmp_path: Path, cli: Commands) -> None:
    cli.run("evaluate", averaging, "--episodes=2", ALLOW)
    cli.run("visualize", averaging, "--episodes=1", ALLOW)
    assert '"attends":false' in (averaging / "videos" / "episodes.html").read_text()
    cli.run("report", averaging, ALLOW)
    cli.run("export", averaging, tmp_path / "small", ALLOW)
    cli.run("export", averaging, tmp_path / "agent.onnx", ALLOW)
    cli.run("evaluate", tmp_path / "small", "--episodes=2", f"--allow=file:///elsewhere,core:{AVERAGE}")
    cli.refuse("evaluate", tmp_path / "small", "--allow=core:other:Core", words=f"--allow core:{AVERAGE}")


@pytest.mark.slow
def test_a_transformer_of_ones_own_has_attention(tmp_path: Path, cli: Commands) -> None:
    """A subclass keeps all that its base has; its segments decide how long unrolls may be."""
    folder = tmp_path / "run"
    core = ["--core", f"{HERE}:Wide", "--agent.core.arguments=segment_size=8"]
    cli.run("launch", "--local", "--run", folder, *core, *SMALL)
    cli.run("visualize", folder, "--episodes=1", f"--allow=core:{HERE}:Wide")
    assert '"attends":true' in (folder / "videos" / "episodes.html").read_text()
    cli.run("export", folder, tmp_path / "agent.onnx", f"--allow=core:{HERE}:Wide")
    expected = "unroll_length: expected a multiple of the core's segment_size = 16, got 8"
    cli.refuse("launch", "--local", *core[:2], "--agent.core.arguments=segment_size=16", *SMALL, words=expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--core", f"{HERE}:Remembering"], "core Remembering: expected the same features after a reset"),
        (["--core", f"{HERE}:Nothing"], "expected a subclass of agent.core.Core, got nothing of this name"),
        (["--core", "no_module:Core"], "expected a module in the working directory or an installed one"),
        (["--core", AVERAGE, "--agent.core.arguments=hold=1"], "got an unexpected keyword argument 'hold'"),
        (["--core", AVERAGE, "--agent.core.name=os:path"], f"got --core {AVERAGE} and os:path"),
        (["--core", AVERAGE, "--agent.core.num-layers=2"], "--agent.core.num-layers"),
        (["--core", "my core:Core"], "expected MODULE:CLASS, got 'my core:Core'"),
    ],
)
def test_an_impossible_core_leaves_no_run(arguments: list[str], words: str, tmp_path: Path, cli: Commands) -> None:
    cli.refuse("launch", "--local", "--run", tmp_path / "run", *arguments, *SMALL, words=words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("unlicensed", "\nraise RuntimeError('no license')", "got RuntimeError: no license ("),
        ("unfinished", "class Core(", "got SyntaxError: "),
        ("needing", "import a_missing_package", "core needing:Core: No module named 'a_missing_package'"),
    ],
)
def test_a_core_whose_module_fails_is_one_line(
    name: str, code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands
) -> None:
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    refused = cli.refuse("launch", "--local", "--run", tmp_path / "run", "--core", f"{name}:Core", *SMALL, words=words)
    assert f"core {name}:Core: " in refused
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["text", "speech", "images"])
def test_sequence_models_have_the_cores_of_their_lists(kind: str, cli: Commands) -> None:
    cli.refuse(kind, "train", "--core", AVERAGE, words="core: expected one of compressive, transformer-xl")


def test_runs_with_custom_cores_are_compared(averaging: Path, tmp_path: Path, cli: Commands) -> None:
    other = tmp_path / "other"
    cli.run("launch", "--local", "--run", other, "--core=memoryless", *SMALL)
    compare = ["compare", "--from", averaging, other, "--folder", tmp_path / "both"]
    cli.refuse(*compare, words=f"--allow core:{AVERAGE}")
    assert AVERAGE in cli.run(*compare, ALLOW)


def test_options_of_a_core_hold_for_that_alone() -> None:
    def parse(words: list[str]) -> RunConfig:
        return parse_train("launch", words).config

    def make(*options: str, vary: Any = ()) -> list[Any]:
        cores = [AVERAGE, "memoryless"]
        trials = make_trials(RunConfig, parse, "general", cores, [], [0], vary, options)
        return [config.agent.core for config in trials.values()]

    own, memoryless = make("--agent.core.arguments", "keep=0.8", "--agent.core.num-layers", "1")
    assert own == CustomCoreConfig(AVERAGE, 64, ("keep=0.8",))
    assert memoryless.num_layers == 1
    first, second, _ = make(vary=[("agent.core.arguments", ("keep=0.8", "keep=0.9"))])
    assert [first.arguments, second.arguments] == [("keep=0.8",), ("keep=0.9",)]


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_finds_cores_in_the_working_directory(tmp_path: Path) -> None:
    """Its workers do, too; and with actors and learners of their own, the processes of one run."""
    cores = Path(__file__).parents[1] / "custom_cores.py"
    (tmp_path / "my_cores.py").write_text(cores.read_text())
    name = "my_cores:Average"

    options = [*SMALL, "--agent.core.arguments", "keep=0.8", "--agent.core.num-layers=1"]
    run_in(tmp_path, "compare", "--cores", name, "memoryless", "--seeds=0", "--folder=sweep", *options)
    (plain,) = [json.loads(path.read_text())["agent"]["core"] for path in tmp_path.glob("sweep/my-cores*/config.json")]
    assert plain["arguments"] == ["keep=0.8"]
    run_in(tmp_path, "launch", "--core", name, "--actors=2", "--learners=2", "--run=run", *SMALL)
    assert saved_steps(tmp_path / "run")
