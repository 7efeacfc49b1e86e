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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, TINY, run, saved_steps
from tests.waiting import PATIENCE, wait_until
from training.cluster import gauge_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PORTS = [
    "port", "dashboard-port", "metrics-export-port", "ray-client-server-port", "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
]  # fmt: skip
"""Options of `ray start` for the ports that would else be the same for every cluster of this machine."""
STORE = "--object-store-memory=200000000"


class Head(NamedTuple):
    """A cluster of one node: its temporary folder, where jobs are submitted, where metrics are read."""

    folder: Path
    dashboard: str
    metrics: str


def free_ports(number: int) -> list[int]:
    """Ports that are free now."""
    with ExitStack() as stack:
        ports: list[int] = []
        for _ in range(number):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(server.getsockname()[1])
        return ports


def answers(address: str) -> bool:
    """Whether there is something to read at an address."""
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


@contextmanager
def running(options: list[str], environment: dict[str, str], log: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """`ray start` in the foreground: its temporary folder, and its process, which is ended with the context."""
    # Ray's sockets lie in the folder, and their paths must be short.
    folders = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with folders as folder, log.open("w") as screen:
        start = [*RAY, "start", "--head", "--block", f"--temp-dir={folder}", *options]
        process = subprocess.Popen(
            start, env=environment, cwd=folder, stdout=screen, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield Path(folder), process
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard: pip install -e '.[cluster]'")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    options = [f"--{name}={port}" for name, port in ports.items()]
    environment = {
        **ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # the cluster's `python`
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": str(int(PATIENCE)),
        "RAY_metrics_report_interval_ms": "500",
    }
    dashboard = f"http://127.0.0.1:{ports['dashboard-port']}"
    metrics = f"http://127.0.0.1:{ports['metrics-export-port']}"
    agent = f"http://127.0.0.1:{ports['dashboard-agent-listen-port']}"
    with running(["--num-cpus=2", STORE, *options], environment, tmp_path / "head.log") as (folder, process):
        wait_until(lambda: answers(f"{dashboard}/api/version"), process)
        wait_until(lambda: answers(f"{agent}/api/local_raylet_healthz"), process)
        yield Head(folder, dashboard, metrics)


def job(head: Head, *arguments: object) -> str:
    """Runs `ray job` and returns its output."""
    command = [*RAY, "job", arguments[0], f"--address={head.dashboard}", *map(str, arguments[1:])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, env=ENVIRONMENT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def gauges(head: Head) -> dict[str, float]:
    """The numbers of the run `run` that Prometheus would read, by name."""
    text = urllib.request.urlopen(f"{head.metrics}/metrics", timeout=5).read().decode()
    found = re.findall(r'^ray_(\w+){.*run="run".*} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def copy_project(folder: Path) -> None:
    """The packages of the repository, and files that .gitignore leaves out."""
    for package in ("agent", "envs", "actors", "learner", "training", "reports", "commands"):
        shutil.copytree(ROOT / package, folder / package)
    shutil.copy(ROOT / ".gitignore", folder)
    for ignored in ("runs/old", ".venv"):
        (folder / ignored).mkdir(parents=True)
        (folder / ignored / "large.bin").write_bytes(b"0")


@pytest.mark.timeout(600)
def test_a_job_trains_shows_its_metrics_and_stops_with_a_checkpoint(head: Head, tmp_path: Path) -> None:
    source = tmp_path / "source"
    run = tmp_path / "run"
    copy_project(source)
    launch = ["python", "-m", "commands", "launch", "--ray-address", "auto", "--run", run, "--frames", 10**9, *TINY]
    job(head, "submit", "--working-dir", source, "--submission-id=tiny", "--no-wait", "--", *launch)
    wait_until(lambda: (run / "config.json").exists())  # the level is compiled for the new folder
    wait_until(lambda: last_metrics(run).get("episode/count", 0) > 0)

    # What was sent to the cluster.
    packages = head.folder.glob("session_latest/runtime_resources/*/_ray_pkg_*")
    (unpacked,) = [path for path in packages if path.is_dir()]
    assert (unpacked / "commands" / "__main__.py").exists()
    assert not list(unpacked.rglob("large.bin"))

    # Each number that is shown is one of the run's metrics.
    wait_until(lambda: gauge_name("episode/return") in gauges(head))
    shown = gauges(head)
    wait_until(lambda: last_metrics(run)["learner/frames"] > shown[gauge_name("learner/frames")])
    rows = read_metrics(run)
    for name in ("episode/return", "learner/frames", "loss/total", "policy/entropy", "actors/alive"):
        written = [pytest.approx(row[name]) for row in rows if name in row]
        assert shown[gauge_name(name)] in written, name

    # It is stopped as by Ctrl-C.
    job(head, "stop", "tiny")
    log = job(head, "logs", "tiny")
    assert re.search(rf"stopped at .* resume with: compressive launch --resume {run} --ray-address auto", log), log
    assert saved_steps(run)[-1] == last_metrics(run)["step"]
    assert "STOPPED" in job(head, "list")
    (supervisor,) = head.folder.glob("session_latest/logs/jobs/supervisor-tiny.log")
    assert "terminated gracefully" in supervisor.read_text()


def test_a_cluster_with_another_token_says_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "0", "RAY_USAGE_STATS_ENABLED": "0"}
    options = ["--num-cpus=1", STORE, f"--port={port}", "--include-dashboard=false"]
    log = tmp_path / "head.log"
    with running(options, environment, log) as (_, process):
        wait_until(lambda: "Ray runtime started" in log.read_text(), process)
        words = ["launch", "--run", tmp_path / "run", *TINY, "--ray-address", f"127.0.0.1:{port}"]
        result = run(*words)
    assert result.returncode == 2
    expected = "it is up, so set RAY_AUTH_MODE and the token as where `ray start` was typed"
    assert expected in result.stdout + result.stderr
