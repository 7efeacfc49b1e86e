"""Checkpoints behind a URL: a lost machine, refusals, a network that fails, and credentials that are never shown."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from storage import checkpoints
from storage import stores as storage
from storage.files import redact, require_no_secret
from storage.run import Run
from tests.commands.cli import TINY, Commands, frames, saved_steps, start, state
from tests.unreliable import Unreliable
from tests.waiting import wait_until
from training.plain import read_config
from training.sweep import begin

Copied = Callable[..., Path]
LAUNCH = ["launch", "--local", *TINY]
RESUME = ["launch", "--local", "--resume"]
fsspec.register_implementation("absent", "no_such_package.FileSystem", errtxt="Install no_such_package to reach it")


def steps(store: Path) -> list[int]:
    """Steps of the complete checkpoints behind the file:// URL of a folder, oldest first."""
    return sorted(int(path.parent.name.partition("-")[0]) for path in store.glob("checkpoints/*/state.json"))


@pytest.mark.slow
def test_a_run_whose_machine_is_lost(finished: tuple[Path, str], tmp_path: Path, cli: Commands) -> None:
    """The last checkpoint behind the URL is resumed in another folder; the end is that of a run without loss."""
    straight, _ = finished
    end = saved_steps(straight)[-1]
    lost = tmp_path / "lost"
    found = tmp_path / "found"
    store = tmp_path / "store"
    url = f"file://{store}"

    # The machine is lost.
    process = start(*LAUNCH, "--run", lost, "--checkpoint-url", url, "--frames", frames(30))
    wait_until(lambda: len(steps(store)) > 2, process)
    process.kill()
    process.wait()
    assert 0 < steps(store)[-1] < end, "killed too late to show anything"
    assert not (lost / "checkpoints").exists()
    shutil.rmtree(lost)

    # Another one resumes.
    assert f"resumed from {url}/checkpoints/" in cli.run(*RESUME, url, "--run", found)
    actual = checkpoints.load_latest(url)
    assert actual.step == end
    assert len(steps(store)) == 3, "the newest are kept"
    last = store / "checkpoints" / Path(str(actual.path)).name
    for name, content in state(straight).items():
        assert (last / f"{name}.safetensors").read_bytes() == content, name
    assert (found / "evaluation.json").read_bytes() == (straight / "evaluation.json").read_bytes()

    # From now on the folder stands for the run.
    assert f"{actual.path} (" in cli.run("status", found, "--allow", url)
    assert str(actual.path) in cli.run("evaluate", found, "--episodes", 1, "--allow", url)
    resumed = cli.run(*RESUME, found, f"--frames={frames(32)}", "--allow", url)
    assert f"--resume {found} --local --allow {url}\n" in resumed
    assert steps(store)[-1] > end


@pytest.mark.slow
def test_a_run_that_was_copied_behind_a_url(copied: Copied, tmp_path: Path, cli: Commands) -> None:
    """Its new folder can be resumed, even if Ray does not start."""
    store = copied("store")
    new = tmp_path / "new"
    arguments = ["launch", "--resume", f"file://{store}", "--run", new, f"--frames={frames(31)}"]
    cli.refuse(*arguments, "--ray-address", "127.0.0.1:1", words="ray-address: expected a Ray cluster")
    assert json.loads((new / "config.json").read_text())["checkpoint_url"] == f"file://{store}"
    before = saved_steps(store)
    cli.run(*RESUME, new, "--allow", f"file://{store}")
    assert steps(store)[-1] > before[-1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/mnt/run", ["checkpoint_url", "s3://bucket/run", "'/mnt/run'"]),
        ("memory://run", ["checkpoint_url", "outlives this process", "'memory://run'"]),
        ("nonsense://host/run", ["nonsense://host/run", "Protocol not known: nonsense"]),
        ("absent://host/run", ["absent://host/run", "Install no_such_package"]),
        ("file:///no/such/place", ["file:///no/such/place", "No such file or directory"]),
        ("file://STORE", ["file://STORE already has checkpoints", "--resume file://STORE"]),
    ],
)
def test_an_unusable_url(url: str, words: list[str], copied: Copied, no_pauses: None, tmp_path: Path, cli: Any) -> None:
    """It is refused before the first update. No folder is left; one that was there is not changed."""
    run = tmp_path / "run"
    store = str(copied("store"))
    arguments = [*LAUNCH, "--run", run, "--checkpoint-url", url.replace("STORE", store)]
    words = [word.replace("STORE", store) for word in words]
    cli.refuse(*arguments, words=words)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]

    # The folder of a run that was killed.
    run.mkdir()
    begun = '{"seed": 0}'
    (run / "config.json").write_text(begun)
    cli.refuse(*arguments, words=words)
    assert (run / "config.json").read_text() == begun


def test_a_url_that_cannot_be_resumed(copied: Copied, cli: Commands) -> None:
    cli.refuse("launch", "--resume", "memory://nowhere/run", words="memory://nowhere/run has no checkpoint yet")
    arguments = ["--resume", copied(), "--checkpoint-url", "file://x"]
    cli.refuse("launch", *arguments, words="checkpoint_url: expected None")


@pytest.fixture
def unreliable(no_pauses: None, tmp_path: Path) -> Iterator[str]:
    """The URL of an unreliable store."""
    Unreliable.fail(())
    yield f"unreliable://{tmp_path}/run"
    Unreliable.fail(())


