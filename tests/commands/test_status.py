"""`compressive status` of runs that are finished, stopped, in progress, damaged or not yet begun."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import main
from learner.metrics import read_metrics

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]


def rows_of(run: Path, capsys: Capture) -> dict[str, str]:
    """The table that the command prints, by name."""
    main(["status", str(run)])
    cells = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in cells}


def test_a_finished_run(copied: Copied, capsys: Capture) -> None:
    run = copied()
    rows, last = rows_of(run, capsys), read_metrics(run)[-1]
    assert rows["state"] == "finished"
    assert (rows["environment"], rows["core"]) == ("rooms:small", "compressive")
    assert rows["return"] == f"{last['episode/return']:.1f}"
    assert "(100.0 %)" in rows["frames"]
    assert rows["actors"] == "2 alive, 0 restarts"
    assert f"{last['step']:012d}" in rows["checkpoint"]


def test_a_stopped_run_says_how_to_go_on(copied: Copied, capsys: Capture) -> None:
    run = copied()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"frames": config["frames"] * 4}))
    rows = rows_of(run, capsys)
    assert rows["state"] == f"stopped; go on with: compressive launch --resume {run}"
    share = read_metrics(run)[-1]["learner/frames"] / (4 * config["frames"])
    assert f"({100 * share:.1f} %)" in rows["frames"]


def test_a_run_in_progress_holds_its_lock(copied: Copied, capsys: Capture) -> None:
    run = copied()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rows_of(run, capsys)["state"] == "running"
        (run / "metrics.jsonl").unlink()
        rows = rows_of(run, capsys)
    assert rows["state"] == "running; nothing measured yet"
    assert "return" not in rows


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_counts(copied: Copied, capsys: Capture) -> None:
    run = copied()
    newest, before = sorted((run / "checkpoints").iterdir(), reverse=True)[:2]
    (newest / "weights.safetensors").write_bytes(b"")
    rows = rows_of(run, capsys)
    assert rows["checkpoint"].startswith(before.name)
    assert (
        rows["skipped 1"]
        == f"{newest.name}: weights.safetensors has 0 bytes instead of " + rows["skipped 1"].split()[-1]
    )


def test_a_run_without_checkpoints(copied: Copied, capsys: Capture) -> None:
    run = copied()
    for path in (run / "checkpoints").iterdir():
        path.rename(run / path.name)
    assert "no checkpoint yet" in rows_of(run, capsys)["checkpoint"]
