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

    def make(key: str) -> str:
        path.write_bytes(content(key))
        return str(path)

    return make


def used(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def test_what_is_written_is_fetched_whatever_its_key(tmp_path: Path, made: Callable[..., Any]) -> None:
    cache = LevelCache(tmp_path / "cache" / "b", LIMIT)
    copy = tmp_path / "copy.pk3"
    assert not cache.fetch("level 1", str(copy))
    assert not copy.exists()
    for key in ("level 1", "level 2"):
        cache.write(key, made(key))
    for other in (cache, LevelCache(tmp_path / "cache" / "b", LIMIT)):
        assert other.fetch("level 1", str(copy))
        assert copy.read_bytes() == content("level 1")
    assert not cache.fetch("level 3", str(copy))

    # Keys that are no names of files.
    for key in ("../../escape", "a/b", "", "é" * 5000, "."):
        cache.write(key, made("level 3"))
        assert cache.fetch(key, str(copy))
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "copy.pk3", "made.pk3"}


def test_the_least_recently_used_and_partial_files_are_removed(tmp_path: Path, made: Callable[..., Any]) -> None:
    folder = tmp_path / "cache"
    copy = tmp_path / "copy.pk3"
    limit = 4500  # four levels
    cache = LevelCache(folder, limit)

    # Level 3 was used last, level 0 first, and then again.
    for age, key in enumerate(("level 3", "level 2", "level 1", "level 0")):
        before = set(folder.glob("*.pk3"))
        cache.write(key, made(key))
        (new,) = set(folder.glob("*.pk3")) - before
        os.utime(new, (1000 - age, 1000 - age))
    assert cache.fetch("level 0", str(copy))

    half = folder / "0123.tmp"  # of a killed writer
    half.write_bytes(b"half")
    cache.write("level 4", made("level 4"))
    assert not half.exists()
    assert used(folder) <= limit

    # A level that is larger than the cache is not written, and nothing is removed for it.
    LevelCache(folder, 1300).write("level 9", made("level 9"))
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
    draw = random.Random(seed)
    cache = LevelCache(folder, LIMIT)
    path = own / f"{seed}.pk3"
    while True:
        key = draw.choice(list(SIZES))
        if not cache.fetch(key, str(path)):
            path.write_bytes(content(key))
            cache.write(key, str(path))
        elif path.read_bytes() != content(key):
            (own / "wrong").touch()


@pytest.mark.slow
def test_many_processes_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = LevelCache(folder, LIMIT)
    context = multiprocessing.get_context("fork")
    waiting = [context.Process(target=_use, args=(folder, tmp_path, seed), daemon=True) for seed in range(24)]

    # Four at a time; the oldest is killed, and another begins.
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < 4:
            worker = waiting.pop(0)
            worker.start()
            running.append(worker)
        for _ in range(5):
            time.sleep(0.01)
            with FileLock(folder / ".lock"):
                assert used(folder) <= LIMIT, "what killed writers left is included"
        oldest = running.pop(0)
        os.kill(oldest.pid, signal.SIGKILL)
        oldest.join()
    assert not (tmp_path / "wrong").exists(), "a level was torn or another's"
    (tmp_path / "last").write_bytes(content("level 39"))
    cache.write("a new level", str(tmp_path / "last"))
    assert used(folder) <= LIMIT
    assert not list(folder.glob("*.tmp"))

    # All files but that of the new level are complete levels.
    copy = tmp_path / "copy"
    complete = [key for key in SIZES if cache.fetch(key, str(copy)) and copy.read_bytes() == content(key)]
    assert len(complete) + 1 == len(list(folder.glob("*.pk3"))) >= 4
