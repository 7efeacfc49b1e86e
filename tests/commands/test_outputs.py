"""What commands write, read or lock by name is a regular file, whatever lies there; links are not followed."""

import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from commands import main
from commands.status import in_use
from envs.level_cache import LevelCache
from learner import checkpoints
from learner.files import replacing
from learner.metrics import MetricsWriter
from tests.commands.cli import refusal
from training import UserError
from training.run import claim, locked

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]


def device(path: Path) -> None:
    """A node like /dev/full, or a link to that where nodes cannot be made."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        path.symlink_to("/dev/full")


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "device": (device, "a device"),
    "link to a device": (lambda path: path.symlink_to("/dev/full"), "a symbolic link"),
    "link to a file": (lambda path: path.symlink_to(path.with_name("target")), "a symbolic link"),
    "link to nothing": (lambda path: path.symlink_to(path.with_name("nothing")), "a symbolic link"),
    "FIFO": (os.mkfifo, "a FIFO"),
    "folder": (Path.mkdir, "a folder"),
}


def make(kind: str, path: Path) -> tuple[os.stat_result, str]:
    path.with_name("target").write_text("precious")
    KINDS[kind][0](path)
    found = os.lstat(path)
    return found, "a device" if stat.S_ISCHR(found.st_mode) else KINDS[kind][1].replace("a device", "a symbolic link")


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_regular_file_is_replaced(kind: str, copied: Copied, tmp_path: Path, capfd: Capture) -> None:
    run, output = copied(), tmp_path / "output"
    output.mkdir()
    for name, arguments in {
        "page.html": ["report", str(run), "--episodes=0", "--output", str(output / "page.html")],
        "video.mp4": ["evaluate", str(run), "--episodes=1", "--video", str(output / "video.mp4")],
        "episodes.mp4": ["visualize", str(run), "--episodes=1", "--output", str(output)],
    }.items():
        before, words = make(kind, output / name)
        error = refusal(arguments, capfd)
        assert "output: " in error or "video: " in error
        assert f"expected a regular file, got {words}" in error
        assert name in error
        assert os.path.samestat(os.lstat(output / name), before)
    assert (output / "target").read_text() == "precious"
    assert {path.name for path in output.iterdir()} == {"page.html", "video.mp4", "episodes.mp4", "target"}


def test_a_regular_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert [left.name for left in tmp_path.iterdir()] == ["page.html"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("name", ["config.json.tmp", "metrics.jsonl.tmp", "metrics.jsonl"])
def test_a_link_in_a_run_is_not_written_through(name: str, tmp_path: Path) -> None:
    """Where a temporary name is known, another may have laid a link there."""
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    target.write_text("precious")
    (run / name).symlink_to(target)
    checkpoints.write_json(run / "config.json", {})
    with pytest.raises(OSError, match="got a symbolic link") if name == "metrics.jsonl" else nullcontext():
        for step in (1, 0):
            with MetricsWriter(run, step) as writer:
                writer.write(1, {"a": 1.0})
    assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_file(kind: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    before, _ = make(kind, run / ".lock")
    for lock in (claim(run, False, lambda: False), locked(run)):
        with pytest.raises(UserError, match=r"expected a (regular file|folder)"), lock:
            raise AssertionError("locked")
    assert not in_use(run)
    assert os.path.samestat(os.lstat(run / ".lock"), before)


def test_a_lock_is_not_emptied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the file itself nor what it leads to."""
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    run, levels = tmp_path / "run", tmp_path / "levels"
    for folder in (run, levels):
        folder.mkdir()
        (folder / ".lock").symlink_to(precious)
    with pytest.raises(UserError, match="symbolic link"), locked(run):
        raise AssertionError("locked")
    level = tmp_path / "level"
    level.write_text("map")
    LevelCache(levels, 1000).write("key", str(level))
    assert "the level cache is not written to any more" in caplog.text
    assert precious.read_text() == "all of it"

    (run / ".lock").unlink()
    (run / ".lock").write_text("all of it")
    with locked(run):
        assert in_use(run)
    assert (run / ".lock").read_text() == "all of it"


def test_a_page_beside_the_run_is_still_written(copied: Copied, tmp_path: Path) -> None:
    main(["report", str(copied()), "--episodes=0", "--output", str(tmp_path / "new" / "page.html")])
    assert (tmp_path / "new" / "page.html").stat().st_size > 1000
