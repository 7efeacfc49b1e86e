"""One step of acting as a function of tensors alone, for exchange formats such as ONNX.

An agent's state holds an integer, the offset into the core's segment, and what the core computes depends on it. An
exported graph cannot depend on an integer. So here the state of a core with segments is that at the beginning of the
segment, and the inputs of the segment so far. Each step computes the whole segment again, in which later steps cannot
change earlier ones, and takes the features of its own. This is the core's own code, and exact; the segment costs more
than a single step, but a graph saves most of what Python costs.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from agent.actor_critic import Agent
from agent.core.state import State, fill_state, leaves, map_state, offset_of
from agent.core.transformer import Transformer
from agent.trajectory import Observation, Sensed, sensed_of

SEGMENT = "segment"
"""The field of a transformer's state that holds the segment so far. At its beginning that is nothing, so that it is no
part of the explicit state. What states of other cores hold is not known; all of it is kept."""
INSTRUCTION = "instruction"
"""Name of the part of an observation that has them, which is the last one."""


class StateTensor(NamedTuple):
    """A tensor of the explicit state.

    name: of the step's input; its output is "next_" and this.
    shape: of one row, or () for what all rows share.
    dtype: as torch names it.
    initial: the value of all its elements before the first step.
    meaning: in words.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initial: float
    meaning: str


