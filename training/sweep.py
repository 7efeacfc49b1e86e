"""Sweeps: the grid of a command line as one configuration a trial, its file, and the trials on Ray.

A trial is an ordinary run of any kind in a folder of its own. The folders say what is finished: a sweep is resumed with
the other trials, each from its last checkpoint.
"""

import dataclasses
import itertools
import math
import os
import re
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import torch

from agent.core import CoreConfig
from agent.core.matching import with_state_of
from storage.errors import UserError
from storage.files import Json, read_json, replacing, require_schema, write_json
from storage.metrics import write_hparams
from storage.run import Run
from training.config import Config, Configuration, RunConfig, by_full_name, from_plain, to_plain
from training.console import LiveLine, quantity, say
from training.progress import TimeLeft
from training.signals import StopRequest
from training.suites import Task

FILE = "sweep.json"
STOP = ".stop"
"""File in the sweep's folder: trials write a checkpoint and end as soon as it exists."""
OWN = ("--core", "--seed", "--run", "--resume", "--local", "--ray-address", "--threads", "--checkpoint-url")
"""Options of training commands that a sweep decides itself."""
DATA = {"env", "eval_env", "corpus", "path", "corpus.path"}
"""Fields that say what is learned; variants are compared on equal data."""
IGNORED = {"kind", "preset", "seed", "log_every", "checkpoint_seconds", "keep_checkpoints", "checkpoint_url"}
IGNORED |= {"eval_episodes", "video_episodes", "actors.step_seconds", "actors.max_episode_steps"}
IGNORED |= {"evaluate_every", "evaluate_tokens", "sample_seconds", "samples", *DATA}
"""Fields that do not make another variant."""
OF_DATA = {"frames", "actors.unroll_length", "actors.envs_per_actor", "rows_per_update"}
"""Fields that make another variant only if they differ on the same data: each task of a suite has its own."""
SHORT = {"compression_rate": "rate", "compression": "", "compression_loss": "loss"}
"""Names of fields in labels, where they differ from the field's own."""
DEATHS = 2
"""How often a trial's process is replaced after it died. An exception ends the trial: it would be raised again."""
TRAINED_SHARE = 0.99
"""Share of a trial that is done when it is trained and not evaluated yet."""
SHOW_SECONDS = 2.0
"""Longest time between two looks at what the trials have done."""
LOCK_SECONDS = 60.0
"""How long to wait for the process of a trial whose driver was killed: Ray ends it within half a minute."""
Axis = tuple[str, tuple[str, ...]]
"""A field of the configuration, such as "agent.core.compression_rate", and its values as words."""
Train = Callable[..., object]
"""Trains or resumes a run, and evaluates it: `train(config, run, *, stop, show, patience)`, in a process of its own;
returns something true if the run is finished."""


def make_trials(
    kind: type[Config],
    parse: Callable[[list[str]], Config],
    preset: str | None,
    cores: Sequence[str],
    rates: Sequence[str],
    seeds: Sequence[int],
    vary: Sequence[Axis],
    options: Sequence[str],
    fewest: int = 2,
) -> dict[str, Config]:
    """The configurations of a grid by the trial's name, seeds outermost: all variants have one run before any has two.

    Args:
        kind: class of the configurations, such as `RunConfig`.
        parse: the configuration of the words of a command line.
        preset: where all other values come from; None for that which `parse` chooses.
        cores: names in `kind.cores`; the compressive core is added if there are rates, and the default is that alone.
        rates: compression rates of the compressive core; none for the preset's.
        vary: other fields with their values; a field that only some cores have is varied for those alone.
        options: other words of the command that trains; those of one core hold for that alone.
        fewest: variants that there have to be.

    Raises:
        UserError: if a name or value is impossible, or there are fewer variants.
    """
    # Rates ask for the compressive core; without any, it is the only one.
    _require_grid(kind, cores, rates, seeds, vary, options)
    cores = list(cores) or ["compressive"]
    if rates and "compressive" not in cores:
        cores = ["compressive", *cores]

    # Each core with every combination of the fields that it has, as words of the command that trains it.
    variants = []
    for core in cores:
        words = ["--core", core, *_options_of(kind, core, options)]
        if preset is not None:
            words += ["--preset", preset]

        axes = [(name, values) for name, values in vary if _has(kind, core, name)]
        if rates and core == "compressive":
            of_rates = (f"{kind.core_field}.compression_rate", tuple(rates))
            axes.insert(0, of_rates)
        choices = []
        for name, values in axes:
            choices.append([f"--{name}={value}" for value in values])

        for chosen in itertools.product(*choices):
            variant = parse([*words, *chosen])
            variants.append(variant)
    if len(variants) < fewest:
        raise UserError("expected something to compare: several --cores or --rates, or --vary FIELD VALUE VALUE")

    # Names say in what the variants differ, and what they learn from if that differs.
    data = [_data(variant) for variant in variants]
    titles = label(variants)
    if len(set(data)) > 1:
        titles = [f"{title}-{learned_from}" for title, learned_from in zip(titles, data)]
    return _with_seeds(titles, variants, seeds)


