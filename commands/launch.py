"""`compressive launch`: trains an agent, then evaluates and films it. The loop itself is in `training.py`."""

import dataclasses
import errno
import json
import logging
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from actors import ClusterError
from agent.fields import Threads
from commands.evaluate import evaluation_summary, filmable, permissions, play, record
from commands.options import AllowEnv, parse_start
from commands.options import parse as parse_options
from commands.visualize import show
from envs import EnvironmentFailed, held_out, limit_calls, prepare, require_consent, tasks
from learner import checkpoints
from learner.checkpoints import StorageError
from learner.communicator import LearnersLost
from learner.files import is_url
from reports.tensorboard import log_recordings
from training import UserError
from training.config import RunConfig, differences, from_plain, read_config, to_plain
from training.console import TerminalDisplay, evaluation_rows, quantity, say, say_all, say_skipped, table, task_table
from training.impala import Trainer, interface
from training.presets import make_preset
from training.run import ClaimedFolder, claim
from training.signals import stop_on_signals

FIXED = ("preset", "env", "seed", "agent.", "learner.optimizer", "checkpoint_url")
"""What a resumed run cannot change: its checkpoints depend on it, or are there."""
ON_RAY = tuple(f"actors.{name}" for name in ("in_flight", "threads", "cpus", "resources", "labels", "placement"))
ON_RAY += ("learner_placement", "learner_labels")
"""What is of no use in one process."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
"""Errors of writing that the user can mend."""
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]


@dataclass(frozen=True)
class Options(RunConfig):
    """Trains an agent with IMPALA on this machine or a Ray cluster; then evaluates it and films two episodes.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive launch                                    a small level on two CPU cores, under 10 minutes
      compressive launch --core lstm --seed 1               the same with another memory
      compressive launch --resume runs/NAME                 go on where a run stopped
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
    run: Folder = None
    """Folder of the run, new or empty; if not given, runs/DATE-TIME-CORE."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR|URL")] = None
    """Go on with the run in this folder, from its last readable checkpoint and with its own configuration.
    Agent, environment and seed stay as they are; --frames and most other values may be changed.
    With the URL of its checkpoints instead, the run gets a new folder (--run)."""
    local: bool = False
    """Act and learn in this one process, without Ray: slower, deterministic, and exactly resumable."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address instead of starting one on this machine."""
    threads: Threads = 1
    """CPU threads of the learner."""
    allow_env: AllowEnv = None
    """With --resume: run the code of this environment, such as dm:my_module:Env, if the run names it."""

    @property
    def new_folder(self) -> bool:
        """Whether the run has no folder yet."""
        return self.resume is None or is_url(self.resume)

    @property
    def config(self) -> RunConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        return RunConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(RunConfig)})


