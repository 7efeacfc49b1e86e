"""What compression keeps of what an agent saw: what a linear probe reads from the first layer's compressed slots."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from actors.recording import Recording
from reports.views import webp

RIDGE = 0.01
"""Penalty of the probe, over the variance of a feature."""
LEAST_SLOTS = 20
"""Slots that the probe needs, of at least two episodes."""


def what_is_kept(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """How much of the redrawn views of a slot's steps a probe reads from the slot, in episodes it was not fitted to.

    A redrawn view (`Recording.reconstructions`) is linear in what a slot is compressed from, so a probe of the c
    uncompressed slots would read all of it. Two probes are fitted by ridge regression, each on every second episode,
    and tested on the others. Beside it, the mean of the c redrawn views, which mean pooling would keep.

    Returns:
        "head", "rows": a table with a row for each of the c steps, oldest first: the share of the variance of its
        pixels that is read, and that of the mean; "slots": how many; "picture": a slot of median error, [2, c] views,
        as it was above and as it is read below; "rate": c. None if there is too little for a probe, or nothing is
        compressed or redrawn.
    """
    found = [(each.compressed, each.reconstructions) for each in recordings]
    parts = [(kept.slots, views[kept.steps] / 255.0) for kept, views in found if kept and views is not None]
    if len(parts) < 2 or sum(len(slots) for slots, _ in parts) < LEAST_SLOTS:
        return None
    fold = np.concatenate([np.full(len(slots), number % 2) for number, (slots, _) in enumerate(parts)])
    slots, views = (np.concatenate(each) for each in zip(*parts))
    read, guess = np.zeros_like(views), np.zeros_like(views)
    for held in (fold == 0, fold == 1):
        read[held] = _probe(slots[~held], views[~held], slots[held])
        guess[held] = views[~held].mean(axis=0)
    pixels = tuple(range(2, views.ndim))
    errors, spread = ((each - views) ** 2 for each in (read, guess))
    pooled = (views.mean(axis=1, keepdims=True) - views) ** 2
    shares, mean = (1 - each.mean(axis=(0, *pixels)) / spread.mean(axis=(0, *pixels)) for each in (errors, pooled))
    totals = errors.mean(axis=(1, *pixels))
    shown = int(np.argsort(totals)[len(totals) // 2])
    picture = np.rint(255 * np.stack([views[shown], read[shown]]).clip(0, 1)).astype(np.uint8)
    picture = np.pad(picture, [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)], constant_values=255)  # lines between the views
    return {
        "head": ["step of the slot", "read from it", "by their mean"],
        "rows": [
            [str(step), *(f"{100 * each:.0f} %" for each in pair)] for step, pair in enumerate(zip(shares, mean), 1)
        ],
        "slots": len(slots),
        "rate": views.shape[1],
        "picture": webp(np.concatenate(np.concatenate(picture, axis=1), axis=1), lossless=True, quality=50),
    }


def _probe(slots: np.ndarray, views: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Views of other slots, by ridge regression from slots [K, D] to views [K, ...]."""
    mean, target = slots.mean(axis=0), views.reshape(len(views), -1)
    scale = slots.std(axis=0) + 1e-9
    x, y = (slots - mean) / scale, target - target.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    return (((others - mean) / scale) @ weights + target.mean(axis=0)).reshape(len(others), *views.shape[1:])
