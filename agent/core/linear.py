"""Cores whose recurrence is linear in their state: many steps of a call are computed at once.

Both have a state of fixed size. The LRU forgets at rates that it has learned, each feature of its state at its own. The
gated DeltaNet keeps a matrix of associations for each head, in which writing a key replaces what was stored with it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import DeltaNetConfig, LRUConfig
from .contract import CoreOutput, finite, full_precision, mark_broken
from .recurrent import Recurrent, linear_recurrence, mlp_blocks


class LRUState(NamedTuple):
    """real, imaginary: one [B, model_size] tensor for each layer."""

    real: tuple[Tensor, ...]
    imaginary: tuple[Tensor, ...]


class DeltaNetState(NamedTuple):
    """associations: one [B, model_size^2 / num_heads] tensor for each layer, the matrices of its heads."""

    associations: tuple[Tensor, ...]


class LRULayer(nn.Module):
    """The linear recurrent unit of Orvieto et al. 2023 (arXiv:2303.06349), section 3.

    x_t = lambda x_(t-1) + gamma B u_t and y_t = Re(C x_t) + d u_t, with a complex diagonal lambda inside the unit
    circle.

    Args:
        size: features of u, x and y.
        least, most: between which the absolute values of lambda begin.
    """

    def __init__(self, size: int, least: float, most: float) -> None:
        super().__init__()
        # Uniform in the area of the ring, as in the paper, and any angle up to a tenth of a turn.
        squares = least**2 + torch.rand(size) * (most**2 - least**2)
        self.log_rate = nn.Parameter(torch.log(-0.5 * torch.log(squares)))
        self.log_angle = nn.Parameter(torch.log(0.2 * math.pi * torch.rand(size).clamp(min=1e-3)))
        # Real and imaginary parts beside each other.
        self.write = nn.Linear(size, 2 * size, bias=False)
        self.read = nn.Linear(2 * size, size, bias=False)
        self.direct = nn.Parameter(torch.randn(size))

    def forward(self, inputs: Tensor, keep: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The y and x of all steps.

        Args:
            inputs: [B, T, D].
            keep: [B, T, 1], 0 where a row's state is forgotten before the step, else 1.
            before: [B, D] complex, x before the first step.
        """
        rate, real, imaginary = self._written(inputs)
        decay = torch.polar(torch.exp(-rate), torch.exp(self.log_angle))
        states = linear_recurrence(decay * keep, torch.complex(real, imaginary), before)
        return self._read(inputs, states.real, states.imag), states

    def step(self, inputs: Tensor, keep: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The y, and the real and imaginary parts of x, of one step; [B, 1, D] each, `real` and `imaginary` [B, D].

        In real numbers, which a single step computes sooner, and exchange formats know.
        """
        rate, write_real, write_imaginary = self._written(inputs)
        size, angle = torch.exp(-rate), torch.exp(self.log_angle)
        cos, sin = size * torch.cos(angle), size * torch.sin(angle)
        real, imaginary = keep * real[:, None], keep * imaginary[:, None]
        after_real = write_real + cos * real - sin * imaginary
        after_imaginary = write_imaginary + cos * imaginary + sin * real
        return self._read(inputs, after_real, after_imaginary), after_real, after_imaginary

    def _written(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rate of forgetting [D], and the real and imaginary parts of gamma B u [B, T, D]."""
        rate = torch.exp(self.log_rate)
        # The root of 1 - |lambda|^2, which would be rounded to 0 where |lambda| is near 1.
        gamma = torch.sqrt(-torch.expm1(-2.0 * rate))
        # Under autocast the projection may be narrower than the state.
        real, imaginary = self.write(inputs).to(gamma.dtype).chunk(2, dim=-1)
        return rate, gamma * real, gamma * imaginary

    def _read(self, inputs: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
        read = self.read(torch.cat([real, imaginary], dim=-1))
        return read + self.direct * inputs


class LRU(Recurrent[LRUState]):
    """Layers of `LRULayer`s, each followed by an MLP; norms are at the inputs of both."""

    state_type = LRUState

    def __init__(self, config: LRUConfig) -> None:
        super().__init__()
        self.config = config
        size = config.model_size
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(config.num_layers))
        self.recurrences = nn.ModuleList(
            LRULayer(size, config.least_decay, config.most_decay) for _ in range(config.num_layers)
        )
        self.gates = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(config.num_layers))
        self.blocks = mlp_blocks(config)
        self.final_norm = nn.LayerNorm(size)

    def forward(self, inputs: Tensor, reset: Tensor, state: LRUState, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        keep = (~reset).to(stream.dtype)[:, :, None]
        real, imaginary = [], []
        layers = zip(self.norms, self.recurrences, self.gates, self.blocks, state.real, state.imaginary)
        for norm, recurrence, gate, block, real_before, imaginary_before in layers:
            before = finite(real_before), finite(imaginary_before)
            if inputs.shape[1] == 1:  # acting
                output, after_real, after_imaginary = recurrence.step(norm(stream), keep, *before)
                real.append(after_real[:, 0])
                imaginary.append(after_imaginary[:, 0])
            else:
                output, states = recurrence(norm(stream), keep, torch.complex(*before))
                # Views would keep all steps in memory.
                real.append(states.real[:, -1].contiguous())
                imaginary.append(states.imag[:, -1].contiguous())

            # The paper's blocks end with a GLU.
            stream = stream + F.glu(gate(F.gelu(output)), dim=-1)
            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        return CoreOutput(features, LRUState(tuple(real), tuple(imaginary)), losses={})


class DeltaNetLayer(nn.Module):
    """The gated delta rule of Yang et al. 2024 (arXiv:2412.06464) for H heads, without their short convolutions.

    S_t = a_t S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T and o_t = S_t q_t: before a value is stored with a key, b_t of
    what was stored with this key is taken away, and a_t of everything is kept. Keys and queries have length 1.

    Args:
        size: features of inputs and outputs.
        heads: H, a divisor of size.
    """

    chunk = 32
    """Steps that are computed at once."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_size = size // heads
        self.project = nn.Linear(size, 4 * size, bias=False)  # queries, keys, values, and the gate of the output
        self.rates = nn.Linear(size, 2 * heads)  # of forgetting and of writing
        # torch's own epsilon, 1e-7, would let rounding of 1e-7 become 3e-4 where little is read.
        self.norm = nn.RMSNorm(self.head_size, eps=1e-5)
        self.output = nn.Linear(size, size, bias=False)
        # The heads begin to forget at rates from 1/1000 to 1/10 a step.
        begin = torch.exp(torch.linspace(math.log(1e-3), math.log(1e-1), heads))
        with torch.no_grad():
            self.rates.weight[:heads] *= 0.1
            self.rates.bias[:heads] = torch.log(torch.expm1(begin))

    def forward(self, inputs: Tensor, reset: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs [B, T, D], and S after the last step.

        Args:
            inputs: [B, T, D].
            reset: [B, T], true where a row's state is forgotten before the step.
            before: [B, H, d, d], S of values by keys before the first step.
        """

        def by_head(part: Tensor) -> Tensor:
            """[B, T, H x n] to [B, H, T, n]."""
            return part.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        # In float32, also under autocast: errors of what is stored would add up.
        with full_precision(inputs):
            exact = inputs.to(before.dtype)
            *projected, gate = self.project(exact).chunk(4, dim=-1)
            query, key, value = (F.silu(by_head(part)) for part in projected)
            query, key = (F.normalize(part, dim=-1, eps=1e-6) for part in (query, key))
            forget, write = self.rates(exact).chunk(2, dim=-1)
            log_kept = -F.softplus(by_head(forget)).squeeze(-1)  # [B, H, T]
            written = torch.sigmoid(by_head(write)).squeeze(-1)

            outputs = []
            for begin in range(0, inputs.shape[1], self.chunk):
                steps = slice(begin, begin + self.chunk)
                q, k, v = (part[:, :, steps] for part in (query, key, value))
                rates = log_kept[..., steps], written[..., steps]
                several = q.shape[2] > 1
                compute = self._chunk if several else self._step
                read, before = compute(q, k, v, *rates, reset[:, steps], before)
                outputs.append(read)
            read = torch.cat(outputs, dim=2)
        joined = self.norm(read).transpose(1, 2).flatten(2)
        return self.output(joined * F.silu(gate)), before

    @staticmethod
    def _step(
        query: Tensor, key: Tensor, value: Tensor, log_kept: Tensor, written: Tensor, reset: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `_chunk` computes, for one step: the rule as it stands in `DeltaNetLayer`. Acting takes single steps."""
        kept = log_kept.exp() * ~reset[:, None]
        decayed = kept[..., None] * before
        stored = key @ decayed.transpose(-1, -2)
        new = written[..., None] * (value - stored)
        after = decayed + new.transpose(-1, -2) @ key
        return query @ after.transpose(-1, -2), after

    @staticmethod
    def _chunk(
        query: Tensor, key: Tensor, value: Tensor, log_kept: Tensor, written: Tensor, reset: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """C steps at once: [B, H, C, d] of queries, keys and values, [B, H, C] of rates, [B, C] of resets.

        With u_t = b_t (v_t - a_t S_(t-1) k_t), what is written at step t, S_t is the sum of all u_i k_i^T up to t and
        of what was before, each times what was kept of it since. So the u_t solve a triangular system.
        """
        # What is kept at step t of what was written at step i, and of what was before; nothing across a reset.
        episode = reset.cumsum(dim=1)
        same = (episode[:, :, None] == episode[:, None, :]).tril()[:, None]
        # Sums of those steps only, not differences of sums from the start: no gradient crosses a reset.
        between = log_kept[..., :, None].masked_fill(~same.tril(-1), 0.0).cumsum(dim=-2)
        since = between.exp() * same
        first = (episode == 0)[:, None]
        from_before = log_kept.masked_fill(~first, 0.0).cumsum(dim=-1).exp() * first

        # Solve for what is written.
        overlap = key @ key.transpose(-1, -2)
        system = (written[..., None] * since * overlap).tril(-1)
        stored = from_before[..., None] * (key @ before.transpose(-1, -2))
        wanted = written[..., None] * (value - stored)
        new = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)

        # What the queries read, and what remains.
        read = from_before[..., None] * (query @ before.transpose(-1, -2))
        read = read + (since * (query @ key.transpose(-1, -2))) @ new
        kept = since[..., -1, :, None] * key
        after = from_before[..., -1, None, None] * before + new.transpose(-1, -2) @ kept
        return read, after


class DeltaNet(Recurrent[DeltaNetState]):
    """Layers of `DeltaNetLayer`s, each followed by an MLP; norms are at the inputs of both."""

    state_type = DeltaNetState

    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        size = config.model_size
        self.heads = config.num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(config.num_layers))
        self.recurrences = nn.ModuleList(DeltaNetLayer(size, config.num_heads) for _ in range(config.num_layers))
        self.blocks = mlp_blocks(config)
        self.final_norm = nn.LayerNorm(size)

    @property
    def state_size(self) -> int:
        """Elements of a layer's matrices."""
        return self.config.model_size**2 // self.heads

    def forward(
        self, inputs: Tensor, reset: Tensor, state: DeltaNetState, return_attention: bool = False
    ) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        size = self.config.model_size // self.heads
        after = []
        layers = zip(self.norms, self.recurrences, self.blocks, state.associations)
        for norm, recurrence, block, flat in layers:
            before = finite(flat).view(-1, self.heads, size, size)
            output, last = recurrence(norm(stream), reset, before)
            after.append(last.flatten(1))
            stream = stream + output
            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        return CoreOutput(features, DeltaNetState(tuple(after)), losses={})
