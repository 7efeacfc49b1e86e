"""Linear probes of what slots hold: fitted to some episodes, tested on others, with intervals over episodes.

K slots of several episodes; `episode` [K] says of which each is.
"""

from typing import Any

import numpy as np

from actors.intervals import Sample, bootstrap_interval, share_interval

RIDGE = 0.01
"""Penalty of a probe, over the variance of a feature."""
FOLDS = 8
"""Probes are tested on every FOLDS-th episode, and fitted to the others."""
ENDS = ("value", "low", "high")
"""The numbers of a cell: a share and the ends of its interval."""


def read_in_others(features: np.ndarray, targets: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Targets [K, ...] as ridge regressions read them from features [K, F], each fitted to other episodes."""
    flat = targets.reshape(len(targets), -1)
    read = np.zeros(flat.shape)
    fold_of = episode % FOLDS
    for fold in np.unique(fold_of):
        held = fold_of == fold
        fitted = ~held
        # Features with mean 0 and variance 1, so that the penalty means the same for all.
        mean = features[fitted].mean(axis=0)
        scale = features[fitted].std(axis=0) + 1e-9
        x = (features - mean) / scale
        middle = flat[fitted].mean(axis=0)

        square = x[fitted].T @ x[fitted]
        penalty = RIDGE * fitted.sum() * np.eye(len(mean))
        product = x[fitted].T @ (flat[fitted] - middle)
        weights = np.linalg.solve(square + penalty, product)
        read[held] = x[held] @ weights + middle
    return read.reshape(targets.shape)


def right_cell(right: np.ndarray, episode: np.ndarray) -> dict[str, Any]:
    """A cell: the share of right answers [K], with its 95 % interval over episodes."""
    all_answers = np.ones(len(right))
    share = share_interval(_sums(right, episode), _sums(all_answers, episode))
    return _cell(*share)


def explained_cell(error: np.ndarray, spread: np.ndarray, episode: np.ndarray) -> dict[str, Any]:
    """A cell: the share of the spread [K] that is no error [K], 0 at least, with its 95 % interval over episodes."""

    def share(sample: Sample) -> Any:
        errors, spreads = np.sum(sample[0], axis=-1)
        missed = np.divide(errors, spreads, out=np.ones(np.shape(spreads)), where=spreads > 0)
        return np.maximum(0.0, 1 - missed)

    sums = np.stack([_sums(error, episode), _sums(spread, episode)])
    low, high = bootstrap_interval(share, [sums])
    return _cell(float(share([sums])), float(low), float(high))


def _sums(values: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Sums over the slots of each episode, [episodes], of values [K]."""
    return np.array([values[episode == one].sum() for one in np.unique(episode)])


def _cell(value: float, low: float, high: float) -> dict[str, Any]:
    """A share with the ends of its interval in %, and in words."""
    return {
        "text": f"{100 * value:.0f} %",
        "small": f"[{100 * low:.0f}, {100 * high:.0f}]",
        "value": 100 * value,
        "low": 100 * low,
        "high": 100 * high,
    }
