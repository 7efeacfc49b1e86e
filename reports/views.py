"""What films and pages show of a step: a picture, and the earlier steps that the agent attends to most."""

import base64
import io
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from actors.recording import RENDERED_STEPS, Recording

BARS = 65
"""Pixels: height of a vector's picture, which is odd, so that 0 has a line."""
BAR = 4
"""Pixels: width of a bar in it, with the gap beside it."""
WIDTH = 300
"""Pixels: width of a vector's picture if nothing is drawn above it."""
GAP = 4
"""Pixels between images that are beside each other."""
MOST_PIXELS = 1500
"""Greatest height and width of images. With a vector below, ten beside or above each other fit into a file of WebP."""
MOST_STRETCHED = 4
"""How many times as wide as high an image is shown at most, beside others."""
BACKGROUND = (18, 20, 26)
COLORS = np.array([BACKGROUND, (205, 210, 216), (226, 122, 63)], np.uint8)
"""Of the background, positive and negative elements."""


class Look(NamedTuple):
    """A memory slot that is attended to: its share of all layers' and heads' attention, kind, first and last step."""

    weight: float
    kind: str
    first: int
    last: int


def views(recording: Recording) -> np.ndarray:
    """Pictures of the first RENDERED_STEPS steps at most, [steps, height, width, 3] uint8.

    That is what the agent saw, if it saw images: several are beside each other, at the places of `panels`, and a vector
    is below them (see `bars`). Else it is how the environment draws itself, if it does, and below it the vector that
    the agent saw. Images of more than `MOST_PIXELS` are shown smaller.
    """
    if recording.more_observations:
        return _several(recording)
    seen = recording.observations[:RENDERED_STEPS]
    is_image = seen.ndim == 4
    if is_image:
        return colored(_smaller(seen))
    drawn = recording.renderings
    if drawn is None:
        return bars(seen, WIDTH)
    drawn = _smaller(drawn)
    below = bars(seen, drawn.shape[2])
    return np.concatenate([drawn, below], axis=1)


def _smaller(images: np.ndarray) -> np.ndarray:
    """Images [steps, height, width, channels], of which every n-th pixel is kept if they are too large."""
    step = math.ceil(max(images.shape[1:3]) / MOST_PIXELS)
    return images[:, ::step, ::step]


class Panel(NamedTuple):
    """An image in the pictures of `views`: its name, and the columns of pixels from `left` to `left + width`."""

    name: str
    left: int
    width: int


def panels(recording: Recording) -> list[Panel]:
    """Where the images are in `views`, if the agent saw several parts; none if it saw one."""
    found, _ = _layout(recording)
    return found


def _layout(recording: Recording) -> tuple[list[Panel], int]:
    """Where the images are, all as high as the highest, and how high that is.

    Small ones are shown larger above a vector, whose bars need room; those that would be too wide together, smaller.
    """
    if not recording.more_observations:
        return [], 0
    shapes = [part.shape[1:] for part in (recording.observations, *recording.more_observations)]
    height = max(shape[0] for shape in shapes if len(shape) == 3)
    names: list[str] = []
    widths: list[int] = []
    for name, shape in zip(recording.observation_names, shapes, strict=True):
        if len(shape) == 3:
            names.append(name)
            width = round(shape[1] * height / shape[0])
            widths.append(min(max(1, width), MOST_STRETCHED * height))

    gaps = GAP * (len(names) - 1)
    enlarged = 1
    if len(names) < len(shapes):
        enlarged = max(1, math.ceil((WIDTH - gaps) / sum(widths)))
    scale = min(enlarged, (MOST_PIXELS - gaps) / sum(widths), MOST_PIXELS / height)
    found: list[Panel] = []
    left = 0
    for name, width in zip(names, widths, strict=True):
        shown = max(1, int(scale * width))
        found.append(Panel(name, left, shown))
        left += shown + GAP
    return found, max(1, int(scale * height))


def _width(recording: Recording) -> int:
    """Pixels of the width of `views`, where the last part that the agent sees is a vector."""
    if recording.more_observations:
        last = panels(recording)[-1]
        return last.left + last.width
    if recording.renderings is not None:
        return int(_smaller(recording.renderings[:1]).shape[2])
    return WIDTH


def _several(recording: Recording) -> np.ndarray:
    """The pictures of an agent that sees several parts."""
    parts = [part[:RENDERED_STEPS] for part in (recording.observations, *recording.more_observations)]
    images = [colored(part) for part in parts if part.ndim == 4]
    shown, height = _layout(recording)
    width = _width(recording)

    # Images beside each other, with the same height and without blurring them: of each pixel the nearest one.
    together = np.full((len(images[0]), height, width, 3), BACKGROUND, np.uint8)
    for image, panel in zip(images, shown, strict=True):
        _, image_height, image_width, _ = image.shape
        rows = np.arange(height) * image_height // height
        columns = np.arange(panel.width) * image_width // panel.width
        together[:, :, panel.left : panel.left + panel.width] = image[:, rows][:, :, columns]
    # The vector, if there is one, is the last part; see `envs.observations`.
    last = parts[-1]
    is_image = last.ndim == 4
    if is_image:
        return together
    return np.concatenate([together, bars(last, width)], axis=1)


