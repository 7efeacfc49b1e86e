"""Cores to compare with, behind the same contract: LSTM, GRU, minGRU and a core without memory.

Transformer-XL, gated or not, is `CompressiveTransformer` with `compressed_size = 0`; its configs are in `agent.core`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agent.core.contract import Core, CoreOutput, check_call, finite, mark_broken
from agent.fields import Checked, Layers, Size


@dataclass(frozen=True)
class LSTMConfig(Checked):
    """An LSTM with residual connections between its layers."""

    model_size: Size = 256
    """Features of inputs, outputs and of each layer's state."""
    num_layers: Layers = 1
    """Layers."""


class LSTMState(NamedTuple):
    """hidden, cell: one [B, model_size] tensor a layer."""

    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]


class LSTM(Core):
    """Hochreiter and Schmidhuber's LSTM; resets zero a row's state before the step."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.cells = nn.ModuleList(nn.LSTMCell(config.model_size, config.model_size) for _ in range(config.num_layers))

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros."""
        weight = next(self.parameters())
        zeros = tuple(weight.new_zeros(batch_size, self.config.model_size) for _ in self.cells)
        return LSTMState(zeros, zeros)

    def forward(self, inputs: Tensor, reset: Tensor, state: LSTMState, return_attention: bool = False) -> CoreOutput:
        """See `agent.core.contract.Core`."""
        check_call(inputs, reset, state, self.config.model_size, LSTMState)
        _check_sizes(state.hidden, self.config)
        stream, hidden, cell = finite(inputs), [], []
        keep = (~reset).to(inputs.dtype)[:, :, None].unbind(dim=1)
        for index, layer in enumerate(self.cells):
            h, c, outputs = finite(state.hidden[index]), finite(state.cell[index]), []
            for step, kept in zip(stream.unbind(dim=1), keep):
                h, c = layer(step, (h * kept, c * kept))
                outputs.append(h)
            output = torch.stack(outputs, dim=1)
            stream = output if index == 0 else stream + output
            hidden.append(h)
            cell.append(c)
        return CoreOutput(mark_broken(stream, inputs), LSTMState(tuple(hidden), tuple(cell)), {})


@dataclass(frozen=True)
class GRUConfig(Checked):
    """A GRU with residual connections between its layers."""

    model_size: Size = 256
    """Features of inputs, outputs and of each layer's state."""
    num_layers: Layers = 1
    """Layers."""


class GRUState(NamedTuple):
    """hidden: one [B, model_size] tensor a layer."""

    hidden: tuple[Tensor, ...]


class GRU(Core):
    """The gated recurrent unit of Cho et al. (2014); resets zero a row's state before the step."""

    def __init__(self, config: GRUConfig) -> None:
        super().__init__()
        self.config = config
        self.cells = nn.ModuleList(nn.GRUCell(config.model_size, config.model_size) for _ in range(config.num_layers))

    def initial_state(self, batch_size: int) -> GRUState:
        """Zeros."""
        weight = next(self.parameters())
        return GRUState(tuple(weight.new_zeros(batch_size, self.config.model_size) for _ in self.cells))

    def forward(self, inputs: Tensor, reset: Tensor, state: GRUState, return_attention: bool = False) -> CoreOutput:
        """See `agent.core.contract.Core`."""
        check_call(inputs, reset, state, self.config.model_size, GRUState)
        _check_sizes(state.hidden, self.config)
        stream, hidden = finite(inputs), []
        keep = (~reset).to(inputs.dtype)[:, :, None].unbind(dim=1)
        for index, layer in enumerate(self.cells):
            h, outputs = finite(state.hidden[index]), []
            for step, kept in zip(stream.unbind(dim=1), keep):
                h = layer(step, h * kept)
                outputs.append(h)
            output = torch.stack(outputs, dim=1)
            stream = output if index == 0 else stream + output
            hidden.append(h)
        return CoreOutput(mark_broken(stream, inputs), GRUState(tuple(hidden)), {})


@dataclass(frozen=True)
class MinGRUConfig(Checked):
    """minGRU layers between the transformer's MLP blocks: a recurrence that is computed for all steps at once."""

    model_size: Size = 256
    """Features of inputs, outputs and of each layer's state."""
    num_layers: Layers = 2
    """Layers, each a minGRU and an MLP."""
    mlp_size: Size = 1024
    """Hidden features of each layer's MLP."""


