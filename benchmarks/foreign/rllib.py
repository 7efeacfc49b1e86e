"""RLlib's half of benchmarks/peers.py: IMPALA on its new API stack.

RLlib's parts are used as they are. With equal networks, our torso comes before its LSTM, through the hook that RLlib
has for that, and it steps our vector of environments. With `defaults`, the sizes are ours and all other choices are
RLlib's: its own network on pixels as float32, single environments, a learner process, its waiting times.
"""

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from gymnasium.wrappers import TransformObservation
from ray import tune
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT, Encoder
from ray.rllib.core.models.configs import ModelConfig
from ray.rllib.core.models.torch.base import TorchModel
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from agent.encoders import Vision
from benchmarks.foreign.level import level_config, read_options, report
from envs import make_vector
from envs.rooms import RoomsEnv


class Torso(TorchModel, Encoder):
    """Our image encoder as RLlib's encoder of observations, on uint8 pixels."""

    def __init__(self, config: "TorsoConfig") -> None:
        super().__init__(config)
        self.vision = Vision(config.torso, config.input_dims, config.size)

    def _forward(self, inputs: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {ENCODER_OUT: self.vision(inputs[Columns.OBS])}


@dataclass
class TorsoConfig(ModelConfig):
    """The configuration from which RLlib builds the torso."""

    torso: str = "small"
    size: int = 256

    @property
    def output_dims(self) -> tuple[int]:
        """Features of the torso."""
        return (self.size,)

    def build(self, framework: str = "torch") -> Torso:
        """The torso."""
        return Torso(self)


class Catalog(PPOCatalog):
    """RLlib's networks for IMPALA, with our torso before the LSTM."""

    @classmethod
    def get_tokenizer_config(cls, observation_space: Any, model_config_dict: dict[str, Any]) -> TorsoConfig:
        return TorsoConfig(observation_space.shape, torso=model_config_dict["torso"])


def float_pixels(env: gymnasium.Env) -> gymnasium.Env:
    """The environment with pixels as float32 from 0 to 1, which RLlib's own network requires."""
    space = gymnasium.spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda pixels: pixels.astype(np.float32) / 255, space)


def make_config(options: dict[str, Any]) -> IMPALAConfig:
    """The configuration, with equal networks or as RLlib comes."""
    name = options["env"]
    length = options["unroll_length"]
    config = level_config(name)
    if options["defaults"]:
        tune.register_env("rooms", lambda _: float_pixels(RoomsEnv(config)))
    else:
        tune.register_env("rooms", lambda context: make_vector(name, context["num_envs"]))
    # A step more than an unroll, for the one that RLlib appends as bootstrap: else each becomes two padded rows.
    lstm = {"use_lstm": True, "lstm_cell_size": 256, "max_seq_len": length + 1}
    sizes = {"num_env_runners": options["actors"], "num_envs_per_env_runner": options["envs"]}
    impala = IMPALAConfig().environment("rooms").env_runners(**sizes, rollout_fragment_length=length)
    impala = impala.reporting(min_time_s_per_iteration=1)
    impala = impala.training(train_batch_size_per_learner=options["batch"], lr=1e-4)
    if options["defaults"]:
        filters = [[16, 8, 4], [32, 4, 2]]  # IMPALA's shallow torso, in RLlib's notation
        network = {"conv_filters": filters, "conv_activation": "relu", "head_fcnet_hiddens": [], "fcnet_hiddens": [256]}
        return impala.rl_module(model_config=DefaultModelConfig(**network, **lstm))
    spec = RLModuleSpec(
        module_class=DefaultPPOTorchRLModule, catalog_class=Catalog, model_config={"torso": options["torso"], **lstm}
    )
    return (
        impala.env_runners(gym_env_vectorize_mode="vector_entry_point", create_env_on_local_worker=False)
        .learners(num_learners=0)  # in the driver, as ours
        .rl_module(rl_module_spec=spec)
        .training(timeout_s_sampler_manager=0.05)  # at 0, its default, the driver polls without a pause
    )


def main() -> None:
    """Trains and reports the steps learned from.

    RLlib's count includes the step that it appends to each piece of an episode: 1.5 % in its favor.
    """
    options = read_options()
    steps = 0.0
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", num_cpus=options["actors"] + 2, include_dashboard=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # in place of Ray's own, which prints a stack
    algorithm = make_config(options).build_algo()
    while True:
        counters = algorithm.train().get("learners", {}).get("__all_modules__", {})
        if counters.get("num_env_steps_trained_lifetime", 0) > steps:
            steps = counters["num_env_steps_trained_lifetime"]
            report(steps)


if __name__ == "__main__":
    main()