def make_suite(
    tasks: Sequence[Task],
    make: Callable[[list[str]], dict[str, Config]],
    options: Sequence[str],
) -> dict[str, Config]:
    """The configurations of a suite by the trial's name, seeds outermost, then tasks: all have one run before any two.

    Args:
        make: the trials of one task, as `make_trials` makes them, from words of the command that trains.
        options: other words for all tasks, which take the place of a task's own.

    Raises:
        UserError: as `make_trials` does, and if the options name an environment.
    """
    for word in options:
        option, _, _ = word.partition("=")
        if option.replace("_", "-") in ("--env", "--eval-env", "--stages"):
            raise UserError(f"{word}: expected options that hold for all tasks of the suite, which decides this one")
    trials = {}
    for task in tasks:
        title = re.sub(r"[^a-z0-9.]+", "-", task.name.lower())
        for name, config in make([*task.words, *options]).items():
            trials[f"{title}-{name}"] = config
    by_seed = sorted(trials.items(), key=lambda trial: trial[1].seed)
    return dict(by_seed)


def match_states(trials: Mapping[str, Config], num_bytes: int) -> dict[str, Config]:
    """The trials with cores whose states have at most so many bytes a row; see `agent.core.matching`.

    Raises:
        UserError: if the smallest state of a core has more bytes, or a run is impossible with the core's new size.
    """
    matched = {}
    for name, config in trials.items():
        try:
            core = with_state_of(cast(CoreConfig, config.core_config), num_bytes)
            matched[name] = _replaced(config, config.core_field, core)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
    return matched


def _replaced(config: Any, field: str, value: Any) -> Any:
    """A configuration with another value of a field, such as "agent.core"."""
    first, _, rest = field.partition(".")
    if rest:
        value = _replaced(getattr(config, first), rest, value)
    return dataclasses.replace(config, **{first: value})


def _with_seeds(titles: Sequence[str], variants: Sequence[Config], seeds: Sequence[int]) -> dict[str, Config]:
    """Each variant with each seed, by the trial's name. Raises a UserError if two variants have one title."""
    trials = {}
    for seed in seeds:
        for title, variant in zip(titles, variants):
            # Names are those of folders.
            words = f"{title}-seed-{seed}".lower()
            name = re.sub(r"[^a-z0-9.]+", "-", words)
            trials[name] = dataclasses.replace(variant, seed=seed)
    # Two variants of one name differ in nothing that a variant can differ in.
    if len(trials) < len(variants) * len(seeds):
        raise UserError("vary: expected fields that make a difference; two variants are the same run")
    return trials


def _require_grid(
    kind: type[Configuration],
    cores: Sequence[str],
    rates: Sequence[str],
    seeds: Sequence[int],
    vary: Sequence[Axis],
    options: Sequence[str],
) -> None:
    """Raises a UserError for options that a sweep decides itself, values that come twice, and unknown fields."""
    for word in options:
        option, _, _ = word.partition("=")
        if option.replace("_", "-") in OWN:
            raise UserError(f"{word}: expected options that hold for all runs; compare decides this one itself")

    for name, values in [("cores", cores), ("rates", rates), ("seeds", seeds), *vary]:
        if len(set(values)) < len(values):
            given = " ".join(map(str, values))
            raise UserError(f"{name}: expected different values, got {given}")

    for name, values in vary:
        is_known = any(_has(kind, core, name) for core in kind.cores)
        is_ours = name in ("preset", "seed", "core")
        if not values or not is_known or is_ours:
            expected = "a field of the configuration other than preset, core and seed, and its values, as in "
            example = f"{kind.core_field}.compression mean max"
            given = " ".join((name, *values))
            raise UserError(f"vary: expected {expected}{example}, got {given}")


