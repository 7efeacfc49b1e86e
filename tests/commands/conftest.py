"""Fixtures of the commands: one finished tiny run, commands in this process, and the process restored after each."""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from envs.guard import STEP_SECONDS, limit_calls
from tests.commands.cli import ENVIRONMENT, TINY, Commands, frames, run


@pytest.fixture(scope="package", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Corpora are built outside the user's cache, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.getbasetemp() / "cache")
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", cache)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run of 30 updates in one process, and its standard output."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    result = run("launch", "--local", "--run", folder, "--frames", frames(30), *TINY, "--video-episodes=1")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return folder, result.stdout


@pytest.fixture
def copied(finished: tuple[Path, str], tmp_path: Path) -> Callable[..., Path]:
    """Copies the finished run: `copied("name")`."""
    return lambda name="run": shutil.copytree(finished[0], tmp_path / name)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations behind URLs are not repeated."""
    monkeypatch.setattr("learner.storage.PAUSES", ())


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "200")
    root, threads = logging.getLogger(), torch.get_num_threads()
    handlers, level = root.handlers[:], root.level
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        yield
    root.handlers, root.level = handlers, level
    torch.set_num_threads(threads)
    limit_calls(STEP_SECONDS)
