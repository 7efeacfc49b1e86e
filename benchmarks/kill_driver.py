"""Endurance: `compressive launch` is killed at random moments, over and over, and goes on with --resume.

    python benchmarks/kill_driver.py [--kills 20] [--checkpoint-seconds 2]

Half of the kills hit a run with --local, half a run on Ray. Of each half a third comes while the program starts (the
first of all before there is a checkpoint), a third while it learns and a third while it writes a checkpoint. It is
SIGKILL of the program alone: what becomes of Ray's processes is their own affair, and the next launch does not wait for
them. Checked after every kill, or "failed" says what does not hold and the exit status is 1:

* Every checkpoint can be read, and no more work is lost than that of one interval between checkpoints (and of what an
  update and the writing take, for neither is interrupted).
* The program is resumed exactly there, with the first update after the checkpoint, and runs until it is killed.
* Ray's processes go away by themselves, and nothing is left in /dev/shm.

At last each run is resumed once more, finishes and evaluates, and its metrics hold every update once. Progress goes to
standard error, one JSON object to standard output. Linux only: it reads /proc.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from learner import checkpoints
from learner.metrics import read_metrics

PHASES = ("start", "learning", "checkpoint")
ORPHAN_SECONDS = 120.0
"""Time that Ray's processes have to go away. What is just starting looks for the others for a minute."""
WRITE_SECONDS = 0.03
"""About what writing a checkpoint takes."""


@dataclass
class Options:
    """Kills and resumes launches."""

    kills: int = 20
    checkpoint_seconds: float = 2.0
    core: str = "compressive"
    seed: int = 0
    patience: float = 300.0
    """Longest time that a launch may take to its first update, and the last one to finish, in seconds."""


class Broken(Exception):
    """A check failed, after which it makes no sense to go on."""


def marked(mark: str) -> list[str]:
    """Command lines of the processes that were started, however indirectly, with a mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_text():
                found.append((entry / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue  # not ours, or gone meanwhile
    return found


def unreadable(run: Path) -> list[str]:
    """What is wrong with each complete checkpoint of a run, not only with the newest."""
    reasons = []
    for path in (run / "checkpoints").glob("*"):
        if not path.name.isdigit():
            continue
        with tempfile.TemporaryDirectory() as alone:
            (Path(alone) / "checkpoints").mkdir()
            shutil.copytree(path, Path(alone) / "checkpoints" / path.name)
            try:
                checkpoints.load_latest(alone)
            except FileNotFoundError as error:
                reasons.append(str(error))
    return reasons


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics so far: one for each update."""
    return read_metrics(run) if (run / "metrics.jsonl").exists() else []


def last_step(run: Path) -> int | None:
    """Steps of the newest checkpoint that can be read; None without any."""
    try:
        return checkpoints.load_latest(run).step
    except FileNotFoundError:
        return None


def summary(values: list[float]) -> dict[str, float]:
    """Median and maximum."""
    return {"median": round(statistics.median(values or [0]), 1), "max": round(max(values, default=0.0), 1)}


