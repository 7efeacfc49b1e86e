"""`compare --suite`: what a suite trains, the table of tasks and cores, and a small suite on Ray."""

import dataclasses
import itertools
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import envs
from agent import Agent
from commands import compare
from commands.compare import _cost, _folder, _read_beside
from commands.options import CompareOptions
from commands.parsing import parse_train
from reports.comparison import Estimate, read_run
from reports.overview import read_entry
from reports.scoreboard import Scoreboard, as_files, as_table, write_scoreboard
from reports.scoreboard import scoreboard as board_of
from reports.scores import Score, acting_speeds, as_json, joined, planned, read_scores, scores_of, settings_of
from storage.errors import UserError
from storage.run import Run
from tests.commands.cli import Commands, run
from tests.commands.test_compare import table, write_run
from training.config import RunConfig, core_name
from training.grid import label, make_suite, make_trials
from training.plain import to_plain
from training.presets import make_preset
from training.suites import SUITES, Task
from training.trainer import Trainer

SHORT = "diagnostic:recall,delay=3"
LONG = "diagnostic:recall,delay=9"
OPEN = "diagnostic:color-cubes"


def suite_of(tasks: tuple[Task, ...], *options: str, cores: tuple[str, ...] = ("gru", "lstm")) -> dict[str, RunConfig]:
    """The trials of a suite of tasks: each core with two seeds."""

    def parse(words: list[str]) -> RunConfig:
        return parse_train("launch", words).config

    def make(words: list[str]) -> dict[str, RunConfig]:
        return make_trials(RunConfig, parse, "general", cores, rates=(), seeds=(0, 1), vary=(), options=words, fewest=1)

    return make_suite(tasks, make, options)


def test_a_suite_trains_every_core_on_every_task_one_seed_after_the_other() -> None:
    options = ("--learner.entropy-cost", "0.5")
    tasks = (Task("recall,delay=3", SHORT, 2000), Task("far", SHORT, 3000, LONG, unroll=64, options=options))
    trials = suite_of(tasks)
    names = ["recall-delay-3-gru", "recall-delay-3-lstm", "far-gru", "far-lstm"]
    assert list(trials) == [f"{name}-seed-{seed}" for seed in (0, 1) for name in names]

    # A trial has the settings of its task.
    far = trials["far-lstm-seed-1"]
    assert (far.preset, far.env, far.eval_env, far.frames, far.seed) == ("general", SHORT, LONG, 3000, 1)
    assert core_name(far) == "lstm"
    assert (far.actors.unroll_length, far.actors.envs_per_actor, far.rows_per_update) == (64, 8, 4)
    assert far.learner.entropy_cost == 0.5
    gru, lstm, *_ = label([*trials.values()])
    assert (gru, lstm) == ("gru", "lstm"), "frames, unrolls and bonuses are those of the task"
    assert label([*trials.values()]) == ["gru", "lstm"] * 4

    # Options take the place of the task's.
    assert suite_of(tasks, "--actors.unroll-length", "32")["far-lstm-seed-1"].actors.unroll_length == 32
    assert {config.frames for config in suite_of(tasks, "--frames", "500").values()} == {500}
    assert len(suite_of(tasks, cores=("gru",))) == 4, "one core is enough"
    with pytest.raises(UserError, match=r"^--env: expected options that hold for all tasks of the suite"):
        suite_of(tasks, "--env", LONG)


def test_agents_that_learned_elsewhere_are_other_variants() -> None:
    """If they are evaluated in one environment, that is the task of both."""
    tasks = (Task("near", SHORT, 2000, LONG), Task("same", LONG, 2000, LONG))
    titles = label([*suite_of(tasks, cores=("gru",)).values()])
    assert titles == [f"gru (env {SHORT})", f"gru (env {LONG})"] * 2

    # So are those that learned elsewhere beside those of the task itself, whether it is named twice or not.
    general = make_preset("general", "gru")
    itself = dataclasses.replace(general, env=LONG)
    twice = dataclasses.replace(itself, eval_env=LONG)
    from_short = dataclasses.replace(general, env=SHORT, eval_env=LONG)
    assert label([itself, twice, from_short]) == [f"gru (env {env})" for env in (LONG, LONG, SHORT)]
    assert label([itself, dataclasses.replace(twice, frames=9)]) == [f"gru (frames {general.frames})", "gru (frames 9)"]


