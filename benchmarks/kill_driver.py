"""Endurance: `compressive launch` is killed at random moments, again and again, and resumed with --resume.

    python -m benchmarks.kill_driver [--kills 20] [--checkpoint-seconds 2]

Half of the kills hit a run with --local, half a run on Ray. In each half a third comes while the program starts (the
first of all before there is a checkpoint), a third while it learns and a third while it writes a checkpoint. The kill
is SIGKILL of the program alone; the next launch does not wait for the end of Ray's processes. Checked after every kill,
and "failed" lists what does not hold:

* Every checkpoint can be read, and no more work is lost than that of one interval between checkpoints (and of an
  update and the writing, because neither is interrupted).
* The program is resumed exactly there, with the first update after the checkpoint, and runs until it is killed.
* Ray's processes end by themselves, and nothing is left in /dev/shm.

At the end each run is resumed once more, finishes and evaluates, and its metrics have every update once. Linux only: it
reads /proc.
"""

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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import run, summary
from learner import checkpoints
from learner.metrics import read_metrics
from training.run import Run

PHASES = ("start", "learning", "checkpoint")
ORPHAN_SECONDS = 120.0
"""Time for Ray's processes to end. Those that are just starting look for the others for a minute."""
WRITE_SECONDS = 0.03
"""Approximate time to write a checkpoint."""


@dataclass
class Options:
    kills: int = 20
    checkpoint_seconds: float = 2.0
    core: str = "compressive"
    seed: int = 0
    patience: float = 300.0
    """Longest time of a launch until its first update, and of the last one until its end, in seconds."""


class Broken(Exception):
    """A check failed in a way that ends the measurement of a run."""


