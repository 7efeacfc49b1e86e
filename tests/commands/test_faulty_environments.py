"""An environment that raises, exits or hangs while it trains: what was learned is kept, and what went wrong is said."""

import traceback
from pathlib import Path

import pytest

import envs
from commands import main
from envs import guard
from learner.metrics import last_metrics
from tests.commands.cli import refusal, run, saved_steps
from training.run import Run
from training.sweep import failure

Capture = pytest.CaptureFixture[str]
FAULTY = "gym:tests.envs.faulty:Faulty-v0"
SMALL = [
    "--core=lstm",
    "--agent.torso-size=8",
    "--agent.core.model-size=8",
    "--actors.envs-per-actor=2",
    "--actors.unroll-length=8",
    "--eval-episodes=2",
    "--log-every=1",
    "--video-episodes=0",
    "--checkpoint-seconds=1000",
]


@pytest.fixture(autouse=True)
def _limit_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_limit", guard.STEP_SECONDS)


def check(error: str, folder: Path, what: str) -> None:
    """Whether a run that ended with an error says what went wrong, and where, and kept what it had learned."""
    steps = saved_steps(folder)[-1]
    assert steps == last_metrics(folder)["step"] > 100
    first, *frames, last = error.splitlines()
    assert first.startswith(f"compressive: environment {FAULTY},{what}")
    assert len(frames) in range(4, 10)
    assert "faulty.py" in frames[0]
    assert last == (
        f"go on from {folder}/checkpoints/{steps:012d} with: compressive launch --resume {folder} --local "
        f"--allow-env {FAULTY}"
    )


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("raise", "failed in step with actions [{}]: ValueError: not enough values to unpack (expected 2, got 1)"),
        ("sleep", "hangs in step with actions [{}]: expected it to return within 0.5 s (step-seconds)"),
    ],
)
def test_what_was_learned_before_an_environments_error_is_kept(
    fault: str, problem: str, tmp_path: Path, capfd: Capture
) -> None:
    folder, env = tmp_path / "run", f"{FAULTY},fault={fault},at=80"
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--local", "--run", str(folder), "--env", env, "--actors.step-seconds=0.5", *SMALL])
    assert stop.value.code == 1
    before, _, after = problem.partition("{}")
    error = capfd.readouterr().err
    check(error, folder, f"fault={fault},at=80 {before}")
    assert after in error


def test_an_exit_in_an_environment_does_not_end_a_run_as_if_it_were_done(tmp_path: Path) -> None:
    folder, env = tmp_path / "run", f"{FAULTY},fault=exit,at=80"
    ended = run("launch", "--local", "--run", folder, "--env", env, *SMALL)
    assert ended.returncode == 1
    check(ended.stderr, folder, "fault=exit,at=80 failed in step with actions [")


def test_an_environment_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, capfd: Capture) -> None:
    for fault in ("raise", "exit"):
        with pytest.raises(SystemExit) as stop:
            main(["launch", "--local", "--run", str(tmp_path / "run"), "--env", f"{FAULTY},fault={fault},when=init"])
        assert stop.value.code == 1
        assert f"compressive: environment {FAULTY},fault={fault},when=init failed while it was made: " in (
            capfd.readouterr().err
        )
    assert list(tmp_path.iterdir()) == []
    error = refusal(["launch", "--local", "--run", str(tmp_path / "run"), "--env", f"{FAULTY},depth=2"], capfd)
    assert "unexpected keyword argument 'depth'" in error


@pytest.mark.parametrize("limit", [("--max-episode-steps=40",), ("--step-seconds=0.5",)])
def test_an_evaluation_that_would_never_end_is_an_error(limit: tuple[str], capfd: Capture) -> None:
    fault = "length=41" if limit[0].startswith("--max") else "fault=sleep,at=3"
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "--policy=random", "--env", f"{FAULTY},{fault}", "--episodes=4", *limit])
    assert stop.value.code == 1
    error = capfd.readouterr().err
    assert error.startswith(f"compressive: environment {FAULTY},{fault}")
    assert limit[0].removeprefix("--").partition("=")[0] in error
    assert refusal(["evaluate", "--policy=random", "--env", FAULTY, f"{limit[0].partition('=')[0]}=0"], capfd)


def test_the_evaluation_after_training_has_a_limit_too(tmp_path: Path, capfd: Capture) -> None:
    folder = tmp_path / "run"
    limit = ["--actors.max-episode-steps=40", "--frames=64"]
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--local", "--run", str(folder), "--env", f"{FAULTY},length=41", *SMALL, *limit])
    assert stop.value.code == 1
    first, last = capfd.readouterr().err.splitlines()
    assert "expected episodes of at most 40 steps (max-episode-steps), got one that has not ended" in first
    assert last.startswith(f"go on from {folder}/checkpoints/{saved_steps(folder)[-1]:012d} with: ")
    limits = ["--max-episode-steps=50", "--allow-env", FAULTY]
    main(["evaluate", str(folder), "--episodes=1", *limits])


def test_a_sweep_says_why_a_trial_failed_not_where(tmp_path: Path) -> None:
    spec = f"{FAULTY},fault=exit,when=init"
    try:
        envs.make_vector(spec, 1)
    except envs.EnvironmentFailed:
        Run(tmp_path).error_file.write_text(traceback.format_exc())
    said = f"envs.guard.EnvironmentFailed: environment {spec} failed while it was made: SystemExit: 0"
    assert failure(Run(tmp_path)) == said
