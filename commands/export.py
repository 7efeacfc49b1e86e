"""`compressive export`: a trained agent as a small folder, which can be played and looked at, but not resumed; or as a
file for other programs."""

import dataclasses
import json
import os
import shlex

import torch
from rich.console import Console
from torch import Tensor

from agent.actor_critic import own_weights
from commands.options import ExportOptions
from envs import untaught
from storage import checkpoints
from storage.errors import UserError, user_errors
from storage.exchange import write_onnx, write_program
from storage.files import JSON_BYTES, read_regular
from storage.metrics import sample_metrics
from storage.run import Run
from training.config import RunConfig, checkpoint_place, read_config, to_plain
from training.console import program, say
from training.evaluation import load_trained_agent

WRITERS = {".onnx": write_onnx, ".pt2": write_program}
"""How a file is written, by the end of its name."""
ROWS = 200
"""Rows of metrics, at equal distances, for the curves."""


def export(options: ExportOptions) -> None:
    """Runs the command."""
    run, target, console = Run(options.run), Run(options.output), Console()
    if options.output.suffix in WRITERS:
        _export_file(options, run, console)
        return
    with user_errors():
        config = read_config(run)
        checkpoint = checkpoints.load_latest(checkpoint_place(config, run, options.allow))
        rows = sample_metrics(run.path)
        others = [file for file in (run.evaluation_file(), run.launches_file) if os.path.lexists(file)]
        kept_as_they_are = {file.name: read_regular(file, JSON_BYTES) for file in others}
        weights = {name: _compact(tensor) for name, tensor in own_weights(checkpoint.parts["weights"]).items()}
    if target.path.exists():
        raise UserError(f"output: expected a new folder, and {target} exists")
    with user_errors("output"):
        target.path.mkdir(parents=True)
        plain = to_plain(_alone(config)) | {"checkpoint_url": None}
        target.write_config(plain)
        checkpoints.save(target.path, checkpoint.step, {"weights": weights}, {"config": plain})
        kept = {round(index * (len(rows) - 1) / (ROWS - 1)) for index in range(ROWS)} if rows else ()
        lines = (json.dumps(rows[index]) for index in sorted(kept))
        target.metrics_file.write_text("".join(f"{line}\n" for line in lines))
        for name, content in kept_as_they_are.items():
            (target.path / name).write_bytes(content)
    size = sum(path.stat().st_size for path in target.path.rglob("*") if path.is_file())
    say(console, f"{target}  {size / 1e6:.1f} MB; play with it: {program()} visualize {target}")


def _export_file(options: ExportOptions, run: Run, console: Console) -> None:
    """Writes one step of acting in a form of `storage.exchange`."""
    path = options.output
    if path.exists():
        raise UserError(f"output: expected a new file, and {path} exists")
    with user_errors():
        trained = load_trained_agent(run, options.allow)
        about = {"run": run.name, "environment": trained.env, "steps": trained.checkpoint.step}
    with user_errors("output"):
        WRITERS[path.suffix](trained.agent, path, about)
    said = f"{path}  {path.stat().st_size / 1e6:.1f} MB"
    _, actions, *_ = trained.agent.made_for
    if path.suffix == ".onnx" and isinstance(actions, int):  # what the example plays
        said += f"; play with it: python examples/play_onnx.py {shlex.quote(str(path))} {shlex.quote(trained.env)}"
    say(console, said)


def _alone(config: RunConfig) -> RunConfig:
    """The configuration without a teacher, whose weights are left out, and without the path of an earlier run."""
    learner = dataclasses.replace(config.learner, teacher_cost=0.0, teacher_cost_end=None)
    stages = tuple(stage.replace(env, untaught(env)) for stage, env in zip(config.stages, config.environments))
    return dataclasses.replace(config, learner=learner, env=untaught(config.env), stages=stages, from_run=None)


def _compact(tensor: Tensor) -> Tensor:
    """Weights in half precision, exact to 2^-11 of the largest of them; other tensors as they are.

    Others are the statistics of PopArt, which are float64 because small differences of large numbers matter, and
    weights whose largest is no normal number of half precision (6e-5 to 65,504).
    """
    if tensor.dtype != torch.float32 or not tensor.numel():
        return tensor
    half = torch.finfo(torch.float16)
    fits = half.smallest_normal <= tensor.abs().max() <= half.max
    return tensor.to(torch.float16) if fits else tensor
