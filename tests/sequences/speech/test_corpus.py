"""Corpora: what is in which split, that they are built once and whole, and what is wrong with files."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from sequences.speech import audio, synthetic
from sequences.speech.corpus import SPLITS, Corpus, CorpusConfig, excerpt, open_built
from sequences.speech.corpus import prepare as build

soundfile = pytest.importorskip("soundfile")

RATE = 8_000


def sound(seed: int, samples: int) -> np.ndarray:
    """Noise."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, samples)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six speakers with four files each, WAV and FLAC, in folders, and a file that is not sound."""
    root = tmp_path / "voices"
    for speaker in range(6):
        (root / f"s{speaker}").mkdir(parents=True)
        for number in range(4):
            suffix = "flac" if number % 2 else "WAV"
            path = root / f"s{speaker}" / f"s{speaker}-{number}.{suffix}"
            soundfile.write(path, sound(10 * speaker + number, 1000 + 100 * number), RATE)
    (root / "README.txt").write_text("not sound")
    return root


def prepare(*arguments: Any) -> Corpus:
    """A corpus that is built if it is not in the cache."""
    return open_built(build(*arguments))


def config_of(folder: Path, **fields: Any) -> CorpusConfig:
    """A corpus of files, of which 70 % are for training unless `fields` say otherwise."""
    return CorpusConfig(str(folder), **{"validation_share": 0.15, "test_share": 0.15, **fields})


def count(corpus: Corpus) -> int:
    """Files of all splits."""
    return sum(len(split.files) for split in corpus.splits.values())


def test_tokens_are_those_of_the_files(folder: Path, tmp_path: Path) -> None:
    corpus = prepare(config_of(folder, remove_offset=False), tmp_path / "cache")
    assert corpus.sample_rate == RATE
    for split in corpus.splits.values():
        assert isinstance(split.tokens, np.memmap)
        by_file = np.split(split.tokens, split.starts[1:])
        for name, tokens in zip(split.files, by_file, strict=True):
            np.testing.assert_array_equal(tokens, audio.encode(audio.read(folder / name, RATE)))


def test_a_constant_offset_makes_no_difference(folder: Path, tmp_path: Path) -> None:
    before = prepare(config_of(folder), tmp_path / "cache")
    for path in folder.rglob("*.flac"):
        waveform, rate = soundfile.read(path)
        soundfile.write(path, waveform - 0.25, rate)
    after = prepare(config_of(folder), tmp_path / "cache")
    for split in SPLITS:
        tokens_before = before.splits[split].tokens.astype(int)
        tokens_after = after.splits[split].tokens.astype(int)
        assert np.abs(tokens_before - tokens_after).max() <= 1  # files are rounded to 16 bits

    # It is there if it is not removed.
    moved = prepare(config_of(folder, remove_offset=False), tmp_path / "cache")
    assert any(audio.decode(moved.splits[split].tokens).mean() < -0.05 for split in SPLITS)


def test_nothing_is_clipped_without_its_offset_or_at_another_rate(folder: Path, tmp_path: Path) -> None:
    """A wave of 1.2 around 0.28 is within -1 and 1; steps of a square overshoot where a rate has fewer frequencies."""
    time = np.arange(4000) / RATE
    lopsided = np.where(np.sin(40 * time) > 0.9, -0.95, 0.3)
    square = np.sign(np.sin(2 * np.pi * 1_500 * time))
    for name, waveform in {"lopsided": lopsided, "square": square}.items():
        soundfile.write(folder / f"{name}.wav", waveform, RATE, "PCM_16")
    for rate in (RATE, 5_000):
        corpus = prepare(config_of(folder, sample_rate=rate), tmp_path / "cache")
        for name in ("lopsided", "square"):
            (split,) = (split for split in corpus.splits.values() if f"{name}.wav" in split.files)
            number = split.files.index(f"{name}.wav")
            found = audio.decode(np.split(split.tokens, split.starts[1:])[number])
            expected = audio.read(folder / f"{name}.wav", rate)
            expected = expected - expected.mean()
            expected /= max(1, np.abs(expected).max())
            assert np.abs(found - expected).max() < 0.03, "a level near 1 is 0.02 wide"


