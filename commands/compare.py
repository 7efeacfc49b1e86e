"""`compressive compare`: a sweep of runs of one kind on Ray, which can be resumed, and the report about them."""

import dataclasses
import functools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from commands.options import CompareOptions
from commands.parsing import parse_train
from envs import require_consent
from reports.comparison import FinishedRun, read_run, require_equal_data, text_name
from reports.comparison import compare as compare_runs
from reports.comparison_page import print_scores, write_reports
from reports.tables import print_table
from sequences.kinds import CONFIGS
from storage.errors import UserError, user_errors
from storage.run import Run
from training import sweep
from training.config import checkpoint_place, permissions
from training.console import Busy, LiveLine, duration, program, say, say_all
from training.signals import stop_on_signals
from training.suites import SUITES


def compare(options: CompareOptions, words: Sequence[str], command: str) -> None:
    """Runs the command: `words` are options of the one that trains a run, `command` is all of it, for the report."""
    console = Console()
    if words and (options.runs or options.resume):
        raise UserError(f"{options.source}, got {' '.join(words)}")
    if options.runs:
        folder = options.folder or Path("runs/comparison")
        for kind, file in (("sweep", sweep.FILE), ("run", Run(folder).config_file.name)):  # they have their own report
            if (folder / file).exists():
                raise UserError(f"{folder} holds a {kind}: expected another folder, --folder DIR, for this report")
        runs = [read_run(run, options.allow) for run in options.runs]
        _report(folder, runs, options.threshold, {}, command, console)
        return
    if options.resume:
        folder, trials, command = _resume(options)
    else:
        trials = _plan(options, words)
        folder = (options.folder or _folder(options, trials)).absolute()
        command = sweep.begin(folder, trials, command)
        if options.suite and not any((folder / name).exists() for name in trials):
            with Busy(console, "trying each task and each core"):
                cost = _cost(trials, options)
            say_all(console, {"cost": cost})
    try:
        failed = _train(folder, trials, options, console)
    finally:  # also of what there is when it was stopped
        _scoreboard(folder, trials, command, console)
    finished, missing = [], {}
    for name, config in trials.items():
        try:
            finished.append(read_run(folder / name, getattr(config, "env", None)))
        except UserError as error:
            missing[name] = sweep.failure(Run(folder / name)) or failed.get(name) or str(error)
            say(console, f"missing {name}: {missing[name]}", "red")
    if not finished:
        raise UserError(f"no run finished; each has its reason in {folder}/*/{Run(folder).error_file.name}")
    _report(folder, finished, options.threshold, missing, command, console)
    if missing:
        sys.exit(1)


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
    return folder, trials, command


def _folder(options: CompareOptions, trials: dict[str, Any]) -> Path:
    """Where a new sweep goes, by its suite or the preset of its runs."""
    preset = next(iter(trials.values())).preset
    name = preset if options.kind == "launch" else f"{options.kind}-{preset}"
    return Path(f"runs/compare-{options.suite or name}")


def _plan(options: CompareOptions, words: Sequence[str]) -> dict[str, Any]:
    """The configurations of a new sweep, by the trial's name. Raises a UserError for what would make trials fail."""
    kind = options.kind
    # Films take longer than a short training. An option that is given later counts.
    if kind == "launch":
        words = ["--video-episodes", "0", *words]

    def make(words: Sequence[str]) -> dict[str, Any]:
        return sweep.make_trials(
            CONFIGS[kind],
            lambda words: parse_train(kind, words).config,
            options.preset or ("general" if options.suite else None),
            options.cores,
            options.rates,
            options.seeds,
            [(field, tuple(values)) for field, *values in options.vary],
            words,
            fewest=1 if options.suite else 2,
        )

    trials = sweep.make_suite(SUITES[options.suite], make, words) if options.suite else make(words)
    if options.state_bytes is not None:
        trials = sweep.match_states(trials, options.state_bytes)
    if kind != "launch" and options.remote_actors:
        raise UserError(f"--remote-actors: expected runs of agents, which have actors, got {kind}")
    for config in trials.values():
        if config.learners > 1:
            raise UserError(f"learners: expected 1 in a sweep, got {config.learners}")
        if kind == "launch" and not options.remote_actors and config.actors.max_actors is not None:
            raise UserError(f"actors: expected one number without --remote-actors, got {config.actors.count}")
    if kind == "launch":
        if not options.suite:  # those of a suite are tried when its cost is measured
            _try_agents(trials, local=not options.remote_actors)
    else:
        _try_data(trials)
    return trials


