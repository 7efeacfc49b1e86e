"""A trained agent as others get it: a small folder in half precision, which can be played but not resumed."""

import dataclasses
import json
import os
from pathlib import Path

import torch
from torch import Tensor

from agent.actor_critic import own_weights
from envs import untaught
from storage import checkpoints
from storage.files import JSON_BYTES, read_regular
from storage.metrics import sample_metrics
from storage.run import Run
from training.config import RunConfig
from training.plain import read_config, to_plain
from training.trust import checkpoint_place

ROWS = 200
"""Rows of metrics, at equal distances, for the curves."""


def share(run: Run, folder: Path, allow: str | None = None) -> None:
    """Writes the agent of a run's last readable checkpoint into a new folder, with its evaluation and its curves.

    Args:
        allow: see `training.trust.checkpoint_place`.

    Raises:
        FileExistsError: if the folder exists.
        FileNotFoundError, ValueError, OSError, StorageError: if the run cannot be read, or the folder not be written.
    """
    # All is read before anything is written.
    config = read_config(run)
    checkpoint = checkpoints.load_latest(checkpoint_place(config, run, allow))
    rows = sample_metrics(run.path)
    others = [file for file in (run.evaluation_file(), run.launches_file) if os.path.lexists(file)]
    kept_as_they_are = {file.name: read_regular(file, JSON_BYTES) for file in others}
    weights = {name: _compact(tensor) for name, tensor in own_weights(checkpoint.parts["weights"]).items()}

    target = Run(folder)
    folder.mkdir(parents=True)
    plain = to_plain(_alone(config)) | {"checkpoint_url": None}
    target.write_config(plain)
    checkpoints.save(folder, checkpoint.step, {"weights": weights}, {"config": plain})
    kept = {round(index * (len(rows) - 1) / (ROWS - 1)) for index in range(ROWS)} if rows else ()
    lines = (json.dumps(rows[index]) for index in sorted(kept))
    target.metrics_file.write_text("".join(f"{line}\n" for line in lines))
    for name, content in kept_as_they_are.items():
        (folder / name).write_bytes(content)


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
