"""Finished runs as folders that tests write, and the tables that a comparison of them leaves."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.commands.cli import Commands


def write_run(run: Path, config: Any, rows: Iterable[dict[str, float]], summary: Any) -> Path:
    """The folder of a finished run."""
    run.mkdir()
    (run / "config.json").write_text(json.dumps(config))
    write_rows(run / "metrics.jsonl", ({"time": 0.0} | row for row in rows))
    (run / "evaluation.json").write_text(json.dumps(summary))
    return run


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes one JSON object a line."""
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def compare(cli: Commands, out: Path, runs: Sequence[object], *options: object) -> tuple[str, str]:
    """Compares runs and returns what is printed, and the text of the page."""
    printed = cli.run("compare", "--from", *runs, "--folder", out, *options)
    return printed, (out / "report.html").read_text()
