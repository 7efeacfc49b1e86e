"""Environments that raise, exit or hang: what was learned is kept, and the error names the place."""

import errno
import json
import os
import re
import traceback
from pathlib import Path

import pytest

import envs
from storage.metrics import last_metrics
from storage.run import Run
from tests.commands.cli import SMALL, Commands, run, saved_steps
from training import sweep

FAULTY = "gym:tests.envs.faulty:Faulty-v0"
PROBLEMS = {
    "raise": "failed in step with actions [{}]: ValueError: not enough values to unpack (expected 2, got 1)",
    "sleep": "hangs in step with actions [{}]: expected it to return within 0.5 s (step-seconds)",
    "exit": "failed in step with actions [{}]: SystemExit: 0",
}


@pytest.mark.parametrize(
    "fault", ["raise", *[pytest.param(each, marks=pytest.mark.slow) for each in ("sleep", "exit")]]
)
def test_a_fault_in_training_keeps_what_was_learned(fault: str, tmp_path: Path, cli: Commands) -> None:
    folder, env = tmp_path / "run", f"{FAULTY},fault={fault},at=80"
    words = ["launch", "--local", "--run", folder, "--env", env, "--actors.step-seconds=0.5", *SMALL]
    if fault == "exit":  # in a process of its own, which must not end as if all were well
        ended = run(*words)
        assert ended.returncode == 1
        error = ended.stderr
    else:
        error = cli.fail(*words)
    steps = saved_steps(folder)[-1]
    assert steps == last_metrics(folder)["step"] > 100
    first, *trace, last = error.splitlines()
    before, _, after = PROBLEMS[fault].partition("{}")
    assert first.startswith(f"compressive: environment {env} {before}")
    assert after in error
    assert len(trace) in range(4, 10)
    assert "faulty.py" in trace[0]
    again = f"compressive launch --resume {folder} --local --allow {FAULTY}"
    assert last == f"resume from {folder}/checkpoints/{steps:012d} with: {again}"


@pytest.mark.parametrize("wrong", ["nan", "reward2"])
def test_a_wrong_value_in_training_is_one_line_and_keeps_what_was_learned(
    wrong: str, tmp_path: Path, cli: Commands
) -> None:
    """It does not advise a smaller learning rate."""
    folder, env = tmp_path / "run", f"gym:tests.envs.odd:Odd-v0,wrong={wrong},at=80"
    line = cli.refuse("launch", "--local", "--run", folder, "--env", env, *SMALL, words=f"environment {env}, step: ")
    steps = saved_steps(folder)[-1]
    assert steps == last_metrics(folder)["step"] > 100
    again = f"compressive launch --resume {folder} --local --allow gym:tests.envs.odd:Odd-v0"
    assert line.endswith(f"; resume from {folder}/checkpoints/{steps:012d} with: {again}\n")


def test_scores_do_not_need_a_film(tmp_path: Path, cli: Commands) -> None:
    """Of an environment that ends to draw itself. The message says why there is no film."""
    folder, env = tmp_path / "run", "gym:tests.envs.odd:Fading-v0"
    output = cli.run("launch", "--local", "--run", folder, "--env", env, *SMALL, "--frames=16", "--video-episodes=1")
    problem = f"environment {env},render_mode=rgb_array, render: expected uint8 [height, width, 3], got None\n"
    assert f"none, because filming failed: {problem}" in output
    assert (folder / "evaluation.json").is_file()


