"""Foreign files: values of them in errors have no secrets of URLs, and nothing takes long or all of the memory."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.files import (
    LEFT_SECONDS,
    abbreviate,
    build_once,
    measure_regular,
    read_regular,
    redact,
    replacing,
    require_data,
    require_no_secret,
    temporary_name,
)

SECRET = "hunter2secret"
LONG = [
    "https:/" * 8_000,
    "https:/" * 50_000 + "@",
    ":" * 300_000,
    "x:/" + ":" * 300_000,
    "x:/" + ":1" * 150_000 + "@",
    "https:" + "/" * 300_000,
    "?a" * 150_000,
    "?" + "a" * 300_000,
    ":/%3a" * 60_000,
]


def short(text: str) -> str:
    """An id of a test for a text that may be very long."""
    return f"{text[:20]} {len(text)}"


@pytest.mark.parametrize("text", LONG, ids=short)
@pytest.mark.timeout(20)
def test_a_long_text_of_a_foreign_file_is_redacted_at_once(text: str) -> None:
    begin = time.process_time()
    redact(text)
    found = abbreviate([text])
    assert len(found) <= 120
    assert found.endswith(" ...")
    with suppress(ValueError):
        require_no_secret(text)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("before", [0, 3_960, 3_970, 3_980, 3_990])
def test_no_part_of_a_secret_is_left_where_a_value_is_cut(before: int) -> None:
    """However long the password is, and wherever it begins."""
    for url in (f"s3://key:{SECRET * 400}@bucket", f"https://{SECRET * 400}@host", f"https://host?key={SECRET * 400}"):
        assert SECRET[:4] not in abbreviate(" " * before + url)


def test_files_that_are_mostly_holes_are_refused(tmp_path: Path) -> None:
    """Large ones, of which less than a sixteenth is data; others are read, whatever they have."""
    size = 32 << 20
    for data, is_read in ((0, False), (1 << 20, False), (3 << 20, True)):
        path = tmp_path / f"{data}.bin"
        path.write_bytes(b"x" * data)
        os.truncate(path, size)
        if is_read:
            assert len(read_regular(path, size)) == measure_regular(path, size)[0] == size
            continue
        for read in (read_regular, measure_regular):
            with pytest.raises(ValueError, match=f"{data}.bin has {size} bytes, expected data in them, got {data} "):
                read(path, size)
    small = tmp_path / "small"
    small.touch()
    os.truncate(small, 1 << 20)
    assert read_regular(small, size) == bytes(1 << 20)


def test_a_disk_that_reports_no_blocks_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has as data is asked for in another way."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * (17 << 20))
    found = path.stat()
    none = SimpleNamespace(st_mode=found.st_mode, st_size=found.st_size, st_blocks=0)
    monkeypatch.setattr(os, "fstat", lambda descriptor: none)
    with path.open("rb") as file:
        require_data("file", file.fileno())
        assert file.read(1) == b"x"


def test_a_file_is_replaced_whole_beside_others_that_write_it(tmp_path: Path) -> None:
    """What only looks like a temporary file is the user's, and two that write at once do not meet."""
    path = tmp_path / "out.csv"
    for name in ("out.csv.tmp", "out.csv-notes.tmp"):
        (tmp_path / name).write_text("precious")
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "the last one that ended"
    assert {each.read_text() for each in tmp_path.glob("*.tmp")} == {"precious"}
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_killed_process_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    left = [temporary_name(path), temporary_name(path)]
    for each in left:
        each.touch()
    old = time.time() - 2 * LEFT_SECONDS
    os.utime(left[0], (old, old))
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert not left[0].exists()
    assert left[1].exists(), "another process may be writing it"


def test_a_folder_that_another_process_made_meanwhile_is_taken(tmp_path: Path) -> None:
    """Whether this process fails at that, or has made it as well. Without one there, its error is raised."""
    target = tmp_path / "corpus"

    def fail(folder: Path) -> None:
        raise ValueError("no text")

    def build(folder: Path, then: Callable[[Path], None]) -> None:
        target.mkdir()
        (target / "tokens").write_text("theirs")
        (folder / "tokens").write_text("ours")
        then(folder)

    with pytest.raises(ValueError, match="no text"):
        build_once(target, fail)
    assert not target.exists()
    for then in (fail, lambda folder: None):
        build_once(target, lambda folder, then=then: build(folder, then))
        assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
        assert (target / "tokens").read_text() == "theirs"
        shutil.rmtree(target)


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    """And neither its temporary name nor nothing."""
    path = tmp_path / "page.html"
    with pytest.raises(OSError, match="disk is full") as full, replacing(path):
        raise OSError(errno.ENOSPC, "the disk is full")
    assert full.value.filename == str(path)
    missing = tmp_path / "none" / "page.html"
    with pytest.raises(FileNotFoundError) as absent, replacing(missing):
        pass
    assert absent.value.filename == str(missing)
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError) as elsewhere, replacing(path):
        other.read_text()
    assert elsewhere.value.filename == str(other)
    assert list(tmp_path.iterdir()) == []
