"""Whose a run's folder is, where another process has it or has had it."""

import threading
from pathlib import Path

import pytest

from training import UserError
from training.run import claim


def _contend(run: Path, leave: str | None) -> str:
    """What a process is told that waited for the folder, in which the first one left a file with a name, or nothing."""
    told: list[str] = []

    def wait() -> None:
        try:
            with claim(run, True, lambda: False, patience=20.0):
                told.append("claimed")
        except UserError as error:
            told.append(str(error))

    with claim(run, True, lambda: False):
        (run / "config.json").write_text("{}")
        second = threading.Thread(target=wait)
        second.start()
        second.join(0.2)
        assert not told
        if leave:
            (run / leave).parent.mkdir(exist_ok=True)
            (run / leave).write_text("")
    second.join(30)
    return told[0]


def test_who_waited_for_a_new_folder_does_not_begin_in_a_used_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "is not empty: expected a new folder" in _contend(run, "checkpoints/000000000010")
    assert (run / "config.json").exists()


def test_who_waited_for_a_folder_that_was_removed_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert _contend(run, None) == f"{run} was removed by another process that used it"
    assert not run.exists()


def test_in_use_without_patience(tmp_path: Path) -> None:
    in_use = pytest.raises(UserError, match="is in use by another process")
    with claim(tmp_path, True, lambda: False), in_use, claim(tmp_path, True, lambda: False):
        raise AssertionError("claimed twice")
