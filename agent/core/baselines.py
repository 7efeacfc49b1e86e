"""Cores to compare with, behind the same contract: an LSTM and a core without memory.

Transformer-XL is `CompressiveTransformer` with `compressed_size = 0` and has its own config there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agent.core.contract import Core, CoreOutput, check_call, check_positive


@dataclass(frozen=True)
class LSTMConfig:
    """An LSTM with residual connections between its layers."""

    model_size: int = 256
    """Features of inputs, outputs and of each layer's state."""
    num_layers: int = 1
    """Layers."""

    def __post_init__(self) -> None:
        check_positive(self, "model_size", "num_layers")


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
        check_call(inputs, reset, state, self.config.model_size)
        stream, hidden, cell = inputs, [], []
        keep = (~reset).to(inputs.dtype)[:, :, None].unbind(dim=1)
        for index, layer in enumerate(self.cells):
            h, c, outputs = state.hidden[index], state.cell[index], []
            for step, kept in zip(stream.unbind(dim=1), keep):
                h, c = layer(step, (h * kept, c * kept))
                outputs.append(h)
            output = torch.stack(outputs, dim=1)
            stream = output if index == 0 else stream + output
            hidden.append(h)
            cell.append(c)
        return CoreOutput(stream, LSTMState(tuple(hidden), tuple(cell)), {})


@dataclass(frozen=True)
class MemorylessConfig:
    """A residual MLP that sees one step at a time."""

    model_size: int = 256
    """Features of inputs and outputs."""
    num_layers: int = 2
    """Residual blocks."""
    mlp_size: int = 1024
    """Hidden features of each block."""

    def __post_init__(self) -> None:
        check_positive(self, "model_size", "num_layers", "mlp_size")


class MemorylessState(NamedTuple):
    """Nothing."""


class Memoryless(Core):
    """The same MLP blocks as the transformer's (pre-norm), without attention: what can be done without memory."""

    def __init__(self, config: MemorylessConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(config.model_size),
                nn.Linear(config.model_size, config.mlp_size),
                nn.ReLU(),
                nn.Linear(config.mlp_size, config.model_size),
            )
            for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(config.model_size)

    def initial_state(self, batch_size: int) -> MemorylessState:
        """Nothing, for any batch."""
        return MemorylessState()

    def forward(
        self, inputs: Tensor, reset: Tensor, state: MemorylessState, return_attention: bool = False
    ) -> CoreOutput:
        """See `agent.core.contract.Core`."""
        check_call(inputs, reset, state, self.config.model_size)
        stream = inputs
        for block in self.blocks:
            stream = stream + block(stream)
        return CoreOutput(self.final_norm(stream), state, {})
