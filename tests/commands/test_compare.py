"""`compressive compare`: the report of finished runs of agents. What it trains is in `test_trials.py`."""

import dataclasses
import html
import importlib.util
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from reports import comparison_page
from reports.comparison import KIND, Comparison, reach, read_run
from reports.comparison import compare as compare_runs
from reports.comparison_page import write_reports
from reports.conclusions import INTERVAL, RANGE, agreement, answer, evidence, next_best, score_texts, spread
from reports.server import Watch
from reports.tables import print_table
from storage.run import Run
from tests.commands.cli import ROOT, Commands
from tests.commands.finished import compare, table, write_rows, write_run
from tests.commands.pages import embedded
from training.plain import read_config, to_plain
from training.presets import make_preset
from training.sweep import failure
from training.sweep_progress import is_finished

RECALL = "diagnostic:recall,delay=3"
LONGER = "diagnostic:recall,delay=9"
FILES = ("runs", "curves", "curve_intervals")
"""Tables that name the environment."""


MakeRun = Callable[..., Path]


def add_to_evaluation(run: Path, **values: Any) -> None:
    """Adds values to a run's evaluation, or replaces them."""
    file = run / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes the folder of a finished run with a given learning curve and final score, both oracle-normalized.

    Rows are 100 steps apart, each of one frame.
    """

    def make(name: str, core: str, seed: int, curve: list[float], final: float, **fields: Any) -> Path:
        frames = 100 * len(curve)
        rows = []
        for index, score in enumerate(curve):
            step = 100 * (index + 1)
            row = {"step": step, "learner/frames": float(step), "speed/steps_per_second": 50.0}
            row |= {"episode/return": score / 100, "episode/oracle_normalized": score}
            rows.append(row)

        plain = to_plain(make_preset("memory", core)) | {"seed": seed, "frames": frames, "env": RECALL} | fields
        summary = {"return": {"mean": final / 100, "low": 0.0, "high": 1.0}, "oracle_normalized": final}
        return write_run(tmp_path / name, plain, rows, summary)

    return make


def make_runs(make_run: MakeRun, scores: dict[str, list[float]]) -> list[Path]:
    """Makes one run for each final score of a core; the place of a score is its seed."""
    runs = []
    for core, finals in scores.items():
        for seed, final in enumerate(finals):
            runs.append(make_run(f"{core}{seed}", core, seed, [1.0], final))
    return runs


def make_runs_in(make_run: MakeRun, scores: Iterable[tuple[str, str, float]]) -> list[Path]:
    """Makes one run for each core, environment and final score."""
    runs = []
    for index, (core, env, final) in enumerate(scores):
        runs.append(make_run(f"{index}", core, 0, [50.0], final, env=env))
    return runs


def test_a_file_that_cannot_be_read_comes_before_its_problem(make_run: MakeRun, cli: Commands) -> None:
    """As in the lines of other commands."""
    run = make_run("run", "lstm", 0, [0.5], 0.5)
    (run / "evaluation.json").unlink()
    missing = f"got: {run}/evaluation.json: No such file or directory; resume with: "
    cli.refuse("compare", "--from", run, words=missing)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    pipe = f"compressive: {run}/metrics.jsonl: expected a regular file, got a FIFO\n"
    assert cli.refuse("compare", "--from", run) == pipe


def test_the_report_of_finished_runs_has_their_numbers(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    out = tmp_path / "out"
    runs = [
        make_run("a", "compressive", 0, [10.0, 80.0, 90.0], 91.0),
        make_run("b", "compressive", 1, [30.0, 40.0, 85.0], 81.0),
        make_run("c", "lstm", 0, [10.0, 20.0, 30.0], 31.5),
        make_run("d", "lstm", 1, [0.0, 10.0, 20.0], 85.0),
    ]
    printed, text = compare(cli, out, runs)
    assert "86  [81, 91]" in printed
    assert str(out / "report.html") in printed

    # The tables.
    finals = table(out / "report" / "runs.csv")
    assert [float(row["oracle_normalized"]) for row in finals] == [91, 81, 31.5, 85]
    assert [row["variant"] for row in finals] == ["compressive", "compressive", "lstm", "lstm"]
    assert [row["frames_to_threshold"] for row in finals] == ["200.0", "300.0", "", ""], "first at 75 or more"
    assert {row["reach"] for row in finals} == {"72", ""}, "8 + 4 x 16, and no bound for the LSTM"
    curves = table(out / "report" / "curves.csv")
    measured = [(float(row["frames"]), float(row["oracle_normalized"])) for row in curves if row["seed"] == "1"]
    assert measured == [(100, 30), (200, 40), (300, 85), (100, 0), (200, 10), (300, 20)]
    means = table(out / "report" / "curve_intervals.csv")
    last_of_compressive = 99  # a curve has 100 places
    for index, expected in ((0, [100, 20, 10, 30]), (last_of_compressive, [300, 87.5, 85, 90])):
        assert [float(means[index][name]) for name in ("frames", "mean", "low", "high")] == expected
    ours, theirs = table(out / "report" / "improvements.csv")
    found = [(row["variant"], row["other"], float(row["probability"])) for row in (ours, theirs)]
    assert found == [("compressive", "lstm", 0.75), ("lstm", "compressive", 0.25)]
    assert float(ours["low"]) == 1 - float(theirs["high"]), "one is the other's reverse"

    # The text of the page: first the scores and the answer.
    page = embedded(out / "report.html")
    for words in ("Oracle-normalized", "86 (its runs: 81 to 91)", "75 %", RECALL, "--from"):
        assert words in text
    assert (page["second"]["name"], page["second"]["confirmed"], page["second"]["runs"]) == ("lstm", False, [2, 2])
    apart = "The interquartile means of compressive and of the next best, lstm, differ by 28 [-4, 60]"
    assert apart in text
    assert "Each has 2 runs (seeds): of all pairs of a run of each, the first is better in 75 % " in text
    order = [
        "<h2>Final scores",
        "No difference is confirmed.",
        "<h2>Learning",
        "<h2>Variants",
        "<details",
        "<h2>Method",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "It is not confirmed which of the two is better" in text
    assert "<b>The compression rate</b>, here 4, is how many steps" in text

    # The curves of the page: two thin ones for the runs of a variant, a thick one for their mean.
    (panel,) = page["panels"]
    curves_of_a_variant = (True, True, False)
    lines = [(line["name"], line.get("thin", False)) for line in panel["series"]]
    assert lines == [(name, thin) for name in ("compressive", "lstm") for thin in curves_of_a_variant]
    _, _, thick, *_ = panel["series"]
    assert [thick[name][-1] for name in ("x", "y", "low", "high")] == [300, 87.5, 85, 90]
    numbers = {"points": [91, 81], "value": 86, "low": 81, "high": 91}
    best, *_ = page["scores"]
    assert best == {"name": "compressive", "index": 0, "text": "86", "small": "[81, 91]"} | numbers
    lines = [("threshold", 75.0), ("random", 0.0), ("oracle", 100.0)]
    assert [(line["name"], line["value"]) for line in page["lines"]] == lines

    # Pictures for a paper.
    if importlib.util.find_spec("matplotlib"):
        assert (out / "report" / "curves.png").read_bytes()[:4] == b"\x89PNG"
        assert (out / "report" / "scores.svg").read_text().startswith("<?xml")


def test_environments_with_a_common_scale_are_joined(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    out = tmp_path / "out"
    scores = [("gru", RECALL, 60.0), ("gru", LONGER, 20.0), ("lstm", RECALL, 50.0), ("lstm", LONGER, 30.0)]
    runs = make_runs_in(make_run, scores)
    _, text = compare(cli, out, runs)
    assert [row["probability"] for row in table(out / "report" / "improvements.csv")] == ["", ""], "single runs"
    assert "a single run of a variant does not tell" in text
    assert "has the highest interquartile mean, 40.00" in text
    assert "A single run of a variant in an environment has no interval" in text

    # In one environment.
    in_recall = [run for run, (_, env, _) in zip(runs, scores) if env == RECALL]
    printed, text = compare(cli, out, in_recall)
    assert "A single run of a variant has no interval" in text
    assert "60.00  " in printed
    assert "[" not in printed, "no interval"
    rows = [row for name in ("variants", "improvements") for row in table(out / "report" / f"{name}.csv")]
    assert {row[end] for row in rows for end in ("low", "high")} == {""}


@pytest.mark.parametrize("lacking", ["scores", "a run"])
def test_environments_without_a_common_scale_are_compared_alone(
    lacking: str, make_run: MakeRun, tmp_path: Path, cli: Commands
) -> None:
    """Also if a variant has no run in one of them: nothing that was trained is thrown away."""
    out = tmp_path / "out"
    if lacking == "scores":
        here = "gym:CartPole-v1"
        there = "gym:Taxi-v4"
    else:
        here = RECALL
        there = LONGER
    scores = [("gru", here, 60.0), ("lstm", here, 50.0), ("gru", there, -20.0), ("lstm", there, -10.0)]
    runs = make_runs_in(make_run, scores)
    if lacking == "scores":
        for run, (_, _, score) in zip(runs, scores):
            (run / "evaluation.json").write_text(json.dumps({"return": {"mean": score}}))
        why = "Each environment is compared by itself: mixed environments: expected human or oracle scores of all"
    else:
        runs.pop()
        why = f"mixed environments: expected every variant on each of {here}, {there}, got no run of lstm on {there}."

    # The page and the terminal say why there is a comparison for each environment.
    printed, text = compare(cli, out, runs)
    assert why in html.unescape(text)
    assert why in " ".join(printed.split())
    assert printed.count("interquartile mean") == 2

    # Each has a page and tables of its own.
    pages = [page["link"] for page in embedded(out / "report.html")["pages"]]
    first, second = (embedded(out / page) for page in pages)
    assert (first["title"], len(first["scores"])) == (here, 2)
    assert (second["title"], len(second["scores"])) == (there, len(runs) - 2)
    assert f"<b>{first['answer']}</b> {first['evidence']}" in html.unescape(text)
    assert "gru has the highest interquartile mean, 60.00" in first["evidence"]
    assert second["scores"][0]["value"] == -20
    for number, link, page, env in ((1, pages[0], first, here), (2, pages[1], second, there)):
        folder = out / page["tables"]
        library, _, _ = env.partition(":")
        assert folder.name.startswith(f"{number}-{library}")
        assert {row["environment"] for row in table(folder / "runs.csv")} == {env}
        assert (out / link).read_text().count(page["tables"]) > 1


def test_figures_tell_all_variants_apart() -> None:
    """By color, as on the page, and in the legend, also those that the first panel lacks."""
    figures = pytest.importorskip("reports.figures", reason="matplotlib is not installed")
    light, *_ = re.findall(r"--s0:(?:[^}]*)", (ROOT / "reports/pages/style.css").read_text())
    assert list(figures.COLORS) == re.findall("#[0-9a-f]{6}", light)[:12]

    names = [f"core {number}" for number in range(12)]
    ends = {"low": [None] * 2, "high": [None] * 2}
    lines = [
        {"name": name, "index": index, "dash": True, "x": [0, 1], "y": [0, 1], **ends}
        for index, name in enumerate(names)
    ]
    panels = [{"title": f"{number}", "series": lines[number:], "lines": []} for number in (1, 0, *range(2, 8))]
    figure = figures._curves({"unit": "frames", "scale": "return", "panels": panels})
    first, second, *_ = figure.axes
    assert len({line.get_color() for line in second.lines}) == 12
    assert first.lines[0].get_color() == second.lines[1].get_color(), "of one variant in all panels"
    (legend,) = figure.legends
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(names)
    assert figure.get_size_inches()[0] < 30, "eight panels are in two rows"


def test_a_label_is_no_formula(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    figures = pytest.importorskip("reports.figures", reason="matplotlib is not installed")
    names = [r"runs/a$\frac$b", r"runs/a$\frac$c"]
    runs = [make_run(f"{seed}", "lstm", seed, [1.0, 2.0], 3.0, from_run=name) for seed, name in enumerate(names)]
    printed, _ = compare(cli, tmp_path / "out", runs)
    assert names[0] in printed
    assert (tmp_path / "out/report/scores.svg").is_file()

    chart = {"title": "$", "series": [{"name": r"$\frac$" + 10_000 * "x", "x": [0, 1], "y": [0, 1]}] * 2, "lines": []}
    chart["lines"] = [{"name": r"$\frac$", "value": 0.5}]
    assert figures.draw_chart(chart, "frames")[:4] == b"\x89PNG"


@pytest.mark.parametrize("pages", [1, 3])
def test_pages_are_written_before_figures(
    pages: int, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What draws them is another program, which may fail. Two environments have a page each, and one with links."""
    figures = pytest.importorskip("reports.figures", reason="matplotlib is not installed")
    monkeypatch.setattr(figures, "draw", Mock(side_effect=ValueError("cannot be drawn")))
    elsewhere = [("lstm", LONGER, 40.0)] if pages > 1 else []
    runs = make_runs_in(make_run, [("gru", RECALL, 60.0), ("lstm", RECALL, 50.0), *elsewhere])
    comparisons = compare_runs([read_run(run) for run in runs], None)
    with pytest.raises(ValueError, match="cannot be drawn"):
        write_reports(tmp_path / "out", comparisons, {}, "compressive compare")
    assert len(list((tmp_path / "out").glob("*.html"))) == pages
    assert len(list((tmp_path / "out/report").rglob("runs.csv"))) == len(comparisons)


