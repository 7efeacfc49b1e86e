"""Fixtures of the commands: one finished tiny run, a browser, commands in this process, and the process as it was."""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from actors import Actor
from actors.recorder import record_episodes
from actors.recording import Recording
from agent import Agent, AgentConfig
from agent.core import RoutingTransformerConfig
from envs import make_vector
from envs.guard import STEP_SECONDS, limit_calls
from reports.episode import page_data
from reports.pages import write_page
from tests.commands.browser import Tab, missing, running_chromium, watched_tab
from tests.commands.cli import ENVIRONMENT, TINY, Commands, frames, run


def pytest_itemcollected(item: pytest.Item) -> None:
    """Skips tests in a browser where there is none, before a run is trained for their pages."""
    if "browser" in getattr(item, "fixturenames", ()) and missing():
        item.add_marker(pytest.mark.skip(reason=missing()))


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
def filmed(finished: tuple[Path, str]) -> Path:
    """The page of the episode that the finished run filmed."""
    return finished[0] / "videos" / "final.html"


@pytest.fixture(scope="session")
def routed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    """The page of an episode with routed memory, and the episode: two layers, two groups of three clusters of four."""
    torch.manual_seed(0)
    envs = make_vector("rooms:small,episode_frames=160", 1)
    core = RoutingTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=4, window=(4, 0), clusters=3, groups=2)
    agent = Agent(AgentConfig(torso="small", torso_size=8, core=core), envs.single_observation_space.shape, 7)
    (recording,) = record_episodes(Actor(envs, agent, actor_id=0, seed=3), 1)
    page = tmp_path_factory.mktemp("routed") / "page.html"
    return write_page(page, "episode", page_data([recording], "routed", "routing")), recording


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """An empty tab for pages in files, which must be whole: whatever else they ask for fails the test, as errors do."""
    with watched_tab(browser, r"file:.*\.html$") as tab:
        yield tab


@pytest.fixture
def fresh(trained: Path, tmp_path: Path) -> Callable[[], Path]:
    """Copies the run of a module's own fixture `trained`."""
    return lambda: shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def copied(finished: tuple[Path, str], tmp_path: Path) -> Callable[..., Path]:
    """Copies the finished run, with other values in its configuration: `copied("name", seed=3)`."""

    def copy(name: str = "run", **values: object) -> Path:
        run = shutil.copytree(finished[0], tmp_path / name)
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | values))
        return run

    return copy


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs commands in this process."""
    return Commands(capfd)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations behind URLs are not repeated."""
    monkeypatch.setattr("storage.stores.PAUSES", ())


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands that run in this process set up logging, threads, warnings and the limit of calls."""
    monkeypatch.setenv("COLUMNS", "200")
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    threads = torch.get_num_threads()

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        yield

    root.handlers = handlers
    root.level = level
    torch.set_num_threads(threads)
    limit_calls(STEP_SECONDS)