def test_the_cost_is_that_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames a second are measured for each task with the first core and for each core on the first task."""
    speed_of_core = {"gru": 100.0, "lstm": 50.0}
    factor_of_task = {SHORT: 1.0, LONG: 0.5}
    tried = []

    def try_out(trainer: Trainer) -> float:
        env = trainer.config.env
        core = core_name(trainer.config)
        tried.append((env, core))
        return speed_of_core[core] * factor_of_task[env]

    monkeypatch.setattr(Trainer, "try_out", try_out)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    trials = suite_of((Task("short", SHORT, 6000), Task("long", LONG, 12_000)))
    options = CompareOptions(suite="memory")

    # Two seeds of 60, 120, 240 and 480 s, two at a time.
    said = _cost(trials, [*trials], options)
    assert tried == [(SHORT, "gru"), (SHORT, "lstm"), (LONG, "gru")]
    assert said.startswith("about 15:00 for 8 runs of 1:00 to 8:00 each, 2 at a time")

    # Of a suite to which runs were added, those that are not there yet.
    missing = [name for name in trials if name.endswith("lstm-seed-1")]
    said = _cost(trials, missing, options)
    assert said.startswith("about 5:00 for 2 runs of 2:00 to 8:00 each")


def test_the_cost_is_said_of_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a new suite, and of cores that are added to one; not when a suite that was begun is continued."""
    monkeypatch.setattr(compare, "_cost", lambda asked, todo, options: f"an hour for {len(todo)}")

    def begin(*cores: str, add: bool = False) -> str:
        """What is said when the suite is begun, or typed again."""
        options = CompareOptions(suite="horizon", cores=cores, seeds=(0,), folder=tmp_path / "sweep", add=add)
        compare._begin(options, [], "command", Console(width=80))
        return capsys.readouterr().out

    assert "an hour for 2" in begin("gru")
    (tmp_path / "sweep" / "recall-159-to-10000-gru-seed-0").mkdir()
    assert begin("gru") == ""
    assert "an hour for 3" in begin("gru", "lstm", add=True)


# The easy tasks of popgym are a suite, too.
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name == "popgym" else []) for name in SUITES]


@pytest.mark.parametrize("name", NAMES)
def test_the_suites(name: str) -> None:
    """Names are unique, and an agent can be tested where it is to be. (Tasks of other packages are not made.)

    Gradients reach as far back as something has to be kept, and an update has about as many steps in all suites.
    """
    tasks = SUITES[name]
    assert len({task.name for task in tasks}) == len(tasks)
    assert set(label([*suite_of(tasks, cores=("gru",)).values()])) == {"gru"}, "on all tasks it is the same agent"
    for task in tasks:
        config = parse_train("launch", task.words).config
        assert (config.env, config.frames, config.eval_env) == (task.env, task.frames, task.eval_env)
        assert config.eval_greedy == task.greedy == (name == "horizon")
        length = config.actors.unroll_length
        for kept in re.findall(r"(?:delay|length)=(\d+)", task.env):
            assert length > int(kept)
            if name == "horizon":
                assert int(kept) % 2 == 1, "episodes begin at every step of a segment"
        assert 128 < length * (config.rows_per_update or 0) <= 256
        assert 256 < length * config.actors.envs_per_actor <= 512
        # These alone have another bonus for exploration.
        has_other_bonus = task.env.startswith(("diagnostic:passive-tmaze", "diagnostic:color-cubes,diagnostic"))
        assert (config.learner.exploration == "evenness") == has_other_bonus
        if task.env.startswith("diagnostic:"):
            trained = envs.make_vector(envs.tasks(task.env)[0], 1)
            tested = envs.make_vector(task.eval_env or task.env, 1)
            assert trained.single_observation_space == tested.single_observation_space


