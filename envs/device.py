"""The interface of environments whose memory is tensors on one device, such as a GPU.

A step is a fixed series of operations on tensors that keep their addresses: it reads no value and never waits for the
device, so that a CUDA graph can hold it.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from envs.batched import form_of


class DeviceEnv(ABC):
    """N environments stepped together on a device. A row depends on its own seed and actions only.

    The step after the end of a row's episode ignores the row's action, has reward 0 and gives the first observation of
    the next episode (gymnasium's NEXT_STEP). `reset` comes first. Subclasses define `seed` and `launch`.

    Args:
        observation: [N, height, width, channels] uint8 or [N, features] float32, on the device; or a tuple of such.
        state: all that decides what happens next, [N, ...] by name; changed in place.
        counters: those of them, int64, that count what happened in an episode, by the names of their metrics.
        action_repeat: frames of a step.
        terminated: one of `state`, if the episode's end is part of it.

    Attributes:
        action: [N] int64, of the present step; -1 for none.
        begin: [N] bool, rows in which the present step begins an episode.
        reward: [N] float64.
        terminated, truncated: [N] bool, rows whose episode the present step ended.
    """

    def __init__(
        self,
        num_envs: int,
        num_actions: int,
        observation: Tensor | tuple[Tensor, ...],
        state: dict[str, Tensor],
        counters: dict[str, Tensor] | None = None,
        action_repeat: int = 1,
        terminated: Tensor | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.num_actions = num_actions
        self.action_repeat = action_repeat
        self.observation = observation
        self.state = state
        self.counters = counters or {}

        first_part = observation[0] if isinstance(observation, tuple) else observation
        self.device = first_part.device
        self.action = torch.full((num_envs,), -1, device=self.device)
        self.begin = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.reward = torch.zeros(num_envs, dtype=torch.float64, device=self.device)
        self.truncated = torch.zeros_like(self.begin)
        self.terminated = torch.zeros_like(self.begin) if terminated is None else terminated

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Sets every row's random stream; row i has that of row i of the vector environment with this seed."""

    @abstractmethod
    def launch(self) -> None:
        """Begins an episode in the rows `begin`, takes `action` in the others except for -1, and observes all."""

    def reset(self, seed: int) -> None:
        """Begins an episode in every row."""
        self.seed(seed)
        self.begin.fill_(True)
        self.launch()
        self.begin.fill_(False)
        self.terminated.fill_(False)
        self.truncated.fill_(False)

    def step(self, action: Tensor) -> None:
        """One step of every row with `action` [N] int64 on the device, which is not checked."""
        torch.logical_or(self.terminated, self.truncated, out=self.begin)
        self.action.copy_(action)
        self.launch()

    def get_state(self) -> dict[str, Tensor]:
        """All that decides what happens next: copies on the CPU, by name, for `set_state`."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._whole_state().items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Continues from a state of `get_state`, with its observation. Raises a ValueError if it has another form."""
        own = self._whole_state()
        for name in sorted(own.keys() | state.keys()):
            expected = form_of(own.get(name))
            given = form_of(state.get(name))
            if given != expected:
                raise ValueError(f"state[{name!r}]: expected {expected}, got {given}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.begin.fill_(False)
        self.action.fill_(-1)
        self.launch()  # observes

    def _whole_state(self) -> dict[str, Tensor]:
        """`state`, and which episodes are over."""
        return {**self.state, "terminated": self.terminated, "truncated": self.truncated}
