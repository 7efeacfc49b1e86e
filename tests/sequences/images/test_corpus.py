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
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3)).astype(np.uint8)


def folder(root: Path, count: int) -> Path:
    (root / "below").mkdir(parents=True)
    for number in range(count):
        Image.fromarray(noise(number)).save(root / ("below" if number % 2 else ".") / f"{number}.png")
    return root


def test_bytes_of_files_in_splits_without_copies(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 40)
    for name in ("copy", "again"):
        Image.fromarray(noise(3)).save(root / f"{name}.PNG")
    (root / "notes.txt").write_text("no image")
    done: list[tuple[int, int]] = []
    built = prepare(config := CorpusConfig(str(root), 8, 8), tmp_path / "cache", lambda *parts: done.append(parts))
    assert done == [(number, 42) for number in range(1, 43)]
    name, splits, digest = corpus.open_built(built)
    assert (name, list(splits)) == ("pictures", ["train", "valid", "test"])
    assert all(len(split.starts) >= 2 for split in splits.values())
    assert all((split.tokens[split.starts] == START).all() for split in splits.values())
    images = np.concatenate([split.images(SHAPE) for split in splits.values()])
    assert sorted(image.tobytes() for image in images) == sorted(noise(seed).tobytes() for seed in range(40))
    assert prepare(config, tmp_path / "cache") == built
    assert corpus.open_built(prepare(config, tmp_path / "other"))[2] == digest
    Image.fromarray(noise(99)).save(root / "new.png")
    assert corpus.open_built(prepare(config, tmp_path / "cache"))[2] != digest
    thin, count = splits["train"].thin(3), len(splits["train"].starts)
    np.testing.assert_array_equal(thin.images(SHAPE), splits["train"].images(SHAPE)[np.arange(3) * count // 3])
    assert splits["train"].thin(99) is splits["train"].thin(None) is splits["train"]


def test_views_of_the_level_are_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "EPISODES", 4)
    built = [corpus.open_built(prepare(CorpusConfig(height=8, width=12), tmp_path / name)) for name in ("a", "b")]
    (name, splits, digest), (*_, again) = built
    assert (name, digest) == ("rooms", again)
    images = splits["train"].images((8, 12, 3))
    assert len(images) > corpus.FRAMES
    assert images.std() > 20


def test_pictures_are_upright_cut_and_on_white(tmp_path: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = noise(0)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    np.testing.assert_array_equal(read_image(tmp_path / "wide.png", SHAPE), noise(0))
    exif = Image.Exif()
    exif[0x112] = 3  # upside down
    Image.fromarray(noise(1)[::-1, ::-1]).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png", SHAPE), noise(1))
    clear = np.dstack([noise(2), np.where(np.arange(64).reshape(8, 8) % 2, 255, 0).astype(np.uint8)])
    Image.fromarray(clear).save(tmp_path / "clear.png")
    found = read_image(tmp_path / "clear.png", SHAPE)
    np.testing.assert_array_equal(found, np.where(clear[:, :, 3:] > 0, noise(2), 255))
    grey = np.full((20, 20), 77, np.uint8)
    for mode, name in (("L", "grey.jpg"), ("P", "palette.png")):
        Image.fromarray(grey).convert(mode).save(tmp_path / name)
        np.testing.assert_array_equal(read_image(tmp_path / name, SHAPE), np.full(SHAPE, 77))


def test_bad_files_are_named(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 30)
    whole = (root / "0.png").read_bytes()
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 999)
    deep.save(tmp_path / "deep.png")
    claims = whole[:16] + (2**20).to_bytes(4, "big") * 2 + whole[24:]
    for content, words in (
        (whole[: len(whole) // 2], "truncated"),
        (b"", "cannot identify image file"),
        (b"GIF89a" + bytes(99), "cannot identify image file"),
        ((tmp_path / "deep.png").read_bytes(), "mode I;16"),
        (claims, ""),
    ):
        (root / "0.png").write_bytes(content)
        expected = f"0.png: expected a whole PNG or JPEG of 8 bits a channel.*{words}"
        with pytest.raises(ImageError, match=expected):
            read_image(root / "0.png", SHAPE)
        with pytest.raises(ImageError, match=rf"{expected}.*\(skip_unreadable leaves such files out\)"):
            prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("pictures*[!k]"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        built = prepare(CorpusConfig(str(root), 8, 8, skip_unreadable=True), tmp_path / "cache")
    assert ["0.png" in str(each.message) for each in said] == [True]
    assert sum(len(split.starts) for split in corpus.open_built(built)[1].values()) == 29


def test_hidden_files_are_not_used(tmp_path: Path) -> None:
    root = folder(tmp_path / "pictures", 40)
    expected = corpus.open_built(prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache"))[2]
    for name in ("._0.png", "below/._1.png", "__MACOSX/0.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"Mac OS X")
    for name in (".trash.png", ".Trash/0.png"):
        (root / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(99)).save(root / name)
    assert corpus.open_built(prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache"))[2] == expected


def test_folders_named_after_splits_are_divided_with_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for number in range(8):
        (path := root / ("train", "test")[number % 2] / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number)).save(path)
    with pytest.warns(UserWarning, match=rf"{tmp_path}/pictures: train and test are no splits here"):
        prepare(CorpusConfig(str(root), 8, 8), tmp_path / "cache")


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a folder of PNG or JPEG files, or 'rooms'; there is no"):
        prepare(CorpusConfig(str(tmp_path / "none")), tmp_path)
    root = folder(tmp_path / "two", 2)
    with pytest.raises(ValueError, match=r"expected at least 3 PNG or JPEG files in .*, got 2"):
        prepare(CorpusConfig(str(root)), tmp_path)
    for number in range(5):
        Image.fromarray(noise(0)).save(root / f"{number}.png")
    Image.fromarray(noise(0)).save(root / "below" / "1.png")
    with pytest.raises(ValueError, match="expected data in the valid split, got 0 tokens that differ"):
        prepare(CorpusConfig(str(root), 8, 8), tmp_path)
