"""Corpora of sound: folders of WAV and FLAC files, or synthetic voices, as memory-mapped tokens that are built once.

A corpus is split into training, validation and test by whole files or whole speakers.
"""

import functools
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from agent.core.fields import Checked, Range
from sequences.prepared import (
    Reader,
    build_corpus,
    digest_of,
    divide,
    identity_of,
    leave_out,
    named_files,
    open_splits,
    write_corpus,
)
from sequences.speech import audio, synthetic

SYNTHETIC = "synthetic"
"""The corpus that needs no files."""
SPLITS = ("train", "validation", "test")
_FORMAT = 4
_VOICES = 12
_UTTERANCES = 10
_Share = Annotated[float, Range(0, 0.5, above=True, below=True)]


@dataclass(frozen=True)
class CorpusConfig(Checked):
    """The sound and how it is split. Impossible values raise a ValueError that names the field."""

    path: str = SYNTHETIC
    """A folder with WAV or FLAC files at any depth, or "synthetic": generated voices, which need no files."""
    sample_rate: Annotated[int, Range(1000, 384_000)] | None = None
    """Samples per second to resample to; None for the rate of the files, which must then be the same."""
    split_by: Literal["file", "speaker"] = "file"
    """What is in one split as a whole: a file, or all files of a speaker."""
    speaker_pattern: str = "[^-_]+"
    """Regular expression; its first match in a file's name is the speaker. The default matches up to the first - or _,
    as in LibriTTS, LibriSpeech and VCTK."""
    include: str = "*"
    """Pattern of the names of files to use, such as *_mic1.flac. Hidden files are never used."""
    validation_share: _Share = 0.05
    """Share of the samples for the validation split; at least one file or speaker."""
    test_share: _Share = 0.05
    """Share of the samples for the test split; at least one file or speaker."""
    remove_offset: bool = True
    """Subtract each file's mean. A constant offset is not heard, but moves all samples to levels that may be rare in
    training; one file of LibriSpeech has an offset of a quarter of full scale."""
    skip_unreadable: bool = False
    """Leave out damaged and empty files with a warning, instead of an error at the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = PurePosixPath(self.include).parts
        is_inside = bool(parts) and not self.include.startswith("/") and ".." not in parts
        # `**` stands for any folders. Beside other letters it is an error to `glob`.
        is_misused = any("**" in part and part != "**" for part in parts)
        if not is_inside or is_misused:
            expected = "a pattern of names below the folder, such as *_mic1.flac"
            raise ValueError(f"include: expected {expected}, got {self.include!r}")
        try:
            re.compile(self.speaker_pattern)
        except (re.error, OverflowError, RecursionError) as error:
            expected = "expected a regular expression"
            raise ValueError(f"speaker_pattern: {expected}, got {self.speaker_pattern!r}: {error}") from error


class Split(NamedTuple):
    """A part of a corpus.

    Attributes:
        tokens: [N] uint8, memory-mapped.
        files: names in order.
        starts: [files] where each of them starts.
    """

    tokens: np.ndarray
    files: list[str]
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Samples of each file, [files]."""
        return np.diff(self.starts, append=len(self.tokens))


class Corpus(NamedTuple):
    """A corpus that was built.

    Attributes:
        name: for people.
        sample_rate: in Hz.
        splits: by name, see `SPLITS`.
        digest: SHA-256 of all tokens.
    """

    name: str
    sample_rate: int
    splits: dict[str, Split]
    digest: str


class _Source(NamedTuple):
    """A file or an utterance: its name in the corpus, speaker, approximate length, and waveform at a given rate."""

    name: str
    speaker: str
    seconds: float
    waveform: Callable[[int], np.ndarray]


