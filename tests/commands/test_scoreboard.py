"""The table of tasks and cores: its cells, what is best, its files and its page."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands import compare
from commands.options import CompareOptions
from reports.comparison import Estimate, read_run
from reports.overview import read_entry
from reports.scoreboard import Scoreboard, as_files, as_table, write_scoreboard
from reports.scoreboard import scoreboard as board_of
from reports.scores import read_scores, scores_of
from storage.errors import UserError
from storage.run import Run
from tests.commands.test_compare import table, write_run
from training import sweep
from training.config import RunConfig
from training.plain import to_plain
from training.presets import make_preset
from training.suites import SUITES

SHORT = "diagnostic:recall,delay=3"
LONG = "diagnostic:recall,delay=9"
OPEN = "diagnostic:color-cubes"


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of acting is in these tables, but not what they are about."""
    monkeypatch.setattr("reports.scores.TURNS", 1)
    monkeypatch.setattr("reports.scores.STEPS", 1)


def scoreboard(runs: list[Any]) -> Scoreboard:
    """The table of runs."""
    return board_of(scores_of(runs))


def make_run(
    folder: Path, core: str, env: str, seed: int, score: float, low: float = 0.0, done: float = 1.0, **more: Any
) -> Any:
    """A run of 1,000 frames of which a share is done; if that is less than all, there is no evaluation.

    `more` are numbers of the evaluation, and `eval_env`.
    """
    frames = round(1000 * done)
    rows = [{"step": frames, "learner/frames": float(frames), "speed/steps_per_second": 50.0, "episode/return": score}]
    config = to_plain(make_preset("general", core)) | {"seed": seed, "frames": 1000, "env": env}
    config["eval_env"] = more.pop("eval_env", None)
    evaluation = {"episodes": 8, "return": {"mean": score, "low": low, "high": 2 * score - low}, **more}
    number = len(list(folder.iterdir()))
    path = write_run(folder / f"{core}-{seed}-{number}", config, rows, evaluation)
    if done < 1:
        (path / "evaluation.json").unlink()
    return read_run(path, live=True)


def test_the_table_has_means_intervals_and_what_is_not_finished(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "gru", SHORT, 0, 0.9, oracle_normalized=90.0),
        make_run(tmp_path, "gru", SHORT, 1, 0.8, oracle_normalized=80.0),
        make_run(tmp_path, "lstm", SHORT, 0, 0.5, oracle_normalized=50.0),
        make_run(tmp_path, "lstm", SHORT, 1, 0.6, oracle_normalized=60.0),
        make_run(tmp_path, "gru", LONG, 0, 0.5, low=0.45, oracle_normalized=50.0),
        make_run(tmp_path, "lstm", LONG, 0, 0.6, low=0.5, oracle_normalized=60.0),
        make_run(tmp_path, "gru", OPEN, 0, 2.0, done=0.25),
    ]
    board = scoreboard(runs)
    assert (board.tasks, board.variants) == ([SHORT, LONG, OPEN], ["gru", "lstm"])

    # Cells: of two runs, of single runs, and of one that is not finished.
    cell = board.cells[SHORT, "gru"]
    assert cell.score == pytest.approx(Estimate(0.85, 0.8, 0.9))
    assert (cell.runs, cell.finished, cell.share) == (2, 2, 1.0)
    assert board.cells[LONG, "gru"].score == pytest.approx(Estimate(0.5, 0.45, 0.55)), "of its episodes"
    unfinished = board.cells[OPEN, "gru"]
    assert (unfinished.score.value, unfinished.finished, unfinished.share) == (2.0, 0, 0.25)
    assert math.isnan(unfinished.score.low)

    # Over all tasks.
    assert board.overall["gru"].value == pytest.approx((80 + 50) / 2), "of 90, 80, 50 and 50: tasks have equal weight"
    assert board.costs["gru"].learning == 50
    assert board.costs["gru"].state == 4 * 64

    # As a table.
    rows = as_table(board)["rows"]
    assert [name for name, *_ in rows] == [*board.tasks, "interquartile mean, % of the best known"]
    assert as_table(board)["head"] == ["task", "random", "best without memory", "oracle", "gru", "lstm"]
    of_short, _, of_open, _ = rows
    assert of_short[-1] == {"text": "0.550", "small": "[0.500, 0.600] 2 runs", "best": False}
    shown = {"text": "2.000", "small": "1 run 25 % trained", "best": False}
    assert of_open == [OPEN, "0.008", "-", "1.000", shown, "-"]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({"gru": [9, 8, 7, 6], "lstm": [5, 4, 3, 2], "lru": [5, 4, 3, 1]}, "gru"),
        ({"gru": [9, 8, 7, 6], "lstm": [6.5, 4, 3, 2], "lru": [5, 4, 3, 1]}, None),  # as likely as 6 % by chance
        ({"gru": [9, 8, 7], "lstm": [5, 4, 3], "lru": [2, 1, 0]}, None),  # 10 %
        ({"gru": [9], "lstm": [1]}, None),
        ({"gru": [9, 8, 7, 6]}, None),
    ],
)
def test_the_best_of_a_task_is_not_best_by_chance(
    scores: dict[str, list[float]], best: str | None, tmp_path: Path
) -> None:
    runs = []
    for core, finals in scores.items():
        for seed, final in enumerate(finals):
            runs.append(make_run(tmp_path, core, SHORT, seed, final, low=final - 0.1, oracle_normalized=final))
    board = scoreboard(runs)
    assert [variant for (_, variant), cell in board.cells.items() if cell.best] == ([best] if best else [])
    assert board.leader is None, "of one task"

    # A run that is not finished may still become better.
    more = make_run(tmp_path, list(scores)[-1], SHORT, 9, 0.0, done=0.5)
    assert not any(cell.best for cell in scoreboard([*runs, more]).cells.values())

    # Runs with more frames are not better because of their core.
    first, *others = scores_of(runs)
    longer = first._replace(of_task={**first.of_task, "frames": 10**9})
    assert not any(cell.best for cell in board_of([longer, *others]).cells.values())