def colored(pictures: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Pictures [..., channels] uint8 with three channels, [..., 3].

    More than three are a stack of frames, in color if three divides their number: the last frame is shown. Of four,
    the last one is transparency if it is the same everywhere. Two are shown in gray, as their mean.

    `like`: the pictures that these are drawn after; the last channel of these is then asked.
    """
    channels = pictures.shape[-1]
    fourth = (pictures if like is None else like)[..., -1]
    if channels == 4 and (fourth == fourth.max()).all():
        return pictures[..., :3]
    if channels % 3 == 0:
        return pictures[..., -3:]
    gray = pictures[..., -1]
    if channels == 2:
        gray = pictures.mean(axis=-1).astype(np.uint8)
    return np.stack([gray, gray, gray], axis=-1)


def what_is_seen(recording: Recording) -> str:
    """A caption of `views`; empty if they are simply what the agent saw."""
    parts = (recording.observations, *recording.more_observations)
    if parts[-1].ndim == 4:
        return ""
    vector = "the vector that the agent observes, each element over its largest value in the episode"
    together = _elements_of_bar(parts[-1].shape[1], _width(recording))
    if together > 1:
        vector += f", the largest of {together} neighbors in each bar"
    if recording.element_names:
        vector += f": {', '.join(recording.element_names)}, from left to right"
    if len(parts) > 1:
        return f"Below: {vector}."
    if recording.renderings is not None:
        return f"Drawn by the environment; below it {vector}."
    return f"{vector[0].upper()}{vector[1:]}."


def bars(vectors: np.ndarray, width: int) -> np.ndarray:
    """Vectors [T, D] as pictures [T, about BARS, width, 3] uint8: a bar for each element, at least four pixels wide.

    A bar is an element over its largest absolute value among the T. Bars that do not fit beside each other are in rows
    of a pixel's height or more; see `_elements_of_bar` for still longer vectors.
    """
    num_steps, size = vectors.shape
    together = _elements_of_bar(size, width)
    count = math.ceil(size / together)
    columns = max(1, min(count, width // BAR))
    rows = math.ceil(count / columns)
    high = max(1, BARS // rows)
    wide = width // columns

    # Shares of the greatest value, in a grid of bars; what fills up the last row is 0. A bar of several elements shows
    # the greatest share.
    greatest = np.maximum(np.abs(vectors).max(axis=0), 1e-9)
    share = np.pad(vectors / greatest, [(0, 0), (0, rows * columns * together - size)])
    share = share.reshape(num_steps, rows, 1, columns, together)
    shown_element = np.abs(share).argmax(axis=-1)
    share = np.take_along_axis(share, shown_element[..., None], axis=-1)[..., 0]
    # The level of each line of pixels, from 1 to -1, or to 0 if nothing is negative.
    span = 2 if share.min() < 0 else 1
    levels = 1 - (np.arange(high) + 0.5) * span / high
    levels = levels.round(9)[:, None]  # the middle one is exactly 0
    is_lit = np.where(levels >= 0, share >= levels, share <= levels) | (levels == 0)
    colors = np.where(levels >= 0, 1, 2)

    shown = COLORS[np.where(is_lit, colors, 0)].reshape(num_steps, rows * high, columns, 3)
    shown = shown.repeat(wide, axis=2)
    shown[:, :, wide - 1 :: wide] = COLORS[0]  # a gap between bars
    beside = np.full((*shown.shape[:2], width - columns * wide, 3), BACKGROUND, np.uint8)
    return np.concatenate([shown, beside], axis=2)


def _elements_of_bar(size: int, width: int) -> int:
    """How many neighbors of a vector's elements share a bar: more than one where rows of bars would be too many."""
    most_bars = BARS * max(1, width // BAR)
    return math.ceil(size / most_bars)


def looks(recording: Recording, count: int) -> Iterator[list[Look]]:
    """For every step the `count` slots of earlier steps that are attended to most."""
    num_layers = len(recording.attention)
    for step in range(len(recording.actions)):
        # Slots of several layers that hold the same steps are one.
        sums: dict[tuple[str, int, int], float] = defaultdict(float)
        for layer in recording.attention:
            kinds = np.repeat(recording.slot_kinds, layer.sizes)
            weights = layer.weights[step].mean(axis=0) / num_layers
            first, last = layer.steps[step].T
            is_earlier = (first >= 0) & (last < step)
            for slot in np.flatnonzero(is_earlier):
                key = (str(kinds[slot]), int(first[slot]), int(last[slot]))
                sums[key] += float(weights[slot])
        best = sorted(sums.items(), key=lambda item: -item[1])[:count]
        yield [Look(weight, *key) for key, weight in best]


def webp(picture: np.ndarray, **options: Any) -> str:
    """A picture [height, width, 3 or 4] uint8 as a data URL, given the options of Pillow's WebP."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "WEBP", method=2, **options)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