def test_bad_input_is_one_clear_line(cli: Commands) -> None:
    cli.refuse("compare", "--suite", "all", words="suite: expected one of memory, rewriting, horizon, minigrid,")
    words = "tasks: expected some of 'recall 159 to 10000' 'passive-tmaze 159 to 10000', got 'recall'"
    cli.refuse("compare", "--suite", "horizon", "--tasks", "recall", words=words)
    cli.refuse("compare", "--tasks", "recall", words="tasks: expected --suite NAME beside them, got recall")
    cli.refuse("compare", "--suite", "memory", "--kind", "text", words="suite: expected none with --kind text")
    cli.refuse(
        "compare", "--resume", "FOLDER", "--suite", "memory", words="expected the sweep as it began, got --suite"
    )
    words = "--env: expected options that hold for all tasks of the suite"
    cli.refuse("compare", "--suite", "memory", "--cores", "gru", "--env", SHORT, words=words)


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
        make_run(tmp_path, "gru", SHORT, 0, 0.9, oracle_normalised=90.0),
        make_run(tmp_path, "gru", SHORT, 1, 0.8, oracle_normalised=80.0),
        make_run(tmp_path, "lstm", SHORT, 0, 0.5, oracle_normalised=50.0),
        make_run(tmp_path, "lstm", SHORT, 1, 0.6, oracle_normalised=60.0),
        make_run(tmp_path, "gru", LONG, 0, 0.5, low=0.45, oracle_normalised=50.0),
        make_run(tmp_path, "lstm", LONG, 0, 0.6, low=0.5, oracle_normalised=60.0),
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
            runs.append(make_run(tmp_path, core, SHORT, seed, final, low=final - 0.1, oracle_normalised=final))
    board = scoreboard(runs)
    assert [variant for (_, variant), cell in board.cells.items() if cell.best] == ([best] if best else [])
    assert board.leader is None, "of one task"

    # A run that is not finished may still become better.
    more = make_run(tmp_path, list(scores)[-1], SHORT, 9, 0.0, done=0.5)
    assert not any(cell.best for cell in scoreboard([*runs, more]).cells.values())


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
                runs.append(make_run(tmp_path, core, env, seed, score, oracle_normalised=100 * score))
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


def test_agents_that_are_evaluated_elsewhere_have_no_score_before(tmp_path: Path) -> None:
    trained = make_run(tmp_path, "gru", SHORT, 0, 0.5, eval_env=LONG, oracle_normalised=50.0)
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
    row = {"step": 500, "learner/frames": 500.0, "episode/return": 2.0, "episode/oracle_normalised": 90.0}
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
                run = make_run(tmp_path, core, env, seed, score, oracle_normalised=100 * score)
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
    assert [(row["task"], row["variant"], row["return"], row["normalised"]) for row in plain] == [
        (SHORT, "gru", 1.0, None),
        (SHORT, "lstm", 0.5, None),
    ]
    found = table(tmp_path / "report" / "scoreboard.csv")
    assert [float(row["return"]) for row in found] == [1.0, 0.5]


def test_scores_survive_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    runs = [make_run(folder, "gru", SHORT, 3, 0.9, oracle_normalised=90.0), make_run(folder, "gru", OPEN, 0, 2.0)]
    scores = scores_of(runs)
    file = tmp_path / "scores.json"
    file.write_text(as_json(scores))
    first, second = read_scores(file)
    assert first == scores[0]
    assert (first.task, first.variant, first.seed, first.normalised) == (SHORT, "gru", 3, 90.0)
    assert math.isnan(second.normalised), "of a task whose best score is not known"
    assert second._replace(normalised=0.0) == scores[1]._replace(normalised=0.0)
    assert first.settings == second.settings, "the task is none of them"


def test_settings_are_those_of_the_training_on_any_machine() -> None:
    config = make_preset("general", "gru")
    settings, of_task = settings_of(config)
    assert settings["learner.trust"] == config.learner.trust
    learner = dataclasses.replace(config.learner, precision="float32", device="cpu")
    actors = dataclasses.replace(config.actors, precision="bfloat16")
    elsewhere = dataclasses.replace(config, env=LONG, seed=4, learner=learner, actors=actors)
    assert settings_of(elsewhere) == (settings, of_task | {"env": LONG})
    changed = dataclasses.replace(config, learner=dataclasses.replace(config.learner, trust=0.1, discount=0.9))
    assert settings_of(changed) == (settings | {"learner.trust": 0.1}, of_task | {"learner.discount": 0.9})
    assert settings_of(make_preset("general", "lstm")) == (settings | {"agent.core.name": "lstm"}, of_task)
    longer = dataclasses.replace(config, frames=9, rows_per_update=4)
    assert settings_of(longer) == (settings, of_task | {"frames": 9, "rows_per_update": 4})


