"""Sweeps: trials of a grid in one folder, its file, why trials failed, and their processes on Ray.

A trial is an ordinary run of any kind in a folder of its own. The folders say what is finished: a sweep is resumed with
the other trials, each from its last checkpoint. The grid is made in `grid.py`, progress shown by `sweep_progress.py`.
"""

import itertools
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from envs.processes import limit_cores
from storage.errors import UserError
from storage.files import Json, abbreviate, read_json, read_regular, replacing, require_schema, write_json
from storage.metrics import write_hparams
from storage.run import Run
from training.config import Config, Configuration, RunConfig
from training.console import LiveLine, say
from training.grid import training_fields
from training.plain import by_full_name, from_plain, to_plain
from training.signals import StopRequest
from training.sweep_progress import Board

FILE = "sweep.json"
STOP = ".stop"
"""File in the sweep's folder: trials write a checkpoint and end as soon as it exists."""
_TRIAL = re.compile(r"[a-z0-9-][a-z0-9.-]*")
"""Names of trials as `grid.make_trials` makes them."""
MOST = 1 << 20
"""Bytes of `error.txt` that are read; a longer one is not."""
DEATHS = 2
"""How often a trial's process is replaced after it died. An exception ends the trial: it would be raised again."""
SHOW_SECONDS = 2.0
"""Longest time between two looks at what the trials have done."""
ROOM_SECONDS = 30.0
"""How long no trial has room until that is said, and until it is said again."""
LOCK_SECONDS = 60.0
"""How long to wait for the process of a trial whose driver was killed: Ray ends it within half a minute."""
Train = Callable[..., object]
"""Trains or resumes a run, and evaluates it: `train(config, run, *, stop, show, patience)`, in a process of its own;
returns something true if the run is finished."""


def begin(
    folder: Path, trials: Mapping[str, Configuration], command: str, add: bool = False
) -> tuple[dict[str, Any], str]:
    """Creates the folder of a sweep, finds the same sweep in it, or adds to it; see `all_trials`."""
    folder.mkdir(parents=True, exist_ok=True)
    with Run(folder).lock():
        of_sweep, commands = all_trials(folder, trials, command, add)
        write_json(folder / FILE, {"command": commands, "trials": _plain(of_sweep)})
    return of_sweep, commands


def all_trials(
    folder: Path, trials: Mapping[str, Configuration], command: str, add: bool = False
) -> tuple[dict[str, Any], str]:
    """The trials of a folder's sweep with these, and the command that began it. Only reads, so that it can be refused.

    With `add`, the trials are added to those of the folder's sweep, and the command to its commands. A trial that is
    in it under another name is not added; see `twins`.

    Raises:
        UserError: if the folder holds something else, or with `add`, a trial of the same name with other settings.
    """
    if not (folder / FILE).is_file():
        # The file of the lock is there before anything else.
        others = [path for path in folder.iterdir() if path.name != ".lock"] if folder.exists() else []
        if others:
            raise UserError(f"{folder} is not empty and holds no sweep: expected a new folder, --folder DIR")
        return dict(trials), command

    classes = {config.kind: type(config) for config in trials.values()}
    old, first = read(folder, classes)
    if not add:
        # The same command again resumes the sweep.
        if _plain(old) != _plain(trials):
            expected = "expected a new folder, --folder DIR, or --add, to add these runs to it"
            before = first.replace("\n", "; ")
            raise UserError(f"{folder} holds another sweep ({before}): {expected}")
        return old, first

    _require_equal(folder, old, trials)
    known = twins(old, trials)
    both = {**old, **{name: config for name, config in trials.items() if name not in known}}
    if both.keys() == old.keys():
        return old, first
    return both, f"{first}\n{command}"


def twins(old: Mapping[str, Configuration], new: Mapping[str, Configuration]) -> dict[str, str]:
    """New trials that would train what one of the old ones does, by name, and the name of that one.

    Names say in what the trials of one command differ. So the compressive core alone and one with the rate that it has
    anyway have two names.
    """
    old_fields = {name: training_fields(config) for name, config in old.items()}
    found = {}
    for name, config in new.items():
        if name in old:
            continue
        fields = training_fields(config)
        for old_name, others in old_fields.items():
            if fields == others:
                found[name] = old_name
    return found


def _require_equal(folder: Path, old: Mapping[str, Configuration], new: Mapping[str, Configuration]) -> None:
    """Raises a UserError if trials of one name differ: what is trained already cannot have other settings."""
    before = _plain(old)
    for name, now in _plain(new).items():
        fields = by_full_name(now)
        fields_before = by_full_name(before.get(name, now))
        for field, value in fields.items():
            if fields_before.get(field) != value:
                expected = f"expected its {field} to be {fields_before.get(field)!r}, as in its sweep"
                hint = "if a command has both values, they have names of their own"
                raise UserError(f"{folder / name}: {expected}, got {value!r}; {hint}")


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
        if len(kinds) != 1:
            found = ", ".join(sorted(kinds)) or "no trials"
            raise ValueError(f"trials: expected runs of one kind, got {found}")
        (kind,) = kinds
        if kind not in configs:
            raise ValueError(f"kind: expected {' or '.join(configs)}, got {kind!r}")
        trials = {}
        for name, config in plain.items():
            _require_within(folder, name)
            trials[name] = from_plain(configs[kind], config)
        return trials, content["command"]
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"{path}: expected a sweep as `compressive compare` writes it, got: {error}") from error