def parse(arguments: Sequence[str]) -> Options:
    """The options, with the defaults of the preset and core, or of the resumed run.

    Raises:
        UserError: if a value is impossible.
    """
    prog = "compressive launch"
    arguments = list(_numbers_of_actors(arguments))
    start = parse_start(prog, arguments)
    with _user_errors():
        config = _config_of(start.resume) if start.resume else make_preset(start.preset, start.core)
    options = parse_options(
        Options,
        prog,
        args=arguments,
        default=Options(**vars(config), core=config.core_name),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    if options.run and not options.new_folder:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.local and options.ray_address:
        raise UserError("--local acts in this process and --ray-address on a cluster: give only one of them")
    if options.local and options.actors.max_actors is not None:
        raise UserError(f"--local acts in this process: expected one number of actors, got {options.actors.count}")
    if options.local and options.learners > 1:
        raise UserError(f"--local learns in this process: expected --learners 1, got {options.learners}")
    if options.core != config.core_name:
        raise UserError(f"core: expected {config.core_name} as in {options.resume}, got {options.core}")
    for name, old, new in differences(to_plain(config), to_plain(options.config)):
        if options.local and name in ON_RAY:
            raise UserError(f"--local acts in this process, without a cluster: {name} is of no use there, got {new}")
        if options.resume and name.startswith(FIXED):
            raise UserError(f"{name}: expected {old} as in {options.resume}, got {new}")
    if options.resume:
        typed = any(word.partition("=")[0] == "--env" for word in arguments)
        with _user_errors():
            require_consent(config.env, options.allow_env, options.env if typed else None)
    return options


def _numbers_of_actors(arguments: Sequence[str]) -> Iterator[str]:
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


def _config_of(run: str) -> RunConfig:
    """The configuration of a run by its folder, or by the URL of its checkpoints, where it goes on to write them."""
    if not is_url(run):
        return read_config(Path(run))
    checkpoint = checkpoints.load_latest(run)
    try:
        checkpoints.require(checkpoint.state, {"config": dict}, "state")
        return from_plain({**checkpoint.state["config"], "checkpoint_url": run})
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error


def launch(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(arguments)
    config, console = options.config, Console()
    torch.set_num_threads(options.threads)
    run = options.run or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.core_name}"
    if options.resume and not options.new_folder:
        run = Path(options.resume)
    _check_folder(run)
    with console.status("preparing the environment (compiled once, then cached)"), _user_errors():
        limit_calls(config.actors.step_seconds)
        prepare(config.env)
        trainer = Trainer(config, run, options.local)
    with claim(run, options.new_folder, lambda: bool(trainer.saved)) as folder:
        trainer.folder = folder
        with _user_errors():
            trainer.claim(new=options.resume is None)
            if options.resume:
                trainer.restore()
        _describe(options, trainer, console)
        try:
            if options.new_folder:  # can be resumed from now on, even if Ray does not start
                checkpoints.write_json(run / "config.json", to_plain(config))
            _train(options, trainer, console)
        except (OSError, StorageError, MemoryError) as error:
            if folder.lost:
                raise UserError(_farewell(options, trainer, folder)) from error
            if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
                raise
            problem = f"{run} cannot be written to: {error}" if isinstance(error, OSError) else str(error)
            go_on = f"; go on from {trainer.saved} with: {_again(options, run)}" if trainer.saved else ""
            raise UserError(f"{problem}{go_on}") from error
        except (FloatingPointError, ClusterError, LearnersLost) as error:
            slower = f" --learner.learning-rate {config.learner.learning_rate / 4:.3g}"
            again = _again(options, run) + (slower if isinstance(error, FloatingPointError) else "")
            print(f"compressive: {error}; go on from {trainer.saved} with: {again}", file=sys.stderr)
            sys.exit(1)
        except EnvironmentFailed as error:
            if not trainer.saved:
                raise
            go_on = f"go on from {trainer.saved} with: {_again(options, run)}"
            raise EnvironmentFailed(f"{getattr(error, 'cause', error)}\n{go_on}") from error
        except KeyboardInterrupt:
            if trainer.saved:
                say(console, f"interrupted; go on from {trainer.saved} with: {_again(options, run)}")
            raise


@contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, FileNotFoundError, ImportError, StorageError) as error:
        raise UserError(str(error)) from error


def _check_folder(run: Path) -> None:
    """Raises a UserError for a run in the folder that Ray unpacked for a job, since that goes with the cluster."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    if "working_dir" in job.get("runtime_env", {}) and not run.is_absolute():
        raise UserError(f"run: expected an absolute path, for a job's own folder is temporary, got {run}")


def _farewell(options: Options, trainer: Trainer, folder: ClaimedFolder) -> str:
    """What is left of a run whose folder was lost while it trained."""
    found: Path | str | None = options.config.checkpoint_url or folder.find()
    if found is None or not trainer.saved:
        return f"{folder.fate}, and with it all that was learned"
    return f"{folder.fate}; go on from {trainer.saved} with: {_again(options, found)}"


def _again(options: Options, run: Path | str) -> str:
    """The command that goes on with a run."""
    where = " --local" if options.local else ""
    if options.ray_address:
        where = f" --ray-address {shlex.quote(options.ray_address)}"
    return f"compressive launch --resume {shlex.quote(str(run))}{where}{permissions(options.env)}"


def _describe(options: Options, trainer: Trainer, console: Console) -> None:
    config, run = trainer.config, trainer.run
    parameters = sum(parameter.numel() for parameter in trainer.agent.parameters())
    learning = f"learning on {trainer.learner.device}"
    if config.learners > 1:
        learning = f"{config.learners} learners on Ray (device: {config.learner.device})"
    image = " x ".join(map(str, interface(config.env).observation_shape))
    repeat = f"{trainer.action_repeat} frame{'s' * (trainer.action_repeat > 1)} a step"
    number = f"{len(tasks(config.env))} tasks, " if len(tasks(config.env)) > 1 else ""
    lines = {
        "run": str(run),
        "environment": f"{config.env} ({number}{image}), {repeat}",
        "agent": f"{config.core_name} core, {quantity(parameters)} parameters, {learning}",
        "actors": f"{config.actors.count} x {config.actors.envs_per_actor} environments "
        f"{'in this process' if options.local else 'on Ray'}",
        **({"checkpoints": config.checkpoint_url} if config.checkpoint_url else {}),
        "curves": f"tensorboard --logdir {shlex.quote(str(run.parent))}",
        "stop": f"Ctrl-C, then go on with: {_again(options, run)}",
    }
    say_all(console, lines)
    if trainer.restored:
        say_skipped(console, trainer.restored.skipped)
        say(console, f"resumed from {trainer.restored.path} at {quantity(trainer.frames)} frames")


def _train(options: Options, trainer: Trainer, console: Console) -> None:
    config, run = trainer.config, trainer.run
    begin = time.monotonic()
    with (
        ray_cluster(options, trainer, console),
        stop_on_signals() as stop,
        TerminalDisplay(console, config.frames) as display,
    ):
        checkpoints.write_json(run / "config.json", to_plain(config))
        trainer.train(display, stop)
        if trainer.folder:
            trainer.folder.require()
    if stop.signal and trainer.frames < config.frames:
        say(console, f"stopped at {quantity(trainer.frames)} frames; go on with: {_again(options, run)}")
        sys.exit(128 + stop.signal)
    seconds = time.monotonic() - begin
    with console.status(f"playing {config.eval_episodes} episodes"):
        summary, shown = conclude(trainer)
    checkpoints.write_json(run / "evaluation.json", summary)
    rows = evaluation_rows(summary)
    rows["frames, steps"] = f"{quantity(trainer.frames)}, {quantity(trainer.learner.steps)}"
    rows["training"] = f"{seconds / 60:.1f} min"
    rows |= shown
    rows["checkpoint"] = str(trainer.saved)
    rows["metrics"] = str(run / "metrics.jsonl")
    if "tasks" in summary:
        console.print(task_table(summary["tasks"]))
    console.print(table("finished", rows))
    quoted = shlex.quote(str(run))
    commands = {"curves": "tensorboard --logdir", "again": "compressive evaluate", "report": "compressive report"}
    words = {"again": permissions(config.env), "report": permissions(config.env)}
    say_all(console, {name: f"{command} {quoted}{words.get(name, '')}" for name, command in commands.items()})


def conclude(trainer: Trainer) -> tuple[dict[str, Any], dict[str, str]]:
    """Evaluates a trained agent and films it: the evaluation's summary, and where the episodes are."""
    config, run, shown = trainer.config, trainer.run, dict[str, str]()
    agent = trainer.agent.to("cpu")
    summary = evaluation_summary(play(config, agent, config.eval_episodes), held_out(config.env))
    if config.video_episodes and filmable(config.env):
        recordings = record(config, agent, config.video_episodes)
        if trainer.folder:
            trainer.folder.require()
        title = f"{run.resolve().name}, {quantity(trainer.learner.steps)} steps"
        shown = show(recordings, run / "videos" / "final", title, config)
        log_recordings(run, trainer.learner.steps, recordings)
    return summary, shown


