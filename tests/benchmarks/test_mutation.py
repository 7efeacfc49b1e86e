"""Mutation testing: which mutants there are, and that it tells those that tests catch from those that survive."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation import ROOT, TESTS, Options, measure, mutants, run_tests, sample

KINDS = {
    "x < 1": ["x < 1 -> x <= 1", "x < 1 -> x > 1", "1 -> 0", "1 -> 2"],
    "x + 0": ["x + 0 -> x - 0", "0 -> 1"],
    "x or y": ["x or y -> x and y"],
    "not x": ["not x -> x"],
    "x[:y]": [":y -> :y + 1"],
    "f(x, y, z=3)": [
        "f(x, y, z=3) -> f(x, y)",
        "f(x, y, z=3) -> f(x, z=3)",
        "f(x, y, z=3) -> f(y, x, z=3)",
        "3 -> 6",
        "3 -> -3",
    ],
    "x.detach()": ["x.detach() -> x"],
    "torch.float32": ["torch.float32 -> torch.bfloat16"],
    "x if y else z": ["x if y else z -> z if y else x"],
    "[y for y in x if y]": ["[y for y in x if y] -> [y for y in x]"],
    "x.sum(dim)": ["x.sum -> x.mean"],
}
STATEMENTS = {
    "if x: y = z": ["if x -> not x"],
    "x.y = True": ["x.y = True -> pass", "True -> False"],
    "x += y": ["x += y -> x -= y", "x += y -> pass"],
    "f()": ["f() -> pass"],
    "raise ValueError(f'{1 + x}')": ["raise ValueError(f'{1 + x}') -> pass"],
    "logger.warning('of %d', 1)": ["logger.warning('of %d', 1) -> pass"],
    "def f(x: A | B): return x == y": ["return x == y -> return not x == y", "x == y -> x != y"],
    "with torch.no_grad(): x = y": ["torch.no_grad() -> __import__('contextlib').nullcontext()"],
    "@torch.no_grad()\ndef f(): ...": ["@torch.no_grad() -> lambda function: function"],
}


@pytest.mark.parametrize("kinds", [{f"name = {text}": each for text, each in KINDS.items()}, STATEMENTS])
def test_kinds_of_mutants(kinds: dict[str, list[str]]) -> None:
    for source, expected in kinds.items():
        assert [mutant.change for mutant in mutants("file.py", source.encode())] == expected


def test_a_mutant_changes_its_place_only() -> None:
    source = "é = 'é'; x = (1 +\n     y)  # comment\n".encode()
    texts = [mutant.applied(source).decode() for mutant in mutants("file.py", source)]
    assert texts[0] == "é = 'é'; x = ((1 - y))  # comment\n"
    assert texts[1:] == [f"é = 'é'; x = (({number}) +\n     y)  # comment\n" for number in (0, 2)]


def test_a_sample_has_mutants_of_many_lines_and_depends_on_the_seed() -> None:
    source = "\n".join(f"x{index} = y < 1" for index in range(12)).encode()
    drawn = sample("file.py", source, 5, seed=0)
    assert sample("file.py", source, 5, seed=0) == drawn
    assert sample("file.py", source, 5, seed=1) != drawn
    assert len({mutant.line for mutant in drawn}) == 5
    assert len(sample("file.py", source, 100, 0)) == 12


SOURCE = """
def total(xs):
    return sum(xs)

def label(x, unit):
    return x * unit if unit else x
"""
TEST = """
from package.source import total

def test_total():
    assert total([1, 2]) == 3
"""
BETTER = """
def test_label():
    from package.source import label

    assert [label(2, unit) for unit in (0, 3)] == [2, 6]
"""


def test_survivors_are_told_from_what_tests_catch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a repository without commits. Earlier results are used again where the file and its tests are the same.

    The lines of the output are a run of the tests without a mutant, and one for each mutant.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # importing them takes most of the time
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    file = "package/source.py"
    test = "tests/test_source.py"
    for name, text in ((file, SOURCE), (test, TEST)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    options = Options([file], count=2, seed=1, workers=2, output=tmp_path / "mutants.jsonl")

    def measured(argued: dict[tuple[str, str], str]) -> tuple[dict[str, Any], list[str], int]:
        figures = measure(options, tmp_path, {file: [test]}, argued)
        return figures["files"][file], figures["failed"], len(options.output.read_text().splitlines())

    change = "x * unit if unit else x -> x if unit else x * unit"
    expected = {"mutants": 2, "caught": 1, "argued": {}, "survivors": [f"{file}:6: {change}"]}

    # The test knows nothing of one function.
    first = measured({})
    assert first == (expected, ["1 mutants survived: expected at least 95% to be caught"], 3)
    assert measured({}) == first

    # There is a reason why nothing can notice the mutant.
    reasons = {(file, change): "labels are not used"}
    expected = {"mutants": 2, "caught": 1, "argued": {change: "labels are not used"}, "survivors": []}
    assert measured(reasons) == (expected, [], 3)

    # With a better test.
    with (tmp_path / test).open("a") as tests:
        tests.write(BETTER)
    expected = {"mutants": 2, "caught": 2, "argued": {}, "survivors": []}
    assert measured(reasons) == (expected, [], 5), "the tests alone, and the survivor"
    assert (tmp_path / file).read_text() == SOURCE

    # With a test that fails.
    (tmp_path / test).write_text("assert False")
    with pytest.raises(RuntimeError, match=f"{file}: its tests fail without a mutant: ERROR {test}"):
        measured(reasons)


def test_a_mutant_that_hangs_is_caught(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text("import time\ntime.sleep(1000)")
    assert run_tests(tmp_path, ["test_hang.py"], "not slow", 0.1) == "takes longer than 0 s"


def test_tests_that_are_named_exist() -> None:
    missing = [name for file, tests in TESTS.items() for name in (file, *tests) if not (ROOT / name).is_file()]
    assert not missing
