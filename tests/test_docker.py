"""Images, Compose file and manifests agree with the project and each other, and their commands are understood.

Nothing is built or started here.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import cli as ray_commands

from commands.options import LaunchOptions as Options
from commands.parsing import parse_launch as parse

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
LOCKED = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if line[0] != "#")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def manifest(name: str, kind: str) -> Any:
    """The one object of a kind in a file of manifests."""
    (found,) = (each for each in yaml.safe_load_all((DOCKER / name).read_text()) if each["kind"] == kind)
    return found["spec"]


JOB = manifest("rayjob.yaml", "RayJob")
CLUSTER = JOB["rayClusterSpec"]
GROUPS = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}


def written(path: Path) -> list[str]:
    """Commands in the indented blocks of a text, or of the comments of a file."""
    text = re.sub(r"\\\n#?", "", path.read_text())
    return re.findall(r"^(?:#   |    )(\S.*)$", text, re.MULTILINE)


def parts(line: str) -> Iterator[list[str]]:
    """The commands of Ray and of this project in a line of shell, as words; what a job runs is one of its own, too."""
    for command in re.sub(r"\$+ARGS", "", line).split("&& "):
        words = shlex.split(command, comments=True)
        for index, pair in enumerate(itertools.pairwise(words)):
            if pair[0] == "ray" or (pair[0] in ("compressive", "commands") and pair[1] in ("launch", "status")):
                yield words[index:]


READ = [path for path in DOCKER.iterdir() if path.suffix != ".sbatch"]  # which tests/test_slurm.py runs
LINES = [line for path in (ROOT / "docs" / "clusters.md", *READ) for line in written(path)]
STARTED = [service["command"] for service in COMPOSE["services"].values()]
LINES += [shlex.split(line)[-1] if " -c " in line else line for line in STARTED]
LINES += [JOB["entrypoint"]]
COMMANDS = {" ".join(words): words for line in LINES for words in parts(line)}
assert sum(words[0] == "ray" for words in COMMANDS.values()) >= 10
assert sum(words[1] == "launch" for words in COMMANDS.values()) >= 6


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_are_understood(words: list[str]) -> None:
    if words[0] == "ray":
        group = ray_commands
        while words[1:] and (found := getattr(group, "commands", {}).get(words[1])):
            group, words = found, words[1:]
        assert group is not ray_commands, words
        group.make_context("ray", words[1:])
    elif words[1] == "launch":
        parse(words[2:])
    else:
        assert words[1] == "status"


def test_versions_agree() -> None:
    assert CLUSTER["rayVersion"] == LOCKED["ray"]
    (python,) = re.findall(r"^ARG PYTHON=(.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert f'requires-python = ">={python}' in (ROOT / "pyproject.toml").read_text()


def test_the_image_has_every_package_and_its_context_no_more() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert all((ROOT / source).exists() for source in sources)
    (packages,) = re.findall(r"^include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert sources >= set(re.findall(r'"(\w+)\*"', packages))
    context = (ROOT / ".dockerignore").read_text().split("\n*\n")[1]
    assert set(re.findall(r"^!(\S+)$", context, re.MULTILINE)) == sources | {"docker/*.whl"}


def shell(*lines: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of a shell in which `pip` is a function."""
    return subprocess.run(["sh", "-c", "\n".join(lines)], env=variables, capture_output=True, text=True)


def test_torch_is_of_the_index_or_the_build_ends_in_a_clear_line(tmp_path: Path) -> None:
    """pip would take PyPI's build, which has CUDA, if it did not reach one of two indices."""
    steps = re.sub(r"\\\n", "", (DOCKER / "Dockerfile").read_text())
    (step,) = re.findall(r"^RUN (python .*)$", steps.replace("/app/", f"{tmp_path}/"), re.MULTILINE)[:1]
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    where = {
        "TORCH_INDEX": "https://index.test/cpu",
        "EXTRAS": "s3,gpu",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    built = shell('pip() { echo "pip $*"; }', step, **where)
    first, second = built.stdout.splitlines()
    assert first == f"pip install --no-cache-dir --no-deps --index-url https://index.test/cpu torch=={LOCKED['torch']}"
    assert second == f"pip install --no-cache-dir -c {tmp_path}/requirements.lock -r {tmp_path}/requirements.txt"
    assert built.returncode == 0
    extras = {requirement.partition(">")[0] for requirement in (tmp_path / "requirements.txt").read_text().splitlines()}
    assert {"torch", "s3fs", "numba-cuda[cu13]"} <= extras
    assert "ray[default]" not in extras
    failed = shell('pip() { echo "pip $*"; return 1; }', step, **where)
    assert failed.returncode == 1
    assert failed.stdout.splitlines() == [first], "nothing else is installed"
    assert failed.stderr.startswith("no torch at https://index.test/cpu: expected ")
    assert "--build-arg TORCH_INDEX=" in failed.stderr


def test_any_user_may_run_the_image() -> None:
    """What the image has compiled is used, and added to, by users that it does not know."""
    text = (DOCKER / "Dockerfile").read_text()
    (cache,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", text)
    assert f"install -d -o ray -m 777 {cache} " in text
    assert text.rindex(f"chmod -R a+rwX {cache}\n") > text.rindex("envs.prepare(")


def test_compose_builds_the_image_and_keeps_runs() -> None:
    home = re.findall(r"^WORKDIR (.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)[-1]
    for service in COMPOSE["services"].values():
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
        assert {"shm_size", "healthcheck"} <= set(service)
        assert service["environment"].items() >= COMPOSE["services"]["head"]["environment"].items()
    assert COMPOSE["services"]["driver"]["volumes"] == [f"runs:{home}/runs"]
    assert "runs" in COMPOSE["volumes"]


def test_both_manifests_describe_the_same_cluster() -> None:
    assert manifest("raycluster.yaml", "RayCluster") == CLUSTER
    name = "PersistentVolumeClaim"
    assert manifest("raycluster.yaml", name) == manifest("rayjob.yaml", name)


def test_the_run_of_the_job_fits_its_cluster() -> None:
    options: Options = parse(shlex.split(JOB["entrypoint"])[2:])
    actors, learners = GROUPS["actors"], GROUPS["learners"]

    def limit(group: dict[str, Any], resource: str) -> int:
        return int(group["template"]["spec"]["containers"][0]["resources"]["limits"][resource])

    assert options.actors.num_actors <= actors["maxReplicas"] * limit(actors, "cpu")
    assert options.learners == learners["minReplicas"] * limit(learners, "nvidia.com/gpu")
    assert int(learners["rayStartParams"]["num-cpus"]) == limit(learners, "nvidia.com/gpu"), "no CPU is left for actors"
    (head,) = CLUSTER["headGroupSpec"]["template"]["spec"]["containers"]
    assert options.run is not None
    assert options.run.is_relative_to(head["volumeMounts"][0]["mountPath"])
    assert options.run.is_absolute()


@pytest.mark.parametrize("group", [CLUSTER["headGroupSpec"], *GROUPS.values()], ids=["head", *GROUPS])
def test_every_node_runs_the_same_image_as_its_user(group: dict[str, Any]) -> None:
    spec = group["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"].split(":")[0] == COMPOSE["services"]["head"]["image"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    user = spec["securityContext"]["runAsUser"]
    assert re.findall(r"^USER (\d+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE) == [str(user)]
    assert f"useradd --create-home --uid {user} " in (DOCKER / "Dockerfile").read_text()
    if "groupName" in group:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
