"""`compressive status` of runs that are finished, stopped, in progress, damaged or not yet begun."""

import fcntl
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from commands import main
from learner import checkpoints
from learner.metrics import read_metrics
from tests.commands.cli import refusal
from tests.commands.test_config import SEQUENCES

Capture = pytest.CaptureFixture[str]
Copied = Callable[..., Path]


def rows_of(run: Path, capsys: Capture) -> dict[str, str]:
    """The table that the command prints, by name, and how to go on if it says so."""
    main(["status", str(run)])
    lines = capsys.readouterr().out.splitlines()
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    again = [line.split(": ", 1) for line in lines if line.startswith("go on with: ")]
    return {name.strip(): value.strip() for name, value in cells + again}


def test_a_finished_run(copied: Copied, capsys: Capture) -> None:
    run = copied()
    rows, last = rows_of(run, capsys), read_metrics(run)[-1]
    assert rows["state"] == "finished"
    assert "go on with" not in rows
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
    assert (rows["state"], rows["go on with"]) == ("stopped", f"compressive launch --resume {run}")
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


def test_the_command_to_go_on_can_be_copied(copied: Copied, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    run = copied("my [red] run :bug:")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"frames": config["frames"] * 4}))
    again = rows_of(run, capsys)["go on with"]
    assert shlex.split(again) == ["compressive", "launch", "--resume", str(run)]


def test_a_run_that_was_not_evaluated_is_not_finished(copied: Copied, capsys: Capture) -> None:
    run = copied()
    (run / "evaluation.json").unlink()
    rows = rows_of(run, capsys)
    assert rows["state"] == "trained, but not evaluated"
    assert rows["go on with"] == f"compressive launch --resume {run}"


def test_torn_metrics(copied: Copied, capsys: Capture) -> None:
    run = copied()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-2]) + lines[-2][:50] + "\n" + lines[-1][:50])
    assert rows_of(run, capsys)["state"] == "stopped"
    (run / "metrics.jsonl").write_text('{"step": 5}\n')
    rows = rows_of(run, capsys)
    assert (rows["return"], rows["measured"]) == ("-", "? ago")


READERS = pytest.mark.parametrize("reader", [["status"], ["report", "--episodes=0"]], ids=lambda words: words[0])


@READERS
@pytest.mark.parametrize(
    "row",
    [
        '{"step": 1, "time": "x", "episode/return": [], "learner/frames": "many", "loss/compression/layer_x": 1}',
        '{"step": -1e308, "time": -1e308, "tasks/seen": 1, "learner/frames": 1e308, "policy_lag/max": Infinity}',
        "[" * 100_000,
    ],
    ids=["words", "large", "nested"],
)
def test_rows_that_no_run_has_written(row: str, reader: list[str], copied: Copied, capsys: Capture) -> None:
    run = copied()
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(f"{row}\n")
    main([*reader, str(run)])
    assert "state" in capsys.readouterr().out


@READERS
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluation.json"])
@pytest.mark.parametrize("target", [None, ".", "loop", "/dev/null"])
def test_what_is_no_file(target: str | None, name: str, reader: list[str], copied: Copied, capfd: Capture) -> None:
    run = copied()
    path = run / name
    path.unlink()
    path.symlink_to(path if target == "loop" else target) if target else path.mkdir()
    if name == "metrics.jsonl":
        assert "metrics.jsonl: expected a file with rows of metrics" in refusal([*reader, str(run)], capfd)
    else:
        main([*reader, str(run)])
        assert "trained, but not evaluated" in capfd.readouterr().out


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", '{"return": {"mean": "x"}}', "\0"], ids=range(4))
def test_a_damaged_evaluation_is_left_out_of_a_report(text: str, copied: Copied) -> None:
    run = copied()
    (run / "evaluation.json").write_text(text)
    main(["report", "--episodes=0", str(run)])
    assert '"evaluation":{}' in (run / "report.html").read_text()


@pytest.mark.parametrize("kind", SEQUENCES)
def test_runs_of_text_and_speech(kind: str, tmp_path: Path, capsys: Capture) -> None:
    plain, run = SEQUENCES[kind], tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(plain))
    assert rows_of(run, capsys) == {
        "state": "stopped",
        "go on with": f"compressive {kind} train --resume {run}",
        "kind": kind,
        "core": {"text": "compressive", "speech": "lstm"}[kind],
        "checkpoint": f"{run} has no checkpoint yet",
    }
    total = plain["learner"]["steps"]
    row = {"step": total // 2, "time": time.time() - 7200, "loss/nll": 2.5, "speed/tokens_per_second": 2000.0}
    measured = {"valid/nll": 2.25, "valid/bits_per_byte": 3.25}
    last = row | {"step": total, "loss/nll": None}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (row | measured, last)))
    checkpoints.save(run, total, {"weights": {"a": torch.zeros(1)}}, {})
    rows = rows_of(run, capsys)
    assert rows["state"] == "trained, but not evaluated"
    assert rows["steps"].endswith("(100.0 %)")
    assert (rows["tokens/s"], rows["loss"]) == ("2k", "-")
    assert rows["measured"].startswith("2:00:")
    assert rows["valid nll"].startswith("2.2500 at step ")
    assert rows["valid bits per byte"].startswith("3.2500 at step ")
    assert rows["checkpoint"].startswith(f"{total:012d}")
    (run / "evaluation.json").write_text("{}")
    assert rows_of(run, capsys)["state"] == "finished"


def test_a_damaged_config_of_text(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "config.json").write_text('{"kind": "text", "learner": []}')
    assert "config.json: expected a configuration of text" in refusal(["status", str(tmp_path)], capfd)
