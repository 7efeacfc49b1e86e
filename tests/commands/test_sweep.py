"""Sweeps on Ray: killed and resumed, stopped by a signal, with trials that fail, die or hang, and of sequence models.

In processes of their own: Ray mixes up clusters that one process is on after another.
"""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.commands.cli import ENVIRONMENT, Commands, marked, run, saved_steps, start, write_corpus
from tests.commands.test_compare import table
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]
RECALL = "--env=diagnostic:recall,delay=3"
SMALL = [
    "--preset=memory", "--seeds=0", "--stages", "--actors.envs-per-actor=4", "--actors.unroll-length=16",
    "--agent.torso-size=16",
]  # fmt: skip
"""Options of a sweep with 64 steps an update, without the preset's stages."""
NARROW = "--agent.core.model-size=16"


def begin(words: list[object], screen: Path, mark: str) -> subprocess.Popen[str]:
    """Starts a sweep; what it prints is in the file `screen`, and its processes are those of `marked`."""
    environment = {**ENVIRONMENT, "MARK": mark}
    with screen.open("w") as output:
        return start(*words, output=output, start_new_session=True, env=environment)


def finished_trials(folder: Path) -> dict[str, int]:
    """The names of trials that have an evaluation, and when it was written."""
    evaluations = folder.glob("*/evaluation.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in evaluations}


def last_step(trial: Path) -> int:
    """The step of a trial's last checkpoint, 0 if it has none."""
    return max(saved_steps(trial), default=0)


def launches(trial: Path) -> list[int]:
    """The steps at which a trial was started and resumed."""
    lines = (trial / "launches.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def hyperparameters(trial: Path) -> set[bytes]:
    """Names of the hyperparameters in a trial's events for TensorBoard."""
    found: set[bytes] = set()
    for value in event_values(trial):
        if value.tag == "_hparams_/session_start_info":
            found.update(re.findall(rb"[a-z_.]*(?:seed|learning_rate)", value.metadata.SerializeToString()))
    return found


def scalars(trial: Path) -> set[str]:
    """Names of the scalars in a trial's events."""
    return {value.tag for value in event_values(trial)}


def event_values(trial: Path) -> list:
    """All summaries in a trial's events."""
    values = []
    for path in trial.glob("events.*"):
        for event in EventFileLoader(str(path)).Load():
            values.extend(event.summary.value)
    return values


def test_a_killed_sweep_is_resumed_and_a_failing_trial_fails_alone(tmp_path: Path) -> None:
    """Three trials, one of which cannot learn; the driver is killed after the first has finished."""
    folder = tmp_path / "sweep"
    mark = uuid.uuid4().hex
    words = ["compare", "--folder", folder, *SMALL, RECALL, NARROW, "--cores", "lstm"]
    words += ["--vary", "learner.learning-rate", "1e-3", "1e30", "1e-4", "--frames", 80 * 64]
    words += ["--log-every=1", "--checkpoint-seconds=1", "--eval-episodes=4"]
    good = "lstm-learning-rate-0.001-seed-0"
    bad = "lstm-learning-rate-1e-30-seed-0"
    slow = "lstm-learning-rate-0.0001-seed-0"

    process = begin(words, tmp_path / "first", mark)
    wait_until(lambda: finished_trials(folder) or process.poll() is not None)
    kept = finished_trials(folder)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()

    # The same command resumes it.
    process = begin(words, tmp_path / "second", mark)
    assert process.wait(PATIENCE) == 1, "a trial is missing"
    said = (tmp_path / "second").read_text()
    assert f"3, {len(kept)} of them finished" in said
    finished = finished_trials(folder)
    assert finished.keys() == {good, slow}
    assert {name: finished[name] for name in kept} == kept, "not done again"

    # The trial that failed is named, and why; the others are compared.
    assert re.search(rf"missing {bad}: .*not finite", said), said
    assert "Traceback" not in said
    assert "Traceback" in (folder / bad / "error.txt").read_text()
    page = (folder / "report.html").read_text()
    assert bad in page
    assert "1 run is missing" in page
    variants = [row["variant"] for row in table(folder / "report" / "runs.csv")]
    assert variants == ["lstm (learning rate 0.001)", "lstm (learning rate 0.0001)"]

    wait_until(lambda: not marked(mark))  # the processes of the first sweep ended by themselves
    assert hyperparameters(folder / good) == {b"learner.learning_rate"}
    assert {"evaluation/return", "evaluation/oracle_normalized"} <= scalars(folder / good)


def test_killed_trials_are_resumed_and_a_signal_to_the_group_stops_all(tmp_path: Path) -> None:
    """As `timeout` sends it. Ctrl-C is such a signal, too."""
    folder = tmp_path / "sweep"
    mark = uuid.uuid4().hex
    words = ["compare", "--folder", folder, *SMALL, RECALL, NARROW, "--cores", "lstm", "gru"]
    words += ["--frames", 10**7, "--checkpoint-seconds=0"]
    trials = [folder / "lstm-seed-0", folder / "gru-seed-0"]

    process = begin(words, tmp_path / "screen", mark)
    wait_until(lambda: all(map(last_step, trials)) or process.poll() is not None)
    before = [last_step(trial) for trial in trials]
    for pid in marked(mark, "ray::_run_trial"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(len(launches(trial)) == 2 for trial in trials) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM

    said = (tmp_path / "screen").read_text()
    assert said.count("restarted ") == 2
    assert "stopped; resume with: " in said
    for trial, step in zip(trials, before, strict=True):
        first, second = launches(trial)
        assert first == 0
        assert step <= second <= last_step(trial), "it went on from its last checkpoint"
    wait_until(lambda: not marked(mark))

    # A run is resumed with its sweep: alone it would act in other processes.
    assert f"resume with: compressive compare --resume {folder}\n" in run("status", trials[0]).stdout

    # A sweep that was stopped is resumed as well, and its old errors are gone.
    stopped = [last_step(trial) for trial in trials]
    for trial in trials:
        (trial / "error.txt").write_text("of an earlier attempt")
    process = begin(["compare", "--resume", folder], tmp_path / "again", mark)
    wait_until(lambda: all(len(launches(trial)) == 3 for trial in trials) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert [launches(trial)[2] for trial in trials] == stopped
    assert not any((trial / "error.txt").exists() for trial in trials)
    wait_until(lambda: not marked(mark))


ORDER = """
import sys
from pathlib import Path

import ray

from training.trial_processes import TrialProcesses

def note(folder, name):
    with (Path(folder) / "started").open("a") as file:
        file.write(f"{name}\\n")

folder = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
processes = TrialProcesses(map(str, range(8)), [{"CPU": 1}], note, lambda name: (folder, name))
while processes.any_left:
    processes.start_next()
    assert len(processes.groups) <= 3, processes.groups
    for name, error in processes.wait(2.0):
        assert error is None, error
        processes.release(name)
"""
"""Eight trials on two CPUs, each of which writes its number to a file. Only one waits for room at any time."""


def test_trials_start_in_their_order(tmp_path: Path) -> None:
    """So seeds come one after the other. Two that start together may write in either order."""
    subprocess.run([sys.executable, "-c", ORDER, tmp_path], env=ENVIRONMENT, check=True, timeout=PATIENCE)
    started = [int(number) for number in (tmp_path / "started").read_text().split()]
    assert sorted(started) == list(range(8))
    assert all(abs(number - place) <= 1 for place, number in enumerate(started))


GPUS = """
import os
import sys

import ray

from training.sweep import _hide_gpus_of_others
from training.trial_processes import TrialProcesses

def note(file, name):
    _hide_gpus_of_others()
    with open(file, "a") as written:
        print(os.environ["CUDA_VISIBLE_DEVICES"], file=written)

ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
for gpus in (0, 1):
    bundle = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
    processes = TrialProcesses(["trial"], [bundle], note, lambda name: (sys.argv[1], name))
    while processes.any_left:
        processes.start_next()
        for name, error in processes.wait(2.0):
            assert error is None, error
            processes.release(name)
"""
"""A trial without a GPU, and one with a GPU, write which GPUs they see, on a machine that says it has two."""


def test_a_trial_sees_the_gpus_that_it_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "seen"
    environment = ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "0,1"}
    subprocess.run([sys.executable, "-c", GPUS, file], env=environment, check=True, timeout=PATIENCE)
    without, with_one = file.read_text().splitlines()
    assert without == ""
    assert with_one in ("0", "1")


NO_ROOM = """
import sys
from pathlib import Path

import ray
from rich.console import Console

from tests.commands.test_trials import grid
from training import sweep
from training.console import LiveLine
from training.signals import stop_on_signals

folder = Path(sys.argv[1])
trials = grid(cores=("lru", "gru"))
sweep.begin(folder, trials, "command")
sweep.ROOM_SECONDS = 0.0
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
with stop_on_signals() as stop, LiveLine(Console(width=200), "comparing", "the first run") as line:
    sweep.run_trials(folder, trials, print, [{"CPU": 2.0, "custom": 1.0}, {"CPU": 1.0}, {"CPU": 1.0}], line, stop)
"""
"""A sweep on a cluster that has no room for its trials."""


def test_a_sweep_without_room_says_so_until_it_is_stopped(tmp_path: Path) -> None:
    screen = tmp_path / "screen"
    with screen.open("w") as output:
        words = [sys.executable, "-c", NO_ROOM, tmp_path / "sweep"]
        process = subprocess.Popen(words, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
    needs = "it needs 2 CPU and 1 custom, 2 x 1 CPU, and the cluster has free 1 CPU, 0 custom"
    wait_until(lambda: screen.read_text().count(f"no room for a run yet: {needs}") >= 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_environments_of_trials_that_hang_are_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    faulty = "gym:tests.envs.faulty:Faulty-v0,fault=sleep,at=80"
    words = ["compare", "--folder", folder, *SMALL, "--cores", "lstm", "gru"]
    words += ["--env", faulty, "--actors.step-seconds=0.5"]
    assert "no run finished" in run(*words).stderr
    for core in ("lstm", "gru"):
        assert "hangs in step" in (folder / f"{core}-seed-0" / "error.txt").read_text()


def test_a_sweep_of_sequence_models(tmp_path: Path, cli: Commands) -> None:
    folder = tmp_path / "all"
    words = ["compare", "--kind=speech", "--folder", folder, "--cores", "lstm", "wavenet", "--seeds", "0"]
    words += ["--learner.batch-size=2", "--learner.sequence-length=64", "--learner.steps=2", "--sample-seconds=0"]
    words += ["--evaluate-tokens=300", f"--corpus.path={write_corpus('speech', tmp_path / 'voices')}"]
    assert "linear predictor" in run(*words).stdout
    assert {row["variant"] for row in table(folder / "report" / "runs.csv")} == {"lstm", "wavenet"}

    # The same command has nothing left to do, and another sweep has to be elsewhere.
    before = finished_trials(folder)
    assert "2, 2 of them finished" in cli.run(*words)
    assert finished_trials(folder) == before
    cli.refuse(*words, "--learner.learning-rate=1e-3", words="holds another sweep")

    # Another seed of one model.
    added = run(*words, "--cores", "lstm", "--seeds", "1", "--add").stdout
    assert "3, 2 of them finished" in added
    assert len(table(folder / "report" / "runs.csv")) == 3