def marked(mark: str) -> list[str]:
    """Command lines of the processes that were started, however indirectly, with a mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_text():
                found.append((entry / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue  # of another user, or ended meanwhile
    return found


def unreadable(run: Path) -> list[str]:
    """What is wrong with each complete checkpoint of a run, not only with the newest."""
    reasons = []
    for path in (path for path in (run / "checkpoints").glob("*") if path.name.isdigit()):
        with tempfile.TemporaryDirectory() as alone:
            shutil.copytree(path, Path(alone) / "checkpoints" / path.name)
            try:
                checkpoints.load_latest(alone)
            except FileNotFoundError as error:
                reasons.append(str(error))
    return reasons


def last_step(run: Path) -> int | None:
    """Steps of the newest checkpoint that can be read; None without any."""
    try:
        return checkpoints.load_latest(run).step
    except FileNotFoundError:
        return None


class Victim:
    """A run whose launches are killed, and the results: `hit`, kills by phase; `seconds`, durations by name."""

    def __init__(self, folder: Path, local: bool, options: Options, generator: random.Random) -> None:
        self.run, self.local, self.options, self.random = Run(folder), local, options, generator
        self.hit: Counter[str] = Counter()
        names = ("of_work_lost", "until_learning", "until_processes_are_gone")
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.failed: list[str] = []
        self.watchers: list[threading.Thread] = []

    def start(self, frames: int = 10**12) -> None:
        """Starts a launch: of a new run until there is a checkpoint, then with --resume."""
        self.restored = last_step(self.run.path)
        words = ["--resume", str(self.run)]
        if self.restored is None:  # with frequent updates and rows of metrics
            words = f"--run {self.run} --core {self.options.core} --actors.envs-per-actor 16 --log-every 1".split()
            words += f"--checkpoint-seconds {self.options.checkpoint_seconds} --video-episodes 0".split()
            words += ["--eval-episodes", "16"]
        words += ["--frames", str(frames), *(["--local"] if self.local else [])]
        self.mark, self.begin = uuid.uuid4().hex, time.time()
        self.screen = self.run.path.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "commands", "launch", *words],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "COLUMNS": "200", "MARK": self.mark},
            stdout=self.screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def output(self) -> str:
        """What the launch printed."""
        self.screen.seek(0)
        return self.screen.read()

    def rows(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Rows of metrics after a time, one for each update."""
        found = read_metrics(self.run.path) if (self.run.path / "metrics.jsonl").exists() else []
        return [row for row in found if row["time"] > since]

    def wait_until(self, condition: Callable[[], object], pause: float = 0.05) -> None:
        """Waits while the program runs. Raises Broken if it ended, or takes longer than `patience`."""
        deadline = time.monotonic() + self.options.patience
        while True:
            if self.process.poll() is not None:
                raise Broken(f"ended by itself with status {self.process.returncode}: {self.output()}")
            if condition():
                return
            if time.monotonic() > deadline:
                raise Broken(f"no progress for {self.options.patience:.0f} s: {self.output()}")
            time.sleep(pause)

    def kill(self, phase: str) -> None:
        """Kills the launch in a phase, and checks what is left."""
        if phase != "start":
            self.wait_until(lambda: self.rows(self.begin))
        elif self.restored is None:  # a kill before that leaves nothing at all
            self.wait_until((self.run.path / ".lock").exists)
        if phase == "checkpoint":
            self.wait_until(lambda: any(self.run.checkpoints.glob("*.tmp")), pause=1e-4)
        starting = statistics.median(self.seconds["until_learning"] or [2.0])
        longest = {"start": starting, "learning": 3 * self.options.checkpoint_seconds, "checkpoint": WRITE_SECONDS}
        end = time.monotonic() + self.random.uniform(0, longest[phase])
        self.wait_until(lambda: time.monotonic() > end, pause=1e-3)
        self.process.kill()
        self.process.wait()
        self.watchers.append(threading.Thread(target=self._watch, args=(self.mark, time.monotonic())))
        self.watchers[-1].start()
        self._check_kill(phase)

    def _watch(self, mark: str, killed: float) -> None:
        """Waits until all processes of a killed program have ended."""
        last: list[str] = []
        while (left := marked(mark)) and time.monotonic() - killed < ORPHAN_SECONDS:
            last = left
            time.sleep(0.5)
        seconds = time.monotonic() - killed
        self.seconds["until_processes_are_gone"].append(seconds)
        if seconds > 10:
            print(f"{seconds:.0f} s after a kill there were still: {'; '.join(last)}", file=sys.stderr)
        if left:
            self.failed.append(f"{len(left)} processes left after {ORPHAN_SECONDS:.0f} s")

    def _check_kill(self, intended: str) -> None:
        new, step = self.rows(self.begin), last_step(self.run.path)
        unfinished = [path for path in self.run.checkpoints.glob("*") if not path.name.isdigit()]
        phase = "before the first checkpoint" if step is None else "learning" if new else "start"
        if any(path.stat().st_mtime > self.begin for path in unfinished):
            phase = "checkpoint"
        self.hit[phase] += 1
        self.failed += [f"unreadable: {reason}" for reason in unreadable(self.run.path)]
        self._check_resumption(new)
        lost = [row for row in new if row["step"] > (step or 0)]
        if lost:
            times = [row["time"] for row in new]
            update = max((after - before for before, after in pairwise(times)), default=0.0)
            begin = next((row["time"] for row in new if row["step"] == step), times[0])
            seconds = times[-1] - begin
            self.seconds["of_work_lost"].append(seconds)
            if seconds > self.options.checkpoint_seconds + 2 * update:
                self.failed.append(f"{seconds:.1f} s of work lost, with updates of at most {update:.1f} s")
        print(
            f"{'local' if self.local else 'Ray'}: killed {time.time() - self.begin:5.1f} s after the start, {phase} "
            f"(intended: {intended}); {len(new)} updates, of which {len(lost)} are lost; checkpoint at {step} steps",
            file=sys.stderr,
        )

    def _check_resumption(self, new: list[dict[str, Any]]) -> None:
        """Checks that a launch with updates was resumed from the checkpoint, with the very next update."""
        if not new:
            return
        self.seconds["until_learning"].append(new[0]["time"] - self.begin)
        if self.restored is None:
            return
        if f"resumed from {self.run.checkpoints}/{self.restored:012d}" not in self.output():
            self.failed.append(f"not resumed from {self.restored}: {self.output()}")
        largest = self.rows()[0]["step"]  # no episode ends in the first update
        if not self.restored < new[0]["step"] <= self.restored + largest:
            self.failed.append(f"first update after {self.restored} steps is at {new[0]['step']}")

    def finish(self) -> None:
        """Resumes the run to its end, and checks all of it."""
        frames = 4 * (last_step(self.run.path) or 0) + 40_000
        self.start(frames)
        try:
            status: int | None = self.process.wait(self.options.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = None
        self._check_resumption(self.rows(self.begin))
        if status != 0 or "finished" not in self.output() or not self.run.evaluation_file().is_file():
            raise Broken(f"did not finish (status {status}): {self.output()}")
        rows, step = self.rows(), last_step(self.run.path)
        steps = [row["step"] for row in rows]
        if steps != sorted(set(steps)) or max(after - before for before, after in pairwise(steps)) > steps[0]:
            self.failed.append("updates are missing in the metrics, or repeated")
        if steps[-1] != step or rows[-1]["learner/frames"] < frames:
            self.failed.append(f"metrics end at {steps[-1]} steps, the checkpoint is at {step}")

    def measure(self, kills: int) -> dict[str, Any]:
        """Kills and finishes the run, and returns the figures."""
        plan = [PHASES[index % len(PHASES)] for index in range(1, kills)]
        self.random.shuffle(plan)
        try:
            for phase in ["start", *plan][:kills]:
                self.start()
                self.kill(phase)
            self.finish()
        except Broken as error:
            self.failed.append(str(error))
            self.process.kill()
        for watcher in self.watchers:
            watcher.join()
        seconds = {name: summary(values) for name, values in self.seconds.items()}
        return {"kills": sum(self.hit.values()), "hit": dict(self.hit), "seconds": seconds}


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    generator, figures, failed = random.Random(options.seed), {}, []
    before = set(os.listdir("/dev/shm"))
    # The prefix is short because paths of Ray's sockets lie in it and may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="k", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        for name, kills in (("local", (options.kills + 1) // 2), ("ray", options.kills // 2)):
            victim = Victim(Path(folder) / f"run-{name}", name == "local", options, generator)
            figures[name] = victim.measure(kills)
            failed += [f"{name}: {reason}" for reason in victim.failed]
    if left := set(os.listdir("/dev/shm")) - before:
        failed.append(f"left in /dev/shm: {sorted(left)}")
    fields = {"core": options.core, "checkpoint_seconds": options.checkpoint_seconds}
    return {**fields, **figures, "failed": failed}


if __name__ == "__main__":
    run(main, Options)
