"""Checkpoints behind a URL, from the command line: a lost machine, refusals, a network that fails, two runs at once."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from agent import AgentConfig
from agent.core import LSTMConfig
from commands import main
from learner import checkpoints
from tests.commands.cli import TINY, frames, refusal, saved_steps, start, wait_until
from tests.unreliable import Unreliable
from training import UserError
from training.config import RunConfig
from training.impala import Progress, Trainer
from training.signals import StopRequest

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]
fsspec.register_implementation("absent", "no_such_package.FileSystem", errtxt="Install no_such_package to reach it")


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints behind the file:// URL of a folder, oldest first."""
    return sorted(int(path.parent.name.partition("-")[0]) for path in folder.glob("checkpoints/*/state.json"))


def test_a_run_whose_machine_is_lost_is_gone_on_with_elsewhere(
    finished: tuple[Path, str], tmp_path: Path, capfd: Capture
) -> None:
    lost, found, store = tmp_path / "lost", tmp_path / "found", tmp_path / "store"
    end, url = saved_steps(finished[0])[-1], f"file://{store}"
    process = start("launch", "--local", "--run", lost, "--checkpoint-url", url, "--frames", frames(30), *TINY)
    wait_until(lambda: len(steps(store)) > 2, process)
    process.kill()
    process.wait()
    assert 0 < steps(store)[-1] < end, "killed too late to show anything"
    assert not (lost / "checkpoints").exists()
    shutil.rmtree(lost)

    main(["launch", "--local", "--resume", url, "--run", str(found)])
    assert f"resumed from {url}/checkpoints/" in capfd.readouterr().out
    expected, actual = checkpoints.load_latest(finished[0]), checkpoints.load_latest(url)
    assert (actual.step, len(steps(store))) == (end, 3)
    for part in ("weights", "optimizer"):
        assert all(tensor.equal(actual.parts[part][name]) for name, tensor in expected.parts[part].items())
    assert (found / "evaluation.json").read_bytes() == (finished[0] / "evaluation.json").read_bytes()

    # From now on the folder stands for the run.
    main(["status", str(found)])
    assert f"{actual.path} (" in capfd.readouterr().out
    main(["evaluate", str(found), "--episodes", "1"])
    assert str(actual.path) in capfd.readouterr().out
    main(["launch", "--local", "--resume", str(found), f"--frames={frames(32)}"])
    assert steps(store)[-1] > end


def test_a_run_folder_that_was_copied_behind_a_url(copied: Copied, tmp_path: Path, capfd: Capture) -> None:
    """What was written to a disk goes on behind the URL; and the new folder stands, even if Ray does not start."""
    store, new = copied("store"), tmp_path / "new"
    arguments = ["launch", "--resume", f"file://{store}", "--run", str(new), f"--frames={frames(31)}"]
    error = refusal([*arguments, "--ray-address", "127.0.0.1:1"], capfd)
    assert "ray-address" in error, error
    assert json.loads((new / "config.json").read_text())["checkpoint_url"] == f"file://{store}"
    before = saved_steps(store)
    main(["launch", "--local", "--resume", str(new)])
    assert steps(store)[-1] > before[-1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/mnt/run", ["checkpoint_url", "s3://bucket/run", "'/mnt/run'"]),
        ("memory://run", ["checkpoint_url", "outlives this process", "'memory://run'"]),
        ("nonsense://host/run", ["nonsense://host/run", "Protocol not known: nonsense"]),
        ("absent://host/run", ["absent://host/run", "Install no_such_package"]),
        ("file:///dev/null/run", ["file:///dev/null/run", "Not a directory"]),
        ("file:///no/such/place", ["file:///no/such/place", "No such file or directory"]),
        ("file://STORE", ["file://STORE already has checkpoints", "--resume file://STORE"]),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_the_first_update(
    url: str, words: list[str], copied: Copied, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Capture
) -> None:
    monkeypatch.setattr(checkpoints, "PAUSES", ())
    store = str(copied("store"))
    arguments = ["launch", "--local", "--run", str(tmp_path / "run"), *TINY]
    error = refusal([*arguments, "--checkpoint-url", url.replace("STORE", store)], capfd)
    assert all(word.replace("STORE", store) in error for word in words), error
    assert [path.name for path in tmp_path.iterdir()] == ["store"], "nothing is left behind"


def test_a_run_killed_right_after_its_first_checkpoint_is_not_begun_again(
    copied: Copied, tmp_path: Path, capfd: Capture
) -> None:
    run, url = tmp_path / "run", f"file://{copied('store')}"
    run.mkdir()
    (run / "config.json").write_text("{}")
    arguments = ["launch", "--local", "--run", str(run), *TINY, "--checkpoint-url", url]
    assert f"{url} already has checkpoints" in refusal(arguments, capfd)
    assert (run / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["launch", "--resume", "memory://nowhere/run"], ["memory://nowhere/run has no checkpoint yet"]),
        (["launch", "--resume", "absent://host/run"], ["absent://host/run", "Install no_such_package"]),
        (["launch", "--resume", "RUN", "--checkpoint-url", "file://x"], ["checkpoint_url", "None", "file://x"]),
    ],
)
def test_what_cannot_be_resumed(arguments: list[str], words: list[str], copied: Copied, capfd: Capture) -> None:
    run = str(copied())
    error = refusal([run if argument == "RUN" else argument for argument in arguments], capfd)
    assert all(word in error for word in words), error


