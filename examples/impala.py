"""IMPALA with a recurrent memory in one file: acting, V-trace, and the update of the weights. No Ray, one process.

    python examples/impala.py                     the Compressive Transformer on a small level, some minutes
    python examples/impala.py --core lstm --env diagnostic:recall
    python examples/impala.py --env gym:Pendulum-v1       actions of all kinds: the agent knows their distribution

The actor keeps the weights of some updates ago, as actors on other machines do; V-trace corrects for that. A test shows
that `update` changes the weights exactly as `learner.learner.Learner` does.

Axes: B environments, T steps, P parameters of the policy. Source: Espeholt et al. 2018, arXiv:1802.01561.
"""

import argparse
import copy
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from actors.actor import to_tensors
from actors.interface import read_interface
from agent import Agent, AgentConfig, EnvOutput, Trajectory
from agent.core import CORES, State, detach_state, map_state, matched_cores
from envs import make_vector


@dataclass(frozen=True)
class Settings:
    """How to learn."""

    learning_rate: float = 1e-3
    discount: float = 0.92
    lambda_: float = 0.85
    entropy_cost: float = 3e-2
    baseline_cost: float = 1.0
    max_gradient_norm: float = 1.0
    clip_rho: float = 1.0
    clip_c: float = 1.0


class Actor:
    """B environments that are stepped together, with one memory state for each."""

    def __init__(self, envs: VectorEnv, agent: Agent, seed: int) -> None:
        rows = envs.num_envs
        self.envs = envs
        self.agent = agent
        self.generator = torch.Generator().manual_seed(seed)
        self.state: State = agent.initial_state(rows)
        self.over = np.zeros(rows, dtype=bool)
        self.scores = np.zeros(rows)
        self.finished: list[float] = []
        observation, _ = envs.reset(seed=seed)
        self.output = EnvOutput(
            observation=to_tensors(observation),
            last_action=agent.distribution.none(rows),
            reward=torch.zeros(rows),
            discount=torch.ones(rows),
            reset=torch.ones(rows, dtype=torch.bool),
        )

    @torch.no_grad()
    def unroll(self, length: int) -> Trajectory:
        """T steps; the trajectory has T + 1 environment outputs, the last of which is the bootstrap."""
        begin = self.state
        outputs = [self.output]
        actions: list[Tensor] = []
        parameters: list[Tensor] = []
        state = self.agent.core.with_cache(begin)  # memory is projected once, not at every step
        for _ in range(length):
            now = map_state(lambda part: part[:, None], self.output)
            step = self.agent(now.observation, now.last_action, now.reward, now.reset, state)
            state = step.state
            parameters.append(step.policy_parameters[:, 0])
            actions.append(self.sample(parameters[-1]))
            self.step(actions[-1])
            outputs.append(self.output)
        self.state = self.agent.core.without_cache(state)

        observed = map_state(lambda *steps: torch.stack(steps, dim=1), *outputs)
        rows = torch.zeros(len(observed.reset), dtype=torch.int64)
        return Trajectory(
            **observed._asdict(),
            action=torch.stack(actions, dim=1),
            policy_parameters=torch.stack(parameters, dim=1),
            core_state=begin,
            actor_id=rows,
            version=rows,
        )

    def sample(self, parameters: Tensor) -> Tensor:
        """Actions [B, ...] of the policy with parameters [B, P]."""
        policy = self.agent.distribution
        uniform = torch.rand(len(parameters), policy.num_uniform, generator=self.generator)
        return policy.sample(parameters, uniform)

    def step(self, action: Tensor) -> None:
        """Steps the environments. After the end of an episode the next step ignores its action and resets."""
        resets = torch.from_numpy(self.over)
        received = self.agent.distribution.effect(action)  # numbers come within their bounds
        observation, reward, terminated, truncated, _ = self.envs.step(received.numpy())
        self.over = terminated | truncated
        self.scores += reward
        self.finished += self.scores[self.over].tolist()
        self.scores[self.over] = 0
        self.output = EnvOutput(
            observation=to_tensors(observation),
            last_action=self.agent.distribution.last_action(received, resets),
            reward=torch.from_numpy(reward.astype(np.float32)),
            discount=torch.from_numpy(1 - terminated.astype(np.float32)),
            reset=resets,
        )


