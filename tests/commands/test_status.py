"""`compressive status` of runs that are finished, stopped, running or damaged; `report` of damaged files likewise."""

import dataclasses
import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sequences.kinds import PRESETS
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.commands.cli import Commands
from training.console import quantity
from training.plain import to_plain

Copied = Callable[..., Path]


def rows_of(run: Path, cli: Commands) -> dict[str, str]:
    """The table that the command prints, by name, and how to resume if it says so."""
    found = {}
    for line in cli.run("status", run).splitlines():
        if line.startswith("resume with: "):
            name, value = line.split(": ", maxsplit=1)
        elif re.match(r"\S.*?  ", line):
            name, value = re.split("  +", line, maxsplit=1)
        else:
            continue
        found[name.strip()] = value.strip()
    return found


def test_states_of_a_run(copied: Copied, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    run = copied("my [red] run :bug:")
    last = read_metrics(run)[-1]

    # Finished.
    rows = rows_of(run, cli)
    assert rows["state"] == "finished"
    assert "resume with" not in rows
    assert (rows["environment"], rows["core"]) == ("rooms:small", "compressive")
    assert rows["return in training"] == f"{last['episode/return']:.1f}"
    assert "(100.0 %)" in rows["progress"]
    assert not {"actors", "frames/s", "policy lag", "learner idle"} & set(rows), "of a run that has ended"
    assert f"{last['step']:012d}" in rows["checkpoint"]

    # Without its evaluation.
    (run / "evaluation.json").unlink()
    rows = rows_of(run, cli)
    assert rows["state"] == "trained, but not evaluated"
    assert "resume with" in rows

    # Stopped after a quarter of its frames, on one machine and then with Ray.
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"frames": config["frames"] * 4}))
    monkeypatch.setenv("COLUMNS", "60")
    rows = rows_of(run, cli)
    assert rows["state"] == "stopped"
    again = ["compressive", "launch", "--resume", str(run)]
    assert shlex.split(rows["resume with"]) == [*again, "--local"], "as it was trained"
    with (run / "launches.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1e10, "command": "compressive launch --resume run"}) + "\n")
    assert shlex.split(rows_of(run, cli)["resume with"]) == again
    assert f"({100 * last['learner/frames'] / (4 * config['frames']):.1f} %)" in rows["progress"]

    # Running.
    with Run(run).lock():
        rows = rows_of(run, cli)
        assert rows["state"] == "running"
        assert rows["actors"] == "1 alive, 0 restarts"
        (run / "metrics.jsonl").unlink()
        rows = rows_of(run, cli)
    assert rows["state"] == "running; nothing measured yet"
    assert "return in training" not in rows

    # Stopped before its first row of metrics, but not before its first checkpoint.
    rows = rows_of(run, cli)
    assert rows["state"] == "stopped; nothing measured yet"
    assert "progress" not in rows
    assert shlex.split(rows["resume with"]) == again
    listed = cli.run("runs", run.parent)
    assert "stopped; nothing measured yet" in listed
    assert "0 of" not in listed


def test_status_and_runs_say_the_same(copied: Copied, cli: Commands) -> None:
    """Of a finished run its score in the evaluation, of others that of the last episodes of training."""
    run = copied()

    def said() -> tuple[str, str, str]:
        rows = rows_of(run, cli)
        listed = cli.run("runs", run)
        for name in ("state", "progress", "score"):
            assert rows[name] in listed, name
        return rows["state"], rows["progress"], rows["score"]

    state, progress, score = said()
    assert state == "finished"
    assert re.fullmatch(r"[\d.]+k of [\d.]+k frames \(100.0 %\)", progress)
    assert score.endswith("in the evaluation")

    (run / "evaluation.json").unlink()
    last = read_metrics(run)[-1]
    state, _, score = said()
    assert state == "trained, but not evaluated"
    assert score == f"oracle-normalized {last['episode/oracle_normalized']:.1f} % in training"


def test_what_is_lost_after_the_last_checkpoint(copied: Copied, cli: Commands) -> None:
    """After kill -9 rows of metrics are ahead of it."""
    run = copied(frames=1_000_000)
    assert "resumes at" not in rows_of(run, cli)
    last = read_metrics(run)[-1]
    ahead = last | {"step": 3 * last["step"], "learner/frames": 3 * last["learner/frames"]}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{json.dumps(ahead)}\n")
    frames = last["learner/frames"]
    rows = rows_of(run, cli)
    assert rows["resumes at"] == f"{quantity(frames)} frames; {quantity(2 * frames)} since then are lost"


ROWS = [
    '{"step": 1, "time": "x", "episode/return": [], "learner/frames": "many", "loss/compression/layer_x": 1}',
    '{"step": -1e308, "time": -1e308, "tasks/seen": 1, "learner/frames": 1e308, "policy_lag/max": Infinity}',
    "[" * 100_000,
]
"""Rows of metrics that are no JSON, or whose values no run writes."""


def test_damaged_metrics_and_evaluations(copied: Copied, cli: Commands) -> None:
    run = copied()
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for row in ROWS:
        metrics.write_text("".join([*lines, f"{row}\n"]))
        for reader in (["status"], ["report", "--episodes=0"]):
            assert "state" in cli.run(*reader, run)
    metrics.write_text("".join(lines[:-2]) + lines[-2][:50] + "\n" + lines[-1][:50])
    assert rows_of(run, cli)["state"] == "stopped"
    metrics.write_text('{"step": 5}\n')
    rows = rows_of(run, cli)
    assert (rows["return in training"], rows["measured"]) == ("-", "? ago")
    for text in ("[" * 100_000, "{}", '{"return": {"mean": "x"}}', "\0"):
        (run / "evaluation.json").write_text(text)
        cli.run("report", "--episodes=0", run)
        assert '"evaluation":{}' in (run / "report.html").read_text()


@pytest.mark.parametrize("reader", [["status"], ["report", "--episodes=0"]], ids=lambda words: words[0])
@pytest.mark.parametrize("target", [None, ".", "loop", "/dev/null"])
def test_folders_and_links_for_files(target: str | None, reader: list[str], copied: Copied, cli: Commands) -> None:
    run = copied()
    for name in ("evaluation.json", "metrics.jsonl"):
        path = run / name
        path.unlink()
        if target is None:
            path.mkdir()
        elif target == "loop":
            path.symlink_to(path)
        else:
            path.symlink_to(target)
        if name == "evaluation.json":
            assert "trained, but not evaluated" in cli.run(*reader, run)
    cli.refuse(*reader, run, words=["expected a regular file", "metrics.jsonl"])


@pytest.mark.parametrize("kind", ["text", "speech", "images"])
def test_runs_of_sequences(kind: str, tmp_path: Path, cli: Commands) -> None:
    run = Run(tmp_path / "run")
    config = PRESETS[kind]("cpu", "lstm")
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, steps=200))

    # Before its first checkpoint.
    run.checkpoints.mkdir(parents=True)
    run.write_config(to_plain(config))
    assert rows_of(run.path, cli) == {
        "run": str(run),
        "state": "stopped; nothing measured yet",
        "resume with": f"compressive {kind} train --resume {run}",
        "kind": kind,
        "core": "lstm",
        "checkpoint": f"{run} has no checkpoint yet",
    }

    # After two rows, of which the first one has the validation loss and the second one no finite loss.
    two_hours_ago = time.time() - 7200
    row = {"step": 100, "time": two_hours_ago, "loss/nll": 2.5, "speed/tokens_per_second": 2000.0}
    first = row | {"valid/bits_per_byte": 3.25, "valid/nll": 2.25}
    second = row | {"step": 200, "loss/nll": None}
    (run.path / "metrics.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    parts = {name: {"a": torch.zeros(1)} for name in ("weights", "optimizer")}
    checkpoints.save(run.path, 200, parts, {})
    rows = rows_of(run.path, cli)
    assert rows["state"] == "trained, but not evaluated"
    assert rows["progress"] == "200 of 200 steps (100.0 %)"
    assert rows["tokens/s"] == "2k"
    assert rows["loss in training"] == "-"
    assert rows["valid bits per byte"] == "3.2500 at step 100"
    assert rows["measured"].startswith("2:00:")
    assert rows["checkpoint"].startswith(f"{200:012d}")
