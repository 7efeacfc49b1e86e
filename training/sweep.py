"""Sweeps: the grid of a command line as one configuration a trial, its file, and the trials on Ray Tune.

A trial is an ordinary run of any kind in a folder of its own. The folders say what is finished, not Tune's snapshots,
which are seconds old at best: a sweep is resumed with the other trials, each from its last checkpoint.
"""

import dataclasses
import itertools
import logging
import math
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from storage.errors import UserError
from storage.files import read_json, replacing, require_schema, write_json
from storage.metrics import write_hparams
from storage.run import Run
from training.config import from_plain, to_plain
from training.console import LiveLine, duration, quantity, say
from training.signals import StopRequest

FILE = "sweep.json"
STOP = ".stop"
"""File in the sweep's folder: trials write a checkpoint and end as soon as it exists."""
OWN = ("--core", "--seed", "--run", "--resume", "--local", "--ray-address", "--threads", "--checkpoint-url")
"""Options of training commands that a sweep decides itself."""
CORE_FIELDS = {"launch": "agent.core", "text": "model.core", "speech": "model", "images": "model"}
"""The field of the core in a configuration, by kind of run."""
DATA = {"env", "corpus", "path", "corpus.path"}
"""Fields that say what is learned; variants are compared on equal data."""
IGNORED = {"kind", "preset", "seed", "log_every", "checkpoint_seconds", "keep_checkpoints", "checkpoint_url"}
IGNORED |= {"eval_episodes", "video_episodes", "actors.step_seconds", "actors.max_episode_steps"}
IGNORED |= {"evaluate_every", "evaluate_tokens", "sample_seconds", "samples", *DATA}
"""Fields that do not make another variant."""
SHORT = {"compression_rate": "rate", "compression": "", "compression_loss": "loss"}
"""Names of fields in labels, where they differ from the field's own."""
DEATHS = 2
"""How often a trial's process is replaced after it died. Exceptions would be raised again: they end the trial."""
SHOW_SECONDS = 2.0
LOCK_SECONDS = 60.0
"""How long to wait for the process of a trial whose driver was killed: Ray ends it within half a minute."""
Axis = tuple[str, tuple[str, ...]]
"""A field of the configuration, such as "agent.core.compression_rate", and its values as words."""


def make_trials(
    kind: Any,
    parse: Callable[[list[str]], Any],
    preset: str,
    cores: Sequence[str],
    rates: Sequence[str],
    seeds: Sequence[int],
    vary: Sequence[Axis],
    options: Sequence[str],
) -> dict[str, Any]:
    """The configurations of a grid by the trial's name, seeds outermost: all variants have one run before any has two.

    Args:
        kind: class of the configurations, such as `RunConfig`.
        parse: the configuration of the words of a command line.
        cores: names in `kind.cores`; the compressive core is added if there are rates, and the default is that alone.
        rates: compression rates of the compressive core; none for the preset's.
        vary: other fields with their values; a field that only some cores have is varied for those alone.
        options: other words of the command that trains; those of one core hold for that alone.

    Raises:
        UserError: if a name or value is impossible, or nothing differs.
    """
    core_field = CORE_FIELDS[kind.kind]
    for word in options:
        if word.partition("=")[0].replace("_", "-") in OWN:
            raise UserError(f"{word}: expected options that hold for all runs; compare decides this one itself")
    for name, values in [("cores", cores), ("rates", rates), ("seeds", seeds), *vary]:
        if len(set(values)) < len(values):
            raise UserError(f"{name}: expected different values, got {' '.join(map(str, values))}")
    for name, values in vary:
        if not values or name in ("preset", "seed", "core") or not any(_has(kind, core, name) for core in kind.cores):
            expected = "a field of the configuration other than preset, core and seed, and its values, as in "
            example = f"{core_field}.compression mean max"
            raise UserError(f"vary: expected {expected}{example}, got {' '.join((name, *values))}")
    cores = list(cores) or ["compressive"]
    if rates and "compressive" not in cores:
        cores = ["compressive", *cores]
    variants = []
    for core in cores:
        axes = [(name, values) for name, values in vary if _has(kind, core, name)]
        if rates and core == "compressive":
            axes = [(f"{core_field}.compression_rate", tuple(rates)), *axes]
        words = ["--preset", preset, "--core", core, *_options_of(kind, core, options)]
        for chosen in itertools.product(*(values for _, values in axes)):
            variants.append(parse([*words, *(f"--{name}={value}" for (name, _), value in zip(axes, chosen))]))
    if len(variants) < 2:
        raise UserError("expected something to compare: several --cores or --rates, or --vary FIELD VALUE VALUE")
    data = [" ".join(str(flatten(to_plain(variant)).get(name) or "") for name in sorted(DATA)) for variant in variants]
    trials = {}
    for seed in seeds:
        for text, variant, where in zip(label(variants), variants, data):
            where = f"-{where.strip()}" if len(set(data)) > 1 else ""
            name = re.sub(r"[^a-z0-9.]+", "-", f"{text}{where}-seed-{seed}".lower())
            trials[name] = dataclasses.replace(variant, seed=seed)
    if len(trials) < len(variants) * len(seeds):
        raise UserError("vary: expected fields that make a difference; two variants are the same run")
    return trials


