"""Predictors of the next sample without a network: frequencies of levels, and linear prediction.

Both give proper probabilities of the 256 tokens and are fitted to the training split alone, so their nats per sample
compare with those of models.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sequences.speech import audio
from sequences.streams import count_tokens

_SCALES = np.geomspace(2e-5, 0.3, 24)
"""Of the Laplace distributions in the mixture."""
_RECENT = 32
"""Errors before a sample whose mean size chooses the weights of the mixture."""
_CONTEXTS = 12
"""Ranges of that mean, each of which has weights of its own."""
_ROUNDS = 4
"""Of least squares, each with weights that depend on the errors of the one before."""
_STEPS = 20
"""Of expectation maximization."""
_PIECES = 40
"""In which a part of a long training split is read."""


def predictors(
    train: np.ndarray, held_out: np.ndarray, show: Callable[[int], None] = lambda done: None, block: int = 1 << 18
) -> dict[str, float]:
    """Nats per sample of held-out tokens [N] under both predictors, fitted to `train`: "order_0" and "linear".

    `show`: is told how many tokens are measured.
    """
    linear = fit_linear_predictor(train)
    nll = 0.0
    for begin in range(0, len(held_out), block):
        tokens = np.asarray(held_out[begin : begin + block])
        nll += float(linear.nll(tokens).sum())
        show(begin + len(tokens))
    return {"order_0": order_0(train, held_out), "linear": nll / len(held_out)}


def order_0(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per sample of held-out tokens under the frequencies of training tokens, each of 256 counted once more."""
    counts = count_tokens(train, audio.LEVELS) + 1.0
    log_probs = np.log(counts / counts.sum())
    found = count_tokens(held_out, audio.LEVELS)
    return float(-(log_probs * found).sum() / found.sum())


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
        mixture = _likelihoods(predictions, tokens) * self.weights[contexts]
        return -np.log(mixture.sum(axis=1))


def fit_linear_predictor(train: np.ndarray, order: int = 32, most: int = 200_000) -> LinearPredictor:
    """Least squares, weighted by loudness, for the coefficients; expectation maximization for the mixture.

    Of `train` [N] at most so many tokens are used, in pieces spread evenly over it. The prediction depends on `order`
    samples.

    Raises:
        ValueError: if there are not more than 4 * order tokens.
    """
    if len(train) <= 4 * order:
        raise ValueError(f"train: expected more than {4 * order} samples for order {order}, got {len(train)}")
    # The training tokens, [pieces, length].
    pieces = 1 if len(train) <= most else _PIECES
    length = min(most, len(train)) // pieces
    begins = np.arange(pieces) * len(train) // pieces
    tokens = np.stack([train[begin : begin + length] for begin in begins])
    samples = audio.decode(tokens).astype(np.float64)

    coefficients = _weighted_least_squares(samples, order)
    predictions = _filtered(samples, coefficients)
    recent = _recent_errors(samples - predictions).ravel()

    # Each context has about as many samples.
    thresholds = np.unique(np.quantile(recent, np.arange(1, _CONTEXTS) / _CONTEXTS))
    contexts = np.searchsorted(thresholds, recent)
    likelihoods = _likelihoods(predictions.ravel(), tokens.ravel())
    weights = []
    for context in range(len(thresholds) + 1):
        weights.append(_mixture_weights(likelihoods[contexts == context]))
    return LinearPredictor(coefficients, thresholds, np.array(weights))


def _weighted_least_squares(samples: np.ndarray, order: int) -> np.ndarray:
    """Coefficients [order] of a linear prediction of samples [pieces, length], the newest sample first."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, order + 1, axis=1).reshape(-1, order + 1)
    importance = np.ones(len(windows))
    for _ in range(_ROUNDS):
        # The last sample of a window is predicted from those before it, which here become newest first.
        covariance = (windows.T * importance) @ windows
        moments = covariance[:order, :order][::-1, ::-1]
        target = covariance[:order, order][::-1]
        ridge = 1e-9 * np.trace(moments) / order + 1e-12  # keeps silence solvable
        coefficients = np.linalg.solve(moments + ridge * np.eye(order), target)

        # The likelihood weights errors by loudness; plain squares would fit only the loudest words.
        recent = _recent_errors(samples - _filtered(samples, coefficients))
        importance = (recent[:, order:].ravel() + 1e-4) ** -2
    return coefficients


def _mixture_weights(likelihoods: np.ndarray) -> np.ndarray:
    """The weights [D] of a mixture of D distributions that fit best, given the likelihoods of N samples [N, D]."""
    num_distributions = likelihoods.shape[1]
    weights = np.full(num_distributions, 1 / num_distributions)
    if len(likelihoods):
        for _ in range(_STEPS):
            shares = likelihoods * weights
            weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
    # No weight is 0, so that no held-out sample is impossible.
    return 0.999 * weights + 0.001 / num_distributions


def _recent_errors(errors: np.ndarray) -> np.ndarray:
    """Mean size of the errors before each sample, with weights that decay into the past."""
    decay = 0.9 ** np.arange(_RECENT)
    return _filtered(np.abs(errors), decay / decay.sum())


def _filtered(signals: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """At each step of signals [..., N] the sum of the samples before it, weighted by `taps`, the newest first."""
    delayed = np.concatenate([[0.0], taps])

    def filtered(signal: np.ndarray) -> np.ndarray:
        return np.convolve(signal, delayed)[: len(signal)]

    return np.apply_along_axis(filtered, -1, signals)


def _likelihoods(predictions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Likelihoods of tokens [N] under Laplace distributions around predictions [N] and the uniform: [N, scales + 1]."""
    # The bounds of each token's interval, around its prediction.
    bounds = np.concatenate([[-np.inf], audio.edges(), [np.inf]])
    level = tokens.astype(np.int64)
    low = bounds[level] - predictions
    high = bounds[level + 1] - predictions

    # Far above the mean the distribution function is near 1 and its differences vanish. Mirrored, they do not.
    is_above = low > 0
    begin = np.where(is_above, -high, low)
    end = np.where(is_above, -low, high)
    laplace = _laplace(end[:, None] / _SCALES) - _laplace(begin[:, None] / _SCALES)
    uniform = np.full((len(tokens), 1), 1 / audio.LEVELS)
    return np.concatenate([laplace, uniform], axis=1)


def _laplace(deviations: np.ndarray) -> np.ndarray:
    """The distribution function of a Laplace distribution of scale 1."""
    tails = 0.5 * np.exp(-np.abs(deviations))
    return np.where(deviations < 0, tails, 1 - tails)