@pytest.mark.parametrize("split_by", ["file", "speaker"])
def test_no_file_and_no_speaker_is_on_both_sides(folder: Path, tmp_path: Path, split_by: str) -> None:
    corpus = prepare(config_of(folder, split_by=split_by), tmp_path / "cache")
    by_split = [set(corpus.splits[split].files) for split in SPLITS]
    assert all(by_split)
    all_files = set.union(*by_split)
    assert sum(len(files) for files in by_split) == len(all_files) == 24
    if split_by == "speaker":
        speakers = [{name.split("/")[0] for name in files} for files in by_split]
        assert sum(len(some) for some in speakers) == 6

    # Held-out splits have at least their share of 24 files, which have 1150 samples on average.
    for split in ("validation", "test"):
        assert len(corpus.splits[split].tokens) >= 0.15 * 24 * 1150


def test_each_split_has_its_own_share(folder: Path, tmp_path: Path) -> None:
    corpus = prepare(config_of(folder, validation_share=0.4, test_share=0.1), tmp_path / "cache")
    total = sum(len(split.tokens) for split in corpus.splits.values())
    one_file = 1300 / total
    for split, share in (("validation", 0.4), ("test", 0.1)):
        assert share <= len(corpus.splits[split].tokens) / total < share + one_file


def test_a_speaker_may_stand_anywhere_in_a_name(folder: Path, tmp_path: Path) -> None:
    """As in take_s5.wav: the first match of the pattern, behind other letters."""
    for path in folder.glob("*/*"):
        path.rename(path.with_name(f"take_{path.name}"))
    config = config_of(folder, split_by="speaker", speaker_pattern=r"s\d")
    by_split = [split.files for split in prepare(config, tmp_path / "cache").splits.values()]
    speakers = [{name.split("/")[0] for name in files} for files in by_split]
    assert sum(len(some) for some in speakers) == 6, "none is in two splits"


def test_equal_files_count_once(folder: Path, tmp_path: Path) -> None:
    for speaker in range(6):
        path = folder / f"s{speaker}" / f"s{speaker}-0.WAV"
        (folder / f"copy-{speaker}.WAV").write_bytes(path.read_bytes())
    assert count(prepare(config_of(folder), tmp_path / "cache")) == 24


def test_three_files_can_be_split_and_two_cannot(tmp_path: Path) -> None:
    three = tmp_path / "three"
    three.mkdir()
    for number in range(3):
        soundfile.write(three / f"{number}.wav", sound(number, 500), RATE)
    corpus = prepare(config_of(three, validation_share=0.4, test_share=0.4), tmp_path / "cache")
    assert [len(corpus.splits[split].files) for split in SPLITS] == [1, 1, 1]
    (three / "0.wav").unlink()
    with pytest.raises(ValueError, match=r"corpus: expected at least 3 files in .*, got 2: 1.wav, 2.wav"):
        prepare(config_of(three), tmp_path / "cache")


