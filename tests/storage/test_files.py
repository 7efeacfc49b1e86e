"""Foreign files: values of them in errors have no secrets of URLs, and nothing takes long or all of the memory."""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.files import abbreviate, measure_regular, read_regular, redact, require_data, require_no_secret

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
