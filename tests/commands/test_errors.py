"""Whatever is wrong with what was typed, or with the disk, is said in one line that names it; then the status is 2."""

import fcntl
import json
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.core import CORES
from commands import main
from envs.rooms import VARIANTS
from learner import checkpoints
from tests.commands.cli import ENVIRONMENT, TINY, command, frames, refusal, run, saved_steps

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], ["launch, evaluate, visualize, report, compare", "'fly'"]),
        (["launch", "--preset", "gpu"], ["preset", "cpu, memory, paper", "'gpu'"]),
        (["launch", "--preset"], ["--preset"]),
        (["launch", "--core", "rnn"], ["core", ", ".join(CORES), "'rnn'"]),
        (["launch", "--env", "rooms"], ["'rooms'", "kind:name"]),
        (["launch", "--env", "atari:pong"], ["'atari:pong'", "rooms, dmlab, gym, dm, diagnostic"]),
        (["launch", "--env", "gym:CartPol-v1"], ["gym:CartPol-v1", "Did you mean", "CartPole"]),
        (["launch", "--env", "gym:Pendulum-v1"], ["gym:Pendulum-v1", "action space", "Discrete(n)", "Box"]),
        (["launch", "--env", "gym:CartPole-v1,gravity=2"], ["gym:CartPole-v1", "'gravity'"]),
        (["launch", "--env", "gym:nowhere:Id-v0"], ["'nowhere'"]),
        (["launch", "--env", "dm:nowhere:Class"], ["'nowhere'"]),
        (["launch", "--env", "diagnostic:recall,delay=0"], ["delay", "at least 1", "0"]),
        (["launch", "--env", "rooms:tiny"], ["'tiny'", "full, full-randomised"]),
        (["launch", "--env", "rooms:small,gravity=2"], ["'gravity'", "hover_height"]),
        (["launch", "--env", "rooms:small,hud=perhaps"], ["hud", "bool", "'perhaps'"]),
        (["launch", "--env", "rooms:small,hud"], ["field=value", "'hud'"]),
        (["launch", "--actors.unroll-length", "24"], ["unroll_length", "segment_size = 16", "24"]),
        (["launch", "--agent.core.compression-rate", "3"], ["compression_rate", "segment_size = 16", "3"]),
        (["launch", "--agent.core.model-size", "30"], ["model_size", "num_heads = 4", "30"]),
        (["launch", "--agent.torso", "huge"], ["torso", "deep, shallow, small", "'huge'"]),
        (["launch", "--agent.torso-size", "0"], ["torso_size", "1 or more", "0"]),
        (["launch", "--agent.torso-size", "-8"], ["torso_size", "1 or more", "-8"]),
        (["launch", "--agent.torso-size", "999999999"], ["torso_size", "at most 16777216", "999999999"]),
        (["launch", "--agent.core.mlp-size", "999999999999"], ["mlp_size", "at most 16777216", "999999999999"]),
        (["launch", "--agent.core.mlp-size", "16777216", "--agent.core.num-layers", "900"], ["network", "memory of"]),
        (["launch", "--agent.core.memory-size", "16777216", "--actors.envs-per-actor", "9999"], ["GB for state"]),
        (["launch", "--agent.reconstruction-cost", "-1"], ["reconstruction_cost", "0 or more", "-1"]),
        (["launch", "--core", "lstm", "--agent.core.memory-size", "3"], ["--agent.core.memory-size"]),
        (["launch", "--frames", "-1"], ["frames", "1 or more", "-1"]),
        (["launch", "--frames", "many"], ["--frames", "INT", "'many'"]),
        (["launch", "--frames", "1.5"], ["--frames", "INT", "'1.5'"]),
        (["launch", "--learners", "0"], ["learners", "1 or more", "0"]),
        (["launch", "--learners", "3"], ["learners", "64 rows", "3"]),
        (["launch", "--learners", "2", "--learner.device", "cuda:1"], ["device", "auto, cpu or cuda", "'cuda:1'"]),
        (["launch", "--local", "--learners", "2"], ["--local", "--learners 1", "2"]),
        (["launch", "--learner-labels", "gpu"], ["learner_labels", "KEY=VALUE", "'gpu'"]),
        (["launch", "--learner-placement", "near"], ["--learner-placement", "'strict_spread'", "'near'"]),
        (["launch", "--actors", "few"], ["actors", "4..16", "'few'"]),
        (["launch", "--actors"], ["actors", "4..16", "''"]),
        (["launch", "--actors=4..2"], ["max_actors", "num_actors = 4", "2"]),
        (["launch", "--local", "--actors", "2..4"], ["--local", "2..4"]),
        (["launch", "--actors.cpus", "-1"], ["cpus", "0 or more", "-1"]),
        (["launch", "--actors.gpus", "1.5"], ["gpus", "whole number", "1.5"]),
        (["launch", "--actors.labels", "zone=a", "fast"], ["labels", "KEY=VALUE", "'fast'"]),
        (["launch", "--actors.resources", "licence=one"], ["resources", "NAME=AMOUNT", "licence=one"]),
        (["launch", "--max-policy-lag", "-1"], ["max_policy_lag", "0 or more", "-1"]),
        (["launch", "--seed", "-1"], ["seed", "0 or more", "-1"]),
        (["launch", "--seed", str(2**64)], ["seed", f"at most {2**63 - 1}", str(2**64)]),
        (["launch", "--checkpoint-seconds", "-1"], ["checkpoint_seconds", "0 or more", "-1"]),
        (["launch", "--threads", "0"], ["threads", "1 or more", "0"]),
        (["launch", "--threads", "100000"], ["threads", "at most 1024", "100000"]),
        (["launch", "--actors.threads", "100000"], ["threads", "at most 1024", "100000"]),
        (["launch", "--local", "--actors.gpus", "1"], ["gpus", "no GPU", "1.0"]),
        (["launch", "--learner.learning-rate", "inf"], ["learning_rate", "a finite number", "inf"]),
        (["launch", "--learner.entropy-cost", "inf"], ["entropy_cost", "a finite number", "inf"]),
        (["launch", "--learner.entropy-cost", "1e400"], ["entropy_cost", "a finite number", "inf"]),
        (["launch", "--learner.clip-pg-rho", "1e39"], ["clip_pg_rho", "a finite number", "1e+39"]),
        (["launch", "--learner.learning-rate", "fast"], ["--learner.learning-rate", "FLOAT", "'fast'"]),
        (["launch", "--learner.clip-rho", "none"], ["--learner.clip-rho", "{None}|FLOAT", "'none'"]),
        (["launch", "--learner.optimizer", "sgd"], ["--learner.optimizer", "'adam', 'rmsprop'", "'sgd'"]),
        (["launch", "--learner.discount", "2"], ["discount", "[0, 1]", "2"]),
        (["launch", "--learner.device", "tpu:x"], ["device", "'tpu:x'"]),
        (["launch", "--local", "--learner.device", "meta"], ["device", "auto, cpu or a GPU", "'meta'"]),
        (["launch", "--run", "a\0b"], ["run", "UTF-8 without NUL", r"a\x00b"]),
        (["launch", "--run", "\udcff"], ["run", "UTF-8 without NUL", r"\udcff"]),
        (["launch", "--run", "x" * 256], ["x" * 256, "File name too long"]),
        (["launch", "--resume", "x" * 256], ["x" * 256, "File name too long"]),
        (["launch", "--max-policy-lag", "9" * 5000], ["--max-policy-lag", "INT", "999 ... 999"]),
        (["status", "x" * 256], ["x" * 256, "File name too long"]),
        (["evaluate", "RUN", "--video", "x" * 256], ["x" * 256, "File name too long"]),
        (["launch", "--framez", "3"], ["--framez", "--frames INT"]),
        (["launch", "runs/a"], ["runs/a"]),
        (["launch", "--local", "--ray-address", "10.0.0.1:1"], ["--local", "--ray-address"]),
        (["launch", "--run", "NEW", "--resume", "RUN"], ["--run", "--resume"]),
        (["launch", "--preset", "paper", "--local"], ["DeepMind Lab", "build", "--env rooms:full"]),
        (["launch", "--resume", "EMPTY"], ["EMPTY", "config.json"]),
        (["launch", "--resume", "MISSING"], ["MISSING", "config.json"]),
        (["launch", "--resume", "BARE", "--local"], ["BARE", "no checkpoint"]),
        (["launch", "--run", "FULL"], ["FULL", "not empty", "--resume FULL"]),
        (["launch", "--run", "FULL/thesis.txt"], ["FULL/thesis.txt", "Not a directory"]),
        (["status"], ["DIR"]),
        (["status", "EMPTY"], ["EMPTY", "config.json"]),
        (["visualize"], ["DIR"]),
        (["visualize", "EMPTY"], ["EMPTY", "config.json"]),
        (["visualize", "BARE"], ["BARE", "no checkpoint"]),
        (["visualize", "RUN", "--episodes", "0"], ["episodes", "1 or more", "0"]),
        (["visualize", "RUN", "--seed", "-3"], ["seed", "0 or more", "-3"]),
        (["visualize", "RUN", "--episodes", "1", "--output", "FULL/thesis.txt"], ["output", "FULL/thesis.txt"]),
        (["report", "EMPTY"], ["EMPTY", "config.json"]),
        (["report", "MISSING"], ["MISSING", "config.json"]),
        (["report", "BARE", "--episodes", "-1"], ["episodes", "0 or more", "-1"]),
        (["report", "BARE", "--output", "EMPTY"], ["output", "a regular file", "EMPTY"]),
        (["report", "BARE", "--episodes", "0", "--output", "FULL/thesis.txt/a.html"], ["output", "FULL/thesis.txt"]),
        (["evaluate"], ["DIR"]),
        (["evaluate", "EMPTY"], ["EMPTY", "config.json"]),
        (["evaluate", "MISSING"], ["MISSING", "config.json"]),
        (["evaluate", "BARE"], ["BARE", "no checkpoint"]),
        (["evaluate", "RUN", "--episodes", "0"], ["episodes", "1 or more", "0"]),
        (["evaluate", "RUN", "--seed", "-3"], ["seed", "0 or more", "-3"]),
        (["evaluate", "RUN", "--env", "rooms:full"], ["[24, 32, 3]", "rooms:small", "[72, 96, 3]", "rooms:full"]),
        (["evaluate", "RUN", "--env", "rooms:none"], ["'none'", "full, full-randomised"]),
        (["evaluate", "RUN", "--episodes", "1", "--video", "EMPTY"], ["video", "EMPTY"]),
        (["evaluate", "RUN", "--episodes", "1", "--video", "FULL/thesis.txt/a.mp4"], ["video", "FULL/thesis.txt"]),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    words: list[str],
    finished: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("EMPTY", "FULL", "BARE"):
        (tmp_path / name).mkdir()
    (tmp_path / "FULL" / "thesis.txt").write_text("all of it")
    (tmp_path / "BARE" / "config.json").write_bytes((finished[0] / "config.json").read_bytes())
    (tmp_path / "RUN").symlink_to(finished[0])
    error = refusal(arguments, capfd)
    assert all(word in error for word in words), error
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"EMPTY", "FULL", "BARE", "RUN"}, "nothing is left behind"
    assert [path.name for path in (tmp_path / "FULL").iterdir()] == ["thesis.txt"]


