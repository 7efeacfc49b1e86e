"""Values of foreign files in errors: no secrets of URLs, and no long work."""

import time
from contextlib import suppress

import pytest

from storage.files import abbreviate, redact, require_no_secret

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
