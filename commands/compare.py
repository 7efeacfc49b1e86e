"""`compressive compare`: a sweep of runs of one kind on Ray, which can be resumed, and the report about them."""

import dataclasses
import functools
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from commands.options import CompareOptions
from commands.parsing import parse_train
from commands.shared_options import words_of
from envs import EnvironmentFailed, require_consent
from reports.comparison import FinishedRun, read_run, require_equal_data, text_name
from reports.comparison import compare as compare_runs
from reports.comparison_page import print_scores, write_reports
from reports.conclusions import answer, spread
from reports.scores import Score, joined, not_begun, planned, read_scores, scores_of
from reports.tables import print_table
from sequences.kinds import CONFIGS
from storage.errors import UserError, user_errors
from storage.run import Run
from training import grid, sweep
from training.config import RunConfig
from training.console import Busy, LiveLine, duration, plural, program, say, say_all
from training.factories import import_core, resolve_pixel_zero
from training.signals import stop_on_signals
from training.suites import SUITES
from training.sweep_progress import is_finished
from training.trust import checkpoint_place, code_of, permissions, require_core

logger = logging.getLogger(__name__)
AT_RESUME = ("ray_address", "remote_actors", "cpus_per_trial", "gpus_per_trial", "threshold", "beside")
"""Options that are not in a sweep's folder, so that they are given again when it is resumed."""


def compare(options: CompareOptions, words: Sequence[str], command: str) -> None:
    """Runs the command: `words` are options of the one that trains a run, `command` is all of it, for the report."""
    console = Console()
    if words and (options.runs or options.resume):
        raise UserError(f"{options.source}, got {' '.join(words)}")

    # Runs that there are need only a report.
    if options.runs:
        folder = options.folder or Path("runs/comparison")
        _require_no_report(folder)
        runs = [read_run(run, options.allow) for run in options.runs]
        _report(folder, runs, options.threshold, {}, command, console)
        return

    # What is wrong in a file is said before hours of training.
    with user_errors("beside"):
        beside = _read_beside(options.beside)

    if options.resume:
        folder, trials, command = _resume(options)
    else:
        folder, trials, command = _begin(options, words, command, console)
    _say_differences([config for config in trials.values() if isinstance(config, RunConfig)], beside, console)
    if _resources()["GPU"] and options.gpus_per_trial == 0:
        say(console, "all runs learn on the CPU; with --gpus-per-trial 0.25 four of them share a GPU", "yellow")
    with Run(folder).lock():
        has_report = (folder / "report.html").exists()
        try:
            failed = _train(folder, trials, options, console)
            has_report = has_report or any(Run(folder / name).evaluation_file().is_file() for name in trials)
        finally:  # also of what there is when it was stopped
            _scoreboard(folder, trials, beside, command, console, has_report)

    # What the trials left behind: a run that can be shown, or the reason why not.
    finished = []
    missing = {}
    for name, config in trials.items():
        try:
            finished.append(read_run(folder / name, _code(config)))
        except UserError as error:
            missing[name] = sweep.failure(Run(folder / name)) or failed.get(name) or str(error)
            say(console, f"missing {name}: {missing[name]}", "red")
    if not finished:
        raise UserError(f"no run finished; each has its reason in {folder}/*/{Run(folder).error_file.name}")
    _report(folder, finished, options.threshold, missing, command, console)
    if missing:
        sys.exit(1)


def _read_beside(paths: Sequence[Path]) -> dict[str, list[Score]]:
    """The rows of files, by what these are called in tables.

    That is their name alone, unless others have the same: all that comparisons write are called scores.json.
    """
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): read_scores(path) for path in paths}


def _say_differences(configs: Sequence[RunConfig], beside: Mapping[str, Sequence[Score]], console: Console) -> None:
    """Says which variants of files were trained otherwise than these runs will be: before the hours, not after them."""
    if not beside:
        return
    with user_errors():
        rows = planned(configs)
    for file, others in beside.items():
        _, different = joined(rows, others, file)
        _say_different(different, console)


def _say_different(different: Mapping[str, str], console: Console) -> None:
    """Says in what variants were trained otherwise, with one line for all whose settings differ alike."""
    for words in dict.fromkeys(different.values()):
        variants = [variant for variant, difference in different.items() if difference == words]
        say(console, f"{', '.join(variants)}: trained otherwise: {words}", "yellow")


def _code(config: Any) -> str:
    """All code that a trial names, joined by commas: its run may name it. Empty for sequence models."""
    return ",".join(code_of(config))


def _require_no_report(folder: Path) -> None:
    """Raises a UserError if a folder has a report of its own, that of a sweep or of a run."""
    files = {"sweep": sweep.FILE, "run": Run(folder).config_file.name}
    for kind, file in files.items():
        if (folder / file).exists():
            raise UserError(f"{folder} holds a {kind}: expected another folder, --folder DIR, for this report")


