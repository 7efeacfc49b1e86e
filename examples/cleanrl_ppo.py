"""PPO with a recurrent memory in one file, in the manner of CleanRL. Any core of `agent.core` is the memory.

    python -m examples.cleanrl_ppo                        delayed recall over 10 steps, some minutes on one CPU core
    python -m examples.cleanrl_ppo --core lstm --env-id gym:MiniGrid-MemoryS7-v0
    python -m examples.cleanrl_ppo --env-id gym:Pendulum-v1               numbers as actions

The state of the memory is stored once a rollout: that before the rollout's first step. A minibatch is some whole
sequences, one row an environment, and the core recomputes their features from the stored states.

Axes: N environments, T steps of a rollout, K columns of an action, D features.
Source: Schulman et al. 2017, arXiv:1707.06347.
"""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import tyro
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from agent.core import CORES, Core, State, index_state, make_core, matched_cores
from envs import ActionVector, ChoiceColumn, make_vector


@dataclass
class Args:
    """Sizes and constants; PPO's own as in CleanRL, where not for the memory."""

    env_id: str = "diagnostic:recall,delay=10"
    """A spec of `envs.make_vector`, such as gym:MiniGrid-MemoryS7-v0. Environments reset on the next step."""
    core: str = "compressive"
    """The memory: a name of `agent.core.CORES`."""
    model_size: int = 64
    num_layers: int = 1
    segment_size: int = 8
    memory_size: int = 8
    compressed_size: int = 4
    seed: int = 1
    total_timesteps: int = 200_000
    num_envs: int = 64
    num_steps: int = 32
    """Steps of a rollout (T), a multiple of segment_size."""
    num_minibatches: int = 4
    """Parts of a rollout's rows; divides num_envs."""
    update_epochs: int = 2
    learning_rate: float = 1e-3
    gamma: float = 0.95
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights and a bias of 0."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


def make_encoder(shape: tuple[int, ...] | None, size: int) -> nn.Module:
    """A network from observations [..., *shape] to inputs of the core [..., size]: vectors, or images of uint8.

    Raises a ValueError for several observations: this example has no encoder for them, `agent.encoders` has.
    """
    if shape is None:
        raise ValueError("env-id: expected observations that are one image or one vector, got several parts")
    if len(shape) == 1:
        return nn.Sequential(layer_init(nn.Linear(shape[0], size)), nn.ReLU(), layer_init(nn.Linear(size, size)))
    return Pixels(shape, size)


class Pixels(nn.Module):
    """Three convolutions and a linear layer on images [..., height, width, channels]."""

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        super().__init__()
        height, width, channels = shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 1, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        features = self.layers(torch.zeros(1, channels, height, width)).shape[1]
        self.linear = layer_init(nn.Linear(features, size))

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(0, -4).permute(0, 3, 1, 2) / 255
        return self.linear(self.layers(flat)).unflatten(0, images.shape[:-3])


