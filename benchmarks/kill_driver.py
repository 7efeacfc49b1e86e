"""Endurance: `compressive launch` is killed at random moments, again and again, and resumed with --resume.

    python -m benchmarks.kill_driver [--kills 20] [--checkpoint-seconds 2]

Half of the kills hit a run with --local, half a run on Ray. In each half a third is aimed at the start of the program
(the first of all before there is a checkpoint), a third at its learning and a third at the moment when it writes a
checkpoint, which takes 0.03 s and is often missed; "hit" counts what the kills did hit. The kill is SIGKILL of the
program alone; the next launch does not wait for the end of Ray's processes. "failed" names phases that three kills or
more were aimed at and none hit, and lists what does not hold of the checks after every kill and of the whole run at the
end; docs/faults.md explains them. Linux only.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import marked, run, summary
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run

PHASES = ("start", "learning", "checkpoint")
ENOUGH = 3
"""Kills aimed at a phase of which one must hit it. That fewer miss may be chance."""
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


def unreadable(run: Path) -> list[str]:
    """What is wrong with each complete checkpoint of a run, not only with the newest."""
    reasons = []
    complete = [path for path in (run / "checkpoints").glob("*") if path.name.isdigit()]
    for path in complete:
        with tempfile.TemporaryDirectory() as alone:
            shutil.copytree(path, Path(alone) / "checkpoints" / path.name)
            try:
                checkpoints.load_latest(alone)
            except FileNotFoundError as error:
                reasons.append(str(error))
    return reasons


def seconds_until_gone(mark: str) -> float:
    """Waits until all processes of a killed program have ended."""
    killed = time.monotonic()
    while marked(mark) and time.monotonic() - killed < ORPHAN_SECONDS:
        time.sleep(0.5)
    return time.monotonic() - killed


class Victim:
    """A run whose launches are killed, and the results.

    aimed, hit: kills by the phase that they were aimed at, and by that in which they came. seconds: durations by name.
    """

    def __init__(self, folder: Path, local: bool, options: Options, generator: random.Random) -> None:
        self.run = Run(folder)
        self.local = local
        self.options = options
        self.random = generator
        self.aimed: Counter[str] = Counter()
        self.hit: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.failed: list[str] = []
        self.screen = folder.with_suffix(".log")

    def start(self, frames: int = 10**12) -> None:
        """Starts a launch: of a new run until there is a checkpoint, then with --resume."""
        self.restored, _ = self.checkpoint()
        words = f"--frames {frames}"
        if self.local:
            words += " --local"
        if self.restored < 0:  # with frequent updates and rows of metrics
            words += f" --run {self.run} --core {self.options.core} --actors.envs-per-actor 16 --log-every 1"
            words += f" --checkpoint-seconds {self.options.checkpoint_seconds} --video-episodes 0 --eval-episodes 16"
        else:
            words += f" --resume {self.run}"
        self.mark = uuid.uuid4().hex
        self.begin = time.time()
        with self.screen.open("w") as screen:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "commands", "launch", *words.split()],
                cwd=Path(__file__).parents[1],
                env={**os.environ, "COLUMNS": "200", "MARK": self.mark},
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def checkpoint(self) -> tuple[int, float]:
        """Step and time of the newest checkpoint that can be read; step -1 if there is none."""
        with suppress(FileNotFoundError):
            found = checkpoints.load_latest(self.run.path)
            return found.step, found.time
        return -1, 0.0

    def rows(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Rows of metrics after a time, one for each update."""
        with suppress(FileNotFoundError):
            return [row for row in read_metrics(self.run.path) if row["time"] > since]
        return []

    def wait_until(self, condition: Callable[[], object], pause: float = 0.05) -> None:
        """Waits while the program runs. Raises a RuntimeError if it ended, or takes longer than `patience`."""
        deadline = time.monotonic() + self.options.patience
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no progress (status {self.process.returncode}): {self.screen.read_text()}")
            time.sleep(pause)

    def kill(self, phase: str) -> None:
        """Kills the launch in a phase."""
        if phase != "start":
            self.wait_until(lambda: self.rows(self.begin))
        elif self.restored < 0:  # a kill before that leaves nothing at all
            self.wait_until((self.run.path / ".lock").exists)
        if phase == "checkpoint":
            self.wait_until(lambda: any(self.run.checkpoints.glob("*.tmp")), pause=1e-4)
        starting = statistics.median(self.seconds["until_learning"] or [2.0])
        longest = {"start": starting, "learning": 3 * self.options.checkpoint_seconds, "checkpoint": WRITE_SECONDS}
        end = time.monotonic() + self.random.uniform(0, longest[phase])
        self.wait_until(lambda: time.monotonic() > end, pause=1e-3)
        self.process.kill()
        self.process.wait()

    def check_kill(self) -> None:
        """Checks what a killed launch left."""
        new = self.rows(self.begin)
        step, written = self.checkpoint()

        unfinished = [path for path in self.run.checkpoints.glob("*") if not path.name.isdigit()]
        writing = any(path.stat().st_mtime > self.begin for path in unfinished)
        phase = "start"
        if writing:
            phase = "checkpoint"
        elif new:
            phase = "learning"
        self.hit[phase] += 1

        self.failed += [f"unreadable: {reason}" for reason in unreadable(self.run.path)]
        self.check_resumption(new)
        lost = [row for row in new if row["step"] > step]
        if lost:
            update = max((after["time"] - before["time"] for before, after in pairwise(new)), default=0.0)
            seconds = new[-1]["time"] - max(written, new[0]["time"])
            self.seconds["of_work_lost"].append(seconds)
            if seconds > self.options.checkpoint_seconds + 2 * update:
                self.failed.append(f"{seconds:.1f} s of work lost, with updates of at most {update:.1f} s")

        when = f"{time.time() - self.begin:5.1f} s after the start, {phase}"
        updates = f"{len(new)} updates, {len(lost)} of them lost"
        print(f"{self.run.name}: killed {when}; {updates}", file=sys.stderr)

    def check_resumption(self, new: list[dict[str, Any]]) -> None:
        """Checks that a launch with updates was resumed from the checkpoint, with the very next update."""
        if new:
            self.seconds["until_learning"].append(new[0]["time"] - self.begin)
        if not new or self.restored < 0:
            return
        path = f"{self.run.checkpoints}/{self.restored:012d}"
        printed = self.screen.read_text()
        if f"resumed from {path}" not in printed:
            self.failed.append(f"not resumed from {path}: {printed}")
        largest = self.rows()[0]["step"]  # no episode ends in the first update
        if not self.restored < new[0]["step"] <= self.restored + largest:
            self.failed.append(f"first update after {self.restored} steps is at {new[0]['step']}")

    def finish(self) -> None:
        """Resumes the run to its end, and checks all of it."""
        reached, _ = self.checkpoint()
        frames = 4 * max(0, reached) + 40_000
        self.start(frames)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self.options.patience)
        printed = self.screen.read_text()
        is_evaluated = self.run.evaluation_file().is_file()
        if self.process.returncode != 0 or "finished" not in printed or not is_evaluated:
            raise RuntimeError(f"did not finish (status {self.process.returncode}): {printed}")
        self.check_resumption(self.rows(self.begin))

        # The metrics of all launches together: every update once, up to the last checkpoint.
        rows = self.rows()
        step, _ = self.checkpoint()
        steps = [row["step"] for row in rows]
        increases = [after - before for before, after in pairwise(steps)]
        if min(increases) <= 0 or max(increases) > steps[0]:  # no episode ends in the first update, so it is largest
            self.failed.append("updates are missing in the metrics, or repeated")
        if steps[-1] != step or rows[-1]["learner/frames"] < frames:
            self.failed.append(f"metrics end at {steps[-1]} steps, the checkpoint is at {step}")

    def measure(self, kills: int) -> dict[str, Any]:
        """Kills and finishes the run, and returns the figures."""
        plan = [PHASES[index % len(PHASES)] for index in range(1, kills)]
        self.random.shuffle(plan)
        with ThreadPoolExecutor(max(1, kills)) as watchers:
            gone: list[Future[float]] = []
            try:
                for phase in ["start", *plan][:kills]:
                    self.start()
                    self.kill(phase)
                    self.aimed[phase] += 1
                    gone.append(watchers.submit(seconds_until_gone, self.mark))
                    self.check_kill()
                self.finish()
            except RuntimeError as error:
                self.failed.append(str(error))
            finally:
                self.process.kill()
        self.seconds["until_processes_are_gone"] = [each.result() for each in gone]
        if max(self.seconds["until_processes_are_gone"], default=0.0) >= ORPHAN_SECONDS:
            self.failed.append(f"processes left after {ORPHAN_SECONDS:.0f} s")
        self.failed += [f"no kill hit the phase {phase}" for phase in self.missed()]
        seconds = {name: summary(values) for name, values in self.seconds.items()}
        kills = sum(self.hit.values())
        return {"kills": kills, "aimed": dict(self.aimed), "hit": dict(self.hit), "seconds": seconds}

    def missed(self) -> list[str]:
        """Phases at which enough kills were aimed, and in which none came."""
        return [phase for phase in PHASES if self.aimed[phase] >= ENOUGH and not self.hit[phase]]


def main(options: Options) -> dict[str, Any]:
    """Measures and returns the figures."""
    generator = random.Random(options.seed)
    figures = {}
    failed = []
    before = set(os.listdir("/dev/shm"))
    # The prefix is short because paths of Ray's sockets lie in its folder `ray` and may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="k", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        for name, kills in (("local", (options.kills + 1) // 2), ("ray", options.kills // 2)):
            victim = Victim(Path(folder) / f"run-{name}", name == "local", options, generator)
            figures[name] = victim.measure(kills)
            failed += [f"{name}: {reason}" for reason in victim.failed]
    if left := set(os.listdir("/dev/shm")) - before:
        failed.append(f"left in /dev/shm: {sorted(left)}")
    return {"core": options.core, "checkpoint_seconds": options.checkpoint_seconds, **figures, "failed": failed}


if __name__ == "__main__":
    run(main, Options)
