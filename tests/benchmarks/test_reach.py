"""The figure of benchmarks/reach.py: what is expected of a reach, the row of a run, and the drawing."""

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import reach
from storage.run import Run
from training.plain import to_plain
from training.presets import make_preset


@pytest.mark.parametrize(
    ("steps", "percent"), [(15, 50.0), (16, 62.5), (24, 62.5), (40, 75.0), (72, 87.5), (127, 87.5), (136, 100.0)]
)
def test_what_is_within_the_reach_is_known_and_the_rest_guessed(steps: int, percent: float) -> None:
    assert reach.expected(steps) == percent


@pytest.mark.parametrize(("core", "expected"), [("compressive", (4, 24, 8 + 4 * 16)), ("transformer-xl", (0, 24, 24))])
def test_a_run_is_a_row(tmp_path: Path, core: str, expected: tuple[int, int, int]) -> None:
    """A run that is measured again takes the place of its row; the drawing has the mean of each variant."""
    run = tmp_path / "run"
    run.mkdir()
    config = dataclasses.replace(make_preset("memory", core), seed=3)
    Run(run).config_file.write_text(json.dumps(to_plain(config)))
    table = tmp_path / "table.csv"
    plot = tmp_path / "plot.svg"
    for correct in (0.5, 0.75):
        (run / "evaluation.json").write_text(json.dumps({"correct_choices": {"mean": correct}}))
        reach.measure(reach.Options((run,), table, plot))

    row = (core, *expected, 3, 75.0)
    assert reach.row_of(run) == row
    _head, *lines = table.read_text().splitlines()
    assert lines == [",".join(map(str, row))]
    texts = [node.text for node in ElementTree.parse(plot).iter() if node.text]
    assert "75.0 %" in texts
    assert f"{expected[-1]} steps" in texts
