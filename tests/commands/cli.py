"""The command line as tests use it: processes that receive signals, or calls in this process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from commands import main
from sequences.speech import audio, synthetic
from storage import checkpoints

CONSTANT = ["--learner.learning-rate-schedule=constant", "--learner.entropy-cost-end=None"]
"""Without schedules a run may be resumed for longer, and then is what a longer one would have been."""
TINY = [
    "--agent.torso-size=16", "--agent.core.model-size=16", "--agent.core.mlp-size=16", "--actors.envs-per-actor=2",
    "--actors.unroll-length=16", "--eval-episodes=2", "--log-every=1", "--checkpoint-seconds=0", "--video-episodes=0",
    *CONSTANT,
]  # fmt: skip
"""Options of a run that writes a row of metrics and a checkpoint after every update."""
SMALL = [
    "--core=lstm", "--agent.torso-size=8", "--agent.core.model-size=8", "--actors.envs-per-actor=2",
    "--actors.unroll-length=8", "--eval-episodes=2", "--log-every=1", "--video-episodes=0", "--checkpoint-seconds=1000",
    *CONSTANT,
]  # fmt: skip
TINY_TEXT = [
    "--corpus=folder", "--model.core.model-size=16", "--model.core.num-layers=1", "--model.core.mlp-size=16",
    "--model.core.segment-size=8", "--model.core.memory-size=8", "--learner.batch-size=4",
    "--learner.sequence-length=16", "--learner.late-start=20", "--learner.late-accumulation-steps=2",
    "--evaluate-every=16", "--log-every=1",
]  # fmt: skip
COMPRESSIVE_TEXT = [*TINY_TEXT, "--model.core.compressed-size=8", "--model.core.dropout=0.1"]
TINY_SPEECH = [
    "--learner.batch-size=2", "--learner.sequence-length=64", "--learner.steps=6", "--learner.warmup-steps=1",
    "--evaluate-tokens=300", "--evaluate-every=3", "--log-every=1", "--checkpoint-seconds=0", "--threads=1",
    "--sample-seconds=0.01", "--keep-checkpoints=9",
]  # fmt: skip
TINY_IMAGES = [
    "--corpus.height=8", "--corpus.width=8", "--model.model-size=16", "--model.num-layers=1", "--model.mlp-size=16",
    "--model.segment-size=8", "--model.memory-size=8", "--model.compressed-size=8", "--learner.batch-size=4",
    "--learner.sequence-length=16", "--learner.steps=6", "--learner.warmup-steps=1", "--evaluate-every=3",
    "--evaluate-tokens=200", "--log-every=1", "--checkpoint-seconds=0", "--samples=1", "--keep-checkpoints=9",
]  # fmt: skip
TINY_SEQUENCE = {"speech": TINY_SPEECH, "images": TINY_IMAGES}
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
PATIENCE = 300.0
"""Seconds to wait for what takes five on an idle machine."""


def frames(updates: int) -> int:
    """Environment frames of a number of updates of a tiny run: updates x rows x steps x repeat."""
    return updates * 2 * 16 * 4


def write_corpus(kind: str, root: Path) -> Path:
    """Thirty short programs, four sounds of a quarter of a second, or six pictures."""
    root.mkdir()
    for index in range(30 if kind == "text" else 0):
        (root / f"{index}.txt").write_text(f"def function_{index}(x):\n    return x + {index}\n" * 20)
    for number in range(4 if kind == "speech" else 0):
        audio.write_wav(root / f"{number}.wav", synthetic.utterance(0, number)[:1000], 4000)
    for number in range(6 if kind == "images" else 0):
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
    return root


def command(*arguments: object) -> list[str]:
    """The words that start `compressive` in another process."""
    return [sys.executable, "-c", "from commands import main; main()", *map(str, arguments)]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in another process to its end."""
    environment = ENVIRONMENT | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=200, env=environment)


def _default_signals() -> None:
    """Where tests run in the background, Ctrl-C may be ignored: children must not inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    *arguments: object, output: Any = subprocess.DEVNULL, preexec_fn: Callable[[], Any] = int, **options: Any
) -> subprocess.Popen[str]:
    """Starts a command in another process."""
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
    """Waits for a condition; fails if the process ends first."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process is None or process.poll() is None, f"the process ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"waited {patience} s"
        time.sleep(0.05)


def marked(mark: str, title: str = "") -> set[int]:
    """Processes with MARK=`mark` in their environment and `title` in their command.

    Ray's two agents are left out: they wait a minute after their node's program was killed.
    """
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            if title in command and f"MARK={mark}" in (entry / "environ").read_text():
                found |= set() if re.match("ray::(Dashboard|RuntimeEnv)Agent", command) else {int(entry.name)}
        except OSError:
            continue  # another user's process, or one that has ended
    return found


def saved_steps(folder: Path) -> list[int]:
    """Steps of the run's complete checkpoints, oldest first."""
    return sorted(int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdigit())


def state(folder: Path) -> dict[str, bytes]:
    """Weights and optimizer of the last checkpoint, byte for byte."""
    path = checkpoints.load_latest(folder).path
    return {name: (path / f"{name}.safetensors").read_bytes() for name in ("weights", "optimizer")}


def refusal(arguments: list[str], capfd: Any) -> str:
    """Runs a command in this process that must end with status 2 and one line, which is returned."""
    return Commands(capfd).refuse(*arguments)


class Commands:
    """Runs commands in this process; arguments may be anything that has a text."""

    def __init__(self, capfd: Any) -> None:
        self.capfd = capfd

    def run(self, *arguments: object) -> str:
        """A command that succeeds; returns its standard output."""
        self.capfd.readouterr()
        main([str(argument) for argument in arguments])
        return self.capfd.readouterr().out

    def fail(self, *arguments: object, status: int = 1) -> str:
        """A command that ends with a status; returns its standard error."""
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        error = self.capfd.readouterr().err
        assert stop.value.code == status, error
        assert error.startswith("compressive: "), error
        return error

    def refuse(self, *arguments: object, words: str | list[str] = ()) -> str:
        """A command that ends with status 2 and one line with certain words; returns the line."""
        error = self.fail(*arguments, status=2)
        assert len(error.splitlines()) == 1, error
        missing = [word for word in ([words] if isinstance(words, str) else words) if word not in error]
        assert not missing, f"{missing} not in: {error}"
        return error
