"""Files and views of the level become bytes; splits share no image; bad files are named."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sequences.images import corpus
from sequences.images.config import CorpusConfig
from sequences.images.corpus import START, ImageError, prepare, read_image

SHAPE = (8, 8, 3)


def noise(seed: int, rows: int = 8, columns: int = 8) -> np.ndarray:
    """A random picture, another for each seed."""
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3)).astype(np.uint8)


def folder(root: Path, count: int) -> Path:
    """Pictures with these seeds; those with odd numbers are in a folder below."""
    below = root / "below"
    below.mkdir(parents=True)
    for number in range(count):
        place = below if number % 2 else root
        Image.fromarray(noise(number)).save(place / f"{number}.png")
    return root


def digest_of(config: CorpusConfig, cache: Path) -> str:
    """The digest of a corpus that is built if it is not in the cache."""
    _, _, digest = corpus.open_built(prepare(config, cache))
    return digest


def test_bytes_of_files_in_splits_without_copies(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 40)
    for name in ("copy", "again"):
        Image.fromarray(noise(3)).save(root / f"{name}.PNG")
    (root / "notes.txt").write_text("no image")
    done: list[tuple[int, int]] = []
    built = prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache", lambda *parts: done.append(parts))
    assert done == [(number, 42) for number in range(1, 43)], "the copies as well"

    name, splits, _ = corpus.open_built(built)
    assert name == "pictures"
    assert list(splits) == ["train", "valid", "test"]
    for split in splits.values():
        assert len(split.starts) >= 2
        assert (split.tokens[split.starts] == START).all()
    images = np.concatenate([split.images(SHAPE) for split in splits.values()])
    assert sorted(image.tobytes() for image in images) == sorted(noise(seed).tobytes() for seed in range(40))


def test_a_corpus_is_built_once_and_anew_if_files_change(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 40)
    config = CorpusConfig(str(root), 8, 8)
    built = prepare(config, tmp_path / "cache")
    _, _, digest = corpus.open_built(built)
    assert prepare(config, tmp_path / "cache") == built
    assert digest_of(config, tmp_path / "other") == digest

    Image.fromarray(noise(99)).save(root / "new.png")
    assert digest_of(config, tmp_path / "cache") != digest


def test_a_part_of_a_split_is_spread_over_it(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 40)
    _, splits, _ = corpus.open_built(prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache"))
    train = splits["train"]
    spread = np.arange(3) * len(train.starts) // 3
    np.testing.assert_array_equal(train.thin(3).images(SHAPE), train.images(SHAPE)[spread])
    assert train.thin(99) is train.thin(None) is train

    # In two pieces of images that follow each other.
    half = len(train.starts) // 2
    pieces = [0, 1, 2, half, half + 1, half + 2]
    thinned = train.thin(7, 2)
    np.testing.assert_array_equal(thinned.images(SHAPE), train.images(SHAPE)[pieces])
    assert (thinned.tokens[thinned.starts] == START).all()


def test_views_of_the_level_are_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "EPISODES", 4)
    config = CorpusConfig(height=8, width=12)
    name, splits, digest = corpus.open_built(prepare(config, tmp_path / "a"))
    assert name == "rooms"
    assert digest_of(config, tmp_path / "b") == digest
    images = splits["train"].images((8, 12, 3))
    assert len(images) > corpus.FRAMES
    assert images.std() > 20, "they show something"


def test_wide_pictures_are_cut(tmp_path: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = noise(0)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    np.testing.assert_array_equal(read_image(tmp_path / "wide.png", SHAPE), noise(0))


def test_pictures_are_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    orientation = 0x112
    exif[orientation] = 3  # upside down
    Image.fromarray(noise(1)[::-1, ::-1]).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png", SHAPE), noise(1))


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    is_opaque = np.arange(64).reshape(8, 8, 1) % 2 == 1
    alpha = np.where(is_opaque, 255, 0).astype(np.uint8)
    Image.fromarray(np.dstack([noise(2), alpha])).save(tmp_path / "clear.png")
    np.testing.assert_array_equal(read_image(tmp_path / "clear.png", SHAPE), np.where(is_opaque, noise(2), 255))


@pytest.mark.parametrize(("mode", "name"), [("L", "gray.jpg"), ("P", "palette.png")])
def test_gray_pictures_and_palettes_become_rgb(mode: str, name: str, tmp_path: Path) -> None:
    gray = np.full((20, 20), 77, np.uint8)
    Image.fromarray(gray).convert(mode).save(tmp_path / name)
    np.testing.assert_array_equal(read_image(tmp_path / name, SHAPE), np.full(SHAPE, 77))


def test_bad_files_are_named(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 30)
    whole = (root / "0.png").read_bytes()
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 999)
    deep.save(tmp_path / "deep.png")
    width_and_height = slice(16, 24)
    million_by_million = (2**20).to_bytes(4, "big") * 2
    huge = bytearray(whole)
    huge[width_and_height] = million_by_million
    for content, words in (
        (whole[: len(whole) // 2], "truncated"),
        (b"", "cannot identify image file"),
        (b"GIF89a" + bytes(99), "cannot identify image file"),
        ((tmp_path / "deep.png").read_bytes(), "mode I;16"),
        (huge, ""),
    ):
        (root / "0.png").write_bytes(content)
        expected = f"0.png: expected a whole PNG or JPEG of 8 bits a channel.*{words}"
        with pytest.raises(ImageError, match=expected):
            read_image(root / "0.png", SHAPE)
        with pytest.raises(ImageError, match=rf"{expected}.*\(skip_unreadable leaves such files out\)"):
            prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("pictures*[!k]")), "nothing but a lock is left"

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        built = prepare(CorpusConfig(str(root), 8, 8, skip_unreadable=True), tmp_path / "cache")
    (warning,) = said
    assert "0.png" in str(warning.message)
    _, splits, _ = corpus.open_built(built)
    assert sum(len(split.starts) for split in splits.values()) == 29


@pytest.mark.parametrize("bad", range(6))
def test_images_are_divided_among_those_that_can_be_read(bad: int, tmp_path: Path) -> None:
    """Of six, one or two are held out, and it does not matter which one is damaged."""
    root = folder(tmp_path / "pictures", 6)
    (path,) = root.rglob(f"{bad}.png")
    path.write_bytes(b"no picture")
    config = CorpusConfig(str(root), 8, 8, skip_unreadable=True)
    with pytest.warns(UserWarning, match=rf"left out .*{bad}.png"):
        built = prepare(config, tmp_path / "cache")
    _, splits, _ = corpus.open_built(built)
    assert sum(len(split.starts) for split in splits.values()) == 5
    assert all(len(split.starts) for split in splits.values())

    # It is also said where the corpus is there already.
    with pytest.warns(UserWarning, match=rf"without 1 files that could not be used, such as: left out .*{bad}.png"):
        prepare(config, tmp_path / "cache")


def test_frames_of_a_folder_stay_together_and_in_order(tmp_path: Path) -> None:
    root = tmp_path / "videos"
    for video in range(6):
        (root / f"v{video}").mkdir(parents=True)
        for frame in range(12):
            Image.fromarray(noise(100 * video + frame)).save(root / f"v{video}" / f"frame-{frame}.png")
    config = CorpusConfig(str(root), 8, 8, split_by="folder")
    _, splits, _ = corpus.open_built(prepare(config, tmp_path / "cache"))
    seeds = {noise(100 * video + frame).tobytes(): (video, frame) for video in range(6) for frame in range(12)}
    videos: list[int] = []
    for split in splits.values():
        found = [seeds[image.tobytes()] for image in split.images(SHAPE)]
        assert [frame for _, frame in found] == list(range(12)) * (len(found) // 12)
        videos += [video for video, _ in found[::12]]
    assert sorted(videos) == list(range(6))

    with pytest.raises(ValueError, match="split_by: expected file for 'rooms', whose episodes are never divided"):
        CorpusConfig(split_by="folder")

    # Beside the same files each by itself.
    assert digest_of(CorpusConfig(str(root), 8, 8), tmp_path / "cache") != digest_of(config, tmp_path / "cache")

    with pytest.raises(ValueError, match=r"expected at least 3 folders with images in .*v0 .*, got 1"):
        prepare(CorpusConfig(str(root / "v0"), 8, 8, split_by="folder"), tmp_path / "cache")


def test_hidden_files_are_not_used(tmp_path: Path) -> None:
    """Neither what macOS writes beside each file, which is no picture, nor pictures that were thrown away."""
    root = folder(tmp_path / "pictures", 40)
    config = CorpusConfig(str(root), 8, 8)
    expected = digest_of(config, tmp_path / "cache")
    for name in ("._0.png", "below/._1.png", "__MACOSX/0.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"Mac OS X")
    for name in (".trash.png", ".Trash/0.png"):
        (root / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(99)).save(root / name)
    assert digest_of(config, tmp_path / "cache") == expected


def test_folders_named_after_splits_are_divided_with_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for name in ("train", "test"):
        (root / name).mkdir(parents=True)
    for number in range(8):
        name = "test" if number % 2 else "train"
        Image.fromarray(noise(number)).save(root / name / f"{number}.png")
    with pytest.warns(UserWarning, match=rf"{tmp_path}/pictures: train and test are no splits here"):
        prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache")


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a folder of PNG or JPEG files, or 'rooms'; there is no"):
        prepare(CorpusConfig(str(tmp_path / "none")), tmp_path)
    root = folder(tmp_path / "two", 2)
    with pytest.raises(ValueError, match=r"expected at least 3 PNG or JPEG files in .*, got 2"):
        prepare(CorpusConfig(str(root)), tmp_path)

    # Five equal pictures count as one.
    for number in range(5):
        Image.fromarray(noise(0)).save(root / f"{number}.png")
    Image.fromarray(noise(0)).save(root / "below" / "1.png")
    with pytest.raises(ValueError, match="expected data in the valid split, got 0 tokens that differ"):
        prepare(CorpusConfig(str(root), 8, 8), tmp_path)
