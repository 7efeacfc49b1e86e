"""Interruptions of every kind of run: Ctrl-C, kill -9, moved folders, full disks, damaged checkpoints."""

import fcntl
import itertools
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import main
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import (
    COMPRESSIVE_TEXT,
    ENVIRONMENT,
    TINY,
    TINY_SEQUENCE,
    Commands,
    frames,
    saved_steps,
    start,
    state,
    wait_until,
    write_corpus,
)
from training.progress import Clock

LAUNCH = ["launch", "--local", *TINY]
RESUME = ["launch", "--local", "--resume"]


class Kind(NamedTuple):
    """How runs of a kind are created and resumed."""

    new: list[str]
    resume: list[str]
    length: str
    updates: int

    def to(self, updates: int) -> str:
        """The option that sets the number of updates of the whole run."""
        return f"{self.length}={updates * self.updates}"


@pytest.fixture(scope="module", params=["agent", "text", "speech", "images"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    if request.param == "agent":
        return Kind(LAUNCH, RESUME, "--frames", frames(1))
    corpus = write_corpus(request.param, tmp_path_factory.mktemp(request.param) / "corpus")
    new = [*COMPRESSIVE_TEXT, f"--path={corpus}", "--checkpoint-seconds=0"]
    new = new if request.param == "text" else [*TINY_SEQUENCE[request.param], f"--corpus.path={corpus}"]
    train = [request.param, "train", "--threads=1"]
    return Kind([*train, *new], [*train, "--resume"], "--learner.steps", 1)


@pytest.fixture(scope="module")
def straight(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 updates without interruption."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    main([*kind.new, "--run", str(folder), kind.to(30)])
    return folder


def results(folder: Path) -> Any:
    """All that must be equal after interruptions: learned state, logged steps and evaluation, but for its speed."""
    summary = json.loads((folder / "evaluation.json").read_text())
    scores = {name: value for name, value in summary.items() if name not in ("tokens_per_second", "drawn")}
    return state(folder), [row["step"] for row in read_metrics(folder)], scores


def test_interrupted_equals_uninterrupted(kind: Kind, straight: Path, tmp_path: Path, cli: Commands) -> None:
    """Ctrl-C, then kill -9, then the end; what is finished is evaluated again, or trained for longer."""
    folder, end = tmp_path / "run", saved_steps(straight)[-1]
    with (tmp_path / "screen").open("w+") as screen:
        process = start(*kind.new, "--run", folder, kind.to(30), output=screen)
        wait_until(lambda: len(saved_steps(folder)) > 1, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        screen.seek(0)
        assert f"resume with: compressive {kind.resume[0]}" in (said := screen.read())
        assert f"--resume {folder}" in said
    first = saved_steps(folder)[-1]
    assert 0 < first < end, "stopped too late to show anything"
    process = start(*kind.resume, folder)
    wait_until(lambda: saved_steps(folder)[-1] > first, process)
    process.kill()
    process.wait()
    assert first < saved_steps(folder)[-1] < end, "killed too late to show anything"

    assert "resumed" in cli.run(*kind.resume, folder)
    assert results(folder) == results(straight)
    cli.run(*kind.resume, folder)
    assert results(folder) == results(straight), "resumed twice"
    cli.run(*kind.resume, folder, kind.to(32))
    assert saved_steps(folder)[-1] > end


def test_two_programs_want_one_run(kind: Kind, straight: Path, cli: Commands) -> None:
    with Run(straight).lock():
        cli.refuse(*kind.resume, straight, words=f"{straight} is in use by another process")


def test_a_launch_killed_before_its_first_checkpoint(kind: Kind, tmp_path: Path, cli: Commands) -> None:
    """What it leaves is no run, and the folder can be used."""
    folder = tmp_path / "run"
    (folder / "checkpoints" / "000000000000.tmp").mkdir(parents=True)
    for name in (".lock", "config.json", "config.json.tmp", "checkpoints/000000000000.tmp/state.json"):
        (folder / name).write_text("{")
    cli.run(*kind.new, "--run", folder, kind.to(1))
    assert saved_steps(folder)[-1] > 0


# A run's folder that is moved, removed or replaced.


@pytest.fixture
def at_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen at the end of the fourth update."""
    mark, count = Clock.mark, itertools.count(1)
    when = lambda happens: lambda clock, steps: (next(count) == 4 and happens(), mark(clock, steps))  # noqa: E731
    return lambda happens: monkeypatch.setattr(Clock, "mark", when(happens))


def remove(folder: Path) -> None:
    while folder.exists():  # TensorBoard's thread may write its file again
        shutil.rmtree(folder, ignore_errors=True)


SELDOM = "--checkpoint-seconds=1000"


@pytest.mark.parametrize("again", [False, True], ids=["moved", "replaced"])
def test_a_moved_run(again: bool, kind: Kind, at_update: Callable[..., None], tmp_path: Path, cli: Commands) -> None:
    run, other = tmp_path / "run", tmp_path / "other"

    def happens() -> None:
        run.rename(other)
        if again:
            run.mkdir()

    at_update(happens)
    words = f"{run}: the folder was moved, removed or replaced while it was in use; its last checkpoint is where"
    cli.refuse(*kind.new, SELDOM, "--run", run, kind.to(30), words=words)
    assert not (run / "checkpoints").exists(), "nothing is saved in a folder that is not the run's"
    cli.run(*kind.resume, other, kind.to(6))
    assert saved_steps(other)[-1] > 0


def test_a_removed_run_with_a_url(at_update: Callable[..., None], tmp_path: Path, cli: Commands) -> None:
    run, url = tmp_path / "run", f"file://{tmp_path}/store"
    at_update(lambda: remove(run))
    error = cli.refuse(*LAUNCH, SELDOM, "--run", run, f"--frames={frames(30)}", "--checkpoint-url", url)
    assert f"resume from {checkpoints.load_latest(url).path} with: compressive launch --resume {url}" in error
    assert not run.exists()


def test_removed_checkpoints_are_written_again(at_update: Callable[..., None], tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    at_update(lambda: shutil.rmtree(run / "checkpoints"))
    cli.run(*LAUNCH, "--run", run, f"--frames={frames(30)}")
    cli.run(*RESUME, run, f"--frames={frames(32)}")


# Disks and checkpoints.


@pytest.fixture
def small_files() -> Iterator[Callable[[], None]]:
    """From the call on no file may grow beyond 100 kB, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(copied: Callable[..., Path], small_files: Any, tmp_path: Path, cli: Commands) -> None:
    """It is noticed before the first update, and spares older checkpoints."""
    folder = copied()
    before = saved_steps(folder)
    small_files()
    resume = f"resume from {folder}/checkpoints/{before[-1]:012d} with: compressive launch --resume {folder}"
    cli.refuse(*RESUME, folder, f"--frames={frames(40)}", words=["cannot be written to", resume])
    assert checkpoints.load_latest(folder).step == before[-1]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [f"{step:012d}" for step in before]
    cli.refuse(*LAUNCH, "--run", tmp_path / "new", "--agent.torso-size=256", words="cannot be written to")
    assert not (tmp_path / "new").exists()


def test_truncated_checkpoints(
    finished: tuple[Path, str], copied: Callable[..., Path], tmp_path: Path, cli: Commands
) -> None:
    """They are named and skipped for the one before."""
    folder = copied()
    weights = [folder / "checkpoints" / f"{step:012d}" / "weights.safetensors" for step in saved_steps(folder)]
    *_, before, last = saved_steps(folder)
    weights[-1].write_bytes(weights[-1].read_bytes()[:1000])
    skipped = f"skipped checkpoint {last:012d}: weights.safetensors has 1000 bytes instead of"
    printed = cli.run("evaluate", folder, "--episodes", 1)
    assert skipped in printed
    assert f"{before:012d}" in printed
    assert skipped.removeprefix("skipped checkpoint ") in cli.run("status", folder)
    printed = cli.run(*RESUME, folder, "--video-episodes", 0)
    assert skipped in printed
    assert f"resumed from {folder}/checkpoints/{before:012d}" in printed
    assert state(folder) == state(finished[0]), "what was lost was learned again"
    for path in weights:
        path.write_bytes(path.read_bytes()[:1000])
    for command in (RESUME, ["evaluate"]):
        error = cli.refuse(*command, folder, words="no checkpoint that can be read")
        assert error.count("1000 bytes instead of") == 3


# A terminal.


def test_a_terminal_of_60_columns_that_is_closed(tmp_path: Path) -> None:
    (master, slave), folder, written = pty.openpty(), tmp_path / "run", bytearray()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))

    def read() -> None:
        try:
            while data := os.read(master, 4096):
                written.extend(data)
        except OSError:  # closed
            pass

    threading.Thread(target=read, daemon=True).start()
    process = start(
        *(*LAUNCH, "--run", folder, "--frames", frames(10_000)),
        output=slave,
        stdin=slave,
        start_new_session=True,
        env={name: value for name, value in ENVIRONMENT.items() if name != "COLUMNS"} | {"TERM": "xterm"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    wait_until(lambda: b"frames/s" in written and len(saved_steps(folder)) > 2, process)
    before = saved_steps(folder)[-1]
    os.close(master)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert saved_steps(folder)[-1] >= before > 0
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", written.decode())]
    live = [line for line in lines if "frames/s" in line]
    assert live
    assert all(len(line) <= 60 for line in live), live
