"""`compressive launch`: trains an agent, then evaluates and films it."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from actors.interface import Interface
from agent.encoders import part_shapes
from agent.precision import describe_precision
from commands.options import LaunchOptions
from envs import EnvironmentFailed, limit_calls, prepare, tasks
from envs.specs import parse_spec
from reports.tables import evaluation_rows, print_evaluations
from storage.errors import StorageError, UserError, user_errors
from storage.run import Run
from training.config import RunConfig, core_name
from training.console import Busy, LiveLine, counting, playing, plural, program, quantity, say, say_all, say_skipped
from training.evaluation import count_played, evaluate, record, recording_title, tested_on
from training.factories import acting_device, interface, learning_device, unroll_bytes
from training.presets import PRESETS, describe_preset, make_preset
from training.signals import stop_on_signals
from training.trainer import Trainer
from training.trust import permissions

ENOUGH_PIXELS = 60
"""Rows and columns of images in which agents see enough of most environments: rooms have 72 x 96, or 36 x 48."""


def launch(options: LaunchOptions) -> None:
    """Runs the command."""
    console = Console()
    torch.set_num_threads(options.threads)
    run = Run(_folder(options))
    _require_lasting(run)
    if options.new_folder:
        with user_errors("run"):
            run.require_new()  # before the environment is prepared, which takes seconds
    trainer = _prepare(options, run, console)

    is_new = options.resume is None
    tell = functools.partial(say, console)
    describe = functools.partial(_describe, options, trainer, console)
    with (
        run.claim(options.new_folder, lambda: bool(trainer.saved)),
        trainer.opened(is_new, options.again, tell, describe),
    ):
        begin = time.monotonic()
        with (
            _ray(options, trainer, console),
            stop_on_signals() as stop,
            LiveLine(console, "training", "the first unroll") as line,
        ):
            trainer.train(line.update, lambda: stop.requested)
        if stop.signal:
            left = "trained, but not evaluated" if trainer.done else f"stopped at {quantity(trainer.frames)} frames"
            say(console, f"{left}; resume with: {options.again(run.path)}")
            sys.exit(128 + stop.signal)
        _finish(trainer, time.monotonic() - begin, console)


def _folder(options: LaunchOptions) -> Path | str:
    """The folder of the run: that of the run to resume, or a new one, named after date, time and core by default."""
    if not options.new_folder:
        return str(options.resume)
    core = core_name(options.config).replace(":", "-")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{core}"
    return options.run or Path("runs") / name


def _prepare(options: LaunchOptions, run: Run, console: Console) -> Trainer:
    """The trainer of the run, with its environments and the weights to start from. Nothing is written yet."""
    config = options.config
    is_compiled = any(task.startswith("rooms:") for env in config.named_environments for task in tasks(env))
    activity = "preparing the environment"
    if is_compiled:
        activity += " (compiled once, then cached)"
    with Busy(console, activity), user_errors():
        limit_calls(config.actors.step_seconds)
        folder = Path.cwd()
        env = prepare(config.env, options.skip_missing_levels and not options.resume)
        left_out = set(tasks(config.env)) - set(tasks(env))
        if left_out:
            say(console, f"left out, because they cannot be played here: {', '.join(sorted(left_out))}")
        config = dataclasses.replace(config, env=env)
        for other in config.named_environments:
            if other != env:
                prepare(other)

        if Path.cwd() != folder and not run.path.is_absolute():
            expected = f"an absolute path, such as {folder / run.path}"
            why = f"an environment changes the working folder to {Path.cwd()}"
            raise UserError(f"run: expected {expected}, because {why}; got {run}")
        trainer = Trainer(config, run, options.in_process)
        if options.resume is None:
            trainer.inherit(options.allow)
        return trainer


def _require_lasting(run: Run) -> None:
    """Raises a UserError for a run in the folder that Ray unpacked for a job: it is deleted with the cluster."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    if "working_dir" in job.get("runtime_env", {}) and not run.path.is_absolute():
        raise UserError(f"run: expected an absolute path, because a job's own folder is temporary, got {run}")


