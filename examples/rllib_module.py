"""A core of `agent.core` in RLlib: an RLModule for its new API stack, learned with the library's own PPO.

    python -m examples.rllib_module                   delayed recall over 10 steps, some minutes on one CPU core
    python -m examples.rllib_module --core library    the library's own LSTM
    python -m examples.rllib_module --env gym:Pendulum-v1                 numbers as actions

RLlib requires another gymnasium, hence a virtual environment of its own (docs/integrations.md). It keeps a state in
each episode at every step, as an output of the module, and cuts episodes into pieces of at most `max_seq_len` steps,
each of which begins with such a state. No piece has a reset inside: RLlib starts each episode with `get_initial_state`.

An episode may begin anywhere in the segment of the others (see `FlatCore`). Acting stores where, so that the learner's
features are the actor's.

Axes: B environments or pieces, T steps, D features.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
import tyro
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.catalog import Catalog
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

from agent.core import FlatCore, make_core, matched_cores
from examples.single import Single

COUNT = "memory_count"
"""The column with `FlatCore`'s counts at each step, which RLlib hands to the learner like every output of acting."""


class MemoryModule(TorchRLModule, ValueFunctionAPI):
    """Encoder, any core, and heads for policy and value.

    `model_config` has `core`, a configuration of `agent.core`, and `max_seq_len`, steps of a piece of an episode.
    """

    def setup(self) -> None:
        """Makes the networks."""
        size = self.model_config["core"].model_size
        inputs = self.observation_space.shape[0]
        self.encoder = nn.Sequential(nn.Linear(inputs, size), nn.ReLU(), nn.Linear(size, size))
        self.core = FlatCore(make_core(self.model_config["core"]))
        # The library's own distribution for the space of actions; Catalog has no public way to it without its networks.
        self.action_dist_cls = Catalog._get_dist_cls_from_action_space(self.action_space, framework="torch")
        self.policy = nn.Linear(size, self.action_dist_cls.required_input_dim(self.action_space))
        self.value = nn.Linear(size, 1)

    def get_initial_state(self) -> dict[str, np.ndarray]:
        """The state of one row at the start of an episode."""
        return {"memory": np.zeros(self.core.state_size, np.float32)}

    def features(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Features [B, T, D] of a batch, and what acting stores: the next state, and the counts [B, T] before it."""
        inputs = self.encoder(batch[Columns.OBS])
        state = batch[Columns.STATE_IN]["memory"]

        # The last element of a state is its count. In learning, an episode that begins has the count that it joined.
        if COUNT in batch:
            others = state[:, :-1]
            count = state[:, -1:]
            joined = batch[COUNT][:, :1].to(state)
            state = torch.cat([others, torch.where(count == 0, joined, count)], dim=1)

        counts = self.core.counts(state)[:, None].expand(inputs.shape[:2]).to(state)
        no_reset = torch.zeros(inputs.shape[:2], dtype=torch.bool)
        features, after = self.core(inputs, no_reset, state)
        return features, {Columns.STATE_OUT: {"memory": after}, COUNT: counts}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, stored = self.features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), **stored}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features, _ = self.features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Values [B, T]; without embeddings, of the observations."""
        if embeddings is None:
            embeddings, _ = self.features(batch)
        return self.value(embeddings).squeeze(-1)


class KeepFewStates(ConnectorV2):
    """Lets go of the states with which no piece of an episode begins: one small array takes their places.

    Before each step it replaces the last state but one, unless a piece begins with it. It needs
    `episodes_to_numpy=False`: an array of a whole episode would store each place in full.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: list[Any], **kwargs: Any) -> Any:
        """Changes the episodes, not the batch."""
        empty = np.broadcast_to(np.float32(0), rl_module.get_initial_state()["memory"].shape)
        steps_of_piece = rl_module.model_config["max_seq_len"]
        for episode in self.single_agent_episode_iterator(episodes):
            begins_a_piece = (len(episode) - 1) % steps_of_piece == 0
            if len(episode) > 1 and not begins_a_piece:
                episode.extra_model_outputs[Columns.STATE_OUT].data[-2] = {"memory": empty}
        return batch


@dataclass
class Args:
    """Sizes and constants."""

    env: str = "diagnostic:recall,delay=10"
    core: str = "compressive"
    """A name of `agent.core.CORES`, or library for its own LSTM."""
    steps: int = 200_000
    num_envs: int = 32
    window: int = 32
    """Steps of each environment in a batch, and of a piece of an episode at most."""
    every_state: bool = False
    """Keep the state of every step, as the library does."""
    seed: int = 0


def make_config(args: Args) -> PPOConfig:
    """PPO in this process, with a core or the library's LSTM."""
    tune.register_env("single", lambda _: Single(args.env))
    sizes = {"model_size": 64, "num_layers": 1, "num_heads": 4, "mlp_size": 128, "segment_size": 8, "norm": "pre"}
    lengths = {"max_seq_len": args.window}
    config = (
        PPOConfig()
        .environment("single")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=args.num_envs, rollout_fragment_length=args.window)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=args.num_envs * args.window, minibatch_size=args.num_envs * args.window // 4,
            num_epochs=2, lr=1e-3, gamma=0.95, lambda_=0.95, entropy_coeff=0.01, vf_loss_coeff=0.5, clip_param=0.2,
            use_kl_loss=False, grad_clip=0.5,
        )
        .debugging(seed=args.seed)
    )  # fmt: skip
    if args.core == "library":
        lstm = {"use_lstm": True, "lstm_cell_size": 64, "fcnet_hiddens": [64, 64], **lengths}
        return config.rl_module(model_config=DefaultModelConfig(**lstm))
    if not args.every_state:
        config.env_runners(env_to_module_connector=lambda *_: KeepFewStates(), episodes_to_numpy=False)
    core = matched_cores(sizes, memory=8, compressed=4)[args.core]
    return config.rl_module(rl_module_spec=RLModuleSpec(MemoryModule, model_config={"core": core, **lengths}))


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the steps and the mean return of the latest episodes after each batch."""
    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # in one process nothing has to be authenticated
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    algorithm = make_config(args).build_algo()

    returns: list[tuple[int, float]] = []
    steps = 0
    start = time.perf_counter()
    while not returns or steps < args.steps:
        result = algorithm.train()["env_runners"]
        steps = int(result["num_env_steps_sampled_lifetime"])
        score = result.get("episode_return_mean", float("nan"))  # none before the first end of an episode
        returns.append((steps, score))
        if len(returns) % 10 == 0:
            speed = steps / (time.perf_counter() - start)
            print(f"{steps} steps  return {score:.2f}  {speed:.0f} steps/s", flush=True)
    algorithm.stop()
    return returns


if __name__ == "__main__":
    main(tyro.cli(Args))
