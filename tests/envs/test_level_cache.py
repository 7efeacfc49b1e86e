"""The level cache: complete files or none, never more bytes than allowed, while other processes write or die."""

import hashlib
import logging
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from envs.level_cache import LevelCache

SIZES = {f"level {number}": 1000 + 37 * number for number in range(40)}
LIMIT = 12_000


def content(key: str) -> bytes:
    """The content for a key, so that a partial or wrong file is noticed."""
    block = hashlib.sha256(key.encode()).digest()
    return (block * (SIZES[key] // len(block) + 1))[: SIZES[key]]


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """`made(key)` makes the file that Lab would compile."""
    path = tmp_path / "made.pk3"
    return lambda key: path.write_bytes(content(key)) and str(path)


def used(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def test_what_is_written_is_fetched_whatever_its_key(tmp_path: Path, made: Callable[..., Any]) -> None:
    cache, copy = LevelCache(tmp_path / "cache" / "b", LIMIT), tmp_path / "copy.pk3"
    assert not cache.fetch("level 1", str(copy))
    assert not copy.exists()
    for key in ("level 1", "level 2"):
        cache.write(key, made(key))
    for other in (cache, LevelCache(tmp_path / "cache" / "b", LIMIT)):
        assert other.fetch("level 1", str(copy))
        assert copy.read_bytes() == content("level 1")
    assert not cache.fetch("level 3", str(copy))
    for key in ("../../escape", "a/b", "", "é" * 5000, "."):
        cache.write(key, made("level 3"))
        assert cache.fetch(key, str(copy))
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "copy.pk3", "made.pk3"}


def test_the_least_recently_used_and_partial_files_are_removed(tmp_path: Path, made: Callable[..., Any]) -> None:
    folder, copy = tmp_path / "cache", tmp_path / "copy.pk3"
    cache = LevelCache(folder, 4500)
    for age, key in enumerate(("level 3", "level 2", "level 1", "level 0")):
        before = set(folder.glob("*.pk3"))
        cache.write(key, made(key))
        (new,) = set(folder.glob("*.pk3")) - before
        os.utime(new, (1000 - age, 1000 - age))
    half = folder / "0123.tmp"  # of a killed writer
    half.write_bytes(b"half")
    assert cache.fetch("level 0", str(copy))
    cache.write("level 4", made("level 4"))
    assert not half.exists()
    assert used(folder) <= 4500
    LevelCache(folder, 1300).write("level 9", made("level 9"))  # larger than the cache
    assert [key for key in SIZES if cache.fetch(key, str(copy))] == ["level 0", "level 2", "level 3", "level 4"]


def test_a_folder_that_cannot_be_used(
    tmp_path: Path, made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = LevelCache(tmp_path / "file", LIMIT)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cache.write("level 0", made("level 0"))
            assert not cache.fetch("level 0", str(tmp_path / "copy"))
    assert caplog.text.count("not written to any more") == 1


def _use(folder: Path, own: Path, seed: int) -> None:
    """An actor that fetches levels, or makes and writes them, forever; makes the file "wrong" for a wrong byte."""
    draw, cache = random.Random(seed), LevelCache(folder, LIMIT)
    path = own / f"{seed}.pk3"
    while True:
        key = draw.choice(list(SIZES))
        if not cache.fetch(key, str(path)):
            path.write_bytes(content(key))
            cache.write(key, str(path))
        elif path.read_bytes() != content(key):
            (own / "wrong").touch()


def test_many_processes_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    folder, context = tmp_path / "cache", multiprocessing.get_context("fork")
    cache, copy = LevelCache(folder, LIMIT), tmp_path / "copy"

    workers = [context.Process(target=_use, args=(folder, tmp_path, seed), daemon=True) for seed in range(24)]
    for worker in workers[:4]:
        worker.start()
    for worker, following in zip(workers, [*workers[4:], *[None] * 4]):
        for _ in range(5):
            time.sleep(0.01)
            with FileLock(folder / ".lock"):
                assert used(folder) <= LIMIT, "what killed writers left is included"
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        if following:
            following.start()
    assert not (tmp_path / "wrong").exists(), "a level was torn or another's"
    (tmp_path / "last").write_bytes(content("level 39"))
    cache.write("a new level", str(tmp_path / "last"))
    assert used(folder) <= LIMIT
    assert not list(folder.glob("*.tmp"))
    found = [key for key in SIZES if cache.fetch(key, str(copy)) and copy.read_bytes() == content(key)]
    assert len(found) + 1 == len(list(folder.glob("*.pk3"))) >= 4