@pytest.mark.parametrize("core", [*RunConfig.cores, "my.module:Core"])
def test_settings_that_a_file_does_not_know_have_their_defaults(core: str, tmp_path: Path) -> None:
    """A file that was written before there was an option stands for agents trained with its default."""
    now, of_task = settings_of(make_preset("general", core))
    defaults = {"learner.popart": RunConfig().learner.popart, "agent.core.model_size": 256}
    assert all(now[name] != value for name, value in defaults.items()), "the preset has others"
    file = tmp_path / "scores.json"
    before = {name: value for name, value in now.items() if name not in defaults}
    file.write_text(as_json([score(settings=before, of_task={"frames": of_task["frames"]})]))
    (read,) = read_scores(file)
    assert read.settings == now | defaults
    assert read.of_task == settings_of(RunConfig())[1] | {"env": read.task, "frames": of_task["frames"]}

    # An option that is no more, and a core that is none of today's: other agents.
    file.write_text(as_json([score(settings=now | {"agent.gone": 1}), score(settings={"agent.core.name": "gone"})]))
    first, second = read_scores(file)
    assert first.settings == now | {"agent.gone": 1}
    assert second.settings == {"agent.core.name": "gone"}


def test_settings_that_all_tasks_had_alike_may_differ(tmp_path: Path) -> None:
    """A file that was written when all tasks had one discount stands for agents trained with it on each task."""
    settings, of_task = settings_of(make_preset("general", "gru"))
    before = settings | {"learner.discount": 0.9, "actors.num_actors": 1}
    known_then = {"frames": of_task["frames"], "env": SHORT}
    file = tmp_path / "scores.json"
    file.write_text(as_json([score(settings=before, of_task=known_then)]))
    (read,) = read_scores(file)
    assert read.settings == settings
    assert read.of_task["learner.discount"] == 0.9
    assert read.of_task["actors.num_actors"] == 1
    assert read.of_task["stages"] == []


def score(task: str = SHORT, variant: str = "gru", seed: int = 0, **more: Any) -> Score:
    """A row."""
    settings = {"agent.core.name": "gone", "a": 1}
    _, of_task = settings_of(RunConfig(env=task, frames=1000))
    known = Score(task, variant, settings, of_task, seed, 0.5, 0.4, 0.6, 50.0, True, 1.0, 20.0, 30.0, 4)
    return known._replace(**more)


def test_rows_of_a_file_join_those_of_equal_terms() -> None:
    """Own rows count where both have one. What was trained otherwise stands beside them, under another name."""
    own = [score(), score(task=LONG), score(variant="lstm")]
    new = [score(seed=1), score(task=OPEN), score(variant="lru", settings={"b": 2})]
    rows, different = joined(own, [score(mean=0.9), *new, score(seed=1, mean=0.9)], "f.json")
    assert rows == [*own, *new]
    assert different == {}
    elsewhere = score(task=OPEN, variant="lstm", of_task={"frames": 9})
    assert joined(own, [elsewhere], "f.json") == ([*own, elsewhere], {}), "each task has its own"

    # Learned in another environment, though evaluated in the same.
    trained = score(task=LONG, seed=1, of_task=score(task=LONG).of_task | {"env": SHORT})
    _, different = joined(own, [trained], "f.json")
    assert different == {"gru (f.json)": f"{LONG}: env {SHORT!r}, here {LONG!r}"}

    other = {"a": [2], "b": 2, "c": 3, "d": 4}
    others = [
        score(settings=other),
        score(task=OPEN, settings=other),
        score(variant="lstm", of_task=score().of_task | {"frames": 2000}),
    ]
    (*_, first, second, third), different = joined(own, others, "f.json")
    assert [first.variant, second.variant, third.variant] == ["gru (f.json)", "gru (f.json)", "lstm (f.json)"]
    assert different == {
        "gru (f.json)": "agent.core.name none, here 'gone'; a [2], here 1; b 2, here none; 2 more",
        "lstm (f.json)": f"{SHORT}: frames 2000, here 1000",
    }


def test_a_suite_has_a_folder_of_its_own() -> None:
    """Also if a preset is called as it is."""
    trials = {"trial": make_preset("memory", "gru")}
    assert _folder(CompareOptions(suite="memory", cores=("gru",)), trials) == Path("runs/suite-memory")
    assert _folder(CompareOptions(cores=("gru",)), trials) == Path("runs/compare-memory")


