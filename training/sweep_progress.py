"""How far a sweep is: which trials are finished and which failed, what they do now, and the time that is left.

What is known of a trial is what it writes to its folder. Running the trials is in `sweep.py`.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.files import Json, is_finite, read_json
from storage.run import Run
from training.config import Configuration
from training.console import LiveLine, quantity, say
from training.plain import by_full_name
from training.progress import TimeLeft

TRAINED_SHARE = 0.99
"""Share of a trial that is done when it is trained and not evaluated yet."""
STARTING = "starting"
TRAINING = "training"
EVALUATING = "evaluating"
PHASES = (STARTING, TRAINING, EVALUATING)
"""What running trials do, in the words and the order in which it is shown."""


def is_finished(run: Run, config: Configuration) -> bool:
    """Whether a trial has been trained to its end and evaluated."""
    counter, total = config.goal
    try:
        evaluation = read_json(run.evaluation_file())
        last_row = run.last_row()
    except (OSError, ValueError):  # there is no evaluation, or a damaged one: the trial is evaluated again
        return False
    if not isinstance(evaluation, dict):
        return False
    score = by_full_name(evaluation).get(config.score)
    return is_finite(score) and last_row.get(counter, 0) >= total


class Board:
    """Which trials are finished and which have failed; shows how far all are, by the metrics that they write."""

    def __init__(self, folder: Path, trials: Mapping[str, Configuration], line: LiveLine) -> None:
        self.folder = folder
        self.trials = trials
        self.line = line
        self.finished = set()
        for name, config in trials.items():
            if is_finished(Run(folder / name), config):
                self.finished.add(name)
        self.failed: dict[str, str] = {}
        self.estimate = Estimate({name: float(config.goal[1]) for name, config in trials.items()})

    def end(self, name: str, reason: str | None) -> None:
        """A trial has ended: for a reason, if it failed."""
        if reason:
            self.failed[name] = reason
            say(self.line.console, f"failed {name}: {reason}", "red")
        elif is_finished(Run(self.folder / name), self.trials[name]):
            self.finished.add(name)
            self.estimate.finish(name)

    def show(self, running: set[str]) -> None:
        """Shows the share that is done of all that did not fail, what the running ones do, and their speed."""
        shares: list[float] = []
        phases = Counter[str]()  # of the running trials
        rate = 0.0
        unit = ""
        for name, config in self.trials.items():
            if name in self.failed:
                continue
            row = Run(self.folder / name).last_row()
            unit = "frames" if config.kind == "launch" else "tokens"
            # Shares, because runs may differ in what they learn from: frames, or steps with more or less in a batch.
            counter, total = config.goal
            share = row.get(counter, 0) / total
            most = 1.0 if name in self.finished else TRAINED_SHARE
            shares.append(min(most, share))
            if name not in running:
                continue
            self.estimate.mark(name, share)
            phase = _phase(row, share)
            phases[phase] += 1
            if phase == TRAINING:
                rate += row.get(f"speed/{unit}_per_second", 0.0)

        done = sum(shares) / max(1, len(shares))
        head = f"{len(self.finished)}/{len(self.trials)} runs"
        fields = []
        if self.failed:
            fields.append(f"{len(self.failed)} failed")
        for phase in PHASES:
            if phases[phase]:
                fields.append(f"{phases[phase]} {phase}")
            if phase == TRAINING and phases[phase]:
                fields.append(f"{quantity(rate)} {unit}/s")

        begun_or_ended = running | self.finished | self.failed.keys()
        waiting = [name for name in self.trials if name not in begun_or_ended]
        self.line.show(done, head, fields, self.estimate.seconds(running, waiting))


def _phase(row: Json, share: float) -> str:
    """What a running trial does, one of `PHASES`: by its last row of metrics, and by the share that it has learned."""
    if share >= 1:
        return EVALUATING
    if not row:
        return STARTING
    return TRAINING


class Estimate:
    """Estimates how long trials still take: from those that have finished, with their start and evaluation.

    Until one has, it takes the recent progress of those that run. `sizes`: frames or steps of each trial.
    """

    def __init__(self, sizes: Mapping[str, float]) -> None:
        self.sizes = sizes
        self.begun: dict[str, tuple[float, float]] = {}
        self.progress: dict[str, TimeLeft] = {}
        self.places = 1
        self.seconds_of_finished = 0.0
        self.size_of_finished = 0.0

    def mark(self, name: str, share: float) -> None:
        """Notes the share of a running trial that is done."""
        if name not in self.begun:
            self.begun[name] = (time.monotonic(), share)
            self.progress[name] = TimeLeft()
        self.progress[name].mark(min(1.0, share))

    def finish(self, name: str) -> None:
        """Notes that a trial has finished."""
        if name in self.begun:
            begin, share = self.begun[name]
            self.seconds_of_finished += time.monotonic() - begin
            # A resumed trial has only done the rest.
            self.size_of_finished += self.sizes[name] * (1 - share)

    def seconds(self, running: set[str], waiting: Sequence[str]) -> float:
        """The time left; infinity as long as it is unknown, and if the last trials take longer than others did."""
        self.places = max(self.places, len(running))
        pace = self._seconds_per_size(running)
        if not math.isfinite(pace):
            return math.inf
        now = time.monotonic()
        of_running = []
        for name in running:
            begin, share = self.begun[name]
            whole = pace * self.sizes[name] * (1 - share)
            of_running.append(max(0.0, whole - (now - begin)))
        of_waiting = sum(pace * self.sizes[name] for name in waiting)

        # Trials take each other's places; the last ones leave some empty.
        of_all = (sum(of_running) + of_waiting) / self.places
        left = max([*of_running, of_all])
        return left if left > 0 else math.inf

    def _seconds_per_size(self, running: set[str]) -> float:
        """Seconds for one frame or step, with all that a trial does besides; infinity as long as it is unknown."""
        if self.size_of_finished:
            return self.seconds_of_finished / self.size_of_finished
        now = time.monotonic()
        seconds = 0.0
        size = 0.0
        for name in running:
            left = self.progress[name].seconds()
            if math.isfinite(left):
                begin, share = self.begun[name]
                seconds += now - begin + left
                size += self.sizes[name] * (1 - share)
        if not size:
            return math.inf
        return seconds / size
