"""What can be said about the next sample without a network: how often each level is, and linear prediction.

Both give proper probabilities of the 256 tokens, fitted to training data alone, so their nats per sample stand in one
table with those of models.
"""

from typing import NamedTuple

import numpy as np

from speech import audio

_SCALES = np.geomspace(2e-5, 0.3, 24)
_RECENT = 32
_CONTEXTS = 12
_ROUNDS = 4
_PIECES = 40


def order_0(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per sample of held-out tokens under the frequencies of training tokens, each of 256 counted once more."""
    counts, found = _histogram(train) + 1.0, _histogram(held_out)
    return float(-(np.log(counts / counts.sum()) * found).sum() / found.sum())


def _histogram(tokens: np.ndarray, size: int = 1 << 24) -> np.ndarray:
    """How often each level is; in blocks, for bincount makes each token eight bytes."""
    blocks = (tokens[begin : begin + size] for begin in range(0, len(tokens), size))
    return sum((np.bincount(block, minlength=audio.LEVELS) for block in blocks), np.zeros(audio.LEVELS, np.int64))


class LinearPredictor(NamedTuple):
    """A linear prediction of the next sample from those before, whose error is a mixture of Laplace distributions.

    The weights of the mixture depend on how large the last errors were, as in lossless audio coders, for speech is loud
    and silent by turns.

    coefficients: [order], of the newest sample first.
    thresholds: [contexts - 1] where the mean size of the last errors changes the context, ascending.
    weights: [contexts, scales + 1], each row sums to 1; the last is of the uniform distribution.
    """

    coefficients: np.ndarray
    thresholds: np.ndarray
    weights: np.ndarray

    def predict(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of tokens [N]: predictions of the samples [N], and contexts [N]; before the first there is silence."""
        samples = audio.decode(tokens).astype(np.float64)
        predictions = _predictions(samples, self.coefficients)
        return predictions, np.searchsorted(self.thresholds, _recent_errors(samples - predictions))

    def nll(self, tokens: np.ndarray) -> np.ndarray:
        """Nats of each token [N], given all before it."""
        predictions, contexts = self.predict(tokens)
        likelihoods = _likelihoods(predictions, tokens)
        return -np.log((likelihoods * self.weights[contexts]).sum(axis=1))

    def probabilities(self, prediction: float, context: int) -> np.ndarray:
        """Of all 256 tokens, given what `predict` returned for the next one."""
        likelihoods = _likelihoods(np.full(audio.LEVELS, prediction), np.arange(audio.LEVELS))
        return likelihoods @ self.weights[context]


def fit_linear_predictor(train: np.ndarray, order: int = 32, most: int = 200_000) -> LinearPredictor:
    """Least squares, weighted by loudness, for the coefficients; expectation maximisation for the mixture.

    Args:
        train: tokens [N].
        order: samples that the prediction depends on.
        most: tokens that are used, in pieces spread evenly over `train`.

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
        recent = _recent_errors(samples - _predictions(samples, coefficients))
        # Likelihood asks for errors in proportion to loudness; plain squares would fit the loudest words alone.
        importance = (recent[:, order:].ravel() + 1e-4) ** -2

    predictions = _predictions(samples, coefficients)
    recent, predictions = _recent_errors(samples - predictions).ravel(), predictions.ravel()
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


def _predictions(samples: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    return _filtered(samples, coefficients)


def _recent_errors(errors: np.ndarray) -> np.ndarray:
    """Mean size of the errors before each sample, the last ones counting most."""
    decay = 0.9 ** np.arange(_RECENT)
    return _filtered(np.abs(errors), decay / decay.sum())


def _filtered(signals: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Of signals [..., N], at each step the sum of those before it, weighted by `taps`, the newest first."""
    delayed = np.concatenate([[0.0], taps])
    return np.apply_along_axis(lambda signal: np.convolve(signal, delayed)[: len(signal)], -1, signals)


def _likelihoods(predictions: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Of tokens [N] under Laplace distributions around predictions [N], and under the uniform: [N, scales + 1]."""
    bounds = np.concatenate([[-np.inf], audio.edges(), [np.inf]])
    below, above = bounds[tokens] - predictions, bounds[tokens.astype(np.int64) + 1] - predictions
    # On the far side the distribution function is near 1 and differences vanish: mirrored, they do not.
    mirrored = below > 0
    below, above = np.where(mirrored, -above, below), np.where(mirrored, -below, above)
    laplace = _laplace(above[:, None] / _SCALES) - _laplace(below[:, None] / _SCALES)
    return np.concatenate([laplace, np.full((len(tokens), 1), 1 / audio.LEVELS)], axis=1)


def _laplace(deviations: np.ndarray) -> np.ndarray:
    """The distribution function of Laplace's distribution of scale 1."""
    tails = 0.5 * np.exp(-np.abs(deviations))
    return np.where(deviations < 0, tails, 1 - tails)
