"""No command runs code that the files of another person's run choose, unless the user allows that by name."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from commands.parsing import parse_launch
from envs import foreign_code, require_consent
from storage import checkpoints
from storage.errors import UserError
from storage.run import Run
from tests.commands.cli import SMALL, Commands, run_in, saved_steps
from training import sweep
from training.config import RunConfig
from training.plain import read_config

EVIL = """
import pathlib, gymnasium, dm_env
pathlib.Path(__file__).with_name("executed").touch()
class Env(dm_env.Environment):
    pass
gymnasium.register("Evil-v0", lambda: None)
"""
ROOT = Path(__file__).parents[2]
WALK = "dm:tests.envs.dm_tasks:Walk"


@pytest.fixture(
    params=[
        "dm:os:system,command=touch {}/executed",
        "dm:evil_module:Env",
        "gym:evil_module:Evil-v0",
        "core:evil_module:Core",
    ]
)
def forged(
    request: pytest.FixtureRequest, copied: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """A finished run, also in a sweep's folder and at a URL, whose environment or core creates the file "executed".

    Beside it what is said of the run.
    """
    (tmp_path / "evil_module.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    kind, _, name = request.param.format(tmp_path).partition(":")
    folder = copied("run")
    config = json.loads((folder / "config.json").read_text())
    if kind == "core":
        config["agent"]["core"] = {"name": name, "model_size": 16}
        told = f"the run's core {name!r} can run any code"
    else:
        config["env"] = f"{kind}:{name}"
        told = f"the run's environment {config['env']!r} can run any code"
    Run(folder).write_config(config)
    last = checkpoints.load_latest(folder)
    checkpoints.save((tmp_path / "url").as_uri(), last.step, last.parts, last.state | {"config": config}, 1)
    trials = dict.fromkeys(("a", "b"), read_config(Run(folder), RunConfig))
    sweep.begin(tmp_path / "sweep", trials, "compressive compare")
    return folder, told


COMMANDS = [
    "evaluate RUN --episodes=1",
    "evaluate RUN --episodes=1 --env=rooms:small",
    "visualize RUN",
    "report RUN",
    "status RUN",
    "compare --from RUN --folder NEW",
    "compare --resume SWEEP",
    "launch --local --resume RUN --frames=9000",
    "launch --local --from-run RUN --run NEW --frames=9000",
    "launch --local --resume URL --run NEW --frames=9000",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_code_of_a_foreign_run_does_not_run(
    command: str, forged: tuple[Path, str], tmp_path: Path, cli: Commands
) -> None:
    folder, told = forged
    before = saved_steps(folder)
    words = {"RUN": folder, "NEW": tmp_path / "new", "SWEEP": tmp_path / "sweep", "URL": (tmp_path / "url").as_uri()}
    arguments = [words.get(word, word) for word in command.split()]
    if arguments[0] in ("report", "status"):  # these do not need to play
        assert (told in cli.run(*arguments)) == (arguments[0] == "report")
    else:
        cli.refuse(*arguments, words=f"{told}: if you trust it, permit it with --allow")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "new").exists()
    assert saved_steps(folder) == before


def test_stages_of_a_foreign_run_need_a_permission(copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    """To resume it, but not to play, which happens in the last environment."""
    folder = copied("run")
    evil = f"dm:os:system,command=touch {tmp_path}/executed"
    config = json.loads((folder / "config.json").read_text()) | {"stages": [f"{evil} until frames 9"]}
    Run(folder).write_config(config)
    told = f"the run's environment {evil!r} can run any code"
    for typed in ([], ["--env=rooms:small"], ["--allow=dm:other:Env"]):
        cli.refuse("launch", "--local", "--resume", folder, "--frames=9000", *typed, words=told)
    sweep.begin(tmp_path / "sweep", {"a": read_config(Run(folder), RunConfig)}, "compressive compare")
    cli.refuse("compare", "--resume", tmp_path / "sweep", words=told)
    cli.run("evaluate", folder, "--episodes=1")
    assert not (tmp_path / "executed").exists()


def test_a_sweep_that_is_evaluated_elsewhere(copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    """Its report needs no more permissions than its training did: `--eval-env` may run code as well as `--env`."""
    run = copied("run", eval_env=WALK)
    trials = {"a": read_config(Run(run), RunConfig)}
    folder = tmp_path / "sweep"
    sweep.begin(folder, trials, "compressive compare")
    shutil.move(run, folder / "a")
    cli.refuse("compare", "--resume", folder, words=f"--allow {WALK}")
    assert "missing" not in cli.run("compare", "--resume", folder, "--allow", WALK)
    assert (folder / "report.html").is_file()


def test_a_terminal_does_not_obey_the_text_of_a_foreign_run(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of folders and values of the configuration, in any line and table. Nothing is written backwards."""
    monkeypatch.setattr("reports.comparison_page._write_figures", lambda *_: None)  # which take a second
    text = "\x1b]0;title\x07\x9b2J\x7f\r\nnext\u202e\u2066"
    shown = r"\x1b]0;title\x07\x9b2J\x7f\r\nnext\u202e\u2066"
    url = f"file:///tmp/{text}';touch executed;'"
    run = copied(f"sweep/a{text}", checkpoint_url=url, from_run=text)
    copied("sweep/b")
    told = [cli.run("status", run), cli.run("runs", tmp_path / "sweep")]
    assert all(shown in each for each in told)
    quoted = shlex.quote(url).replace(text, shown)
    assert f"--allow {quoted}" in told[0]

    told.append(cli.fail("evaluate", run, status=2))
    told.append(cli.run("compare", "--from", run, tmp_path / "sweep/b", "--folder", tmp_path / "new"))
    assert shown in told[-1]
    for each in told:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", each)


