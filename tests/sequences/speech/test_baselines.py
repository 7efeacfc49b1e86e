"""The linear predictor gives proper probabilities, which are as sharp as signals allow."""

import numpy as np
import pytest

from sequences.speech import audio, baselines


@pytest.fixture(scope="module")
def noise_through_a_filter() -> np.ndarray:
    """An autoregressive signal, of which a linear predictor can know all there is but the noise."""
    length = 40_000
    noise = np.random.default_rng(0).laplace(scale=0.02, size=length)
    samples = np.zeros(length)
    for step in range(2, len(samples)):
        samples[step] = 1.6 * samples[step - 1] - 0.8 * samples[step - 2] + noise[step]
    return audio.encode(samples)


def test_order_0_is_the_entropy_of_the_frequencies() -> None:
    """Each of the 256 levels counts once more than it occurs."""
    train = np.array([1] * 300 + [2] * 100, dtype=np.uint8)
    held_out = np.array([1, 1, 2, 3], dtype=np.uint8)
    counts = {1: 301, 2: 101, 3: 1}
    expected = -np.mean([np.log(counts[token] / (400 + 256)) for token in held_out])
    assert baselines.order_0(train, held_out) == pytest.approx(expected)


def test_probabilities_sum_to_one_and_depend_on_the_past_alone(noise_through_a_filter: np.ndarray) -> None:
    predictor = baselines.fit_linear_predictor(noise_through_a_filter[:20_000], order=8)
    held_out = noise_through_a_filter[20_000:20_200]
    nll = predictor.nll(held_out)
    for step in (0, 1, 50, 199):
        past = held_out[:step]
        by_token = [predictor.nll(np.append(past, np.uint8(token))) for token in range(audio.LEVELS)]
        assert sum(np.exp(-each[step]) for each in by_token) == pytest.approx(1, abs=1e-12)

        of_real_token = by_token[held_out[step]]
        assert of_real_token[step] == pytest.approx(nll[step])
        np.testing.assert_array_equal(by_token[0][:step], nll[:step])


def test_it_finds_the_filter_and_the_entropy_of_the_noise(noise_through_a_filter: np.ndarray) -> None:
    predictor = baselines.fit_linear_predictor(noise_through_a_filter[:30_000], order=4)
    np.testing.assert_allclose(predictor.coefficients, [1.6, -0.8, 0, 0], atol=0.15)
    held_out = noise_through_a_filter[30_000:]
    # What is left: the noise, log(2 e b) nats, less what the widths of the levels resolve.
    widths = np.diff(np.concatenate([[-1.0], audio.edges(), [1.0]]))[held_out]
    least = np.log(2 * np.e * 0.02) - np.log(widths).mean()
    measured = predictor.nll(held_out).mean()
    assert least - 0.02 < measured < least + 0.15
    assert measured < baselines.order_0(noise_through_a_filter[:30_000], held_out) - 0.5


def test_all_of_the_training_sound_counts(noise_through_a_filter: np.ndarray) -> None:
    """Nine tenths are silence. The rest is at the end, and the fit must have seen it."""
    silence = np.full(360_000, 128, dtype=np.uint8)
    train = np.concatenate([silence, noise_through_a_filter])
    held_out = noise_through_a_filter[:5_000]
    own = baselines.fit_linear_predictor(noise_through_a_filter, order=4).nll(held_out).mean()
    assert baselines.fit_linear_predictor(train, order=4).nll(held_out).mean() < own + 0.2


def test_silence_is_predicted() -> None:
    silence = np.full(2_000, 128, dtype=np.uint8)
    assert baselines.fit_linear_predictor(silence).nll(silence).mean() < 0.1


def test_too_little_sound_is_refused() -> None:
    silence = np.full(100, 128, dtype=np.uint8)
    with pytest.raises(ValueError, match="train: expected more than 128 samples for order 32, got 100"):
        baselines.fit_linear_predictor(silence)
