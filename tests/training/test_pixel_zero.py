"""What `--agent.pixel-zero auto` stands for: the background of an environment's pictures."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from agent import Agent, AgentConfig
from agent.core import LSTMConfig
from reports.report import changed_settings
from storage.run import Run
from training.config import RunConfig
from training.factories import resolve_pixel_zero
from training.grid import label
from training.presets import make_preset
from training.trainer import Trainer

HERE = f"gym:{__name__}"


class Sky(gymnasium.Env[Any, Any]):
    """Pictures that are black at first, and then of one brightness but for a bright object."""

    brightness = 40
    action_space = spaces.Discrete(2)
    observation_space: spaces.Space[Any] = spaces.Box(0, 255, (6, 4, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.shown(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.shown(self.brightness), 0.0, False, False, {}

    def shown(self, brightness: int) -> Any:
        picture = np.full((6, 4, 1), brightness, np.uint8)
        picture[:3, :3] = 250
        return picture


class Snow(Sky):
    """Another background."""

    brightness = 240


class Robot(Sky):
    """A camera and numbers."""

    observation_space = spaces.Dict(camera=Sky.observation_space, arm=spaces.Box(-1, 1, (30,), np.float32))

    def shown(self, brightness: int) -> Any:
        return {"camera": super().shown(brightness), "arm": np.ones(30, np.float32)}


def config_of(env: str, zero: Any = "auto", seed: int = 0) -> RunConfig:
    config = make_preset("general", "memoryless")
    return dataclasses.replace(
        config, env=env, seed=seed, frames=64, agent=dataclasses.replace(config.agent, pixel_zero=zero)
    )


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (f"{HERE}:Sky", 40),
        (f"{HERE}:Snow", 240),
        (f"{HERE}:Robot", 40),
        (f"{HERE}:Sky,{HERE}:Snow", 240),  # the median of all of their pixels
        ("gym:CartPole-v1", 127.5),
    ],
)
def test_auto_is_the_background_after_some_steps(env: str, expected: float) -> None:
    for seed in range(2):
        assert resolve_pixel_zero(config_of(env, seed=seed)).agent.pixel_zero == expected


def test_a_number_stays_and_no_environment_is_made() -> None:
    config = config_of("gym:no_module:Env", zero=7.0)
    assert resolve_pixel_zero(config) is config


def test_a_run_keeps_the_number_and_its_report_does_not_call_it_a_change() -> None:
    trained = Trainer(config_of(f"{HERE}:Snow"), Run(Path("unused")), local=True).config
    assert trained.agent.pixel_zero == 240
    preset = make_preset("general", "memoryless")
    assert preset.agent.pixel_zero == "auto"
    assert "agent.pixel_zero" not in changed_settings(trained, [])
    assert "agent.pixel_zero" in changed_settings(trained, [{"command": "launch --agent.pixel-zero 240"}])


def test_backgrounds_of_tasks_make_no_variants() -> None:
    sky, snow = (resolve_pixel_zero(config_of(f"{HERE}:{name}")) for name in ("Sky", "Snow"))
    assert label([sky, snow]) == ["memoryless", "memoryless"]
    black = config_of(f"{HERE}:Sky", zero=0.0)
    assert label([sky, black]) == ["memoryless (pixel zero 40.0)", "memoryless (pixel zero 0.0)"]


def test_a_network_needs_the_number() -> None:
    config = AgentConfig(core=LSTMConfig(8), pixel_zero="auto")
    with pytest.raises(ValueError, match="pixel_zero: expected a number"):
        Agent(config, (4, 4, 1), 2)