@pytest.mark.parametrize("option", ["--eval-env", "--eval_env"])
def test_what_is_typed_is_allowed_in_either_spelling(option: str, copied: Callable[..., Path]) -> None:
    run = copied("run", eval_env=WALK)
    words = ["--local", "--resume", str(run), "--frames=9000"]
    with pytest.raises(UserError, match="can run any code"):
        parse_launch(words)
    assert parse_launch([*words, option, WALK]).eval_env == WALK


def test_code_that_the_user_allows_by_name(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    more = tmp_path / "more"
    cli.run("launch", "--local", "--run", run, "--env", f"{WALK},cells=4", *SMALL, "--frames=64")
    shutil.copytree(run, more)

    # To play: --allow or --env has its name.
    cli.refuse("evaluate", run, words=f"--allow {WALK}")
    cli.refuse("evaluate", run, "--allow", "dm:tests.envs.dm_tasks:Unhurried", words="can run any code")
    cli.run("evaluate", run, "--episodes=2", "--allow", WALK)
    cli.run("evaluate", run, "--episodes=2", "--env", f"{WALK},cells=4,limit=7")
    cli.run("report", run, "--allow", WALK)

    # To train from it, to compare it, and to resume it.
    new = ["launch", "--local", "--from-run", run, "--frames=64", *SMALL[1:]]
    cli.refuse(*new, "--run", tmp_path / "new", "--env=rooms:small", words=f"--allow {WALK}")
    cli.run(*new, "--run", tmp_path / "typed", "--env", f"{WALK},cells=4,limit=7")
    cli.run("compare", "--from", run, "--folder", tmp_path / "new", "--allow", WALK)
    resume = ["launch", "--local", "--resume", more]
    assert f"compressive evaluate {more} --allow {WALK}\n" in cli.run(*resume, "--frames=128", "--allow", WALK)
    cli.run(*resume, "--frames=160", "--env", f"{WALK},cells=4", "--allow", f"file:///elsewhere,{WALK}")
    assert saved_steps(more)[-1] >= 160


@pytest.mark.parametrize(
    ("spec", "chooses"),
    [
        ("rooms:small,dm:module:Class", True),
        ("gym:module:Id-v0", True),
        ("gym:module:ALE/Pong-v5", True),
        ("gym:ale_py:ALE/Pong-v5", False),
        ("gym:ale_py:ALE/Pong-v5,game=/tmp/other", True),
        ("gym:GymV26Environment-v0,env_id=module:Id-v0", True),
        ("gym:Ant-v5,xml_file=/tmp/other.xml", True),
        ("gym:Id-v0,options={'a': 1}", True),
        ("dmlab:../../tmp/other", True),
        ("dmlab:/tmp/other", True),
        ("rooms:full,hud=False", False),
        ("dmlab:contributed/dmlab30/rooms_watermaze,dataset=/data", False),
        ("gym:MiniGrid-MemoryS13-v0,view=pixels,processes=2", False),
        ("gym:ALE/Pong-v5,repeat_action_probability=-0.25,obs_type=rgb,frameskip=None", False),
    ],
)
def test_specs_that_can_choose_code(spec: str, chooses: bool) -> None:
    names = foreign_code(spec)
    assert len(names) == chooses
    with pytest.raises(ValueError, match="--allow") if chooses else nullcontext():
        require_consent(spec)
    require_consent(spec, ",".join(["rooms:small", *names]))


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        ("s3://bucket/a,b", False),  # a URL with a comma
        ("s3://bucket/a,b,gym:module:Id-v0,size=5", True),
        ("gym:module:Id-v0,s3://bucket/a,b,core:module:Core", True),
        ("core:module:Core,gym:module:Id-v0", True),
        ("gym:module:Id-v0,size=5,gym:module:Id-v0,size=5,rooms:small", True),  # a stage in one of several tasks
        ("core:gym:module:Id-v0", False),
        ("s3://bucket/gym:module:Id-v0", False),
    ],
)
def test_environments_are_allowed_beside_urls_and_cores(allowed: str, is_allowed: bool) -> None:
    require_consent("rooms:small", allowed)
    with nullcontext() if is_allowed else pytest.raises(ValueError, match="--allow gym:module:Id-v0"):
        require_consent("gym:module:Id-v0", allowed)