def _data(config: Configuration) -> str:
    """What a run learns from, in one text."""
    fields = by_full_name(to_plain(config))
    values = []
    for name in sorted(DATA):
        # A configuration has some of these fields, and some of those may be None.
        value = fields.get(name) or ""
        values.append(str(value))
    return " ".join(values).strip()


def _has(kind: type[Configuration], core: str, name: str) -> bool:
    """Whether a field has a meaning for a core; fields outside of the core's configuration always have."""
    own = name.removeprefix(f"{kind.core_field}.")
    is_of_a_core = own != name
    if not is_of_a_core or core not in kind.cores:
        return True

    # Configurations of Transformer-XL inherit fields about compression, which it has not.
    if own.startswith("compress") and core != "compressive":
        return False
    fields = dataclasses.fields(kind.cores[core])  # type: ignore[arg-type]
    return any(field.name == own for field in fields)


def _options_of(kind: type[Configuration], core: str, options: Sequence[str]) -> Iterator[str]:
    """The options without those of other cores; what no core has remains, so that the parser refuses it."""
    keep = True
    for word in options:
        if word.startswith("--"):
            option, _, _ = word.partition("=")
            name = option.removeprefix("--").replace("-", "_")
            is_of_others = any(_has(kind, other, name) for other in kind.cores)
            keep = _has(kind, core, name) or not is_of_others
        # The values of an option follow it, and go with it.
        if keep:
            yield word


def label(configs: Sequence[Configuration]) -> list[str]:
    """A name for each configuration of one kind: its core and the fields in which it differs from another.

    Runs of one label are runs of one variant. Fields of a core are compared between configurations of that core only.
    Transformer-XL without memory is `local`.
    """
    core = configs[0].core_field
    name_field = f"{core}.name"
    data = [_data(config) for config in configs]
    fields = []
    for config in configs:
        own = by_full_name(to_plain(config))
        has_no_memory = own.get(f"{core}.memory_size") == 0
        if own[name_field] == "transformer-xl" and has_no_memory:
            own[name_field] = "local"
        fields.append(own)

    def rivals(name: str, own: Json, learned_from: str) -> str:
        """Which configurations a field is compared with: those of the same core, on the same data, or all."""
        if name.startswith(f"{core}."):
            return f"core {own[name_field]}"  # a field of the core says nothing about another core
        if name == "env":
            return f"evaluated in {own.get('eval_env')}"
        return f"data {learned_from}" if name in OF_DATA else "all"

    values = defaultdict[tuple[str, str], set[str]](set)
    for own, learned_from in zip(fields, data):
        for name, value in own.items():
            values[rivals(name, own, learned_from), name].add(repr(value))

    labels = []
    for own, learned_from in zip(fields, data):
        own_core = own[name_field]
        parts = []
        for name, value in own.items():
            differs = len(values[rivals(name, own, learned_from), name]) > 1
            # Tasks are where agents are evaluated; those that learned elsewhere for it are other variants.
            is_ignored = name in IGNORED and not (name == "env" and own.get("eval_env"))
            if differs and not is_ignored:
                parts.append(_difference(name, value))
        # The core alone is enough if it is the only variant with that core.
        title = own_core
        if parts:
            title += f" ({', '.join(parts)})"
        labels.append(title)
    return labels


def _difference(name: str, value: object) -> str:
    """A field and its value in a label, as in "rate 4"."""
    _, _, own_name = name.rpartition(".")
    shown = SHORT.get(own_name, own_name.replace("_", " "))
    values: Sequence[object] = [value]
    if isinstance(value, list | tuple):
        values = value
    words = [shown, *map(str, values)]
    return " ".join(words).strip()


def begin(folder: Path, trials: Mapping[str, Configuration], command: str) -> str:
    """Creates the folder of a sweep, or finds the same sweep in it; returns the command that began it."""
    configs = {config.kind: type(config) for config in trials.values()}
    plain = _plain(trials)
    file = folder / FILE
    # The same command again resumes the sweep.
    if file.is_file():
        old, first = read(folder, configs)
        if _plain(old) != plain:
            raise UserError(f"{folder} holds another sweep ({first}): expected a new folder, --folder DIR")
        return first

    # The file of the lock is there before anything else.
    folder.mkdir(parents=True, exist_ok=True)
    others = [path for path in folder.iterdir() if path.name != ".lock"]
    if others:
        raise UserError(f"{folder} is not empty and holds no sweep: expected a new folder, --folder DIR")
    write_json(file, {"command": command, "trials": plain})
    return command


