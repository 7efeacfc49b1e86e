"""A task that counts steps, and an agent that remembers the count: if a state ever reaches the wrong environment, or
survives where it should not, the agent's logits show it."""

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors import Actor, Unroll
from agent import AgentOutput
from agent.core.contract import Core
from agent.policies import Categorical
from envs.batched import Step, draw, stream
from envs.device import DeviceEnv
from envs.diagnostic import DiagnosticEnv


class Counting(DiagnosticEnv):
    """Observations are [number of the row, drawn with its stream; episode; step]; the reward is the step.

    Actions have no effect. Episodes of a row take 5 to 11 steps by its number; even ones terminate, odd ones are
    truncated. The counter `evens` is half the steps, rounded down.
    """

    variables = ("number", "episode", "count", "evens")
    largest = 2**24

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 3, 2)
        self.counters["evens"] = self.evens
        self.metadata["episode_metrics"] = ("evens",)

    def reset(self, **kwargs: Any) -> Any:
        self.episode[:] = -1
        return super().reset(**kwargs)

    def begin(self, rows: NDArray[np.bool_]) -> None:
        first = rows & (self.episode < 0)
        self.number[first] = draw(self, first, 2**24)  # float32 holds whole numbers up to 2**24
        self.episode[rows] += 1
        self.count[rows] = self.evens[rows] = 0

    def act(self, actions: NDArray[np.int64]) -> Step:
        self.count += 1
        self.evens[:] = self.count // 2
        is_over = self.count == 5 + self.number % 7
        is_odd = self.episode % 2 == 1
        return self.count.astype(float), is_over & ~is_odd, is_over & is_odd

    def observe(self) -> NDArray[np.float32]:
        return np.stack([self.number, self.episode, self.count], axis=1).astype(np.float32)

    def oracle_actions(self) -> NDArray[np.int64]:
        return np.zeros(self.num_envs, np.int64)


class DeviceCounting(DeviceEnv):
    """A `Counting` whose arrays are tensors on the CPU; equal to it with the same seed."""

    def __init__(self, num_envs: int) -> None:
        self.task = Counting(num_envs)
        state = {name: torch.from_numpy(array) for name, array in self.task.arrays.items() if name != "over"}
        super().__init__(num_envs, 2, torch.zeros(num_envs, 3), state, {"evens": state["evens"]})

    def seed(self, seed: int) -> None:
        self.task.rng[:] = [stream(self.task.entropy(seed, row)) for row in range(self.num_envs)]
        self.task.episode[:] = -1

    def launch(self) -> None:
        if self.begin.any() or (self.action >= 0).any():
            reward, terminated, truncated = self.task.advance(self.action.numpy(), self.begin.numpy())
            self.reward.copy_(torch.from_numpy(reward))
            self.terminated.copy_(torch.from_numpy(terminated))
            self.truncated.copy_(torch.from_numpy(truncated))
        self.observation.copy_(torch.from_numpy(self.task.observe()))


class CountingState(NamedTuple):
    """The last observation, [B, 3], and whether there was one, [B]."""

    last: Tensor
    seen: Tensor


class CountingCore(Core):
    """Its state is the last observation; `CountingAgent` does the rest."""

    def initial_state(self, batch_size: int) -> CountingState:
        return CountingState(torch.zeros(batch_size, 3), torch.zeros(batch_size, dtype=torch.bool))


class CountingAgent(nn.Module):
    """Logits are (wrong, 0): 0 as long as every state belongs to its environment."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CountingCore()
        self.distribution = Categorical(2)
        self.initial_state = self.core.initial_state
        self.with_cache = self.core.with_cache
        self.without_cache = self.core.without_cache
        self.marker = nn.Parameter(torch.zeros(1))

    def forward(
        self,
        observation: Tensor,
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: Tensor,
        return_attention: bool = False,
    ) -> AgentOutput:
        one_step = torch.tensor([0.0, 0.0, 1.0])
        wrong = []
        for at in range(observation.shape[1]):
            now = observation[:, at]
            number, episode, step = now.unbind(1)
            last_number, last_episode, _ = state.last.unbind(1)
            action = last_action[:, at]

            # Within an episode: one step after the state's, with an action and its reward.
            is_next = (now == state.last + one_step).all(dim=1)
            continues = state.seen & is_next & (action >= 0) & (last_reward[:, at] == step)

            # At its start: step 0 without an action, of the same row's next episode unless the state is new.
            follows = (number == last_number) & (episode == last_episode + 1)
            begins = (step == 0) & (action == -1) & (~state.seen | follows)

            wrong.append(~torch.where(reset[:, at], begins, continues))
            state = CountingState(now, torch.ones_like(state.seen))
        flags = torch.stack(wrong, dim=1).float()
        logits = torch.stack([flags, torch.zeros_like(flags)], dim=-1)
        return AgentOutput(logits, flags + self.marker, state, {}, None, logits)


class UnhurriedActor(Actor):
    """Leaves most of the processor to other processes."""

    def unroll(self, length: int) -> Unroll:
        time.sleep(0.01)
        return super().unroll(length)


def make_counting_actor(num_envs: int, actor_id: int, incarnation: int) -> Actor:
    """An actor as the pools want it; incarnations differ in their seed."""
    agent: Any = CountingAgent()
    return UnhurriedActor(Counting(num_envs), agent, actor_id, seed=7 + incarnation)