class Policy:
    """A distribution of actions [..., K] float32: parts that are independent given the features.

    A choice is one column, its index; numbers are a column each.
    """

    def __init__(self, parts: list[Independent]) -> None:
        self.parts = parts
        self.columns = [part.event_shape[0] for part in parts]

    def sample(self) -> Tensor:
        """Actions [..., K]."""
        return torch.cat([part.sample().float() for part in self.parts], dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """[...], the sum over the parts."""
        by_part = actions.split(self.columns, dim=-1)
        found = [part.log_prob(own) for part, own in zip(self.parts, by_part)]
        return torch.stack(found).sum(dim=0)

    def entropy(self) -> Tensor:
        """[...], the sum over the parts."""
        return torch.stack([part.entropy() for part in self.parts]).sum(dim=0)


class Actor(nn.Module):
    """A linear layer for each part of an action: logits of a choice, or means of numbers.

    The standard deviations of numbers are the same in all states, as in CleanRL. Environments cut off what is beyond
    the bounds.
    """

    def __init__(self, space: Discrete | ActionVector, size: int) -> None:
        super().__init__()
        parts = [ChoiceColumn("", int(space.n))] if isinstance(space, Discrete) else space.parts
        self.heads = nn.ModuleList()
        self.log_stds = nn.ParameterDict()
        for index, part in enumerate(parts):
            if isinstance(part, ChoiceColumn):
                outputs = part.size
            else:
                outputs = part.num_columns
                self.log_stds[str(index)] = nn.Parameter(torch.zeros(outputs))
            self.heads.append(layer_init(nn.Linear(size, outputs), std=0.01))

    def forward(self, features: Tensor) -> Policy:
        parts: list[Independent] = []
        for index, head in enumerate(self.heads):
            outputs = head(features)
            if str(index) in self.log_stds:
                std = self.log_stds[str(index)].exp().expand_as(outputs)
                parts.append(Independent(Normal(outputs, std), 1))
            else:
                parts.append(Independent(Categorical(logits=outputs[..., None, :]), 1))
        return Policy(parts)


class Agent(nn.Module):
    """Encoder, memory, actor and critic."""

    def __init__(self, encoder: nn.Module, core: Core, model_size: int, space: Discrete | ActionVector) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.actor = Actor(space, model_size)
        self.critic = layer_init(nn.Linear(model_size, 1), std=1.0)

    def forward(self, obs: Tensor, reset: Tensor, state: State) -> tuple[Tensor, State, Tensor]:
        """Features [N, T, D] of observations [N, T, ...], the state after them, and the sum of the core's losses.

        `reset` [N, T] is true where an episode starts. Acting is the call with T = 1.
        """
        output = self.core(self.encoder(obs), reset, state)
        core_loss = torch.zeros(())
        if output.losses:
            core_loss = torch.stack([loss.value for loss in output.losses.values()]).sum()
        return output.features, output.state, core_loss


class Rollout(NamedTuple):
    """T steps of N environments, all [N, T, ...], and the state [N, ...] before the first.

    reset: the observation begins an episode.
    valid: the action took effect. The environment ignores the one after the last step of an episode, and resets.
    next_terminated: of the step after the action.
    """

    state: State
    obs: Tensor
    reset: Tensor
    actions: Tensor
    logprobs: Tensor
    values: Tensor
    rewards: Tensor
    next_terminated: Tensor
    valid: Tensor


class Player:
    """N environments, their present observations, and the memory of each."""

    def __init__(self, envs: VectorEnv, agent: Agent, seed: int) -> None:
        self.envs = envs
        self.agent = agent
        self.obs = torch.as_tensor(envs.reset(seed=seed)[0].copy())
        self.reset = torch.ones(envs.num_envs, dtype=torch.bool)
        self.over = np.zeros(envs.num_envs, dtype=bool)
        self.state = agent.core.initial_state(envs.num_envs)
        self.scores = np.zeros(envs.num_envs)
        self.returns: list[float] = []

    @torch.no_grad()
    def rollout(self, steps: int) -> tuple[Rollout, Tensor]:
        """T steps, and the value [N] of the observations after them."""
        records: dict[str, list[Tensor]] = defaultdict(list)
        begin = self.state
        state = self.agent.core.with_cache(begin)  # keys and values of the memory are projected once
        for _ in range(steps):
            features, state, _ = self.agent(self.obs[:, None], self.reset[:, None], state)
            policy = self.agent.actor(features[:, 0])
            value = self.agent.critic(features[:, 0])[:, 0]
            action = policy.sample()
            records["obs"].append(self.obs)
            records["reset"].append(self.reset)
            records["actions"].append(action)
            records["logprobs"].append(policy.log_prob(action))
            records["values"].append(value)

            received = action
            if isinstance(self.envs.single_action_space, Discrete):
                received = action[:, 0].long()
            obs, reward, terminated, truncated, _ = self.envs.step(received.numpy())
            self.obs = torch.as_tensor(obs.copy())
            self.reset = torch.as_tensor(self.over)  # rows that were over have begun an episode in this step
            self.over = terminated | truncated
            records["rewards"].append(torch.as_tensor(reward, dtype=torch.float32))
            records["next_terminated"].append(torch.as_tensor(terminated))
            records["valid"].append(~self.reset)

            self.scores += reward
            self.returns += self.scores[self.over].tolist()
            self.scores[self.over] = 0

        self.state = self.agent.core.without_cache(state)
        features, _, _ = self.agent(self.obs[:, None], self.reset[:, None], self.state)
        next_value = self.agent.critic(features[:, 0])[:, 0]
        fields = {name: torch.stack(by_step, dim=1) for name, by_step in records.items()}
        return Rollout(state=begin, **fields), next_value


def advantages(rollout: Rollout, next_value: Tensor, args: Args) -> Tensor:
    """Generalized advantages [N, T]; 0 where the action was ignored, so that nothing crosses from episode to episode.

    After a truncation the value of the last observation counts, after a termination it does not.
    """
    values = torch.cat([rollout.values, next_value[:, None]], dim=1)
    goes_on = (~rollout.next_terminated).float()
    deltas = rollout.rewards + args.gamma * goes_on * values[:, 1:] - values[:, :-1]

    found = torch.zeros_like(deltas)
    advantage = torch.zeros_like(next_value)
    for step in reversed(range(deltas.shape[1])):
        later = args.gamma * args.gae_lambda * goes_on[:, step] * advantage
        advantage = rollout.valid[:, step] * (deltas[:, step] + later)
        found[:, step] = advantage
    return found


def loss_of(agent: Agent, batch: Rollout, advantage: Tensor, target: Tensor, args: Args) -> Tensor:
    """PPO's loss of a minibatch of whole sequences, and the core's own losses."""
    features, _, core_loss = agent(batch.obs, batch.reset, batch.state)
    policy = agent.actor(features)
    values = agent.critic(features)[..., 0]

    def mean(part: Tensor) -> Tensor:
        """Over the actions that took effect."""
        return part[batch.valid].mean()

    scaled = (advantage - mean(advantage)) / (advantage[batch.valid].std() + 1e-8)
    ratio = (policy.log_prob(batch.actions) - batch.logprobs).exp()
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = mean(-torch.minimum(scaled * ratio, scaled * clipped))
    value_loss = mean(0.5 * (values - target).square())
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * mean(policy.entropy()) + core_loss


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, advantage: Tensor, args: Args) -> float:
    """Learns from a rollout `update_epochs` times; returns the last loss."""
    targets = advantage + rollout.values
    groups = parameter_groups(agent)
    for _ in range(args.update_epochs):
        for rows in torch.randperm(args.num_envs).chunk(args.num_minibatches):
            batch = Rollout(index_state(rollout.state, rows), *(part[rows] for part in rollout[1:]))
            loss = loss_of(agent, batch, advantage[rows], targets[rows], args)
            optimizer.zero_grad()
            loss.backward()
            for group in groups:
                nn.utils.clip_grad_norm_(group, args.max_grad_norm)
            optimizer.step()
    return loss.item()


