"""`compressive launch`: trains an agent, then evaluates and films it."""

import contextlib
import errno
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from actors import ClusterError
from commands.options import AllowEnv, TrainingOptions, parse_training, user_errors
from envs import EnvironmentFailed, foreign_code, held_out, limit_calls, prepare, require_consent, tasks
from learner import checkpoints
from learner.errors import LearnersLost, StorageError
from learner.files import is_url, require_schema, write_json
from reports.tables import evaluation_rows, table, task_table
from training import UserError
from training.config import RunConfig, core_name, differences, from_plain, read_config, to_plain
from training.console import LiveLine, counting, program, quantity, say, say_all, say_skipped
from training.evaluation import play, record, summarize
from training.factories import interface
from training.impala import Trainer
from training.presets import make_preset
from training.run import Run
from training.signals import stop_on_signals

FIXED = ("preset", "env", "seed", "agent.", "learner.optimizer", "checkpoint_url")
"""What a resumed run cannot change: its checkpoints depend on it, or are there."""
ON_RAY = tuple(f"actors.{name}" for name in ("in_flight", "threads", "cpus", "resources", "labels", "placement"))
ON_RAY += ("learner_placement", "learner_labels")
"""What has no effect in one process."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
"""Errors of writing that the user can correct."""


@dataclass(frozen=True)
class Options(RunConfig, TrainingOptions):
    """Trains an agent with IMPALA on this machine or a Ray cluster; then evaluates it and films two episodes.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.
    Numbers of frames and steps may be written as 6M, 200k or 1e6.

      compressive launch                                    a small level on two CPU cores, under 10 minutes
      compressive launch --core lstm --seed 1               the same with another memory
      compressive launch --resume runs/NAME                 resume a run
      compressive launch --resume s3://bucket/run           the same, if its folder is lost
      compressive launch --actors 4..16                     4 actors, and up to 16 as the cluster has room for them
      compressive launch --learners 2                       two learners, each with half of every batch
      compressive launch --preset paper                     section 5.7 of the paper, on DeepMind Lab
      compressive launch --preset paper --env rooms:full    the same on the re-created level
      compressive launch --preset dmlab30                   the same agent on the thirty levels of DMLab-30
      compressive launch --preset paper --core lstm --help  the defaults of that preset and core
    """

    core: str = "compressive"
    """Recurrent core: compressive, transformer-xl, gated-transformer-xl, lstm, gru, mingru or memoryless."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR|URL")] = None
    """Resume the run in this folder, from its last readable checkpoint and with its own configuration.
    Agent, environment and seed stay as they are; --frames and most other values may be changed.
    With the URL of its checkpoints instead, the run gets a new folder (--run)."""
    local: bool = False
    """Act and learn in this one process, without Ray: slower, deterministic, and exactly resumable."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address instead of starting one on this machine."""
    allow_env: AllowEnv = None
    """With --resume: run the code of this environment, such as dm:my_module:Env, if the run names it."""

    @property
    def new_folder(self) -> bool:
        """Whether the run has no folder yet."""
        return self.resume is None or is_url(self.resume)

    @property
    def config(self) -> RunConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        return self.config_of(RunConfig)

    def again(self, run: Path | str) -> str:
        """The command that resumes a run."""
        where = " --local" if self.local else ""
        if self.ray_address:
            where = f" --ray-address {shlex.quote(self.ray_address)}"
        return f"{program()} launch --resume {shlex.quote(str(run))}{where}{permissions(self.env)}"


def permissions(*envs: str) -> str:
    """The words behind a command that allow environments with code of the user's own; empty if there are none."""
    names = ",".join(dict.fromkeys(name for env in envs for name in foreign_code(env)))
    return f" --allow-env {shlex.quote(names)}" if names else ""


def parse(arguments: Sequence[str]) -> Options:
    """The options, with the defaults of the preset and core, or of the resumed run.

    Raises:
        UserError: if a value is impossible.
    """
    arguments = list(_actors(arguments))
    options: Options = parse_training(Options, "compressive launch", arguments, make_preset, FIXED, _read)
    if options.run and not options.new_folder:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.local and options.ray_address:
        raise UserError("--local acts in this process and --ray-address on a cluster: give only one of them")
    if options.local and options.actors.max_actors is not None:
        raise UserError(f"--local acts in this process: expected one number of actors, got {options.actors.count}")
    if options.local and options.learners > 1:
        raise UserError(f"--local learns in this process: expected --learners 1, got {options.learners}")
    with user_errors():
        base = _read(options.resume) if options.resume else make_preset(options.preset, options.core)
    for name, _, new in differences(to_plain(base), to_plain(options.config)):
        if options.local and name in ON_RAY:
            raise UserError(f"--local acts in this process, without a cluster: {name} has no effect there, got {new}")
    if options.resume:
        typed = any(word.partition("=")[0] == "--env" for word in arguments)
        with user_errors():
            require_consent(base.env, options.allow_env, options.env if typed else None)
    return options