@pytest.fixture
def unreliable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of an unreliable store, without patience."""
    monkeypatch.setattr(checkpoints, "PAUSES", ())
    Unreliable.fail(())
    yield f"unreliable://{tmp_path}/run"
    Unreliable.fail(())


def test_a_network_that_fails_stops_the_run_and_spares_the_checkpoints_before(
    unreliable: str, tmp_path: Path, capfd: Capture
) -> None:
    run = tmp_path / "run"
    new = ["launch", "--local", "--run", str(run), f"--frames={frames(8)}", *TINY, "--checkpoint-url", unreliable]
    Unreliable.fail(range(1, 10**6))
    error = refusal(new, capfd)
    assert f"{unreliable} cannot be read or written: ConnectionResetError: the network is down" in error
    assert not run.exists()

    Unreliable.fail(range(60, 10**6))
    error = refusal(new, capfd)
    assert Unreliable.calls == 60, "it did not stop at once"
    Unreliable.fail(())
    saved = checkpoints.load_latest(unreliable)
    named = re.search(rf"go on from {unreliable}/checkpoints/(\d+)-\w+ with: compressive launch --resume {run}", error)
    assert named, error
    assert 0 < int(named[1]) <= saved.step

    Unreliable.fail(range(1, 10**6))
    main(["status", str(run)])
    assert "the network is down" in capfd.readouterr().out
    assert "the network is down" in refusal(["evaluate", str(run)], capfd)
    assert "the network is down" in refusal(["launch", "--local", "--resume", str(run)], capfd)
    Unreliable.fail(())
    main(["launch", "--local", "--resume", str(run)])
    assert checkpoints.load_latest(unreliable).step > saved.step


def test_of_two_runs_at_one_url_the_last_goes_on(tmp_path: Path) -> None:
    class NoDisplay:
        def update(self, progress: Progress) -> None:
            raise AssertionError("nothing is to be learned here")

    url, stop = f"file://{tmp_path}/store", StopRequest()
    stop.signal = signal.SIGINT
    config = RunConfig(
        agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(model_size=16)), checkpoint_url=url
    )
    first, second = (Trainer(config, tmp_path / name, local=True) for name in ("first", "second"))
    first.claim(new=True)
    first.train(NoDisplay(), stop)
    with pytest.raises(ValueError, match=f"{url} already has checkpoints: expected a new URL, or --resume {url}"):
        second.claim(new=True)
    first.save(first.learner)

    second.claim(new=False)
    second.restore()
    with pytest.raises(UserError, match=rf"taken over by {second.run} on .*; this run ends with {first.saved}"):
        first.save(first.learner)
    assert checkpoints.load_latest(url).path == first.saved, "the first wrote after it was displaced"
    second.save(second.learner)
    assert checkpoints.load_latest(url).path == second.saved != first.saved
