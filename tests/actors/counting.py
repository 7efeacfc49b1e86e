"""An environment that counts and an agent that remembers the count: if a state ever reaches the wrong environment, or
survives where it should not, the agent says so in its logits."""

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn

from actors import Actor
from agent import AgentOutput
from agent.core.contract import Core

FIRST_UID = 1000


class CountingEnv(VectorEnv):
    """Observes (uid, episode, step) [N, 3] float32; episodes of environment i last 5 + i steps.

    The reward is the step; odd episodes are truncated, even ones terminate.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "episode_metrics": ("evens",)}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1e9, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.uid = FIRST_UID + np.arange(self.num_envs) + 100 * (int(seed) % 10_000)
        self.episode = np.zeros(self.num_envs)
        self.count = np.zeros(self.num_envs)
        self.over = np.zeros(self.num_envs, bool)
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.stack([self.uid, self.episode, self.count], axis=1).astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        fresh = self.over
        self.episode += fresh
        self.count = np.where(fresh, 0, self.count + 1)
        self.over = self.count >= 5 + np.arange(self.num_envs)
        odd = self.episode % 2 == 1
        evens = self.count // 2
        return self._observe(), self.count.copy(), self.over & ~odd, self.over & odd, {"evens": evens}


class CountingState(NamedTuple):
    """What the agent saw last, [B, 3], and whether it saw anything, [B]."""

    last: Tensor
    seen: Tensor


class CountingCore(Core):
    """Remembers the last observation and returns 1 where the present one does not follow from it."""

    def initial_state(self, batch_size: int) -> CountingState:
        return CountingState(torch.zeros(batch_size, 3), torch.zeros(batch_size, dtype=torch.bool))


class CountingAgent(nn.Module):
    """Logits are (wrong, 0): 0 as long as every state belongs to its environment."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CountingCore()
        self.marker = nn.Parameter(torch.zeros(1))

    def initial_state(self, batch_size: int) -> CountingState:
        return self.core.initial_state(batch_size)

    def forward(
        self,
        observation: Tensor,
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: CountingState,
        return_attention: bool = False,
    ) -> AgentOutput:
        wrong = []
        for now, begins, action, reward in zip(
            observation.unbind(1), reset.unbind(1), last_action.unbind(1), last_reward.unbind(1)
        ):
            follows = (now == state.last + torch.tensor([0.0, 0.0, 1.0])).all(1) & (action >= 0)
            follows &= reward == now[:, 2]
            begun = (now[:, 2] == 0) & (action == -1) & (~state.seen | (now[:, 0] == state.last[:, 0]))
            begun &= ~state.seen | (now[:, 1] == state.last[:, 1] + 1)
            wrong.append(~torch.where(begins, begun, follows & state.seen))
            state = CountingState(now, torch.ones_like(state.seen))
        flags = torch.stack(wrong, dim=1).float()
        logits = torch.stack([flags, torch.zeros_like(flags)], dim=-1)
        return AgentOutput(logits, flags + self.marker, state, {}, None)


def make_counting_actor(num_envs: int, actor_id: int, incarnation: int) -> Actor:
    """An actor as the pools want it; incarnations differ in their seed."""
    agent: Any = CountingAgent()
    return Actor(CountingEnv(num_envs), agent, actor_id, seed=7 + incarnation)
