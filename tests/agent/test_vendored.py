"""The folder agent/core can be copied into another project: under another name it passes its contract suite."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core import CORES

TESTS = Path(__file__).parent
ALONE = """
import sys
def test_nothing_else_was_imported():
    assert not {"agent", "envs", "actors", "learner", "training", "numba", "ray"} & sys.modules.keys()
"""
# One or two configs of each core, and four promises of the contract, selected by parts of the names of tests.
CASES = "/post] or /default] or /one-layer] or /two-blocks]"
PROMISES = "any_cutting or with_a_cache or before_a_reset or every_parameter"


@pytest.mark.slow
def test_a_copy_under_another_name_passes_the_suite(tmp_path: Path) -> None:
    # memory/core is a copy of agent/core, and suite has what its contract suite needs.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(TESTS.parents[1] / "agent" / "core", tmp_path / "memory" / "core", ignore=ignored)
    shutil.copy(TESTS.parent / "conftest.py", tmp_path)  # the profiles of hypothesis
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "__init__.py").touch()
    (suite / "test_last.py").write_text(ALONE)
    for name in ("cores.py", "conftest.py", "tiny.py", "test_core_contract.py"):
        text = (TESTS / name).read_text()
        renamed = text.replace("tests.agent", "suite").replace("agent.core", "memory.core")
        (suite / name).write_text(renamed)

    selected = f"(({PROMISES}) and ({CASES})) or nothing_else"
    options = ["-q", "-c", "/dev/null", "--rootdir=.", "--import-mode=importlib", "-o", "pythonpath=.", "-k", selected]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "suite"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed, result.stdout
    assert int(passed[1]) > 4 * len(CORES)