def test_bad_input_from_a_shell() -> None:
    result = run("launch", "--env", "rooms:tiny")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == f"compressive: no variant 'tiny' of the rooms level; there are: {', '.join(VARIANTS)}\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_messages_say_the_same_in_any_encoding(encoding: str) -> None:
    words = {"--framez 3": "perhaps you meant --frames INT", "--frames x": "--frames: expected INT, got 'x'"}
    for arguments, expected in words.items():
        environment = {**ENVIRONMENT, "PYTHONIOENCODING": encoding}
        result = subprocess.run(command("launch", *arguments.split()), capture_output=True, text=True, env=environment)
        assert expected in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_an_error_about_a_path_not_typed_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(arguments: Sequence[str]) -> None:
        open("/nowhere/at/all")  # noqa: SIM115

    monkeypatch.setattr("commands.status.status", status)
    with pytest.raises(FileNotFoundError, match="/nowhere/at/all"):
        main(["status", "runs/mine"])
    with pytest.raises(SystemExit):
        main(["status", "/nowhere"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agent.core.num-layers", "3"], ["agent.core.num_layers", "2", "3"]),
        (["--agent.torso-size", "17"], ["agent.torso_size", "16", "17"]),
        (["--core", "lstm"], ["core", "compressive", "lstm"]),
        (["--core", "transformer-xl"], ["core", "compressive", "transformer-xl"]),
        (["--preset", "paper"], ["preset", "cpu", "paper"]),
        (["--env", "rooms:full"], ["env", "rooms:small", "rooms:full"]),
        (["--seed", "5"], ["seed", "0", "5"]),
        (["--learner.optimizer", "rmsprop"], ["learner.optimizer", "adam", "rmsprop"]),
    ],
)
def test_a_resumed_run_keeps_what_its_checkpoint_depends_on(
    options: list[str], words: list[str], finished: tuple[Path, str], capfd: Capture
) -> None:
    config = (finished[0] / "config.json").read_bytes()
    error = refusal(["launch", "--local", "--resume", str(finished[0]), *options], capfd)
    assert all(word in error for word in [*words, str(finished[0])]), error
    assert (finished[0] / "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["JSON"]),
        ("", ["JSON"]),
        ("\x00\xff", ["JSON"]),
        ("[]", ["object", "[]"]),
        ('{"bogus": 1}', ["unknown", "bogus"]),
        ('{"frames": "many"}', ["frames", "int", "'many'"]),
        ('{"frames": 2.5}', ["frames", "int", "2.5"]),
        ('{"frames": true}', ["frames", "int", "True"]),
        ('{"seed": -1}', ["seed", "0 or more", "-1"]),
        ('{"agent": 3}', ["agent", "object", "3"]),
        ('{"agent": {"core": {"name": "rnn"}}}', ["core", "compressive", "'rnn'"]),
        ('{"agent": {"core": {"name": ["lstm"]}}}', ["core", "compressive", "['lstm']"]),
        ('{"learner": {"entropy_cost": Infinity}}', ["learner.entropy_cost", "a finite number", "inf"]),
        ('{"checkpoint_url": "memory://run"}', ["checkpoint_url", "outlives this process", "memory://run"]),
        ('{"agent": {"core": "lstm"}}', ["core", "object", "'lstm'"]),
        ('{"learner": {"optimizer": "sgd"}}', ["optimizer", "adam", "'sgd'"]),
        ('{"learner": {"clip_rho": "high"}}', ["learner.clip_rho", "a number", "'high'"]),
        ('{"env": "rooms:none"}', ["'none'", "full, full-randomised"]),
    ],
)
@pytest.mark.parametrize("command", [["launch", "--local", "--resume"], ["evaluate"]])
def test_a_damaged_config(command: list[str], text: str, words: list[str], copied: Copied, capfd: Capture) -> None:
    folder = copied()
    (folder / "config.json").write_text(text, encoding="latin-1")
    error = refusal([*command, str(folder)], capfd)
    assert all(word in error for word in words), error


