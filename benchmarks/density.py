"""How dense the code is: how much a reader has to unpack in a line. It is to be watched, and no aim in itself.

    python -m benchmarks.density [agent learner actors training storage]

A line of code is one that is not blank, not only a comment and not part of a docstring. For each folder and for all of
them together:

* nodes_a_line: nodes of Python's syntax tree (names, constants, operators, calls, ...) a line of code. Docstrings are
  not counted.
* parallel_assignments: assignments of several values to several targets, as in `a, b = 1, 2`. To unpack what a function
  returned is none.
* conditional_expressions: `a if condition else b`.
* comments: whole lines and those at the end of a line. Docstrings are none.
* any_lines: lines of code in which `Any` stands.

All but the first are also given a thousand lines of code.
"""

import ast
import io
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from benchmarks.common import run

LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
"""Tokens that stand for the layout of a file."""


@dataclass
class Options:
    folders: tyro.conf.Positional[tuple[Path, ...]] = tuple(
        Path(name) for name in ("agent", "learner", "actors", "training", "storage")
    )
    """Folders whose Python files are counted, with their subfolders."""


@dataclass
class Counts:
    """What one or several files contain."""

    lines: int = 0
    nodes: int = 0
    parallel_assignments: int = 0
    conditional_expressions: int = 0
    comments: int = 0
    any_lines: int = 0

    def add(self, other: "Counts") -> None:
        """Adds the counts of other files."""
        self.lines += other.lines
        self.nodes += other.nodes
        self.parallel_assignments += other.parallel_assignments
        self.conditional_expressions += other.conditional_expressions
        self.comments += other.comments
        self.any_lines += other.any_lines

    def figures(self) -> dict[str, float]:
        """The counts, and how many of them there are a line or a thousand lines."""
        lines = max(1, self.lines)
        figures: dict[str, float] = {"lines": self.lines, "nodes_a_line": round(self.nodes / lines, 2)}
        for name in ("parallel_assignments", "conditional_expressions", "comments", "any_lines"):
            count = getattr(self, name)
            figures[name] = count
            figures[f"{name}_a_thousand"] = round(1000 * count / lines, 1)
        return figures


@dataclass
class Text:
    """The lines of a file, by number, that contain code; where `Any` stands in it; and its number of comments."""

    code: set[int] = field(default_factory=set)
    any_lines: set[int] = field(default_factory=set)
    comments: int = 0


def read(source: str) -> Text:
    """Goes through the tokens of a file; docstrings count as code here."""
    text = Text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text.comments += 1
        elif token.type not in LAYOUT:
            text.code.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NAME and token.string == "Any":
            text.any_lines.add(token.start[0])
    return text


def count(source: str) -> Counts:
    """The counts of one file."""
    text = read(source)
    counts = Counts(comments=text.comments, any_lines=len(text.any_lines))
    code = text.code
    for node in ast.walk(ast.parse(source)):
        counts.nodes += 1
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            # A docstring: the statement and its text are two nodes.
            counts.nodes -= 2
            last = node.end_lineno or node.lineno
            code -= set(range(node.lineno, last + 1))
        elif isinstance(node, ast.Assign):
            several_values = isinstance(node.value, ast.Tuple)
            counts.parallel_assignments += several_values and isinstance(node.targets[0], ast.Tuple)
        elif isinstance(node, ast.IfExp):
            counts.conditional_expressions += 1
    counts.lines = len(code)
    return counts


def main(options: Options) -> dict[str, Any]:
    """Counts and returns the figures.

    Raises:
        ValueError: if a folder has no Python files.
    """
    total = Counts()
    by_folder = {}
    for folder in options.folders:
        files = sorted(folder.rglob("*.py"))
        if not files:
            raise ValueError(f"folders: expected Python files, found none in {folder}")
        counts = Counts()
        for path in files:
            counts.add(count(path.read_text()))
        by_folder[str(folder)] = counts.figures()
        total.add(counts)
    return {"folders": by_folder, "sum": total.figures()}


if __name__ == "__main__":
    run(main, Options)
