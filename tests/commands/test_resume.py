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
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.cuda_graphs import RecordingFailed
from commands import main
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import (
    COMPRESSIVE_TEXT,
    ENVIRONMENT,
    SMALL,
    TINY,
    TINY_SEQUENCE,
    Commands,
    command,
    frames,
    saved_steps,
    start,
    state,
    write_corpus,
)
from tests.waiting import wait_until
from training.progress import Clock

LAUNCH = ["launch", "--local", *TINY]
RESUME = ["launch", "--local", "--resume"]


class Kind(NamedTuple):
    """How runs of a kind are created and resumed, and the option that sets their length, in units of its own."""

    new: list[str]
    resume: list[str]
    length_option: str
    units_per_update: int

    def to(self, updates: int) -> str:
        """The option that sets the number of updates of the whole run."""
        return f"{self.length_option}={updates * self.units_per_update}"


# The same code resumes all kinds of sequence models.
SLOW_KINDS = [pytest.param(name, marks=pytest.mark.slow) for name in ("text", "speech", "images")]


@pytest.fixture(scope="module", params=["agent", *SLOW_KINDS])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """Each kind of run, with a checkpoint after every update."""
    name = request.param
    if name == "agent":
        return Kind(LAUNCH, RESUME, "--frames", frames(1))
    corpus = write_corpus(name, tmp_path_factory.mktemp(name) / "corpus")
    if name == "text":
        options = [*COMPRESSIVE_TEXT, f"--path={corpus}", "--checkpoint-seconds=0"]
    else:
        options = [*TINY_SEQUENCE[name], f"--corpus.path={corpus}"]
    train = [name, "train", "--threads=1"]
    return Kind([*train, *options], [*train, "--resume"], "--learner.steps", 1)