def parameter_groups(agent: Agent) -> list[list[nn.Parameter]]:
    """The network's parameters, and those of the compression, which only the core's losses train."""
    compression = agent.core.compression_parameters()
    known = {id(parameter) for parameter in compression}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in known]
    return [others, compression]


def make_agent(envs: VectorEnv, args: Args) -> Agent:
    """The network for these environments."""
    size = args.model_size
    sizes = {
        "model_size": size,
        "num_layers": args.num_layers,
        "num_heads": 4,
        "mlp_size": 2 * size,
        "norm": "pre",
        "segment_size": args.segment_size,
    }
    core = make_core(matched_cores(sizes, args.memory_size, args.compressed_size)[args.core])
    encoder = make_encoder(envs.single_observation_space.shape, size)
    return Agent(encoder, core, size, envs.single_action_space)


def main(args: Args) -> list[float]:
    """Trains, prints the mean return of the last 200 episodes, and returns the returns of all."""
    for name, divisor in (("num_steps", "segment_size"), ("num_envs", "num_minibatches")):
        number = getattr(args, name)
        parts = getattr(args, divisor)
        if number % parts:
            raise SystemExit(f"{name}: expected a multiple of {divisor} = {parts}, got {number}")
    if args.core not in CORES:
        raise SystemExit(f"core: expected one of {', '.join(CORES)}, got {args.core!r}")

    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    envs = make_vector(args.env_id, args.num_envs)
    agent = make_agent(envs, args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    player = Player(envs, agent, args.seed)

    start = time.perf_counter()
    steps_of_rollout = args.num_envs * args.num_steps
    updates = max(1, args.total_timesteps // steps_of_rollout)
    for iteration in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - (iteration - 1) / updates)
        rollout, next_value = player.rollout(args.num_steps)
        advantage = advantages(rollout, next_value, args)
        loss = update(agent, optimizer, rollout, advantage, args)
        if iteration % 10 == 0 or iteration == updates:
            steps = iteration * steps_of_rollout
            score = np.mean(player.returns[-200:] or [np.nan])
            speed = steps / (time.perf_counter() - start)
            print(f"{steps} steps  return {score:.2f}  loss {loss:.3f}  {speed:.0f} steps/s", flush=True)
    envs.close()
    return player.returns


if __name__ == "__main__":
    main(tyro.cli(Args))