def test_files_of_one_name_all_stand_in_the_table(tmp_path: Path) -> None:
    """As those of several comparisons, which are all called scores.json."""
    files = []
    for name in ("a/scores.json", "b/scores.json", "theirs.json"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(as_json([score(variant=name.replace("/", " "))]))
        files.append(file)
    variants = {name: [row.variant for row in rows] for name, rows in _read_beside(files).items()}
    first, second, third = files
    assert variants == {str(first): ["a scores.json"], str(second): ["b scores.json"], third.name: ["theirs.json"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "expected an object, got []"),
        ("{}", "expected settings, scores in it, got []"),
        ('{"settings": [], "scores": [3]}', "row 0: expected an object of task, variant, settings"),
        (
            '{"settings": [], "scores": [{"task": "a"}]}',
            "row 0: expected an object of task, variant, settings",
        ),
        ('{"settings": [3], "scores": []}', "settings 0: expected an object, got 3"),
        ('{"settings": [{"agent.core.name": "a:-"}], "scores": []}', "settings 0: config.agent.core.name: expected M"),
        ({"settings": 1}, "row 1: settings: expected a place in the file's list, got 1"),
        ({"settings": {}}, "row 1: settings: expected a place in the file's list, got {}"),
        ({"seed": "0"}, "row 1: seed: expected a whole number, got '0'"),
        ({"of_task": []}, "row 1: of_task: expected an object, got []"),
        ({"finished": 1}, "row 1: finished: expected true or false, got 1"),
        ({"mean": True}, "row 1: mean: expected a number or null, got True"),
        ({"variant": None}, "row 1: variant: expected text, got None"),
        ({"more": 1}, "row 1: expected an object of"),
        ({"task": "evil"}, "row 1: task: environment 'evil': expected 'kind:name'"),
        ({"task": "diagnostic:evil"}, "row 1: task: no diagnostic task 'evil'"),
        ({"task": "diagnostic:endless-tmaze,corridors=0"}, "row 1: task: environment 'diagnostic:endless-tmaze,"),
        ({"task": "diagnostic:recall,symbols=[1]"}, "row 1: task: environment 'diagnostic:recall,symbols=[1]'"),
        ({"share": 1.5}, "row 1: expected numbers from 0 to 2^63 - 1, and a share up to 1"),
        ({"state_bytes": -1}, "row 1: expected numbers from 0"),
        ({"state_bytes": 10**400}, "row 1: expected numbers from 0 to 2^63 - 1"),
        ({"seed": 2**63}, "row 1: expected numbers from 0 to 2^63 - 1"),
    ],
)
def test_files_of_scores_that_are_none(content: Any, words: str, tmp_path: Path, cli: Commands) -> None:
    """They are refused before anything is trained."""
    file = tmp_path / "scores.json"
    if isinstance(content, dict):
        plain = json.loads(as_json([score(), score(seed=1)]))
        plain["scores"][1] |= content
        content = json.dumps(plain)
    file.write_text(content)
    folder = tmp_path / "sweep"
    suite = ["compare", "--suite", "memory", "--cores", "gru", "--folder", folder]
    cli.refuse(*suite, "--beside", file, words=["beside: ", str(file), words])
    cli.refuse(*suite, "--beside", tmp_path / "none.json", words="none.json")
    assert not folder.exists()


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


def test_runs_that_have_not_begun_are_of_the_task_of_their_evaluation() -> None:
    """There their frames are compared with those of a file."""
    config = dataclasses.replace(make_preset("general", "gru"), env=SHORT, eval_env=LONG, seed=3)
    (row,) = planned([config])
    assert (row.task, row.variant, row.seed, row.has_score, row.share) == (LONG, "gru", 3, False, 0.0)
    theirs = row._replace(of_task=row.of_task | {"frames": 9})
    _, different = joined([row], [theirs], "f")
    assert different == {"gru (f)": f"{LONG}: frames 9, here {config.frames}"}


def test_other_settings_of_a_file_are_said_before_hours_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Trained(Exception):
        """Training would begin here."""

    def train(*args: object) -> None:
        raise Trained

    monkeypatch.setattr(compare, "_train", train)
    monkeypatch.setattr(compare, "_cost", lambda *args: "nothing")
    task = SUITES["memory"][0]
    options = CompareOptions(
        suite="memory",
        tasks=(task.name,),
        cores=("gru", "lstm"),
        seeds=(1,),
        folder=tmp_path / "sweep",
        beside=(tmp_path / "f",),
    )
    equal = []
    for config in compare._plan(options, ()).values():
        settings, of_task = settings_of(config)
        of_task["agent.pixel_zero"] = 127.5  # as the run of a task without images has it
        equal.append(score(task.env, str(settings["agent.core.name"]), settings=settings, of_task=of_task))
    otherwise = [row._replace(settings=row.settings | {"learner.trust": 0.5}) for row in equal]
    gru, lstm = otherwise
    apart = [gru, lstm._replace(settings=lstm.settings | {"learner.trust": 0.4})]
    for rows, expected in [
        (equal, []),
        (otherwise, ["gru (f), lstm (f): trained otherwise: learner.trust 0.5, here 0.2"]),
        (
            apart,
            [
                f"{name} (f): trained otherwise: learner.trust {x}, here 0.2"
                for name, x in (("gru", 0.5), ("lstm", 0.4))
            ],
        ),
    ]:
        (tmp_path / "f").write_text(as_json(rows))
        with pytest.raises(Trained):
            compare.compare(options, (), "command")
        said = " ".join(capsys.readouterr().out.split())
        assert said.count("trained otherwise") == len(expected)
        assert all(line in said for line in expected)