def test_the_evaluation_is_written_before_the_film(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filming may need more memory than there is, which ends the process."""

    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr("commands.launch.record", kill)
    folder = tmp_path / "run"
    words = ["--env=diagnostic:recall", "--frames=64", "--video-episodes=1"]
    with pytest.raises(Killed):
        cli.run("launch", "--local", f"--run={folder}", *SMALL, *words)
    assert json.loads((folder / "evaluation.json").read_text())["episodes"] == 2


def test_scores_are_printed_before_what_may_fail(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, env = tmp_path / "run", "gym:tests.envs.odd:Fading-v0"
    cli.run("launch", "--local", "--run", folder, "--env", env, *SMALL, "--frames=16")
    words = ["evaluate", str(folder), "--episodes=2", f"--allow={env}"]
    film = cli.refuse(*words, f"--video={tmp_path / 'film.mp4'}", words="render: expected uint8")
    assert film in cli.printed
    assert "2/2 episodes" in cli.printed
    assert re.search(r"return +\S", cli.printed), cli.printed

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("commands.evaluate.format_csv", fail)
    cli.refuse(*words, f"--csv={tmp_path / 'table.csv'}", words="No space left")
    assert re.search(r"return +\S", cli.printed), cli.printed


def test_a_class_without_registration_and_its_counters(tmp_path: Path, cli: Commands) -> None:
    """Its pictures differ in size."""
    folder = tmp_path / "run"
    words = ["launch", "--local", "--run", folder, "--env", "gym:tests.envs.odd:Zoomed", *SMALL]
    output = cli.run(*words, "--frames=400", "--eval-episodes=4", "--video-episodes=1")
    assert re.search(r"\nvideo +\S+\.mp4", output)
    assert re.search(r"\ndoors +3\.00  all equal\n", output)
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["counters"] == {"doors": {"mean": 3, "low": 3, "high": 3}}
    assert last_metrics(folder)["counter/doors"] == 3


def test_a_careless_environment_is_filmed_and_its_counter_is_no_result(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pace is less than a picture a second, and its pictures are single pixels."""
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = f"gym:tests.envs.odd:Careless,folder={elsewhere}"
    words = ["launch", "--local", "--env", env, *SMALL, "--frames=16", "--video-episodes=1", "--run"]
    words_of_refusal = [
        f"such as {tmp_path / 'runs' / 'a'}",
        f"an environment changes the working folder to {elsewhere}",
    ]
    cli.refuse(*words, "runs/a", words=words_of_refusal)
    assert list(elsewhere.iterdir()) == []

    output = cli.run(*words, tmp_path / "run")
    assert re.search(r"\nvideo +\S+\.mp4", output)
    assert re.search(r"\nreturn +4\.00  all equal\n", output)
    assert re.search(r"\ncounter/return +7\.00  all equal\n", output)


def test_what_an_environment_switches_for_all_is_as_before_after_it(tmp_path: Path, cli: Commands) -> None:
    """Gradients, torch's default dtype, and standard output, which it closes, too."""
    folder = tmp_path / "run"
    words = ["launch", "--local", "--run", folder, "--env", "gym:tests.envs.odd:Switching", *SMALL, "--frames=48"]
    assert re.search(r"\nreturn +4\.00  all equal\n", cli.run(*words))
    assert last_metrics(folder)["step"] >= 48


def test_a_wrong_value_is_noticed_before_training(tmp_path: Path, cli: Commands) -> None:
    for fields in ("wrong=nan", "arity=4", "space_changes=True"):
        env = f"gym:tests.envs.odd:Odd-v0,{fields}"
        cli.refuse("launch", "--local", "--run", tmp_path / "run", "--env", env, words=f"environment {env}, ")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_cannot_be_made(tmp_path: Path, cli: Commands) -> None:
    launch = ["launch", "--local", "--run", tmp_path / "run", "--env"]
    for fault in ("raise", "exit"):
        env = f"{FAULTY},fault={fault},when=init"
        assert f"compressive: environment {env} failed while it was made: " in cli.fail(*launch, env)
    cli.refuse(*launch, f"{FAULTY},depth=2", words="unexpected keyword argument 'depth'")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(envs.EnvironmentFailed) as failed:
        envs.make_vector(env, 1)
    Run(tmp_path).error_file.write_text("".join(traceback.format_exception(failed.value)))
    told = f"envs.guard.EnvironmentFailed: environment {env} failed while it was made: SystemExit: 0"
    assert sweep.failure(Run(tmp_path)) == told, "why a trial of a sweep failed"


@pytest.mark.parametrize("limit", ["--max-episode-steps=40", "--step-seconds=0.5"])
def test_an_evaluation_that_would_never_end(limit: str, cli: Commands) -> None:
    option = limit.partition("=")[0]
    env = f"{FAULTY},{'length=41' if 'max' in limit else 'fault=sleep,at=3'}"
    evaluate = ["evaluate", "--policy=random", "--env", env, "--episodes=4"]
    error = cli.fail(*evaluate, limit)
    assert error.startswith(f"compressive: environment {env}")
    assert option.removeprefix("--") in error
    cli.refuse(*evaluate, f"{option}=0", words=option.removeprefix("--").replace("-", "_"))


def test_the_evaluation_after_training_has_a_limit_too(tmp_path: Path, cli: Commands) -> None:
    folder = tmp_path / "run"
    launch = ["launch", "--local", "--run", folder, "--env", f"{FAULTY},length=41", *SMALL, "--frames=64"]
    first, last = cli.fail(*launch, "--actors.max-episode-steps=40").splitlines()
    assert "expected episodes of at most 40 steps (max-episode-steps), got one that has not ended" in first
    assert first.endswith(f"if it has no time limit, give it one: {FAULTY},length=41,max_episode_steps=1000")
    assert last.startswith(f"resume from {folder}/checkpoints/{saved_steps(folder)[-1]:012d} with: ")
    cli.run("evaluate", folder, "--episodes=1", "--max-episode-steps=50", "--allow", FAULTY)
