"""Several tasks in one run: who plays which, what is measured of each, and how they are tested."""

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import pytest

import envs
from actors import ActorsConfig, Episode
from agent import AgentConfig
from agent.core import LSTMConfig
from commands import main
from commands.evaluate import evaluation_summary, make_evaluator
from envs.dmlab import TEST_MIXER, TRAINING_MIXERS
from envs.dmlab30 import LEVELS
from learner.metrics import read_metrics
from tests.commands.cli import refusal
from tests.envs.lab import Lab, Module
from training.config import RunConfig
from training.impala import episode_stream, interface, make_actor, make_agent
from training.presets import make_preset

SHORT = "episode_frames=64"
TWO = f"rooms:small,{SHORT},rooms:small,{SHORT},spin_seconds=4"
TINY = [
    "--core=lstm",
    "--agent.torso=small",
    "--agent.torso-size=8",
    "--agent.core.model-size=8",
    "--actors.envs-per-actor=1",
    "--eval-episodes=1",
    "--log-every=1",
]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The double of DeepMind Lab with episodes of two steps, and (level, mixer seed, seed) of all that begin."""
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    monkeypatch.setattr(Lab, "frames", 8)
    monkeypatch.setattr(Lab, "rewards", {4: 2.0})
    monkeypatch.setattr(Lab, "begun", [])
    interface.cache_clear()
    yield Lab.begun
    interface.cache_clear()


def test_two_tasks_from_launch_to_evaluate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, first, second = tmp_path / "run", *envs.tasks(TWO)
    arguments = [*TINY, "--actors.num-actors=3", "--actors.unroll-length=20", "--video-episodes=1", "--frames=400"]
    main(["launch", "--local", "--run", str(folder), "--env", TWO, *arguments])
    printed = capfd.readouterr().out
    assert "2 tasks" in printed
    assert "over 2 of 2 tasks" in printed
    rows = read_metrics(folder)
    assert (rows[0]["tasks/seen"], rows[0]["tasks/count"]) == (1, 2)
    assert rows[-1]["tasks/seen"] == 2
    means = [rows[-1][f"{task}/return"] for task in (first, second)]
    assert rows[-1]["episode/return"] == pytest.approx(sum(means) / 2)
    summary = json.loads((folder / "evaluation.json").read_text())
    assert [part["environment"] for part in summary["tasks"]] == [first, second]
    assert [part["episodes"] for part in summary["tasks"]] == [1, 1]
    main(["evaluate", str(folder), "--episodes", "1"])
    for table in (printed, capfd.readouterr().out):
        assert [table.count(f"│ {task} ") for task in (first, second)] == [1, 1]
    main(["status", str(folder)])
    assert "over 2 of 2 tasks" in capfd.readouterr().out
    main(["launch", "--local", "--resume", str(folder), "--frames=500", "--video-episodes=0"])
    assert read_metrics(folder)[-1]["tasks/seen"] == 2


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("rooms:small,rooms:small,spin_seconds=4,rooms:small,spin_seconds=3", ["num_actors", "at least 3", "got 2"]),
        ("rooms:small,rooms:full", ["[24, 32, 3]", "in rooms:small", "[72, 96, 3]", "in rooms:full"]),
        ("rooms:small,rooms:small,action_repeat=2", ["4 frames a step", "2 frames a step"]),
        ("rooms:small,rooms:none", ["'none'", "full, full-randomised"]),
        ("rooms:small,atari:pong", ["'atari:pong'", "rooms, dmlab"]),
        ("dmlab:dmlab30", ["DeepMind Lab", "build", "--env rooms:full"]),
    ],
)
def test_tasks_that_do_not_fit_are_one_clear_line(
    env: str, words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    error = refusal(["launch", "--local", "--env", env], capfd)
    assert all(word in error for word in words), error


def test_all_of_dmlab30(lab: object, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Thirty actors, one a level, with instructions; then the test levels, among them the two that are held out."""
    folder, env = tmp_path / "run", "dmlab:dmlab30,image_height=24,image_width=32,cache_gigabytes=0"
    actors = ["--actors.num-actors=30", "--actors.unroll-length=8", "--unrolls-per-update=30", "--frames=900"]
    arguments = [*TINY, *actors, "--video-episodes=1", "--learner.device=cpu"]
    main(["launch", "--preset=dmlab30", "--local", "--run", str(folder), "--env", env, *arguments])
    assert "mean of 30 of 30 tasks" in capfd.readouterr().out
    row = read_metrics(folder)[-1]
    assert row["tasks/seen"] == row["tasks/count"] == 30
    assert row["episode/return"] == 2.0
    expected = [100 * (2 - level.random) / (level.human - level.random) for level in LEVELS]
    assert row["episode/human_normalised"] == pytest.approx(sum(expected) / 30)
    summary = json.loads((folder / "evaluation.json").read_text())
    assert summary["human_normalised"] == pytest.approx(sum(expected) / 30)
    tested = [part["environment"].split(",")[0] for part in summary["tasks"]]
    assert tested == [f"dmlab:{level.test}" for level in LEVELS]
    error = refusal(["launch", "--preset=paper", "--local", "--env", env, "--actors.num-actors=30"], capfd)
    assert "instruction: expected True" in error


