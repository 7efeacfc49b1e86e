"""Users who have no home, or none that can be written to: caches are elsewhere, safely, or there are none."""

import logging
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.caches import ensure_cache_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The private folder in the temporary folder. There is no cache yet, and the variables are restored."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    ensure_cache_folder.cache_clear()
    yield tmp_path / f"compressive-impala-{os.getuid()}"
    ensure_cache_folder.cache_clear()


def impossible(tmp_path: Path) -> str:
    """A home below a file, which not even root can make."""
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "home")


def test_a_home_that_can_be_written_to_is_left_alone(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)
    ensure_cache_folder()
    assert os.environ == before
    assert not list(tmp_path.iterdir())
    assert not caplog.text


def test_without_one_libraries_cache_in_a_private_folder(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", impossible(tmp_path))
    with caplog.at_level(logging.WARNING):
        ensure_cache_folder()
        ensure_cache_folder()
    assert os.environ["XDG_CACHE_HOME"] == str(own)
    assert os.environ["MPLCONFIGDIR"] == str(own / "matplotlib")
    assert own.stat().st_mode & 0o777 == 0o700
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}/file/home/.cache cannot be written to: caching in {own};")
    ensure_cache_folder.cache_clear()
    with caplog.at_level(logging.WARNING):
        ensure_cache_folder()  # as in a process that this one starts
    assert len(caplog.messages) == 1


def test_a_user_without_a_name_has_a_home_that_is_no_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    ensure_cache_folder()
    assert os.path.expanduser("~/.cache") == "/.cache"


@pytest.mark.parametrize("made", ["link", "writable"])
def test_a_folder_that_others_may_write_to_is_not_used(
    made: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What numba caches is code."""
    monkeypatch.setenv("HOME", impossible(tmp_path))
    (tmp_path / "theirs").mkdir()
    if made == "link":
        own.symlink_to(tmp_path / "theirs")
    else:
        own.mkdir()
        own.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        ensure_cache_folder()
    assert "XDG_CACHE_HOME" not in os.environ
    assert "nothing is cached" in caplog.text


def run(tmp_path: Path, *arguments: str) -> tuple[str, str]:
    """Standard output and error of Python without a home, in an empty folder, which stays empty.

    numba may not write beside the sources either, as where the package is installed by another user.
    """
    (tmp_path / "here").mkdir()
    variables = {"HOME": impossible(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    variables |= {"NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator", "PATH": os.environ["PATH"]}
    command = [sys.executable, *arguments]
    told = subprocess.run(command, env=variables, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert not list((tmp_path / "here").iterdir())
    return told.stdout, told.stderr


def test_a_command_works_without_a_home(own: Path, tmp_path: Path) -> None:
    output, error = run(tmp_path, "-m", "commands", "runs", str(ROOT / "pretrained"))
    assert "pretrained/small" in output
    (line,) = error.splitlines()
    assert f"cannot be written to: caching in {own};" in line


def test_the_level_works_where_nothing_can_be_cached(own: Path, tmp_path: Path) -> None:
    own.symlink_to(tmp_path)
    _, error = run(tmp_path, "-c", "import envs.rooms")
    (line,) = error.splitlines()
    assert line.endswith("nothing is cached")