def _describe_observation(seen: Interface) -> str:
    """The sizes of what an agent sees, such as "84 x 84 x 4 and 3", and what else it is given."""
    shapes = [" x ".join(map(str, shape)) for shape in part_shapes(seen.observation_shape)]
    observed = " and ".join(shapes)
    if seen.mask_at is not None:
        observed += " with a mask of actions"
    if seen.vocabulary:
        observed += " and a text"
    return observed


def _describe(options: LaunchOptions, trainer: Trainer, console: Console) -> None:
    config = trainer.config
    run = trainer.run
    seen = interface(config.env)
    parameters = sum(parameter.numel() for parameter in trainer.agent.parameters() if parameter.requires_grad)
    learning = f"learning on {trainer.learner.device}"
    if config.learners > 1:
        learning = f"{config.learners} learners on Ray (device: {config.learner.device})"
    learning_in = describe_precision(config.learner.precision, learning_device(config))
    acting_in = describe_precision(config.actors.precision, acting_device(config))
    observed = _describe_observation(seen)
    num_tasks = len(tasks(config.env))
    if num_tasks > 1:
        observed = f"{num_tasks} tasks, {observed}"
    repeat = f"{plural(seen.action_repeat, 'frame')} a step"
    actors = f"{config.actors.count} x {config.actors.envs_per_actor} environments"
    where = "in this process" if options.local else "on Ray"
    if config.resident:
        where = f"on {trainer.learner.device}" if config.learners == 1 else "on the devices of the learners"

    lines = {"run": str(run)}
    if config.from_run:
        lines["from"] = config.from_run
    for number, stage in enumerate(config.stages, 1):
        lines[f"stage {number}"] = stage
    lines["preset"] = describe_preset(config.preset, config.env)
    lines["environment"] = f"{config.env} ({observed}), {repeat}"
    if not trainer.restored and (hint := _about_large_images(config.env, part_shapes(seen.observation_shape))):
        lines["images"] = hint
    if config.eval_env:
        lines["evaluated in"] = config.eval_env
    lines["agent"] = f"{core_name(config)} core, {quantity(parameters)} parameters, {learning}"
    lines["actors"] = f"{actors} {where}"
    lines["precision"] = f"learning in {learning_in}, acting in {acting_in}"
    if hint := _about_replay(config):
        lines["replay"] = hint
    if config.checkpoint_url:
        lines["checkpoints"] = config.checkpoint_url
    lines["curves"] = f"{program('tensorboard')} --logdir {shlex.quote(str(run.path.parent))}"
    lines["stop"] = f"Ctrl-C, then resume with: {options.again(run.path)}"
    say_all(console, lines)
    if trainer.restored:
        say_skipped(console, trainer.restored.skipped)
        say(console, f"resumed from {trainer.restored.path} at {quantity(trainer.frames)} frames")


def _about_large_images(env: str, shapes: Sequence[tuple[int, ...]]) -> str:
    """How large images can be made smaller; empty if none is large, or the environment has no field for it."""
    sizes = [shape[:2] for shape in shapes if len(shape) == 3]
    height, width = max(sizes, key=min, default=(0, 0))
    shrink = min(height, width) // ENOUGH_PIXELS
    if shrink < 2 or len(tasks(env)) > 1:
        return ""
    kind, _, fields = parse_spec(env)
    if kind not in ("gym", "dm") or "shrink" in fields:
        return ""
    smaller = f"{math.ceil(height / shrink)} x {math.ceil(width / shrink)}"
    option = shlex.quote(f"{env},shrink={shrink}")
    return f"{height} x {width} pixels are slow to learn from; {smaller} with --env {option}"


def _about_replay(config: RunConfig) -> str:
    """That several learners replay nothing, if the preset does; else empty."""
    if config.learners == 1 or config.replay.share or config.preset not in PRESETS:
        return ""
    share = make_preset(config.preset, "lstm").replay.share
    if not share:
        return ""
    times = 1 / (1 - share)
    return f"none with several learners: each unroll is learned from once, with one learner {times:g} times"