def test_equal_runs_have_no_interval_and_names_are_whole(tmp_path: Path) -> None:
    """In Markdown a bar would end a cell."""
    runs = [make_run(tmp_path, "gru", SHORT, seed, 1.0, low=0.9) for seed in (0, 1)]
    board = board_of([score._replace(variant="a|b") for score in scores_of(runs)])
    ((*_, cell),) = as_table(board)["rows"]
    assert cell["small"] == "all equal"
    markdown = as_files(board)["scoreboard.md"].decode().splitlines()
    assert "a\\|b" in markdown[0]
    assert "1.000 all equal" in markdown[2]


def test_the_leader_of_all_tasks(tmp_path: Path) -> None:
    """Two runs of each show nothing on one task, and do on three."""
    runs = []
    tasks = (SHORT, LONG, "diagnostic:tmaze")
    for env in tasks:
        for core, final in (("gru", 0.8), ("lstm", 0.5), ("lru", 0.3)):
            for seed in (0, 1):
                score = final + 0.1 * seed
                runs.append(make_run(tmp_path, core, env, seed, score, oracle_normalized=100 * score))
    board = scoreboard(runs)
    assert not any(cell.best for cell in board.cells.values())
    assert board.leader == "gru"
    *_, gru, lstm, _ = as_table(board)["rows"][-1]
    assert (gru["best"], lstm["best"]) == (True, False)
    on_two = [run for run in runs if run.data != tasks[-1]]
    assert scoreboard(on_two).leader is None, "too likely"

    # A run that is not finished may still change that.
    more = make_run(tmp_path, "lru", SHORT, 9, 0.2, done=0.5)
    assert scoreboard([*runs, more]).leader is None
    first, *others = scores_of(runs)
    longer = first._replace(of_task={**first.of_task, "frames": 10**9})
    assert board_of([longer, *others]).leader is None


def test_agents_that_are_evaluated_elsewhere_have_no_score_before(tmp_path: Path) -> None:
    trained = make_run(tmp_path, "gru", SHORT, 0, 0.5, eval_env=LONG, oracle_normalized=50.0)
    training = make_run(tmp_path, "lstm", SHORT, 0, 2.0, done=0.25, eval_env=LONG)
    board = scoreboard([trained, training])
    assert board.tasks == [LONG]
    assert board.cells[LONG, "lstm"].scores == ()
    ((*_, gru, lstm),) = as_table(board)["rows"]
    assert gru == {"text": "0.500", "small": "[0.000, 1.000]", "best": False}
    assert lstm == {"text": "-", "small": "25 % trained", "best": False}
    assert json.loads(as_files(board)["scoreboard.json"])[1]["return"] is None


def test_scores_of_an_earlier_stage_are_none_of_the_task(tmp_path: Path) -> None:
    """In tables, and in the list of runs."""
    row = {"step": 500, "learner/frames": 500.0, "episode/return": 2.0, "episode/oracle_normalized": 90.0}
    stages = [f"{LONG} until frames 1k"]
    config = to_plain(make_preset("general", "gru")) | {"frames": 1000, "env": SHORT, "stages": stages}
    for stage, scores in ((1.0, ()), (2.0, (2.0,))):
        path = write_run(tmp_path / f"stage-{stage}", config, [row | {"stage": stage}], {})
        (path / "evaluation.json").unlink()
        board = scoreboard([read_run(path, live=True)])
        assert board.cells[SHORT, "gru"].scores == scores
        shown = read_entry("run", Run(path)).score
        assert (shown is not None) == bool(scores)

    # Nor are those of a training elsewhere.
    path = write_run(tmp_path / "elsewhere", config | {"stages": [], "eval_env": LONG}, [row], {})
    (path / "evaluation.json").unlink()
    assert read_entry("run", Run(path)).score is None


