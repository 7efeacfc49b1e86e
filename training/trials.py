"""The trials of a sweep on Ray Tune, which queues and places them; each is an ordinary run in a folder of its own.

The runs' folders say what is done, not Tune's own state: a sweep goes on with those trials that are not finished, each
from its last checkpoint. Tune's snapshots, every few seconds at best, would know less.
"""

import logging
import math
import os
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import ray
import torch
from ray import tune

from commands.launch import conclude
from envs import limit_calls, prepare
from learner import checkpoints
from learner.files import replacing
from learner.metrics import last_metrics, write_hparams
from reports.comparison import read_evaluation
from training.config import RunConfig, from_plain, to_plain
from training.console import LiveLine, duration, quantity, say
from training.impala import Progress, Trainer
from training.run import claim, holds_checkpoints
from training.signals import StopRequest
from training.sweep import FILE

STOP = ".stop"
"""A file in the sweep's folder: trials leave a checkpoint and end as soon as it is there."""
ERROR = "error.txt"
"""In a trial's folder: why it failed."""
DEATHS = 2
"""How often a trial's process may die and be replaced; what its code raises would be raised again."""
REPORT_SECONDS = 2.0
LOCK_SECONDS = 60.0
"""How long to wait for the process of a trial whose driver was killed: Ray ends it within half a minute."""


@dataclass(frozen=True)
class Resources:
    """What a trial takes up. With `remote_actors` these are the learner's, and each actor has a process of its own."""

    cpus: float = 1.0
    gpus: float = 0.0
    remote_actors: bool = False

    def bundles(self, config: RunConfig) -> list[dict[str, float]]:
        """The bundles of the trial's placement group, which actors share that it starts."""
        actor = {"CPU": config.actors.cpus, "GPU": config.actors.gpus}
        actors = [actor] * config.actors.num_actors if self.remote_actors else []
        return [{name: number for name, number in bundle.items() if number} for bundle in [self.learner, *actors]]

    @property
    def learner(self) -> dict[str, float]:
        """The bundle of the trial's own process."""
        return {"CPU": self.cpus, "GPU": self.gpus}


def is_finished(run: Path, config: RunConfig) -> bool:
    """Whether a trial has learned from all its frames and been evaluated."""
    try:
        read_evaluation(run)
        return last_metrics(run).get("learner/frames", 0) >= config.frames
    except (OSError, ValueError):  # none, or a damaged one: it is evaluated again
        return False


def failure(run: Path) -> str | None:
    """Why a trial failed, in one line, if it did."""
    path = run / ERROR
    if not path.is_file():
        return None
    lines = [line for line in path.read_text().splitlines() if line[:1].strip()]  # not the code that is quoted
    *_, last = lines or ["it left no reason"]
    return shorten(last, 240, placeholder=" ...")


def run_trial(folder: Path, name: str, plain: dict[str, Any], hparams: dict[str, Any], resources: Resources) -> None:
    """Trains a trial, or goes on with it, evaluates it and films it, as `launch` does. What is raised is kept in its
    folder. Runs in a process of Tune's."""
    if not (folder / FILE).is_file():
        node = ray.util.get_node_ip_address()
        raise FileNotFoundError(f"{folder} is not there on node {node}: expected a folder that all nodes share")
    stop, run = FileStop(folder / STOP), folder / name
    if stop.requested:
        return
    (run / ERROR).unlink(missing_ok=True)
    torch.set_num_threads(max(1, int(resources.cpus)))
    try:
        _train(from_plain(plain), run, stop, hparams, local=not resources.remote_actors)
    except Exception:
        run.mkdir(exist_ok=True)
        with replacing(run / ERROR) as temporary:
            temporary.write_text(traceback.format_exc())


def _train(config: RunConfig, run: Path, stop: StopRequest, hparams: dict[str, Any], local: bool) -> None:
    limit_calls(config.actors.step_seconds)
    prepare(config.env)
    trainer = Trainer(config, run, local)
    resumable = holds_checkpoints(run)
    with claim(run, not resumable, lambda: bool(trainer.saved), LOCK_SECONDS) as trainer.folder:
        if resumable:
            trainer.restore()
        checkpoints.write_json(run / "config.json", to_plain(config))
        trainer.train(Reporter(), stop)
        trainer.folder.require()
        if trainer.frames < config.frames:
            return
        summary, _ = conclude(trainer)
        scores = {name: value for name, value in summary.items() if name.endswith("_normalised")}
        for measure in ("return", "correct_choices"):
            if measure in summary:
                scores[measure] = summary[measure]["mean"]
        write_hparams(run, trainer.learner.steps, hparams, {f"evaluation/{name}": v for name, v in scores.items()})
        checkpoints.write_json(run / "evaluation.json", summary)  # last: it makes the trial finished


