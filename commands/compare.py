"""`compressive compare`: a sweep of runs of one kind on Ray Tune, which can be resumed, and the report about them."""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from agent.fields import Checked, Count, Several
from commands.arguments import CompareOptions, Words, parse_compare, parse_launch, permissions
from commands.options import TrainingOptions, parse, parse_training, user_errors
from envs import require_consent
from reports.comparison import Comparison, FinishedRun, read_run
from reports.comparison_page import score_table, write_report
from reports.report import PRESETS
from training import UserError, sweep
from training.config import to_plain
from training.console import LiveLine, program, say, say_all
from training.run import Folder, Run, absolute
from training.signals import stop_on_signals


def compare(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options, rest = parse_compare(arguments)
    console, command = Console(), shlex.join(["compressive", "compare", *arguments])
    if rest and (options.runs or options.resume):
        raise UserError(f"{options.source}, got {' '.join(rest)}")
    if options.runs:
        folder = options.folder or Path("runs/comparison")
        for kind, file in (("sweep", sweep.FILE), ("run", Run(folder).config_file.name)):  # they have their own report
            if (folder / file).exists():
                raise UserError(f"{folder} holds a {kind}: expected another folder, --folder DIR, for this report")
        _report(folder, [read_run(run, options.allow_env) for run in options.runs], {}, options, command, console)
        return
    name = options.preset if options.kind == "launch" else f"{options.kind}-{options.preset}"
    folder = (options.resume or options.folder or Path(f"runs/compare-{name}")).absolute()
    if options.resume:
        trials, command = sweep.read(options.resume)
        with user_errors():
            for config in trials.values():
                if config.kind == "launch":
                    require_consent(config.env, options.allow_env)
    else:
        axes = [(words[0], words[1:]) for words in options.vary]
        grid = options.preset, options.cores, options.rates, options.seeds, axes, rest
        trials = sweep.make_trials(sweep.CONFIGS[options.kind], _parser(options.kind), *grid)
        _require_runnable(trials, options)
        command = _begin(folder, trials, command)
    failed = _train(folder, trials, options, console)
    finished, missing = [], {}
    for name, config in trials.items():
        try:
            finished.append(read_run(folder / name, getattr(config, "env", None)))
        except UserError as error:
            missing[name] = sweep.failure(Run(folder / name)) or failed.get(name) or str(error)
            say(console, f"missing {name}: {missing[name]}", "red")
    if not finished:
        raise UserError(f"no run finished; each has its reason in {folder}/*/{Run(folder).error_file.name}")
    _report(folder, finished, missing, options, command, console)
    if missing:
        sys.exit(1)


def _parser(kind: str) -> Callable[[list[str]], Any]:
    """Reads the words of a command that trains into a configuration."""
    if kind == "launch":
        return lambda words: parse_launch(words).config
    config = sweep.CONFIGS[kind]
    options = dataclasses.make_dataclass("Options", [], bases=(config, TrainingOptions), frozen=True)

    def read(words: list[str]) -> Any:
        found = parse_training(options, f"compressive {kind} train", words, PRESETS[kind], ()).config_of(config)
        with user_errors():
            return found.located(absolute)

    return read


def _require_runnable(trials: Mapping[str, Any], options: CompareOptions) -> None:
    """Raises a UserError for what would make every trial fail."""
    for config in trials.values():
        if config.learners > 1:
            raise UserError(f"learners: expected 1 in a sweep, got {config.learners}")
    if options.kind != "launch":
        from training.sequence import open_data

        if options.remote_actors:
            raise UserError(f"--remote-actors: expected runs of agents, which have actors, got {options.kind}")
        names = "corpus", "path", "tokens", "vocabulary"
        with user_errors():
            for config in {str([getattr(each, name, "") for name in names]): each for each in trials.values()}.values():
                open_data(config)
        return
    from training.impala import Trainer

    for config in {config.env: config for config in trials.values()}.values():
        if not options.remote_actors and config.actors.max_actors is not None:
            raise UserError(f"actors: expected one number without --remote-actors, got {config.actors.count}")
        with user_errors():
            Trainer(config, Run(""), local=not options.remote_actors)


def _begin(folder: Path, trials: dict[str, Any], command: str) -> str:
    """Creates the folder of a sweep, or finds the same sweep in it; returns the command that began it."""
    if (folder / sweep.FILE).is_file():
        old, first = sweep.read(folder)
        if {name: to_plain(config) for name, config in old.items()} != {n: to_plain(c) for n, c in trials.items()}:
            raise UserError(f"{folder} holds another sweep ({first}): expected a new folder, --folder DIR")
        return first
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no sweep: expected a new folder, --folder DIR")
        sweep.write(folder, trials, command)
    return command


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: expected a folder that can be written to, got: {error.strerror}") from error


def _train(folder: Path, trials: dict[str, Any], options: CompareOptions, console: Console) -> dict[str, str]:
    """Trains all trials that are not finished; returns why others failed."""
    for package in ("pandas", "pyarrow"):  # which ray[tune] installs
        if importlib.util.find_spec(package) is None:
            raise UserError(f"compare needs {package}: pip install -e '.[compare]'")
    from training.cluster import start_ray

    with Folder(folder).lock():
        todo = [name for name, config in trials.items() if not sweep.is_finished(Run(folder / name), config)]
        allowed = permissions(*(config.env for config in trials.values() if config.kind == "launch"))
        again = f"{program()} compare --resume {shlex.quote(str(folder))}{allowed}"
        lines = {"folder": str(folder), "runs": f"{len(trials)}, {len(trials) - len(todo)} of them finished"}
        say_all(console, lines | ({"stop": f"Ctrl-C, then resume with: {again}"} if todo else {}))
        if not todo:
            return {}
        cpus = os.cpu_count() or 1
        numbers = options.cpus_per_trial, options.gpus_per_trial, options.remote_actors
        bundles = sweep.bundles_of(trials[todo[0]], *numbers)
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


def _train_run(config: Any, run: Run, local: bool, **options: Any) -> Any:
    """Trains or resumes a run, and evaluates it; see `training.sweep.run_trials`."""
    if config.kind != "launch":
        from training import sequence

        return sequence.train_run(config, run, **options)
    from commands.launch import evaluate_and_film
    from training import impala

    def finish(trainer: impala.Trainer) -> dict[str, Any]:
        return evaluate_and_film(trainer, Console(quiet=True))[0]

    return impala.train_run(config, run, local=local, finish=finish, **options)


def _report(
    folder: Path,
    runs: list[FinishedRun],
    missing: dict[str, str],
    options: CompareOptions,
    command: str,
    console: Console,
) -> None:
    """Writes the report of finished runs and prints its table."""
    comparison = Comparison(runs, options.threshold)
    with _written(folder), console.status("drawing"):
        page = write_report(folder, comparison, missing, command)
    console.print(score_table(comparison))
    for caution in comparison.cautions:
        say(console, caution, "yellow")
    say_all(console, {"report": str(page)})


@dataclass(frozen=True)
class SpeechOptions(Checked):
    """Compares models of one size on one corpus, as `compare --kind speech` does, which has more options."""

    run: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the comparison, with a run for each model."""
    preset: str = "cpu"
    """cpu or paper."""
    cores: Words = ("compressive", "transformer-xl", "lstm", "wavenet")
    """Which models."""
    seed: Count = 0
    """Seed of weights and dropout."""
    parallel: Several = 2
    """Models trained at once; they share the CPUs, or the GPU."""


def speech_compare(arguments: Sequence[str]) -> None:
    """Runs `compressive speech compare` of version 0.1 as `compressive compare`."""
    options: SpeechOptions
    options, rest = parse(SpeechOptions, "compressive speech compare", arguments, return_unknown_args=True)
    share = {"cpus": (os.cpu_count() or 1) / options.parallel}
    share |= {"gpus": 1 / options.parallel} if torch.cuda.is_available() else {}
    words = [word for name, part in share.items() for word in (f"--{name}-per-trial", f"{part:g}")]
    grid = ["--preset", options.preset, "--cores", *options.cores, "--seeds", str(options.seed)]
    compare(["--kind", "speech", "--folder", str(options.run), *grid, *words, *rest])