def prepare(config: CorpusConfig, cache: Path, show: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Builds a corpus unless it exists, and returns its folder, for `open_built`.

    Args:
        cache: folder of built corpora. Their names depend on the files, so a corpus that has changed is built anew.
        show: is called with the number of files done, and of all.

    Raises:
        ValueError, FileNotFoundError: if there are too few files, or (`audio.AudioError`) one cannot be used.
        ImportError: if the files need the extra `speech`.
    """
    if config.path == SYNTHETIC:
        name = "synthetic voices"
        sources, rate, identity = _synthetic(config)
    else:
        name = Path(config.path).name
        sources, rate, identity = _files(config)
    identity |= {"format": _FORMAT, "config": asdict(config)}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]
    target = cache / f"{Path(config.path).name}-{rate}-{key}"

    def read(source: _Source) -> list[np.ndarray]:
        waveform = source.waveform(rate)
        if config.remove_offset:
            waveform = waveform - waveform.mean()
        # Without its offset, or at another rate, a loud sound may be beyond the last level.
        return [audio.encode(audio.quieter(waveform))]

    def divided(left_out: Collection[str]) -> dict[str, dict[str, Reader]]:
        """The files of each split."""
        usable = [source for source in sources if source.name not in left_out]
        parts: dict[str, dict[str, Reader]] = {}
        for split, part in _divide(usable, config).items():
            parts[split] = {source.name: functools.partial(read, source) for source in part}
        return parts

    def build(folder: Path) -> None:
        described = {"name": name, "sample_rate": rate}
        write_corpus(folder, described, divided, audio.LEVELS, config.skip_unreadable, show)

    build_corpus(target, build)
    return target


def _divide(sources: list[_Source], config: CorpusConfig) -> dict[str, list[_Source]]:
    """Sources of each split, in the order of their names' digests, which is the same everywhere."""
    units: dict[str, list[_Source]] = defaultdict(list)
    for source in sources:
        name = source.speaker if config.split_by == "speaker" else source.name
        units[name].append(source)
    if len(units) < len(SPLITS):
        expected = f"at least {len(SPLITS)} {config.split_by}s in {config.path} for training, validation and test"
        raise ValueError(f"corpus: expected {expected}, got {len(units)}: {', '.join(units) or 'none'}")

    seconds = {name: sum(source.seconds for source in unit) for name, unit in units.items()}
    shares = {"validation": config.validation_share, "test": config.test_share}
    names = divide(seconds, shares)
    parts: dict[str, list[_Source]] = {}
    for split in SPLITS:
        parts[split] = []
        for name in names[split]:
            parts[split] += units[name]
    parts["train"].sort(key=lambda source: digest_of(source.name))
    return parts


def _synthetic(config: CorpusConfig) -> tuple[list[_Source], int, dict[str, Any]]:
    sources = []
    for voice in range(_VOICES):
        speaker = f"voice{voice:02d}"
        for index in range(_UTTERANCES):
            waveform = functools.partial(_utterance, voice, index)
            sources.append(_Source(f"{speaker}-{index:02d}", speaker, 3.0, waveform))
    return sources, config.sample_rate or synthetic.SAMPLE_RATE, {"synthetic": 1}


def _utterance(voice: int, index: int, rate: int) -> np.ndarray:
    return audio.resample(synthetic.utterance(voice, index), synthetic.SAMPLE_RATE, rate)


def _files(config: CorpusConfig) -> tuple[list[_Source], int, dict[str, Any]]:
    """The folder's files by name, the rate of the corpus, and an identity of the files for the cache."""
    expected = f"a folder of WAV or FLAC files, or {SYNTHETIC!r}"
    files = named_files(config.path, config.include, audio.SUFFIXES, expected)
    sources = []
    rates: dict[int, str] = {}
    for name, path in files.items():
        try:
            rate, samples = audio.info(path)
        except audio.AudioError as error:
            leave_out(error, config.skip_unreadable)
            continue
        found = re.search(config.speaker_pattern, PurePosixPath(name).stem)
        speaker = found[0] if found else ""
        if config.split_by == "speaker" and not speaker:
            raise ValueError(f"speaker_pattern: {config.speaker_pattern!r} matches nothing in {path.name}")
        rates.setdefault(rate, name)  # of each rate one file is named in the error below
        sources.append(_Source(name, speaker, samples / rate, functools.partial(audio.read, path)))
    if not sources:
        raise ValueError(f"corpus: expected WAV or FLAC files named {config.include} in {config.path}, got none")
    if config.sample_rate is None and len(rates) > 1:
        listing = ", ".join(f"{rate} in {name}" for rate, name in rates.items())
        raise ValueError(f"sample_rate: expected a number, for rates differ: {listing}")
    rate_of_corpus = config.sample_rate
    if rate_of_corpus is None:
        (rate_of_corpus,) = rates
    used = {source.name: files[source.name] for source in sources}
    return sources, rate_of_corpus, identity_of(config.path, used)


def open_built(folder: Path) -> Corpus:
    """Opens a corpus that `prepare` built. Raises a ValueError if it is damaged."""
    described, arrays = open_splits(folder)
    splits = {}
    for split, (tokens, starts) in arrays.items():
        splits[split] = Split(tokens, described["splits"][split]["files"], starts)
    return Corpus(described["name"], described["sample_rate"], splits, described["digest"])


def thin(split: Split, samples: int, pieces: int) -> Split:
    """At most so many samples of a split, in equal pieces spread evenly over it."""
    total = len(split.tokens)
    if samples >= total:
        return split
    size = samples // pieces
    begins = np.arange(pieces) * total // pieces
    files = []
    starts = []
    for number, begin in enumerate(begins):
        # The files in the piece, the first and the last of which may be cut; places are those in the part.
        starts_up_to_first, starts_up_to_last = np.searchsorted(split.starts, [begin, begin + size - 1], "right")
        held = slice(starts_up_to_first - 1, starts_up_to_last)
        files += split.files[held]
        places_in_piece = np.maximum(split.starts[held] - begin, 0)
        starts.append(number * size + places_in_piece)
    tokens = np.concatenate([split.tokens[begin : begin + size] for begin in begins])
    return Split(tokens, files, np.concatenate(starts))


def excerpt(split: Split, samples: int, number: int = 0) -> np.ndarray:
    """Tokens [samples] from inside one file of the split, the `number`-th that is long enough.

    Raises a ValueError, which names the longest, if no file is that long.
    """
    lengths = split.lengths
    long_enough = np.flatnonzero(lengths >= samples)
    if not len(long_enough):
        raise ValueError(f"samples: expected at most {lengths.max()}, those of the longest file, got {samples}")
    index = int(long_enough[number % len(long_enough)])
    # A quarter of the samples that are left over are before the excerpt.
    spare = int(lengths[index]) - samples
    begin = int(split.starts[index]) + math.ceil(spare / 4)
    return np.asarray(split.tokens[begin : begin + samples])