def _has(kind: Any, core: str, name: str) -> bool:
    """Whether a field has a meaning for a core; fields outside of the core's configuration always have."""
    own = name.removeprefix(f"{CORE_FIELDS[kind.kind]}.")
    if own == name or core not in kind.cores:
        return True
    names = {each.name for each in dataclasses.fields(kind.cores[core][0])}
    return own in names and (core == "compressive" or not own.startswith("compress"))


def _options_of(kind: Any, core: str, options: Sequence[str]) -> Iterator[str]:
    """The options without those of other cores; what no core has remains, so that the parser refuses it."""
    keep = True
    for word in options:
        if word.startswith("--"):
            name = word.removeprefix("--").partition("=")[0].replace("-", "_")
            keep = _has(kind, core, name) or not any(_has(kind, other, name) for other in kind.cores)
        if keep:
            yield word


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a nested configuration by their full names, as in "agent.core.memory_size"."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def label(configs: Sequence[Any]) -> list[str]:
    """A name for each configuration of one kind: its core and the fields in which it differs from another.

    Runs of one label are runs of one variant. Fields of a core are compared between configurations of that core only.
    Transformer-XL without memory is `local`.
    """
    core = CORE_FIELDS[configs[0].kind]
    flats = [flatten(to_plain(config)) for config in configs]
    for flat in flats:
        if (flat[f"{core}.name"], flat.get(f"{core}.memory_size")) == ("transformer-xl", 0):
            flat[f"{core}.name"] = "local"
    labels = []
    for flat in flats:
        parts, mine = [], flat[f"{core}.name"]
        for name, value in flat.items():
            rivals = [other for other in flats if not name.startswith(f"{core}.") or other[f"{core}.name"] == mine]
            if name in IGNORED or all(other.get(name) == value for other in rivals):
                continue
            short = name.rpartition(".")[2]
            words = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            parts.append(f"{SHORT.get(short, short.replace('_', ' '))} {words}".strip())
        labels.append(f"{mine} ({', '.join(parts)})" if parts else mine)
    return labels


def begin(folder: Path, trials: Mapping[str, Any], command: str) -> str:
    """Creates the folder of a sweep, or finds the same sweep in it; returns the command that began it."""
    configs = {config.kind: type(config) for config in trials.values()}
    plain = {name: to_plain(config) for name, config in trials.items()}
    if (folder / FILE).is_file():
        old, first = read(folder, configs)
        if {name: to_plain(config) for name, config in old.items()} != plain:
            raise UserError(f"{folder} holds another sweep ({first}): expected a new folder, --folder DIR")
        return first
    folder.mkdir(parents=True, exist_ok=True)
    if any(path.name != ".lock" for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no sweep: expected a new folder, --folder DIR")
    write_json(folder / FILE, {"command": command, "trials": plain})
    return command


def read(folder: Path, configs: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The trials of a sweep's folder and the command that began it. `configs`: classes of configurations by kind.

    Raises a UserError if the folder is not that of a sweep, or its file cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} is not a sweep: expected a folder with {FILE}, made by `compressive compare`")
    try:
        plain = read_json(path)
        require_schema(plain, {"trials": {str: dict}, "command": str}, "sweep")
        (kind,) = {str(config.get("kind", "launch")) for config in plain["trials"].values()}
        if kind not in configs:
            raise ValueError(f"kind: expected {' or '.join(configs)}, got {kind!r}")
        return {name: from_plain(configs[kind], config) for name, config in plain["trials"].items()}, plain["command"]
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"{path}: expected a sweep as `compressive compare` writes it, got: {error}") from error


