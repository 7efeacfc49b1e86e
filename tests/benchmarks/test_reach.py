"""The figure of benchmarks/reach.py: what is expected of a reach, the row of a run, and the drawing."""

import dataclasses
import json
from pathlib import Path
from typing import Any
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


def make_run(folder: Path, core: str = "compressive", correct: float = 0.75, **evaluation: Any) -> Path:
    """A finished run of the preset `memory` with seed 3."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    config = dataclasses.replace(make_preset("memory", core), seed=3)
    Run(run).config_file.write_text(json.dumps(to_plain(config)))
    found = {"environment": config.env, "episodes": 128, "correct_choices": {"mean": correct}} | evaluation
    Run(run).evaluation_file().write_text(json.dumps(found))
    return run


@pytest.mark.parametrize(("core", "expected"), [("compressive", (4, 24, 8 + 4 * 16)), ("transformer-xl", (0, 24, 24))])
def test_a_run_is_a_row(tmp_path: Path, core: str, expected: tuple[int, int, int]) -> None:
    """A run that is measured again takes the place of its row; the drawing has the mean of each variant."""
    table = tmp_path / "table.csv"
    plot = tmp_path / "plot.svg"
    for correct in (0.5, 0.75):
        run = make_run(tmp_path, core, correct)
        reach.measure(reach.Options((run,), table, plot))

    row = (core, *expected, 3, 75.0)
    assert reach.row_of(run) == row
    _head, *lines = table.read_text().splitlines()
    assert lines == [",".join(map(str, row))]
    texts = [node.text for node in ElementTree.parse(plot).iter() if node.text]
    assert "75.0 %" in texts
    assert f"{expected[-1]} steps" in texts
    assert "one seed; bars are means of 1" in texts


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preset": "level"}, "preset: expected memory, as in the table, got level"),
        (
            {"env": "rooms:small-recall"},
            "env: expected rooms:small-recall-long, as in the table, got rooms:small-recall",
        ),
        ({"frames": 1000}, "frames: expected 12000000, as in the table, got 1000"),
    ],
)
def test_runs_on_other_terms_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    run = make_run(tmp_path)
    plain = json.loads(Run(run).config_file.read_text())
    Run(run).config_file.write_text(json.dumps(plain | fields))
    with pytest.raises(ValueError, match=f"^{run}: {words}$"):
        reach.row_of(run)


def test_runs_with_another_core_or_evaluation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"core: expected compressive or transformer-xl, got gru$"):
        reach.row_of(make_run(tmp_path, "gru"))
    with pytest.raises(ValueError, match=r"core: expected compressive or transformer-xl, got gated-transformer-xl$"):
        reach.row_of(make_run(tmp_path, "gated-transformer-xl"))
    with pytest.raises(ValueError, match=r"episodes of the evaluation: expected 128, as in the table, got 16$"):
        reach.row_of(make_run(tmp_path, episodes=16))
    run = make_run(tmp_path)
    plain = json.loads(Run(run).config_file.read_text())
    plain["agent"]["core"]["num_layers"] = 2
    Run(run).config_file.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"num_layers: expected one layer, as in the table, got 2$"):
        reach.row_of(run)


def test_only_the_named_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.csv"
    with pytest.raises(ValueError, match=r"^--table: expected a table of runs, or runs to make one, got .*table.csv$"):
        reach.measure(reach.Options(table=table, plot=tmp_path / "plot.svg"))
    monkeypatch.setattr(reach, "TABLE", table)
    (bar,) = reach.measure(reach.Options((make_run(tmp_path),)))["bars"]
    assert bar["mean"] == 75.0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_figure_of_the_readme_is_that_of_the_table() -> None:
    root = Path(reach.__file__).parents[1]
    rows = reach._read(root / "results/reach.csv")
    assert reach.drawn(reach.bars_of(list(rows.values()))) == (root / "docs/result.svg").read_text()
