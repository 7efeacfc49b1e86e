"""Sound as numbers: files, waveforms (mono float32 in [-1, 1]), and the 256 tokens that models predict."""

import os
import re
import wave
from pathlib import Path

import numpy as np

from sequences.prepared import Unreadable
from storage.files import import_extra, replacing

LEVELS = 256
"""Tokens: 8 bits a sample."""
SUFFIXES = (".wav", ".flac")
"""Files that are sound."""
_MU = LEVELS - 1
_UNKNOWN = 0x7FFFF000
"""Length in the header of a WAV file whose writer did not know it: this (as sox writes it) or more."""


class AudioError(Unreadable):
    """A file that cannot be used as sound; the message names it."""


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


LOUDEST = float(_expand(np.array(1 + 1 / _MU)))
"""Samples up to 1.02, half a level beyond 1, are as near to the last level as others are to theirs."""


def quieter(waveform: np.ndarray) -> np.ndarray:
    """The waveform, or, if it has samples beyond `LOUDEST`, one that is as much quieter as they need to be within 1.

    Clipped, it would be another sound.
    """
    peak = np.abs(waveform).max(initial=0.0)
    if peak <= LOUDEST:
        return waveform
    return waveform / peak


def info(path: Path) -> tuple[int, int]:
    """Samples per second, and samples of each channel, from a file's header.

    Raises:
        AudioError: if it is not a WAV or FLAC file, is empty, or is a WAV file shorter than its header says. For FLAC
            files only `read` checks the length.
        ImportError: if the extra `speech` is not installed.
    """
    soundfile = import_extra("soundfile", "speech", "reading sound files")
    try:
        header = soundfile.info(os.fsencode(path), verbose=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioError(f"{path}: expected a WAV or FLAC file, got what cannot be read: {error}") from error
    if header.format not in ("WAV", "WAVEX", "RF64", "FLAC"):
        raise AudioError(f"{path}: expected a WAV or FLAC file, got {header.format}")
    # libsndfile reads what there is of a WAV file that was cut off, and only notes that it is shorter.
    notes = re.findall(r"^ *(?:data|Riff size) : (\d+) \(should be (\d+)\)", header.extra_info, re.M)
    for promised, found in notes:
        is_known = int(promised) < _UNKNOWN
        if is_known and int(found) < int(promised):
            raise AudioError(f"{path}: expected {promised} bytes of samples as its header says, got {found}")
    if not header.frames:
        raise AudioError(f"{path}: expected sound, got a file of 0 samples")
    return header.samplerate, header.frames


def read(path: Path, sample_rate: int) -> np.ndarray:
    """The waveform of a WAV or FLAC file of any width and rate; channels are averaged.

    Raises:
        AudioError: if it cannot be read, is empty, ends too early, or has samples that are not finite or, in a file of
            floats, beyond `LOUDEST`: clipped, they would be another sound.
        ImportError: if the extra `speech` is not installed.
    """
    rate, expected = info(path)
    soundfile = import_extra("soundfile", "speech", "reading sound files")
    try:
        samples, _ = soundfile.read(os.fsencode(path), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioError(f"{path}: expected {expected} samples as its header says, got an error: {error}") from error
    if len(samples) < expected:
        raise AudioError(f"{path}: expected {expected} samples as its header says, got {len(samples)}")
    others = np.count_nonzero(~np.isfinite(samples))
    if others:
        raise AudioError(f"{path}: expected finite samples, got {others} others")
    peak = float(np.abs(samples).max())
    if peak > LOUDEST:
        raise AudioError(
            f"{path}: expected samples between -1 and 1, got up to {peak:.4g}; scale them by 1 / {peak:.4g}"
        )
    return resample(samples.mean(axis=1), rate, sample_rate)


def resample(waveform: np.ndarray, rate: int, sample_rate: int) -> np.ndarray:
    """The waveform at another rate, by libsoxr in high quality."""
    if rate == sample_rate:
        return waveform
    soxr = import_extra("soxr", "speech", "another sample_rate")
    return soxr.resample(waveform, rate, sample_rate).astype(np.float32)


def write_wav(path: Path, waveform: np.ndarray, sample_rate: int) -> None:
    """Writes a waveform as 16-bit WAV, atomically."""
    with replacing(path) as temporary, wave.open(str(temporary), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(waveform, -1, 1) * 32767).astype("<i2").tobytes())
