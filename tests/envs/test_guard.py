"""Errors of environments name the environment, the call and the place; a call that does not return ends in time."""

import contextlib
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import envs
from actors.evaluation import ScriptedActor, play_episodes
from envs import guard
from tests.commands.cli import ENVIRONMENT

SPEC = "gym:tests.envs.faulty:Faulty-v0,"


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may take one second."""
    monkeypatch.setattr(guard, "_limit", 1.0)


def play(fields: str) -> None:
    """Makes environments, plays episodes and closes them, as every command does."""
    actor = ScriptedActor(envs.make_vector(SPEC + fields, 2), "random", 0, SPEC + fields)
    try:
        play_episodes(actor, 4)
    finally:
        actor.close()


WHEN = {"init": "while it was made", "reset": "in reset", "step,at=3": "in step with actions [", "close": "in close"}
"""How the message names the call in which the fault is."""


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
    hangs = fault == "sleep"
    verb = "hangs" if hangs else "failed"
    first, _, rest = str(caught.value).partition("\n")
    assert first.startswith(f"environment {SPEC}{fields} {verb} {WHEN[when]}")
    assert problem in first
    assert place in rest
    assert "envs/guard.py" not in rest
    assert isinstance(caught.value, envs.EnvironmentLost) == hangs
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
    monkeypatch.setattr(guard, "_limit", 0.4)
    for _ in range(10):
        with guard.calling("env", "in step"):
            time.sleep(0.1)


def test_a_call_that_ignores_the_first_interruption_is_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        with contextlib.suppress(BaseException):
            time.sleep(10_000)
        time.sleep(10_000)

    monkeypatch.setattr(guard, "_limit", 0.4)
    with pytest.raises(envs.EnvironmentLost, match="env hangs in step"), guard.calling("env", "in step"):
        hang()


def test_the_whole_time_is_left_after_what_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer has rung once before a process was waited for; after that it may ring once again."""
    monkeypatch.setattr(guard, "_limit", 1e6)
    with guard.calling("env", "in step"):
        signal.raise_signal(signal.SIGALRM)
        with guard.not_counted():
            pass
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(guard.Interrupted):
            signal.raise_signal(signal.SIGALRM)


@pytest.mark.slow
def test_the_time_that_a_process_is_stopped_does_not_count() -> None:
    program = """
import envs
from tests.envs.test_guard import play

envs.limit_calls(4.0)
play("fault=pause,at=2")
print("played")
"""
    variables = {**ENVIRONMENT, "PYTHONPATH": ":".join(sys.path)}
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, text=True, env=variables, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "pause\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(4.2)  # longer than a call may take
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
            assert output.endswith("played\n")
        finally:
            process.kill()


def test_a_handler_of_the_alarm_by_other_code_does_not_end_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As libraries set one for limits of their own."""
    monkeypatch.setattr(guard, "_limit", 0.4)
    with guard.calling("env", "while it was made"):
        signal.signal(signal.SIGALRM, lambda *_: None)
    with pytest.raises(envs.EnvironmentLost, match="env hangs in step"), guard.calling("env", "in step"):
        time.sleep(5)
