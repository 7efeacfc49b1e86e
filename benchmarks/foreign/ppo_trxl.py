"""CleanRL's half of benchmarks/peers.py: its file ppo_trxl.py, PPO with a Transformer-XL, runs here unchanged.

Equal to ours: the level, the number of environments, the steps of a batch. Different, with its defaults:

* One process does all: gymnasium's SyncVectorEnv steps the environments one after the other, and acting waits for
  learning. Its torch uses all cores.
* Its network: three convolutions (32, 64, 64 channels), then a Transformer-XL of 3 layers x 384 that sees the last 119
  steps.
* It learns from each batch three times, in eight parts.
* Its convolutions accept 84 x 84 pixels only, so that the level is drawn in this size: 2 % more pixels than 72 x 96.
"""

import dataclasses
import os
import runpy
import sys
from typing import Any

import gymnasium
import torch.utils.tensorboard

from benchmarks.foreign.level import level_config, read_options, report
from envs.rooms import RoomsConfig, RoomsEnv

FIRST_EPISODE = 10
"""Steps. The file ends with a KeyError if no episode ends in its first batch."""


class ForFile(gymnasium.Wrapper):
    """The level with what the file requires: actions as arrays [1], and a short first episode."""

    steps = 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(int(action[0]))
        self.steps += 1
        return observation, reward, terminated, truncated or self.steps == FIRST_EPISODE, info


def make_level(config: RoomsConfig, render_mode: str) -> ForFile:
    """What gymnasium calls for the level; the file asks for a render mode and never renders."""
    return ForFile(RoomsEnv(config))


class Writer:
    """Replaces TensorBoard's writer: reports the steps instead, when the last figure of a batch is written."""

    def __init__(self, *_: Any) -> None:
        pass

    def add_text(self, *_: Any) -> None:
        pass

    def add_scalar(self, name: str, _: Any, steps: int) -> None:
        if name == "charts/SPS":
            report(steps)


def main() -> None:
    """Runs the file with its folder on the path, as Python does."""
    options = read_options()
    config = dataclasses.replace(level_config(options["env"]), image_height=84, image_width=84)
    envs = options["actors"] * options["envs"]
    gymnasium.register(
        "Rooms-v0", entry_point=make_level, max_episode_steps=config.episode_steps, kwargs={"config": config}
    )
    torch.utils.tensorboard.SummaryWriter = Writer
    flags = {"env-id": "Rooms-v0", "num-envs": envs, "num-steps": options["batch"] // envs}
    sys.argv = [options["file"], "--no-cuda", *(f"--{name}={value}" for name, value in flags.items())]
    sys.path.insert(0, os.path.dirname(options["file"]))
    runpy.run_path(options["file"], run_name="__main__")


if __name__ == "__main__":
    main()