@pytest.mark.parametrize("command", [["launch", "--local", "--resume"], ["evaluate"]])
def test_a_config_that_does_not_fit_the_checkpoint(command: list[str], copied: Copied, capfd: Capture) -> None:
    folder = copied()
    config = json.loads((folder / "config.json").read_text())
    config["agent"]["core"]["num_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    error = refusal([*command, str(folder)], capfd)
    assert str(folder / "checkpoints") in error
    assert "does not fit" in error


def truncate(folder: Path, step: int) -> Path:
    path = folder / "checkpoints" / f"{step:012d}"
    (path / "weights.safetensors").write_bytes((path / "weights.safetensors").read_bytes()[:1000])
    return path


def test_a_truncated_checkpoint_gives_way_to_the_one_before(
    finished: tuple[Path, str], copied: Copied, capfd: Capture
) -> None:
    folder = copied()
    *_, before, last = saved_steps(folder)
    bad = truncate(folder, last)
    main(["evaluate", str(folder), "--episodes", "1"])
    printed = capfd.readouterr()
    assert f"skipped checkpoint {bad.name}: weights.safetensors has 1000 bytes instead of" in printed.out
    assert f"{before:012d}" in printed.out
    assert printed.err == ""

    main(["launch", "--local", "--resume", str(folder), "--video-episodes", "0"])
    printed = capfd.readouterr()
    assert f"skipped checkpoint {bad.name}: weights.safetensors has 1000 bytes instead of" in printed.out
    assert f"resumed from {folder}/checkpoints/{before:012d}" in printed.out
    assert checkpoints.load_latest(folder).step == last
    expected, actual = (checkpoints.load_latest(run).parts["weights"] for run in (finished[0], folder))
    assert all(expected[name].equal(actual[name]) for name in expected), "what was lost was learned again"


@pytest.mark.parametrize("command", [["launch", "--local", "--resume"], ["evaluate"]])
def test_only_truncated_checkpoints(command: list[str], copied: Copied, capfd: Capture) -> None:
    folder = copied()
    for step in saved_steps(folder):
        truncate(folder, step)
    error = refusal([*command, str(folder)], capfd)
    assert "no checkpoint that can be read" in error
    assert error.count("1000 bytes instead of") == 3


def test_a_run_is_used_by_one_process_at_a_time(copied: Copied, capfd: Capture) -> None:
    folder = copied()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by another process" in refusal(["launch", "--local", "--resume", str(folder)], capfd)
        main(["evaluate", str(folder), "--episodes", "1"])


def test_what_a_launch_left_that_was_killed_before_its_first_checkpoint_is_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / "000000000000.tmp").mkdir(parents=True)
    for name in (".lock", "config.json", "config.json.tmp", "checkpoints/000000000000.tmp/state.json"):
        (folder / name).write_text("{")
    main(["launch", "--local", "--run", str(folder), f"--frames={frames(1)}", *TINY])
    assert saved_steps(folder)[-1] == frames(1) // 4