def goal(config: Any) -> tuple[str, int]:
    """The metric that counts what a run has learned from, and its value at the end."""
    return ("learner/frames", config.frames) if config.kind == "launch" else ("step", config.learner.steps)


def is_finished(run: Run, config: Any) -> bool:
    """Whether a trial has been trained to its end and evaluated."""
    counter, total = goal(config)
    try:
        return isinstance(read_json(run.evaluation_file()), dict) and run.last_row().get(counter, 0) >= total
    except (OSError, ValueError):  # there is no evaluation, or a damaged one: the trial is evaluated again
        return False


def failure(run: Run) -> str | None:
    """Why a trial failed, in one line; None if it did not."""
    if not run.error_file.is_file():
        return None
    lines = [line for line in run.error_file.read_text().splitlines() if line[:1].strip()]  # not the quoted code
    return shorten(lines[-1] if lines else "it left no reason", 240, placeholder=" ...")


def differences(trials: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of each trial in which any two of them differ: its hyperparameters."""
    flats = {trial: flatten(to_plain(config)) for trial, config in trials.items()}
    rows = list(flats.values())
    return {
        trial: {name: value for name, value in flat.items() if any(row.get(name) != value for row in rows)}
        for trial, flat in flats.items()
    }


def bundles_of(config: Any, cpus: float, gpus: float, remote_actors: bool) -> list[dict[str, float]]:
    """The bundles of a trial's placement group: one for its own process, and one for each actor outside of it."""
    bundles = [{"CPU": cpus, "GPU": gpus}]
    if remote_actors:
        bundles += [{"CPU": config.actors.cpus, "GPU": config.actors.gpus}] * config.actors.num_actors
    return [{name: number for name, number in bundle.items() if number} for bundle in bundles]


def run_trials(
    folder: Path,
    trials: Mapping[str, Any],
    train: Callable[..., Any],
    bundles: list[dict[str, float]],
    line: LiveLine,
    stop: StopRequest,
) -> dict[str, str]:
    """Runs the trials that are not finished on the connected Ray cluster, as many at a time as it has room for.

    Args:
        train: `train(config, run, *, stop, show, patience)` trains or resumes a run and evaluates it, in a process of
            Tune; it returns something true if the run is finished.
        bundles: resources of each trial; see `bundles_of`.
        stop: whether the user asked to stop; then all running trials write a checkpoint.

    Returns:
        by trial, why its process ended without a result.
    """
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # runs write their own metrics
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # its tables cannot be silenced
    os.environ.setdefault("TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S", "600")
    from ray import tune

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # `_Watch` shows failures

    class Callback(tune.Callback):
        """Calls a `_Watch` after each step of Tune, whose snapshots, which are never read, do not contain it."""

        watch: _Watch

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            self.watch(trials)

        def __getstate__(self) -> dict[str, Any]:
            return {}

    (folder / STOP).unlink(missing_ok=True)
    callback, configs, hparams = Callback(), dict(trials), differences(trials)
    callback.watch = watch = _Watch(folder, configs, line, stop)
    todo, threads = [name for name in trials if name not in watch.finished], max(1, int(bundles[0].get("CPU", 1)))

    class Trial(tune.Trainable):
        """Runs a trial in one step. A function would run in a thread, where calls of environments have no limit."""

        def step(self) -> dict[str, Any]:
            name = self.config["trial"]
            _run_trial(folder, name, configs[name], train, threads, hparams[name])
            return {"done": True}

        def save_checkpoint(self, checkpoint_dir: Any) -> None:
            """Writes nothing, as runs have checkpoints of their own; Tune sometimes asks for one."""

        load_checkpoint: Any = save_checkpoint

    with tempfile.TemporaryDirectory() as scratch, suppress(_Stopped):
        tune.Tuner(
            tune.with_resources(Trial, tune.PlacementGroupFactory(bundles)),
            param_space={"trial": tune.grid_search(todo)},
            run_config=tune.RunConfig(
                name="trials",
                storage_path=scratch,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                callbacks=[callback],
            ),
        ).fit()
    return watch.failed


def _run_trial(
    folder: Path, name: str, config: Any, train: Callable[..., Any], threads: int, hparams: dict[str, Any]
) -> None:
    """Runs one trial in a process of Tune; see `run_trials`. An exception is written to the run's `error.txt`."""
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder} does not exist on {os.uname().nodename}: expected a folder that nodes share")
    stop, run = folder / STOP, Run(folder / name)
    if stop.exists():
        return
    run.error_file.unlink(missing_ok=True)
    torch.set_num_threads(threads)
    try:
        if train(config, run, stop=stop.exists, show=lambda progress: None, patience=LOCK_SECONDS):
            summary = read_json(run.evaluation_file())
            means = {name: value.get("mean") if isinstance(value, dict) else value for name, value in summary.items()}
            scores = {f"evaluation/{name}": value for name, value in means.items() if isinstance(value, float)}
            write_hparams(run.path, run.last_row()["step"], hparams, scores)
    except Exception:
        run.path.mkdir(exist_ok=True)
        with replacing(run.error_file) as temporary:
            temporary.write_text(traceback.format_exc())


