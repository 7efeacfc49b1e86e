"""The command line as tests use it: real processes with real signals, or in this process where only words matter."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import main
from learner import checkpoints

TINY = [
    "--agent.torso-size=16",
    "--agent.core.model-size=16",
    "--agent.core.mlp-size=16",
    "--actors.envs-per-actor=2",
    "--actors.unroll-length=16",
    "--eval-episodes=2",
    "--log-every=1",
    "--checkpoint-seconds=0",
    "--video-episodes=0",
]
"""Options of a run whose every update leaves a row of metrics and a checkpoint."""
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
PATIENCE = 300.0
"""Seconds to wait for what a busy machine does in five."""


def frames(updates: int) -> int:
    """Environment frames of `updates` updates of a tiny run before any episode ends: rows x steps x repeat."""
    return updates * 2 * 16 * 4


def command(*arguments: object) -> list[str]:
    """The words that start `compressive` in another process."""
    return [sys.executable, "-c", "from commands import main; main()", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=200, env=ENVIRONMENT)


def _default_signals() -> None:
    """Where tests run in the background, Ctrl-C may be ignored: children must not inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    *arguments: object, output: Any = subprocess.DEVNULL, preexec_fn: Callable[[], Any] = int, **options: Any
) -> subprocess.Popen[str]:
    """Starts a command and leaves it running."""
    return subprocess.Popen(
        command(*arguments),
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: (_default_signals(), preexec_fn()),
        **{"env": ENVIRONMENT, **options},
    )


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, patience: float = PATIENCE
) -> None:
    """Waits until something holds, as long as the process lives."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process is None or process.poll() is None, f"the process ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"waited {patience} s"
        time.sleep(0.05)


def marked(mark: str, title: str = "") -> set[int]:
    """Processes that were started, however indirectly, with MARK=`mark` in their environment, and are called so.

    Without Ray's two agents, which wait a minute for a node whose program was killed, and do nothing.
    """
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            if title in command and f"MARK={mark}" in (entry / "environ").read_text():
                found |= set() if re.match("ray::(Dashboard|RuntimeEnv)Agent", command) else {int(entry.name)}
        except OSError:
            continue  # not ours, or gone meanwhile
    return found


def saved_steps(folder: Path) -> list[int]:
    """Steps of the run's complete checkpoints, oldest first."""
    return sorted(int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdigit())


def state(folder: Path) -> dict[str, bytes]:
    """Weights and optimizer of the last checkpoint, byte for byte."""
    path = checkpoints.load_latest(folder).path
    return {name: (path / f"{name}.safetensors").read_bytes() for name in ("weights", "optimizer")}


def refusal(arguments: list[str], capfd: Any) -> str:
    """Runs a command in this process that must fail as bad input does; returns the one line that it says."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1, error
    assert error.startswith("compressive: ")
    return error