@pytest.fixture
def small_files() -> Callable[[], None]:
    """From the call on no file may grow beyond 100 kB, as on a disk that is full for all but the smallest files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_spares_the_checkpoints_before(
    copied: Copied, small_files: Callable[[], None], capfd: Capture
) -> None:
    folder = copied()
    before = saved_steps(folder)
    small_files()
    error = refusal(["launch", "--local", "--resume", str(folder), f"--frames={frames(40)}"], capfd)
    assert "cannot be written to" in error
    assert f"go on from {folder}/checkpoints/{before[-1]:012d} with: compressive launch --resume {folder}" in error
    assert saved_steps(folder) == before
    assert checkpoints.load_latest(folder).step == before[-1]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [f"{step:012d}" for step in before]


def test_a_full_disk_is_noticed_before_the_first_update(
    tmp_path: Path, small_files: Callable[[], None], capfd: Capture
) -> None:
    small_files()
    arguments = ["launch", "--local", "--run", str(tmp_path / "run"), *TINY, "--agent.torso-size=256"]
    assert "cannot be written to" in refusal(arguments, capfd)
    assert list(tmp_path.iterdir()) == []


def test_nobody_at_the_address(tmp_path: Path, capfd: Capture) -> None:
    error = refusal(["launch", "--run", str(tmp_path / "run"), *TINY, "--ray-address", "127.0.0.1:1"], capfd)
    assert "ray-address: expected a Ray cluster, got 127.0.0.1:1" in error
    assert list(tmp_path.iterdir()) == []
