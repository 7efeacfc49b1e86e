"""Density of code: its counts in a small file, and over folders."""

from pathlib import Path

import pytest

from benchmarks.density import Counts, Options, count, main

SOURCE = '''"""A docstring
of two lines."""

from typing import Any

# a comment
a, b = 1, 2
c, d = divmod(7, 2)  # no parallel assignment
LIMIT: Any = a if b else c
"""What it is."""


def f(x: Any) -> Any:
    """A docstring."""
    text = """no
    docstring"""
    return x
'''


def test_counts_of_a_file() -> None:
    assert count("x = 1\n") == Counts(lines=1, nodes=5)  # module, assignment, name, its context, constant
    assert count('"""Nothing else."""\n') == Counts(lines=0, nodes=1)
    found = count(SOURCE)
    found.nodes = 0
    expected = Counts(lines=8, parallel_assignments=1, conditional_expressions=1, comments=2, any_lines=3)
    assert found == expected


def test_folders_and_their_sum(tmp_path: Path) -> None:
    for name, source in {"one": SOURCE, "two": "x = 1\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text(source)
    one, two = tmp_path / "one", tmp_path / "two"
    found = main(Options((one, two)))
    assert found["folders"][str(two)]["nodes_a_line"] == 5
    assert found["folders"][str(one)]["comments_a_thousand"] == 250
    assert found["sum"]["lines"] == 9
    assert found["sum"]["any_lines"] == 3
    with pytest.raises(ValueError, match=r"folders: expected Python files, found none in .*three"):
        main(Options((tmp_path / "three",)))
