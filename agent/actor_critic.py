"""The actor-critic: encoders of observation, last action and last reward, a recurrent core, policy and value heads."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.config import AgentConfig
from agent.core import CoreOutput, Mean, State, make_core
from agent.encoders import (
    INSTRUCTION_SIZE,
    InstructionEncoder,
    Reconstruction,
    Reconstructions,
    Shape,
    Torsos,
    VectorTorso,
    has_parts,
    make_reconstruction,
    make_torso,
    part_shapes,
    vector_sizes,
    vectors_of,
)
from agent.moments import Standardization
from agent.policies import ActionSpace, Numbers, Policy, exclude, make_policy
from agent.popart import PopArt
from agent.prediction import FuturePrediction
from agent.trajectory import Observation, Sensed, image_of, map_sensed

Weights = dict[str, Tensor]
"""Parameters and buffers by name."""
TEACHER = "teacher."
"""How the names of a teacher's weights begin, among those of its agent; see `agent.teaching`."""
WIDE = 256
"""Least model_size at which a core gains from bfloat16 on a CPU; narrower ones lose more by conversions."""


def own_weights(weights: Weights) -> Weights:
    """Those of an agent's weights that are not its teacher's."""
    return {name: weight for name, weight in weights.items() if not name.startswith(TEACHER)}


class AgentOutput(NamedTuple):
    """The output for B rows and T steps; `state`, `losses` and `attention` are those of `agent.core.CoreOutput`.

    policy_parameters: [B, T, P], of the agent's `distribution`: logits, if its actions are those of a Discrete space.
    value: [B, T], in units of the (clipped, scaled) reward that the learner trains on; with PopArt for K > 1 tasks,
        [B, T, K].
    losses: also "reconstruction", "prediction", "teacher" and "teacher_features", if the config asks for them.
    inputs: [B, T, D] of the core, from which the observation is reconstructed.
    """

    policy_parameters: Tensor
    value: Tensor
    state: State
    losses: dict[str, Mean]
    attention: tuple[Tensor, ...] | None
    inputs: Tensor


class MadeFor(NamedTuple):
    """The environment that an agent was made for: the arguments of `Agent` after its configuration, in their order."""

    observation_shape: Shape | tuple[Shape, ...]
    actions: ActionSpace
    vocabulary: int
    popart_tasks: int
    mask_at: int | None = None


class Encoded(NamedTuple):
    """What is known at each step, for B rows and T steps.

    inputs: [B, T, D] of the core.
    torso_features: [B, T, F].
    action: [B, T, A], the last action.
    standardized: the observation without its instruction, [B T, ...], or a tuple of several parts, as torsos get it:
        its vectors standardized, if the configuration asks for that.
    possible: [B, T, P] bool, see `Agent.possible_actions`.
    """

    inputs: Tensor
    torso_features: Tensor
    action: Tensor
    standardized: Sensed
    possible: Tensor | None


def _require_mask(made_for: MadeFor, policy: Policy) -> None:
    """Raises a ValueError if an environment's actions have numbers, or its vector has no room for a mask of them."""
    parts = () if isinstance(made_for.actions, int) else made_for.actions
    if any(isinstance(part, Numbers) for part in parts):
        raise ValueError(f"mask_at: expected actions that are choices, got {made_for.actions}")
    sizes = vector_sizes(made_for.observation_shape)
    size = sizes[-1] if sizes else 0
    most = size - policy.num_parameters
    if made_for.mask_at is None or not 0 <= made_for.mask_at <= most:
        expected = f"{policy.num_parameters} elements of the last vector, which has {size}"
        raise ValueError(f"mask_at: expected the first of {expected}, got {made_for.mask_at}")


