"""`compressive compare`: a sweep of runs on Ray Tune, which goes on where it stopped, and the report about them."""

import dataclasses
import importlib.util
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.fields import AtLeast0, Checked, Count, Range
from commands.evaluate import permissions
from commands.launch import start_ray
from commands.options import AllowEnv, user_errors
from commands.options import parse as parse_options
from envs import require_consent
from reports.comparison import Comparison, Run, read_run
from training import UserError, sweep
from training.config import RunConfig, to_plain
from training.console import LiveLine, quantity, say, say_all
from training.run import locked
from training.signals import stop_on_signals

Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
Words = tuple[str, ...]
GRID = ("preset", "cores", "rates", "vary", "seeds")
"""Options that say what a sweep consists of."""


@dataclass(frozen=True)
class Options(Checked):
    """Trains each variant of an agent with several seeds, as many at a time as there is room for, and compares them.

    All options of `compressive launch` hold for every run (--frames, --env, --learner.discount, ...). The same command
    again goes on where it stopped: finished runs are not done anew, others go on from their last checkpoint.

      compressive compare --rates 1 2 4 --cores lstm transformer-xl     the paper's Figure 5, with two baselines
      compressive compare --vary agent.core.compression mean max convolution
      compressive compare --cores gru lstm --vary learner.discount 0.9 0.99 --frames 1000000 --seeds 0 1
      compressive compare --resume runs/compare-cpu                     go on with the sweep in this folder
      compressive compare --from runs/A runs/B runs/C                   only compare finished runs
    """

    preset: str = "cpu"
    """Where all other defaults come from; see `compressive launch --help`."""
    cores: Annotated[Words, tyro.conf.arg(metavar="CORE [CORE ...]")] = ()
    """Cores to compare; without any, the compressive one."""
    rates: Annotated[Words, tyro.conf.arg(metavar="RATE [RATE ...]")] = ()
    """Compression rates of the compressive core."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[Words, ...]], tyro.conf.arg(metavar="FIELD VALUE [VALUE ...]")] = ()
    """Any other field of the configuration and its values; may be given several times, for all combinations. Fields
    of a core are varied in the cores that have them."""
    seeds: Annotated[tuple[Count, ...], tyro.conf.arg(metavar="SEED [SEED ...]")] = (0, 1, 2)
    """A run of each variant with each of these seeds."""
    folder: Folder = None
    """Where runs and the report go; if not given, runs/compare-PRESET, or with --from runs/comparison."""
    resume: Folder = None
    """Go on with the sweep in this folder."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="DIR [DIR ...]")] = ()
    """Train nothing: compare these finished runs."""
    threshold: float | None = None
    """A score; the report says how many frames it takes to reach it. Default: 75 %, where scores are normalised."""
    cpus_per_trial: Annotated[float, Range(0, 1024.0, above=True)] = 1.0
    """CPUs, and threads of torch, of a run; as many runs go on at a time as the machine or cluster has room for."""
    gpus_per_trial: AtLeast0 = 0.0
    """GPUs of a run, such as 0.25."""
    remote_actors: bool = False
    """Each run has its actors in processes of their own, as with `launch` without --local, placed together with it;
    otherwise it acts and learns in one process."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address; the folder must be one that its nodes share."""
    allow_env: AllowEnv = None
    """With --from or --resume: run the code of this environment, such as dm:my_module:Env, if runs name it; several
    are joined by commas."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ValueError("seeds: expected numbers, got none")
        if self.resume and (self.folder or self.runs):
            raise ValueError("--resume goes on in a folder, --folder and --from name others: give only one of them")
        fields = [field for field in dataclasses.fields(self) if field.name in GRID]
        given = [f"--{field.name}" for field in fields if getattr(self, field.name) != field.default]
        if given and self.resume:
            raise ValueError(f"--resume: expected the sweep as it was begun, got {', '.join(given)}")
        if given and self.runs:
            raise ValueError(f"--from: expected runs that are finished as they are, got {', '.join(given)}")


def compare(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options, rest = parse_options(
        Options,
        "compressive compare",
        args=list(arguments),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    _require("matplotlib")
    console = Console()
    if options.runs:
        if rest:
            raise UserError(f"--from: expected runs that are finished as they are, got {' '.join(rest)}")
        folder = options.folder or Path("runs/comparison")
        for kind, file in (("sweep", sweep.FILE), ("run", "config.json")):  # which has a report of its own
            if (folder / file).exists():
                raise UserError(f"{folder} holds a {kind}: expected another folder, --folder DIR, for this report")
        runs = [read_run(run, options.allow_env) for run in options.runs]
        _report(folder, runs, {}, options, shlex.join(arguments), console)
        return
    if options.resume and rest:
        raise UserError(f"--resume: expected the sweep as it was begun, got {' '.join(rest)}")
    folder = (options.resume or options.folder or Path(f"runs/compare-{options.preset}")).absolute()
    command = shlex.join(["compressive", "compare", *arguments])
    if options.resume:
        trials, command = sweep.read(options.resume)
        with user_errors():
            for config in trials.values():
                require_consent(config.env, options.allow_env)
    else:
        trials = sweep.make_trials(
            options.preset, options.cores, options.rates, options.seeds, [(v[0], v[1:]) for v in options.vary], rest
        )
        _require_runnable(trials, options)
        command = _begin(folder, trials, command)
    missing = _train(folder, trials, options, console)
    finished = [read_run(folder / name, config.env) for name, config in trials.items() if name not in missing]
    _report(folder, finished, missing, options, command.removeprefix("compressive compare "), console)
    if missing:
        sys.exit(1)


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"compare needs {package}: pip install -e '.[compare]'")


def _require_runnable(trials: Mapping[str, RunConfig], options: Options) -> None:
    """Raises a UserError for what would make every trial fail."""
    from training.impala import Trainer

    for config in {config.env: config for config in trials.values()}.values():
        if config.learners > 1:
            raise UserError(f"learners: expected 1 in a sweep, got {config.learners}")
        if not options.remote_actors and config.actors.max_actors is not None:
            raise UserError(f"actors: expected one number without --remote-actors, got {config.actors.count}")
        try:
            Trainer(config, Path(), local=not options.remote_actors)
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error


def _begin(folder: Path, trials: dict[str, RunConfig], command: str) -> str:
    """Makes the folder of a sweep, or finds the same sweep in it; returns the command that began it."""
    if (folder / sweep.FILE).is_file():
        old, first = sweep.read(folder)
        if {name: to_plain(config) for name, config in old.items()} != {n: to_plain(c) for n, c in trials.items()}:
            raise UserError(f"{folder} holds another sweep ({first}): expected a new folder, --folder DIR")
        return first
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no sweep: expected a new folder, --folder DIR")
        sweep.write(folder, trials, command)
    except OSError as error:
        raise UserError(f"{folder}: expected a folder that can be written to, got: {error.strerror}") from error
    return command


def _train(folder: Path, trials: dict[str, RunConfig], options: Options, console: Console) -> dict[str, str]:
    """Trains all trials that are not finished; returns what is missing in the end, and why."""
    _require("pandas", "pyarrow")  # which ray[tune] brings
    from training.trials import STOP, Resources, Stopped, Watch, failure, is_finished, run_trials

    resources = Resources(options.cpus_per_trial, options.gpus_per_trial, options.remote_actors)
    with locked(folder):
        finished = {name for name, config in trials.items() if is_finished(folder / name, config)}
        todo = [name for name in trials if name not in finished]
        allowed = permissions(*(config.env for config in trials.values()))
        again = f"compressive compare --resume {shlex.quote(str(folder))}{allowed}"
        lines = {"folder": str(folder), "runs": f"{len(trials)}, {len(finished)} of them finished"}
        say_all(console, lines | ({"stop": f"Ctrl-C, then go on with: {again}"} if todo else {}))
        if not todo:
            return {}
        (folder / STOP).unlink(missing_ok=True)
        cpus = os.cpu_count() or 1
        needed = sum(bundle.get("CPU", 0) for bundle in resources.bundles(trials[todo[0]]))
        if options.ray_address is None and needed > cpus:
            raise UserError(f"cpus-per-trial: expected at most the {cpus} CPUs of this machine, got {needed:g}")
        with (
            start_ray(options.ray_address, cpus, 0, console),
            stop_on_signals() as stop,
            LiveLine(console, "comparing", "the first run") as line,
        ):
            watch = Watch(line, stop, folder, {name: config.frames for name, config in trials.items()}, finished)
            with suppress(Stopped):
                run_trials(folder, trials, sweep.differences(trials), todo, resources, watch)
        if stop.requested:
            say(console, f"stopped; go on with: {again}")
            sys.exit(128 + (stop.signal or 0))
        left = [name for name in todo if not is_finished(folder / name, trials[name])]
        return {name: failure(folder / name) or watch.failed.get(name, "it did not finish") for name in left}


def _report(
    folder: Path, runs: list[Run], missing: dict[str, str], options: Options, command: str, console: Console
) -> None:
    """Writes the report of finished runs and prints its table."""
    from reports.comparison_page import write_report

    for name, reason in missing.items():
        say(console, f"missing {name}: {reason}", "red")
    if not runs:
        raise UserError(f"no run finished; each has its reason in {folder}/*/error.txt")
    comparison = Comparison(runs, options.threshold)
    try:
        with console.status("drawing"):
            page = write_report(folder, comparison, missing, f"compressive compare {command}")
    except OSError as error:
        raise UserError(f"{folder}: expected a folder that can be written to, got: {error.strerror}") from error
    console.print(score_table(comparison))
    for caution in comparison.cautions:
        say(console, caution, "yellow")
    say_all(console, {"report": str(page)})


def score_table(comparison: Comparison) -> Table:
    """The variants' final scores and frames to the threshold, as far as a terminal has room for them."""
    built = Table("variant", "runs", comparison.scale_text, "correct %", "frames to threshold", "steps/s")
    for variant in comparison.variants:
        score = variant.score
        interval = "" if math.isnan(score.low) else f"  [{score.low:.2f}, {score.high:.2f}]"
        reached = [frames for frames in variant.reached if frames is not None]
        mean = f"{quantity(sum(reached) / len(reached))} ({len(reached)} of {len(variant.runs)})" if reached else "-"
        built.add_row(
            Text(variant.name),
            str(len(variant.runs)),
            f"{score.value:.2f}{interval}",
            "-" if variant.correct is None else f"{variant.correct:.1f}",
            mean,
            quantity(variant.steps_per_second),
        )
    return built
