"""A core of `agent.core` in Stable-Baselines3: a policy for sb3-contrib's RecurrentPPO.

    pip install -e '.[sb3]'
    python -m examples.sb3_policy                   delayed recall over 10 steps, some minutes on one CPU core
    python -m examples.sb3_policy --core library    the library's own LSTM
    python -m examples.sb3_policy --env gym:Pendulum-v1                 numbers as actions

`MemoryPolicy` runs in RecurrentPPO as it is. The library stores states at every step, four of them (hidden and cell,
actor and critic), because its minibatches begin anywhere. `SequenceBuffer` stores them once a rollout, and its
minibatches are whole sequences.

Axes: N environments, T steps of a rollout, S sequences of a minibatch, D features.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RecurrentRolloutBufferSamples, RNNStates
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from agent.core import CoreConfig, FlatCore, make_core, matched_cores
from examples.single import Single

States = tuple[Tensor, Tensor]
"""The library's pair of hidden and cell state, [layers = 1, S, state_size]; a core uses the first alone."""


class Memory(nn.Module):
    """Takes the place of `nn.LSTM` in the policy; the library reads these sizes from it."""

    num_layers = 1

    def __init__(self, input_size: int, config: CoreConfig) -> None:
        super().__init__()
        self.input_size = input_size
        self.inputs = nn.Linear(input_size, config.model_size)
        self.core = FlatCore(make_core(config))
        self.hidden_size = self.core.state_size

    def forward(self, inputs: Tensor, reset: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.core(self.inputs(inputs), reset, state)


class MemoryPolicy(RecurrentActorCriticPolicy):
    """The library's recurrent policy with any core in place of its LSTMs: one for the actor, one for the critic.

    `core` is the configuration of both. The options `shared_lstm` and `enable_critic_lstm` are the library's.
    """

    def __init__(self, *spaces_and_schedule: Any, core: CoreConfig, **options: Any) -> None:
        super().__init__(*spaces_and_schedule, lstm_hidden_size=core.model_size, **options)
        self.lstm_actor = Memory(self.features_dim, core)
        if self.lstm_critic is not None:  # type: ignore[has-type]
            self.lstm_critic = Memory(self.features_dim, core)
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)

        # Another optimizer, since the library's has the parameters of the LSTMs that were replaced.
        _, _, schedule = spaces_and_schedule
        self.optimizer = self.optimizer_class(self.parameters(), lr=schedule(1), **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(features: Tensor, lstm_states: States, episode_starts: Tensor, lstm: Any) -> Any:
        """Features [S x T, input_size] to [S x T, D], and the states after them; acting is T = 1."""
        hidden, _ = lstm_states
        state = hidden[0]
        sequences = len(state)
        inputs = features.reshape(sequences, -1, lstm.input_size)
        reset = episode_starts.reshape(sequences, -1) > 0.5
        outputs, state = lstm(inputs, reset, state)
        return outputs.flatten(0, 1), (state[None], state[None])


class SequenceBuffer(RecurrentRolloutBuffer):
    """A rollout buffer that stores states once a rollout, and yields minibatches of whole sequences, one a row."""

    def reset(self) -> None:
        shape = self.hidden_state_shape  # type: ignore[has-type]
        self.hidden_state_shape = (0, *shape[1:])  # what the library would store every step
        super().reset()

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:
        if self.pos == 0:
            hidden_of_actor, _ = lstm_states.pi
            hidden_of_critic, _ = lstm_states.vf
            self.begin = (hidden_of_actor[0], hidden_of_critic[0])  # [N, state_size] each
        super(RecurrentRolloutBuffer, self).add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Generator[RecurrentRolloutBufferSamples, None, None]:
        """Minibatches of `batch_size` steps, which is a multiple of the rollout's T."""
        size = self.n_envs
        if batch_size is not None:
            size = batch_size // self.buffer_size
        for rows in torch.randperm(self.n_envs).split(size):

            def pick(part: np.ndarray, rows: Tensor = rows) -> Tensor:
                """[T, N, ...] to [S x T, ...]."""
                of_rows = part[:, rows.numpy()]
                return self.to_torch(of_rows.swapaxes(0, 1)).flatten(0, 1)

            # A core reads the hidden state alone, so it stands for the cell state as well.
            states = []
            for begin in self.begin:
                hidden = begin[rows][None]
                states.append((hidden, hidden))
            yield RecurrentRolloutBufferSamples(
                observations=pick(self.observations),
                actions=pick(self.actions),
                old_values=pick(self.values),
                old_log_prob=pick(self.log_probs),
                advantages=pick(self.advantages),
                returns=pick(self.returns),
                lstm_states=RNNStates(*states),
                episode_starts=pick(self.episode_starts),
                mask=torch.ones(len(rows) * self.buffer_size, device=self.device),
            )


def store_once(model: RecurrentPPO) -> None:
    """Gives a model with a `MemoryPolicy` a `SequenceBuffer`; a model that is loaded to learn on needs it again."""
    if model.batch_size % model.n_steps:
        raise ValueError(f"batch_size: expected a multiple of n_steps = {model.n_steps}, got {model.batch_size}")
    model.rollout_buffer = SequenceBuffer(
        model.n_steps,
        model.policy.observation_space,
        model.policy.action_space,
        model.rollout_buffer.hidden_state_shape,
        model.device,
        gae_lambda=model.gae_lambda,
        gamma=model.gamma,
        n_envs=model.n_envs,
    )


class Progress(BaseCallback):
    """Collects the returns of episodes and prints their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[tuple[int, float]] = []
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:  # one has ended
                self.returns.append((self.num_timesteps, info["episode"]["r"]))
        return True

    def _on_rollout_end(self) -> None:
        mean = np.mean([score for _, score in self.returns[-200:]])
        speed = self.num_timesteps / (time.perf_counter() - self.start)
        print(f"{self.num_timesteps} steps  return {mean:.2f}  {speed:.0f} steps/s", flush=True)


@dataclass
class Args:
    """Sizes and constants."""

    env: str = "diagnostic:recall,delay=10"
    core: str = "compressive"
    """A name of `agent.core.CORES`, or library for its own LSTM."""
    every_step: bool = False
    """Store states at every step, as the library does."""
    steps: int = 200_000
    num_envs: int = 32
    seed: int = 0


def make_model(args: Args) -> RecurrentPPO:
    """The library's algorithm with a core, or unchanged."""
    envs = DummyVecEnv([lambda: Monitor(Single(args.env))] * args.num_envs)
    sizes = {"model_size": 64, "num_layers": 1, "num_heads": 4, "mlp_size": 128, "segment_size": 8, "norm": "pre"}
    policy: Any = MemoryPolicy
    if args.core == "library":
        policy = "MlpLstmPolicy"
        options: dict[str, Any] = {"lstm_hidden_size": 64}
    else:
        options = {"core": matched_cores(sizes, memory=8, compressed=4)[args.core]}
    model = RecurrentPPO(
        policy,
        envs,
        learning_rate=1e-3,
        n_steps=32,
        batch_size=8 * 32,
        n_epochs=2,
        gamma=0.95,
        ent_coef=0.01,
        seed=args.seed,
        policy_kwargs=options,
        device="cpu",
    )
    if policy is MemoryPolicy and not args.every_step:
        store_once(model)
    return model


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the step and the return of each episode."""
    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    progress = Progress()
    make_model(args).learn(args.steps, callback=progress)
    return progress.returns


if __name__ == "__main__":
    main(tyro.cli(Args))
