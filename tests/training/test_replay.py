"""Runs that learn from unrolls more than once: resumption, counters, limits, and other arrangements of learners."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.config import ReplayConfig
from storage import checkpoints
from storage.metrics import read_metrics
from storage.run import Run
from tests.agent.agents import make_trajectory
from tests.commands.cli import state
from tests.training.test_curriculum import STAGED
from tests.training.test_feeds import train as train_beside
from tests.training.test_trainer import AGENT, CONFIG, CORES, timeless, train, train_in_parts
from training import curriculum
from training.feeds import RayFeed
from training.trainer import Trainer

train_as_on_ray = train_beside
ACTORS = dataclasses.replace(CONFIG.actors, unroll_length=24)
LONG = dataclasses.replace(CONFIG, actors=ACTORS, log_every=2)


@pytest.mark.parametrize(("core", "burn_in", "parts"), [("compressive", 8, (5, 2)), ("lstm", 0, (1, 3, 3))])
def test_stopping_anywhere_changes_nothing(core: str, burn_in: int, parts: tuple[int, ...], tmp_path: Path) -> None:
    """Seven unrolls of two rows. The first three are one update each, the others four with three replayed unrolls."""
    agent = dataclasses.replace(AGENT, core=CORES[core])
    replay = ReplayConfig(0.75, unrolls=5, burn_in=burn_in)
    config = dataclasses.replace(LONG, agent=agent, replay=replay)
    folder = tmp_path / "stopped"
    straight = train(config, tmp_path / "straight", 7)
    stopped = train_in_parts(config, folder, parts)[-1]
    assert stopped.learner.version == straight.learner.version == 3 + 4 * 4
    assert state(folder) == state(tmp_path / "straight")
    assert timeless(folder) == timeless(tmp_path / "straight")

    # Steps of fresh rows alone are counted, without the last observations of episodes.
    steps = 7 * 2 * 24
    assert steps - 7 * 4 <= straight.learner.steps <= steps
    row = read_metrics(folder)[-1]
    assert row["learner/frames"] == straight.frames == straight.learner.steps * straight.action_repeat

    assert row["replay/share"] in (0.5, 1.0), "of an update with two rows; of all four 0.75"
    assert 0 < row["replay/age"] <= 5 * 4 + 3
    kept = checkpoints.load_latest(folder).parts["replay"]
    assert {len(rows) for rows in kept.values()} == {5 * 2}


def test_updates_of_fewer_rows_than_an_unroll_has(tmp_path: Path) -> None:
    """Two new rows and two replayed ones are four updates of a row each; without enough to replay there are two."""
    config = dataclasses.replace(LONG, rows_per_update=1, replay=ReplayConfig(0.5, unrolls=4))
    trainer = train(config, tmp_path, 3)
    assert trainer.learner.version == 2 + 4 + 4
    assert trainer.replay.updates == 4
    with pytest.raises(ValueError, match="rows_per_update: expected none with 2 learners, got 1"):
        dataclasses.replace(config, replay=ReplayConfig(), learners=2)


def test_a_resumed_run_may_turn_replay_on_and_off(tmp_path: Path) -> None:
    replaying = dataclasses.replace(LONG, replay=ReplayConfig(0.5, unrolls=4))

    trainer = train(LONG, tmp_path, 2)
    assert trainer.learner.version == 2
    assert "replay" not in checkpoints.load_latest(tmp_path).parts

    # One unroll without enough rows to replay, and two that are two updates each.
    trainer = train(replaying, tmp_path, 3, resume=True)
    assert trainer.learner.version == 2 + 1 + 2 * 2
    assert "replay" in checkpoints.load_latest(tmp_path).parts

    trainer = train(LONG, tmp_path, 2, resume=True)
    assert trainer.learner.version == 2 + 5 + 2
    assert "replay" not in checkpoints.load_latest(tmp_path).parts


def test_the_choice_of_rows_depends_on_the_runs_seed(tmp_path: Path) -> None:
    """The rows and the version of the learner are the same; each row has its own `actor_id`."""
    chosen: list[list[int]] = []
    for seed in (3, 4, 3):
        config = dataclasses.replace(LONG, seed=seed, replay=ReplayConfig(0.5, unrolls=20))
        trainer = Trainer(config, Run(tmp_path), local=True)
        assert trainer.replay
        for number in range(20):
            fresh = make_trajectory(2, 24, seed=number, core=AGENT.core)
            actor_id = torch.tensor([2 * number, 2 * number + 1])
            mixed = trainer.replay.mix(fresh._replace(actor_id=actor_id))
        assert mixed.replayed is not None
        chosen.append(mixed.actor_id[mixed.replayed].tolist())
    assert chosen[0] == chosen[2] != chosen[1]


def test_rows_of_an_earlier_stage_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stopping anywhere changes nothing. A stage's first batch has fresh rows only."""
    monkeypatch.setattr(curriculum, "EPISODES", 4)
    config = dataclasses.replace(STAGED, replay=ReplayConfig(0.5, unrolls=6))
    trainer = Trainer(config, Run(tmp_path / "straight"), local=True)
    seen: list[tuple[int, int | None]] = []
    first_versions = [0, 0, 0]

    def show(progress: Any) -> None:
        """Notes the stage and the number of replayed rows; None where the batch has no such rows."""
        stage = trainer.curriculum.number
        batch = trainer.batch.payload
        if batch.replayed is None:
            first_versions[stage] = int(batch.version.max())
            seen.append((stage, None))
        else:
            assert batch.version.min() >= first_versions[stage]
            seen.append((stage, int(batch.replayed.sum())))

    trainer.train(show, lambda: len(seen) == 8)
    assert seen == [(0, None), (0, 2), (1, None), (1, 2), (2, None), (2, 2), (2, 2), (2, 2)]

    for parts in ((2, 6), (1, 2, 5), (3, 1, 4)):
        folder = tmp_path / "-".join(map(str, parts))
        train_in_parts(config, folder, parts)
        assert state(folder) == state(tmp_path / "straight")