class ActingStep(nn.Module):
    """Maps the observation's parts, last actions, rewards, resets and a state to what the agent does with them.

    Args:
        agent: it is put into evaluation mode, and no longer encodes equal instructions once.
        num_ids: of an instruction, where the agent reads them; shorter ones end with zeros.

    Attributes:
        observation_names: of the observation's parts, in order.
        state_tensors: what the state is made of, in order.
    """

    def __init__(self, agent: Agent, num_ids: int = 64) -> None:
        super().__init__()
        self.agent = agent.eval()
        self.num_ids = num_ids
        sensed = sensed_of(agent.blank(1))
        self.is_one_part = isinstance(sensed, Tensor)
        self.observation_names = ["observation"]
        if isinstance(sensed, tuple):
            self.observation_names = [f"observation_{index}" for index in range(len(sensed))]
        if agent.instruction is not None:
            agent.instruction.shares = False
            self.observation_names.append(INSTRUCTION)
        self.template = agent.initial_state(1)
        counts_steps = offset_of(self.template) is not None
        self.segment_size = getattr(agent.config.core, "segment_size", 1) if counts_steps else 0
        self.drops_segment = isinstance(agent.core, Transformer)
        self.state_tensors = self._state_tensors()

    def _state_tensors(self) -> list[StateTensor]:
        """What the state is made of: the core's own state and, if the core has segments, that in progress."""
        found: list[StateTensor] = []
        for field, part in zip(self.template._fields, self.template, strict=True):
            if self._is_dropped(field):
                continue
            by_layer = not isinstance(part, Tensor)
            for layer, leaf in enumerate(leaves(part)):
                name = field
                meaning = f"the core's {field.replace('_', ' ')}"
                if by_layer:
                    name += f"_{layer}"
                    meaning += f" of layer {layer}"
                if self.segment_size:
                    meaning += ", before the segment in progress"
                shape = tuple(leaf.shape[1:])
                initial = _number_everywhere(leaf, field)
                found.append(StateTensor(name, shape, _dtype_name(leaf), initial, meaning))

        if self.segment_size:
            inputs = (self.segment_size, self.agent.config.core.model_size)
            resets = (self.segment_size,)
            found += [
                StateTensor("offset", (), "int64", 0.0, "steps so far of the segment in progress, of all rows"),
                StateTensor("inputs", inputs, "float32", 0.0, "the core's inputs at these steps"),
                StateTensor("resets", resets, "bool", 0.0, "which of these steps began an episode"),
            ]
        return found

    def blank(self, rows: int) -> tuple[Tensor, ...]:
        """Parts of an observation of zeros, [rows, ...] each."""
        parts = [part[:, 0] for part in leaves(sensed_of(self.agent.blank(rows)))]
        if self.agent.instruction is not None:
            parts.append(torch.zeros(rows, self.num_ids, dtype=torch.int64))
        return tuple(parts)

    def initial_state(self, rows: int) -> list[Tensor]:
        """The tensors of the state before the first step."""
        tensors = []
        for each in self.state_tensors:
            shape = () if each.name == "offset" else (rows, *each.shape)
            tensors.append(torch.full(shape, each.initial, dtype=getattr(torch, each.dtype)))
        return tensors

    def forward(
        self,
        observation: tuple[Tensor, ...],
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, ...]:
        """One step of B rows.

        Args:
            observation: the parts of `observation_names`, [B, ...] each.
            last_action: [B] int64 or [B, K] float32, as the environment received it; -1 and, in columns of numbers, 0
                at an episode's start.
            last_reward: [B] float32.
            reset: [B] bool, true at an episode's start.
            state: the tensors of `state_tensors`; left out if there are none.

        Returns:
            the policy's parameters [B, P], its most probable action as the environment receives it, the value [B] or
            [B, tasks], and the tensors of the next state.
        """
        agent = self.agent
        # As a sequence of one step.
        encoded = agent.encode(self._observation(observation), last_action[:, None], last_reward[:, None])
        remember = self._within_segment if self.segment_size else self._remember
        features, after = remember(encoded.inputs, reset[:, None], state)
        parameters_by_step, value_by_step = agent.decide(features, encoded)
        parameters = parameters_by_step[:, 0]
        value = value_by_step[:, 0]

        policy = agent.distribution
        most_probable = policy.mode(parameters)
        return parameters, policy.effect(most_probable), value, *after

    def _observation(self, parts: tuple[Tensor, ...]) -> Sensed | Observation:
        """The observation [B, 1, ...] that has the parts [B, ...]."""
        several = [part[:, None] for part in parts]
        words = None
        if self.agent.instruction is not None:
            words = several.pop()
        sensed: Sensed = tuple(several)
        if self.is_one_part:
            (sensed,) = several
        if words is None:
            return sensed
        return Observation(sensed, words)

    def _remember(self, inputs: Tensor, reset: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        """Features [B, 1, D] and the next state, of a core without segments."""
        output = self.agent.core(inputs, reset, self._nested(state))
        return output.features, list(leaves(output.state))

    def _within_segment(self, inputs: Tensor, reset: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        """What `_remember` returns, of a core with segments: all of the segment is computed again."""
        *at_begin, offset, earlier_inputs, earlier_resets = state

        # This step stands in the segment at the offset; what is there after it does not matter.
        here = torch.arange(self.segment_size) == offset  # [n_s]
        segment = torch.where(here[:, None], inputs, earlier_inputs)
        resets = (here & reset) | (~here & earlier_resets)  # not `where`, which runtimes may lack for bool
        output = self.agent.core(segment, resets, self._nested(at_begin))

        # The features of this step: a sum in which all others are 0.
        own_features = torch.where(here[:, None], output.features, 0.0)
        features = own_features.sum(dim=1, keepdim=True)

        # With the segment's last step, the core's state becomes that of the next segment's beginning.
        ended = offset == self.segment_size - 1
        at_end = self._kept(output.state)
        after = [torch.where(ended, new, old) for new, old in zip(at_end, at_begin)]
        next_offset = torch.where(ended, torch.zeros_like(offset), offset + 1)
        return features, [*after, next_offset, segment, resets]

    def _kept(self, state: State) -> list[Tensor]:
        """The tensors of a core's state that are part of the explicit state."""
        kept: list[Tensor] = []
        for field, part in zip(state._fields, state, strict=True):
            if not self._is_dropped(field):
                kept += leaves(part)
        return kept

    def _is_dropped(self, field: str) -> bool:
        """Whether a field of the core's state is no part of the explicit state."""
        return self.drops_segment and field == SEGMENT

    def _nested(self, tensors: tuple[Tensor, ...] | list[Tensor]) -> State:
        """The core's state at the beginning of a segment, in which the segment is empty."""
        if not self.drops_segment:
            return fill_state(self.template, tensors)
        rows = tensors[0].shape[0] if tensors else 1

        def zeros(leaf: Tensor) -> Tensor:
            return leaf.new_zeros(rows, *leaf.shape[1:])

        empty_segment = map_state(zeros, getattr(self.template, SEGMENT))
        without_segment = self.template._replace(**{SEGMENT: ()})
        filled = fill_state(without_segment, tensors)
        return filled._replace(**{SEGMENT: empty_segment})


def _number_everywhere(leaf: Tensor, field: str) -> float:
    """The number that all elements of a tensor have, 0 if it has none. Raises a ValueError if they differ."""
    if leaf.numel() == 0:
        return 0.0
    first = leaf.flatten()[0]
    if not torch.equal(leaf, first.expand_as(leaf)):
        raise ValueError(f"state: expected a field that begins with one number everywhere, got {field}")
    return float(first)


def _dtype_name(tensor: Tensor) -> str:
    """The dtype as torch names it, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")
