"""Attention of recorded episodes in TensorBoard. Scalars are written by `storage.metrics`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from actors.recording import Recording

PICTURED_STEPS = 1000
"""Of an episode: a picture has as many rows and columns."""


def log_recordings(run: Path, step: int, recordings: Sequence[Recording]) -> None:
    """Adds pictures of the first episode's attention, one a layer.

    A row of a picture is a step of the episode, a column a step that it attends to; brightness is the square root of
    the weight, over the largest. Of a long episode its first `PICTURED_STEPS` are shown. `step` is the number of agent
    steps so far.
    """
    with SummaryWriter(str(run)) as events:
        for index, layer in enumerate(recordings[0].attention):
            beginning = layer._replace(weights=layer.weights[:PICTURED_STEPS], steps=layer.steps[:PICTURED_STEPS])
            weights = np.sqrt(np.maximum(beginning.by_step(), 0))
            largest = weights.max() or 1.0  # of an episode of one step nothing is attended to
            shades = np.rint(255 * weights / largest).astype(np.uint8)
            enlarged = shades.repeat(2, axis=0).repeat(2, axis=1)
            events.add_image(f"attention/layer_{index}", enlarged, step, dataformats="HW")
