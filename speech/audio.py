"""Sound as numbers: files, waveforms (mono float32 in [-1, 1]), and the 256 tokens that models predict."""

import os
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from learner.files import replacing

LEVELS = 256
"""Tokens: 8 bits a sample."""
SUFFIXES = (".wav", ".flac")
"""Files that are sound."""
EXTRA = "the extra speech: pip install -e '.[speech]'"
_MU = LEVELS - 1
_UNKNOWN = 0x7FFFF000
"""Length in the header of a WAV file whose writer did not know it: this (as sox writes it) or more."""


class AudioError(ValueError):
    """A file that cannot be used as sound; the message names it."""


class AudioInfo(NamedTuple):
    """From a file's header: samples per second, and samples of each channel."""

    sample_rate: int
    samples: int


def encode(waveform: np.ndarray) -> np.ndarray:
    """Tokens uint8 of samples, which are clipped to [-1, 1]: 8-bit mu-law, the curve of G.711 with equal steps."""
    waveform = np.clip(waveform, -1, 1)
    companded = np.sign(waveform) * np.log1p(_MU * np.abs(waveform)) / np.log1p(_MU)
    return np.rint((companded + 1) / 2 * _MU).astype(np.uint8)


def decode(tokens: np.ndarray) -> np.ndarray:
    """Samples float32 in [-1, 1] of tokens; `encode(decode(tokens))` is `tokens`."""
    return _expand(np.asarray(tokens, dtype=np.float64) / _MU * 2 - 1).astype(np.float32)


def edges() -> np.ndarray:
    """Bounds between the intervals of tokens: [255] float64 samples, ascending."""
    return _expand(2 * (np.arange(_MU) + 0.5) / _MU - 1)


def _expand(companded: np.ndarray) -> np.ndarray:
    return np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(_MU)) / _MU


def info(path: Path) -> AudioInfo:
    """Reads a file's header.

    Raises:
        AudioError: if it is not a WAV or FLAC file, is empty, or is a WAV file shorter than its header says. For FLAC
            files only `read` checks the length.
        ImportError: if the extra `speech` is not installed.
    """
    header = _open(path, lambda soundfile: soundfile.info(os.fsencode(path)))
    if header.format not in ("WAV", "WAVEX", "RF64", "FLAC"):
        raise AudioError(f"{path}: expected a WAV or FLAC file, got {header.format}")
    promised, there = _data_bytes(path)
    if there < promised:
        raise AudioError(f"{path}: expected {promised} bytes of samples as its header says, got {there}")
    if not header.frames:
        raise AudioError(f"{path}: expected sound, got a file of 0 samples")
    return AudioInfo(header.samplerate, header.frames)


def _data_bytes(path: Path) -> tuple[int, int]:
    """Bytes of samples according to a WAV file's header, and in the file; libsndfile silently uses the smaller number.
    Both are 0 if the header does not have the number, as for a stream."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        order, large = (">" if file.read(12).startswith(b"RIFX") else "<"), 0
        while len(head := file.read(8)) == 8:
            name, length = struct.unpack(f"{order}4sI", head)
            begin = file.tell()
            if name == b"ds64":  # RF64: lengths of more than 32 bits
                large = int.from_bytes(file.read(16)[8:], "little")
            if name == b"data":
                promised = large or (length if length < _UNKNOWN else 0)
                return promised, min(promised, size - begin)
            file.seek(begin + length + length % 2)
    return 0, 0


def read(path: Path, sample_rate: int) -> np.ndarray:
    """The waveform of a WAV or FLAC file of any width and rate; channels are averaged.

    Raises:
        AudioError: if it cannot be read, is empty, ends too early or has samples that are not finite.
        ImportError: if the extra `speech` is not installed.
    """
    expected = info(path).samples
    promised = f"{expected} samples as its header says"
    samples, rate = _open(
        path, lambda soundfile: soundfile.read(os.fsencode(path), dtype="float32", always_2d=True), promised
    )
    if len(samples) < expected:
        raise AudioError(f"{path}: expected {promised}, got {len(samples)}")
    if not np.isfinite(samples).all():
        raise AudioError(f"{path}: expected finite samples, got {np.count_nonzero(~np.isfinite(samples))} others")
    return resample(samples.mean(axis=1), rate, sample_rate)


def resample(waveform: np.ndarray, rate: int, sample_rate: int) -> np.ndarray:
    """The waveform at another rate, by libsoxr in high quality."""
    if rate == sample_rate:
        return waveform
    try:
        import soxr
    except ImportError as error:
        raise ImportError(f"another sample_rate needs {EXTRA}") from error
    return soxr.resample(waveform, rate, sample_rate).astype(np.float32)


def _open(path: Path, read: Callable[[Any], Any], expected: str = "a WAV or FLAC file") -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise ImportError(f"sound files need {EXTRA}") from error
    try:
        return read(soundfile)
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioError(f"{path}: expected {expected}, got what cannot be read: {error}") from error


def write_wav(path: Path, waveform: np.ndarray, sample_rate: int) -> None:
    """Writes a waveform as 16-bit WAV, atomically."""
    with replacing(path) as temporary, wave.open(str(temporary), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(waveform, -1, 1) * 32767).astype("<i2").tobytes())
