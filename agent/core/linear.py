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
        # lambda has the absolute value exp(-exp(log_rate)), which is below 1 whatever is learned, and the angle
        # exp(log_angle). It begins uniform in the area of the ring, as in the paper.
        squares = least**2 + torch.rand(size) * (most**2 - least**2)
        rates = -0.5 * torch.log(squares)
        self.log_rate = nn.Parameter(torch.log(rates))

        # Any angle up to a tenth of a turn.
        shares = torch.rand(size).clamp(min=1e-3)
        angles = 0.2 * math.pi * shares
        self.log_angle = nn.Parameter(torch.log(angles))

        # B, C and d of the formulas. Real and imaginary parts are beside each other.
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
        rate, write_real, write_imaginary = self._written(inputs)
        decay_real, decay_imaginary = complex_decay(rate, torch.exp(self.log_angle))
        decay = torch.complex(decay_real, decay_imaginary)  # lambda
        written = torch.complex(write_real, write_imaginary)
        states = linear_recurrence(decay * keep, written, before)
        return self._read(inputs, states.real, states.imag), states

    def step(
        self, inputs: Tensor, keep: Tensor, before_real: Tensor, before_imaginary: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` computes, for one step in real numbers: these are faster here, and exchange formats know them.

        Args:
            inputs: [B, 1, D].
            keep: [B, 1, 1], as in `forward`.
            before_real, before_imaginary: [B, D], the parts of x before the step.

        Returns:
            y, and the real and the imaginary part of x, [B, 1, D] each.
        """
        rate, write_real, write_imaginary = self._written(inputs)
        decay_real, decay_imaginary = complex_decay(rate, torch.exp(self.log_angle))

        # What is not forgotten, times lambda: a product of complex numbers by parts.
        kept_real = keep * before_real[:, None]
        kept_imaginary = keep * before_imaginary[:, None]
        after_real = write_real + decay_real * kept_real - decay_imaginary * kept_imaginary
        after_imaginary = write_imaginary + decay_real * kept_imaginary + decay_imaginary * kept_real
        return self._read(inputs, after_real, after_imaginary), after_real, after_imaginary

    def _written(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rate of forgetting [D], and the real and imaginary parts of gamma B u [B, T, D]."""
        rate = torch.exp(self.log_rate)
        # The root of 1 - |lambda|^2, which would be rounded to 0 where |lambda| is near 1.
        gamma = torch.sqrt(-torch.expm1(-2.0 * rate))
        # Under autocast the projection may be narrower than the state.
        projected = self.write(inputs).to(gamma.dtype)
        real, imaginary = projected.chunk(2, dim=-1)
        return rate, gamma * real, gamma * imaginary

    def _read(self, inputs: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
        """The y [B, T, D], given the parts of x."""
        both_parts = torch.cat([real, imaginary], dim=-1)
        return self.read(both_parts) + self.direct * inputs


def complex_decay(rate: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of exp(-rate + i angle), by which a state is multiplied in a step."""
    size = torch.exp(-rate)
    return size * torch.cos(angle), size * torch.sin(angle)


class LRU(Recurrent[LRUState]):
    """Layers of `LRULayer`s, each followed by an MLP; norms are at the inputs of both."""

    state_type = LRUState
    needs_float32 = True

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
        is_acting = inputs.shape[1] == 1
        last_real: list[Tensor] = []
        last_imaginary: list[Tensor] = []
        layers = zip(self.norms, self.recurrences, self.gates, self.blocks, state.real, state.imaginary)
        for norm, recurrence, gate, block, real, imaginary in layers:
            before_real = finite(real)
            before_imaginary = finite(imaginary)
            normed = norm(stream)
            if is_acting:
                output, after_real, after_imaginary = recurrence.step(normed, keep, before_real, before_imaginary)
                last_real.append(after_real[:, 0])
                last_imaginary.append(after_imaginary[:, 0])
            else:
                before = torch.complex(before_real, before_imaginary)
                output, states = recurrence(normed, keep, before)
                # Views would keep all steps in memory.
                last_real.append(states.real[:, -1].contiguous())
                last_imaginary.append(states.imag[:, -1].contiguous())

            # The paper's blocks end with a GLU.
            activated = F.gelu(output)
            stream = stream + F.glu(gate(activated), dim=-1)
            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        next_state = LRUState(tuple(last_real), tuple(last_imaginary))
        return CoreOutput(features, next_state, losses={})


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
        # The heads begin to forget at rates from 1/1000 to 1/10 a step, nearly whatever the inputs are.
        first_rates = torch.exp(torch.linspace(math.log(1e-3), math.log(1e-1), heads))
        with torch.no_grad():
            self.rates.weight[:heads] *= 0.1
            self.rates.bias[:heads] = torch.log(torch.expm1(first_rates))  # the inverse of softplus

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
            to_query, to_key, to_value, gate = self.project(exact).chunk(4, dim=-1)
            query = F.silu(by_head(to_query))  # [B, H, T, d]
            key = F.silu(by_head(to_key))
            value = F.silu(by_head(to_value))
            query = F.normalize(query, dim=-1, eps=1e-6)
            key = F.normalize(key, dim=-1, eps=1e-6)

            # The rates log a_t and b_t, [B, H, T].
            to_forget, to_write = self.rates(exact).chunk(2, dim=-1)
            log_kept = -F.softplus(by_head(to_forget)).squeeze(-1)
            written = torch.sigmoid(by_head(to_write)).squeeze(-1)

            # One chunk after the other, each from the state that the last one left.
            state = before
            outputs = []
            num_steps = inputs.shape[1]
            for begin in range(0, num_steps, self.chunk):
                end = min(begin + self.chunk, num_steps)
                is_single = end - begin == 1
                compute = self._step if is_single else self._chunk
                read, state = compute(
                    query[:, :, begin:end],
                    key[:, :, begin:end],
                    value[:, :, begin:end],
                    log_kept[:, :, begin:end],
                    written[:, :, begin:end],
                    reset[:, begin:end],
                    state,
                )
                outputs.append(read)
            joined_chunks = torch.cat(outputs, dim=2)

        normed = self.norm(joined_chunks)
        joined_heads = normed.transpose(1, 2).flatten(2)
        return self.output(joined_heads * F.silu(gate)), state

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

        Returns:
            the o_t [B, H, C, d], and S after the last step.
        """
        # Nothing is kept across a reset: step t sees step i if that is not later, and of the same episode.
        episode = reset.cumsum(dim=1)  # [B, C]; 0 is the episode of what was before
        same_episode = episode[:, :, None] == episode[:, None, :]
        sees = same_episode.tril()[:, None]  # [B, 1, C, C], steps t by steps i

        # What is kept at step t of what was written at step i: the product of the a of the steps i + 1 to t. Its
        # logarithm sums these steps only, and is no difference of sums from the start: no gradient crosses a reset.
        is_later = sees.tril(-1)
        log_kept_between = log_kept[..., :, None].masked_fill(~is_later, 0.0)
        log_kept_since = log_kept_between.cumsum(dim=-2)
        kept_since = log_kept_since.exp() * sees  # [B, H, C, C]

        # What is kept at step t of what was before.
        in_first_episode = (episode == 0)[:, None]
        log_kept_from_start = log_kept.masked_fill(~in_first_episode, 0.0)
        log_kept_of_before = log_kept_from_start.cumsum(dim=-1)
        kept_of_before = log_kept_of_before.exp() * in_first_episode  # [B, H, C]

        # The triangular system (I + system) u = wanted.
        overlap = key @ key.transpose(-1, -2)
        system = (written[..., None] * kept_since * overlap).tril(-1)
        stored_before = kept_of_before[..., None] * (key @ before.transpose(-1, -2))
        wanted = written[..., None] * (value - stored_before)
        new = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)  # u, [B, H, C, d]

        # What the queries read: of what was before, and of what was written since.
        read_of_before = kept_of_before[..., None] * (query @ before.transpose(-1, -2))
        weights = kept_since * (query @ key.transpose(-1, -2))
        read = read_of_before + weights @ new

        # What remains after the last step.
        remaining = kept_of_before[..., -1, None, None] * before
        kept_keys = kept_since[..., -1, :, None] * key
        after = remaining + new.transpose(-1, -2) @ kept_keys
        return read, after


class DeltaNet(Recurrent[DeltaNetState]):
    """Layers of `DeltaNetLayer`s, each followed by an MLP; norms are at the inputs of both."""

    state_type = DeltaNetState
    needs_float32 = True

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
