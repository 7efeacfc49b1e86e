"""Scores of runs in files: what they keep, which rows join a table, and the speed of acting."""

import dataclasses
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agent import Agent
from commands import compare
from commands.compare import _read_beside
from commands.options import CompareOptions
from commands.parsing import parse_train
from reports.scores import Score, acting_speeds, as_json, joined, planned, read_scores, scores_of, settings_of
from tests.commands.cli import Commands
from tests.commands.test_scoreboard import make_run
from training.config import RunConfig
from training.presets import make_preset
from training.suites import SUITES

SHORT = "diagnostic:recall,delay=3"
LONG = "diagnostic:recall,delay=9"
OPEN = "diagnostic:color-cubes"


def score(task: str = SHORT, variant: str = "gru", seed: int = 0, **more: Any) -> Score:
    """A row."""
    settings = {"agent.core.name": "gone", "a": 1}
    _, of_task = settings_of(RunConfig(env=task, frames=1000))
    known = Score(task, variant, settings, of_task, seed, 0.5, 0.4, 0.6, 50.0, True, 1.0, 20.0, 30.0, 4)
    return known._replace(**more)


def test_scores_survive_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    runs = [make_run(folder, "gru", SHORT, 3, 0.9, oracle_normalized=90.0), make_run(folder, "gru", OPEN, 0, 2.0)]
    scores = scores_of(runs)
    file = tmp_path / "scores.json"
    file.write_text(as_json(scores))
    first, second = read_scores(file)
    assert first == scores[0]
    assert (first.task, first.variant, first.seed, first.normalized) == (SHORT, "gru", 3, 90.0)
    assert math.isnan(second.normalized), "of a task whose best score is not known"
    assert second._replace(normalized=0.0) == scores[1]._replace(normalized=0.0)
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
