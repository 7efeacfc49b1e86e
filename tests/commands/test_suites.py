"""`compare --suite`: what a suite trains, what it costs, and a small suite on Ray."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

import envs
from commands import compare
from commands.compare import _cost, _folder
from commands.options import CompareOptions
from commands.parsing import parse_train
from reports.scores import as_json, read_scores
from storage.errors import UserError
from tests.commands.cli import Commands, run
from tests.commands.test_scores import score
from training.config import RunConfig, core_name
from training.grid import label, make_suite, make_trials
from training.presets import make_preset
from training.suites import SUITES, Task
from training.trainer import Trainer

SHORT = "diagnostic:recall,delay=3"
LONG = "diagnostic:recall,delay=9"


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
QUICK = ("memory", "rewriting")
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in SUITES]


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
        has_other_bonus = task.env.startswith(("diagnostic:passive-tmaze", "diagnostic:color-cubes"))
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


def test_a_suite_has_a_folder_of_its_own() -> None:
    """Also if a preset is called as it is."""
    trials = {"trial": make_preset("memory", "gru")}
    assert _folder(CompareOptions(suite="memory", cores=("gru",)), trials) == Path("runs/suite-memory")
    assert _folder(CompareOptions(cores=("gru",)), trials) == Path("runs/compare-memory")


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
