"""The actor-critic: torso, instruction, last action and last reward, a recurrent core, and the policy and value heads.

Only the network lives here. Sampling actions is the actors' business, losses are the learner's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import CompressiveTransformerConfig, CoreConfig, State, make_core
from agent.fields import AtLeast0, Checked, Size
from agent.instruction import INSTRUCTION_SIZE, InstructionEncoder
from agent.trajectory import Observation
from agent.vision import Reconstruction, make_torso


@dataclass(frozen=True)
class AgentConfig(Checked):
    """The network, apart from what the environment decides (observation shape, number of actions)."""

    torso: str = "deep"
    """Network for images: deep or shallow (IMPALA's two) or small. Vectors always go through two linear layers."""
    torso_size: Size = 256
    """Features of the torso."""
    core: CoreConfig = field(default_factory=CompressiveTransformerConfig)
    """The recurrent core."""
    reconstruction_cost: AtLeast0 = 0.0
    """Weight of an auxiliary loss: the image must be drawn, 6 x 8 pixels, from the core's features; 0 for none. A mean
    over steps, whatever the learner's reduction. Vectors have no such loss."""
    instruction: bool = False
    """Read the environment's instructions with IMPALA's LSTM: on where it shows any, off where it does not."""


class AgentOutput(NamedTuple):
    """What the agent returns for inputs of B rows and T steps.

    policy_logits: [B, T, A].
    value: [B, T], in units of the (clipped, scaled) reward that the learner trains on.
    state: the core's state after the last step.
    losses: the core's, as in `agent.core.CoreOutput`, and "reconstruction" of images if the config asks for it.
    attention: as in `agent.core.CoreOutput`.
    """

    policy_logits: Tensor
    value: Tensor
    state: State
    losses: dict[str, Tensor]
    attention: tuple[Tensor, ...] | None


class Agent(nn.Module):
    """Maps observations and what led to them to policy and value; the caller keeps the memory, which is the state.

    Args:
        config: the network.
        observation_shape: of an image or a vector.
        num_actions: how many actions there are.
        vocabulary: how many ids the words of an instruction may have; 0 if the environment shows none.

    Raises:
        ValueError: if the network does not fit the environment.
    """

    def __init__(
        self, config: AgentConfig, observation_shape: tuple[int, ...], num_actions: int, vocabulary: int = 0
    ) -> None:
        super().__init__()
        if config.instruction != bool(vocabulary):
            shows = "an environment with instructions" if vocabulary else "an environment without any"
            raise ValueError(f"instruction: expected {bool(vocabulary)} in {shows}, got {config.instruction}")
        self.config = config
        self.num_actions = num_actions
        model_size = config.core.model_size
        self.vision = make_torso(config.torso, observation_shape, config.torso_size)
        self.instruction = InstructionEncoder(vocabulary) if config.instruction else None
        language_size = INSTRUCTION_SIZE if config.instruction else 0
        self.joint = nn.Linear(config.torso_size + num_actions + 1 + language_size, model_size)
        self.core = make_core(config.core)
        self.policy = nn.Linear(model_size, num_actions)
        self.value = nn.Linear(model_size, 1)
        draws = config.reconstruction_cost > 0 and len(observation_shape) == 3
        self.reconstruction = Reconstruction(model_size, observation_shape[-1]) if draws else None
        # Near-uniform first policy and near-zero first values, whatever the core's scale.
        for head in (self.policy, self.value):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)

    def initial_state(self, batch_size: int) -> State:
        """The core's state before an episode."""
        return self.core.initial_state(batch_size)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the compression loss trains."""
        return self.core.compression_parameters()

    def share_batch(self, total: Callable[[Tensor], Tensor]) -> None:
        """Other processes have the other rows of a batch; losses are then parts. See `agent.core.contract.Core`."""
        self.core.share_batch(total)

    def forward(
        self,
        observation: Tensor | Observation,
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: State,
        return_attention: bool = False,
    ) -> AgentOutput:
        """Consumes T steps of B rows.

        Args:
            observation: [B, T, height, width, channels] uint8 or [B, T, features] float32; with instructions, an
                `Observation` with axes [B, T].
            last_action: [B, T] int64, -1 where there is none.
            last_reward: [B, T], as the environment gave it; the network sees it clipped to +-1 (as IMPALA does).
            reset: [B, T] bool, where an episode begins.
            state: the core's state before the first step.
            return_attention: also return attention weights (slower).

        Raises:
            ValueError: if the leading axes of the arguments differ; names the argument, the expected and actual shape.
        """
        if reset.ndim != 2:
            raise ValueError(f"reset: expected [B, T], got {list(reset.shape)}")
        batch, time = reset.shape
        image, words = observation if isinstance(observation, Observation) else (observation, None)
        if (words is None) != (self.instruction is None):
            expected = "images alone" if self.instruction is None else "an Observation with instructions"
            raise ValueError(f"observation: expected {expected}, got {type(observation).__name__}")
        if image.shape[:2] != reset.shape:
            raise ValueError(f"observation: expected leading axes [{batch}, {time}], got {list(image.shape)}")
        for name, value in (("last_action", last_action), ("last_reward", last_reward)):
            if value.shape != reset.shape:
                raise ValueError(f"{name}: expected [{batch}, {time}], got {list(value.shape)}")
        language = []
        if self.instruction is not None and words is not None:
            # First of all: on a GPU this waits for the device, which has nothing to do yet.
            language = [self.instruction(words.flatten(0, 1)).unflatten(0, (batch, time))]
        seen = self.vision(image.flatten(0, 1)).unflatten(0, (batch, time))
        action = F.one_hot(last_action + 1, self.num_actions + 1)[..., 1:].to(seen.dtype)
        reward = last_reward.clamp(-1, 1)[..., None].to(seen.dtype)
        inputs = self.joint(torch.cat([seen, action, reward, *language], dim=-1))
        features, state, losses, attention = self.core(inputs, reset, state, return_attention)
        if self.reconstruction is not None and torch.is_grad_enabled():
            reconstruction = self.reconstruction(features.flatten(0, 1), image.flatten(0, 1))
            count = reconstruction.new_full((), batch * time)
            share = count / self.core.total(count)
            losses = {**losses, "reconstruction": share * (self.config.reconstruction_cost * reconstruction)}
        return AgentOutput(self.policy(features), self.value(features).squeeze(-1), state, losses, attention)
