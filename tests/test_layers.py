"""Imports go one way only: the table of docs/decisions.md, kept by reading every import statement."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "agent": set(),
    "envs": set(),
    "actors": {"agent", "envs"},
    "learner": {"agent"},
    "text": {"agent", "learner"},
    "speech": {"agent", "learner"},
    "commands": {"agent", "envs", "actors", "learner", "text", "speech"},
}
RAY_ALLOWED = {
    "actors/ray_pool.py",
    "learner/group.py",
    "commands/launch.py",
    "training/ray_head.py",
    "training/ray_metrics.py",
    "training/sequence_ray.py",
    "training/sweep.py",
}


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_follow_the_layers(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        ours = imported(path) & set(ALLOWED) - {package}
        assert ours <= ALLOWED[package], f"{path.relative_to(ROOT)} imports {ours - ALLOWED[package]}"
        if "ray" in imported(path):
            assert str(path.relative_to(ROOT)) in RAY_ALLOWED, f"{path.relative_to(ROOT)} imports ray"


def test_networks_need_only_torch() -> None:
    for path in (ROOT / "agent").rglob("*.py"):
        others = imported(path) - set(sys.stdlib_module_names) - {"agent", "torch"}
        assert not others, f"{path.relative_to(ROOT)} imports {others}"