def vtrace(
    log_rhos: Tensor, discounts: Tensor, rewards: Tensor, values: Tensor, mask: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Targets of the value function and advantages, both [B, T]; equation (1) of the paper.

    Args:
        log_rhos: [B, T] log of the importance weights: target policy over behavior policy.
        discounts, rewards: [B, T] of what followed each action.
        values: [B, T + 1], the last is the bootstrap.
        mask: [B, T] bool, false where the action was ignored because the environment was reset.
    """
    rhos = log_rhos.exp()
    clipped_rhos = rhos.clamp(max=settings.clip_rho)
    clipped_cs = rhos.clamp(max=settings.clip_c)
    bootstrap = values[:, -1]
    next_values = values[:, 1:]
    values = values[:, :-1]

    # From the last step to the first, the correction of each value. None crosses from episode to episode.
    deltas = torch.where(mask, clipped_rhos * (rewards + discounts * next_values - values), 0.0)
    decays = torch.where(mask, discounts * settings.lambda_ * clipped_cs, 0.0)
    corrections = torch.zeros_like(values)
    correction = torch.zeros_like(bootstrap)
    for step in reversed(range(values.shape[1])):
        correction = deltas[:, step] + decays[:, step] * correction
        corrections[:, step] = correction
    targets = values + corrections
    next_targets = torch.cat([targets[:, 1:], bootstrap[:, None]], dim=1)
    advantages = clipped_rhos * (rewards + discounts * next_targets - values)
    return targets, torch.where(mask, advantages, 0.0)


def losses(agent: Agent, trajectory: Trajectory, settings: Settings) -> dict[str, Tensor]:
    """The losses of a batch, scalars: policy gradient, value, entropy, and the core's own (compression)."""
    output = agent(
        trajectory.observation,
        trajectory.last_action,
        trajectory.reward,
        trajectory.reset,
        detach_state(trajectory.core_state),
    )
    policy = agent.distribution
    parameters = output.policy_parameters[:, :-1]
    log_probs = policy.log_prob(parameters, trajectory.action)
    behavior = policy.log_prob(trajectory.policy_parameters, trajectory.action)
    mask = ~trajectory.reset[:, 1:]
    with torch.no_grad():
        targets, advantages = vtrace(
            log_probs - behavior,
            settings.discount * trajectory.discount[:, 1:],
            trajectory.reward[:, 1:].clamp(-1, 1),
            output.value,
            mask,
            settings,
        )

    def mean(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)

    return {
        "policy": mean(-log_probs * advantages),
        "baseline": settings.baseline_cost * mean(0.5 * (targets - output.value[:, :-1]).square()),
        "entropy": settings.entropy_cost * mean(-policy.entropy(parameters)),
        **{name: loss.value for name, loss in output.losses.items()},
    }


def parameter_groups(agent: Agent) -> list[list[nn.Parameter]]:
    """The network's parameters, and those of the compression, which only the compression loss trains."""
    compression = agent.compression_parameters()
    known = {id(parameter) for parameter in compression}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in known]
    return [others, compression]


def make_optimizer(agent: Agent, settings: Settings) -> torch.optim.Optimizer:
    """Adam over both groups."""
    groups = [{"params": group} for group in parameter_groups(agent)]
    return torch.optim.Adam(groups, lr=settings.learning_rate, eps=1e-6)


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, trajectory: Trajectory, settings: Settings
) -> dict[str, float]:
    """One update of the weights; returns the losses."""
    agent.train()
    optimizer.zero_grad()
    parts = losses(agent, trajectory, settings)
    torch.stack(list(parts.values())).sum().backward()
    for group in parameter_groups(agent):
        nn.utils.clip_grad_norm_(group, settings.max_gradient_norm)
    optimizer.step()
    return {name: loss.item() for name, loss in parts.items()}


def main() -> None:
    """Trains an agent and prints its return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="rooms:small")
    parser.add_argument("--core", default="compressive", choices=CORES)
    parser.add_argument("--updates", type=int, default=700)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--unroll-length", type=int, default=32)
    parser.add_argument("--lag", type=int, default=2, help="updates between two copies of the weights to the actor")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    settings = Settings()
    envs = make_vector(options.env, options.environments)
    sizes = {"model_size": 64, "num_layers": 2, "num_heads": 4, "mlp_size": 128, "segment_size": 16, "norm": "pre"}
    core = matched_cores(sizes, memory=16, compressed=16)[options.core]
    config = AgentConfig(torso="small", core=core, reconstruction_cost=1.0)
    seen = read_interface(envs)
    agent = Agent(config, seen.observation_shape, seen.actions, seen.vocabulary, mask_at=seen.mask_at)
    optimizer = make_optimizer(agent, settings)
    actor = Actor(envs, copy.deepcopy(agent).eval(), options.seed)
    for number in range(1, options.updates + 1):
        trajectory = actor.unroll(options.unroll_length)
        parts = update(agent, optimizer, trajectory, settings)
        if number % options.lag == 0:
            actor.agent.load_state_dict(agent.state_dict())
        if number % 20 == 0:
            score = float("nan")
            if actor.finished:
                score = float(np.mean(actor.finished[-200:]))
            steps = number * options.environments * options.unroll_length
            print(f"update {number}  {steps} steps  return {score:.2f}  loss {sum(parts.values()):.3f}", flush=True)


if __name__ == "__main__":
    main()
