"""`compressive record`: a Minari dataset, read by Minari's own loader."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.recorder import record_episodes
from agent.policies import Choice, Numbers
from storage.run import Run
from tests.commands.cli import SMALL, Commands
from training import dataset
from training.evaluation import load_trained_agent, record

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari keeps its datasets."""
    root = tmp_path / "datasets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


def test_episodes_of_pictures(finished: tuple[Path, str], cli: Commands) -> None:
    """They are those that `record` plays, to the last bit."""
    run, _ = finished
    said = cli.run("record", run, "--minari=rooms/agent-v0", "--episodes=2", "--seed=5")
    assert 'minari.load_dataset("rooms/agent-v0")' in said
    player = load_trained_agent(Run(run))
    expected = record(player.config, player.agent, 2, seed=5, in_detail=False)
    found = minari.load_dataset("rooms/agent-v0")
    assert found.total_episodes == 2
    for episode, played in zip(found.iterate_episodes(), expected, strict=True):
        # What was seen: the observation before each step, and the last one.
        steps = len(played.rewards)
        np.testing.assert_array_equal(episode.observations[:-1], played.observations)
        np.testing.assert_array_equal(episode.observations[-1], played.last_observation[0])

        # What was done.
        np.testing.assert_array_equal(episode.actions, played.actions)
        np.testing.assert_array_equal(episode.rewards, played.rewards)
        np.testing.assert_array_equal(np.flatnonzero(episode.terminations), [steps - 1])
        assert not episode.truncations.any()

        # What the agent computed.
        infos = episode.infos
        np.testing.assert_array_equal(infos["value"], played.values)
        np.testing.assert_array_equal(infos["probability"], played.probabilities[np.arange(steps), played.actions])
        shares = sum(infos["attention"].values())
        np.testing.assert_allclose(shares, 1.0, atol=1e-5)
        assert (infos["attended_step"] <= np.arange(steps)).all()
        assert (infos["attended_share"] > 0).all()


def test_large_pictures_lose_nothing(tmp_path: Path, cli: Commands) -> None:
    """Minari itself would store those of 32 pixels and more as JPEG."""
    run = tmp_path / "run"
    env = "rooms:small,image_height=32,image_width=32,episode_frames=64"
    cli.run("launch", "--local", f"--run={run}", f"--env={env}", *SMALL, "--frames=64")
    cli.run("record", run, "--minari=large-v0", "--episodes=1")
    player = load_trained_agent(Run(run))
    (played,) = record(player.config, player.agent, 1, in_detail=False)
    (episode,) = minari.load_dataset("large-v0").iterate_episodes()
    np.testing.assert_array_equal(episode.observations[:-1], played.observations)


def test_its_environment_and_scores(finished: tuple[Path, str], cli: Commands) -> None:
    cli.run("record", finished[0], "--minari=agent-v0", "--episodes=1")
    found = minari.load_dataset("agent-v0")
    env = found.recover_environment()
    assert env.unwrapped.config.image_shape == env.observation_space.shape == found.observation_space.shape
    metadata = found.storage.metadata
    low, high = metadata["ref_min_score"], metadata["ref_max_score"]
    assert minari.get_normalized_score(found, np.array([low, high])).tolist() == [0.0, 1.0]
    assert metadata["algorithm_name"] == "IMPALA, core compressive"


