"""Film and attention of recorded episodes in TensorBoard. Scalars are written by `learner.metrics`."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from actors.recording import Recording
from reports.video import HEIGHT, PANEL_WIDTH, VIEW_WIDTH, pictures


def log_recordings(run: Path, step: int, recordings: Sequence[Recording]) -> None:
    """Adds a film of the first episode (an animated GIF) and, by layer, its attention from step to step.

    A row of the attention's picture is a step of the episode, a column a step that it attends to; brightness is the
    square root of the weight, over the largest.

    Args:
        run: the run's folder.
        step: agent steps so far.
        recordings: with image observations [T, height, width, 3] uint8.
    """
    first = recordings[0]
    with SummaryWriter(str(run)) as events:
        film = Summary.Image(
            height=HEIGHT // 2,
            width=(VIEW_WIDTH + PANEL_WIDTH) // 2,
            colorspace=3,
            encoded_image_string=_gif(first),
        )
        events.file_writer.add_summary(Summary(value=[Summary.Value(tag="episode/film", image=film)]), step)
        for index, layer in enumerate(first.attention):
            weights = np.sqrt(np.maximum(layer.by_step(), 0))
            shades = np.rint(255 * weights / weights.max()).astype(np.uint8)
            events.add_image(f"attention/layer_{index}", shades.repeat(2, 0).repeat(2, 1), step, dataformats="HW")


def _gif(recording: Recording) -> bytes:
    """An episode's video as TensorBoard can show it, at half the size."""
    size = (VIEW_WIDTH + PANEL_WIDTH) // 2, HEIGHT // 2
    palette = Image.Palette.ADAPTIVE
    frames = [
        Image.fromarray(picture).resize(size, Image.Resampling.BILINEAR).convert("P", palette=palette, colors=64)
        for picture in pictures([recording])
    ]
    buffer = io.BytesIO()
    duration = round(1000 / recording.fps)
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0)
    return buffer.getvalue()
