"""The folder of a run: which process uses it, what kind of run it is, and its regular files."""

import contextlib
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from envs.level_cache import LevelCache
from storage.errors import UserError
from storage.run import RUN_COMMANDS, Run

ROOT = Path(__file__).parents[2]


def test_only_run_names_the_files_of_a_run() -> None:
    """Other modules ask `storage.run` where they are."""
    for package in ("training", "reports", "commands"):
        paths = list((ROOT / package).rglob("*.py"))
        assert paths
        for path in paths:
            if path.name != "run.py":
                assert not re.search(r"[\"'](config|evaluation)\.json[\"']", path.read_text()), path


def contend(folder: Path, leave: str | None) -> str:
    """Lets a process wait for a new folder that another one uses, and returns what the waiting one is told.

    leave: a file that the first one writes into the folder; without one it leaves nothing to keep.
    """
    told: list[str] = []

    def wait() -> None:
        try:
            with Run(folder).claim(new=True, patience=20.0):
                told.append("claimed")
        except (UserError, OSError) as error:
            told.append(str(error))

    with Run(folder).claim(new=True):
        Run(folder).write_config({"seed": 0})
        second = threading.Thread(target=wait)
        second.start()
        second.join(0.3)  # some polls of the lock
        assert not told
        if leave:
            (folder / leave).parent.mkdir(exist_ok=True)
            (folder / leave).touch()
    second.join(30)
    return told[0]


def test_one_process_uses_a_folder_at_a_time(tmp_path: Path) -> None:
    used = tmp_path / "used"
    assert "is not empty: expected a new folder, or --resume" in contend(used, "checkpoints/000000000010")
    assert (used / "config.json").exists()
    # The first one removed it; the second one may have looked just before that, and then makes it anew.
    told = contend(tmp_path / "removed", None)
    assert told == "claimed" or str(tmp_path / "removed") in told
    with Run(used).claim(new=False):
        assert Run(used).in_use
        with pytest.raises(UserError, match="in use by another process"), Run(used).claim(new=False):
            raise AssertionError("claimed twice")
    assert not Run(used).in_use


def test_others_are_waited_for_also_if_they_remove_the_folder(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.wait_for_others(0.0)
    assert not run.path.exists()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            Run(run.path).wait_for_others(20.0)
        except (UserError, OSError) as error:
            errors.append(error)

    with run.claim(new=True):
        with pytest.raises(UserError, match="in use by another process"):
            Run(run.path).wait_for_others(0.0)
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)  # as in `contend`
        assert waiting.is_alive()
    waiting.join(30)
    assert not errors
    assert not run.path.exists()


@pytest.mark.parametrize("name", ["config.json", "corpus.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ['{"precious": 1}', "[1]", "precious"])
def test_a_file_of_the_user_is_not_taken_for_that_of_a_run(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="is not empty: expected a new folder"), Run(tmp_path).claim(new=True):
        raise AssertionError("claimed")
    assert (tmp_path / name).read_text() == content


def test_what_was_there_before_stays_when_a_launch_fails(tmp_path: Path) -> None:
    """The lock of another program, and what a run that was killed has left."""
    before = {".lock": "precious", "corpus.json": '{"digest": "0"}'}
    for name, content in before.items():
        (tmp_path / name).write_text(content)
    run = Run(tmp_path)
    with suppress(OSError), run.claim(new=True):
        run.write_config({"seed": 0})
        raise OSError("the disk is full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_folder_is_lost_when_it_is_moved_removed_or_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    assert not run.lost, "it is not locked"
    with run.claim(new=True, saved=lambda: True):
        assert not run.lost

        # It is moved.
        run.path.rename(tmp_path / "moved")
        assert run.lost
        with pytest.raises(FileNotFoundError, match="was moved, removed or replaced while it was in use"):
            run.require()

        # There is another folder in its place.
        run.path.mkdir()
        assert run.lost
        with Run(run.path).claim(new=False):
            assert run.lost, "another process has locked the folder of that name"
    assert not run.lost


def test_a_run_whose_lock_is_removed_can_be_saved_and_ends(tmp_path: Path) -> None:
    """Another process might use it, but has not yet."""
    run = Run(tmp_path / "run")
    with run.claim(new=True, saved=lambda: True):
        run.require_lock()
        (run.path / ".lock").unlink()
        assert not run.lost
        run.require()
        with pytest.raises(FileNotFoundError, match="the lock of the run was removed"):
            run.require_lock()


def test_who_looks_whether_a_run_is_in_use_keeps_no_one_out(tmp_path: Path) -> None:
    """As `status` does, for a moment."""
    run = Run(tmp_path)
    with run.lock():
        pass
    with (run.path / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        timer = threading.Timer(0.2, fcntl.flock, (lock, fcntl.LOCK_UN))
        timer.start()
        with run.lock():
            timer.join()


def test_kinds_of_runs(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not a run: expected a folder with config\.json.*text train"):
        run.read_kind()

    # A folder of runs, such as that of a sweep, or `runs` itself.
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Run(tmp_path / name).write_config({})
    words = f"{tmp_path} is not a run: expected one of the runs in it, such as {tmp_path / 'a'}"
    with pytest.raises(FileNotFoundError, match=re.escape(words)):
        run.read_kind()

    run.write_config({"kind": "text", "seed": 1})
    assert run.read_kind() == ("text", {"seed": 1})
    run.write_config({"frames": 3})
    assert run.read_kind() == ("launch", {"frames": 3})

    for wrong in ("video", None, ["text"]):
        run.write_config({"kind": wrong})
        with pytest.raises(ValueError, match=rf"config\.json: kind: expected one of {', '.join(RUN_COMMANDS)}, got "):
            run.read_kind()


def device(path: Path) -> None:
    """A node like /dev/full, or a link to it where nodes cannot be created."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        path.symlink_to("/dev/full")


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "device": device,
    "link to a device": lambda path: path.symlink_to("/dev/full"),
    "link to a file": lambda path: path.symlink_to(path.with_name("target")),
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
}
"""What may lie where a regular file is expected."""


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_lock_that_is_no_regular_file(kind: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    lock = tmp_path / ".lock"
    (tmp_path / "target").write_text("precious")
    IRREGULAR[kind](lock)
    before = os.lstat(lock)
    for opened in (run.claim(new=False), run.lock()):
        with pytest.raises(OSError, match="expected a regular file"), opened:
            raise AssertionError("locked")
    assert not run.in_use
    assert os.path.samestat(os.lstat(lock), before)
    assert (tmp_path / "target").read_text() == "precious"


def test_a_lock_keeps_its_text(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("precious")
    with Run(tmp_path).lock():
        pass
    assert (tmp_path / ".lock").read_text() == "precious"


def test_the_lock_of_a_level_cache_is_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The cache warns, and the file behind the link keeps its text."""
    target = tmp_path / "target"
    target.write_text("precious")
    levels = tmp_path / "levels"
    levels.mkdir()
    (levels / ".lock").symlink_to(target)
    level = tmp_path / "level"
    level.write_text("map")
    LevelCache(levels, 1000).write("key", str(level))
    assert "level cache" in caplog.text
    assert target.read_text() == "precious"


@pytest.mark.parametrize("saved", [False, True])
def test_a_new_run_without_checkpoints_is_removed(saved: bool, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with contextlib.suppress(KeyboardInterrupt), run.claim(new=True, saved=lambda: saved):
        run.write_config({})
        raise KeyboardInterrupt
    assert run.path.exists() == saved
