"""The cores of docs/extending.md work as a reader would type it, in a copy of the project."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTION = PAGE[PAGE.index("## A core\n") : PAGE.index("## A compression function\n")]
PLACE = re.compile(r"# (?P<file>\S+\.py)(?:, (?P<where>above|at the end of) \"?(?P<name>[^\"]+?)\"?)?")
NEEDED = "agent envs actors learner storage training sequences reports commands tests/agent tests/envs"
NEEDED = [*NEEDED.split(), "tests/conftest.py", "tests/__init__.py", "pyproject.toml"]


def type_in(copy: Path, block: str) -> None:
    """Does what the first line of a block says: a new file, or lines above a name or at the end of its brackets."""
    first, _, code = block.partition("\n")
    place = PLACE.fullmatch(first)
    assert place, f"expected a comment that names the file, got {first}"
    file = copy / place["file"]
    if not place["where"]:
        assert not file.exists()
        file.write_text(code)
        return
    lines = file.read_text().splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if re.match(rf"(def )?{re.escape(place['name'])}\b", line)]
    assert len(starts) == 1, f"{place['name']} in {place['file']}: expected one, found {len(starts)}"
    at = starts[0]
    if place["where"] == "above":
        code += "\n\n"
    else:
        at = next(number for number in range(at, len(lines)) if re.fullmatch(r"\s*[)}\]]\s*", lines[number]))
    lines.insert(at, code)
    file.write_text("".join(lines))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the cores of the page."""
    copy = tmp_path_factory.mktemp("extended")
    for name in NEEDED:
        (copy / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    blocks = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        type_in(copy, block)
    return copy


COMMANDS = re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", SECTION, flags=re.DOTALL), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0].rpartition("/")[2])
def test_commands_of_the_page_work(copy: Path, command: str) -> None:
    program, *words = shlex.split(command)
    begin = {".venv/bin/python": [], "compressive": ["-m", "commands"]}[program]
    result = subprocess.run([sys.executable, *begin, *words], cwd=copy, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    if "pytest" in words:
        passed = re.search(r"(\d+) passed", result.stdout)
        assert passed
        assert int(passed[1]) > 15, "the whole contract"


def test_there_are_commands_to_test_and_to_train() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["compressive", "compressive", ".venv/bin/python"]


def test_the_page_quotes_what_a_broken_core_is_told(copy: Path) -> None:
    module = copy / "my_cores.py"
    code = module.read_text()
    (forgetting,) = [line for line in code.splitlines(keepends=True) if "masked_fill" in line]
    (copy / "broken_cores.py").write_text(code.replace(forgetting, ""))
    words = ["-m", "commands", "launch", "--local", "--core=broken_cores:MovingAverage", "--env=diagnostic:recall"]
    result = subprocess.run([sys.executable, *words], cwd=copy, capture_output=True, text=True)
    assert result.returncode == 2
    (quoted,) = re.findall(r"`(core MovingAverage: .*)`", SECTION)
    assert quoted in result.stderr