def _plain(trials: Mapping[str, Configuration]) -> dict[str, Json]:
    """The configurations of trials, by name, as JSON can hold them."""
    return {name: to_plain(config) for name, config in trials.items()}


def read(folder: Path, configs: Mapping[str, type[Config]]) -> tuple[dict[str, Config], str]:
    """The trials of a sweep's folder and the command that began it. `configs`: classes of configurations by kind.

    Raises a UserError if the folder is not that of a sweep, or its file cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} is not a sweep: expected a folder with {FILE}, made by `compressive compare`")
    try:
        content = read_json(path)
        require_schema(content, {"trials": {str: dict}, "command": str}, "sweep")
        plain = content["trials"]

        # All trials of a sweep are of one kind. Agents' runs do not name theirs.
        kinds = {str(config.get("kind", "launch")) for config in plain.values()}
        (kind,) = kinds
        if kind not in configs:
            raise ValueError(f"kind: expected {' or '.join(configs)}, got {kind!r}")
        trials = {}
        for name, config in plain.items():
            trials[name] = from_plain(configs[kind], config)
        return trials, content["command"]
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"{path}: expected a sweep as `compressive compare` writes it, got: {error}") from error


def is_finished(run: Run, config: Configuration) -> bool:
    """Whether a trial has been trained to its end and evaluated."""
    counter, total = config.goal
    try:
        evaluation = read_json(run.evaluation_file())
        last_row = run.last_row()
    except (OSError, ValueError):  # there is no evaluation, or a damaged one: the trial is evaluated again
        return False
    is_evaluated = isinstance(evaluation, dict)
    return is_evaluated and last_row.get(counter, 0) >= total


def failure(run: Run) -> str | None:
    """Why a trial failed, in one line; None if it did not."""
    if not run.error_file.is_file():
        return None
    # In a traceback, quoted code is indented, and what was raised is not.
    said = []
    for line in run.error_file.read_text().splitlines():
        is_indented = not line[:1].strip()
        if not is_indented:
            said.append(line)
    return _one_line("\n".join(said))


def _one_line(reason: str) -> str:
    """The last line of a reason, cut to the length of a message."""
    lines = reason.strip().splitlines()
    if not lines:
        return "it left no reason"
    return shorten(lines[-1], 240, placeholder=" ...")


def hyperparameters(trials: Mapping[str, Configuration]) -> dict[str, Json]:
    """The fields of each trial in which any two of them differ."""
    fields = {trial: by_full_name(plain) for trial, plain in _plain(trials).items()}
    found: dict[str, Json] = {}
    for trial, own in fields.items():
        varying: Json = {}
        for name, value in own.items():
            varies = any(other.get(name) != value for other in fields.values())
            if varies:
                varying[name] = value
        found[trial] = varying
    return found


def bundles_of(config: Configuration, cpus: float, gpus: float, remote_actors: bool) -> list[dict[str, float]]:
    """The bundles of a trial's placement group: one for its own process, and one for each actor outside of it."""
    bundles = [_bundle(cpus, gpus)]
    # Sequence models have no actors.
    if remote_actors and isinstance(config, RunConfig):
        actors = config.actors
        bundle_of_actor = _bundle(actors.cpus, actors.gpus)
        bundles += [bundle_of_actor] * actors.num_actors
    return bundles


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    """A bundle without resources of which it has none, as Ray wants it."""
    resources = {"CPU": cpus, "GPU": gpus}
    return {name: number for name, number in resources.items() if number}


