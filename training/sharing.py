"""A trained agent as others get it: a small folder in half precision, which can be played but not resumed."""

import dataclasses
import errno
import logging
import os
from pathlib import Path

import torch
from torch import Tensor

from agent.actor_critic import own_weights
from envs import untaught
from storage import checkpoints
from storage.files import JSON_BYTES, Json, format_json, naming, new_folder, read_regular
from storage.metrics import sample_metrics
from storage.run import Run
from training.config import RunConfig
from training.plain import read_config, to_plain
from training.trust import checkpoint_place

logger = logging.getLogger(__name__)
ROWS = 200
"""Most rows of metrics, for the curves."""


def share(run: Run, folder: Path, allow: str | None = None) -> None:
    """Writes the agent of a run's last readable checkpoint into a new folder, with its evaluation and its curves.

    If the run names a checkpoint, it is of that one, without an evaluation, and the curves end there. The folder is
    complete, or absent.

    Args:
        allow: see `training.trust.checkpoint_place`.

    Raises:
        FileExistsError: if the folder exists.
        FileNotFoundError, ValueError, OSError, StorageError: if the run cannot be read, or the folder not written to.
    """
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, "expected a new folder", str(folder))
    # All is read before anything is written.
    config = read_config(run)
    checkpoint = checkpoints.load(checkpoint_place(config, run, allow), ["weights"], run.checkpoint)
    rows = _curves(run)
    files = [run.launches_file]
    if run.checkpoint is None:
        files.append(run.evaluation_file())
    else:
        rows = [row for row in rows if row["step"] <= checkpoint.step]
    rows = _at_equal_distances(rows)
    copies: dict[str, bytes] = {}
    for file in files:
        # A link is not followed: `read_regular` raises an error for it, also for one that leads nowhere.
        if os.path.lexists(file):
            copies[file.name] = read_regular(file, JSON_BYTES)
    weights = {}
    for name, tensor in own_weights(checkpoint.parts["weights"]).items():
        weights[name] = _compact(tensor)

    plain = to_plain(_alone(config)) | {"checkpoint_url": None}
    lines = [f"{format_json(row)}\n" for row in rows]
    copies[run.metrics_file.name] = "".join(lines).encode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as temporary:
        target = Run(temporary)
        with naming(target.config_file):
            target.write_config(plain)
        checkpoints.save(temporary, checkpoint.step, {"weights": weights}, {"config": plain})
        for name, content in copies.items():
            path = temporary / name
            with naming(path):
                path.write_bytes(content)


def _curves(run: Run) -> list[Json]:
    """Rows of metrics; none, with a warning, of a run with so many that they are not read."""
    try:
        return sample_metrics(run.path)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        logger.warning("without curves: %s", error)
        return []


def _at_equal_distances(rows: list[Json]) -> list[Json]:
    """`ROWS` of the rows, the first and the last included; all rows if there are no more than that."""
    if len(rows) <= ROWS:
        return rows
    kept = []
    for number in range(ROWS):
        index = round(number * (len(rows) - 1) / (ROWS - 1))
        kept.append(rows[index])
    return kept


def _alone(config: RunConfig) -> RunConfig:
    """The configuration without a teacher, whose weights are left out, and without the path of an earlier run."""
    learner = dataclasses.replace(config.learner, teacher_cost=0.0, teacher_cost_end=None)
    # Only the environment of a stage is changed, not its condition. `environments` has that of the run as well.
    stages = []
    for stage, env in zip(config.stages, config.environments):
        stages.append(stage.replace(env, untaught(env)))
    return dataclasses.replace(config, learner=learner, env=untaught(config.env), stages=tuple(stages), from_run=None)


def _compact(tensor: Tensor) -> Tensor:
    """Weights in half precision, exact to 2^-11 of the largest of them; other tensors as they are.

    Others are the statistics of PopArt, which are float64 because small differences of large numbers matter, and
    weights whose largest is no normal number of half precision (6e-5 to 65,504).
    """
    if tensor.dtype != torch.float32 or not tensor.numel():
        return tensor
    half = torch.finfo(torch.float16)
    largest = tensor.abs().max()
    if not half.smallest_normal <= largest <= half.max:
        return tensor
    return tensor.to(torch.float16)
