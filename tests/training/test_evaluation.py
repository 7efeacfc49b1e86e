"""Which episodes an evaluation counts, how scores of several tasks are joined, and metrics as gauges of Ray."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import envs
from actors import Episode
from actors.evaluation import ScriptedActor, counters_of, play_episodes
from envs import guard, limit_calls
from storage.metrics import MetricsWriter
from storage.run import Run
from tests.actors.counting import Counting
from tests.training.test_trainer import CONFIG, train
from training import evaluation, factories
from training.cluster import RayGauges, gauge_name
from training.evaluation import (
    as_metrics,
    count_played,
    evaluate,
    load_trained_agent,
    make_evaluator,
    play,
    play_script,
    record,
    summarize,
    value_column,
)
from training.factories import make_agent
from training.plain import to_plain
from training.trainer import Trainer


def make_episode(score: float = 0.0, task: str = "", metrics: dict[str, float] | None = None) -> Episode:
    """An episode of ten steps."""
    return Episode(score, steps=10, environment=0, actor_id=0, version=0, metrics=metrics or {}, task=task)


def test_all_metrics_but_choices_are_counters() -> None:
    """Choices have a share instead, of right ones among all."""
    ends: list[dict[str, float]] = [
        {"correct_choices": 1, "wrong_choices": 2, "doors": 3, "mean": 7},
        {"doors": 5, "keys": 1},
    ]
    episodes = [make_episode(metrics=metrics) for metrics in ends]
    counters = counters_of(episodes)
    assert {name: values.tolist() for name, values in counters.items()} == {"doors": [3, 5], "mean": [7], "keys": [1]}

    summary = summarize(episodes, "diagnostic:recall")
    metrics = as_metrics(summary)
    assert metrics["evaluation/counter/doors"] == summary["counters"]["doors"]["mean"] == 4
    assert metrics["evaluation/counter/mean"] == 7, "a counter may have any name"
    assert "evaluation/counters" not in metrics


class TwoAndTwenty(Counting):
    """Episodes take 2 steps in even rows, 20 in odd ones."""

    def act(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.count += 1
        over = self.count == np.where(np.arange(self.num_envs) % 2, 20, 2)
        return self.count.astype(float), over, np.zeros_like(over)


def test_tasks_have_episodes_of_their_own() -> None:
    """Related tasks would otherwise have equal ones, and the interval of their mean would be too narrow."""
    env = "rooms:small,episode_frames=300,rooms:small,episode_frames=300,glow_pulse=1"
    played = play_script("random", env, 8, seed=0, max_steps=1000, progress=lambda done: None)
    first, second = ([episode.score for episode in played if episode.task == task] for task in envs.tasks(env))
    assert len(first) == len(second) == 8
    assert first != second


def test_long_episodes_count_as_often_as_short_ones() -> None:
    counted: list[int] = []
    episodes = play_episodes(ScriptedActor(TwoAndTwenty(4), "random", seed=0), 8, counted.append)
    assert sorted(episode.steps for episode in episodes) == [2, 2, 2, 2, 20, 20, 20, 20]
    assert [sum(episode.environment == row for episode in episodes) for row in range(4)] == [2, 2, 2, 2]
    assert (counted[0], counted[-1]) == (0, 8), "also before the first episode ends"


class ShortOrEndless(Counting):
    """Row 0 plays two episodes of 2 steps and then one without an end, row 1 episodes of 20 steps."""

    def act(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.count += 1
        is_short = self.count[0] == 2 and self.episode[0] < 2
        over = np.array([is_short, self.count[1] == 20])
        return self.count.astype(float), over, np.zeros_like(over)


def test_only_episodes_that_count_may_be_too_long() -> None:
    """Row 0 has played its share of three when its endless episode begins, but not its share of five."""
    episodes = play_episodes(ScriptedActor(ShortOrEndless(2), "random", seed=0), 3, max_steps=21)
    assert sorted(episode.steps for episode in episodes) == [2, 2, 20, 20]
    with pytest.raises(envs.EnvironmentFailed, match="expected episodes of at most 21 steps"):
        play_episodes(ScriptedActor(ShortOrEndless(2), "random", seed=0), 5, max_steps=21)


def test_the_capped_mean_caps_each_task() -> None:
    env = "dmlab:rooms_watermaze,dmlab:lasertag_one_opponent_small,dmlab:lt_chasm"
    watermaze, lasertag, chasm = envs.tasks(env)
    above_human = 1000.0
    random_play = -0.224
    scores = {watermaze: above_human, lasertag: random_play, chasm: 5.0}
    episodes = []
    for task, score in scores.items():
        episodes += [make_episode(score, task), make_episode(score, task)]
    summary = summarize(episodes, env)
    assert summary["human_normalized"] > 100
    assert summary["human_normalized_capped"] == pytest.approx(50.0), "of 100 and 0; the third has no human score"
    mean = pytest.approx(sum(scores.values()) / 3)
    assert summary["return"] == {"mean": mean, "low": mean, "high": mean}

    metrics = as_metrics(summary)
    assert metrics["evaluation/return"] == summary["return"]["mean"]
    assert metrics["evaluation/human_normalized_capped"] == pytest.approx(50.0)
    assert ["human_normalized" in part for part in summary["tasks"]] == [True, True, False]


def test_every_finite_metric_goes_to_the_gauges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.util.metrics import Gauge

    rows: list[tuple[str, str, float]] = []

    def record(gauge: Gauge, value: float, tags: dict[str, str] | None = None) -> None:
        assert not gauge._discard_metric, "Ray takes the name"
        rows.append((gauge.info["name"], gauge._get_final_tags(tags)["run"], value))

    monkeypatch.setattr(Gauge, "_record", record)
    with MetricsWriter(tmp_path, gauges=RayGauges("a").set) as writer:
        writer.write(1, {"episode/return": 1.5, "loss/total": math.nan, "gradient/norm": math.inf})
        writer.write(2, {"episode/return": -0.5, "a.b-c/d:e f": 2})
    assert gauge_name("a.b-c/d:e f") == "compressive_a_b_c_d_e_f"
    assert rows == [
        ("compressive_episode_return", "a", 1.5),
        ("compressive_episode_return", "a", -0.5),
        ("compressive_a_b_c_d_e_f", "a", 2.0),
    ]


def test_a_run_may_be_evaluated_elsewhere(tmp_path: Path) -> None:
    """In an environment with the same interface. If it can run any code, it must be allowed, as in training."""
    config = dataclasses.replace(CONFIG, env="diagnostic:recall,delay=3", eval_env="diagnostic:recall,delay=9")
    trainer = train(dataclasses.replace(config, eval_episodes=2), tmp_path / "run", 1)
    assert evaluate(trainer.config, trainer.agent)["environment"] == config.eval_env
    assert load_trained_agent(Run(tmp_path / "run")).env == config.eval_env
    assert {episode.steps for episode in play(trainer.config, trainer.agent, 2)} == {10}

    with pytest.raises(ValueError, match=r"^env: expected observations \[5\].* got observations \[7\].*symbols=6"):
        Trainer(dataclasses.replace(config, eval_env="diagnostic:recall,symbols=6"), Run(""), local=True)
    foreign = dataclasses.replace(config, eval_env="dm:os:system")
    Run(tmp_path / "run").write_config(to_plain(foreign))
    with pytest.raises(ValueError, match=r"'dm:os:system' can run any code"):
        load_trained_agent(Run(tmp_path / "run"))


def test_an_evaluation_may_be_greedy(tmp_path: Path) -> None:
    """In a walk whose every wrong step costs 1. A new agent always goes the same way if it is greedy."""
    config = dataclasses.replace(CONFIG, env="diagnostic:passive-tmaze,length=20", eval_episodes=16)
    trainer = train(config, tmp_path / "run", 1)
    sampled = evaluate(config, trainer.agent)
    greedy = evaluate(dataclasses.replace(config, eval_greedy=True), trainer.agent)
    expected = play(config, trainer.agent, 16, sample=False)
    assert greedy["return"]["mean"] == np.mean([episode.score for episode in expected])
    assert greedy["return"] != sampled["return"]

    # So are the films of such a run, as of all runs with the options of their evaluations.
    for is_greedy in (False, True):
        as_evaluated = dataclasses.replace(config, eval_greedy=is_greedy)
        (film,) = record(as_evaluated, trainer.agent, 1)
        (expected_film,) = record(config, trainer.agent, 1, sample=not is_greedy)
        (other,) = record(config, trainer.agent, 1, sample=is_greedy)
        assert np.array_equal(film.actions, expected_film.actions)
        assert not np.array_equal(film.actions, other.actions)


def test_recorded_values_are_those_of_the_task_that_is_played() -> None:
    first = "diagnostic:recall,delay=3"
    second = "diagnostic:recall,delay=5"
    elsewhere = "diagnostic:recall,delay=7"
    learner = dataclasses.replace(CONFIG.learner, popart=True)
    config = dataclasses.replace(CONFIG, env=f"{first},{second}", learner=learner)
    agent = make_agent(config)
    with torch.no_grad():
        agent.value.weight.zero_()
        agent.value.bias.copy_(torch.tensor([10.0, 20.0]))
    for env, value in ((None, 10.0), (first, 10.0), (second, 20.0), (elsewhere, 10.0)):
        (recording,) = record(config, agent, 1, env=env)
        assert recording.values.tolist() == pytest.approx([value] * len(recording.values)), env


PONG, BREAKOUT = "gym:ALE/Pong-v5,episodic_life=True", "gym:ALE/Breakout-v5,episodic_life=True"
SMALL_VIEW = "image_height=24,image_width=32"


@pytest.mark.parametrize(
    ("trained", "played", "column"),
    [
        (f"{PONG},{BREAKOUT}", BREAKOUT, 1),
        (f"{PONG},{BREAKOUT}", "gym:ALE/Breakout-v5", 1),  # as it is tested
        (f"{PONG},gym:ALE/Pong-v5", "gym:ALE/Pong-v5", 1),  # the task itself comes before a test version of another one
        ("dmlab:rooms_watermaze,dmlab:lasertag_one_opponent_small", "dmlab:lasertag_one_opponent_small,test=True", 1),
        (f"rooms:small,rooms:small-recall,{SMALL_VIEW}", "rooms:small-recall,image_width=32,image_height=24", 1),
        (f"rooms:small,rooms:small-recall,{SMALL_VIEW}", f"rooms:small-recall,{SMALL_VIEW},shrink=1", 1),
        (f"{PONG},{BREAKOUT}", "gym:ALE/Freeway-v5", 0),  # never trained on
    ],
)
def test_a_task_has_its_value_in_every_version(trained: str, played: str, column: int) -> None:
    learner = dataclasses.replace(CONFIG.learner, popart=True)
    config = dataclasses.replace(CONFIG, env=trained, learner=learner)
    assert value_column(config, played) == column
    assert value_column(dataclasses.replace(config, learner=CONFIG.learner), played) == 0, "one value for all tasks"


def test_a_value_for_all_tasks_is_recorded_in_each() -> None:
    second = "diagnostic:recall,delay=5"
    config = dataclasses.replace(CONFIG, env=f"diagnostic:recall,delay=3,{second}")
    agent = make_agent(config)
    with torch.no_grad():
        agent.value.weight.zero_()
        agent.value.bias.fill_(7.0)
    (recording,) = record(config, agent, 1, env=second)
    assert set(recording.values.tolist()) == {7.0}


def test_evaluations_of_other_seeds_and_films_have_other_episodes() -> None:
    task = "diagnostic:recall,delay=3,symbols=16"
    config = dataclasses.replace(CONFIG, env=task)
    agent = make_agent(config)

    def seen(run_seed: int = 0, seed: int = 0, film: bool = False) -> tuple[int, ...]:
        """The first symbols of 32 episodes."""
        of_run = dataclasses.replace(config, seed=run_seed)
        actor = make_evaluator(of_run, agent, 32, seed, True, task, film)
        return tuple(actor.env_output.observation.argmax(dim=1).tolist())

    assert seen() == seen()
    assert len({seen(), seen(run_seed=1), seen(seed=1), seen(film=True)}) == 4


def test_episodes_are_those_of_the_seed_that_is_asked_for() -> None:
    config = dataclasses.replace(CONFIG, env="diagnostic:recall,delay=3,symbols=16")
    agent = make_agent(config)

    def scores(seed: int) -> list[float]:
        return [episode.score for episode in play(config, agent, 64, seed)]

    assert scores(1) == scores(1)
    assert len({tuple(scores(seed)) for seed in range(3)}) > 1


def test_evaluations_and_films_have_the_limits_of_the_run() -> None:
    actors = dataclasses.replace(CONFIG.actors, max_episode_steps=3, precision="bfloat16")
    config = dataclasses.replace(CONFIG, env="diagnostic:recall,delay=5", actors=actors)
    agent = make_agent(config)
    for plays in (play, record):
        with pytest.raises(envs.EnvironmentFailed, match="expected episodes of at most 3 steps"):
            plays(config, agent, 1)
    # The limit of a call is that of the run, whichever was loaded last.
    for plays in (play, record):
        limit_calls(7.0)
        plays(dataclasses.replace(config, actors=dataclasses.replace(CONFIG.actors, step_seconds=50.0)), agent, 1)
        assert guard._limit == 50.0

    for precision in ("bfloat16", "float32"):
        as_trained = dataclasses.replace(config, actors=dataclasses.replace(actors, precision=precision))
        assert make_evaluator(as_trained, agent, 1, 0, True, config.env, film=False).precision == precision


def test_random_numbers_as_actions_depend_on_the_seed_alone() -> None:
    def rewards(seed: int) -> list[list[float]]:
        actor = ScriptedActor(envs.make_vector("gym:Pendulum-v1", 3), "random", seed)
        return [actor.step_envs(actor._choose())[1].tolist() for _ in range(3)]

    assert rewards(0) == rewards(0)
    assert rewards(0) != rewards(1)


@pytest.mark.parametrize(("episodes", "together"), [(1, 4), (4, 4), (5, 4), (20, 16), (65, 100), (70, 1)])
def test_the_number_of_episodes_is_known_before_they_are_played(episodes: int, together: int) -> None:
    """Each environment plays as many, so that progress is of a rounded number."""
    env = "diagnostic:recall,delay=2,diagnostic:recall,delay=3"
    config = dataclasses.replace(
        CONFIG, env=env, actors=dataclasses.replace(CONFIG.actors, num_actors=2, envs_per_actor=together)
    )
    done: list[int] = []
    played = play(config, make_agent(config), episodes, progress=done.append)
    expected = count_played(episodes, together, env)
    assert len(played) == done[-1] == expected >= 2 * episodes


def test_environments_of_an_actor_that_cannot_be_made_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their processes would go on in a notebook."""
    made: list[Any] = []

    def make_vector(*arguments: Any, **options: Any) -> Any:
        made.append(envs.make_vector(*arguments, **options))
        return made[-1]

    for module in (factories, evaluation):
        monkeypatch.setattr(module, "make_vector", make_vector)
    task = "gym:tests.envs.faulty:Faulty-v0,fault=raise,when=reset"
    config = dataclasses.replace(CONFIG, env=task)
    agent = make_agent(config)
    made.clear()
    actors: list[Callable[[], object]] = [
        lambda: factories.make_actor(config, generation=0, actor_id=0, incarnation=0),
        lambda: play(config, agent, 1),
        lambda: play_script("random", task, 1, 0, 10, lambda done: None),
    ]
    for make in actors:
        with pytest.raises(envs.EnvironmentFailed, match="in reset"):
            make()
    assert [each.closed for each in made] == [True, True, True]


def test_a_script_of_no_such_name_is_refused() -> None:
    with pytest.raises(ValueError, match="policy: expected oracle or random, got 'greedy'"):
        ScriptedActor(TwoAndTwenty(4), "greedy", seed=0)