def run_trials(
    folder: Path,
    trials: Mapping[str, Configuration],
    train: Train,
    bundles: list[dict[str, float]],
    line: LiveLine,
    stop: StopRequest,
) -> dict[str, str]:
    """Runs the trials that are not finished on the connected Ray cluster, as many at a time as it has room for.

    Args:
        train: see `Train`.
        bundles: resources of each trial; see `bundles_of`.
        stop: whether the user asked to stop; then all running trials write a checkpoint.

    Returns:
        by trial, why its process ended without a result.
    """
    import ray
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # Left by a sweep that was stopped.
    stop_file = folder / STOP
    stop_file.unlink(missing_ok=True)
    board = _Board(folder, trials, line)
    hparams = hyperparameters(trials)
    cpus = bundles[0].get("CPU", 0)
    gpus = bundles[0].get("GPU", 0)

    # All trials ask for room at once and get it in this order, as others end.
    groups = {}
    for name in trials:
        if name not in board.finished:
            groups[name] = placement_group(bundles)
    make_remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, max_retries=0)
    run_trial = make_remote(_run_trial)
    threads = max(1, int(cpus))

    def start(name: str) -> ray.ObjectRef:
        """Runs a trial in a new process as soon as there is room for it."""
        place = PlacementGroupSchedulingStrategy(groups[name], 0, placement_group_capture_child_tasks=True)
        trial = run_trial.options(scheduling_strategy=place)
        return trial.remote(folder, name, trials[name], train, threads, hparams[name])

    tasks = {start(name): name for name in groups}
    deaths = Counter[str]()
    while tasks:
        ended, _ = ray.wait(list(tasks), timeout=SHOW_SECONDS)
        for task in ended:
            name = tasks.pop(task)
            try:
                ray.get(task)
                reason = failure(Run(folder / name))
            except ray.exceptions.RayTaskError as error:
                reason = _one_line(str(error))
            except ray.exceptions.RayError as error:  # the process died
                reason = _one_line(str(error))
                deaths[name] += 1
                if deaths[name] <= DEATHS and not stop.requested:
                    say(line.console, f"restarted {name}: {reason}", "yellow")
                    tasks[start(name)] = name
                    continue
            remove_placement_group(groups[name])
            board.end(name, reason)

        # A trial runs, or is about to, if its group has room.
        table = placement_group_table()
        running = set()
        for name in tasks.values():
            group_id = groups[name].id.hex()
            state = table[group_id]["state"]
            if state == "CREATED":
                running.add(name)
        if stop.requested and not stop_file.exists():
            # Those that have no room yet are not waited for. The others write a checkpoint and end.
            stop_file.touch()
            tasks = {task: name for task, name in tasks.items() if name in running}
        board.show(running)
    return board.failed


def _run_trial(folder: Path, name: str, config: Configuration, train: Train, threads: int, hparams: Json) -> None:
    """Runs one trial in a process of its own; see `run_trials`. An exception is written to the run's `error.txt`."""
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder} does not exist on {os.uname().nodename}: expected a folder that nodes share")
    stop = folder / STOP
    if stop.exists():
        return
    run = Run(folder / name)
    # What is there at the end is of this attempt.
    run.error_file.unlink(missing_ok=True)
    torch.set_num_threads(threads)
    try:
        is_finished = train(config, run, stop=stop.exists, show=lambda progress: None, patience=LOCK_SECONDS)
        if is_finished:
            last_step = run.last_row()["step"]
            write_hparams(run.path, last_step, hparams, _scores(run))
    except Exception:
        # The run may not have begun, and a folder without checkpoints is removed.
        run.path.mkdir(exist_ok=True)
        with replacing(run.error_file) as temporary:
            temporary.write_text(traceback.format_exc())


def _scores(run: Run) -> dict[str, float]:
    """The numbers in a run's evaluation, and the means of those that have one, by the name of the metric."""
    scores = {}
    for name, value in read_json(run.evaluation_file()).items():
        if isinstance(value, dict):
            value = value.get("mean")
        if isinstance(value, float):
            scores[f"evaluation/{name}"] = value
    return scores


class _Board:
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
        self.estimate = _Estimate({name: float(config.goal[1]) for name, config in trials.items()})

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
        shares = []
        training = 0
        evaluating = 0
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
            is_trained = share >= 1
            most = 1.0 if name in self.finished else TRAINED_SHARE
            shares.append(min(most, share))
            if name in running:
                self.estimate.mark(name, share)
            if name in running and is_trained:
                evaluating += 1
            elif name in running:
                training += 1
                rate += row.get(f"speed/{unit}_per_second", 0.0)

        done = sum(shares) / max(1, len(shares))
        head = f"{len(self.finished)}/{len(self.trials)} runs"
        fields = []
        if self.failed:
            fields.append(f"{len(self.failed)} failed")
        if training:
            fields += [f"{training} training", f"{quantity(rate)} {unit}/s"]
        if evaluating:
            fields.append(f"{evaluating} evaluating")
        waiting = [name for name in self.trials if name not in running | self.finished | self.failed.keys()]
        self.line.show(done, head, fields, self.estimate.seconds(running, waiting))


class _Estimate:
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
