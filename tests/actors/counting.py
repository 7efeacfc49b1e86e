"""An agent for the task `envs.diagnostic.Counting` that remembers the count: if a state ever reaches the wrong
environment, or survives where it should not, the agent says so in its logits."""

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from actors import Actor, Unroll
from agent import AgentOutput
from agent.core.contract import Core
from envs.diagnostic import Counting


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


class UnhurriedActor(Actor):
    """Leaves most of the processor to the processes that tests wait for."""

    def unroll(self, length: int) -> Unroll:
        time.sleep(0.01)
        return super().unroll(length)


def make_counting_actor(num_envs: int, actor_id: int, incarnation: int) -> Actor:
    """An actor as the pools want it; incarnations differ in their seed."""
    agent: Any = CountingAgent()
    return UnhurriedActor(Counting(num_envs), agent, actor_id, seed=7 + incarnation)
