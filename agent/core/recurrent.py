"""Baseline cores behind the same contract: LSTM, GRU, minGRU and a core without memory."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import LSTMConfig, MemorylessConfig, MinGRUConfig
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


class Recurrent(Core):
    """A core whose state has, for each field, one [B, model_size] tensor per layer: zeros at an episode start."""

    config: Any
    state_type: ClassVar[Any]

    def initial_state(self, batch_size: int) -> Any:
        """Zeros."""
        weight = next(self.parameters())
        zeros = tuple(weight.new_zeros(batch_size, self.config.model_size) for _ in range(self.config.num_layers))
        return self.state_type(*[zeros] * len(self.state_type._fields))

    def check(self, inputs: Tensor, reset: Tensor, state: Any) -> None:
        """Checks the arguments of a call and the sizes of the state; raises ValueError."""
        check_call(inputs, reset, state, self.config.model_size, self.state_type)
        expected = [self.config.model_size] * self.config.num_layers
        for sizes in ([layer.shape[1] for layer in part] for part in state):
            if sizes != expected:
                raise ValueError(f"state: expected features by layer {expected}, got {sizes}")


class LSTM(Recurrent):
    """Hochreiter and Schmidhuber's LSTM, one step after the other."""

    state_type: ClassVar[Any] = LSTMState
    cell_type: ClassVar[Any] = nn.LSTMCell

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config, size = config, config.model_size
        self.cells = nn.ModuleList(self.cell_type(size, size) for _ in range(config.num_layers))

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream, after = finite(inputs), []
        keep = (~reset).to(inputs.dtype)[:, :, None].unbind(dim=1)
        for index, (cell, *parts) in enumerate(zip(self.cells, *state)):
            outputs, parts = [], [finite(part) for part in parts]
            projected = F.linear(stream, cell.weight_ih, cell.bias_ih)  # of all steps at once
            for step, kept in zip(projected.unbind(dim=1), keep):
                parts = self._step(cell, step, [part * kept for part in parts])
                outputs.append(parts[0])
            output = torch.stack(outputs, dim=1)
            stream = output if index == 0 else stream + output
            after.append(parts)
        return CoreOutput(mark_broken(stream, inputs), self.state_type(*map(tuple, zip(*after))), {})

    def _step(self, cell: Any, step: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """The state [B, D] after a step, given the step's projected input [B, 4 D or 3 D] and the state before."""
        before, kept = parts
        gates = step + F.linear(before, cell.weight_hh, cell.bias_hh)
        write, keep, candidate, read = gates.chunk(4, dim=-1)
        kept = keep.sigmoid() * kept + write.sigmoid() * candidate.tanh()
        return [read.sigmoid() * kept.tanh(), kept]


class GRU(LSTM):
    """The gated recurrent unit of Cho et al. (2014), one step after the other."""

    state_type = GRUState
    cell_type = nn.GRUCell

    def _step(self, cell: Any, step: Tensor, parts: list[Tensor]) -> list[Tensor]:
        (before,) = parts
        ours, given = F.linear(before, cell.weight_hh, cell.bias_hh).chunk(3, dim=-1), step.chunk(3, dim=-1)
        reset, keep = ((mine + new).sigmoid() for mine, new in zip(ours[:2], given[:2]))
        candidate = (given[2] + reset * ours[2]).tanh()
        return [candidate + keep * (before - candidate)]  # not torch.lerp: autocast makes the candidate narrower


class MinGRU(Recurrent):
    """Feng et al. 2024 (Were RNNs all we needed?), section 3.1: h_t = (1 - z_t) h_(t-1) + z_t h~_t.

    Gate z = sigmoid(W_z x) and candidate h~ = W_h x depend on the input alone, so the recurrence is linear in h. As
    there, an MLP follows each recurrence; norms are at the inputs of both.
    """

    state_type = GRUState

    def __init__(self, config: MinGRUConfig) -> None:
        super().__init__()
        self.config, size, layers = config, config.model_size, range(config.num_layers)
        self.recurrences = nn.ModuleList(nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size)) for _ in layers)
        self.blocks = _mlp_blocks(config)
        self.final_norm = nn.LayerNorm(size)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
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


def _mlp_blocks(config: MemorylessConfig) -> nn.ModuleList:
    """The transformer's pre-norm MLP sub-layers without the residual sum."""
    size, hidden = config.model_size, config.mlp_size
    return nn.ModuleList(
        nn.Sequential(nn.LayerNorm(size), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size))
        for _ in range(config.num_layers)
    )


class Memoryless(Recurrent):
    """The same MLP blocks as the transformer's (pre-norm) without attention: a baseline without memory."""

    state_type = MemorylessState

    def __init__(self, config: MemorylessConfig) -> None:
        super().__init__()
        self.config, self.blocks = config, _mlp_blocks(config)
        self.final_norm = nn.LayerNorm(config.model_size)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        for block in self.blocks:
            stream = stream + block(stream)
        return CoreOutput(mark_broken(self.final_norm(stream), inputs), state, {})
