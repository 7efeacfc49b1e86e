"""What the main loop does with unrolls that are too old."""

import dataclasses
from pathlib import Path

import pytest

from actors import ActorsConfig, Episode, LocalPool, Unroll
from agent import AgentConfig
from agent.core import LSTMConfig
from learner.metrics import read_metrics
from training.config import RunConfig
from training.impala import Trainer
from training.signals import StopRequest

CONFIG = RunConfig(
    env="rooms:small,episode_frames=120",
    frames=8 * 2 * 20 * 4 - 8 * 4,
    log_every=1,
    agent=AgentConfig(torso="small", torso_size=8, core=LSTMConfig(8)),
    actors=ActorsConfig(num_actors=2, envs_per_actor=2, unroll_length=20),
)


class Silent:
    def update(self, progress: object) -> None: ...


def train(config: RunConfig, run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, list[int]]:
    """Trains with a pool whose every third unroll says that it is three versions old; also returns all versions."""
    get, versions = LocalPool.get, []

    def sometimes_late(pool: LocalPool, _: object) -> Unroll:
        unroll = get(pool)
        versions.append(int(unroll.trajectory.version[0]) - 3 * (len(versions) % 3 == 2))
        late = unroll.trajectory._replace(version=unroll.trajectory.version * 0 + versions[-1])
        return Unroll(late, [Episode(1.0, 30, 0, 0, 0, {})])

    monkeypatch.setattr(LocalPool, "get", sometimes_late)
    trainer = Trainer(config, run, local=True)
    trainer.train(Silent(), StopRequest())
    return trainer, versions


@pytest.mark.parametrize(("limit", "dropped"), [(None, 0), (3, 0), (2, 3), (0, 3)])
def test_only_what_is_older_than_the_limit_is_dropped(limit, dropped, tmp_path, monkeypatch) -> None:
    trainer, versions = train(dataclasses.replace(CONFIG, max_policy_lag=limit), tmp_path, monkeypatch)
    rows = read_metrics(tmp_path)
    assert trainer.learner.version == 8
    assert len(versions) == 8 + dropped
    assert rows[-1]["actors/unrolls_dropped"] == dropped
    assert max(row["policy_lag/max"] for row in rows) == (0 if dropped else 3)
    assert trainer.episodes == len(versions), "episodes count whether or not they are learned from"
