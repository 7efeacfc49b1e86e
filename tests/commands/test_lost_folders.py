"""A run's folder that is moved, removed or replaced while the run trains: one line, nothing lost, no half folder."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import main
from learner import checkpoints
from tests.commands.cli import TINY, frames, refusal, saved_steps
from training.console import LiveLine
from training.impala import Trainer
from training.run import claim

Capture = pytest.CaptureFixture[str]


def at_call(
    number: int, kind: type, method: str, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lets something happen when a method is called for the `number`-th time."""
    before, count = getattr(kind, method), itertools.count(1)

    def after(*arguments: object) -> object:
        if next(count) == number:
            happens()
        return before(*arguments)

    monkeypatch.setattr(kind, method, after)


def remove(run: Path) -> None:
    while run.exists():  # TensorBoard's thread may put its file there once more
        shutil.rmtree(run, ignore_errors=True)


def launched(run: Path, *others: str) -> list[str]:
    slowly = [option for option in TINY if not option.startswith("--checkpoint-seconds")]
    return ["launch", "--local", "--run", str(run), f"--frames={frames(30)}", *slowly, *others]


def move(run: Path, other: Path, again: bool) -> Callable[[], None]:
    def happen() -> None:
        run.rename(other)
        if again:
            run.mkdir()

    return happen


@pytest.mark.parametrize("again", [False, True], ids=["moved", "replaced"])
def test_a_run_that_was_moved(again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    at_call(4, Trainer, "_get", move(run, other, again), monkeypatch)
    error = refusal(launched(run), capfd)
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", "200")
    last = saved_steps(other)[-1]
    assert last > 0, "what was learned since the first checkpoint is there"
    assert f"{run} was moved to {other} while it was in use; " in error
    go_on = f"go on from {other}/checkpoints/{last:012d} with: compressive launch --resume {other} --local"
    assert error.endswith(f"{go_on}\n")
    assert list(run.iterdir()) == [] if again else not run.exists()
    main(["launch", "--local", "--resume", str(other), f"--frames={frames(6)}"])
    assert saved_steps(other)[-1] > last


def test_a_run_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    run = tmp_path / "run"
    at_call(4, Trainer, "_get", lambda: remove(run), monkeypatch)
    error = refusal(launched(run), capfd)
    assert f"{run} was removed or replaced while it was in use, and with it all that was learned" in error
    assert not run.exists()


def test_a_removed_run_whose_checkpoints_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    run, url = tmp_path / "run", f"file://{tmp_path}/store"
    at_call(4, Trainer, "_get", lambda: remove(run), monkeypatch)
    error = refusal(launched(run, "--checkpoint-url", url), capfd)
    saved = checkpoints.load_latest(url)
    assert saved.step > 0
    assert f"go on from {saved.path} with: compressive launch --resume {url}" in error


def test_a_run_without_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    """Another process might claim the folder: so this one leaves it, with a checkpoint if it is not yet claimed."""
    run = tmp_path / "run"
    at_call(4, Trainer, "_get", (run / ".lock").unlink, monkeypatch)
    error = refusal(launched(run), capfd)
    assert f"{run}/.lock was removed while it was in use; go on from {run}/checkpoints/" in error
    assert saved_steps(run)[-1] > 0


def test_what_resuming_needs_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"

    def happens() -> None:
        shutil.rmtree(run / "checkpoints")
        (run / "config.json").unlink()

    at_call(4, Trainer, "_get", happens, monkeypatch)
    main(launched(run))
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", "200")
    main(["launch", "--local", "--resume", str(run), f"--frames={frames(32)}"])


@pytest.mark.parametrize("again", [False, True], ids=["moved", "replaced"])
def test_a_run_of_text_that_was_moved(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    from tests.commands.test_text import TINY as TEXT

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, other, corpus = tmp_path / "run", tmp_path / "other", tmp_path / "corpus"
    corpus.mkdir()
    for index in range(30):
        (corpus / f"{index}.txt").write_text(f"def function_{index}(x):\n    return x + {index}\n" * 20)
    at_call(5, LiveLine, "update", move(run, other, again), monkeypatch)
    error = refusal(["text", "train", *TEXT, f"--path={corpus}", f"--run={run}", "--learner.steps=40"], capfd)
    assert (
        f"{run} was moved to {other} while it was in use; resume with: compressive text train --resume {other}" in error
    )
    assert saved_steps(other)[-1] > 0
    assert list(run.iterdir()) == [] if again else not run.exists()


def test_a_folder_that_another_process_has_is_not_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with claim(run, True, lambda: True) as first:
        assert not first.lost
        assert first.find() == run
        (run / ".lock").unlink()
        with claim(run, False, lambda: True) as second:
            assert (first.lost, second.lost) == (True, False)
            assert (first.find(), second.find()) == (None, run)