class MinGRU(Core):
    """Feng et al. 2024 (Were RNNs all we needed?), section 3.1: h_t = (1 - z_t) h_(t-1) + z_t h~_t.

    Gate z = sigmoid(W_z x) and candidate h~ = W_h x depend on the input alone, so the recurrence is linear in h. As
    there, an MLP follows each recurrence; norms are at the inputs of both.
    """

    def __init__(self, config: MinGRUConfig) -> None:
        super().__init__()
        self.config, size = config, config.model_size
        self.recurrences = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size)) for _ in range(config.num_layers)
        )
        self.blocks = nn.ModuleList(_mlp_block(size, config.mlp_size) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(size)

    def initial_state(self, batch_size: int) -> GRUState:
        """Zeros."""
        weight = next(self.parameters())
        return GRUState(tuple(weight.new_zeros(batch_size, self.config.model_size) for _ in self.blocks))

    def forward(self, inputs: Tensor, reset: Tensor, state: GRUState, return_attention: bool = False) -> CoreOutput:
        """See `agent.core.contract.Core`."""
        check_call(inputs, reset, state, self.config.model_size, GRUState)
        _check_sizes(state.hidden, self.config)
        stream, hidden = finite(inputs), []
        for recurrence, block, before in zip(self.recurrences, self.blocks, state.hidden):
            gate, candidate = recurrence(stream).to(before.dtype).chunk(2, dim=-1)
            update = gate.sigmoid()
            h = linear_recurrence((1 - update) * ~reset[:, :, None], update * candidate, finite(before))
            stream = stream + h
            stream = stream + block(stream)
            # Contiguous: a view would keep all steps in memory.
            hidden.append(h[:, -1].contiguous())
        return CoreOutput(mark_broken(self.final_norm(stream), inputs), GRUState(tuple(hidden)), {})


def _check_sizes(hidden: tuple[Tensor, ...], config: LSTMConfig | GRUConfig | MinGRUConfig) -> None:
    """A state that has layers too many or too few would not always be noticed."""
    expected, sizes = [config.model_size] * config.num_layers, [layer.shape[1] for layer in hidden]
    if sizes != expected:
        raise ValueError(f"state: expected features by layer {expected}, got {sizes}")


def linear_recurrence(decay: Tensor, inputs: Tensor, before: Tensor) -> Tensor:
    """All h_t = decay_t h_(t-1) + inputs_t, given h before the first step [B, D]; all others [B, T, D].

    A scan by doubling: after round k, (a_t, b_t) is the composition of the 2^k steps that end at t, so log2 T rounds of
    operations over all steps suffice. A decay of 0 (a reset) forgets exactly.
    """
    a = decay
    b = torch.cat([inputs[:, :1] + decay[:, :1] * before[:, None], inputs[:, 1:]], dim=1)
    span = 1
    while span < inputs.shape[1]:
        b = torch.cat([b[:, :span], b[:, span:] + a[:, span:] * b[:, :-span]], dim=1)
        a = torch.cat([a[:, :span], a[:, span:] * a[:, :-span]], dim=1)
        span *= 2
    return b


def _mlp_block(model_size: int, mlp_size: int) -> nn.Sequential:
    """The transformer's MLP sub-layer with its norm at the input, less the residual sum."""
    return nn.Sequential(
        nn.LayerNorm(model_size), nn.Linear(model_size, mlp_size), nn.ReLU(), nn.Linear(mlp_size, model_size)
    )


@dataclass(frozen=True)
class MemorylessConfig(Checked):
    """A residual MLP that sees one step at a time."""

    model_size: Size = 256
    """Features of inputs and outputs."""
    num_layers: Layers = 2
    """Residual blocks."""
    mlp_size: Size = 1024
    """Hidden features of each block."""


class MemorylessState(NamedTuple):
    """Nothing."""


class Memoryless(Core):
    """The same MLP blocks as the transformer's (pre-norm), without attention: what can be done without memory."""

    def __init__(self, config: MemorylessConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(_mlp_block(config.model_size, config.mlp_size) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.model_size)

    def initial_state(self, batch_size: int) -> MemorylessState:
        """Nothing, for any batch."""
        return MemorylessState()

    def forward(
        self, inputs: Tensor, reset: Tensor, state: MemorylessState, return_attention: bool = False
    ) -> CoreOutput:
        """See `agent.core.contract.Core`."""
        check_call(inputs, reset, state, self.config.model_size, MemorylessState)
        stream = finite(inputs)
        for block in self.blocks:
            stream = stream + block(stream)
        return CoreOutput(mark_broken(self.final_norm(stream), inputs), state, {})
