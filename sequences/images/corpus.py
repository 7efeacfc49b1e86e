"""Corpora of images: folders of PNG and JPEG files, or views of the rooms level, as memory-mapped tokens.

They are built once. An image is the token `START`, then its bytes in raster order: red, green and blue of each pixel.
Files or folders, or episodes of the level, are in one split as a whole; of equal images only one is used.
"""

import functools
import hashlib
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from sequences.images.config import ROOMS, CorpusConfig
from sequences.prepared import (
    Reader,
    Unreadable,
    build_corpus,
    divide,
    identity_of,
    named_files,
    open_splits,
    write_corpus,
)
from sequences.splits import SPLITS

START = 256
"""The token before an image."""
SHARES = {"valid": 0.05, "test": 0.05}
SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_PIXELS = 2**26
"""Of a file; a small file can claim to be far larger."""
EPISODES = 120
FRAMES = 24
EVERY = 6
"""Views of the level: from so many episodes so many frames each, so many agent steps apart."""
_FORMAT = 1


class ImageError(Unreadable):
    """A file that cannot be used."""


class Split(NamedTuple):
    """tokens: [N] uint16, memory-mapped. starts: [images] the place of each `START`."""

    tokens: np.ndarray
    starts: np.ndarray

    def images(self, shape: tuple[int, ...]) -> np.ndarray:
        """The images [images, rows, columns, 3] uint8."""
        of_images = self.tokens.reshape(len(self.starts), -1)
        without_start = of_images[:, 1:].astype(np.uint8)
        return without_start.reshape(-1, *shape)

    def thin(self, images: int | None, pieces: int | None = None) -> "Split":
        """At most so many images, None for all: in so many pieces spread evenly over the split, None for single images.

        In a piece are images that follow each other."""
        total = len(self.starts)
        if images is None or images >= total:
            return self
        pieces = pieces or images
        in_piece = np.arange(images // pieces)
        begins = np.arange(pieces) * total // pieces
        numbers = (begins[:, None] + in_piece).ravel()
        chosen = self.tokens.reshape(total, -1)[numbers]
        return Split(chosen.ravel(), np.arange(len(numbers)) * chosen.shape[1])


def prepare(config: CorpusConfig, cache: Path, show: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Builds a corpus unless it exists, and returns its folder, for `open_built`.

    Args:
        cache: folder of built corpora. Their names depend on the files, so a corpus that has changed is built anew.
        show: is called with the number of files (episodes) done, and of all.

    Raises:
        ValueError, FileNotFoundError: if there are too few files, or (`ImageError`) one cannot be used.
    """
    if config.path == ROOMS:
        sources, identity = _episodes(config)
    else:
        sources, identity = _files(config)
    identity |= {"format": _FORMAT, "shape": config.shape}
    if config.split_by == "folder":
        identity["split_by"] = "folder"
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    name = Path(config.path).name
    target = cache / f"{name}-{config.height}x{config.width}-{key}"

    def divided(left_out: Collection[str]) -> dict[str, dict[str, Reader]]:
        """The sources of each split."""
        usable = [source for source in sources if source not in left_out]
        parts: dict[str, dict[str, Reader]] = {}
        for split, names in _divide(usable, config).items():
            parts[split] = {source: sources[source] for source in names}
        return parts

    def build(folder: Path) -> None:
        write_corpus(folder, {"name": name}, divided, START + 1, config.skip_unreadable, show, _encode)

    build_corpus(target, build)
    return target


def _divide(sources: Iterable[str], config: CorpusConfig) -> dict[str, list[str]]:
    """The names of the sources in each split, those of a unit one after the other.

    Raises a ValueError if there are too few units.
    """
    is_by_folder = config.split_by == "folder"
    units: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        unit = str(PurePosixPath(source).parent) if is_by_folder else source
        units[unit].append(source)
    if len(units) < len(SPLITS):
        files = "folders with images" if is_by_folder else "PNG or JPEG files"
        expected = f"at least {len(SPLITS)} {files} in {config.path} for training, validation and test"
        raise ValueError(f"corpus: expected {expected}, got {len(units)}")

    sizes = {unit: float(len(names)) for unit, names in units.items()}
    chosen = divide(sizes, SHARES)
    return {split: [name for unit in chosen[split] for name in units[unit]] for split in SPLITS}


def _encode(image: np.ndarray) -> np.ndarray:
    """The tokens of an image."""
    return np.append(np.uint16(START), image.ravel())


def open_built(folder: Path) -> tuple[str, dict[str, Split], str]:
    """Name, splits and SHA-256 of a corpus that `prepare` built. Raises a ValueError if it is damaged."""
    described, arrays = open_splits(folder)
    splits = {split: Split(tokens, starts) for split, (tokens, starts) in arrays.items()}
    return described["name"], splits, described["digest"]


def _files(config: CorpusConfig) -> tuple[dict[str, Reader], dict[str, Any]]:
    """The folder's files by name, and their identity for the cache."""
    files = named_files(config.path, "*", SUFFIXES, f"a folder of PNG or JPEG files, or {ROOMS!r}")
    sources: dict[str, Reader] = {}
    for name in sorted(files, key=_natural_order):
        sources[name] = functools.partial(_read_file, files[name], config.shape)
    return sources, identity_of(config.path, files) | {"skip": config.skip_unreadable}


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers by these: frame-9.png before frame-10.png."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _read_file(path: Path, shape: tuple[int, int, int]) -> list[np.ndarray]:
    return [read_image(path, shape)]


def read_image(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """A PNG or JPEG file, upright, on white, cut around its middle and resized: [rows, columns, 3] uint8.

    Raises an ImageError that names the file and what is wrong with it.
    """
    expected = f"{path}: expected a whole PNG or JPEG of 8 bits a channel"
    try:
        with warnings.catch_warnings(), Image.open(path, formats=("PNG", "JPEG")) as image:
            warnings.simplefilter("ignore")
            if image.width * image.height > MOST_PIXELS:
                raise ImageError(f"{expected} and at most {MOST_PIXELS:,} pixels, got {image.width} x {image.height}")
            if image.mode.startswith(("I", "F")):
                raise ImageError(f"{expected}, got mode {image.mode}")
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                white = Image.new("RGBA", upright.size, "white")
                upright = Image.alpha_composite(white, upright.convert("RGBA"))
            rows, columns, _ = shape
            return np.asarray(ImageOps.fit(upright.convert("RGB"), (columns, rows)))
    except ImageError:
        raise
    except Exception as error:  # pillow raises many kinds for forged files
        raise ImageError(f"{expected}, got: {str(error).replace(str(path), path.name)}") from error


def _episodes(config: CorpusConfig) -> tuple[dict[str, Reader], dict[str, Any]]:
    """The episodes of the level by name, and what identifies them for the cache."""
    sources: dict[str, Reader] = {}
    for seed in range(EPISODES):
        sources[f"episode-{seed:04d}"] = functools.partial(_frames, seed, config.height, config.width)
    return sources, {"rooms": [EPISODES, FRAMES, EVERY]}


def _frames(seed: int, height: int, width: int) -> np.ndarray:
    """Frames [FRAMES, height, width, 3] of an episode of a walk: textures, lights and objects are its own."""
    # Drawn larger, and averaged: small views have jagged edges otherwise.
    shrink = max(1, min(4, 96 // max(height, width)))
    env = _rooms(height, width, shrink)
    observations, _ = env.reset(seed=[seed])
    rng = np.random.default_rng([seed])
    num_actions = env.single_action_space.n
    frames = []
    for _ in range(FRAMES):
        frames.append(observations[0].copy())
        # A walk that turns at every step stays where it is: half of the time forward, which is action 0.
        action = 0
        if rng.random() >= 0.5:
            action = rng.integers(num_actions)
        for _ in range(EVERY):
            observations, *_ = env.step(np.array([action]))
    return np.stack(frames)


@functools.lru_cache(maxsize=1)
def _rooms(height: int, width: int, shrink: int) -> Any:
    from envs import make_vector  # here, because a folder of files does not need it

    spec = f"rooms:transfer,image_height={height},image_width={width},shrink={shrink},hud=False"
    return make_vector(spec, 1)