def test_a_stopped_suite_says_how_many_runs_there_will_be(tmp_path: Path) -> None:
    """Nothing is the best before all of them are finished."""
    trials: dict[str, RunConfig] = {}
    for env, seed in itertools.product((SHORT, LONG), range(8)):
        for core, score in (("gru", 0.9), ("lstm", 0.5)):
            config = make_preset("general", core)
            name = f"{core}-{len(trials)}"
            trials[name] = dataclasses.replace(config, env=env, seed=seed, frames=1000)
            if seed < 4:
                run = make_run(tmp_path, core, env, seed, score, oracle_normalized=100 * score)
                run.path.rename(tmp_path / name)

    compare._scoreboard(tmp_path, trials, {}, "command", Console(width=200, quiet=True))
    assert "16 of 32 runs are finished" in (tmp_path / "scoreboard.html").read_text()
    assert "**" not in (tmp_path / "report" / "scoreboard.md").read_text()
    assert len(read_scores(tmp_path / "report" / "scores.json")) == 16, "of the runs that have a score"


def test_its_files_and_its_page(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    runs = []
    for core, score in (("gru", 1.0), ("lstm", 0.5)):
        runs += [make_run(folder, core, SHORT, seed, score, low=score) for seed in range(4)]
    board = scoreboard(runs)

    # Markdown.
    head, line, row, *_ = as_files(board)["scoreboard.md"].decode().splitlines()
    assert [head, line, row] == [
        "| task | random | best without memory | oracle | gru | lstm |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {SHORT} | 0.250 | 0.250 | 1.000 | **1.000** all equal | 0.500 all equal |",
    ]

    # The page, JSON and CSV.
    page = write_scoreboard(tmp_path, board, "compressive compare --suite <memory>")
    assert "compare --suite &lt;memory&gt;" in page.read_text()
    assert 'data-label="gru" class="best">1.000 <small>' in page.read_text()
    assert "1 task, 2 variants" in page.read_text()
    assert "report.html" not in page.read_text(), "a suite that was stopped has none"
    write_scoreboard(tmp_path, board, "compressive compare", report=True)
    assert '<a href="report.html">' in page.read_text()
    plain = json.loads((tmp_path / "report" / "scoreboard.json").read_text())
    assert [(row["task"], row["variant"], row["return"], row["normalized"]) for row in plain] == [
        (SHORT, "gru", 1.0, None),
        (SHORT, "lstm", 0.5, None),
    ]
    found = table(tmp_path / "report" / "scoreboard.csv")
    assert [float(row["return"]) for row in found] == [1.0, 0.5]


def test_one_task_of_a_suite_has_scores_for_other_tables(tmp_path: Path) -> None:
    """It has no table of its own: its report says all."""
    (task,) = [task for task in SUITES["horizon"] if task.name.startswith("recall")]
    options = CompareOptions(suite="horizon", tasks=(task.name,), cores=("gru",), seeds=(0,))
    assert [config.env for config in compare._plan(options, ()).values()] == [task.env]

    run = make_run(tmp_path, "gru", SHORT, 0, 0.9)
    compare._scoreboard(tmp_path, {run.path.name: run.config}, {}, "command", Console(width=80))
    (row,) = read_scores(tmp_path / "report" / "scores.json")
    assert (row.task, row.mean) == (SHORT, 0.9)
    assert not (tmp_path / "scoreboard.html").exists()


def test_the_table_of_a_sweep_has_the_scores_of_files(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "gru", env, 0, 0.9, oracle_normalized=90.0) for env in (SHORT, LONG)]
    trials = {each.path.name: each.config for each in runs}
    others = [row._replace(variant="mycore", mean=0.7) for row in scores_of(runs)]
    compare._scoreboard(tmp_path, trials, {"theirs.json": others}, "command", Console(width=80))
    rows = read_scores(tmp_path / "report" / "scores.json")
    assert [(row.variant, row.mean) for row in rows] == [("gru", 0.9), ("gru", 0.9), ("mycore", 0.7), ("mycore", 0.7)]
    assert "mycore" in (tmp_path / "scoreboard.html").read_text()


def test_environments_that_cannot_be_made_here_do_not_hold_up_the_table(tmp_path: Path) -> None:
    """As where a trial fails because its environment does, or a sweep is shown where DeepMind Lab is not installed."""
    own = make_run(tmp_path, "gru", SHORT, 0, 0.9, oracle_normalized=90.0)
    elsewhere = make_run(tmp_path, "lstm", "dmlab:rooms_watermaze", 0, 5.0)
    missing = dataclasses.replace(make_preset("general", "gru"), env="gym:tests.envs.faulty:missing", frames=1000)
    trials = {each.path.name: each.config for each in (own, elsewhere)} | {"missing": missing}
    compare._scoreboard(tmp_path, trials, {}, "command", Console(width=80))
    assert "2 of 3 runs are finished" in (tmp_path / "scoreboard.html").read_text()
    gru, lstm = read_scores(tmp_path / "report" / "scores.json")
    assert gru.acting > 0
    assert math.isnan(lstm.acting)


def test_a_sweep_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "gru", SHORT, seed, 0.9) for seed in range(2)]
    folder = tmp_path / "sweep"
    sweep.begin(folder, {run.path.name: run.config for run in runs}, "compressive compare")
    for run in runs:
        run.path.rename(folder / run.path.name)
    with Run(folder).lock(), pytest.raises(UserError, match="in use by another process"):
        compare.compare(CompareOptions(resume=folder), [], "compressive compare")
    assert not (folder / "report").exists()
