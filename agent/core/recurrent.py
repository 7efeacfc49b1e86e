"""Baseline cores behind the same contract: LSTM, GRU, minGRU and a core without memory."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import BlocksConfig, LSTMConfig, MemorylessConfig, MinGRUConfig
from .contract import Core, CoreOutput, check_call, finite, mark_broken


class LSTMState(NamedTuple):
    """hidden, cell: one [B, model_size] tensor for each layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class GRUState(NamedTuple):
    """hidden: one [B, model_size] tensor for each layer."""

    hidden: tuple[Tensor, ...]


class MemorylessState(NamedTuple):
    """Empty."""


StateT = TypeVar("StateT", bound=tuple[tuple[Tensor, ...], ...])


class Recurrent(Core, Generic[StateT]):
    """A core whose state has, for each field, one [B, state_size] tensor per layer: zeros at an episode start."""

    state_type: ClassVar[Any]
    """The NamedTuple of the core's states."""
    config: LSTMConfig | BlocksConfig
    needs_float32: ClassVar[bool] = False
    """Whether a step may forget less than the digits of a narrower number can show."""

    @property
    def state_size(self) -> int:
        """Features of a layer's state, in each field."""
        return self.config.model_size

    def initial_state(self, batch_size: int) -> StateT:
        """Zeros."""
        weight = next(self.parameters())
        size = self.state_size
        layers = range(self.config.num_layers)
        zeros = tuple(weight.new_zeros(batch_size, size) for _ in layers)
        # A call changes no state, so the fields may share the zeros.
        fields = dict.fromkeys(self.state_type._fields, zeros)
        return self.state_type(**fields)

    def check(self, inputs: Tensor, reset: Tensor, state: StateT) -> None:
        """Checks the arguments of a call and the sizes of the state; raises ValueError."""
        check_call(inputs, reset, state, self.config.model_size, self.state_type)
        expected = [self.state_size] * self.config.num_layers
        for field in state:
            sizes = [layer.shape[1] for layer in field]
            if sizes != expected:
                raise ValueError(f"state: expected features by layer {expected}, got {sizes}")
        if self.needs_float32 and inputs.dtype == next(self.parameters()).dtype and inputs.element_size() < 4:
            name = type(self).__name__
            raise ValueError(
                f"{name}: expected parameters of float32 or wider (autocast may narrow the rest), got {inputs.dtype}"
            )


