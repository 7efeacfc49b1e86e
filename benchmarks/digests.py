"""Digests of the weights that short runs end with, under fixed seeds: a change of the code that keeps them is a change
of the same numbers.

    python -m benchmarks.digests > before.json    # and after the change: > after.json

Only the command line is used, so that the code before and the code after may have other modules. Digests depend on the
machine and on torch: compare two of the same machine. Runs whose actors are on Ray are not repeatable, and not here.
"""

import hashlib
import subprocess
import sys
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from agent.core import CORES
from benchmarks.common import run

AGENT = [
    "--agent.torso-size=16",
    "--actors.envs-per-actor=2",
    "--actors.unroll-length=16",
    "--eval-episodes=2",
    "--video-episodes=0",
    "--log-every=1",
    "--threads=1",
]
TEXT = [
    "--model.core.model-size=16",
    "--model.core.num-layers=1",
    "--model.core.segment-size=8",
    "--model.core.memory-size=8",
    "--learner.batch-size=4",
    "--learner.sequence-length=16",
]
SEQUENCE = [
    "--learner.steps=6",
    "--learner.warmup-steps=1",
    "--evaluate-every=3",
    "--evaluate-tokens=200",
    "--log-every=1",
    "--threads=1",
]
IMAGES = [
    "--corpus.height=8",
    "--corpus.width=8",
    "--model.model-size=16",
    "--model.num-layers=1",
    "--samples=1",
    "--model.segment-size=8",
    "--model.memory-size=8",
    "--learner.batch-size=4",
    "--learner.sequence-length=16",
]
SPEECH = ["--learner.batch-size=2", "--learner.sequence-length=64", "--sample-seconds=0.01"]


@dataclass(frozen=True)
class Options:
    """Options of the benchmark."""

    ray: bool = True
    """Whether to run what needs a Ray cluster, too."""
    only: str = ""
    """Only runs whose name contains this."""


def commands(folder: Path, ray: bool) -> dict[str, list[str]]:
    """The words of each run's command, by its name."""
    launch = ["launch", "--local", *AGENT, "--frames=2k"]
    resident = ["launch", "--resident", *AGENT, "--frames=2k", "--learner.device=cpu"]
    text = ["text", "train", "--corpus=folder", f"--path={folder / 'text'}", *TEXT, *SEQUENCE]
    found = {f"agent {core}": [*launch, "--env=rooms:small", "--core", core] for core in CORES}
    found |= {
        "agent replay": [*launch, "--env=rooms:small", "--replay.share=0.5", "--replay.unrolls=4"],
        "agent popart": [
            *launch,
            "--env=diagnostic:recall,delay=3,diagnostic:recall,delay=5",
            "--learner.popart",
            "--actors.num-actors=2",
        ],
        "agent numbers": [*launch, "--env=gym:Pendulum-v1"],
        "agent resident": [*resident, "--env=diagnostic:recall,delay=3", "--actors.num-actors=4"],
        "text": text,
        "text microbatches": [*text, "--learner.microbatches=2"],
        "speech": ["speech", "train", f"--corpus.path={folder / 'speech'}", *SPEECH, *SEQUENCE],
        "images": ["images", "train", f"--corpus.path={folder / 'images'}", *IMAGES, *SEQUENCE],
    }
    if ray:
        found |= {
            "agent resident, 2 learners": [*resident, "--env=diagnostic:recall,delay=3", "--learners=2"],
            "text, 2 learners": [*text, "--learners=2"],
        }
    return found


def write_corpora(folder: Path) -> None:
    """Some programs, sounds and pictures."""
    for kind in ("text", "speech", "images"):
        (folder / kind).mkdir()
    for number in range(30):
        (folder / "text" / f"{number}.txt").write_text(f"def function_{number}(x):\n    return x + {number}\n" * 20)
    for number in range(4):
        samples = np.sin(np.arange(1000) * (0.05 + 0.01 * number)) * 20_000
        with wave.open(str(folder / "speech" / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 4000, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")


def digest_of(run_folder: Path) -> str:
    """A short digest of the tensors of a run's last checkpoint."""
    last = max((run_folder / "checkpoints").iterdir(), key=lambda path: int(path.name.split(".")[0]))
    found = hashlib.sha256()
    for path in sorted(last.rglob("*.safetensors")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def measure(options: Options) -> dict[str, Any]:
    titles = list(commands(Path(), options.ray))
    if not any(options.only in title for title in titles):
        raise ValueError(f"--only: expected a part of one of {'; '.join(titles)}, got {options.only!r}")
    digests: dict[str, str] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(folder)
        for number, (title, words) in enumerate(commands(folder, options.ray).items()):
            if options.only not in title:
                continue
            run_folder = folder / str(number)
            call = [sys.executable, "-m", "commands", *words, f"--run={run_folder}"]
            process = subprocess.run(call, capture_output=True, text=True)
            if process.returncode:
                failed[title] = process.stderr[-400:]
            else:
                digests[title] = digest_of(run_folder)
            print(f"{title}: {digests.get(title) or failed[title]}", file=sys.stderr)
    return {"digests": digests, "failed": failed}


if __name__ == "__main__":
    run(measure, Options)