def _require_within(folder: Path, name: str) -> None:
    """Raises a ValueError for a trial that is not a folder within the sweep's: the sweep may be another person's."""
    if not _TRIAL.fullmatch(name) or (folder / name).is_symlink():
        expected = "names of folders within the sweep, of a-z, 0-9, '.' and '-', and no links"
        raise ValueError(f"trials: expected {expected}, got {abbreviate(name)}")


def failure(run: Run) -> str | None:
    """Why a trial failed, in one line; None if it did not."""
    if not os.path.lexists(run.error_file):
        return None
    try:
        reason = read_regular(run.error_file, MOST).decode(errors="replace")
    except (OSError, ValueError) as error:  # it is a link, say, which may lead to any file of the user
        return _one_line(str(error))
    # In a traceback, quoted code is indented, and what was raised is not. Nothing is said in an empty line either.
    said = []
    for line in reason.splitlines():
        first_character = line[:1]
        if first_character.strip():
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


def enough_for(several: Sequence[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The bundles that have, each in its place, what any of the trials with these bundles needs."""
    found = []
    for in_one_place in itertools.zip_longest(*several, fillvalue={}):
        most: dict[str, float] = {}
        for bundle in in_one_place:
            for name, number in bundle.items():
                most[name] = max(most.get(name, 0.0), number)
        found.append(most)
    return found


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

    They begin in their order.

    Args:
        train: see `Train`.
        bundles: resources of each trial; see `bundles_of`.
        stop: whether the user asked to stop; then all running trials write a checkpoint.

    Returns:
        by trial, why its process ended without a result.
    """
    from training.trial_processes import TrialProcesses  # here, because it imports Ray

    # Left by a sweep that was stopped.
    stop_file = folder / STOP
    stop_file.unlink(missing_ok=True)
    board = Board(folder, trials, line)
    hparams = hyperparameters(trials)
    threads = max(1, int(bundles[0].get("CPU", 0)))

    def arguments(name: str) -> tuple[object, ...]:
        return folder, name, trials[name], train, threads, hparams[name]

    unfinished = [name for name in trials if name not in board.finished]
    processes = TrialProcesses(unfinished, bundles, _run_trial, arguments)
    deaths = Counter[str]()
    seen_running = time.monotonic()
    try:
        while processes.any_left:
            processes.start_next()
            for name, error in processes.wait(SHOW_SECONDS):
                reason = failure(Run(folder / name)) if error is None else _one_line(str(error))
                has_died = _has_died(error)
                deaths[name] += has_died
                may_restart = deaths[name] <= DEATHS and not stop.requested
                if has_died and may_restart:
                    say(line.console, f"restarted {name}: {reason}", "yellow")
                    processes.start(name)
                else:
                    processes.release(name)
                    board.end(name, reason)
            if stop.requested:
                stop_file.touch()  # running trials write a checkpoint and end
                processes.forget_waiting()

            # Show how far they are, and now and then that none has room.
            running = processes.running()
            board.show(running)
            now = time.monotonic()
            if running:
                seen_running = now
            elif now - seen_running >= ROOM_SECONDS:
                say(line.console, processes.no_room(), "yellow")
                seen_running = now
    except ConnectionError:  # standard output was closed
        stop_file.touch()
        processes.wait_for_all(LOCK_SECONDS)  # running trials write a checkpoint and end
        raise
    return board.failed


def _has_died(error: Exception | None) -> bool:
    """Whether a trial's process has died. A RayTaskError is an exception of its code, which would be raised again."""
    from ray.exceptions import RayTaskError

    return error is not None and not isinstance(error, RayTaskError)


def _run_trial(folder: Path, name: str, config: Configuration, train: Train, threads: int, hparams: Json) -> None:
    """Runs one trial in a process of its own; see `run_trials`. An exception is written to the run's `error.txt`."""
    if not (folder / FILE).is_file():
        raise FileNotFoundError(f"{folder} does not exist on {os.uname().nodename}: expected a folder that nodes share")
    run = Run(folder / name)
    # What is there at the end is of this attempt, also if it is stopped before it begins.
    run.error_file.unlink(missing_ok=True)
    stop = folder / STOP
    if stop.exists():
        return
    torch.set_num_threads(threads)
    limit_cores(threads)  # other trials use the others
    _hide_gpus_of_others()
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


def _hide_gpus_of_others() -> None:
    """Leaves a trial that asked for no GPU without one, before anything in its process has looked for GPUs.

    Ray does not hide them from such a process. All trials at a time would learn on the first one.
    """
    import ray

    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _scores(run: Run) -> dict[str, float]:
    """The numbers in a run's evaluation, and the means of those that have one, by the name of the metric."""
    scores = {}
    for name, value in read_json(run.evaluation_file()).items():
        if isinstance(value, dict):
            value = value.get("mean")
        if isinstance(value, float):
            scores[f"evaluation/{name}"] = value
    return scores