@pytest.fixture(scope="module")
def straight(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 updates without interruption."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    main([*kind.new, "--run", str(folder), kind.to(30)])
    return folder


def results(folder: Path) -> Any:
    """All that must be equal after interruptions: learned state, logged steps, and evaluation.

    The speed of the evaluation and the path of its samples differ.
    """
    steps = [row["step"] for row in read_metrics(folder)]
    summary = json.loads((folder / "evaluation.json").read_text())
    for name in ("tokens_per_second", "drawn"):
        summary.pop(name, None)
    return state(folder), steps, summary


def test_interrupted_equals_uninterrupted(kind: Kind, straight: Path, tmp_path: Path, cli: Commands) -> None:
    """Ctrl-C, then kill -9, then the end; what is finished is evaluated again, or trained for longer."""
    folder = tmp_path / "run"
    end = saved_steps(straight)[-1]

    # Ctrl-C.
    with (tmp_path / "screen").open("w+") as screen:
        process = start(*kind.new, "--run", folder, kind.to(30), output=screen)
        wait_until(lambda: len(saved_steps(folder)) > 1, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        screen.seek(0)
        said = screen.read()
    assert f"resume with: compressive {kind.resume[0]}" in said
    assert f"--resume {folder}" in said
    first = saved_steps(folder)[-1]
    assert 0 < first < end, "stopped too late to show anything"

    # kill -9.
    process = start(*kind.resume, folder)
    wait_until(lambda: saved_steps(folder)[-1] > first, process)
    process.kill()
    process.wait()
    assert first < saved_steps(folder)[-1] < end, "killed too late to show anything"

    # The end; once more, which changes nothing; and two updates more.
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
    for name in (".lock", "config.json-0123abcd.tmp", "checkpoints/000000000000.tmp/state.json"):
        (folder / name).write_text("{")
    Run(folder).write_config({"seed": 0})
    cli.run(*kind.new, "--run", folder, kind.to(1))
    assert saved_steps(folder)[-1] > 0


@pytest.mark.slow
def test_options_with_which_nothing_is_learned_do_not_stay(copied: Callable[..., Path], cli: Commands) -> None:
    """A finished run that is resumed for longer, and fails at once, is what it was: it can be resumed and shown."""
    folder = copied()
    before = {name: json.loads((folder / name).read_text()) for name in ("config.json", "evaluation.json")}
    with pytest.raises(SystemExit):
        cli.run(*RESUME, folder, f"--frames={frames(40)}", "--learner.learning-rate=1e30", SELDOM)
    error = cli.capfd.readouterr().err
    assert "--learner.learning-rate 2.5e+29 (nothing was saved in this launch, so that config.json is as" in error
    assert {name: json.loads((folder / name).read_text()) for name in before} == before
    assert re.search("state +finished", cli.run("status", folder))
    assert "finished" in cli.run(*RESUME, folder, f"--frames={frames(32)}")


def test_a_recording_that_fails_is_resumed_without_graphs(
    at_update: Callable[..., None], tmp_path: Path, cli: Commands
) -> None:
    def fail() -> None:
        raise RecordingFailed("an update cannot be recorded as a CUDA graph")

    folder = tmp_path / "run"
    at_update(fail)
    words = ["launch", "--local", "--env=diagnostic:recall,delay=2", *SMALL, "--frames=100000", "--run", folder]
    with pytest.raises(SystemExit) as stop:
        cli.run(*words)
    (error,) = cli.capfd.readouterr().err.splitlines()
    assert stop.value.code == 1
    assert error.startswith("compressive: an update cannot be recorded as a CUDA graph; resume from ")
    assert error.endswith(f"--resume {folder} --local --learner.no-cuda-graph")


# A run's folder that is moved, removed or replaced.


@pytest.fixture
def at_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen at the end of the fourth update."""
    original = Clock.mark
    updates = itertools.count(1)

    def install(happens: Callable[[], object]) -> None:
        def mark(clock: Clock, steps: int) -> None:
            if next(updates) == 4:
                happens()
            original(clock, steps)

        monkeypatch.setattr(Clock, "mark", mark)

    return install


def remove(folder: Path) -> None:
    """Removes a folder while a command writes to it."""
    while folder.exists():  # TensorBoard's thread may write its file again
        shutil.rmtree(folder, ignore_errors=True)


SELDOM = "--checkpoint-seconds=1000"
"""No checkpoint within a test, but for the first and the last one."""


@pytest.mark.parametrize("again", [False, True], ids=["moved", "replaced"])
def test_a_moved_run(again: bool, kind: Kind, at_update: Callable[..., None], tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    other = tmp_path / "other"

    def move() -> None:
        run.rename(other)
        if again:
            run.mkdir()

    at_update(move)
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


@pytest.mark.slow
def test_removed_checkpoints_are_written_again(at_update: Callable[..., None], tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    at_update(lambda: shutil.rmtree(run / "checkpoints"))
    cli.run(*LAUNCH, "--run", run, f"--frames={frames(30)}")
    cli.run(*RESUME, run, f"--frames={frames(32)}")


# Disks and checkpoints.


@pytest.fixture
def small_files() -> Iterator[Callable[[], None]]:
    """After the call no file may grow beyond 100 kB, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(copied: Callable[..., Path], small_files: Any, tmp_path: Path, cli: Commands) -> None:
    """It is noticed before the first update, and older checkpoints are kept."""
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
    steps = saved_steps(folder)
    *_, before, last = steps
    weights = [folder / "checkpoints" / f"{step:012d}" / "weights.safetensors" for step in steps]

    def truncate(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:1000])

    # The last one alone.
    truncate(weights[-1])
    skipped = f"skipped checkpoint {last:012d}: weights.safetensors has 1000 bytes instead of"
    printed = cli.run("evaluate", folder, "--episodes", 1)
    assert skipped in printed
    assert f"{before:012d}" in printed
    assert skipped.removeprefix("skipped checkpoint ") in cli.run("status", folder)
    printed = cli.run(*RESUME, folder, "--video-episodes", 0)
    assert skipped in printed
    assert f"resumed from {folder}/checkpoints/{before:012d}" in printed
    assert state(folder) == state(finished[0]), "what was lost was learned again"

    # All of them.
    for path in weights:
        truncate(path)
    for words in (RESUME, ["evaluate"]):
        error = cli.refuse(*words, folder, words="no checkpoint that can be read")
        assert error.count("1000 bytes instead of") == 3


# A terminal.


@pytest.mark.slow
@pytest.mark.parametrize("where", ["--local", pytest.param("--actors=1", marks=pytest.mark.ray)])
def test_a_pipe_whose_reader_ends(where: str, tmp_path: Path) -> None:
    """As in `compressive launch | head`: what was learned is saved."""
    folder = tmp_path / "run"
    words = command("launch", where, *SMALL, "--run", folder, "--frames", 10**8)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as process:
        assert process.stdout
        assert process.stderr
        while "frames/s" not in process.stdout.readline():
            pass
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE
    assert f"standard output was closed; resume from {folder / 'checkpoints'}" in said
    assert saved_steps(folder)[-1] > 0


@pytest.mark.slow
def test_a_terminal_of_60_columns_that_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    master, slave = pty.openpty()
    rows, columns = 30, 60
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    written = bytearray()

    def read() -> None:
        try:
            while data := os.read(master, 4096):
                written.extend(data)
        except OSError:  # closed
            pass

    threading.Thread(target=read, daemon=True).start()

    # The terminal controls the process, which therefore receives SIGHUP when it is closed.
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "COLUMNS"}
    process = start(
        *LAUNCH,
        *("--run", folder, "--frames", frames(10_000)),
        output=slave,
        stdin=slave,
        start_new_session=True,
        env=environment | {"TERM": "xterm"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    wait_until(lambda: b"frames/s" in written and len(saved_steps(folder)) > 2, process)
    before = saved_steps(folder)[-1]
    os.close(master)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert saved_steps(folder)[-1] >= before > 0

    # Lines of progress fit into the terminal.
    without_escapes = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written.decode())
    live = [line for line in re.split(r"[\r\n]+", without_escapes) if "frames/s" in line]
    assert live
    assert all(len(line) <= columns for line in live), live