@dataclass
class Victim:
    """A run whose launches are killed, and what that showed.

    hit: kills by what they hit. lost: seconds of work that each kill cost; lost_frames: frames likewise.
    gone: seconds until all processes of a killed program were. learning: seconds from start to first update.
    """

    run: Path
    local: bool
    options: Options
    random: random.Random
    hit: Counter[str] = field(default_factory=Counter)
    lost: list[float] = field(default_factory=list)
    lost_frames: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    learning: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    watchers: list[threading.Thread] = field(default_factory=list)

    def start(self, frames: int = 10**12) -> None:
        """Begins a launch: a new run as long as there is no checkpoint, else the resumption of the old one."""
        self.restored = last_step(self.run)
        seconds = str(self.options.checkpoint_seconds)
        new = ["--run", str(self.run), "--core", self.options.core, "--checkpoint-seconds", seconds]
        # Updates, and rows of metrics about them, that come often.
        new += ["--actors.envs-per-actor", "16", "--log-every", "1", "--eval-episodes", "16", "--video-episodes", "0"]
        arguments = new if self.restored is None else ["--resume", str(self.run)]
        arguments += ["--frames", str(frames), *(["--local"] if self.local else [])]
        self.mark, self.begin = uuid.uuid4().hex, time.time()
        self.screen = self.run.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from commands import main; main()", "launch", *arguments],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "COLUMNS": "200", "MARK": self.mark},
            stdout=self.screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def said(self) -> str:
        """What the launch printed."""
        self.screen.seek(0)
        return self.screen.read()

    def new_rows(self) -> list[dict[str, Any]]:
        """Rows of metrics that this launch wrote."""
        return [row for row in rows_of(self.run) if row["time"] > self.begin]

    def wait_until(self, condition: Callable[[], object], pause: float = 0.05) -> None:
        """Waits while the program runs.

        Raises:
            Broken: if it ends or takes longer than `patience`.
        """
        deadline = time.monotonic() + self.options.patience
        while not condition():
            self.require_running()
            if time.monotonic() > deadline:
                raise Broken(f"nothing for {self.options.patience:.0f} s: {self.said()}")
            time.sleep(pause)

    def require_running(self) -> None:
        """Raises Broken if the program ended by itself."""
        if self.process.poll() is not None:
            raise Broken(f"ended by itself with status {self.process.returncode}: {self.said()}")

    def kill(self, phase: str) -> None:
        """Lets the launch get into a phase, kills it and looks at what is left."""
        folder = self.run / "checkpoints"
        if phase != "start":
            self.wait_until(self.new_rows)
        elif self.restored is None:  # a kill before that leaves nothing at all
            self.wait_until((self.run / ".lock").exists)
        if phase == "start":
            time.sleep(self.random.uniform(0, statistics.median(self.learning or [2.0])))
        if phase == "learning":
            time.sleep(self.random.uniform(0, 3 * self.options.checkpoint_seconds))
        if phase == "checkpoint":
            self.wait_until(lambda: any(folder.glob("*.tmp")), pause=1e-4)
            time.sleep(self.random.uniform(0, WRITE_SECONDS))
        self.require_running()
        self.process.kill()
        self.process.wait()
        self.watchers.append(threading.Thread(target=self._watch, args=(self.mark, time.monotonic())))
        self.watchers[-1].start()
        self._look(phase)

    def _watch(self, mark: str, killed: float) -> None:
        """Waits for all processes of a killed program to go away."""
        last: list[str] = []
        while (left := marked(mark)) and time.monotonic() - killed < ORPHAN_SECONDS:
            last = left
            time.sleep(0.5)
        self.gone.append(time.monotonic() - killed)
        if self.gone[-1] > 10:
            print(f"{self.gone[-1]:.0f} s after a kill there were still: {'; '.join(last)}", file=sys.stderr)
        if left:
            self.failed.append(f"{len(left)} processes left after {ORPHAN_SECONDS:.0f} s")

    def _look(self, asked: str) -> None:
        """Checks what a kill left."""
        new, step = self.new_rows(), last_step(self.run)
        unfinished = [path for path in (self.run / "checkpoints").glob("*") if not path.name.isdigit()]
        if any(path.stat().st_mtime > self.begin for path in unfinished):
            phase = "checkpoint"
        else:
            phase = "before the first checkpoint" if step is None else "learning" if new else "start"
        self.hit[phase] += 1
        self.failed += [f"unreadable: {reason}" for reason in unreadable(self.run)]
        self._check_resumption(new)
        lost = [row for row in new if row["step"] > (step or 0)]
        if lost:
            times = [row["time"] for row in new]
            update = max((after - before for before, after in pairwise(times)), default=0.0)
            begin = next((row["time"] for row in new if row["step"] == step), times[0])
            self.lost.append(times[-1] - begin)
            self.lost_frames.append(lost[-1]["learner/frames"] * (1 - (step or 0) / lost[-1]["step"]))
            if self.lost[-1] > self.options.checkpoint_seconds + 2 * update:
                self.failed.append(f"{self.lost[-1]:.1f} s of work lost, with updates of at most {update:.1f} s")
        print(
            f"{'local' if self.local else 'Ray'}: killed {time.time() - self.begin:5.1f} s after the start, {phase} "
            f"(meant: {asked}); {len(new)} updates, of which {len(lost)} are lost; checkpoint at {step} steps",
            file=sys.stderr,
        )

    def _check_resumption(self, new: list[dict[str, Any]]) -> None:
        """Whether a launch that got so far went on from the checkpoint, with the very next update."""
        if not new:
            return
        self.learning.append(new[0]["time"] - self.begin)
        if self.restored is None:
            return
        if f"resumed from {self.run}/checkpoints/{self.restored:012d}" not in self.said():
            self.failed.append(f"not resumed from {self.restored}: {self.said()}")
        largest = rows_of(self.run)[0]["step"]  # no episode ends in the first update
        if not self.restored < new[0]["step"] <= self.restored + largest:
            self.failed.append(f"first update after {self.restored} steps is at {new[0]['step']}")

    def finish(self) -> None:
        """Lets the run come to its end, and looks at the whole of it."""
        frames = 4 * (last_step(self.run) or 0) + 40_000
        self.start(frames)
        try:
            status: int | None = self.process.wait(self.options.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = None
        self._check_resumption(self.new_rows())
        if status != 0 or "finished" not in self.said() or not (self.run / "evaluation.json").is_file():
            raise Broken(f"did not finish (status {status}): {self.said()}")
        rows = rows_of(self.run)
        steps = [row["step"] for row in rows]
        if steps != sorted(set(steps)) or max(after - before for before, after in pairwise(steps)) > steps[0]:
            self.failed.append("updates are missing in the metrics, or twice")
        if steps[-1] != last_step(self.run) or rows[-1]["learner/frames"] < frames:
            self.failed.append(f"metrics end at {steps[-1]} steps, the checkpoint is at {last_step(self.run)}")

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kills": sum(self.hit.values()),
            "hit": dict(self.hit),
            "seconds_lost": summary(self.lost),
            "frames_lost": summary(self.lost_frames),
            "seconds_until_learning": summary(self.learning),
            "seconds_until_processes_are_gone": summary(self.gone),
        }


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    warnings.filterwarnings("ignore", message="skipped checkpoint")
    generator = random.Random(options.seed)
    before, failed, figures = set(os.listdir("/dev/shm")), [], {}
    # A short name: the sockets of Ray lie in it, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="k", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        for name, kills in (("local", (options.kills + 1) // 2), ("ray", options.kills // 2)):
            victim = Victim(Path(folder) / f"run-{name}", name == "local", options, generator)
            plan = [PHASES[index % len(PHASES)] for index in range(1, kills)]
            generator.shuffle(plan)
            try:
                for phase in ["start", *plan][:kills]:
                    victim.start()
                    victim.kill(phase)
                victim.finish()
            except Broken as error:
                victim.failed.append(str(error))
                victim.process.kill()
            for watcher in victim.watchers:
                watcher.join()
            figures[name] = victim.figures()
            failed += [f"{name}: {reason}" for reason in victim.failed]
    if left := set(os.listdir("/dev/shm")) - before:
        failed.append(f"left in /dev/shm: {sorted(left)}")
    return {
        "benchmark": "kill_driver",
        "core": options.core,
        "cores": os.cpu_count(),
        "checkpoint_seconds": options.checkpoint_seconds,
        **figures,
        "failed": failed,
    }


if __name__ == "__main__":
    result = main(tyro.cli(Options))
    json.dump(result, sys.stdout, indent=2)
    print()
    sys.exit(bool(result["failed"]))
