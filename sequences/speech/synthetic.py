"""Synthetic voices, for use without files of speech.

A source-filter synthesis (Fant 1960): glottal pulses or noise, shaped by the resonances of a vocal tract that moves
from sound to sound. It has what a waveform model has to learn at every scale: formants, pitch, syllables, pauses,
speakers.
"""

from typing import NamedTuple

import numpy as np

SAMPLE_RATE = 16_000
"""Samples per second."""
VOWELS = np.array(
    [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410), (440, 1020, 2240)]
)
"""First three formants in Hz, means over men (Peterson and Barney 1952)."""
FRICATIVES = np.array([(2500, 4500, 6000), (3800, 5200, 7000), (1500, 2600, 4200)])
"""Where the noise of consonants lies, in Hz."""
_HOP = 128
_WINDOW = 512
_BANDWIDTHS = (80.0, 110.0, 160.0)
"""Of the formants, in Hz."""


class _Sound(NamedTuple):
    """length: in frames. voicing, noise: how loud pulses and noise are. formants: [3], in Hz."""

    length: int
    voicing: float
    noise: float
    formants: np.ndarray


def utterance(speaker: int, index: int) -> np.ndarray:
    """About three seconds of one of the voices: a waveform, the same for the same numbers.

    The speaker determines pitch and the length of the vocal tract, the index the sequence of sounds.
    """
    voice = np.random.default_rng([speaker])
    pitch = voice.uniform(85, 220)
    tract = voice.uniform(0.85, 1.2)
    rng = np.random.default_rng([speaker, index])
    voicing, noise, formants = _score(rng)
    formants = formants * tract
    frames = len(voicing)
    times = np.arange(frames * _HOP) / _HOP

    # Pitch falls over the utterance and wavers slowly.
    bends = np.arange(0, frames + 20, 20)
    wavering = np.interp(times, bends, rng.normal(0, 0.05, len(bends)))
    frequency = pitch * (1.1 - 0.25 * times / frames) * np.exp(wavering)
    phase = np.cumsum(frequency / SAMPLE_RATE) % 1

    pulses = np.diff(_glottal_flow(phase), prepend=0.0)
    source = pulses * np.interp(times, np.arange(frames), voicing)
    hiss = 0.02 * rng.normal(size=len(times))
    source += hiss * np.interp(times, np.arange(frames), noise)
    waveform = _shape(source, formants)

    loudness = voice.uniform(0.4, 0.8)
    waveform /= np.abs(waveform).max() / loudness
    background = 3e-4 * rng.normal(size=len(waveform))
    return (waveform + background).astype(np.float32)


def _score(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Voicing [F], noise [F] and formants [F, 3] of frames of `_HOP` samples: words of syllables, and pauses."""
    # A syllable is a vowel with or without a consonant before it.
    sounds = []
    for _ in range(rng.integers(4, 7)):
        for _ in range(rng.integers(1, 4)):
            if rng.random() < 0.7:
                length = int(rng.integers(5, 12))
                noise = rng.uniform(0.01, 0.03)
                sounds.append(_Sound(length, 0.0, noise, FRICATIVES[rng.integers(len(FRICATIVES))]))
            length = int(rng.integers(10, 26))
            voicing = rng.uniform(0.6, 1.0)
            sounds.append(_Sound(length, voicing, 0.05, VOWELS[rng.integers(len(VOWELS))]))
        pause = int(rng.integers(4, 35))
        sounds.append(_Sound(pause, 0.0, 0.0, VOWELS[0]))

    lengths = [sound.length for sound in sounds]
    voicings = np.repeat([sound.voicing for sound in sounds], lengths)
    noises = np.repeat([sound.noise for sound in sounds], lengths)
    formants = np.repeat([sound.formants for sound in sounds], lengths, axis=0)

    # The tongue takes about 40 ms from one sound to the next.
    kernel = np.hanning(7)[1:-1]
    kernel = kernel / kernel.sum()
    voicings = np.convolve(voicings, kernel, mode="same")
    noises = np.convolve(noises, kernel, mode="same")
    padded = np.pad(formants, ((2, 2), (0, 0)), mode="edge")
    formants = np.stack([np.convolve(track, kernel, mode="valid") for track in padded.T], axis=1)
    return voicings, noises, formants


def _glottal_flow(phase: np.ndarray) -> np.ndarray:
    """Rosenberg's pulse (1971, type C) of a phase in [0, 1): opens over 40 % of the period, closes over 16 %."""
    opening = 0.5 * (1 - np.cos(np.pi * phase / 0.4))
    closing = np.cos(np.pi / 2 * (phase - 0.4) / 0.16)
    return np.select([phase < 0.4, phase < 0.56], [opening, closing], 0.0)


def _shape(source: np.ndarray, formants: np.ndarray) -> np.ndarray:
    """The source through two-pole resonators at the formants [F, 3], by overlapping windows."""
    padded = np.pad(source, (_WINDOW // 2, _WINDOW))
    starts = np.arange(len(formants)) * _HOP
    index = starts[:, None] + np.arange(_WINDOW)
    spectrum = np.fft.rfft(padded[index] * np.hanning(_WINDOW + 1)[:-1])

    # The response of each resonator, which is 1 at 0 Hz.
    delay = np.exp(-2j * np.pi * np.arange(_WINDOW // 2 + 1) / _WINDOW)
    for formant, bandwidth in zip(formants.T, _BANDWIDTHS):
        pole = np.exp((-np.pi * bandwidth + 2j * np.pi * formant[:, None]) / SAMPLE_RATE)
        spectrum *= np.abs(1 - pole) ** 2 / ((1 - pole * delay) * (1 - pole.conj() * delay))

    shaped = np.zeros(len(padded))
    np.add.at(shaped, index, np.fft.irfft(spectrum))
    begin = _WINDOW // 2
    return shaped[begin : begin + len(source)]
