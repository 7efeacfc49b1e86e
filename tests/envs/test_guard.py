"""Errors of environments name the environment, the call and the place; a call that does not return ends in time."""

import contextlib
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import envs
from actors.evaluation import ScriptedActor, play_episodes
from envs import guard
from tests.commands.cli import ENVIRONMENT

SPEC = "gym:tests.envs.faulty:Faulty-v0,"


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_limit", 1.0)


def play(fields: str) -> None:
    """Makes environments, plays episodes and closes them, as every command does."""
    actor = ScriptedActor(envs.make_vector(SPEC + fields, 2), "random", 0, SPEC + fields)
    try:
        play_episodes(actor, 4)
    finally:
        actor.close()


WHEN = {"init": "while it was made", "reset": "in reset", "step,at=3": "in step with actions [", "close": "in close"}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("fault", "problem", "place"),
    [
        ("raise", "ValueError: not enough values to unpack", "in parse\n    word, number = reply.split()"),
        ("exit", "SystemExit: 0", "sys.exit(0)"),
        ("sleep", "expected it to return within 1 s (step-seconds)", "time.sleep(10_000)"),
    ],
)
def test_the_environment_the_call_and_the_place_are_said(fault: str, problem: str, place: str, when: str) -> None:
    fields = f"fault={fault},when={when}"
    with pytest.raises(envs.EnvironmentFailed) as caught:
        play(fields)
    first, _, rest = str(caught.value).partition("\n")
    assert first.startswith(f"environment {SPEC}{fields} {'hangs' if fault == 'sleep' else 'failed'} {WHEN[when]}")
    assert problem in first
    assert place in rest
    assert "envs/guard.py" not in rest
    assert isinstance(caught.value, envs.EnvironmentLost) == (fault == "sleep")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "it travels from Ray's actors"


def test_an_error_in_closing_does_not_hide_the_one_before() -> None:
    actor = ScriptedActor(envs.make_vector(f"{SPEC}fault=exit,when=close", 1), "random", 0)
    with pytest.raises(KeyError, match="before"), contextlib.closing(actor):
        raise KeyError("before")


def test_a_missing_package_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("dm:needs_more:Env", "gym:needs_more:Env-v0"):
        with pytest.raises(envs.EnvironmentFailed, match=r"No module named 'nowhere_at_all'\n  File .*needs_more"):
            envs.make_vector(spec, 1)


def test_ctrl_c_in_an_environment_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), guard.calling("env", "in step"):
        raise KeyboardInterrupt


def test_many_short_calls_are_no_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_limit", 300.0)  # the watchdog's own checks add next to nothing
    for _ in range(60):
        with guard.calling("env", "in step"):
            guard._count(200.0)
    with pytest.raises(envs.EnvironmentLost), guard.calling("env", "in step"):
        [guard._count(seconds) for seconds in (200.0, 105.0)]


@contextlib.contextmanager
def other_process(fields: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that plays with a limit of one second, and half a second of grace."""
    program = (
        "import envs; from envs import guard; from tests.envs.test_guard import play;"
        f"envs.limit_calls(1.0); guard.GRACE_SECONDS = 0.5; play('{fields}'); print('played')"
    )
    variables, pipe = {**ENVIRONMENT, "PYTHONPATH": ":".join(sys.path)}, subprocess.PIPE
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, text=True, env=variables, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("stubborn", 1, f"compressive: environment {SPEC}fault=stubborn hangs in step with actions ["),
        ("c", 1, "and cannot be interrupted: this process ends\n"),
        ("lock", -signal.SIGPROF, "in step\n"),
    ],
)
def test_what_cannot_be_interrupted_ends_its_process(fault: str, status: int, said: str) -> None:
    with other_process(f"fault={fault}") as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == status
    assert said in error
    assert "faulty.py" in error


@pytest.mark.slow
def test_the_time_that_a_process_is_stopped_does_not_count() -> None:
    with other_process("fault=pause,at=2") as process:
        assert process.stdout.readline() == "pause\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0].endswith("played\n")