class PolicyHead(nn.Linear):
    """The parameters of a policy, linear in the features; those that are the same in all states are biases alone."""

    varies: Tensor | None

    def __init__(self, size: int, policy: Policy) -> None:
        super().__init__(size, policy.num_parameters)
        varies = None
        if policy.fixed:
            varies = torch.ones(policy.num_parameters, 1)
            varies[list(policy.fixed)] = 0.0
        self.register_buffer("varies", varies, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Parameters [..., P] of features [..., size]."""
        if self.varies is None:
            return super().forward(features)
        return F.linear(features, self.weight * self.varies, self.bias)


class Agent(nn.Module):
    """Maps observations, last actions and last rewards to policy and value; the caller keeps the state.

    Under autocast the torso computes in bfloat16, and so does the core where that is faster; the heads do not.

    Args:
        observation_shape: of an image [height, width, channels] or of a vector [features]; or a tuple of several.
        actions: number of actions of a Discrete space, or the parts of another; see `agent.policies`.
        vocabulary: number of word ids of instructions, 0 if the environment has none.
        popart_tasks: number of tasks whose values are normalized, 0 for a plain value head (see `agent.popart`).
        mask_at: the first element, in the last vector of observations, of those that say for each action, or for each
            value of each choice, whether it is possible; None if all are.

    Raises:
        ValueError: if the network does not fit the environment.
    """

    def __init__(
        self,
        config: AgentConfig,
        observation_shape: Shape | tuple[Shape, ...],
        actions: ActionSpace,
        vocabulary: int = 0,
        popart_tasks: int = 0,
        mask_at: int | None = None,
    ) -> None:
        super().__init__()
        has_instructions = vocabulary > 0
        if config.instruction not in (None, has_instructions):
            kind = "an environment with instructions" if has_instructions else "an environment without instructions"
            raise ValueError(f"instruction: expected {has_instructions} in {kind}, got {config.instruction}")
        if config.pixel_zero == "auto":
            raise ValueError("pixel_zero: expected a number; training.factories.resolve_pixel_zero finds one for auto")
        self.config = config
        self.made_for = MadeFor(observation_shape, actions, vocabulary, popart_tasks, mask_at)
        self.distribution = make_policy(actions, config.action_bounds, config.action_scale)
        if mask_at is not None:
            _require_mask(self.made_for, self.distribution)
        self.action_shape = self.distribution.none(1).shape[1:]  # of a row
        model_size = config.core.model_size

        # Encoders of the observation; all that is known at a step is joined to the core's inputs.
        sizes = vector_sizes(observation_shape)
        self.standardization = Standardization(sizes) if config.standardize and sizes else None
        self.vision = make_torso(config.torso, observation_shape, config.torso_size, config.pixel_zero)
        joint_size = self.vision.num_features + self.distribution.num_features + 1
        self.instruction = None
        if has_instructions:
            self.instruction = InstructionEncoder(vocabulary)
            joint_size += INSTRUCTION_SIZE
        self.joint = nn.Linear(joint_size, model_size)

        # Memory, and the heads.
        self.core = make_core(config.core)
        self.policy = PolicyHead(model_size, self.distribution)
        value_size = model_size
        self.value_vision: Torsos | None = None
        if config.value_torso and sizes:
            self.value_vision = Torsos([VectorTorso(size, config.torso_size) for size in sizes])
            value_size += self.value_vision.num_features
        self.value = PopArt(value_size, popart_tasks) if popart_tasks else nn.Linear(value_size, 1)
        self.reconstruction: Reconstruction | Reconstructions | None = None
        if config.reconstruction_cost > 0:
            self.reconstruction = make_reconstruction(model_size, observation_shape, config.reconstruction_height)

        self.prediction: FuturePrediction | None = None
        if config.prediction_cost > 0:
            self.prediction = FuturePrediction(
                model_size,
                action_size=self.distribution.num_features,
                seen_size=self.vision.num_features,
                steps=config.prediction_steps,
            )

        # A first policy that is nearly the same in all states, and near-zero first values, whatever the core's scale.
        for head in (self.policy, self.value):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)
        if popart_tasks:
            # What is near zero depends on the rewards: where these are small, the first value targets would be noise.
            nn.init.zeros_(self.value.weight)
        self.policy.bias.data.copy_(self.distribution.first)

    def begin_with(self, weights: Weights) -> None:
        """Loads the weights of an agent of the same configuration, without those of its teacher if it had one."""
        self.load_state_dict(own_weights(weights))

    def alone(self) -> "Agent":
        """A copy, without a teacher."""
        return copy.deepcopy(self)

    def blank(self, rows: int) -> Sensed | Observation:
        """An observation of zeros, [rows, 1, ...], as `forward` takes it."""
        observation_shape = self.made_for.observation_shape
        parts = []
        for shape in part_shapes(observation_shape):
            dtype = torch.uint8 if len(shape) == 3 else torch.float32
            parts.append(torch.zeros(rows, 1, *shape, dtype=dtype))
        sensed = tuple(parts) if has_parts(observation_shape) else parts[0]
        if not self.made_for.vocabulary:
            return sensed
        return Observation(sensed, torch.zeros(rows, 1, 1, dtype=torch.int64))

    def initial_state(self, batch_size: int) -> State:
        """The core's state before an episode."""
        return self.core.initial_state(batch_size)

    def with_cache(self, state: State) -> State:
        """See `agent.core.contract.Core`; in the precision in which `forward` computes."""
        with self._core_precision():
            return self.core.with_cache(state)

    def without_cache(self, state: State) -> State:
        """See `agent.core.contract.Core`."""
        return self.core.without_cache(state)

    def compression_parameters(self) -> list[nn.Parameter]:
        """The parameters that only the core's own losses train: those of compression, or of routing."""
        return self.core.compression_parameters()

    def forward(
        self,
        observation: Sensed | Observation,
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: State,
        return_attention: bool = False,
    ) -> AgentOutput:
        """Consumes T steps of B rows; `state` is the core's state before them.

        Args:
            observation: [B, T, height, width, channels] uint8 or [B, T, features] float32, or a tuple of several; with
                instructions, an `Observation` with axes [B, T].
            last_action: [B, T] int64 or [B, T, K] float32, as the environment received it; see `agent.trajectory`.
            last_reward: [B, T], as returned by the environment; clipped to +-1 for the network (as in IMPALA).
            reset: [B, T] bool, true at episode starts.
            return_attention: also return attention weights (slower).

        Raises:
            ValueError: if the shapes of the arguments do not fit; names the argument, the expected and actual shape.
        """
        leading = image_of(observation).shape[:2]  # [B, T]
        of_action = (*leading, *self.action_shape)
        expected = {"last_action": of_action, "last_reward": leading, "reset": leading}
        given = {"last_action": last_action, "last_reward": last_reward, "reset": reset}
        for name, shape in expected.items():
            if given[name].shape != shape:
                raise ValueError(f"{name}: expected {list(shape)} as observation, got {list(given[name].shape)}")
        encoded = self.encode(observation, last_action, last_reward)
        inputs = encoded.inputs

        features, state, losses, attention = self.remember(inputs, reset, state, return_attention)

        # The heads are not in mixed precision. Actors need no losses.
        with self._full_precision():
            if torch.is_grad_enabled():
                losses = losses | self._auxiliary_losses(encoded, features, reset)
            policy_parameters, value = self.decide(features, encoded)
        return AgentOutput(policy_parameters, value, state, losses, attention, inputs)

    def _auxiliary_losses(self, encoded: Encoded, features: Tensor, reset: Tensor) -> dict[str, Mean]:
        """The losses that the configuration asks for beside the core's, by name and with their weights."""
        losses: dict[str, Mean] = {}
        if self.prediction is not None:
            error = self.prediction(features, encoded.action, encoded.torso_features, reset)
            losses["prediction"] = Mean(self.config.prediction_cost * error.total, error.count)
        if self.reconstruction is not None:
            inputs = encoded.inputs.flatten(0, 1)
            error = self.reconstruction(inputs, encoded.standardized)
            losses["reconstruction"] = Mean(self.config.reconstruction_cost * error.total, error.count)
        return losses

    def encode(self, observation: Sensed | Observation, last_action: Tensor, last_reward: Tensor) -> Encoded:
        """The inputs of the core, and what they are made of; arguments as in `forward`."""
        sensed, words = self._parts(observation)
        leading = image_of(observation).shape[:2]
        possible = self.possible_actions(sensed)

        # What is read. First, because it waits for the GPU, which has no work yet.
        language: list[Tensor] = []
        if self.instruction is not None and words is not None:
            sentences = words.flatten(0, 1)  # [B T, W]
            read = self.instruction(sentences)
            language.append(read.unflatten(0, leading))

        # What is seen. Torsos know no time.
        standardized = map_sensed(lambda part: part.flatten(0, 1), sensed)
        if self.standardization is not None:
            standardized = self.standardization(standardized)
        torso_features = self.vision(standardized).unflatten(0, leading)

        # The last action and the last reward; under autocast the torso's features may be narrower.
        action = self.distribution.encode(last_action).to(torso_features.dtype)
        clipped_reward = last_reward.clamp(-1, 1)
        reward = clipped_reward[..., None].to(torso_features.dtype)

        # All that is known at each step.
        known = torch.cat([torso_features, action, reward, *language], dim=-1)
        inputs = self.joint(known).to(self.value.weight.dtype)
        return Encoded(inputs, torso_features, action, standardized, possible)

    def possible_actions(self, sensed: Sensed) -> Tensor | None:
        """[..., P] bool: which actions, or values of choices, the mask of an observation without instruction allows.

        All values of a choice where the mask excludes all of them. None if the environment has no mask.
        """
        if self.made_for.mask_at is None:
            return None
        vector = vectors_of(sensed)[-1]
        mask = vector.narrow(-1, self.made_for.mask_at, self.distribution.num_parameters) > 0.5
        return self.distribution.fill_empty(mask)

    def remember(
        self, inputs: Tensor, reset: Tensor, state: State, return_attention: bool = False, **options: Any
    ) -> CoreOutput:
        """What the core makes of inputs [B, T, D], see `Core.forward`; its features as the heads receive them."""
        with self._core_precision():
            output = self.core(inputs, reset, state, return_attention, **options)
        return output._replace(features=output.features.to(inputs.dtype))

    def decide(self, features: Tensor, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """The policy's parameters and the value, from the core's features [B, T, D] and what they were made of."""
        joined = self._joined(features, encoded.inputs)
        value_features = joined
        if self.value_vision is not None:
            own_features = self.value_vision(vectors_of(encoded.standardized)).unflatten(0, features.shape[:2])
            value_features = torch.cat([joined, own_features], dim=-1)
        value = self.value(value_features)
        if self.value.out_features == 1:
            value = value.squeeze(-1)
        return exclude(self.policy(joined), encoded.possible), value

    def act_on(self, features: Tensor, inputs: Tensor, possible: Tensor | None) -> Tensor:
        """The policy's parameters alone, as `forward` computes them."""
        with self._full_precision():
            return exclude(self.policy(self._joined(features, inputs)), possible)

    def picture(self, inputs: Tensor) -> Tensor:
        """The images that the agent predicts from inputs [N, D] of its core; see `Reconstruction.picture`."""
        assert self.reconstruction is not None
        with self._full_precision():
            return self.reconstruction.picture(inputs)

    def _joined(self, features: Tensor, inputs: Tensor) -> Tensor:
        """What the heads receive."""
        return features + inputs if self.config.skip else features

    def _parts(self, observation: Sensed | Observation) -> tuple[Sensed, Tensor | None]:
        """What is seen, and the words of the instruction if there are any.

        Raises:
            ValueError: if there are instructions and the agent expects none, or the other way round.
        """
        if isinstance(observation, Observation):
            if self.instruction is None:
                raise ValueError("observation: expected images without instructions, got Observation")
            return observation.image, observation.instruction
        if self.instruction is not None:
            got = type(observation).__name__
            raise ValueError(f"observation: expected an Observation with instructions, got {got}")
        return observation, None

    def _full_precision(self) -> torch.autocast:
        """Ends autocast."""
        return torch.autocast(self.value.weight.device.type, enabled=False)

    def _core_precision(self) -> torch.autocast:
        """Ends autocast for a core that would not gain from it."""
        # On a CPU, narrow cores lose more by conversions than they gain.
        device = self.value.weight.device.type
        core_gains = device != "cpu" or self.config.core.model_size >= WIDE
        is_mixed = torch.is_autocast_enabled(device)
        return torch.autocast(device, enabled=is_mixed and core_gains)