def _actors(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with `--actors 4` or `--actors 4..16` written out.

    Raises:
        UserError: if it is neither.
    """
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--actors":
            yield word
            continue
        value = value if equals else next(words, "")
        numbers = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
        if not numbers:
            raise UserError(f"actors: expected a number, or two as in 4..16, got {value!r}")
        yield from ("--actors.num-actors", numbers[1], "--actors.max-actors", numbers[2] or "None")


def _read(run: str) -> RunConfig:
    """The configuration of a run, given by its folder or by the URL of its checkpoints."""
    if not is_url(run):
        return read_config(Run(run))
    checkpoint = checkpoints.load_latest(run)
    try:
        require_schema(checkpoint.state, {"config": dict}, "state")
        return from_plain(RunConfig, {**checkpoint.state["config"], "checkpoint_url": run})
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error


def launch(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(arguments)
    config, console = options.config, Console()
    torch.set_num_threads(options.threads)
    path = options.run or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{core_name(config)}"
    run = Run(path if options.new_folder else str(options.resume))
    _require_lasting(run)
    with console.status("preparing the environment (compiled once, then cached)"), user_errors():
        limit_calls(config.actors.step_seconds)
        prepare(config.env)
        trainer = Trainer(config, run, options.local)
    with run.claim(options.new_folder, lambda: bool(trainer.saved)), _errors(options, trainer, console):
        with user_errors():
            trainer.claim_url(new=options.resume is None)
            if options.resume:
                trainer.restore()
        _describe(options, trainer, console)
        if options.new_folder:  # can be resumed from now on, even if Ray does not start
            run.write_config(to_plain(config))
        begin = time.monotonic()
        with (
            _ray(options, trainer, console),
            stop_on_signals() as stop,
            LiveLine(console, "training", "the first unroll") as line,
        ):
            run.write_config(to_plain(config))
            trainer.train(line.update, lambda: stop.requested)
            run.require()
        if stop.signal and not trainer.done:
            say(console, f"stopped at {quantity(trainer.frames)} frames; resume with: {options.again(run.path)}")
            sys.exit(128 + stop.signal)
        _finish(trainer, time.monotonic() - begin, console)


@contextlib.contextmanager
def _errors(options: Options, trainer: Trainer, console: Console) -> Iterator[None]:
    """Says how to resume a run that an error, a full disk or Ctrl-C interrupts."""
    run = trainer.run

    def resume(more: str = "") -> str:
        return f"resume from {trainer.saved} with: {options.again(run.path)}{more}"

    try:
        yield
    except (OSError, StorageError, MemoryError) as error:
        if run.lost:
            found: Path | str | None = trainer.config.checkpoint_url or run.find()
            if found is None or not trainer.saved:
                raise UserError(f"{run.fate}, and with it all that was learned") from error
            raise UserError(f"{run.fate}; resume from {trainer.saved} with: {options.again(found)}") from error
        if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
            raise
        problem = f"{run} cannot be written to: {error}" if isinstance(error, OSError) else str(error)
        raise UserError(f"{problem}; {resume()}" if trainer.saved else problem) from error
    except (FloatingPointError, ClusterError, LearnersLost) as error:
        slower = f" --learner.learning-rate {trainer.config.learner.learning_rate / 4:.3g}"
        advice = resume(slower if isinstance(error, FloatingPointError) else "")
        print(f"compressive: {error}; {advice}", file=sys.stderr)
        sys.exit(1)
    except EnvironmentFailed as error:
        if not trainer.saved:
            raise
        raise EnvironmentFailed(f"{getattr(error, 'cause', error)}\n{resume()}") from error
    except KeyboardInterrupt:
        if trainer.saved:
            say(console, f"interrupted; {resume()}")
        raise


def _require_lasting(run: Run) -> None:
    """Raises a UserError for a run in the folder that Ray unpacked for a job: it is deleted with the cluster."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    if "working_dir" in job.get("runtime_env", {}) and not run.path.is_absolute():
        raise UserError(f"run: expected an absolute path, because a job's own folder is temporary, got {run}")


def _describe(options: Options, trainer: Trainer, console: Console) -> None:
    config, run, seen = trainer.config, trainer.run, interface(trainer.config.env)
    parameters = sum(parameter.numel() for parameter in trainer.agent.parameters())
    learning = f"learning on {trainer.learner.device}"
    if config.learners > 1:
        learning = f"{config.learners} learners on Ray (device: {config.learner.device})"
    image = " x ".join(map(str, seen.observation_shape))
    repeat = f"{seen.action_repeat} frame{'s' * (seen.action_repeat > 1)} a step"
    number = f"{len(tasks(config.env))} tasks, " if len(tasks(config.env)) > 1 else ""
    lines = {
        "run": str(run),
        "environment": f"{config.env} ({number}{image}), {repeat}",
        "agent": f"{core_name(config)} core, {quantity(parameters)} parameters, {learning}",
        "actors": f"{config.actors.count} x {config.actors.envs_per_actor} environments "
        f"{'in this process' if options.local else 'on Ray'}",
        **({"checkpoints": config.checkpoint_url} if config.checkpoint_url else {}),
        "curves": f"{program('tensorboard')} --logdir {shlex.quote(str(run.path.parent))}",
        "stop": f"Ctrl-C, then resume with: {options.again(run.path)}",
    }
    say_all(console, lines)
    if trainer.restored:
        say_skipped(console, trainer.restored.skipped)
        say(console, f"resumed from {trainer.restored.path} at {quantity(trainer.frames)} frames")


def _ray(options: Options, trainer: Trainer, console: Console) -> contextlib.AbstractContextManager[None]:
    """The Ray cluster of the run; see `training.cluster.start_ray`."""
    if options.local:
        return nullcontext()
    from training.cluster import start_ray

    config = trainer.config
    # Actors may outnumber the cores: the operating system shares these better than an idle queue does.
    cpus = max(os.cpu_count() or 1, config.actors.num_actors + (config.learners if config.learners > 1 else 0))
    store = 3 * config.actors.most_actors * config.actors.in_flight * trainer.unroll_bytes
    return start_ray(options.ray_address, cpus, store, console, "--local does without it")


def _finish(trainer: Trainer, seconds: float, console: Console) -> None:
    """Evaluates and films the trained agent, and prints the results."""
    config, run = trainer.config, trainer.run
    summary, shown = evaluate_and_film(trainer, console)
    write_json(run.evaluation_file(), summary)
    rows = evaluation_rows(summary)
    rows["frames, steps"] = f"{quantity(trainer.frames)}, {quantity(trainer.learner.steps)}"
    rows["training"] = f"{seconds / 60:.1f} min"
    rows |= {**shown, "checkpoint": str(trainer.saved), "metrics": str(run.path / "metrics.jsonl")}
    if "tasks" in summary:
        console.print(task_table(summary["tasks"]))
    console.print(table("finished", rows))
    quoted, allowed = shlex.quote(str(run)), permissions(config.env)
    say_all(
        console,
        {
            "curves": f"{program('tensorboard')} --logdir {quoted}",
            "again": f"{program()} evaluate {quoted}{allowed}",
            "report": f"{program()} report {quoted}{allowed}",
        },
    )


def evaluate_and_film(trainer: Trainer, console: Console) -> tuple[dict[str, Any], dict[str, str]]:
    """Evaluates a trained agent and films it: the evaluation's summary, and where video and page are."""
    config, run, shown = trainer.config, trainer.run, dict[str, str]()
    agent = trainer.agent.to("cpu")
    count = config.eval_episodes * len(tasks(held_out(config.env)))
    with counting(console, "evaluating", count, "episodes") as progress:
        episodes = play(config, agent, config.eval_episodes, progress=progress)
    summary = summarize(episodes, held_out(config.env))
    if config.video_episodes and interface(config.env).filmable:
        from reports.episode import show
        from reports.tensorboard import log_recordings

        recordings = record(config, agent, config.video_episodes)
        run.require()
        title = f"{run.name}, {quantity(trainer.learner.steps)} steps"
        shown = show(recordings, run.videos / "final", title, core_name(config))
        log_recordings(run.path, trainer.learner.steps, recordings)
    return summary, shown
