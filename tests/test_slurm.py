"""`docker/slurm.sbatch` on two nodes, which are network namespaces, with stand-ins for SLURM's programs.

Each node has an address and ports of its own; processes and files are those of one machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.run import Run
from tests.commands.cli import ENVIRONMENT, SMALL, marked, saved_steps
from tests.custom_cores import __name__ as CORES
from tests.machines import CAN_BE_MADE, NEEDED, machine_of, machines
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent
AVERAGE = f"{CORES}:Average"
SCRIPT = ROOT / "docker" / "slurm.sbatch"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_BE_MADE, reason=NEEDED),
]
SRUN = """#!/bin/bash
# Runs the words behind the options once on each node of the job but the excluded one. As in SLURM since 22.05, the
# CPUs of a task are not those of the job unless an option says so.
export SLURM_CPUS_PER_TASK=1
while [[ $1 == --* ]]; do
    [[ $1 == --cpus-per-task=* ]] && SLURM_CPUS_PER_TASK=${1#--cpus-per-task=}
    [[ $1 == --exclude=* ]] && excluded=${1#--exclude=}
    shift
done
for node in $SLURM_JOB_NODELIST; do
    [[ $node == "$excluded" ]] && continue
    machine=MACHINE_${node//./_}
    SLURMD_NODENAME=$node ip netns exec "${!machine}" "$@" &
    parts+=($!)
done
trap 'kill -TERM "${parts[@]}"' TERM
wait
wait
"""
SCONTROL = """#!/bin/bash
# "show hostnames LIST" and "requeue JOB".
if [[ $1 == show ]]; then
    printf '%s\\n' $3
else
    touch "$QUEUED/$2"
fi
"""


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the script as SLURM does, on the first of two nodes: `submit(7, "--frames=100")`."""
    with machines(2) as nodes:
        yield from _submit(nodes, tmp_path)


def _submit(nodes: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    addresses = list(nodes)
    programs = tmp_path / "bin"
    programs.mkdir()
    compressive = f'#!/bin/bash\nexec {sys.executable} -m commands "$@"\n'
    ray = f'#!/bin/bash\necho "$@" >> "$QUEUED/$MARK.ray"\nexec {sys.executable} -m ray.scripts.scripts "$@"\n'
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "compressive": compressive, "ray": ray}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    started = []

    def start(job: int, *words: str) -> subprocess.Popen[str]:
        environment = {
            **ENVIRONMENT,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MARK": f"job-{job}",
            **{f"MACHINE_{address.replace('.', '_')}": machine for address, machine in nodes.items()},
            "QUEUED": str(tmp_path),
            "RUN": str(tmp_path / f"run-{job}"),
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": " ".join(addresses),
            "SLURM_NNODES": str(len(addresses)),
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_MEM_PER_NODE": "800",
        }
        del environment["RAY_AUTH_MODE"]
        with (tmp_path / f"{job}.log").open("a") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", nodes[addresses[0]], "bash", str(SCRIPT), *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def nodes_of_actors(job: int) -> set[str]:
    """Namespaces in which the job's actors run."""
    actors = marked(f"job-{job}", "ray::RemoteActor")
    return {machine_of(pid) for pid in actors} - {""}


def test_two_jobs_on_the_same_nodes(submit: Callable[..., Any], tmp_path: Path) -> None:
    """Both train at once, each with an actor on the other node; one is saved, queued again, and resumes.

    That one has an environment and a core of the user's own, which a run that is resumed must be allowed.
    """
    words = [option for option in SMALL if not option.startswith(("--checkpoint", "--core"))]
    words += ["--actors=2", "--actors.placement=spread", "--checkpoint-seconds=0"]
    own = [*words, "--env", "gym:tests.envs.odd:Odd", f"--core={AVERAGE}", "--frames=900M"]
    first = submit(7, *own)
    second = submit(8, *words, "--core=lstm", "--env=rooms:small,episode_frames=160", "--frames=20k")
    logs = {job: tmp_path / f"{job}.log" for job in (7, 8)}
    runs = {job: Run(tmp_path / f"run-{job}") for job in (7, 8)}
    wait_until(lambda: len(nodes_of_actors(7)) == 2 or first.poll() is not None)
    assert first.poll() is None, logs[7].read_text()
    assert second.wait(PATIENCE) == 0, logs[8].read_text()
    assert runs[8].evaluation_file().is_file()
    assert "Ray runtime started" not in logs[8].read_text()
    printed = sorted(Path(f"{runs[8].path}.ray").iterdir())
    assert len(printed) == 2, "one for each node"
    started = [words for words in (tmp_path / "job-8.ray").read_text().splitlines() if words.startswith("start ")]
    assert [" --num-cpus 2 " in words for words in started] == [True, True]
    assert all("Ray runtime started" in file.read_text() for file in printed)
    wait_until(lambda: not marked("job-8"))

    assert first.poll() is None, logs[7].read_text()
    os.kill(first.pid, signal.SIGUSR1)
    assert first.wait(PATIENCE) == 128 + signal.SIGTERM, logs[7].read_text()
    assert (tmp_path / "7").exists()
    assert "resume with" in logs[7].read_text()
    wait_until(lambda: not marked("job-7"))
    saved = saved_steps(runs[7].path)[-1]
    before = len(logs[7].read_text())

    again = submit(7, *own)
    wait_until(lambda: saved_steps(runs[7].path)[-1] > saved or again.poll() is not None)
    assert again.poll() is None, logs[7].read_text()
    os.kill(again.pid, signal.SIGTERM)
    assert again.wait(PATIENCE) == 128 + signal.SIGTERM
    assert "resume with" in logs[7].read_text()[before:]
    assert not Path("/tmp/ray-7").exists()
    wait_until(lambda: not marked("job-7"))
