"""The structure of the code: imports between packages, and no circles between modules.

All import statements are read: those inside functions, relative ones and those for types only as well.
"""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BELOW_TRAINING = {"agent", "envs", "actors", "learner", "storage"}
ALLOWED: dict[str, set[str]] = {
    "agent": set(),
    "envs": set(),
    "actors": {"agent", "envs"},
    "learner": {"agent"},
    "storage": {"agent", "learner"},
    "training": BELOW_TRAINING,
    "sequences": BELOW_TRAINING | {"training"},
    "reports": BELOW_TRAINING | {"training", "sequences"},
    "commands": BELOW_TRAINING | {"training", "sequences", "reports"},
}
RAY = {
    "actors/ray_pool.py",
    "learner/group.py",
    "learner/placement.py",
    "learner/remote_learner.py",
    "training/cluster.py",
    "training/sweep.py",
    "training/trial_processes.py",
}
"""Where Ray is imported: everything else runs without it."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module(path: Path) -> str:
    """The name of a file's module, such as agent.core."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in sources(*ALLOWED)}


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Names of all modules that a file imports."""
    package = module(path).split(".")[: None if path.name == "__init__.py" else -1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parts, *filter(None, [node.module])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in names}
    return frozenset(found)


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_follow_the_layers(package: str) -> None:
    assert sources(package)
    for path in sources(package):
        forbidden = tops(path) & set(ALLOWED) - ALLOWED[package] - {package}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"
        assert "ray" not in tops(path) or str(path.relative_to(ROOT)) in RAY, f"{path.relative_to(ROOT)} imports ray"
    if package == "agent":
        others = {name for path in sources(package) for name in tops(path)} - {*sys.stdlib_module_names}
        assert others == {"agent", "torch"}
        core = {name for path in sources("agent/core") for name in imported(path) if name.startswith("agent")}
        assert all(name.startswith("agent.core") for name in core), "the folder agent/core can be copied elsewhere"


def test_imported_modules_exist() -> None:
    """mypy ignores modules that it does not find."""
    for path in MODULES.values():
        ours = {name for name in imported(path) if name.partition(".")[0] in ALLOWED}
        assert ours <= MODULES.keys(), f"{path.relative_to(ROOT)} imports {ours - MODULES.keys()}"


def test_no_modules_import_each_other() -> None:
    graph = {name: imported(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_names_of_tests_are_short() -> None:
    trees = {path: ast.walk(ast.parse(path.read_text())) for path in sources("tests")}
    functions = [(path, node) for path, tree in trees.items() for node in tree if isinstance(node, ast.FunctionDef)]
    assert not {f"{path}::{each.name}" for path, each in functions if re.match("test_.{65}", each.name)}


@pytest.mark.parametrize("package", [*ALLOWED, "benchmarks"])
def test_no_conditional_expression_is_inside_another(package: str) -> None:
    """A reader unpacks one at a time; ruff has no such rule."""
    for path in sources(package):
        for outer in ast.walk(ast.parse(path.read_text())):
            if isinstance(outer, ast.IfExp):
                parts = [inner for child in ast.iter_child_nodes(outer) for inner in ast.walk(child)]
                place = f"{path.relative_to(ROOT)}:{outer.lineno}"
                assert not any(isinstance(part, ast.IfExp) for part in parts), place
