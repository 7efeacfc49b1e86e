"""A tiny agent and random trajectories: all that the learner's tests need of the rest of the system."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from agent.core import Mean
from agent.policies import Categorical
from agent.trajectory import Trajectory

OBSERVATION = 3
HIDDEN = 8
ACTIONS = 2


class TinyState(NamedTuple):
    hidden: Tensor
    phase: int


class TinyOutput(NamedTuple):
    policy_parameters: Tensor
    value: Tensor
    state: TinyState
    losses: dict[str, Mean]


class TinyAgent(nn.Module):
    """An Elman network with the agent's interface; its compression loss is scaled by `compression_scale`."""

    def __init__(self, compression_scale: float = 1.0) -> None:
        super().__init__()
        self.inputs = nn.Linear(OBSERVATION + 2, HIDDEN)
        self.recurrent = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.policy = nn.Linear(HIDDEN, ACTIONS)
        self.baseline = nn.Linear(HIDDEN, 1)
        self.compression = nn.Linear(HIDDEN, HIDDEN)
        self.distribution = Categorical(ACTIONS)
        self.compression_scale = compression_scale
        self.calls = 0

    def initial_state(self, batch_size: int) -> TinyState:
        return TinyState(torch.zeros(batch_size, HIDDEN), 0)

    def compression_parameters(self) -> list[nn.Parameter]:
        return list(self.compression.parameters())

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, reset: Tensor, state: TinyState
    ) -> TinyOutput:
        self.calls += 1

        # The network, step by step.
        action = last_action.float()[..., None]
        reward = last_reward.clamp(-1, 1)[..., None]
        entries = self.inputs(torch.cat([observation, action, reward], dim=-1))
        hidden = state.hidden
        column = []
        for entry, begins in zip(entries.unbind(1), reset.unbind(1)):
            before = hidden.masked_fill(begins[:, None], 0.0)
            hidden = torch.tanh(entry + self.recurrent(before))
            column.append(hidden)
        features = torch.stack(column, dim=1)

        # A loss that trains the parameters of the compression alone.
        seen = features.detach()
        loss = self.compression_scale * (self.compression(seen) - seen.flip(-1)).square().mean()
        losses = {"compression/layer_0": Mean(loss[None], torch.ones(1, dtype=torch.int64))}

        state = TinyState(hidden, state.phase)
        return TinyOutput(self.policy(features), self.baseline(features).squeeze(-1), state, losses)


def random_trajectory(rows: int, steps: int, seed: int = 0) -> Trajectory:
    """Obeys the contract: resets follow a last observation, whose action earns nothing."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    # Episodes of two steps or more; the first may have one. Half of those that end are terminated, half are truncated.
    reset = uniform(rows, steps + 1) < 0.2
    reset[:, 2:] &= ~reset[:, 1:-1]
    terminated = torch.zeros_like(reset)
    terminated[:, :-1] = reset[:, 1:] & (uniform(rows, steps) < 0.5)
    terminated &= ~reset
    actions = torch.randint(ACTIONS, (rows, steps), generator=generator)
    last_action = torch.cat([torch.full((rows, 1), -1), actions], dim=1).masked_fill(reset, -1)
    return Trajectory(
        observation=torch.randn(rows, steps + 1, OBSERVATION, generator=generator),
        last_action=last_action,
        reward=torch.randn(rows, steps + 1, generator=generator).masked_fill(reset, 0.0),
        discount=1 - terminated.float(),
        reset=reset,
        action=actions,
        policy_parameters=torch.randn(rows, steps, ACTIONS, generator=generator),
        core_state=TinyState(torch.randn(rows, HIDDEN, generator=generator), 0),
        actor_id=torch.arange(rows),
        version=torch.zeros(rows, dtype=torch.int64),
    )


@pytest.fixture
def tiny_agent() -> Callable[..., TinyAgent]:
    """Makes tiny agents with equal weights."""

    def make(compression_scale: float = 1.0) -> TinyAgent:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return TinyAgent(compression_scale)

    return make


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes random trajectories: `trajectory(rows, steps, seed=0)`."""
    return random_trajectory


@pytest.fixture(params=["threads", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the learners of a group are; see `places`."""
    from tests.learner import places  # imports Ray

    if request.param == "threads":
        return places.in_threads(monkeypatch)
    request.getfixturevalue("cluster")
    return places.on_ray()