class _Stopped(Exception):
    """All running trials have stopped, as the user asked."""


class _Watch:
    """Shows how far the trials are, by the metrics that they write, and ends Tune when the user asked to stop."""

    def __init__(self, folder: Path, trials: Mapping[str, Any], line: LiveLine, stop: StopRequest) -> None:
        self.folder, self.trials, self.line, self.stop = folder, trials, line, stop
        self.finished = {name for name, config in trials.items() if is_finished(Run(folder / name), config)}
        self.failed: dict[str, str] = {}
        self.stopping: set[str] | None = None
        self.begin: tuple[float, float] | None = None
        self.shown = -math.inf

    def __call__(self, trials: list[Any]) -> None:
        running = {trial.config["trial"] for trial in trials if trial.status == "RUNNING"}
        for trial in trials:
            name = trial.config["trial"]
            if trial.status not in ("TERMINATED", "ERROR") or name in self.finished | set(self.failed):
                continue
            reason = failure(Run(self.folder / name))
            if trial.status == "ERROR":
                error: object = None
                with suppress(Exception):  # Tune may be writing it
                    error = trial.get_pickled_error() or trial.get_error()
                reason = shorten(str(error or "its process died").strip().splitlines()[-1], 240, placeholder=" ...")
            if reason:
                self.failed[name] = reason
                say(self.line.console, f"failed {name}: {reason}", "red")
            elif not self.stop.requested:
                self.finished.add(name)
        if self.stop.requested and self.stopping is None:
            (self.folder / STOP).touch()
            self.stopping = running
        if self.stopping is not None and not self.stopping & running:
            raise _Stopped
        if time.monotonic() - self.shown > SHOW_SECONDS:
            self.shown = time.monotonic()
            self._show(running)

    def _show(self, running: set[str]) -> None:
        goals = {name: goal(config) for name, config in self.trials.items() if name not in self.failed}
        rows = {name: Run(self.folder / name).last_row() for name in goals}
        # Runs may differ in what they learn from: frames, or steps with more or less in a batch.
        shares = [min(1.0, rows[name].get(counter, 0) / total) for name, (counter, total) in goals.items()]
        unit = "frames" if next(iter(self.trials.values())).kind == "launch" else "tokens"
        rate = sum(rows[name].get(f"speed/{unit}_per_second", 0.0) for name in running & rows.keys())
        done, now = sum(shares) / max(1, len(shares)), time.monotonic()
        self.begin = self.begin or (now, done)
        since = done - self.begin[1]
        left = (1 - done) * (now - self.begin[0]) / since if since > 0 else math.inf
        head = f"{len(self.finished)}/{len(self.trials)} runs  left {duration(left)}"
        failed = [f"{len(self.failed)} failed"] if self.failed else []
        self.line.show(done, head, [*failed, f"{len(running)} running", f"{quantity(rate)} {unit}/s"])
