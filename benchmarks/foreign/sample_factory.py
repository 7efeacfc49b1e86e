"""Sample Factory's half of benchmarks/peers.py: asynchronous PPO (APPO) with V-trace, on the CPU.

Only the level and the torso are ours, through the hooks that Sample Factory has for them: its own LSTM of 256, its
linear heads and its losses follow. With its defaults, an actor ("rollout worker") steps single environments in two
halves, one of which waits for actions while the other is stepped; a further process computes the actions of all, and
another one learns. Its normalization of observations and returns is off: our torso scales, and its V-trace requires the
latter.
"""

import functools
import logging
import signal
from typing import Any

import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import make_runner
from sample_factory.utils.utils import log

from agent.encoders import Vision
from benchmarks.foreign.level import level_config, read_options, report
from envs.rooms import RoomsEnv

log.setLevel(logging.WARNING)
Learner._should_save_summaries = lambda self: False  # 2.1.1 ends with an AttributeError at those of V-trace


class Torso(Encoder):
    """Our image encoder, on uint8 pixels."""

    def __init__(self, cfg: Any, torso: str, shape: tuple[int, ...]) -> None:
        super().__init__(cfg)
        self.vision = Vision(torso, shape, 256)
        self.vision.convolutions.to(memory_format=torch.contiguous_format)  # its workers copy weights through views

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.vision(observations["obs"])

    def get_out_size(self) -> int:
        return 256

    def type_for_input_tensor(self, input_tensor_name: str) -> torch.dtype:
        return torch.uint8


def make_torso(torso: str, cfg: Any, observation_space: Any) -> Torso:
    """What Sample Factory calls for an encoder, after the first argument."""
    return Torso(cfg, torso, observation_space["obs"].shape)


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> RoomsEnv:
    """What Sample Factory calls for an environment."""
    return RoomsEnv(level_config(name))


class Report(AlgoObserver):
    """Reports what the learner reports after each batch: samples that it learned from, times the frame skip of 1."""

    def on_init(self, runner: Runner) -> None:
        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(self.on_steps)

    def on_steps(self, runner: Runner, message: dict[str, Any], policy: int) -> None:
        if message[LEARNER_ENV_STEPS]:  # 0 comes first, before any batch
            report(message[LEARNER_ENV_STEPS])


def main() -> None:
    """Trains until a SIGTERM, after which it ends with the next batch."""
    options = read_options()
    halves = 2 if options["envs"] % 2 == 0 else 1  # an odd number of environments has no halves
    flags = {
        "algo": "APPO",
        "env": options["env"],
        "experiment": "peers",
        "train_dir": ".",
        "device": "cpu",
        "num_workers": options["actors"],
        "num_envs_per_worker": options["envs"],
        "env_frameskip": 1,
        "rollout": options["unroll_length"],
        "batch_size": options["batch"],
        "num_epochs": 1,
        "async_rl": True,
        "with_vtrace": True,
        "normalize_returns": False,
        "normalize_input": False,
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": 256,
        "learning_rate": 1e-4,
        "with_wandb": False,
        "worker_num_splits": halves,
        "train_for_env_steps": 10**12,
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    register_env(options["env"], make_env)
    global_model_factory().register_encoder_factory(functools.partial(make_torso, options["torso"]))
    cfg, runner = make_runner(parse_full_cfg(parse_sf_args(words)[0], words))
    runner.register_observer(Report())
    signal.signal(signal.SIGTERM, lambda *_: setattr(cfg, "train_for_env_steps", 0))
    runner.init()
    runner.run()


if __name__ == "__main__":
    main()
