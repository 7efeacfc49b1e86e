"""The README is a tested map: its Python runs, and the files and targets that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_files_of_the_map_exist() -> None:
    listing = README[README.index("## Map") : README.index("Imports go one way")]
    names = re.findall(r"\b([a-z_]+(?:/|\.py|\.md))(?=[\s,)])", listing)
    assert len(names) > 20
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "runs"]
    there = {path.name for folder in folders for path in (folder, *folder.rglob("*"))}
    assert {name.rstrip("/") for name in names} <= there


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets | {"are"}


def test_each_row_of_the_table_of_faults_names_a_test_that_exists() -> None:
    table = (ROOT / "docs" / "faults.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        for test in row.split("|")[3].split(","):
            path, *_, name = test.strip().split("::")
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(), row