class StepByStep(Recurrent[StateT]):
    """Layers of cells that are computed one step after the other, with residual connections between the layers."""

    config: LSTMConfig
    cells: Sequence[nn.LSTMCell | nn.GRUCell]  # they hold the weights

    def __init__(self, config: LSTMConfig, cell_type: type[nn.LSTMCell] | type[nn.GRUCell]) -> None:
        super().__init__()
        self.config = config
        size = config.model_size
        cells = nn.ModuleList(cell_type(size, size) for _ in range(config.num_layers))
        self.cells = cells  # type: ignore[assignment]
        # In the order of both of torch's cells, the second gate is the one that keeps.
        for cell in self.cells:
            cell.bias_ih.data[size : 2 * size] += config.keep_bias

    def step(self, cell: nn.LSTMCell | nn.GRUCell, projected: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """One step of one layer.

        Args:
            projected: [B, 4 D or 3 D], the projected input of the step.
            before: the fields of the layer's state before the step, [B, D] each.

        Returns:
            the fields after the step; the first is the output.
        """
        raise NotImplementedError

    def forward(self, inputs: Tensor, reset: Tensor, state: StateT, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        keep = (~reset).to(inputs.dtype)  # 0 where a row's state is forgotten
        keep_by_step = keep[:, :, None].unbind(dim=1)  # [B, 1] each
        stream = finite(inputs)
        after = []
        for index, cell in enumerate(self.cells):
            before = [field[index] for field in state]
            layer_state = [finite(part) for part in before]

            # What depends on the inputs alone, of all steps at once.
            projected = F.linear(stream, cell.weight_ih, cell.bias_ih)
            projected_by_step = projected.unbind(dim=1)

            # The steps of this layer.
            outputs = []
            for step, keep_step in zip(projected_by_step, keep_by_step):
                kept = [part * keep_step for part in layer_state]
                layer_state = self.step(cell, step, kept)
                outputs.append(layer_state[0])
            after.append(layer_state)

            # The first layer has no residual connection.
            output = torch.stack(outputs, dim=1)
            stream = output if index == 0 else stream + output

        # From the fields of each layer to the layers of each field.
        fields = {}
        for number, name in enumerate(self.state_type._fields):
            fields[name] = tuple(layer_state[number] for layer_state in after)
        next_state = self.state_type(**fields)
        features = mark_broken(stream, inputs)
        return CoreOutput(features, next_state, losses={})


class LSTM(StepByStep[LSTMState]):
    """Hochreiter and Schmidhuber's LSTM."""

    state_type = LSTMState

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config, nn.LSTMCell)

    def step(self, cell: nn.LSTMCell | nn.GRUCell, projected: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """See `StepByStep`; the fields are the hidden state and the cell."""
        hidden, memory = before
        projected_hidden = F.linear(hidden, cell.weight_hh, cell.bias_hh)
        gates = projected + projected_hidden  # [B, 4 D], in torch's order
        write, keep, candidate, read = gates.chunk(4, dim=-1)

        # What is kept, what is written, and what is read of both.
        kept = keep.sigmoid() * memory
        written = write.sigmoid() * candidate.tanh()
        memory = kept + written
        hidden = read.sigmoid() * memory.tanh()
        return [hidden, memory]


class GRU(StepByStep[GRUState]):
    """The gated recurrent unit of Cho et al. (2014)."""

    state_type = GRUState

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config, nn.GRUCell)

    def step(self, cell: nn.LSTMCell | nn.GRUCell, projected: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """See `StepByStep`; the only field is the hidden state."""
        (hidden,) = before
        projected_hidden = F.linear(hidden, cell.weight_hh, cell.bias_hh)  # [B, 3 D], in torch's order
        reset_h, keep_h, candidate_h = projected_hidden.chunk(3, dim=-1)
        reset_x, keep_x, candidate_x = projected.chunk(3, dim=-1)

        reset = torch.sigmoid(reset_h + reset_x)
        keep = torch.sigmoid(keep_h + keep_x)
        candidate = torch.tanh(candidate_x + reset * candidate_h)
        # Not torch.lerp: under autocast the candidate may be narrower.
        difference = hidden - candidate
        mixed = candidate + keep * difference
        return [mixed]


class MinGRU(Recurrent[GRUState]):
    """Feng et al. 2024 (Were RNNs all we needed?), section 3.1: h_t = (1 - z_t) h_(t-1) + z_t h~_t.

    Gate z = sigmoid(W_z x) and candidate h~ = W_h x depend on the input alone, so the recurrence is linear in h. As
    there, an MLP follows each recurrence; norms are at the inputs of both.
    """

    state_type = GRUState

    def __init__(self, config: MinGRUConfig) -> None:
        super().__init__()
        self.config = config
        size = config.model_size
        self.recurrences = nn.ModuleList()
        for _ in range(config.num_layers):
            norm = nn.LayerNorm(size)
            gate_and_candidate = nn.Linear(size, 2 * size)
            gate_and_candidate.bias.data[:size] -= config.keep_bias  # this gate writes
            self.recurrences.append(nn.Sequential(norm, gate_and_candidate))
        self.blocks = mlp_blocks(config)
        self.final_norm = nn.LayerNorm(size)

    def forward(self, inputs: Tensor, reset: Tensor, state: GRUState, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        after = []
        layers = zip(self.recurrences, self.blocks, state.hidden)
        for recurrence, block, before in layers:
            # Gate and candidate of all steps at once. Under autocast they may be narrower than the state.
            projected = recurrence(stream).to(before.dtype)  # [B, T, 2 D]
            gate, candidate = projected.chunk(2, dim=-1)
            update = gate.sigmoid()

            # A reset forgets: its decay is 0.
            keep = ~reset[:, :, None]
            decay = (1 - update) * keep
            written = update * candidate
            hidden = linear_recurrence(decay, written, finite(before))
            stream = stream + hidden
            last = hidden[:, -1].contiguous()  # a view would keep all steps in memory
            after.append(last)

            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        return CoreOutput(features, GRUState(tuple(after)), losses={})


def linear_recurrence(decay: Tensor, inputs: Tensor, before: Tensor) -> Tensor:
    """All h_t = decay_t h_(t-1) + inputs_t, given h before the first step [B, D]; all others are [B, T, D], or complex.

    A chunked scan: about sqrt(T) chunks are scanned side by side from a state of zeros, and then the states at their
    beginnings are chained. So there are about 3 sqrt(T) small operations. A decay of 0 (a reset) forgets exactly.
    """
    num_steps = inputs.shape[1]
    if num_steps == 1:  # acting
        return torch.addcmul(inputs, decay, before[:, None])

    # Chunks of equal length. What the last one lacks is filled with zeros.
    length = max(1, math.isqrt(num_steps))
    num_chunks = -(-num_steps // length)  # rounded up
    missing = num_chunks * length - num_steps
    if missing:
        decay = F.pad(decay, (0, 0, 0, missing))
        inputs = F.pad(inputs, (0, 0, 0, missing))
    decays = decay.unflatten(1, (num_chunks, length)).unbind(2)  # of each step of all chunks, [B, chunks, D]
    writes = inputs.unflatten(1, (num_chunks, length)).unbind(2)

    # Each chunk from a state of zeros, and the product of its decays up to each step.
    hidden = writes[0]
    kept = decays[0]
    from_zeros = [hidden]
    cumulative_decays = [kept]
    for step_decay, write in zip(decays[1:], writes[1:]):
        hidden = torch.addcmul(write, step_decay, hidden)
        kept = kept * step_decay
        from_zeros.append(hidden)
        cumulative_decays.append(kept)

    # The state at the beginning of each chunk.
    state = before
    states = []
    for chunk_decay, chunk_end in zip(kept.unbind(1), hidden.unbind(1)):
        states.append(state)
        state = torch.addcmul(chunk_end, chunk_decay, state)
    begin = torch.stack(states, dim=1)

    # The two together, back in the order of the steps.
    steps = [torch.addcmul(own, decayed, begin) for own, decayed in zip(from_zeros, cumulative_decays)]
    by_chunk = torch.stack(steps, dim=2)  # [B, chunks, length, D]
    return by_chunk.flatten(1, 2)[:, :num_steps]


def mlp_blocks(config: BlocksConfig) -> nn.ModuleList:
    """The transformer's pre-norm MLP sub-layers without the residual sum."""
    size = config.model_size
    blocks = nn.ModuleList()
    for _ in range(config.num_layers):
        block = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, config.mlp_size),
            nn.ReLU(),
            nn.Linear(config.mlp_size, size),
        )
        blocks.append(block)
    return blocks


class Memoryless(Recurrent[MemorylessState]):
    """The same MLP blocks as the transformer's (pre-norm) without attention: a baseline without memory."""

    state_type = MemorylessState

    def __init__(self, config: MemorylessConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = mlp_blocks(config)
        self.final_norm = nn.LayerNorm(config.model_size)

    def forward(
        self, inputs: Tensor, reset: Tensor, state: MemorylessState, return_attention: bool = False
    ) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        for block in self.blocks:
            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        return CoreOutput(features, state, losses={})
