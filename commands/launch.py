"""`compressive launch`: trains an agent, then evaluates and films it. The loop itself is in `training.py`."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console

from commands import UserError
from commands.config import RunConfig, read_config, to_plain
from commands.display import TerminalDisplay, quantity, table
from commands.evaluate import evaluation_rows, evaluation_summary, film, play
from commands.presets import make_preset
from commands.training import Trainer, stop_on_signals
from envs import make_vector, prepare
from learner import checkpoints


@dataclass(frozen=True)
class Start:
    """What decides the defaults of all other options."""

    preset: str = "cpu"
    core: str = "compressive"
    resume: Path | None = None


@dataclass(frozen=True)
class Options(RunConfig):
    """Trains an agent with IMPALA; then evaluates it and writes a video.

    The options' defaults are those of the preset and core that are named; `--preset paper --help` shows the paper's.
    """

    core: str = "compressive"
    """Recurrent core: compressive, transformer-xl, lstm or memoryless."""
    run: Path | None = None
    """Folder of the run; by default a new one in runs/."""
    resume: Path | None = None
    """Go on with the run in this folder, from its last readable checkpoint and with its own configuration."""
    local: bool = False
    """Act and learn in this one process, without Ray: slower, deterministic, and exactly resumable."""
    ray_address: str | None = None
    """Join the Ray cluster at this address instead of starting one on this machine."""
    threads: int = 1
    """CPU threads of the learner."""

    @property
    def config(self) -> RunConfig:
        """What belongs to the run, without what belongs to this launch of it."""
        return RunConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(RunConfig)})


def parse(arguments: Sequence[str]) -> Options:
    """The options, with the defaults of the preset and core, or of the resumed run.

    Raises:
        UserError: if a value is impossible.
    """
    known = [argument for argument in arguments if argument not in ("-h", "--help")]
    start, _ = tyro.cli(Start, args=known, return_unknown_args=True)
    try:
        config = read_config(start.resume) if start.resume else make_preset(start.preset, start.core)
        return tyro.cli(
            Options,
            prog="compressive launch",
            args=list(arguments),
            default=Options(**vars(config), core=start.core),
            config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
        )
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def launch(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(arguments)
    config, console = options.config, Console()
    if options.run and options.resume:
        raise UserError("--run names a new run and --resume an old one: give only one of them")
    if options.local and options.ray_address:
        raise UserError("--local acts in this process and --ray-address on a cluster: give only one of them")
    torch.set_num_threads(options.threads)
    run = options.resume or options.run or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.core_name}"
    console.print(f"[bold]run[/]          {run}", highlight=False)
    with console.status("preparing the environment (compiled once, then cached)"):
        try:
            prepare(config.env)
            envs = make_vector(config.env, 1)
        except (ValueError, ImportError) as error:
            raise UserError(str(error)) from error
    with _lock(run, resume=options.resume is not None):
        checkpoints.write_json(run / "config.json", to_plain(config))
        _train(options, config, run, console, envs.single_observation_space.shape or ())


def _train(options: Options, config: RunConfig, run: Path, console: Console, shape: tuple[int, ...]) -> None:
    try:
        trainer = Trainer(config, run, resume=options.resume is not None, local=options.local)
    except FileNotFoundError as error:
        raise UserError(str(error)) from error
    parameters = sum(parameter.numel() for parameter in trainer.learner.agent.parameters())
    image = " x ".join(map(str, shape))
    console.print(
        f"[bold]environment[/]  {config.env} ({image}), {trainer.action_repeat} frames a step\n"
        f"[bold]agent[/]        {config.core_name} core, {quantity(parameters)} parameters, "
        f"learning on {trainer.learner.device}\n"
        f"[bold]actors[/]       {config.actors.num_actors} x {config.actors.envs_per_actor} environments "
        f"{'in this process' if options.local else 'on Ray'}\n"
        f"[bold]curves[/]       tensorboard --logdir {run.parent}\n"
        f"[bold]stop[/]         Ctrl-C; go on later with: compressive launch --resume {run}",
        highlight=False,
    )
    if trainer.restored:
        for skipped in trainer.restored.skipped:
            console.print(f"[yellow]skipped checkpoint[/] {skipped}", highlight=False)
        console.print(f"resumed from {trainer.restored.path} at {quantity(trainer.frames)} frames", highlight=False)
    begin = time.monotonic()
    with (
        _ray(options, config, console),
        stop_on_signals() as stop,
        TerminalDisplay(console, config.frames) as display,
    ):
        trainer.train(display, stop)
    if stop.requested and trainer.frames < config.frames:
        console.print(f"stopped at {quantity(trainer.frames)} frames; go on with: compressive launch --resume {run}")
        return
    seconds = time.monotonic() - begin
    agent = trainer.agent.to("cpu")
    with console.status(f"evaluating {config.eval_episodes} episodes"):
        summary = evaluation_summary(play(config, agent, config.eval_episodes), config.env)
    checkpoints.write_json(run / "evaluation.json", summary)
    rows = evaluation_rows(summary)
    rows["frames, steps"] = f"{quantity(trainer.frames)}, {quantity(trainer.learner.steps)}"
    rows["training"] = f"{seconds / 60:.1f} min"
    if config.video_episodes:
        with console.status("filming"):
            video = film(config, agent, run / "videos" / "final.mp4", config.video_episodes)
        rows["video"] = str(video)
    rows["checkpoint"] = str(trainer.saved)
    rows["curves"] = f"tensorboard --logdir {run}"
    rows["metrics"] = str(run / "metrics.jsonl")
    rows["again"] = f"compressive evaluate {run}"
    console.print(table("finished", rows))


@contextmanager
def _lock(run: Path, resume: bool) -> Iterator[None]:
    """Keeps a second process from writing to the same run."""
    import fcntl

    if not resume and run.exists() and any(run.iterdir()):
        raise UserError(f"{run} already exists and is not empty: expected a new folder, or --resume {run}")
    run.mkdir(parents=True, exist_ok=True)
    with open(run / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{run} is in use by another process") from error
        yield


@contextmanager
def _ray(options: Options, config: RunConfig, console: Console) -> Iterator[None]:
    """Starts Ray on this machine or joins a cluster; nothing with --local."""
    if options.local:
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    with console.status("starting Ray" if options.ray_address is None else f"joining {options.ray_address}"):
        if options.ray_address is None:
            # Actors may outnumber the cores: the operating system shares these better than an idle queue does.
            ray.init(
                num_cpus=max(os.cpu_count() or 1, config.actors.num_actors),
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=512 << 20,
            )
        else:
            ray.init(address=options.ray_address)
    try:
        yield
    finally:
        ray.shutdown()