@contextmanager
def ray_cluster(options: Options, trainer: Trainer, console: Console) -> Iterator[None]:
    """Starts Ray on this machine or joins a cluster; nothing with --local. Ray itself tells of errors only.

    Raises:
        UserError: if Ray does not start, or there is no cluster at the address.
        MemoryError: if Ray's object store is full, and the disk that it moves objects to as well.
    """
    if options.local:
        yield
        return
    config = trainer.config
    # Actors may outnumber the cores: the operating system shares these better than an idle queue does.
    cpus = max(os.cpu_count() or 1, config.actors.num_actors + (config.learners if config.learners > 1 else 0))
    store = 3 * config.actors.most_actors * config.actors.in_flight * trainer.unroll_bytes
    with start_ray(options.ray_address, cpus, store, console, "--local does without it"):
        yield


@contextmanager
def start_ray(address: str | None, cpus: int, store: int, console: Console, remedy: str = "") -> Iterator[None]:
    """Joins the cluster at an address, or starts one on this machine with that many CPUs and bytes in its object store.

    Raises:
        UserError: if Ray does not start (`remedy` says what to do then), or there is no cluster at the address.
        MemoryError: if Ray's object store is full, and the disk that it moves objects to as well.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # the pool says so itself
    if address is None:  # nobody sees them, and Ray keeps 3.5 KB for each of 100,000 unrolls
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    import ray
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    logging.getLogger("ray").setLevel(logging.ERROR)
    where: dict[str, Any] = {"address": address}
    if address is None:
        # "local": whatever cluster the environment names or an earlier one left behind in the temporary folder.
        where = {"address": "local", "num_cpus": cpus, "object_store_memory": max(512 << 20, store)}
        where["include_dashboard"] = False
    # Ray's processes inherit that hang-ups are ignored: the terminal may close, the last unrolls still arrive.
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with console.status("starting Ray" if address is None else f"joining {address}"):
            if address:
                _knock(address)
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises just this where the machine is too busy, for instance
        if address:
            raise UserError(f"ray-address: expected a Ray cluster, got {address}: {error}") from error
        raise UserError(f"Ray did not start{f' ({remedy})' if remedy else ''}: {error}") from error
    finally:
        signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise MemoryError("Ray's object store is full, and so is the disk that it moves objects to") from error
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises an OSError where nobody answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
