"""Workflows, templates and hooks are well formed and agree with the Makefile and pyproject.toml.

Nothing is sent to a service here.
"""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps_of(job: dict[str, Any]) -> list[str]:
    """The commands of a job."""
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflows_call_targets_of_the_makefile() -> None:
    jobs = load(GITHUB / "workflows" / "tests.yml")["jobs"]
    commands = [command for job in jobs.values() for command in steps_of(job)]
    called = {word for command in commands for word in shlex.split(command) if word != "make"}
    assert all(command.startswith("make ") for command in commands), "what runs there can be run by anybody"
    assert called <= TARGETS
    checks = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert called >= set(checks)
    assert {"test", "lint"} <= set(checks)


def test_workflows_run_every_python_that_is_promised() -> None:
    workflow = load(GITHUB / "workflows" / "tests.yml")
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    for job in workflow["jobs"].values():
        (python,) = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/setup-python@")]
        assert python["python-version"] in (*PYTHONS, "${{ matrix.python }}")
        assert (ROOT / python["cache-dependency-path"]).is_file()
        assert job["timeout-minutes"] > 0
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", ["bug", "question"])
def test_issue_forms_are_complete(name: str) -> None:
    form = load(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    identifiers = [part["id"] for part in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    for part in form["body"]:
        assert part["type"] == "textarea"
        assert part["attributes"]["label"]
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_hooks_run_the_commands_of_lint() -> None:
    (local,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    for entry, command in zip(entries, re.findall(r"^\t\$\(BIN\)/(.+)$", lint, re.MULTILINE), strict=True):
        words = [word for word in command.split() if word != "." and not word.startswith("--")]
        assert entry.split()[: len(words)] == [f".venv/bin/{words[0]}", *words[1:]]
