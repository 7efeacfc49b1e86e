"""Predictors of the next sample without a network: frequencies of levels, and linear prediction.

Both give proper probabilities of the 256 tokens and are fitted to the training split alone, so their nats per sample
compare with those of models.
"""

from typing import NamedTuple

import numpy as np

from sequences.speech import audio
from sequences.streams import count_tokens

_SCALES = np.geomspace(2e-5, 0.3, 24)
_RECENT = 32
_CONTEXTS = 12
_ROUNDS = 4
_PIECES = 40


def predictors(train: np.ndarray, held_out: np.ndarray, block: int = 1 << 18) -> dict[str, float]:
    """Nats per sample of held-out tokens [N] under both predictors, fitted to `train`: "order_0" and "linear"."""
    linear, blocks = fit_linear_predictor(train), range(0, len(held_out), block)
    nll = sum(float(linear.nll(np.asarray(held_out[begin : begin + block])).sum()) for begin in blocks)
    return {"order_0": order_0(train, held_out), "linear": nll / len(held_out)}


def order_0(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per sample of held-out tokens under the frequencies of training tokens, each of 256 counted once more."""
    counts, found = count_tokens(train, audio.LEVELS) + 1.0, count_tokens(held_out, audio.LEVELS)
    return float(-(np.log(counts / counts.sum()) * found).sum() / found.sum())


class LinearPredictor(NamedTuple):
    """A linear prediction of the next sample from those before, whose error is a mixture of Laplace distributions.

    The weights of the mixture depend on the size of the last errors, as in lossless audio coders, because the loudness
    of speech varies.

    coefficients: [order], the newest sample first.
    thresholds: [contexts - 1] mean sizes of the last errors between two contexts, ascending.
    weights: [contexts, scales + 1], each row sums to 1; the last column belongs to the uniform distribution.
    """

    coefficients: np.ndarray
    thresholds: np.ndarray
    weights: np.ndarray

    def nll(self, tokens: np.ndarray) -> np.ndarray:
        """Nats of each token [N], given all before it; before the first one there is silence."""
        samples = audio.decode(tokens).astype(np.float64)
        predictions = _filtered(samples, self.coefficients)
        contexts = np.searchsorted(self.thresholds, _recent_errors(samples - predictions))
        return -np.log((_likelihoods(predictions, tokens) * self.weights[contexts]).sum(axis=1))


def fit_linear_predictor(train: np.ndarray, order: int = 32, most: int = 200_000) -> LinearPredictor:
    """Least squares, weighted by loudness, for the coefficients; expectation maximisation for the mixture.

    Of `train` [N] at most so many tokens are used, in pieces spread evenly over it. The prediction depends on `order`
    samples.

    Raises:
        ValueError: if there are not more than 4 * order tokens.
    """
    if len(train) <= 4 * order:
        raise ValueError(f"train: expected more than {4 * order} samples for order {order}, got {len(train)}")
    pieces = 1 if len(train) <= most else _PIECES
    begins = np.arange(pieces) * len(train) // pieces
    tokens = np.stack([train[begin : begin + min(most, len(train)) // pieces] for begin in begins])
    samples = audio.decode(tokens).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(samples, order + 1, axis=1).reshape(-1, order + 1)
    importance = np.ones(len(windows))
    for _ in range(_ROUNDS):
        covariance = (windows.T * importance) @ windows
        # Newest first; a ridge keeps silence solvable.
        moments, target = covariance[:order, :order][::-1, ::-1], covariance[:order, order][::-1]
        ridge = 1e-9 * np.trace(moments) / order + 1e-12
        coefficients = np.linalg.solve(moments + ridge * np.eye(order), target)
        predictions = _filtered(samples, coefficients)
        recent = _recent_errors(samples - predictions)
        # The likelihood weights errors by loudness; plain squares would fit only the loudest words.
        importance = (recent[:, order:].ravel() + 1e-4) ** -2

    recent, predictions = recent.ravel(), predictions.ravel()
    thresholds = np.unique(np.quantile(recent, np.arange(1, _CONTEXTS) / _CONTEXTS))
    contexts = np.searchsorted(thresholds, recent)
    likelihoods = _likelihoods(predictions, tokens.ravel())
    weights = np.full((len(thresholds) + 1, likelihoods.shape[1]), 1 / likelihoods.shape[1])
    for context in range(len(weights)):
        mine = likelihoods[contexts == context]
        for _ in range(20 if len(mine) else 0):
            shares = mine * weights[context]
            weights[context] = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
        weights[context] = 0.999 * weights[context] + 0.001 / weights.shape[1]
    return LinearPredictor(coefficients, thresholds, weights)


def _recent_errors(errors: np.ndarray) -> np.ndarray:
    """Mean size of the errors before each sample, with weights that decay into the past."""
    decay = 0.9 ** np.arange(_RECENT)
    return _filtered(np.abs(errors), decay / decay.sum())


def _filtered(signals: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """At each step of signals [..., N] the sum of the samples before it, weighted by `taps`, the newest first."""
    delayed = np.concatenate([[0.0], taps])
    return np.apply_along_axis(lambda signal: np.convolve(signal, delayed)[: len(signal)], -1, signals)


def _likelihoods(predictions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Likelihoods of tokens [N] under Laplace distributions around predictions [N] and the uniform: [N, scales + 1]."""
    bounds = np.concatenate([[-np.inf], audio.edges(), [np.inf]])
    below, above = bounds[tokens] - predictions, bounds[tokens.astype(np.int64) + 1] - predictions
    # Above the mean the distribution function is near 1 and differences vanish; mirrored, they do not.
    mirrored = below > 0
    below, above = np.where(mirrored, -above, below), np.where(mirrored, -below, above)
    laplace = _laplace(above[:, None] / _SCALES) - _laplace(below[:, None] / _SCALES)
    return np.concatenate([laplace, np.full((len(tokens), 1), 1 / audio.LEVELS)], axis=1)


def _laplace(deviations: np.ndarray) -> np.ndarray:
    """The distribution function of a Laplace distribution of scale 1."""
    tails = 0.5 * np.exp(-np.abs(deviations))
    return np.where(deviations < 0, tails, 1 - tails)