def _begin(
    options: CompareOptions, words: Sequence[str], command: str, console: Console
) -> tuple[Path, dict[str, Any], str]:
    """A new sweep, one of the same folder and trials, or one with trials added: as `_resume`.

    Says first what a suite will cost, or what is added to it.
    """
    asked = _plan(options, words)
    folder = options.folder or _folder(options, asked)
    folder = folder.absolute()

    # What is refused leaves no trace: the folder is written when all of this is known to work.
    trials, _ = sweep.all_trials(folder, asked, command, options.add)
    todo = [name for name in asked if name in trials and not (folder / name).exists()]
    if todo:
        _bundles({name: asked[name] for name in todo}, options)
    is_new = options.add or len(todo) == len(asked)
    if options.suite and todo and is_new:
        with Busy(console, "trying each task and each core"):
            cost = _cost(asked, todo, options)
        say_all(console, {"cost": cost})

    trials, command = sweep.begin(folder, asked, command, options.add)
    for name, other in sweep.twins(trials, asked).items():
        say(console, f"not added: {name} would train the same as {other}, which is in the sweep", "yellow")
    return folder, trials, command


def _bundles(trials: Mapping[str, Any], options: CompareOptions) -> list[dict[str, float]]:
    """What a trial asks the cluster for: as much as any of them needs.

    Raises a UserError if that is more than this machine has, unless it joins a cluster, and for runs that need a GPU
    and ask for none.
    """
    if options.gpus_per_trial == 0:
        _require_no_gpus(trials.values())
    numbers = (options.cpus_per_trial, options.gpus_per_trial, options.remote_actors)
    bundles = sweep.enough_for([sweep.bundles_of(config, *numbers) for config in trials.values()])
    if options.ray_address is not None:
        return bundles
    own, *of_actors = bundles
    for resource, there in _resources().items():
        needed = _needed(bundles, resource)
        if needed > there:
            got = f"{needed:g}"
            if of_actors:
                got = f"{own.get(resource, 0):g} and those of {plural(len(of_actors), 'actor')}, {got} in all"
            expected = f"expected at most the {there} {resource}s of this machine, or --ray-address of a cluster"
            raise UserError(f"{resource.lower()}s-per-trial: {expected}, got {got}")
    return bundles


def _require_no_gpus(configs: Iterable[Any]) -> None:
    """Raises a UserError if a run needs a GPU: it sees none unless it asks for one."""
    for config in configs:
        device = config.learner.device
        reason = ""
        if device.startswith("cuda"):
            reason = f"learner.device is {device}"
        elif device == "auto" and getattr(config, "resident", False):
            reason = "resident runs are on one"
        if reason:
            raise UserError(f"gpus-per-trial: expected 1, or a share of a GPU such as 0.25, because {reason}; got 0")


def _needed(bundles: Sequence[Mapping[str, float]], resource: str) -> float:
    """How much of a resource a trial needs with its actors."""
    return sum(bundle.get(resource, 0) for bundle in bundles)


def _resources() -> dict[str, int]:
    """What a cluster on this machine has, by Ray's names."""
    return {"CPU": _num_cpus(), "GPU": torch.cuda.device_count()}


def _resume(options: CompareOptions) -> tuple[Path, dict[str, Any], str]:
    """The folder of a sweep, its trials and the command that began it; what they name must be allowed."""
    assert options.resume
    folder = options.resume.absolute()
    trials, command = sweep.read(folder, CONFIGS)
    with user_errors():
        for name, config in trials.items():
            checkpoint_place(config, Run(folder / name), options.allow)
            for env in getattr(config, "named_environments", ()):
                require_consent(env, options.allow)
            require_core(config, options.allow)
    return folder, trials, command


def _folder(options: CompareOptions, trials: dict[str, Any]) -> Path:
    """Where a new sweep goes, by its suite or the preset of its runs."""
    if options.suite:
        return Path(f"runs/suite-{options.suite}")
    preset = next(iter(trials.values())).preset
    name = preset if options.kind == "launch" else f"{options.kind}-{preset}"
    return Path(f"runs/compare-{name}")


def _plan(options: CompareOptions, words: Sequence[str]) -> dict[str, Any]:
    """The configurations of a new sweep, by the trial's name. Raises a UserError for what would make trials fail."""
    is_agents = options.kind == "launch"
    trials = _make_trials(options, words)
    if options.remote_actors and not is_agents:
        raise UserError(f"--remote-actors: expected runs of agents, which have actors, got {options.kind}")
    for config in trials.values():
        if config.learners > 1:
            raise UserError(f"learners: expected 1 in a sweep, got {config.learners}")
        if is_agents and config.actors.max_actors is not None:
            expected = "one number in a sweep, whose runs have room for that many"
            raise UserError(f"actors: expected {expected}, got {config.actors.count}")

    if not is_agents:
        _try_data(trials)
    elif not options.suite:  # those of a suite are tried when its cost is measured
        _try_agents(trials, local=not options.remote_actors)
    return trials