def test_scores_of_files_need_a_table_of_agents(cli: Commands) -> None:
    words = "beside: expected agents that are trained on several tasks"
    cli.refuse("compare", "--from", "A", "B", "--beside", "scores.json", words=words)
    cli.refuse("compare", "--kind", "text", "--beside", "scores.json", words=words)


def test_the_table_of_a_sweep_has_the_scores_of_files(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "gru", env, 0, 0.9, oracle_normalised=90.0) for env in (SHORT, LONG)]
    trials = {each.path.name: each.config for each in runs}
    others = [row._replace(variant="mycore", mean=0.7) for row in scores_of(runs)]
    compare._scoreboard(tmp_path, trials, {"theirs.json": others}, "command", Console(width=80))
    rows = read_scores(tmp_path / "report" / "scores.json")
    assert [(row.variant, row.mean) for row in rows] == [("gru", 0.9), ("gru", 0.9), ("mycore", 0.7), ("mycore", 0.7)]
    assert "mycore" in (tmp_path / "scoreboard.html").read_text()


@pytest.mark.parametrize("env", [SHORT, "rooms:small", "gym:tests.envs.odd:Many-v0"])
def test_acting_is_measured_for_any_observation(env: str) -> None:
    (speed,) = acting_speeds([parse_train("launch", ["--preset", "general", "--env", env]).config])
    assert speed > 100


def test_acting_is_measured_in_turns_of_whole_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second of a made-up clock, and 17 where a segment ends; in the last turn everything is slower."""
    made = []
    seconds = 0.0
    forward = Agent.forward

    def counted(self: Agent, *arguments: Any, **words: Any) -> Any:
        nonlocal seconds
        made.append(type(self.core).__name__)
        steps_of_core = made.count(made[-1])
        seconds += 17.0 if steps_of_core % 16 == 0 else 1.0
        seconds += 100.0 if steps_of_core > 3 * 64 else 0.0
        return forward(self, *arguments, **words)

    monkeypatch.setattr(Agent, "forward", counted)
    monkeypatch.setattr(time, "thread_time", lambda: seconds)
    speeds = acting_speeds([make_preset("general", "compressive"), make_preset("general", "gru")])
    assert speeds == [16 / 2, 16 / 2]
    assert len([name for name, _ in itertools.groupby(made)]) == 2 * (1 + 3)


def test_acting_is_measured_on_one_core_and_the_others_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        acting_speeds([make_preset("general", "gru")])
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.ray
@pytest.mark.slow
def test_a_suite_is_trained_and_shown(tmp_path: Path) -> None:
    """In a process of its own: Ray mixes up clusters that one process is on after another."""
    folder = tmp_path / "suite"
    words = ["--suite", "horizon", "--cores", "gru", "--seeds", "0", "--frames", "4k", "--folder", folder]
    words += ["--eval-episodes", "1", "--video-episodes", "0", "--actors.max-episode-steps", "20000"]
    beside = tmp_path / "theirs.json"
    beside.write_text(as_json([score(variant="theirs")]))
    words += ["--beside", beside]
    ended = run("compare", *words)
    assert ended.returncode == 0, ended.stderr
    assert "for 2 runs of" in ended.stdout
    assert "scoreboard.html" in ended.stdout
    assert f"--beside {beside}\n" in ended.stdout, "the command that resumes"
    assert '<a href="report.html">' in (folder / "scoreboard.html").read_text()
    assert (folder / "report.html").exists()
    rows = json.loads((folder / "report" / "scoreboard.json").read_text())
    own = {(row["task"], row["finished"]) for row in rows if row["variant"] != "theirs"}
    assert own == {(task.eval_env, 1) for task in SUITES["horizon"]}
    assert len(read_scores(folder / "report" / "scores.json")) == 3
