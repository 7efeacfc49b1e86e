"""The image of `docker/Dockerfile` is built and trains, alone and as the cluster of `docker/compose.yaml`.

It is built and run by buildah, without a daemon. Each container has processes and an address of its own. Where the
registries of images or of torch's builds cannot be reached, a base image may be made by hand, and IMAGE_OPTIONS holds
more options of `buildah bud`, such as --build-arg TORCH_INDEX=URL.
"""

import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from storage.run import Run
from tests.commands.cli import SMALL, saved_steps
from tests.machines import CAN_BE_MADE, NEEDED, machines
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
TORCH = re.search(r"^torch==(.*)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not CAN_BE_MADE, reason=NEEDED),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah"),
]
TINY = [*SMALL, "--env=rooms:small,episode_frames=160", "--frames=20k"]


def buildah(*words: object) -> str:
    """Runs buildah, whose containers are made without namespaces; returns its output."""
    done = subprocess.run(["buildah", *map(str, words)], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The image that the Dockerfile makes now, or IMAGE."""
    if made := os.environ.get("IMAGE"):
        yield made
        return
    options = shlex.split(os.environ.get("IMAGE_OPTIONS", ""))
    name = f"compressive-{secrets.token_hex(4)}"
    words = ["buildah", "bud", *options, "-t", name, "-f", "docker/Dockerfile", "."]
    built = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=_environment())
    unreachable = re.search(r"^no torch at .*|.*pinging container registry.*", built.stderr, re.MULTILINE)
    if unreachable:
        pytest.skip(f"a registry cannot be reached: {unreachable[0]}")
    assert built.returncode == 0, built.stderr[-2000:]
    yield f"localhost/{name}"
    buildah("rmi", name)


@pytest.fixture
def containers(image: str) -> Iterator[Callable[[], str]]:
    """Makes containers of the image, which are removed at the end."""
    made: list[str] = []

    def make() -> str:
        container = buildah("from", "--pull-never", image)
        made.append(container)
        return container

    yield make
    for name in made:
        buildah("rm", name)


def test_any_user_trains_in_the_image(containers: Callable[[], str], tmp_path: Path) -> None:
    container = containers()
    tmp_path.chmod(0o777)
    said = buildah("run", container, "--", "python", "-c", "import os, torch; print(os.getuid(), torch.__version__)")
    assert TORCH is not None
    assert said == f"1000 {TORCH[1]}+cpu"
    for user in ("1000", "54321"):
        words = ["run", "--user", user, "--volume", f"{tmp_path}:/runs", container, "--", "compressive", "launch"]
        said = buildah(*words, "--local", f"--run=/runs/{user}", *TINY)
        assert "finished" in said
        run = Run(tmp_path / user)
        assert run.evaluation_file().is_file()
        assert run.path.stat().st_uid == int(user)


def _service(name: str, head: str, token: str, container: str, temporary: Path, runs: Path) -> list[str]:
    """The words of `buildah run` that start a service of the Compose file.

    Args:
        head: the address of the machine on which the head is.
        temporary: the container's /tmp.
        runs: the folder of runs that all containers share.
    """
    launch = ["--run=/home/ray/runs/one", *TINY, "--actors=2", "--actors.placement=spread"]
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "ARGS": shlex.join(launch)}
    words = ["--volume", f"{temporary}:/tmp", "--volume", f"{runs}:/home/ray/runs"]
    for variable, value in variables.items():
        words += ["--env", f"{variable}={value}"]

    command = SERVICES[name]["command"]
    command = command.replace("$$", "$")  # as Compose does
    command = command.replace("head:", f"{head}:")  # there is no name server
    return [*words, container, "--", "sh", "-c", command]


def test_a_head_two_workers_and_a_driver(containers: Callable[[], str], tmp_path: Path) -> None:
    """With the commands of the Compose file."""
    services = ("head", "worker", "worker", "driver")
    token = secrets.token_hex(32)
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    logs: list[Path] = []
    processes: list[subprocess.Popen[bytes]] = []
    with machines(len(services)) as addresses, ExitStack() as stack:
        head = next(iter(addresses))
        for number, (machine, service) in enumerate(zip(addresses.values(), services, strict=True)):
            temporary = tmp_path / f"tmp-{number}"
            temporary.mkdir()
            temporary.chmod(0o1777)
            words = _service(service, head, token, containers(), temporary, runs)
            log = tmp_path / f"{number}-{service}.log"
            logs.append(log)
            processes.append(stack.enter_context(_running(machine, words, log)))
        wait_until(lambda: any(process.poll() is not None for process in processes))
        said = "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs)
        assert [process.poll() for process in processes] == [None, None, None, 0], said
    assert "2 actors" in logs[-1].read_text()
    assert len(saved_steps(runs / "one")) > 0
    assert Run(runs / "one").evaluation_file().is_file()


@contextmanager
def _running(machine: str, words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A container's command with its own processes on a machine; all of them are killed at the end."""
    apart = ["ip", "netns", "exec", machine, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*apart, "buildah", "run", *words], stdout=output, stderr=subprocess.STDOUT, env=_environment()
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