class FileStop(StopRequest):
    """A request to stop that other processes, on any node, see as a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @property
    def requested(self) -> bool:
        return self.path.exists()


class Reporter:
    """Sends a trial's progress to Tune, every few seconds."""

    def __init__(self) -> None:
        self.reported = -math.inf

    def update(self, progress: Progress) -> None:
        """See `training.impala.Display`."""
        now = time.monotonic()
        if now - self.reported > REPORT_SECONDS:
            self.reported = now
            tune.report({"frames": progress.frames, "rate": progress.frames_per_second})


@dataclass
class Watch(tune.Callback):
    """Follows the trials: shows how far they are together, and ends Tune when all have stopped that were asked to.

    Args:
        line: where progress is shown.
        stop: whether the user asked to stop.
        folder: of the sweep.
        frames: to learn from, by trial.
        finished: trials that were finished before, and those that are by now.
    """

    line: LiveLine
    stop: StopRequest
    folder: Path
    frames: Mapping[str, int]
    finished: set[str]
    learned: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stopping: set[str] | None = None
    began: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune's snapshots, in which callbacks are, are never read

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.began = self.began or time.monotonic()
        self.rates[trial.config["trial"]] = 0.0
        self._show()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name = trial.config["trial"]
        if "frames" in result:
            self.learned[name], self.rates[name] = result["frames"], result["rate"]
            self.first.setdefault(name, result["frames"])
        self._show()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name = trial.config["trial"]
        reason = failure(self.folder / name)
        if reason:
            self._fail(name, reason)
        elif not self.stop.requested:
            self.finished.add(name)
            self.learned[name] = self.frames[name]
        self._ended(name)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        error = trial.get_pickled_error() or trial.get_error() or "its process died"
        name = trial.config["trial"]
        self._fail(name, shorten(str(error).strip().splitlines()[-1], 240, placeholder=" ..."))
        self._ended(name)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if not self.stop.requested:
            return
        if self.stopping is None:
            (self.folder / STOP).touch()
            self.stopping = set(self.rates)
        if not self.stopping & set(self.rates):
            raise Stopped

    def _fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        say(self.line.console, f"failed {name}: {reason}", "red")

    def _ended(self, name: str) -> None:
        self.rates.pop(name, None)
        if self.stopping:
            self.stopping.discard(name)
        self._show()

    def _show(self) -> None:
        total = sum(self.frames.values())
        done = sum(self.frames[name] for name in self.finished | set(self.failed))
        done += sum(self.learned.get(name, 0) for name in self.rates)
        since = sum(self.learned[name] - self.first[name] for name in self.first)
        elapsed = time.monotonic() - (self.began or 0.0)
        left = (total - done) * elapsed / since if since else math.inf
        head = f"{len(self.finished)}/{len(self.frames)} runs  left {duration(left)}"
        failed = [f"{len(self.failed)} failed"] if self.failed else []
        fields = [*failed, f"{len(self.rates)} running", f"{quantity(sum(self.rates.values()))} frames/s"]
        self.line.show(min(1.0, done / total), head, fields)


class Stopped(Exception):
    """All trials have stopped that were asked to."""


def run_trials(
    folder: Path,
    trials: Mapping[str, RunConfig],
    hparams: Mapping[str, dict[str, Any]],
    todo: Sequence[str],
    resources: Resources,
    watch: Watch,
) -> None:
    """Runs the trials `todo` on the Ray cluster that this process is connected to, as many at a time as have room.

    Returns when all have ended, finished or not; raises `Stopped` if the user asked for it.
    """
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # runs write their own metrics
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failures are told by `watch`
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # whose tables no verbosity silences
    os.environ.setdefault("TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S", "600")
    plain = {name: to_plain(trials[name]) for name in todo}

    def trial(space: dict[str, Any]) -> None:
        name = space["trial"]
        run_trial(folder, name, plain[name], hparams[name], resources)

    group = tune.PlacementGroupFactory(resources.bundles(trials[todo[0]]))
    with tempfile.TemporaryDirectory() as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trial, group),
            param_space={"trial": tune.grid_search(list(todo))},
            run_config=tune.RunConfig(
                name="trials",
                storage_path=scratch,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                callbacks=[watch],
            ),
        )
        tuner.fit()
