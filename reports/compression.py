"""What compression keeps of what an agent saw: what a linear probe reads from the first layer's compressed slots."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from actors.recording import Recording
from reports.views import coloured, webp

RIDGE = 0.01
"""Penalty of a probe, over the variance of a feature."""


def what_is_kept(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """How much of the redrawn views of a slot's steps a probe reads from the slot, in episodes it was not fitted to.

    For comparison the same is read from the mean of the slot's inputs, which has as many features, and from all of its
    inputs. Redrawn views (`Recording.reconstructions`) are linear in these, so that what is missing there is
    what the probe could not learn from so few slots. Probes are ridge regressions; two of each are fitted, on every
    second episode, and tested on the others.

    Returns:
        "head", "rows": a table with a row for each of the c steps, oldest first, of the shares of the variance of its
        pixels that are read, 0 at least; "slots": how many; "rate": c; "picture": a slot of median error, [2, c]
        views, as it was above and as it is read below. None if there are not twice as many slots as features to fit
        each probe of the slots to, if views do not vary, or if nothing is compressed or redrawn.
    """
    found = [(each.compressed, each.reconstructions) for each in recordings]
    parts = [(*kept, views[kept.steps] / 255.0) for kept, views in found if kept and views is not None]
    if not parts:
        return None
    fold = np.concatenate([np.full(len(part[0]), number % 2) for number, part in enumerate(parts)])
    slots, _, inputs, views = (np.concatenate(each) for each in zip(*parts))
    folds = [fold == number for number in (0, 1)]
    if min(held.sum() for held in folds) < 2 * slots.shape[1]:
        return None
    features = {
        "compressed slot": slots,
        "mean of its inputs": inputs.mean(axis=1),
        "all of its inputs": inputs.reshape(len(inputs), -1),
    }
    read = {name: np.zeros_like(views) for name in ("nothing", *features)}
    for held in folds:
        read["nothing"][held] = views[~held].mean(axis=0)
        for name, x in features.items():
            read[name][held] = _probe(x[~held], views[~held], x[held])
    pixels = tuple(range(2, views.ndim))
    errors = {name: ((each - views) ** 2).mean(axis=pixels) for name, each in read.items()}
    spread = errors["nothing"].mean(axis=0)
    if not (np.isfinite(list(errors.values())).all() and (spread > 0).all()):
        return None
    shares = [(1 - errors[name].mean(axis=0) / spread).clip(min=0) for name in features]
    totals = errors["compressed slot"].mean(axis=1)
    shown = int(np.argsort(totals)[len(totals) // 2])
    picture = np.rint(255 * np.stack([views[shown], read["compressed slot"][shown]]).clip(0, 1)).astype(np.uint8)
    picture = np.pad(picture, [(0, 0), (0, 0), (0, 1), (0, 1), (0, 0)], constant_values=255)  # lines between the views
    sheet = coloured(np.concatenate(np.concatenate(picture, axis=1), axis=1))
    return {
        "head": ["step", *features],
        "rows": [[str(step), *(f"{100 * each:.0f} %" for each in row)] for step, row in enumerate(zip(*shares), 1)],
        "slots": len(slots),
        "rate": views.shape[1],
        "picture": webp(sheet, lossless=True, quality=50),
    }


def _probe(features: np.ndarray, views: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Views of other slots, by ridge regression from features [K, F] to views [K, ...]."""
    mean, target = features.mean(axis=0), views.reshape(len(views), -1)
    scale = features.std(axis=0) + 1e-9
    x, y = (features - mean) / scale, target - target.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    return (((others - mean) / scale) @ weights + target.mean(axis=0)).reshape(len(others), *views.shape[1:])
