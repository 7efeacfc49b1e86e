"""Files of every kind to waveforms, waveforms to tokens and back."""

import re
import wave
from pathlib import Path

import numpy as np
import pytest

from sequences.speech import audio
from sequences.speech.spectrogram import spectrogram, write_spectrograms

soundfile = pytest.importorskip("soundfile")

RATE = 16_000


def tone(seconds: float = 0.5, rate: int = RATE, frequency: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def test_mu_law_is_the_formula_and_errs_by_half_a_step_at_most() -> None:
    levels = np.arange(256, dtype=np.uint8)
    assert audio.decode(levels).dtype == np.float32
    np.testing.assert_array_equal(audio.encode(audio.decode(levels)), levels)
    np.testing.assert_allclose(audio.decode(levels), -audio.decode(levels[::-1]), atol=1e-7)
    samples = np.linspace(-1, 1, 10_001)
    literal = [np.sign(x) * np.log(1 + 255 * abs(x)) / np.log(256) for x in samples]
    np.testing.assert_array_equal(audio.encode(samples), np.floor((np.array(literal) + 1) / 2 * 255 + 0.5))
    bounds = np.concatenate([[-1.0], audio.edges(), [1.0]])
    tokens = audio.encode(samples).astype(int)
    assert (np.abs(audio.decode(tokens) - samples) <= np.diff(bounds)[tokens] + 1e-7).all()
    np.testing.assert_array_equal(audio.encode(np.array([-3.0, 0.0, 3.0])), [0, 128, 255])
    for side in (0, 1):
        np.testing.assert_array_equal(audio.encode(audio.edges() + (2 * side - 1) * 1e-9), np.arange(255) + side)


@pytest.mark.parametrize(
    ("name", "subtype", "rate", "channels"),
    [
        ("stereo.wav", "PCM_16", RATE, 2),
        ("eight-bit.wav", "PCM_U8", 8_000, 1),
        ("wide.wav", "FLOAT", 22_050, 1),
        ("studio.flac", "PCM_24", 96_000, 2),
    ],
)
def test_files_of_every_width_rate_and_number_of_channels(
    tmp_path: Path, name: str, subtype: str, rate: int, channels: int
) -> None:
    samples = tone(rate=rate)
    soundfile.write(tmp_path / name, np.stack([samples] * channels, axis=1), rate, subtype)
    assert audio.info(tmp_path / name) == (rate, len(samples))
    read = audio.read(tmp_path / name, RATE)
    assert read.dtype == np.float32
    assert len(read) == RATE // 2
    inside = slice(400, -400)  # a resampler needs neighbours
    np.testing.assert_allclose(read[inside], tone()[inside], atol=0.02)
    soundfile.write(tmp_path / "mean.wav", np.stack([tone(), -tone()], axis=1), RATE, "FLOAT")
    np.testing.assert_allclose(audio.read(tmp_path / "mean.wav", RATE), 0, atol=1e-7)


def test_files_that_are_not_sound_are_named(tmp_path: Path) -> None:
    path, flac = tmp_path / "bad.wav", tmp_path / "torn.flac"
    soundfile.write(flac, np.random.default_rng(0).uniform(-0.5, 0.5, RATE), RATE)
    half, wrong = flac.read_bytes()[: flac.stat().st_size // 2], np.array([0.1, np.nan, np.inf])

    def container(name: str) -> None:
        soundfile.write(path, tone(), RATE, "PCM_16", format=name)

    for make, place, expected in (
        (lambda: path.write_bytes(b""), path, "expected a WAV or FLAC file"),
        (lambda: path.write_bytes(b"RIFF and nothing that makes sense"), path, "expected a WAV or FLAC file"),
        (lambda: container("AIFF"), path, "expected a WAV or FLAC file, got AIFF"),  # their headers are not checked
        (lambda: container("W64"), path, "expected a WAV or FLAC file, got W64"),
        (lambda: soundfile.write(path, np.zeros(0), RATE), path, "expected sound, got a file of 0 samples"),
        (lambda: soundfile.write(path, wrong, RATE, "FLOAT"), path, "expected finite samples, got 2 others"),
        (lambda: flac.write_bytes(half), flac, "expected 16000 samples as its header says, got "),
    ):
        make()
        with pytest.raises(audio.AudioError, match=f"{place.name}: {expected}"):
            audio.read(place, RATE)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_beyond_the_last_level_are_refused_not_clipped(tmp_path: Path, subtype: str) -> None:
    path, samples = tmp_path / "loud.wav", np.zeros((100, 2))
    for peak in (1.0, -1.0, 1.02, -1.02):
        samples[50, 1] = peak
        soundfile.write(path, samples, RATE, subtype)
        np.testing.assert_allclose(audio.read(path, RATE)[50], peak / 2, atol=1e-7)
        assert audio.encode(samples)[50, 1] == (255 if peak > 0 else 0)
    for peak, shown in ((1.03, "1.03"), (-1.5, "1.5"), (32767.0, r"3.277e\+04")):  # the last as from a file of 16 bits
        samples[50, 1] = peak
        soundfile.write(path, samples, RATE, subtype)
        with pytest.raises(audio.AudioError, match=rf"loud.wav: expected samples between -1 and 1, got up to {shown};"):
            audio.read(path, RATE)


@pytest.mark.parametrize(
    ("container", "subtype", "endian"),
    [
        ("WAV", "PCM_16", "LITTLE"),
        ("WAV", "PCM_16", "BIG"),
        ("WAV", "FLOAT", "LITTLE"),
        ("WAV", "ULAW", "LITTLE"),
        ("WAVEX", "PCM_24", "LITTLE"),
        ("RF64", "PCM_16", "FILE"),
    ],
)
def test_a_wav_file_shorter_than_its_header_says(tmp_path: Path, container: str, subtype: str, endian: str) -> None:
    path = tmp_path / "torn.wav"
    soundfile.write(path, tone(1.0), RATE, subtype, endian, container)
    assert audio.info(path) == (RATE, RATE)
    whole = path.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 200):
        path.write_bytes(whole[:-cut])
        with pytest.raises(audio.AudioError, match=r"torn.wav: expected \d+ bytes of samples .*, got \d+$") as error:
            audio.info(path)
        promised, found = map(int, re.findall(r" (\d+)", str(error.value)))
        assert promised - found == cut


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    audio.write_wav(path, tone(), RATE)
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (RATE, 1, RATE // 2)
    np.testing.assert_allclose(audio.read(path, RATE), tone(), atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["out.wav"]
    header, samples = path.read_bytes().split(b"data")
    for length in (0xFFFFFFFF, 0x7FFFF000):  # of a stream, which has no length
        path.write_bytes(header + b"data" + length.to_bytes(4, "little") + samples[4:])
        assert len(audio.read(path, RATE)) == RATE // 2


def test_a_spectrogram_shows_a_tone_where_it_is(tmp_path: Path) -> None:
    power = spectrogram(tone(frequency=2000), RATE)
    loudest = power[:, power.shape[1] // 2].argmax() * RATE / 2 / (len(power) - 1)
    assert abs(loudest - 2000) < 50
    assert power.max() == pytest.approx(-6, abs=0.5)  # half of full scale
    clips = {"tone": tone(), "silence": np.zeros(RATE // 4)}
    assert write_spectrograms(tmp_path / "s.png", clips, RATE, mark=0.1).height == 2 * (200 + 18)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
