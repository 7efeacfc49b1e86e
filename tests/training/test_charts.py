"""The charts of an agent's run in TensorBoard."""

import dataclasses
import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from actors import Episode
from envs import tasks
from learner.config import ReplayConfig
from storage.run import Run
from tests.training.test_trainer import AGENT, CONFIG, CORES
from training.charts import CHARTS
from training.plain import to_plain
from training.trainer import Trainer


def alternatives(pattern: str) -> list[str]:
    """The patterns that a pattern with at most one group, (a|b), stands for."""
    found = re.fullmatch(r"(.*)\((.*)\)(.*)", pattern)
    if not found:
        return [pattern]
    before, choices, after = found.groups()
    return [before + choice + after for choice in choices.split("|")]


def test_every_chart_has_curves(tmp_path: Path) -> None:
    """Its patterns find scalars in a run of two tasks with memory, all losses and replay."""
    agent = dataclasses.replace(AGENT, core=CORES["compressive"], reconstruction_cost=0.1, prediction_cost=0.1)
    config = dataclasses.replace(
        CONFIG,
        env="rooms:small-recall,rooms:small-recall,glow_pulse=1",
        agent=agent,
        actors=dataclasses.replace(CONFIG.actors, unroll_length=16),
        replay=ReplayConfig(share=0.5, unrolls=4),
        log_every=1,
    )
    trainer = Trainer(config, Run(tmp_path / "run"), local=True)
    trainer.run.path.mkdir()
    trainer.run.write_config(to_plain(trainer.config))
    choices = {"correct_choices": 1.0, "wrong_choices": 1.0}
    played = [Episode(1.0, 9, 0, 0, 0, choices, task=task) for task in tasks(config.env)]
    trainer.curriculum.remember(played)
    updates = iter(range(4))
    trainer.train(lambda progress: None, lambda: next(updates, None) is None)

    tags = EventAccumulator(str(tmp_path / "run")).Reload().Tags()
    assert "custom_scalars__config__" in tags["tensors"], "TensorBoard has the charts"
    for charts in CHARTS.values():
        for name, (_, patterns) in charts.items():
            for pattern in patterns:
                for part in alternatives(pattern):
                    assert any(re.match(part, tag) for tag in tags["scalars"]), f"{name}: {part}"
