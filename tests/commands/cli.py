"""The command line as tests use it: processes that receive signals, or calls in this process."""

import os
import re
import signal
import subprocess
import sys
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
"""Options of a run with a small recurrent core, for tests in which the core does not matter."""
TINY_TEXT = [
    "--corpus=folder", "--model.core.model-size=16", "--model.core.num-layers=1", "--model.core.mlp-size=16",
    "--model.core.segment-size=8", "--model.core.memory-size=8", "--learner.batch-size=4",
    "--learner.sequence-length=16", "--learner.late-start=20", "--learner.late-accumulation-steps=2",
    "--evaluate-every=16", "--log-every=1",
]  # fmt: skip
"""Options of a text model of one layer. Beside `--corpus=folder` it needs a `--path`."""
COMPRESSIVE_TEXT = [*TINY_TEXT, "--model.core.compressed-size=8", "--model.core.dropout=0.1"]
"""The same with compressed memory and dropout, which draws random numbers."""
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
"""Options of runs of six steps that keep all their checkpoints. Their `--corpus.path` is missing."""
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
"""Variables of every command that runs in another process."""
RUN_SECONDS = 200
"""A command that runs in another process for longer than this hangs."""
ROOT = Path(__file__).parents[2]


def frames(updates: int) -> int:
    """Environment frames of a number of updates of a tiny run."""
    rows = 2
    steps_per_row = 16
    frames_per_step = 4
    return updates * rows * steps_per_row * frames_per_step


def write_corpus(kind: str, root: Path) -> Path:
    """Thirty short programs ("text"), four sounds of a quarter of a second ("speech"), or six pictures ("images")."""
    root.mkdir()
    if kind == "text":
        for number in range(30):
            (root / f"{number}.txt").write_text(f"def function_{number}(x):\n    return x + {number}\n" * 20)
    elif kind == "speech":
        for number in range(4):
            audio.write_wav(root / f"{number}.wav", synthetic.utterance(0, number)[:1000], sample_rate=4000)
    else:
        assert kind == "images"
        for number in range(6):
            pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"{number}.png")
    return root


def command(*arguments: object) -> list[str]:
    """The words that start `compressive` in another process."""
    return [sys.executable, "-c", "from commands import main; main()", *map(str, arguments)]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in another process to its end."""
    environment = ENVIRONMENT | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_SECONDS, env=environment)


def run_in(folder: Path, *arguments: object) -> None:
    """A command as the installed program is run in a folder, where Python does not look for modules by itself."""
    words = [sys.executable, "-P", "-m", "commands", *map(str, arguments)]
    variables = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr


def _default_signals() -> None:
    """Where tests run in the background, Ctrl-C may be ignored: children must not inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    *arguments: object, output: Any = subprocess.DEVNULL, preexec_fn: Callable[[], Any] = int, **options: Any
) -> subprocess.Popen[str]:
    """Starts a command in another process, which first calls `preexec_fn`."""

    def prepare() -> None:
        _default_signals()
        preexec_fn()

    options = {"env": ENVIRONMENT} | options
    return subprocess.Popen(
        command(*arguments), stdout=output, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare, **options
    )


def marked(mark: str, title: str = "") -> set[int]:
    """Processes with MARK=`mark` in their environment and `title` in their command.

    Ray's two agents are left out: they wait a minute after their node's program was killed.
    """
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_text()
            variables = (entry / "environ").read_text()
        except OSError:
            continue  # another user's process, or one that has ended
        is_agent = re.match("ray::(Dashboard|RuntimeEnv)Agent", line)
        if title in line and f"MARK={mark}" in variables and not is_agent:
            found.add(int(entry.name))
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
    """Runs commands in this process; arguments may be anything that has a text.

    printed: what the latest one printed, its standard output and then its standard error.
    """

    def __init__(self, capfd: Any) -> None:
        self.capfd = capfd
        self.printed = ""

    def run(self, *arguments: object) -> str:
        """A command that succeeds; returns its standard output."""
        self.capfd.readouterr()
        main([str(argument) for argument in arguments])
        return self._read().out

    def _read(self) -> Any:
        found = self.capfd.readouterr()
        self.printed = found.out + found.err
        return found

    def fail(self, *arguments: object, status: int = 1) -> str:
        """A command that ends with a status; returns its standard error, which begins with the program's name."""
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        error = self._read().err
        assert stop.value.code == status, error
        assert error.startswith("compressive: "), error
        return error

    def refuse(self, *arguments: object, words: str | list[str] = ()) -> str:
        """A command that ends with status 2 and one line with certain words; returns the line."""
        error = self.fail(*arguments, status=2)
        assert len(error.splitlines()) == 1, error
        expected = [words] if isinstance(words, str) else words
        missing = [word for word in expected if word not in error]
        assert not missing, f"{missing} not in: {error}"
        return error