def _make_trials(options: CompareOptions, words: Sequence[str]) -> dict[str, Any]:
    """The configurations that the options ask for, by the trial's name."""
    # Films take longer than a short training. An option that is given later counts.
    if options.kind == "launch":
        words = ["--video-episodes", "0", *words]

    # A suite is worth something with one core, too, and one variant may be added to others.
    preset = options.preset
    fewest = 1 if options.suite or options.add else 2
    if options.suite:
        preset = preset or "general"
    kind = CONFIGS[options.kind]
    axes = [(field, tuple(values)) for field, *values in options.vary]

    def parse(words: Sequence[str]) -> Any:
        return parse_train(options.kind, words).config

    def make(words: Sequence[str]) -> dict[str, Any]:
        return grid.make_trials(
            kind, parse, preset, options.cores, options.rates, options.seeds, axes, words, fewest=fewest
        )

    if options.suite:
        chosen = {*options.tasks}
        tasks = [task for task in SUITES[options.suite] if not chosen or {task.name, task.env} & chosen]
        trials = grid.make_suite(tasks, make, words)
    else:
        trials = make(words)
    with user_errors():
        for config in trials.values():
            import_core(config)
    if options.state_bytes is not None:
        trials = grid.match_states(trials, options.state_bytes)
    return trials


def _try_agents(trials: dict[str, Any], local: bool) -> None:
    """Makes the agent of each variant; raises a UserError if it cannot be trained."""
    from training.trainer import Trainer

    variants = dict.fromkeys(dataclasses.replace(config, seed=0) for config in trials.values())
    for config in variants:
        with user_errors():
            Trainer(config, Run(""), local).inherit()


def _cost(trials: dict[str, Any], todo: Sequence[str], options: CompareOptions) -> str:
    """How long those trials of a suite that are named will take, in words.

    Each task is tried with the first variant, and each variant on the first task. The others are estimated: if the
    first variant is half as fast on a task as on the first one, all variants are taken to be half as fast there.
    """
    from training.trainer import Trainer

    torch.set_num_threads(max(1, int(options.cpus_per_trial)))
    labels = grid.label([*trials.values()])
    names = dict(zip(trials, labels))
    first = next(iter(trials))
    first_env = trials[first].env
    first_name = names[first]

    # Frames a second by task and variant.
    speeds: dict[tuple[str, str], float] = {}
    for trial, config in trials.items():
        key = (config.env, names[trial])
        is_measured = config.env == first_env or names[trial] == first_name
        if key not in speeds and is_measured:
            with user_errors():
                speeds[key] = Trainer(config, Run(""), local=True).try_out()

    seconds = []
    for trial in todo:
        config = trials[trial]
        ratio_of_tasks = speeds[config.env, first_name] / speeds[first_env, first_name]
        speed = ratio_of_tasks * speeds[first_env, names[trial]]
        seconds.append(config.frames / speed)

    at_once = _at_once(_bundles({name: trials[name] for name in todo}, options))
    in_all = duration(sum(seconds) / at_once)
    each = f"{duration(min(seconds))} to {duration(max(seconds))}"
    where = f"{at_once} at a time on this machine, if nothing else runs here"
    return f"about {in_all} for {plural(len(todo), 'run')} of {each} each, {where}"


def _at_once(bundles: Sequence[Mapping[str, float]]) -> int:
    """For how many trials this machine has room; at least one."""
    fits = []
    for resource, there in _resources().items():
        if needed := _needed(bundles, resource):
            fits.append(int(there / needed))
    return max(1, min(fits))


def _num_cpus() -> int:
    """CPUs of this machine."""
    return os.cpu_count() or 1


def _try_data(trials: dict[str, Any]) -> None:
    """Opens what the models learn from; raises a UserError if it cannot be read, or differs under one name."""
    from sequences.trainer import open_data

    sources = {}
    for config in trials.values():
        source = [vars(config).get(field) for field in ("corpus", "path", "tokens", "vocabulary")]
        sources[str(source)] = config
    corpora = []
    for config in sources.values():
        with user_errors():
            data = open_data(config)
            name = getattr(data, "name", "") or text_name(config)
            corpora.append((config, name, data.digest))
    require_equal_data(corpora)