def test_a_network_that_fails(unreliable: str, tmp_path: Path, cli: Commands) -> None:
    """It stops the run, of which older checkpoints are kept."""
    run = tmp_path / "run"
    down = "the network is down"
    always = range(1, 10**6)
    from_call_60 = range(60, 10**6)

    # From the beginning.
    new = [*LAUNCH, "--run", run, f"--frames={frames(8)}", "--checkpoint-url", unreliable]
    Unreliable.fail(always)
    cli.refuse(*new, words=f"{unreliable} cannot be read or written: ConnectionResetError: {down}")
    assert not run.exists()

    # During training.
    Unreliable.fail(from_call_60)
    error = cli.refuse(*new)
    assert Unreliable.calls == 60, "it did not stop at once"
    Unreliable.fail(())
    saved = checkpoints.load_latest(unreliable)
    named = re.search(rf"resume from {unreliable}/checkpoints/(\d+)-\w+ with: compressive launch --resume {run}", error)
    assert named, error
    assert 0 < int(named[1]) <= saved.step

    # For other commands, until it works again.
    Unreliable.fail(always)
    assert down in cli.run("status", run, "--allow", unreliable)
    for command in (["evaluate"], RESUME):
        cli.refuse(*command, run, "--allow", unreliable, words=down)
    Unreliable.fail(())
    cli.run(*RESUME, run, "--checkpoint-url", unreliable)
    assert checkpoints.load_latest(unreliable).step > saved.step


def test_the_url_of_a_foreign_run_is_not_used(unreliable: str, copied: Copied, tmp_path: Path, cli: Commands) -> None:
    """Unless the user allows it by name."""
    run = copied("run", checkpoint_url=unreliable)
    told = f"--allow {unreliable}"
    begin(tmp_path / "sweep", {"run": read_config(Run(run))}, "compressive compare")
    assert told in cli.run("status", run)
    for typed in (["evaluate", run], [*RESUME, run], ["export", run, tmp_path / "new"], ["visualize", run]):
        cli.refuse(*typed, words=told)
        cli.refuse(*typed, "--allow=unreliable://elsewhere,dm:tests.envs.dm_tasks:Unhurried", words=told)
    cli.refuse("launch", "--local", "--from-run", run, "--run", tmp_path / "new", words=told)
    cli.refuse("compare", "--resume", tmp_path / "sweep", words=told)
    assert "expected one that is allowed" in cli.run("report", run)
    assert Unreliable.calls == 0


# Credentials.

SECRET = "xyzzy42"
URLS = [
    f"s3://key:{SECRET}@bucket/run",
    f"s3://key:{SECRET}/+@bucket/run",
    f"s3://key:4{SECRET} @bucket/run",
    f"s3://key%3A{SECRET}@bucket/run",
    f"https://{SECRET}@host/run",
    f"https://host/run?a=b&X-Amz-Signature={SECRET}",
    f"simplecache::s3://key:{SECRET}@bucket/run",
    f"filecache::https://host/run#access_token={SECRET}",
]


def test_urls_without_a_secret() -> None:
    for url in (
        "s3://bucket/a:b/c@d=e",
        "sftp://user@host:22/a@b",
        "abfs://container@account.dfs.core.windows.net/run",
        "http://127.0.0.1:9000/a@b",
        "file:///mnt/my run",
        "memory://run",
    ):
        require_no_secret(url)
        assert redact(f"{url} cannot be read; resume with: --resume {url}").count(url) == 2


@pytest.mark.parametrize("url", URLS)
def test_a_url_with_a_secret_is_refused(url: str, tmp_path: Path, cli: Commands) -> None:
    """In one line that does not show it, typed or read from a run."""
    run = tmp_path / "run"
    for arguments in ([*LAUNCH, "--run", run, "--checkpoint-url", url], [*RESUME, url, "--run", run]):
        assert SECRET not in cli.refuse(*arguments, words=["***", "credentials belong in the environment"])
        assert not run.exists()
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"checkpoint_url": url}))
    for command in (["launch", "--resume"], ["evaluate"], ["status"], ["report"], ["visualize"]):
        assert SECRET not in cli.refuse(*command, run, words=f"{run / 'config.json'}: config.checkpoint_url: ")
    if " " not in url:  # within a sentence, a space ends a URL
        assert SECRET not in cli.refuse("evaluate", url), "typed in the wrong place"


def test_secrets_in_errors_of_a_store(
    unreliable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Commands
) -> None:
    run = tmp_path / "run"
    error = f"PUT https://user:{SECRET}@host/run?X-Amz-Signature={SECRET} failed"
    Unreliable.fail(range(60, 10**6), error=ConnectionError(error))

    # In what commands say.
    said = cli.refuse(*LAUNCH, "--run", run, f"--frames={frames(8)}", "--checkpoint-url", unreliable)
    assert f"{unreliable} cannot be read or written: ConnectionError: PUT https://***@host/" in said
    said += cli.run("status", run, "--allow", unreliable)

    # In the warning before another attempt.
    monkeypatch.setattr(storage, "PAUSES", (0.0,))
    with pytest.raises(storage.StorageError):
        storage.UrlStore(unreliable).claim("me")
    warned = cli.capfd.readouterr().err
    assert "ConnectionError: PUT https://***@host/" in warned

    # Nor in any file.
    assert SECRET not in said + warned
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
