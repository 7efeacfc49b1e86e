"""`compressive evaluate` of several runs, of oracles and of random actions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors import Actor
from actors.evaluation import ScriptedActor, play_episodes
from commands import main
from envs import reference_scores
from tests.actors.counting import Counting
from tests.commands.cli import refusal

Capture = pytest.CaptureFixture[str]
SHORT = "rooms:small,episode_frames=100"


def evaluated(arguments: list[str], capfd: Capture) -> list[dict]:
    """What the command prints as JSON, and nothing else."""
    capfd.readouterr()
    main(["evaluate", "--json", *arguments])
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("env", ["rooms:full", "rooms:small", "diagnostic:recall", "diagnostic:tmaze,length=5"])
def test_the_oracle_reaches_what_is_on_record(env: str, capfd: Capture) -> None:
    (summary,) = evaluated(["--policy", "oracle", "--env", env, "--episodes", "4"], capfd)
    assert summary["return"] == dict.fromkeys(("mean", "low", "high"), reference_scores(env)["oracle"])
    assert summary["oracle_normalised"] == pytest.approx(100)
    assert (summary["policy"], summary["episodes"]) == ("oracle", 4)


class TwoAndTwenty(Counting):
    """Episodes take 2 steps in even rows, 20 in odd ones."""

    def act(self, actions: np.ndarray) -> tuple:
        self.count += 1
        over = self.count == np.where(np.arange(self.num_envs) % 2, 20, 2)
        return self.count.astype(float), over, np.zeros_like(over)


def test_long_episodes_count_as_often_as_short_ones() -> None:
    """The first to end would all be short: a policy that lives longer would be measured by its failures."""
    counted: list[int] = []
    episodes = play_episodes(ScriptedActor(TwoAndTwenty(4), "random", seed=0), 8, counted.append)
    assert sorted(episode.steps for episode in episodes) == [2, 2, 2, 2, 20, 20, 20, 20]
    assert [sum(episode.environment == row for episode in episodes) for row in range(4)] == [2, 2, 2, 2]
    assert counted[-1] == 8


@pytest.mark.parametrize("greedy", [False, True])
def test_actions_are_greedy_where_that_is_asked_for(
    greedy: bool, finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what was done, in evaluation (two environments) and in films and pages (one)."""
    act = Actor.act
    best: dict[int, list[bool]] = {}

    def watched(actor: Actor, *arguments: Any, **options: Any) -> Any:
        action, output = act(actor, *arguments, **options)
        best.setdefault(len(action), []).append(torch.equal(action, output.policy_logits[:, 0].argmax(dim=-1)))
        return action, output

    monkeypatch.setattr(Actor, "act", watched)
    run, how = str(finished[0]), ["--greedy"] if greedy else []
    for command, rows in (
        (["evaluate", run, "--env", SHORT, "--episodes", "2", "--video", str(tmp_path / "film.mp4")], (2, 1)),
        (["visualize", run, "--episodes", "1", "--output", str(tmp_path / "page")], (1,)),
    ):
        best.clear()
        main([*command, *how])
        assert {count: all(was_best) for count, was_best in best.items()} == dict.fromkeys(rows, greedy)


@pytest.mark.parametrize(("env", "episodes"), [("rooms:small", 64), ("diagnostic:recall,delay=2", 2048)])
def test_random_actions_score_what_is_on_record(env: str, episodes: int, capfd: Capture) -> None:
    arguments = ["--policy", "random", "--env", env, "--episodes", str(episodes)]
    (summary,) = evaluated(arguments, capfd)
    score, expected = summary["return"], reference_scores(env)["random"]
    assert expected is not None
    assert abs(score["mean"] - expected) < score["high"] - score["low"], "within two 95 % intervals"
    low, high = summary["oracle_normalised_interval"]
    assert low < summary["oracle_normalised"] < high
    assert evaluated(arguments, capfd) == [summary], "the same seed"
    assert evaluated([*arguments, "--seed", "1"], capfd) != [summary]


def test_several_tasks_by_a_script(capfd: Capture) -> None:
    env = "diagnostic:recall,diagnostic:tmaze"
    (summary,) = evaluated(["--policy", "oracle", "--env", env, "--episodes", "3"], capfd)
    assert summary["return"] == {"mean": 1.0}
    assert [part["episodes"] for part in summary["tasks"]] == [3, 3]


def test_several_runs_in_one_table(
    finished: tuple[Path, str], copied: Callable[[str], Path], capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [str(finished[0]), str(copied("again"))]
    first, second = evaluated([*runs, "--episodes", "2"], capfd)
    assert [first["run"], second["run"]] == runs
    assert first["return"] == second["return"], "the same agent and episodes"
    monkeypatch.setenv("COLUMNS", "250")
    main(["evaluate", *runs, "--episodes", "2"])
    printed = capfd.readouterr().out
    assert printed.count(f"{first['return']['mean']:.2f}  [") == 2
    assert all(run in printed for run in runs)


def test_paths_are_shown_as_they_are(
    copied: Callable[[str], Path], capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    runs = [str(copied(name)) for name in ("a [red] run", "another :bug: [run]")]
    main(["evaluate", *runs, "--episodes", "2"])
    printed = capfd.readouterr().out
    assert all(run in printed for run in runs)
    main(["evaluate", runs[0], "--episodes", "2"])
    assert f"{runs[0]}/checkpoints/" in capfd.readouterr().out


def test_an_environment_that_fails_is_not_taken_for_a_checkpoint(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(env: str) -> None:
        raise RuntimeError("environment process 0 of 2 died")

    monkeypatch.setattr("commands.evaluate.prepare", fail)
    with pytest.raises(RuntimeError, match="process 0 of 2 died"):
        main(["evaluate", str(finished[0])])


def test_what_cannot_be_evaluated_is_one_line_before_any_episode(
    finished: tuple[Path, str], copied: Callable[[str], Path], tmp_path: Path, capfd: Capture
) -> None:
    run, broken = str(finished[0]), copied("broken")
    for weights in broken.glob("checkpoints/*/weights.safetensors"):
        weights.write_bytes(b"torn")
    assert str(broken) in refusal(["evaluate", run, str(broken)], capfd)
    (broken / "config.json").write_text("{")
    assert "expected JSON" in refusal(["evaluate", run, str(broken)], capfd)
    assert "config.json" in refusal(["evaluate", run, str(tmp_path)], capfd)
    for arguments, words in (
        (["--policy", "oracle", "--env", "gym:CartPole-v1"], "has an oracle (rooms, diagnostic), got none"),
        (["--policy", "oracle"], "--env and no run for oracle, got no --env"),
        ([run, "--policy", "random"], f"got the run {run}"),
        (["--policy", "random", "--env", "rooms:none"], "'none'"),
        ([run, run, "--video", str(tmp_path / "a.mp4")], "one run to film, got 2"),
    ):
        assert words in refusal(["evaluate", *arguments], capfd)
