"""Sweeps on Ray: killed and resumed, stopped by Ctrl-C, with trials that fail, die or hang, and of sequence models.

In processes of their own: Ray mixes up clusters that one process is on after another.
"""

import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.commands.cli import ENVIRONMENT, PATIENCE, Commands, marked, run, saved_steps, start, wait_until
from tests.commands.test_compare import table

RECALL = "diagnostic:recall,delay=3"


def hparams(run: Path) -> tuple[set[bytes], set[str]]:
    """Names of the hyperparameters in a run's events, and of its scalars."""
    events = [event for path in run.glob("events.*") for event in EventFileLoader(str(path)).Load()]
    values = [value for event in events for value in event.summary.value]
    started = [each.metadata.SerializeToString() for each in values if each.tag == "_hparams_/session_start_info"]
    found = {name for text in started for name in re.findall(rb"[a-z_.]*(?:seed|learning_rate)", text)}
    return found, {value.tag for value in values}


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_sweep_is_resumed_and_a_failing_trial_fails_alone(tmp_path: Path) -> None:
    """Three runs, one of which cannot learn; the driver is killed after the first has finished."""
    folder, mark = tmp_path / "sweep", uuid.uuid4().hex
    words = ["compare", "--folder", folder, "--preset", "memory", "--cores", "lstm", "--env", RECALL, "--stages"]
    words += ["--vary", "learner.learning-rate", "1e-3", "1e30", "1e-4", "--seeds", "0", "--frames", 80 * 64]
    words += ["--actors.envs-per-actor=4", "--actors.unroll-length=16", "--log-every=1", "--checkpoint-seconds=1"]
    words += ["--eval-episodes=4", "--agent.core.model-size=16", "--agent.torso-size=16"]
    good, bad, slow = (f"lstm-learning-rate-{rate}-seed-0" for rate in ("0.001", "1e-30", "0.0001"))

    def begin(number: int) -> tuple:
        screen = (tmp_path / f"screen{number}").open("w+")
        return start(*words, output=screen, start_new_session=True, env={**ENVIRONMENT, "MARK": mark}), screen

    process, screen = begin(0)
    finished = lambda: [path.parent.name for path in folder.glob("*/evaluation.json")]  # noqa: E731
    wait_until(lambda: finished() or process.poll() is not None)
    first = finished()
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {name: (folder / name / "evaluation.json").stat().st_mtime_ns for name in first}

    process, screen = begin(1)
    assert process.wait(PATIENCE) == 1, "a run is missing"
    screen.seek(0)
    said = screen.read()
    assert f"3, {len(first)} of them finished" in said
    assert {name: (folder / name / "evaluation.json").stat().st_mtime_ns for name in first} == kept, "not done again"
    assert set(finished()) == {good, slow}
    assert re.search(rf"missing {bad}: .*not finite", said), said
    assert "Traceback" in (folder / bad / "error.txt").read_text()
    assert "Traceback" not in said
    page = (folder / "report.html").read_text()
    assert bad in page
    assert "1 run is missing" in page
    variants = [row["variant"] for row in table(folder / "report" / "runs.csv")]
    assert variants == ["lstm (learning rate 0.001)", "lstm (learning rate 0.0001)"]
    wait_until(lambda: not marked(mark))  # the processes of the first sweep ended by themselves
    parameters, scalars = hparams(folder / good)
    assert parameters == {b"learner.learning_rate"}
    assert {"evaluation/return", "evaluation/oracle_normalised"} <= scalars


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_that_is_killed_is_resumed_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    folder, mark = tmp_path / "sweep", uuid.uuid4().hex
    words = ["compare", "--folder", folder, "--preset", "memory", "--cores", "lstm", "gru", "--env", RECALL, "--stages"]
    words += ["--seeds", "0", "--frames", 10**7, "--actors.envs-per-actor=4", "--actors.unroll-length=16"]
    words += ["--checkpoint-seconds=0", "--agent.core.model-size=16", "--agent.torso-size=16"]
    trials = [folder / f"{core}-seed-0" for core in ("lstm", "gru")]

    def last_steps() -> list[int]:
        return [max(saved_steps(trial), default=0) for trial in trials]

    def launches(trial: Path) -> list[int]:
        return [json.loads(line)["step"] for line in (trial / "launches.jsonl").read_text().splitlines()]

    with (tmp_path / "screen").open("w+") as screen:
        process = start(*words, output=screen, start_new_session=True, env={**ENVIRONMENT, "MARK": mark})
        wait_until(lambda: all(last_steps()) or process.poll() is not None)
        before = last_steps()
        for pid in marked(mark, "ray::_run_trial"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(len(launches(trial)) == 2 for trial in trials) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
        screen.seek(0)
        said = screen.read()
    assert said.count("restarted ") == 2
    assert "stopped; resume with: " in said
    for trial, step in zip(trials, before):
        first, second = launches(trial)
        assert first == 0
        assert step <= second <= saved_steps(trial)[-1], "it went on from its last checkpoint"
    wait_until(lambda: not marked(mark))


@pytest.mark.ray
@pytest.mark.slow
def test_environments_of_trials_that_hang_are_interrupted(tmp_path: Path) -> None:
    words = ["compare", "--folder", tmp_path / "sweep", "--preset", "memory", "--cores", "lstm", "gru", "--stages"]
    words += ["--env", "gym:tests.envs.faulty:Faulty-v0,fault=sleep,at=80", "--seeds", "0", "--actors.step-seconds=0.5"]
    words += ["--actors.envs-per-actor=4", "--actors.unroll-length=16", "--agent.torso-size=16"]
    assert "no run finished" in run(*words).stderr
    for core in ("lstm", "gru"):
        assert "hangs in step" in (tmp_path / "sweep" / f"{core}-seed-0" / "error.txt").read_text()


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_of_sequence_models(tmp_path: Path, cli: Commands) -> None:
    words = ["compare", "--kind=speech", "--folder", tmp_path / "all", "--cores", "lstm", "wavenet", "--seeds", "0"]
    words += ["--learner.batch-size=2", "--learner.sequence-length=64", "--learner.steps=2", "--sample-seconds=0"]
    assert "linear predictor" in run(*words).stdout
    assert {row["variant"] for row in table(tmp_path / "all" / "report" / "runs.csv")} == {"lstm", "wavenet"}
    before = (tmp_path / "all" / "lstm-seed-0" / "evaluation.json").stat().st_mtime_ns
    assert "2, 2 of them finished" in cli.run(*words)
    assert (tmp_path / "all" / "lstm-seed-0" / "evaluation.json").stat().st_mtime_ns == before
    cli.refuse(*words, "--learner.learning-rate=1e-3", words="holds another sweep")

    # Another seed of one model.
    added = run(*words, "--cores", "lstm", "--seeds", "1", "--add").stdout
    assert "3, 2 of them finished" in added
    assert len(table(tmp_path / "all" / "report" / "runs.csv")) == 3