def test_the_preset_for_dmlab30_is_the_papers_agent_that_reads() -> None:
    paper, all_levels = make_preset("paper", "lstm"), make_preset("dmlab30", "lstm")
    assert (paper.agent.instruction, all_levels.agent.instruction) == (False, True)
    assert dataclasses.replace(all_levels.agent, instruction=False) == paper.agent
    assert all_levels.learner == paper.learner
    assert all_levels.actors.num_actors % len(envs.tasks(all_levels.env)) == 0


def test_the_capped_mean_caps_each_task() -> None:
    env = "dmlab:rooms_watermaze,dmlab:lasertag_one_opponent_small,dmlab:lt_chasm"
    scores = dict(zip(envs.tasks(env), (1000.0, -0.224, 5.0)))
    episodes = [Episode(score, 10, 0, 0, 0, {}, task) for task, score in scores.items() for _ in range(2)]
    summary = evaluation_summary(episodes, env)
    assert summary["human_normalised"] > 100
    assert summary["human_normalised_capped"] == pytest.approx(50.0)
    assert summary["return"]["mean"] == pytest.approx(sum(scores.values()) / 3)
    assert ["human_normalised" in part for part in summary["tasks"]] == [True, True, False]


# Seeds of DeepMind Lab.


def test_no_two_episodes_of_a_run_share_a_seed(lab: list[tuple[str, int, int]]) -> None:
    """Actors with several environments, each replaced and the run resumed; then evaluated and filmed."""
    config = RunConfig(
        env="dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32,cache_gigabytes=0",
        agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8)),
        actors=ActorsConfig(num_actors=3, envs_per_actor=3, unroll_length=30),
    )
    for generation, actor_id, incarnation in itertools.product(range(2), range(3), range(2)):
        actor = make_actor(config, generation, actor_id, incarnation)
        actor.unroll(30)
        actor.envs.close()
    trained = [pair[1:] for pair in lab]
    assert len(set(trained)) == len(trained) > 12 * 3 * 8
    mixers = {mixer for mixer, _ in trained}
    assert len(mixers) == 12, "whatever seed a life begins with, it shares none"
    assert min(mixers) >= TRAINING_MIXERS
    lab.clear()
    agent = make_agent(config)
    for seed, film in itertools.product(range(2), (False, True)):
        actor = make_evaluator(config, agent, 3, seed, True, envs.held_out(config.env), film)
        actor.unroll(30)
        actor.envs.close()
    evaluated = [pair[1:] for pair in lab]
    assert len(set(evaluated)) == len(evaluated) > 4 * 3 * 8
    assert {mixer for mixer, _ in evaluated} == {TEST_MIXER}
    lab.clear()
    make_evaluator(config, agent, 3, 0, True, config.env, False)
    assert {mixer for _, mixer, _ in lab} == {0}, "a training level that is asked for by name has its own seeds, too"


def test_the_same_run_has_the_same_seeds_and_another_has_others(lab: list[tuple[str, int, int]]) -> None:
    def seeds(seed: int) -> list[tuple[int, int]]:
        lab.clear()
        config = RunConfig(
            seed=seed,
            env="dmlab:rooms_watermaze,image_height=24,image_width=32",
            agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8)),
            actors=ActorsConfig(num_actors=1, envs_per_actor=2, unroll_length=30),
        )
        make_actor(config, 0, 0, 0).unroll(30)
        return [pair[1:] for pair in lab]

    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_streams_hold_who_when_and_which_time() -> None:
    limits = (512, 4096, 1024)
    some = [(0, 1, limit // 2, limit - 1) for limit in limits]
    numbers = [episode_stream(g, a, i) for g in some[0] for a in some[1] for i in some[2]]
    assert len(set(numbers)) == 64
    assert (min(numbers), max(numbers)) == (0, 2**31 - 1)
    assert [episode_stream(*limits) for limits in ((512, 0, 0), (0, 4096, 0), (0, 0, 1024))] == [0, 0, 0]