@pytest.mark.parametrize(
    ("share", "rows_per_update", "versions"),
    [
        (0.0, None, [0, 1, 2, 3, 4, 5]),
        (0.0, 1, [0, 2, 4, 6, 8, 10]),
        (0.5, None, [0, 1, 3, 5, 7, 9]),
        (0.75, None, [0, 1, 2, 3, 7, 11]),
    ],
)
def test_a_batch_is_requested_for_the_version_that_learns_from_it(
    share: float,
    rows_per_update: int | None,
    versions: list[int],
    train_as_on_ray: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Ray a batch is requested before the one ahead of it is learned from, which may take several updates."""
    receive = RayFeed._receive
    update = Trainer.update
    requested: list[int] = []
    learned: list[int] = []

    def watched_receive(feed: RayFeed, version: int, check: Any) -> Any:
        requested.append(version)
        return receive(feed, version, check)

    def watched_update(trainer: Trainer) -> Any:
        learned.append(trainer.learner.version)
        return update(trainer)

    monkeypatch.setattr(RayFeed, "_receive", watched_receive)
    monkeypatch.setattr(Trainer, "update", watched_update)
    train_as_on_ray(tmp_path, 6, replay=ReplayConfig(share, unrolls=4), rows_per_update=rows_per_update)
    assert requested[:6] == learned == versions


def test_unrolls_beside_the_updates(train_as_on_ray: Any, tmp_path: Path) -> None:
    """As on Ray. Only fresh unrolls are counted, and `max_policy_lag` is a limit for them alone."""
    config = {"replay": ReplayConfig(0.5, unrolls=3), "log_every": 1, "max_policy_lag": 3}
    trainer = train_as_on_ray(tmp_path, 6, **config)
    assert trainer.learner.version == 1 + 5 * 2
    assert 6 * (40 - 4) <= trainer.learner.steps <= 6 * 40
    rows = read_metrics(tmp_path)
    assert max(row["policy_lag/max"] for row in rows) <= 3 + 1, "the second of two updates is a version older"
    assert max(row.get("replay/age", 0) for row in rows) > 4
    assert train_as_on_ray(tmp_path, 2, resume=True, **config).learner.version == 11 + 2 * 2


@pytest.mark.parametrize(
    ("replay", "fields", "message"),
    [
        ({"share": 0.5}, {"learners": 2}, "replay.share: expected 0 with 2 learners, got 0.5"),
        ({"share": 0.5}, {"resident": True}, "replay.share: expected 0 with resident actors, got 0.5"),
        ({"share": 0.5, "unrolls": 1}, {"unrolls_per_update": 2}, "replay.unrolls: expected at least 2 for .*, got 1"),
        ({"share": 0.75, "unrolls": 2}, {}, "replay.unrolls: expected at least 3 for this share, got 2"),
        ({"share": 0.8, "unrolls": 3}, {}, "replay.unrolls: expected at least 4 for this share, got 3"),
        (
            {"share": 0.2},
            {},
            "replay.share: expected enough for one replayed row beside 2 new ones .*, got 0.2",
        ),
        ({"burn_in": 4}, {}, r"burn_in: expected 0 where no unrolls are replayed \(share 0\), got 4"),
        (
            {"share": 0.5, "burn_in": 20},
            {},
            "replay.burn_in: expected less than unroll_length = 20 and a multiple of .* = 1, got 20",
        ),
        (
            {"share": 0.5, "burn_in": 4},
            {"from_run": "teacher", "learner": dataclasses.replace(CONFIG.learner, teacher_cost=1.0)},
            "replay.burn_in: expected 0 with a teacher .*, got 4",
        ),
    ],
)
def test_errors(replay: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, replay=ReplayConfig(**replay), **fields)


def test_a_buffer_that_is_too_large_for_checkpoints(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, replay=ReplayConfig(0.5, unrolls=60_000))
    with pytest.raises(ValueError, match=r"replay.unrolls: expected at most (\d+), .* got 60000; --replay.unrolls \1$"):
        Trainer(config, Run(tmp_path), local=True)
    assert Trainer(config, Run(tmp_path), local=False).replay
