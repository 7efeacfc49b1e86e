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
    """A sine of half of full scale."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def test_levels_are_decoded_symmetrically_and_encoded_again() -> None:
    levels = np.arange(256, dtype=np.uint8)
    assert audio.decode(levels).dtype == np.float32
    np.testing.assert_array_equal(audio.encode(audio.decode(levels)), levels)
    np.testing.assert_allclose(audio.decode(levels), -audio.decode(levels[::-1]), atol=1e-7)


def mu_law(samples: np.ndarray) -> np.ndarray:
    """The literal formula, in units of levels: from 0 to 255."""
    literal = np.array([np.sign(x) * np.log(1 + 255 * abs(x)) / np.log(256) for x in samples.astype(float)])
    return (literal + 1) / 2 * 255


def test_tokens_are_the_nearest_levels_of_the_formula() -> None:
    samples = np.linspace(-1, 1, 10_001)
    np.testing.assert_array_equal(audio.encode(samples), np.floor(mu_law(samples) + 0.5))
    np.testing.assert_array_equal(audio.encode(np.array([-3.0, 0.0, 3.0])), [0, 128, 255])


def test_tokens_err_by_half_a_level_at_most() -> None:
    """In units of levels; so the error of a sample is at most the width of its level."""
    samples = np.linspace(-1, 1, 10_001)
    tokens = audio.encode(samples).astype(int)
    decoded = audio.decode(tokens)
    assert np.abs(mu_law(decoded) - mu_law(samples)).max() <= 0.5 + 1e-4  # decoded samples are float32

    bounds = np.concatenate([[-1.0], audio.edges(), [1.0]])
    widths = np.diff(bounds)
    assert (np.abs(decoded - samples) <= widths[tokens] + 1e-7).all()


def test_edges_are_between_two_levels() -> None:
    edges = audio.edges()
    np.testing.assert_array_equal(audio.encode(edges - 1e-9), np.arange(255))
    np.testing.assert_array_equal(audio.encode(edges + 1e-9), np.arange(255) + 1)


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
    inside = slice(400, -400)  # a resampler needs neighbors
    np.testing.assert_allclose(read[inside], tone()[inside], atol=0.02)


def test_several_channels_become_their_mean(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "mean.wav", np.stack([tone(), -tone()], axis=1), RATE, "FLOAT")
    np.testing.assert_allclose(audio.read(tmp_path / "mean.wav", RATE), 0, atol=1e-7)


@pytest.mark.parametrize("content", [b"", b"RIFF and nothing that makes sense"])
def test_files_that_are_not_sound_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.wav"
    path.write_bytes(content)
    with pytest.raises(audio.AudioError, match=r"bad\.wav: expected a WAV or FLAC file"):
        audio.read(path, RATE)


@pytest.mark.parametrize("container", ["AIFF", "W64"])
def test_files_of_other_kinds_are_named(container: str, tmp_path: Path) -> None:
    """Whether they are whole could not be told, because only headers of WAV files are checked."""
    path = tmp_path / "bad.wav"
    soundfile.write(path, tone(), RATE, "PCM_16", format=container)
    with pytest.raises(audio.AudioError, match=rf"bad\.wav: expected a WAV or FLAC file, got {container}"):
        audio.read(path, RATE)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.zeros(0), "expected sound, got a file of 0 samples"),
        (np.array([0.1, np.nan, np.inf]), "expected finite samples, got 2 others"),
    ],
)
def test_files_without_finite_sound_are_named(samples: np.ndarray, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.wav"
    soundfile.write(path, samples, RATE, "FLOAT")
    with pytest.raises(audio.AudioError, match=rf"bad\.wav: {expected}"):
        audio.read(path, RATE)


def test_half_of_a_flac_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, RATE), RATE)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(audio.AudioError, match=r"torn\.flac: expected 16000 samples as its header says, got "):
        audio.read(path, RATE)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_beyond_the_last_level_are_refused_not_clipped(tmp_path: Path, subtype: str) -> None:
    """A peak in one of two channels may be 2 % beyond full scale."""
    path = tmp_path / "loud.wav"
    samples = np.zeros((100, 2))
    for peak, level in ((1.0, 255), (-1.0, 0), (1.02, 255), (-1.02, 0)):
        samples[50, 1] = peak
        soundfile.write(path, samples, RATE, subtype)
        np.testing.assert_allclose(audio.read(path, RATE)[50], peak / 2, atol=1e-7)
        assert audio.encode(samples)[50, 1] == level
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
        expected, found = re.findall(r" (\d+)", str(error.value))
        assert int(expected) - int(found) == cut


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    audio.write_wav(path, tone(), RATE)
    with wave.open(str(path)) as file:
        assert file.getframerate() == RATE
        assert file.getnchannels() == 1
        assert file.getnframes() == RATE // 2
    np.testing.assert_allclose(audio.read(path, RATE), tone(), atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["out.wav"]


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFF000])
def test_a_stream_that_was_written_without_its_length_is_read(length: int, tmp_path: Path) -> None:
    """Programs that write to a pipe put such a length into the header."""
    path = tmp_path / "out.wav"
    audio.write_wav(path, tone(), RATE)
    header, samples = path.read_bytes().split(b"data")
    path.write_bytes(header + b"data" + length.to_bytes(4, "little") + samples[4:])
    assert len(audio.read(path, RATE)) == RATE // 2


def test_a_spectrogram_shows_a_tone_where_it_is() -> None:
    power = spectrogram(tone(frequency=2000), RATE)
    middle = power[:, power.shape[1] // 2]
    width_of_bin = RATE / 2 / (len(power) - 1)
    assert abs(middle.argmax() * width_of_bin - 2000) < 50
    assert power.max() == pytest.approx(-6, abs=0.5)  # half of full scale


def test_spectrograms_are_written_one_below_the_other(tmp_path: Path) -> None:
    clips = {"tone": tone(), "silence": np.zeros(RATE // 4)}
    assert write_spectrograms(tmp_path / "s.png", clips, RATE, mark=0.1).height == 2 * (200 + 18)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
