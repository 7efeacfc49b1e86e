"""`ray job submit --working-dir`, as in docs/clusters.md, on a real cluster of this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, PATIENCE, TINY, saved_steps, wait_until
from training.cluster import gauge_name

ROOT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


class Head(NamedTuple):
    """A cluster of one node: its temporary folder, where jobs are submitted, where metrics are read."""

    folder: Path
    dashboard: str
    metrics: str


def free_ports(number: int) -> list[int]:
    """Ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def answers(address: str) -> bool:
    """Whether there is something to read at an address."""
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard: pip install -e '.[cluster]'")
    names = ["port", "dashboard-port", "metrics-export-port", "ray-client-server-port"]
    names += ["dashboard-agent-listen-port", "dashboard-agent-grpc-port"]
    ports = dict(zip(names, free_ports(len(names))))
    environment = {
        **ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # the cluster's `python`
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": str(int(PATIENCE)),
        "RAY_metrics_report_interval_ms": "500",
    }
    # Ray's sockets lie in it, and their paths must be short.
    folders = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with folders as folder, (tmp_path / "head.log").open("w") as screen:
        options = ["--num-cpus=2", "--object-store-memory=200000000", f"--temp-dir={folder}"]
        options += [f"--{name}={port}" for name, port in ports.items()]
        start = [*RAY, "start", "--head", "--block", *options]
        process = subprocess.Popen(start, env=environment, cwd=folder, stdout=screen, stderr=subprocess.STDOUT)
        try:
            where = Head(Path(folder), *(f"http://127.0.0.1:{ports[names[i]]}" for i in (1, 2)))
            agent = f"http://127.0.0.1:{ports['dashboard-agent-listen-port']}/api/local_raylet_healthz"
            wait_until(lambda: answers(f"{where.dashboard}/api/version") and answers(agent), process)
            yield where
        finally:
            process.terminate()
            process.wait(PATIENCE)


def job(head: Head, *arguments: object) -> str:
    """Runs `ray job` and returns its output."""
    command = [*RAY, "job", arguments[0], f"--address={head.dashboard}", *map(str, arguments[1:])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, env=ENVIRONMENT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_trains_shows_its_metrics_and_stops_with_a_checkpoint(head: Head, tmp_path: Path) -> None:
    source, run = tmp_path / "source", tmp_path / "run"
    for package in ("agent", "envs", "actors", "learner", "training", "reports", "commands"):
        shutil.copytree(ROOT / package, source / package)
    shutil.copy(ROOT / ".gitignore", source)
    for left_out in ("runs/old", ".venv"):
        (source / left_out).mkdir(parents=True)
        (source / left_out / "large.bin").write_bytes(b"0")
    launch = ["python", "-m", "commands", "launch", "--ray-address", "auto", "--run", run, "--frames", 10**9]
    job(head, "submit", "--working-dir", source, "--submission-id=tiny", "--no-wait", "--", *launch, *TINY)
    wait_until(lambda: (run / "config.json").exists())  # the level is compiled for the new folder
    wait_until(lambda: last_metrics(run).get("episode/count", 0) > 0)

    (unpacked,) = (path for path in head.folder.glob("session_latest/runtime_resources/*/_ray_pkg_*") if path.is_dir())
    assert (unpacked / "commands" / "__main__.py").exists()
    assert not list(unpacked.rglob("large.bin"))

    def shown() -> dict[str, float]:
        text = urllib.request.urlopen(f"{head.metrics}/metrics", timeout=5).read().decode()
        found = re.findall(r'^ray_(\w+){.*run="run".*} (\S+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    wait_until(lambda: gauge_name("episode/return") in shown())
    numbers, names = shown(), ("episode/return", "learner/frames", "loss/total", "policy/entropy", "actors/alive")
    wait_until(lambda: last_metrics(run)["learner/frames"] > numbers[gauge_name("learner/frames")])
    for name in names:
        assert numbers[gauge_name(name)] in [pytest.approx(row[name]) for row in read_metrics(run) if name in row], name

    job(head, "stop", "tiny")
    log = job(head, "logs", "tiny")
    assert re.search(rf"stopped at .* resume with: compressive launch --resume {run} --ray-address auto", log), log
    assert saved_steps(run)[-1] == last_metrics(run)["step"]
    assert "STOPPED" in job(head, "list")
    (supervisor,) = head.folder.glob("session_latest/logs/jobs/supervisor-tiny.log")
    assert "terminated gracefully" in supervisor.read_text()


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_with_another_token_says_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "0", "RAY_USAGE_STATS_ENABLED": "0"}
    folders = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with folders as folder, (tmp_path / "head.log").open("w") as screen:
        options = ["--num-cpus=1", f"--port={port}", "--include-dashboard=false", "--object-store-memory=200000000"]
        begin = [*RAY, "start", "--head", "--block", f"--temp-dir={folder}", *options]
        process = subprocess.Popen(begin, env=environment, cwd=folder, stdout=screen, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), process)
            launch = [sys.executable, "-m", "commands", "launch", "--run", tmp_path / "run", *TINY]
            join = [*map(str, launch), "--ray-address", f"127.0.0.1:{port}"]
            result = subprocess.run(join, capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, cwd=ROOT)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert result.returncode == 2
    expected = "it is up, so set RAY_AUTH_MODE and the token as where `ray start` was typed"
    assert expected in result.stdout + result.stderr