def _train(folder: Path, trials: dict[str, Any], options: CompareOptions, console: Console) -> dict[str, str]:
    """Trains all trials that are not finished, in a folder that is locked; returns why others failed."""
    from training.cluster import start_ray

    todo = [name for name, config in trials.items() if not is_finished(Run(folder / name), config)]
    again = f"{program()} compare --resume {shlex.quote(str(folder))}{permissions(*trials.values())}"
    again += words_of(options, *AT_RESUME)
    lines = {
        "folder": str(folder),
        "runs": f"{len(trials)}, {len(trials) - len(todo)} of them finished",
        **_films(trials),
    }
    if todo:
        lines["stop"] = f"Ctrl-C, then resume with: {again}"
    say_all(console, lines)
    if not todo:
        return {}

    bundles = _bundles({name: trials[name] for name in todo}, options)
    with (
        start_ray(options.ray_address, _num_cpus(), 0, console),
        stop_on_signals() as stop,
        LiveLine(console, "comparing", "the first run") as line,
    ):
        train = functools.partial(_train_run, local=not options.remote_actors)
        failed = sweep.run_trials(folder, trials, train, bundles, line, stop)
    if stop.requested:
        say(console, f"stopped; resume with: {again}")
        sys.exit(128 + (stop.signal or 0))
    return failed


def _films(trials: Mapping[str, Any]) -> dict[str, str]:
    """A line about the films of a sweep of agents."""
    episodes = {config.video_episodes for config in trials.values() if config.kind == "launch"}
    if not episodes:
        return {}
    if episodes == {0}:
        return {"films": f"none; film a run afterwards with: {program()} visualize RUN, or all with --video-episodes 2"}
    most = max(episodes)
    return {"films": f"{plural(most, 'episode')} of each run"}


def _train_run(config: Any, run: Run, local: bool, **options: Any) -> Any:
    """Trains or resumes a run, and evaluates it; see `training.sweep.run_trials`."""
    if config.kind != "launch":
        from sequences import trainer as sequence

        return sequence.train_model(config, run, **options)
    from commands.launch import film_trained
    from training import trainer as agents

    def film(trainer: agents.Trainer) -> None:
        shown = film_trained(trainer, Console(quiet=True))
        if shown and "page" not in shown:
            logger.warning("%s: video: %s", run, shown["video"])

    return agents.train_agent(config, run, local=local, evaluated=film, **options)


def _scoreboard(
    folder: Path,
    trials: dict[str, Any],
    beside: Mapping[str, Sequence[Score]],
    command: str,
    console: Console,
    has_report: bool = False,
) -> None:
    """Writes the scores of agents, and writes and prints one table of them unless there is one task alone.

    Args:
        beside: the scores of other runs that are in it as well, by the name of their file.
        has_report: whether there is, or will be, a report of curves beside the table.
    """
    from reports import scoreboard

    tasks = {config.env for config in trials.values() if isinstance(config, RunConfig)}
    if not tasks:  # of sequence models
        return
    runs = []
    waiting = []
    for name, config in trials.items():
        try:
            runs.append(read_run(folder / name, _code(config), live=True))
        except UserError:  # not begun, or no episode has ended
            waiting.append(config)
    if not runs:
        return
    # A table of some of the runs says how many there will be.
    for config in waiting:
        with suppress(ValueError, ImportError, EnvironmentFailed):  # its trial fails for this reason, and says so
            config = resolve_pixel_zero(config)
        runs.append(not_begun(config))
    scores = scores_of(runs)
    if len(tasks) < 2 and not beside:
        scoreboard.write_scores(folder, scores)
        return
    for file, others in beside.items():
        scores, different = joined(scores, others, file)
        _say_different(different, console)
    board = scoreboard.scoreboard(scores)
    page = scoreboard.write_scoreboard(folder, board, command, has_report)
    for table in (scoreboard.as_table(board), scoreboard.costs_table(board)):
        texts = []
        for row in table["rows"]:
            # Without intervals, for which a terminal is too narrow.
            texts.append([cell["text"] if isinstance(cell, dict) else str(cell) for cell in row])
        print_table(console, table["head"], texts, 1)
    say_all(console, {"scoreboard": str(page)})


def _report(
    folder: Path,
    runs: Sequence[FinishedRun],
    threshold: float | None,
    missing: dict[str, str],
    command: str,
    console: Console,
) -> None:
    """Writes the report of finished runs and prints its tables."""
    comparisons = compare_runs(runs, threshold)
    with Busy(console, "writing the report"):
        page = write_reports(folder, comparisons, missing, command)
    for comparison in comparisons:
        print_scores(console, comparison)
        brackets = spread(comparison)
        say(console, answer(comparison) + (f" Brackets are {brackets}." if brackets else ""))
    cautions = [caution for comparison in comparisons for caution in comparison.cautions]
    for caution in dict.fromkeys(cautions):  # each once
        say(console, caution, "yellow")
    say_all(console, {"report": str(page)})