def _try_agents(trials: dict[str, Any], local: bool) -> None:
    """Makes the agent of each variant; raises a UserError if it cannot be trained."""
    from training.trainer import Trainer

    variants = dict.fromkeys(dataclasses.replace(config, seed=0) for config in trials.values())
    for config in variants:
        with user_errors():
            Trainer(config, Run(""), local).inherit()


def _cost(trials: dict[str, Any], options: CompareOptions) -> str:
    """How long a suite will take, in words.

    Measured are each task with one core, and each core on one task; the others follow, as if speeds were products.
    """
    from training.trainer import Trainer

    torch.set_num_threads(max(1, int(options.cpus_per_trial)))
    names = dict(zip(trials, sweep.label([*trials.values()])))
    speeds = dict[tuple[str, str], float]()
    first_env, first_name = next((trials[name].env, names[name]) for name in trials)
    for trial, config in trials.items():
        key = (config.env, names[trial])
        if key not in speeds and (config.env == first_env or names[trial] == first_name):
            with user_errors():
                speeds[key] = Trainer(config, Run(""), local=True).try_out()
    seconds = []
    for trial, config in trials.items():
        relative = speeds[config.env, first_name] / speeds[first_env, first_name]
        seconds.append(config.frames / (relative * speeds[first_env, names[trial]]))
    at_once = max(1, int((os.cpu_count() or 1) / options.cpus_per_trial))
    where = f"{at_once} at a time on this machine, if nothing else runs here"
    each = f"{duration(min(seconds))} to {duration(max(seconds))}"
    return f"about {duration(sum(seconds) / at_once)} for {len(trials)} runs of {each} each, {where}"


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
    """Trains all trials that are not finished; returns why others failed."""
    from training.cluster import start_ray

    with Run(folder).lock():
        todo = [name for name, config in trials.items() if not sweep.is_finished(Run(folder / name), config)]
        again = f"{program()} compare --resume {shlex.quote(str(folder))}{permissions(*trials.values())}"
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
        cpus = os.cpu_count() or 1
        numbers = options.cpus_per_trial, options.gpus_per_trial, options.remote_actors
        bundles = max((sweep.bundles_of(trials[name], *numbers) for name in todo), key=len)  # that suffice for each
        needed = sum(bundle.get("CPU", 0) for bundle in bundles)
        if options.ray_address is None and needed > cpus:
            raise UserError(f"cpus-per-trial: expected at most the {cpus} CPUs of this machine, got {needed:g}")
        with (
            start_ray(options.ray_address, cpus, 0, console),
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
    return {"films": f"{most} episode{'s' * (most > 1)} of each run"}


def _train_run(config: Any, run: Run, local: bool, **options: Any) -> Any:
    """Trains or resumes a run, and evaluates it; see `training.sweep.run_trials`."""
    if config.kind != "launch":
        from sequences import trainer as sequence

        return sequence.train_model(config, run, **options)
    from commands.launch import evaluate_and_film
    from training import trainer as agents

    def evaluate(trainer: agents.Trainer) -> dict[str, Any]:
        summary, _ = evaluate_and_film(trainer, Console(quiet=True))
        return summary

    return agents.train_agent(config, run, local=local, evaluate=evaluate, **options)


def _scoreboard(folder: Path, trials: dict[str, Any], command: str, console: Console) -> None:
    """Writes and prints one table of the tasks and variants of agents, unless there is one task alone."""
    from reports import scoreboard

    if len({getattr(config, "env", None) for config in trials.values()}) < 2:
        return
    runs = []
    for name, config in trials.items():
        with suppress(UserError):  # not begun, or no episode has ended
            runs.append(read_run(folder / name, ",".join(config.named_environments), live=True))
    if not runs:
        return
    board = scoreboard.scoreboard(runs)
    page = scoreboard.write_scoreboard(folder, board, command)
    for table in (scoreboard.as_table(board), scoreboard.costs_table(board)):
        # Without intervals, for which a terminal is too narrow.
        texts = [[cell["text"] if isinstance(cell, dict) else str(cell) for cell in row] for row in table["rows"]]
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
    for caution in dict.fromkeys(caution for comparison in comparisons for caution in comparison.cautions):
        say(console, caution, "yellow")
    say_all(console, {"report": str(page)})