def test_vectors_and_actions_of_numbers(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    env = "gym:Pendulum-v1,max_episode_steps=20"
    cli.run("launch", "--local", f"--run={run}", f"--env={env}", *SMALL, "--frames=64")
    cli.run("record", run, "--minari=pendulum-v3", "--episodes=1")
    found = minari.load_dataset("pendulum-v3")
    assert found.action_space == spaces.Box(-1.0, 1.0, (1,))
    (episode,) = found.iterate_episodes()
    assert episode.observations.shape == (21, 3)
    assert episode.actions.shape == (20, 1)
    assert np.flatnonzero(episode.truncations).tolist() == [19]
    assert not episode.terminations.any()
    assert "attention" not in episode.infos


def test_instructions_are_beside_what_is_seen(tmp_path: Path, cli: Commands) -> None:
    run = tmp_path / "run"
    env = "gym:tests.envs.odd:Many-v0"
    cli.run("launch", "--local", f"--run={run}", f"--env={env}", *SMALL, "--frames=64")
    cli.run("record", run, "--minari=told-v0", "--episodes=1", f"--allow={env}")
    found = minari.load_dataset("told-v0")
    (episode,) = found.iterate_episodes()
    player = load_trained_agent(Run(run), env)
    (played,) = record(player.config, player.agent, 1, in_detail=False)

    # Instructions, which change within the episode.
    words = episode.observations["instruction"]
    np.testing.assert_array_equal(words, played.words)
    assert found.observation_space["instruction"] == spaces.Box(0, 1024, words.shape[1:], np.int64)
    assert len(words) == len(played.rewards) + 1
    assert (words[1:] != words[:-1]).any()

    # Observations have several parts, of which a recording shows the first one.
    first, *_ = episode.observations["observation"]
    np.testing.assert_array_equal(first[:-1], played.observations)


def test_the_first_of_several_tasks_is_played(finished: tuple[Path, str], cli: Commands) -> None:
    first, second = "rooms:small,episode_frames=64", "rooms:small,episode_frames=128"
    said = cli.run("record", finished[0], "--minari=agent-v0", "--episodes=1", f"--env={first},{second}")
    assert re.search(rf"^environment +{first}$", said, re.M)
    player = load_trained_agent(Run(finished[0]), env=first)
    (played,) = record(player.config, player.agent, 1, env=first, in_detail=False)
    (episode,) = minari.load_dataset("agent-v0").iterate_episodes()
    np.testing.assert_array_equal(episode.observations[:-1], played.observations)


def test_values_are_those_of_the_task_that_is_played(tmp_path: Path, cli: Commands) -> None:
    """An agent with PopArt has one for each task."""
    tasks = ["diagnostic:recall,delay=2", "diagnostic:recall,delay=3"]
    run = tmp_path / "run"
    cli.run("launch", "--local", f"--run={run}", f"--env={','.join(tasks)}", *SMALL, "--frames=64", "--learner.popart")
    cli.run("record", run, "--minari=second-v0", "--episodes=2", f"--env={tasks[1]}")
    player = load_trained_agent(Run(run), tasks[1])
    assert len(player.agent.value.bias) == 2
    recordings = record(player.config, player.agent, 2, env=tasks[1], in_detail=False)
    for episode, played in zip(minari.load_dataset("second-v0").iterate_episodes(), recordings, strict=True):
        np.testing.assert_allclose(episode.infos["value"][: len(played.values)], played.values, rtol=1e-5)
        assert len(np.unique(played.values)) > 1


def test_what_is_refused(finished: tuple[Path, str], cli: Commands, datasets: Path, copied: Any) -> None:
    run = finished[0]
    cli.refuse("record", run, "--minari=agent", words="minari: expected a name such as rooms/agent-v0, ")
    cli.refuse("record", run, "--minari=a/b-v0", words="a namespace has two letters or more, got 'a/b-v0'")
    cli.refuse("record", run, "--minari=../agent-v0", words="minari: expected a name")
    cli.run("record", run, "--minari=agent-v0", "--episodes=1")
    before = sorted(datasets.rglob("*"))
    cli.refuse("record", run, "--minari=agent-v0", words=["expected a new dataset", "agent-v0 exists"])
    cli.refuse("record", run, "--minari=other-v0", "--env=diagnostic:recall", words="env: expected")
    assert sorted(datasets.rglob("*")) == before


def test_an_interrupted_dataset_leaves_nothing(
    finished: tuple[Path, str], datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[Any] = []

    def play(*arguments: Any, **options: Any) -> Any:
        if played:
            raise KeyboardInterrupt
        played.append(record_episodes(*arguments, **options))
        return played[0]

    monkeypatch.setattr(dataset, "record_episodes", play)
    with pytest.raises(KeyboardInterrupt):
        dataset.write_dataset("agent-v0", load_trained_agent(Run(finished[0])), 3)
    assert list(datasets.iterdir()) == []


def test_several_parts_are_a_tuple() -> None:
    known = dataset.Interface(((4, 6, 3), (5,)), 3, 1)
    observation, action = dataset.spaces_of(known)
    assert observation == spaces.Tuple([spaces.Box(0, 255, (4, 6, 3), np.uint8), spaces.Box(-np.inf, np.inf, (5,))])
    assert action == spaces.Discrete(3)
    _, vector = dataset.spaces_of(known._replace(actions=(Choice(3), Numbers((True, False)))))
    assert vector == spaces.Box(np.float32([0, -1, -np.inf]), np.float32([2, 1, np.inf]))