OPTIONAL = ("tensorflow", "pynvml", "isal", "zstandard", "scipy")
"""Packages that libraries import if they find them."""
OWN = """
import gymnasium
from beside_it import Base
def make() -> gymnasium.Env:
    return Base()
"""
BESIDE = "from tests.envs.odd import Odd as Base"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder with a file of the name of each optional package, which makes the file "executed"."""
    for name in OPTIONAL:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nraise ImportError\n")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "evaluate run --episodes=1",
        pytest.param("report run --episodes=0", marks=pytest.mark.slow),
        pytest.param("status run", marks=pytest.mark.slow),
    ],
)
def test_files_of_the_working_directory_are_no_packages(
    command: str, packed: Path, copied: Callable[..., Path]
) -> None:
    copied("run").rename(packed / "run")
    run_in(packed, *command.split())
    assert not (packed / "executed").exists()


@pytest.mark.ray
@pytest.mark.slow
def test_files_of_the_working_directory_are_no_packages_on_ray(packed: Path) -> None:
    run_in(packed, "launch", "--env=diagnostic:recall", *SMALL, "--frames=64", "--run=run")
    assert not (packed / "executed").exists()


@pytest.mark.parametrize("where", ["--local", pytest.param("--actors=1", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_own_environments_are_found_in_the_working_directory(where: str, tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text(OWN)
    (tmp_path / "beside_it.py").write_text(BESIDE)
    (tmp_path / "agent").mkdir()  # it hides no package
    run_in(tmp_path, "launch", "--env=gym:own_module:make", where, *SMALL, "--frames=64", "--run=run")
