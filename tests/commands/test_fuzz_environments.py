"""Generated environments: a run with one is fine, or ends with one line that names what is wrong with it.

An error of the environment's own code is told with its place there. A few cases run with every test, 120 with the slow
ones, or a multiple of these; see `fuzz.TIMES`.
"""

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from commands import main
from tests.commands import cli
from tests.commands.fuzz import LONGEST, TIMES, Outcome, run_case

NAME = "gym:tests.envs.generated:Generated-v0"
LAUNCH = ["launch", "--local", *cli.SMALL, "--run=NEW", "--frames=96", "--eval-episodes=1", "--threads=1"]
EVALUATE = ["evaluate", "--policy=random", "--episodes=2", "--max-episode-steps=40"]
SECONDS = 120.0
"""A case that takes longer hangs. Most take one, those with processes of their own ten."""


@pytest.fixture(autouse=True)
def _few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only cases that ask for processes have some, as in `run_case`."""
    monkeypatch.setattr("envs.processes.most_cores", 1)


def arguments_of(case: int) -> list[str]:
    """The command of a case: mostly training, some with a film, few with environments in processes of their own."""
    draw = random.Random(f"command {case}")
    env = f"{NAME},case={case}"
    if draw.random() < 0.3:
        env += ",max_episode_steps=6"
    step_seconds = 1
    if draw.random() < 0.04:
        env += ",processes=1"
        step_seconds = 5  # also to end a process, on a machine that does other things
    if draw.random() < 0.2:
        return [*EVALUATE, "--env", env, f"--step-seconds={step_seconds}"]
    launch = [*LAUNCH, "--env", env, f"--actors.step-seconds={step_seconds}", "--actors.max-episode-steps=40"]
    if draw.random() < 0.2:
        launch.append("--video-episodes=1")
    return launch


def fault(outcome: Outcome, case: int) -> str | None:
    """What is wrong with how the command of a case ended; None if nothing is."""
    lines = outcome.err.rstrip("\n").split("\n")
    if outcome.status is None:
        return "hung"
    if "Traceback (most recent call last)" in outcome.err:
        return f"traceback: {lines[-1]}"
    if outcome.status == 0:
        return None

    # The message is what follows the program's name. Its first line names the environment.
    told = list(itertools.dropwhile(lambda line: not line.startswith("compressive: "), lines))
    if not told or f"environment {NAME},case={case}" not in told[0]:
        return f"expected a line that names the environment, got {lines[-3:]}"
    characters = sum(map(len, told))
    if characters > 2 * LONGEST:
        return f"{characters} characters"

    # The environment breaks the interface: one line is enough.
    if outcome.status == 2:
        return None if len(told) == 1 else f"expected one line, got {told}"

    # Its own code fails: the first place is in that code, unless there is none. A process that hangs is killed from
    # outside: only its own number is known, not the line.
    places = [line for line in told if line.startswith("  File ")]
    is_own_code = bool(places) and "generated.py" in places[0]
    is_killed = " hangs in " in told[0] and "in environment process" in told[0]
    is_endless = "expected episodes of at most 40 steps" in told[0]
    if outcome.status == 1 and (is_own_code or is_killed or is_endless):
        return None
    return f"status {outcome.status}, expected a place in the environment's code, got {told}"


def run_here(arguments: list[str], capfd: Any) -> Outcome:
    """Runs a command in this process."""
    capfd.readouterr()
    try:
        main(arguments)
        status: Any = 0
    except SystemExit as stop:
        status = stop.code
    return Outcome(status, *capfd.readouterr())


def test_a_few_environments(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    faults = []
    for case in range(20):
        arguments = arguments_of(case)
        if "processes=" in "".join(arguments):
            continue
        if found := fault(run_here(arguments, capfd), case):
            faults.append(f"{case}: {found:.500}")
        shutil.rmtree("NEW", ignore_errors=True)
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("first", range(1000, 1000 + 120 * TIMES, 30))
def test_many_environments(first: int, tmp_path: Path) -> None:
    faults = []
    for case in range(first, first + 30):
        if found := fault(run_case(arguments_of(case), tmp_path, SECONDS), case):
            faults.append(f"{case}: {found:.500}")
        shutil.rmtree(tmp_path / "NEW", ignore_errors=True)
    assert not faults, "\n".join(faults)
