"""`compressive evaluate` of several runs, of oracles and of random actions."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from rich.console import Console

from actors import Actor
from envs import reference_scores
from reports.tables import print_evaluations
from tests.commands.cli import Commands

SHORT = "rooms:small,episode_frames=100"


def evaluated(cli: Commands, *arguments: object) -> list[dict[str, Any]]:
    """What the command prints as JSON, and nothing else."""
    return json.loads(cli.run("evaluate", "--json", *arguments))


@pytest.mark.parametrize("env", ["rooms:full", "diagnostic:recall", "diagnostic:tmaze,length=5"])
def test_an_oracle_reaches_its_reference_score(env: str, cli: Commands) -> None:
    (summary,) = evaluated(cli, "--policy", "oracle", "--env", env, "--episodes", "4")
    assert summary["return"] == dict.fromkeys(("mean", "low", "high"), reference_scores(env)["oracle"])
    assert summary["oracle_normalized"] == pytest.approx(100)
    assert (summary["policy"], summary["episodes"]) == ("oracle", 4)


@pytest.mark.parametrize(("env", "episodes"), [("rooms:small", 64), ("diagnostic:recall,delay=2", 2048)])
def test_random_actions_reach_their_reference_score(env: str, episodes: int, cli: Commands) -> None:
    arguments = ["--policy", "random", "--env", env, "--episodes", episodes]
    (summary,) = evaluated(cli, *arguments)
    score = summary["return"]
    expected = reference_scores(env)["random"]
    assert expected is not None
    assert abs(score["mean"] - expected) < score["high"] - score["low"], "within two 95 % intervals"
    low, high = summary["oracle_normalized_interval"]
    assert low < summary["oracle_normalized"] < high
    assert evaluated(cli, *arguments) == [summary], "the same seed"
    assert evaluated(cli, *arguments, "--seed", "1") != [summary]


def test_every_episode_is_a_row_of_the_csv(tmp_path: Path, cli: Commands) -> None:
    """What a task does not count is empty."""
    path = tmp_path / "new" / "episodes.csv"
    tasks = [SHORT, "diagnostic:recall,delay=2"]
    arguments = ["--policy", "random", "--env", ",".join(tasks), "--episodes", 5, "--csv", path]
    (summary,) = evaluated(cli, *arguments)

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == summary["episodes"] == 10
    for task, part in zip(tasks, summary["tasks"]):
        own = [row for row in rows if row["environment"] == task]
        assert {row["player"] for row in own} == {"random"}
        assert sum(float(row["return"]) for row in own) / 5 == pytest.approx(part["return"]["mean"])
    assert {row["steps"] for row in own} == {"3"}
    assert {row["counter/correct_choices"] for row in own} == {""}
    choices = [float(row["counter/correct_choices"]) + float(row["counter/wrong_choices"]) for row in rows[:5]]
    assert sum(choices) / 5 == pytest.approx(summary["tasks"][0]["choices_per_episode"])

    cli.refuse("evaluate", *arguments[:-1], tmp_path, words=["csv", "expected a regular file, got a folder"])


def test_films_and_tables_have_files_of_their_own(finished: tuple[Path, str], tmp_path: Path, cli: Commands) -> None:
    path = tmp_path / "same.mp4"
    run, _ = finished
    words = f"csv: expected another file than that of --video, got {path}"
    cli.refuse("evaluate", run, "--csv", path, "--video", path, words=words)


@pytest.mark.parametrize("greedy", [False, True])
def test_greedy_actions(
    greedy: bool,
    finished: tuple[Path, str],
    copied: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Commands,
) -> None:
    """In evaluation, which plays in two environments at once, and in films and pages, which play in one."""
    act = Actor.act
    was_best: dict[int, list[bool]] = {}  # by number of environments

    def watched(actor: Actor, *arguments: Any, **options: Any) -> Any:
        action, output = act(actor, *arguments, **options)
        best = output.policy_parameters[:, 0].argmax(dim=-1)
        was_best.setdefault(len(action), []).append(torch.equal(action, best))
        return action, output

    def always_best() -> dict[int, bool]:
        return {envs: all(found) for envs, found in was_best.items()}

    monkeypatch.setattr(Actor, "act", watched)
    run, _ = finished
    film = tmp_path / "films" / "film.mp4"
    typed = ["--greedy"] if greedy else []

    printed = cli.run("evaluate", run, "--env", SHORT, "--episodes", 2, "--video", film, *typed)
    assert always_best() == {2: greedy, 1: greedy}
    assert SHORT in printed
    with av.open(str(film)) as video:
        assert sum(1 for _ in video.decode(video=0)) == 2 * (100 + 40)  # the end of each stays for 0.7 s

    was_best.clear()
    cli.run("visualize", copied(env=SHORT), "--episodes", 1, "--output", tmp_path / "page", *typed)
    assert always_best() == {1: greedy}


def test_counters_are_columns_of_a_table() -> None:
    """Of several runs or tasks, of which one may not count the same; a counter may have the name of a column."""
    output = io.StringIO()
    score = {"mean": 1.0, "low": 0.5, "high": 1.5}
    first = {"environment": "a", "episodes": 4, "return": score, "counters": {"doors": score, "return": {"mean": 7.0}}}
    second = {"environment": "b", "episodes": 4, "return": score, "counters": {"keys": {"mean": None}}}
    print_evaluations(Console(file=output, width=200), [first, second])
    head, *rows = [line.split("  ") for line in output.getvalue().splitlines() if line.strip(" ─")]
    names, *cells = [[cell.strip() for cell in line if cell.strip()] for line in (head, *rows)]
    assert names == ["environment", "episodes", "return", "doors", "counter/return", "keys"]
    assert cells == [
        ["a", "4", "1.00", "[0.50, 1.50]", "1.00", "[0.50, 1.50]", "7.00", "-"],
        ["b", "4", "1.00", "[0.50, 1.50]", "-", "-", "-"],
    ]


def test_several_runs_in_one_table(
    finished: tuple[Path, str], copied: Callable[..., Path], cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same agent and episodes have the same score; names are shown unchanged."""
    runs = [finished[0], copied("a [red] run :bug:")]
    summaries = evaluated(cli, *runs, "--episodes", 2)
    assert [summary["run"] for summary in summaries] == [*map(str, runs)]
    first, second = (summary["return"] for summary in summaries)
    assert first == second

    # In a wide terminal and in a narrow one.
    monkeypatch.setenv("COLUMNS", "300")
    printed = cli.run("evaluate", *runs, "--episodes", 2)
    assert printed.count(f"{first['mean']:.2f}  [") == 2
    assert all(str(run) in printed for run in runs)
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli.run("evaluate", *runs, "--episodes", 2).splitlines()
    assert all(f"{run}  compressive  rooms:small" in lines for run in runs), "names are never cut"
    assert max(len(line) for line in lines if "rooms:small" not in line) <= 80

    # Of a single run.
    printed = cli.run("evaluate", runs[1], "--episodes", 2)
    assert f"{runs[1]}/checkpoints/" in printed
    assert "100.0 %  2/2 episodes" in printed, "a line of progress"