def _ray(options: LaunchOptions, trainer: Trainer, console: Console) -> contextlib.AbstractContextManager[None]:
    """The Ray cluster of the run; see `training.cluster.start_ray`."""
    if options.in_process:
        return nullcontext()
    from training.cluster import start_ray

    config = trainer.config
    if options.ray_address is None:
        _require_own_cluster_fits(config)
    # Actors may outnumber the cores: the operating system shares these better than an idle queue does. A single learner
    # is in this process.
    processes = math.ceil(config.actors.num_actors * max(1.0, config.actors.cpus))
    if config.learners > 1:
        processes += config.learners
    cpus = max(os.cpu_count() or 1, processes)
    # Of unrolls in flight, and of two batches: one is learned from, the next is received.
    unrolls = 3 * config.actors.most_actors * config.actors.in_flight + 2 * config.unrolls_per_update
    store = unrolls * unroll_bytes(config, trainer.agent)
    return start_ray(options.ray_address, cpus, store, console, "--local does without it")


def _require_own_cluster_fits(config: RunConfig) -> None:
    """Raises a UserError for what nodes of a cluster must have and those of one that is started here never do."""
    wanted = {
        "actors.resources": config.actors.resources,
        "actors.labels": config.actors.labels,
        "learner_labels": config.learner_labels,
    }
    for name, words in wanted.items():
        if words:
            expected = "expected none without --ray-address, since a cluster that is started here has none"
            raise UserError(f"{name}: {expected}, got {' '.join(words)}")


def _finish(trainer: Trainer, seconds: float, console: Console) -> None:
    """Evaluates and films the trained agent, and prints the results."""
    run = trainer.run
    allowed = permissions(trainer.config)
    summary = evaluate_trained(trainer, console)
    trainer.finish(summary)  # before filming, which may need more memory than there is
    shown = film_trained(trainer, console)
    rows = evaluation_rows(summary)
    rows["frames, steps"] = f"{quantity(trainer.frames)}, {quantity(trainer.learner.steps)}"
    rows["training"] = f"{seconds / 60:.1f} min"
    rows |= {**shown, "checkpoint": str(trainer.saved), "metrics": str(run.metrics_file)}
    if "tasks" in summary:
        print_evaluations(console, summary["tasks"])
    say(console, "finished", "bold")
    say_all(console, rows)
    config = trainer.config
    if trainer.curriculum.number < len(config.stages):
        stage = config.stages[trainer.curriculum.number]
        say(console, f"the frames ended in stage {stage!r}: nothing was learned in {config.env} (--frames)", "yellow")
    folder = shlex.quote(str(run))
    lines = {name: f"{program()} {name} {folder}{allowed}" for name in ("evaluate", "report")}
    say_all(console, {"curves": f"{program('tensorboard')} --logdir {folder}"} | lines)


def evaluate_trained(trainer: Trainer, console: Console) -> dict[str, Any]:
    """Evaluates a trained agent; returns the summary."""
    config = trainer.config
    count = count_played(config.eval_episodes, config.actors.envs_per_actor, tested_on(config))
    with counting(console, "evaluating", count, "episodes") as progress:
        return evaluate(config, trainer.agent, progress)


def film_trained(trainer: Trainer, console: Console) -> dict[str, str]:
    """Films a trained agent, if its run asks for that; returns where video and page are.

    What goes wrong in filming is said instead: it is often the environment's `render`, and the scores do not need it.
    """
    if trainer.config.video_episodes == 0:
        return {}
    try:
        return _film(trainer, console)
    except (OSError, StorageError, UserError):  # the run's folder
        raise
    except Exception as error:
        problem = str(error)
        if not isinstance(error, EnvironmentFailed):
            problem = f"{type(error).__name__}: {error}"
        return {"video": f"none, because filming failed: {problem}"}


def _film(trainer: Trainer, console: Console) -> dict[str, str]:
    """Films a trained agent; returns where video and page are."""
    # Only here, because machines that train may have no PyAV.
    from reports.episode import show
    from reports.tensorboard import log_recordings

    config = trainer.config
    run = trainer.run
    agent = trainer.agent.alone().to("cpu")
    with playing(console, "filming", config.video_episodes) as progress:
        recordings = record(config, agent, config.video_episodes, with_effects=True, progress=progress)
    run.require()
    title = recording_title(run, config, trainer.learner.steps)
    shown = show(recordings, run.videos / "final", title, core_name(config), run.path, console)
    log_recordings(run.path, trainer.learner.steps, recordings)
    return shown