def test_an_interrupted_build_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """Ctrl-C comes after nine files."""
    cache = tmp_path / "cache"
    show = Mock(side_effect=[None] * 9 + [KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        prepare(config_of(folder), cache, show)
    assert not list(cache.iterdir())

    show.side_effect = None
    prepare(config_of(folder), cache, show)
    show.assert_called_with(24, 24)


def test_a_corpus_is_built_once_and_anew_if_files_change(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare(config_of(folder), cache)
    show = Mock()
    assert prepare(config_of(folder), cache, show).digest == first.digest
    show.assert_not_called()

    soundfile.write(folder / "s0" / "s0-0.WAV", sound(99, 1234), RATE)
    assert prepare(config_of(folder), cache).digest != first.digest
    assert prepare(config_of(folder, sample_rate=4000), cache).sample_rate == 4000


def test_a_damaged_corpus_is_named(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    prepare(config_of(folder), cache)
    (path,) = cache.glob("*/train.tokens")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"is damaged; delete it: train.tokens"):
        prepare(config_of(folder), cache)


def test_bad_files_are_named_or_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "s1" / "s1-9.wav").write_bytes(b"not sound at all")
    with pytest.raises(audio.AudioError, match=r"s1-9.wav: expected a WAV or FLAC file.*skip_unreadable"):
        prepare(config_of(folder), tmp_path / "cache")

    # A torn file, whose name sorts before the other.
    path = folder / "s1" / "s1-0.WAV"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(audio.AudioError, match=r"s1-0.WAV: expected 2000 bytes of samples .*, got 456"):
        prepare(config_of(folder), tmp_path / "cache")
    assert not (tmp_path / "cache").exists(), "refused before anything is built"

    with pytest.warns(UserWarning, match=r"left out .*s1-"):
        corpus = prepare(config_of(folder, skip_unreadable=True), tmp_path / "cache")
    assert count(corpus) == 23


def test_speakers_are_divided_among_those_that_can_be_read(folder: Path, tmp_path: Path) -> None:
    """Whichever of six it is whose files are damaged after their headers, which are read first."""
    for speaker in range(6):
        root = tmp_path / f"without-{speaker}"
        shutil.copytree(folder, root)
        for path in (root / f"s{speaker}").iterdir():
            soundfile.write(path, np.full(1500, np.nan), RATE, "FLOAT", format="WAV")
        config = config_of(root, split_by="speaker", skip_unreadable=True)
        with pytest.warns(UserWarning, match=rf"left out .*s{speaker}-.*: expected finite samples") as said:
            assert count(prepare(config, tmp_path / "cache")) == 20
        assert len(said) == 4


def test_hidden_files_are_not_used(folder: Path, tmp_path: Path) -> None:
    """Neither what macOS writes beside each file, which is no sound, nor sound that was thrown away."""
    expected = prepare(config_of(folder), tmp_path / "cache").digest
    for name in ("s1/._s1-0.WAV", "__MACOSX/s1/._s1-0.WAV", "__MACOSX/s1-0.wav"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"Mac OS X")
    for number, name in enumerate((".trash.wav", ".Trash/s1/s1-9.wav", "s1/.trash.flac")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, sound(100 + number, 1000), RATE)
    for fields in ({}, {"include": "s*/*"}, {"include": "**/*.*"}):
        corpus = prepare(config_of(folder, **fields), tmp_path / "cache")
        assert count(corpus) == 24
        assert corpus.digest == expected


def test_sound_too_loud_is_named_or_left_out(folder: Path, tmp_path: Path) -> None:
    soundfile.write(folder / "loud.wav", 3 * sound(0, 1000), RATE, "FLOAT")
    expected = r"loud.wav: expected samples between -1 and 1, got up to 1.49.*skip_unr"
    with pytest.raises(audio.AudioError, match=expected):
        prepare(config_of(folder), tmp_path / "cache")
    with pytest.warns(UserWarning, match=r"left out .*loud.wav"):
        assert count(prepare(config_of(folder, skip_unreadable=True), tmp_path / "cache")) == 24


def test_folders_named_after_splits_are_divided_with_a_warning(folder: Path, tmp_path: Path) -> None:
    for old, new in (("s0", "train-clean-100"), ("s1", "dev-clean"), ("s2", "test-clean")):
        (folder / old).rename(folder / new)
    with pytest.warns(UserWarning, match=r"train-clean-100 and dev-clean and test-clean are no splits here, all files"):
        prepare(config_of(folder), tmp_path / "cache")
    assert count(prepare(config_of(folder, include="train*/*"), tmp_path / "cache")) == 4


def test_patterns_stay_below_the_folder(folder: Path, tmp_path: Path) -> None:
    for pattern in ("", ".", "/etc/*", "../*", "s*/../*", "a**/b"):
        with pytest.raises(ValueError, match=r"include: expected a pattern of names below the folder, such as \*_mic1"):
            CorpusConfig(include=pattern)
    assert count(prepare(config_of(folder, include="s[0-2]/**/*.flac"), tmp_path / "cache")) == 6


def test_names_need_not_be_utf8(folder: Path, tmp_path: Path) -> None:
    (folder / "s1" / "s1-0.WAV").rename(folder / "s1" / os.fsdecode(b"\xff.WAV"))
    (folder / "s1" / os.fsdecode(b"\xfe.WAV")).write_bytes(b"no sound")
    with pytest.warns(UserWarning, match=r"left out .*\\udcfe.WAV"):
        corpus = prepare(config_of(folder, skip_unreadable=True, split_by="speaker"), tmp_path / "cache")
    assert any(r"s1/\xff.WAV" in split.files for split in corpus.splits.values())


def test_what_cannot_be_a_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    os.mkfifo(tmp_path / "pipe")
    for path in ("/nowhere", "/dev/null", str(tmp_path / "pipe")):
        expected = f"corpus: expected a folder .* or 'synthetic'; there is no folder {path}"
        with pytest.raises(FileNotFoundError, match=expected):
            prepare(CorpusConfig(path), cache)

    # With one file of another sample rate, in no speaker's folder.
    soundfile.write(folder / "fast.wav", sound(0, 100), 2 * RATE)
    for fields, expected in (
        ({"include": "*_mic1.flac"}, r"expected WAV or FLAC files named \*_mic1.flac in .*, got none"),
        ({}, r"sample_rate: expected a number, for rates differ: 16000 in fast.wav, 8000"),
        ({"split_by": "speaker", "speaker_pattern": "z+"}, r"speaker_pattern: 'z\+' matches nothing in fast.wav"),
        ({"split_by": "speaker", "speaker_pattern": "z*"}, r"speaker_pattern: 'z\*' matches nothing in fast.wav"),
        ({"include": "s*", "split_by": "speaker", "speaker_pattern": "s"}, r"at least 3 speakers in .*, got 1: s"),
        ({"speaker_pattern": "a{99999999999}"}, r"speaker_pattern: expected a regular expression, got 'a{9*}'"),
    ):
        with pytest.raises(ValueError, match=expected):
            prepare(config_of(folder, **fields), cache)
    assert prepare(config_of(folder, sample_rate=RATE), cache).sample_rate == RATE


def test_an_excerpt_lies_inside_one_file(folder: Path, tmp_path: Path) -> None:
    split = prepare(config_of(folder), tmp_path / "cache").splits["train"]
    length = 1150
    possible = set()
    for file in np.split(split.tokens, split.starts[1:]):
        for start in range(len(file) - length + 1):
            possible.add(file[start : start + length].tobytes())
    for number in range(8):
        assert excerpt(split, length, number).tobytes() in possible
    with pytest.raises(ValueError, match="samples: expected at most 1300, those of the longest file, got 1301"):
        excerpt(split, 1301)


def test_synthetic_voices_are_reproducible_and_differ(tmp_path: Path) -> None:
    one = synthetic.utterance(3, 5)
    np.testing.assert_array_equal(one, synthetic.utterance(3, 5))
    assert 0.2 < np.abs(one).max() < 1
    assert not np.array_equal(one[:1000], synthetic.utterance(4, 5)[:1000])


def test_the_synthetic_corpus_has_twelve_voices(tmp_path: Path) -> None:
    """None of them is in two splits, and training has more than 100 seconds."""
    config = CorpusConfig(sample_rate=4000, split_by="speaker")
    corpus = prepare(config, tmp_path)
    assert corpus.name == "synthetic voices"
    assert len(corpus.splits["train"].tokens) > 100 * 4000
    voices = [{name.split("-")[0] for name in corpus.splits[split].files} for split in SPLITS]
    assert sum(len(some) for some in voices) == len(set.union(*voices)) == 12


def test_speakers_take_turns_in_training(folder: Path, tmp_path: Path) -> None:
    """Files are in the order of the digests of their names, also where speakers are divided as a whole."""
    files = prepare(config_of(folder, split_by="speaker"), tmp_path / "cache").splits["train"].files
    assert files == sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert files != sorted(files)