def test_two_runs_of_each_in_every_environment_have_intervals(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    runs = []
    for core, score in (("gru", 90.0), ("lstm", 10.0)):
        for env in (RECALL, LONGER, "diagnostic:tmaze"):
            for seed in (0, 1):
                runs.append(make_run(f"{core}{env}{seed}", core, seed, [50.0], score + seed, env=env))

    _, text = compare(cli, tmp_path / "out", runs)
    assert "With as few as 2 runs of a variant in an environment, that is weak evidence" in text
    assert "That gru is better is confirmed, as far as so few runs can" in text

    _, text = compare(cli, tmp_path / "out", runs[:-1])
    assert "more runs in one environment than in another" in text


@pytest.mark.parametrize(("tasks", "chance"), [(2, 0.056), (3, 0.0093)])
def test_a_difference_over_several_environments_may_be_chance(tasks: int, chance: float, make_run: MakeRun) -> None:
    """Two runs of one variant are better than two of the other in one of three environments, in all of them in few."""
    runs = []
    for delay in range(1, tasks + 1):
        env = f"diagnostic:recall,delay={delay}"
        for core, scores in (("gru", (50.0, 60.0)), ("lstm", (30.0, 40.0))):
            for seed, score in enumerate(scores):
                runs.append(make_run(f"{core}{delay}{seed}", core, seed, [1.0], score + delay, env=env))
    comparison = Comparison([read_run(run) for run in runs])
    assert comparison.improvements["gru", "lstm"].low == 1
    assert comparison.chances["gru", "lstm"] == pytest.approx(chance, rel=0.01)
    assert comparison.confirmed("gru", "lstm") == (tasks == 3)
    assert ("would differ as much with a probability of 0.056" in evidence(comparison)) == (tasks == 2)


def test_curves_of_agents_evaluated_elsewhere_name_where_they_learned(
    make_run: MakeRun, tmp_path: Path, cli: Commands
) -> None:
    """They reach no threshold: what is reached in training is no score of the evaluation's task."""
    out = tmp_path / "out"
    runs = [make_run(f"{core}0", core, 0, [50.0, 99.0], 60.0, eval_env=LONGER) for core in ("gru", "lstm")]
    _, text = compare(cli, out, runs, "--threshold", 10)
    assert f"Curves are of {RECALL}, where agents were trained; scores are of evaluations in {LONGER}." in text
    page = embedded(out / "report.html")
    assert page["title"] == LONGER
    assert [panel["title"] for panel in page["panels"]] == [RECALL]
    assert "frames to threshold" not in page["variants"]["head"]
    assert "threshold" not in {line["name"] for line in page["lines"]}
    environments = {name: {row["environment"] for row in table(out / "report" / f"{name}.csv")} for name in FILES}
    assert environments == {"runs": {LONGER}, "curves": {RECALL}, "curve_intervals": {RECALL}}


def verdict_of(make_run: MakeRun, scores: dict[str, list[float]]) -> tuple[str, dict[str, Any]]:
    """What the page says of final scores by core, and of the next best variant."""
    comparison = Comparison([read_run(run) for run in make_runs(make_run, scores)])
    return f"{answer(comparison)} {evidence(comparison)}", next_best(comparison)


@pytest.mark.parametrize("others", [range(0, 50, 10), range(40, 90, 10)])
def test_a_variant_is_better_if_all_of_its_interval_is_above_50_percent(others: range, make_run: MakeRun) -> None:
    """60 to 100 against 0 to 40, and against 40 to 80, of which it wins 78 % of the pairs."""
    ours = [60.0, 70.0, 80.0, 90.0, 100.0]
    theirs = [float(score) for score in others]
    said, second = verdict_of(make_run, {"gru": ours, "lstm": theirs})

    wins = np.mean([(a > b) + (a == b) / 2 for a in ours for b in theirs])
    assert wins > 0.75
    assert second["p"].startswith(f"{100 * wins:.0f} %")

    is_confirmed = max(theirs) < min(ours)
    assert second["confirmed"] == is_confirmed
    assert said.startswith("gru is better than lstm. gru has the highest") == is_confirmed
    assert said.startswith("No difference is confirmed. gru has the highest") == (not is_confirmed)
    needed = f"If a run of gru is better than one of lstm in {100 * wins:.0f} % of cases, as here, about"
    assert (f"{needed} 13 runs of each are needed to confirm it." in said) == (not is_confirmed)


@pytest.mark.parametrize(("runs", "chance"), [(3, "0.1"), (4, "0.029")])
def test_all_runs_may_be_better_by_chance(runs: int, chance: str, make_run: MakeRun) -> None:
    """Three against three are ordered so in one of ten cases, four against four in one of 35."""
    worse = [float(index) for index in range(runs)]
    better = [runs + score for score in worse]
    said, second = verdict_of(make_run, {"gru": better, "lstm": worse})
    assert (second["p"], second["chance"]) == ("100 %", chance)

    is_confirmed = runs == 4
    assert second["confirmed"] == is_confirmed
    assert said.startswith("gru is better than lstm.") == is_confirmed
    assert said.startswith("No difference is confirmed.") == (not is_confirmed)
    assert ("with a probability of 0.1: train at least 5 seeds of each" in said) == (not is_confirmed)


def test_others_than_the_best_may_be_confirmed(make_run: MakeRun) -> None:
    scores = {"gru": [0.0, 1.0, 98.0, 99.0, 100.0], "lstm": [50.0, 51.0, 52.0, 53.0, 54.0], "memoryless": [5.0] * 5}
    said, _ = verdict_of(make_run, scores)
    assert said.startswith("Which variant is best is not confirmed; it is confirmed that lstm is better than memoryl")


def test_only_confirmed_differences_are_colored(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    """The interval of 60 to 100 against 59 to 99 is nearly all of 0 to 100 %."""
    scores = {"gru": [60.0, 70.0, 80.0, 90.0, 100.0], "lstm": [59.0, 69.0, 79.0, 89.0, 99.0], "memoryless": [5.0] * 5}
    compare(cli, tmp_path / "out", make_runs(make_run, scores))

    # A row is the name of a variant and a cell for each other; that of the variant itself is no dictionary.
    rows = embedded(tmp_path / "out" / "report.html")["improvements"]["rows"]
    colored = []
    for _, *cells in rows:
        colored.append([isinstance(cell, dict) and "shade" in cell for cell in cells])
    assert colored == [[False, False, True], [False, False, True], [True, True, False]]
    assert rows[0][2]["small"] == "[8, 100]"


def test_of_three_variants_one_may_be_worse_and_one_open(make_run: MakeRun) -> None:
    ours = [60.0, 70.0, 80.0, 90.0, 100.0]
    scores = {"gru": ours, "lstm": [each - 1 for each in ours], "memoryless": [each - 60 for each in ours]}
    said, second = verdict_of(make_run, scores)
    assert said.startswith("gru is better than memoryless; no difference from lstm is confirmed.")
    assert (second["name"], second["confirmed"]) == ("lstm", False)


@pytest.mark.parametrize(
    ("runs", "brackets"), [(1, "10.00."), (4, "11.5 (its runs: 10.0 to 13.0)."), (5, "12.0 [10.0, 14.0].")]
)
def test_the_interval_of_up_to_four_runs_is_called_their_range(runs: int, brackets: str, make_run: MakeRun) -> None:
    said, _ = verdict_of(make_run, {"gru": [10.0 + index for index in range(runs)]})
    assert f"There is only one variant, gru: nothing is compared. Its interquartile mean is {brackets}" in said


def test_runs_that_are_all_equal_have_no_interval_without_a_width(make_run: MakeRun) -> None:
    said, _ = verdict_of(make_run, {"gru": [10.0] * 4})
    assert "Its interquartile mean is 10.00 (all equal)." in said
    _, difference = verdict_of(make_run, {"lstm": [30.0] * 4, "lru": [10.0] * 4})
    assert difference["apart"] == "20.00"
    paths = [make_run(f"high{seed}", "gru", seed, [1.0], 60.0 + seed) for seed in range(4)]
    paths += [make_run(f"low{seed}", "lstm", seed, [1.0], 10.0 + seed) for seed in range(4)]
    comparison = Comparison([read_run(path) for path in paths])
    improvements = comparison_page._improvements(comparison)["rows"]
    assert [cell["text"] for row in improvements for cell in row[1:] if cell] == ["100 %", "0 %"]
    assert not any(cell["small"] for row in improvements for cell in row[1:] if cell)


def test_brackets_are_explained_where_numbers_of_runs_differ(make_run: MakeRun) -> None:
    """The range of three runs, the interval of ten, and nothing of a single one."""
    paths = [make_run(f"many{seed}", "gru", seed, [1.0], 50.0 + 4 * seed) for seed in range(10)]
    paths += [make_run(f"few{seed}", "lstm", seed, [1.0], 20.0 + seed) for seed in range(3)]
    comparison = Comparison([read_run(path) for path in paths])
    assert evidence(comparison).startswith("gru has the highest interquartile mean, 68 [5")
    assert spread(comparison) == f"{INTERVAL}, or, of variants with at most 4 runs, the range of these"
    for runs, brackets in ((paths[:11], INTERVAL), (paths[:3] + paths[10:11], RANGE), (paths[9:11], "")):
        assert spread(Comparison([read_run(path) for path in runs])) == brackets


def test_curves_are_of_the_last_stage_alone(make_run: MakeRun) -> None:
    """An earlier stage's scores are of another environment; nothing of them reaches the threshold."""
    path = make_run("staged", "lstm", 0, [90.0, 95.0, 10.0, 80.0, 85.0], 85.0, stages=[f"{LONGER} until frames 200"])
    metrics = path / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows:
        row["stage"] = 1 if row["learner/frames"] <= 200 else 2
    write_rows(metrics, rows)

    run = read_run(path)
    _, oracle_normalized, *_ = KIND["launch"].scales
    x, scores = run.curve(oracle_normalized)
    assert x.tolist() == [300, 400, 500]
    assert scores.tolist() == [10, 80, 85]
    assert run.reached(75.0, oracle_normalized) == 400
    assert run.reached(85.1, oracle_normalized) is None


def test_a_threshold_is_not_reached_by_few_episodes(make_run: MakeRun) -> None:
    path = make_run("lucky", "lstm", 0, [100.0, 60.0, 80.0, 90.0], 90.0)
    metrics = path / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row, episodes in zip(rows, [2, 20, 49, 50], strict=True):
        row["episode/count"] = episodes
    write_rows(metrics, rows)
    _, oracle_normalized, *_ = KIND["launch"].scales
    assert read_run(path).reached(75.0, oracle_normalized) == 400


@pytest.mark.parametrize("worse", [20.0, 58.0])
def test_reach_is_beside_the_delays_of_a_level(worse: float, make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    """It may explain a difference that is confirmed, and nothing else."""
    level = "rooms:small-recall-long"
    is_confirmed = worse == 20.0
    runs: dict[str, list[Path]] = {RECALL: [], level: []}
    for env, those in runs.items():
        for core, final in (("compressive", 60.0), ("transformer-xl", worse)):
            for seed in range(5):
                those.append(make_run(f"{env}{core}{seed}", core, seed, [50.0], final + seed, env=env))

    # Only the level has known delays; of these a core reaches some.
    for env, delays, expected in (
        (RECALL, [], [["72 steps"], ["24 steps"]]),
        (level, [16, 32, 64, 128], [["72 steps", "3 of 4", "87.5 %", "-"], ["24 steps", "1 of 4", "62.5 %", "-"]]),
    ):
        _, text = compare(cli, tmp_path / env, runs[env])
        found = embedded(tmp_path / env / "report.html")["reach"]
        assert found["says"] == "", "nothing was measured"
        assert ("<h2>Why</h2>" in text) == is_confirmed
        cells = [row for _, *row in found["rows"]]
        if is_confirmed:
            assert cells == expected
            assert found["delays"] == delays
            assert ("cannot tell" in text) == (env == RECALL)
        else:
            assert cells == []

    # What is measured on both together is not what the delays of one predict.
    compare(cli, tmp_path / "both", [*runs[RECALL], *runs[level]])
    assert embedded(tmp_path / "both" / "report.html")["reach"]["delays"] == []


def test_a_recurrent_memory_has_no_bound() -> None:
    reaches = {name: reach(make_preset("general", name).core_config) for name in ("memoryless", "lru", "deltanet")}
    assert reaches == {"memoryless": 0, "lru": None, "deltanet": None}


def test_a_single_runs_score_has_the_digits_of_its_episodes(make_run: MakeRun) -> None:
    path = make_run("a", "gru", 0, [1.0], 66.2)
    add_to_evaluation(path, oracle_normalized_interval=[12.1, 98.3])
    comparison = Comparison([read_run(path)])
    assert score_texts(comparison, comparison.best) == ("66", "")


@pytest.mark.parametrize(
    ("misses", "said"),
    [
        ({"a": 4.9, "b": -4.9}, "All are within 5 points of their predictions: reach explains the difference."),
        (
            {"a": 9.3, "b": 0.2, "c": -7.0},
            "a is 9 points below its prediction and c is 7 points above: reach",
        ),
    ],
)
def test_whether_reach_explains_the_scores(misses: dict[str, float], said: str) -> None:
    assert agreement(misses).startswith(said)


def test_a_run_under_two_names_is_refused(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    run = make_run("a", "lstm", 0, [1.0, 2.0], 3.0)
    (tmp_path / "link").symlink_to(run)
    for other in (run, tmp_path / "link", shutil.copytree(run, tmp_path / "copy")):
        words = f"expected each run once, got the same one in {run} and {other}"
        cli.refuse("compare", "--from", run, other, "--folder", tmp_path / "out", words=words)
    assert not (tmp_path / "out").exists()


def test_reasons_to_trust_numbers_less_are_stated(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    runs = [make_run(f"{score}", "lstm", 5, [score], 3.0) for score in (1.0, 2.0)]
    for run in runs:
        add_to_evaluation(run, tasks=[{"environment": "a", "oracle_normalized": 3.0}, {"environment": "b"}])
    for text in compare(cli, tmp_path / "out", runs):
        assert "Runs of lstm have the same seed" in text
        assert "There is only one variant, lstm: nothing is compared." in text
        assert "over those tasks alone that have such a scale" in text


def test_runs_that_are_not_finished_or_damaged_are_named(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    run = make_run("my [red] run", "lstm", 0, [1.0, 2.0, 3.0], 3.0)
    compared = ["compare", "--from", run]
    again = f"resume with: compressive launch --resume '{run}'"

    # Damaged rows of metrics are left out.
    first, second, third = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    torn = f"{second[:30]}\n"
    (run / "metrics.jsonl").write_text(first + torn + '{"step": 3}\n' + third)
    compare(cli, tmp_path / "out", [run])
    assert [row["frames"] for row in table(tmp_path / "out" / "report" / "curves.csv")] == ["100.0", "300.0"]

    # An evaluation that is damaged or missing.
    for text in (
        "{",
        "[]",
        '{"return": {"mean": NaN}}',
        '{"return": {"mean": "3"}}',
        '{"return": {"mean": 3}, "oracle_normalized": null}',
        '{"return": {"mean": 3}, "correct_choices": 1}',
    ):
        (run / "evaluation.json").write_text(text)
        cli.refuse(*compared, words=["evaluation.json", again])
    (run / "evaluation.json").unlink()
    cli.refuse(*compared, words=again)

    # No frames at all.
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "learner/frames"')
    cli.refuse(*compared, words=f"got 0 of 300 frames; {again}")


def test_a_comparison_of_unfinished_runs_confirms_nothing(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    """All of the finished runs are better than all others, which have only begun."""
    runs = []
    for seed in range(7):
        runs.append(make_run(f"done{seed}", "gru", seed, [1.0, 2.0, 3.0], 60.0 + seed))
        begun = make_run(f"begun{seed}", "lstm", seed, [1.0, 2.0, 3.0 + seed], 0.0, frames=10_000)
        (begun / "evaluation.json").unlink()
        runs.append(begun)

    with Watch(tmp_path, 0) as server:
        _, make = server.comparison("launch", RECALL, None)
        text = html.unescape(make())
    about = "14 runs: 2 variants, seeds 0, 1, 2, 3, 4, 5, 6, up to 300 or 10k frames each"
    progress = "; ".join(f"lstm (frames 10000), seed {seed} (3 % trained)" for seed in range(5))
    caution = "7 of 14 runs are not finished: their last score in training stands for the evaluation: "
    last = "of other runs they are the last points of their curves"
    for words in (about, caution, f"{progress}; and 2 more.", "<h2>Scores so far</h2>", last):
        assert words in text
    assert "<b>Not all runs are finished: nothing is confirmed yet.</b>" in text
    for words in ("is better than lstm", "Final scores", "Tables (CSV)", "is confirmed.", 'class="best"', "color-mix"):
        assert words not in text.partition("</style>")[2]

    _, finished = compare(cli, tmp_path / "out", runs[::2])
    assert "<h2>Final scores</h2>" in finished
    assert "Tables (CSV) are in the folder <code>report</code>" in finished
    assert "not finished" not in finished


def test_a_speed_that_was_not_measured_is_left_out(make_run: MakeRun) -> None:
    """The mean is over the other runs. Places of the profile differ where scores do."""
    paths = [make_run(f"{seed}", "gru", seed, [1.0], 7.12345 + seed * 1e-6) for seed in range(2)]
    write_rows(paths[0] / "metrics.jsonl", [{"step": 100, "learner/frames": 100.0, "episode/return": 1.0}])
    comparison = Comparison([read_run(path) for path in paths])
    assert comparison.best.speed == 50
    (profile,) = comparison_page._profiles(comparison)
    assert len(set(profile["x"])) == 101

    alone = Comparison([read_run(paths[0])])
    table_of = comparison_page.variant_table(alone)
    assert table_of["rows"][0][table_of["head"].index("steps/s")] == "-"


def test_a_report_never_replaces_that_of_a_run(make_run: MakeRun, tmp_path: Path, cli: Commands) -> None:
    run = make_run("run", "lstm", 0, [1.0, 2.0], 3.0)
    (tmp_path / "file").write_text("all of it")
    compared = ["compare", "--from", run, "--folder"]
    cli.refuse(*compared, run, words=f"{run} holds a run")
    cli.refuse(*compared, tmp_path / "file" / "out", words="Not a directory")

    # The name of the folder is printed unchanged, and quoted in a command.
    out = tmp_path / "my [bold]report[/bold] :bug:"
    printed, text = compare(cli, out, [run])
    assert f"report  {out / 'report.html'}" in printed
    assert f"--folder '{out}'" in html.unescape(text)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_of_variants_are_whole_at_any_width(width: int) -> None:
    """Numbers come below them, or are left out, and then a line names their columns."""
    console = Console(file=io.StringIO(), width=width)
    head = ["variant", "runs", "interquartile mean", "correct choices", "reached 75 %", "frames/s"]
    names = ["compressive (rate 4, compression convolution)", "lstm"]
    numbers = ["5", "83.1 %  [70.1, 92.3]", "93.1 %  [90.0, 95.0]", "1.2M", "12.3k"]
    print_table(console, head, [[name, *numbers] for name in names], 1, "final score")
    lines = console.file.getvalue().splitlines()

    for name in names:
        (line,) = [line for line in lines if name in line]
        is_alone = line == name
        assert is_alone == (width < 200)
    assert all(len(line.rstrip()) <= width for line in lines if "(" not in line and "not shown" not in line)

    missing = [line for line in lines if line.startswith("not shown")]
    if width == 40:
        assert missing == ["not shown, because the terminal is narrow: reached 75 %, frames/s"]
    else:
        assert not missing
        assert "12.3k" in console.file.getvalue()


def test_a_trial_with_a_damaged_evaluation_is_not_finished(make_run: MakeRun) -> None:
    run = Run(make_run("run", "lstm", 0, [1.0, 2.0], 3.0))
    config = read_config(run)
    assert is_finished(run, config)
    assert not is_finished(run, dataclasses.replace(config, frames=201))
    huge = f'{{"return": {{"mean": 1{"0" * 400}}}}}'
    for damaged in (
        huge,
        '{"return"',
        '{"return": {"mean": null}}',
        '{"return": {"mean": NaN}}',
        '{"return": 1.0}',
        "[]",
    ):
        run.evaluation_file().write_text(damaged)
        assert not is_finished(run, config)
    assert failure(run) is None
    run.error_file.write_text("")
    assert failure(run) == "it left no reason"


def test_the_reason_of_a_foreign_trial_is_any_file(tmp_path: Path) -> None:
    """It may be a link, too long, or no text."""
    run = Run(tmp_path)
    run.error_file.write_bytes(b"Error: caf\xe9")
    assert failure(run) == "Error: caf\ufffd"
    run.error_file.write_bytes(b"x" * ((1 << 20) + 1))
    assert failure(run) == "error.txt has 1048577 bytes, expected at most 1048576"
    run.error_file.unlink()
    run.error_file.symlink_to("/etc/passwd")
    assert "expected a regular file, got a symbolic link" in str(failure(run))


@pytest.mark.parametrize("several", [False, True])
def test_the_tables_of_a_report_are_not_written_through_a_link(
    several: bool, make_run: MakeRun, tmp_path: Path, cli: Commands
) -> None:
    runs = make_runs_in(make_run, [("gru", RECALL, 60.0), ("lstm", LONGER if several else RECALL, 50.0)])
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "out/report").symlink_to(tmp_path / "precious")
    error = cli.refuse("compare", "--from", *runs, "--folder", tmp_path / "out")
    assert "expected a folder, got a symbolic link" in error
    assert list((tmp_path / "precious").iterdir()) == []
