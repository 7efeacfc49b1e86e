"""`compressive launch` and `evaluate` as a person types them: real processes, real files, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import pytest
import torch

from commands import main
from learner import checkpoints
from learner.metrics import read_metrics

TINY = [
    "--agent.torso-size=16",
    "--agent.core.model-size=16",
    "--agent.core.mlp-size=16",
    "--actors.envs-per-actor=2",
    "--actors.unroll-length=16",
    "--eval-episodes=2",
    "--log-every=1",
    "--checkpoint-seconds=0.01",
]
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from commands import main; main()", *map(str, arguments)]


def run(*arguments: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT)


def frames(updates: int) -> int:
    """Environment frames of `updates` updates of the tiny run before any episode ends: rows x steps x repeat."""
    return updates * 2 * 16 * 4


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoints.load_latest(folder).parts["weights"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run in one process, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    result = run("launch", "--local", "--run", folder, "--frames", frames(30), *TINY)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_a_run_leaves_all_that_it_promises(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    config = json.loads((folder / "config.json").read_text())
    assert config["env"] == "rooms:small"
    assert config["agent"]["core"]["name"] == "compressive"
    assert list(folder.glob("events.out.tfevents.*"))
    assert 1 <= len(list((folder / "checkpoints").iterdir())) <= 3
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["episodes"] == 2
    for path in ("final.mp4", "metrics.jsonl", "checkpoints"):
        assert path in printed, "the screen says where things are"
    with av.open(str(folder / "videos" / "final.mp4")) as video:
        pictures = sum(1 for _ in video.decode(video=0))
    assert 2 * 180 <= pictures <= 2 * 181


def test_metrics_of_every_kind(finished: tuple[Path, str]) -> None:
    rows = read_metrics(finished[0])
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps))
    assert all(row["learner/frames"] == 4 * row["step"] for row in rows)
    assert {
        "episode/return", "episode/correct_choices", "episode/oracle_normalised", "speed/steps_per_second",
        "speed/frames_per_second", "policy_lag/mean", "learner/idle_fraction", "loss/policy", "loss/baseline",
        "loss/entropy", "gradient/norm", "loss/compression/layer_0", "loss/compression/layer_1",
        "attention/compressed", "attention/memory", "attention/segment",
    } <= set().union(*rows)  # fmt: skip
    last = rows[-1]
    assert sum(last[f"attention/{kind}"] for kind in ("compressed", "memory", "segment")) == pytest.approx(1, abs=1e-4)


def test_evaluate_reads_the_run(finished: tuple[Path, str]) -> None:
    first, second = (run("evaluate", finished[0], "--episodes", 2) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert "return" in first.stdout
    assert first.stdout == second.stdout, "the same seed plays the same episodes"


def test_an_interrupted_run_goes_on_exactly(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    process = subprocess.Popen(
        command("launch", "--local", "--run", folder, "--frames", frames(30), *TINY),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not list(folder.glob("checkpoints/[0-9]*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoints.load_latest(folder).step < checkpoints.load_latest(finished[0]).step, "killed too late to show"
    # A second interruption: the newest checkpoint is cut short, the one before takes its place, and the screen says so.
    names = sorted((folder / "checkpoints").glob("[0-9]*"))
    if len(names) > 1:
        part = names[-1] / "weights.safetensors"
        part.write_bytes(part.read_bytes()[:100])
    result = run("launch", "--local", "--resume", folder)
    assert result.returncode == 0, result.stderr
    if len(names) > 1:
        assert names[-1].name in result.stdout + result.stderr
        assert "skipped" in result.stdout + result.stderr
    expected, actual = weights(finished[0]), weights(folder)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    steps = [row["step"] for row in read_metrics(folder)]
    assert steps == [row["step"] for row in read_metrics(finished[0])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], ["launch", "evaluate", "'fly'"]),
        (["launch", "--preset", "gpu"], ["preset", "cpu", "paper", "'gpu'"]),
        (["launch", "--core", "rnn"], ["core", "compressive", "lstm", "'rnn'"]),
        (["launch", "--env", "rooms:tiny"], ["tiny", "full", "small"]),
        (["launch", "--env", "atari:pong"], ["atari:pong", "rooms"]),
        (["launch", "--env", "rooms:small,gravity=2"], ["gravity"]),
        (["launch", "--actors.unroll-length", "24"], ["unroll_length", "16", "24"]),
        (["launch", "--agent.core.compression-rate", "3"], ["compression_rate", "16", "3"]),
        (["launch", "--frames", "-1"], ["frames", "-1"]),
        (["launch", "--seed", "-1"], ["seed", "-1"]),
        (["launch", "--local", "--ray-address", "auto"], ["--local", "--ray-address"]),
        (["launch", "--preset", "paper", "--local"], ["deepmind_lab", "rooms:full"]),
        (["launch", "--resume", "EMPTY"], ["EMPTY", "config.json"]),
        (["launch", "--resume", "MISSING"], ["MISSING"]),
        (["launch", "--run", "FULL"], ["FULL", "--resume"]),
        (["evaluate", "EMPTY"], ["EMPTY", "config.json"]),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "thesis.txt").write_text("all of it")
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capfd.readouterr().err.strip()
    assert len(error.splitlines()) == 1, error
    assert all(word in error for word in words), error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "FULL"], "nothing is left behind"


def test_a_resumed_run_keeps_its_agent(finished: tuple[Path, str], capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["launch", "--resume", str(finished[0]), "--agent.core.num-layers", "3"])
    assert stop.value.code == 2
    assert "num_layers" in capfd.readouterr().err


def children(pid: int, title: str) -> list[int]:
    """Processes below `pid` whose title contains the words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid:
                found += [int(entry.name)] if title in (entry / "cmdline").read_text() else []
                found += children(int(entry.name), title)
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.ray
@pytest.mark.slow
def test_killed_actor_and_killed_program_on_ray(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["launch", "--run", folder, "--frames", 400_000_000, *TINY]
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )

    def wait(condition: str, seconds: float = 120) -> dict:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert process.poll() is None, "the run ended"
            rows = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
            if rows and eval(condition, {}, {"row": rows[-1]}):
                return rows[-1]
            time.sleep(0.2)
        raise AssertionError(f"waited {seconds} s for {condition}")

    try:
        wait("row['actors/alive'] == 2")
        victims = children(process.pid, "ray::RemoteActor")
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        row = wait("row['actors/restarts'] == 1 and row['actors/alive'] == 2")
        before = wait(f"row['step'] > {row['step']} + 500")["step"]
    finally:
        process.kill()
        process.wait()
    saved = checkpoints.load_latest(folder).step
    assert saved >= before / 2, "at most a checkpoint interval is lost"
    result = run("launch", "--resume", folder, "--frames", 4 * saved + 2000)
    assert result.returncode == 0, result.stderr
    steps = [row["step"] for row in read_metrics(folder)]
    assert steps == sorted(set(steps))
    assert checkpoints.load_latest(folder).step > saved
