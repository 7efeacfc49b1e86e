"""Spectrograms of waveforms, drawn with numpy and pillow."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from storage.files import replacing

_COLORS = np.array([(4, 4, 20), (70, 20, 110), (180, 45, 90), (245, 130, 40), (255, 245, 190)])
_RANGE_DB = 75.0
_HEIGHT = 200
_TITLE = 18
"""Pixels of a spectrogram, and of the line above it."""


def spectrogram(waveform: np.ndarray, sample_rate: int, seconds: float = 0.025) -> np.ndarray:
    """Power in dB of overlapping windows, [F, N]: F frequencies from 0 to half the rate, N windows a quarter apart.

    The window is Hann's, of the power of two samples that is nearest to `seconds`; a full-scale sine has 0 dB.
    """
    size = 2 ** max(5, round(np.log2(seconds * sample_rate)))
    padded = np.pad(waveform, (size // 2, size))
    window = np.hanning(size + 1)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[: len(waveform) : size // 4]
    amplitude = np.fft.rfft(frames * window) / (window.sum() / 2)
    power = np.abs(amplitude) ** 2
    decibels = 10 * np.log10(np.maximum(power, 1e-12))
    return decibels.T


def write_spectrograms(path: Path, clips: Mapping[str, np.ndarray], sample_rate: int, mark: float) -> Image.Image:
    """Draws spectrograms, one under the other, on one scale of time and of loudness; writes a PNG, atomically.

    `clips` are waveforms by title; a line is drawn at `mark` seconds, such as where a prompt ends.
    """
    levels = {name: spectrogram(waveform, sample_rate) for name, waveform in clips.items()}
    loudest = max(float(level.max()) for level in levels.values())
    columns = max(level.shape[1] for level in levels.values())
    longest = max(len(waveform) for waveform in clips.values())
    width = min(1200, max(400, columns))
    x = round(mark * sample_rate / longest * width)
    places = np.linspace(0, 1, len(_COLORS))  # of the colors on the scale of loudness

    picture = Image.new("RGB", (width, len(levels) * (_HEIGHT + _TITLE)), "white")
    pen = ImageDraw.Draw(picture)
    title_top = 0
    for name, level in levels.items():
        # Low frequencies are below; what is shorter than the longest clip ends in silence.
        shade = np.clip((level[::-1] - loudest) / _RANGE_DB + 1, 0, 1)
        shade = np.pad(shade, ((0, 0), (0, columns - shade.shape[1])))
        channels = [np.interp(shade, places, channel) for channel in _COLORS.T]
        image = Image.fromarray(np.stack(channels, axis=2).astype(np.uint8)).resize((width, _HEIGHT))

        top = title_top + _TITLE
        bottom = top + _HEIGHT
        pen.text((4, title_top + 3), f"{name}   (0 to {sample_rate / 2000:g} kHz)", fill="black")
        picture.paste(image, (0, top))
        pen.line([(x, top), (x, bottom)], fill="white")
        title_top = bottom
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG")
    return picture
