"""Fast and Forgetful Memory: traces of the past that fade at rates of their own and turn like hands of clocks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import FFMConfig
from .contract import CoreOutput, finite, mark_broken
from .linear import complex_decay
from .recurrent import Recurrent, linear_recurrence, mlp_blocks

FASTEST_RATE = 0.67
"""Of forgetting, at the beginning: half of a trace is lost in a step, as in the authors' code."""
FADED = 0.01
"""What is left of a trace when it counts as forgotten."""
SHORTEST_PERIOD = 4.0
"""Of turning, in steps, at the beginning. In the authors' code it is 1, which is no turn."""


class FFMState(NamedTuple):
    """traces: one [B, 2 x traces x contexts] tensor for each layer, first the real and then the imaginary parts."""

    traces: tuple[Tensor, ...]


class FFMLayer(nn.Module):
    """The cell of Morad et al. 2023 (arXiv:2310.04128), section 4.

    S_t = gamma S_(t-1) + x_t 1^T, elementwise with a complex matrix gamma of m traces by c contexts. Trace j fades at
    the rate alpha_j and turns in context k by the angle omega_k: gamma_jk = exp(-alpha_j + i omega_k). So the same
    input is kept c times, and how far it has turned in each tells when it was. With gates p and q of the input u,

        x_t = p (W u + b) and y_t = q LN(Z [Re S_t, Im S_t] + e) + (1 - q) (V u + d)

    where LN has no parameters.

    Args:
        size: features of u and y.
        traces, contexts: m and c.
        span: steps after which the slowest trace has faded at the beginning, and after which the slowest has turned.
        is_geometric: whether the first rates and periods have equal ratios, not equal differences.
    """

    def __init__(self, size: int, traces: int, contexts: int, span: int, is_geometric: bool) -> None:
        super().__init__()
        self.size = size
        self.traces = traces
        self.contexts = contexts
        # x, the input that passes S by, and the gates of both.
        self.project = nn.Linear(size, 2 * traces + 2 * size)
        self.read = nn.Linear(2 * traces * contexts, size)

        # Whatever is learned, exp(log_rate) is above 0: traces fade.
        slowest_rate = -math.log(FADED) / span
        fastest_rate = max(FASTEST_RATE, slowest_rate)
        if is_geometric:
            log_rates = _spread(math.log(fastest_rate), math.log(slowest_rate), traces)
            log_periods = _spread(math.log(min(SHORTEST_PERIOD, span)), math.log(span), contexts)
            periods = torch.exp(log_periods)
        else:
            log_rates = torch.log(torch.linspace(fastest_rate, slowest_rate, traces))
            periods = torch.linspace(1.0, span, contexts)
        self.log_rate = nn.Parameter(log_rates)
        self.angle = nn.Parameter(2.0 * math.pi / periods)

    def forward(self, inputs: Tensor, keep: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The y and S of all steps.

        Args:
            inputs: [B, T, D].
            keep: [B, T, 1], 0 where a row's state is forgotten before the step, else 1.
            before: [B, 2 m c], the parts of S before the first step.

        Returns:
            y [B, T, D], and the parts of S after the last step, [B, 2 m c].
        """
        written, passing, gate = self._projected(inputs)
        # The same in every context, and real: [B, T, m c].
        to_each_context = written.repeat_interleave(self.contexts, dim=-1)
        complex_written = torch.complex(to_each_context, torch.zeros_like(to_each_context))

        decay_real, decay_imaginary = self._decay()
        decay = torch.complex(decay_real, decay_imaginary).flatten()  # gamma, [m c]
        before_real, before_imaginary = before.chunk(2, dim=-1)
        complex_before = torch.complex(before_real, before_imaginary)
        states = linear_recurrence(decay * keep, complex_written, complex_before)
        both_parts = torch.cat([states.real, states.imag], dim=-1)
        last = both_parts[:, -1].contiguous()  # a view would keep all steps in memory
        return self._read(both_parts, passing, gate), last

    def step(self, inputs: Tensor, keep: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` computes, for one step in real numbers: these are faster here, and exchange formats know them.

        Args:
            inputs: [B, 1, D].
            keep: [B, 1, 1], as in `forward`.
            before: [B, 2 m c], as in `forward`.

        Returns:
            as `forward`.
        """
        written, passing, gate = self._projected(inputs)
        to_each_context = written[..., None]  # [B, 1, m, 1]
        decay_real, decay_imaginary = self._decay()

        # A product of complex numbers, by parts [B, 1, m, c].
        kept = keep * before[:, None]
        real, imaginary = kept.unflatten(-1, (2, self.traces, self.contexts)).unbind(2)
        after_real = to_each_context + decay_real * real - decay_imaginary * imaginary
        after_imaginary = decay_real * imaginary + decay_imaginary * real
        both_parts = torch.stack([after_real, after_imaginary], dim=2).flatten(2)
        return self._read(both_parts, passing, gate), both_parts[:, 0]

    def _decay(self) -> tuple[Tensor, Tensor]:
        """The real and the imaginary part of gamma, [m, c] each."""
        rate = torch.exp(self.log_rate)
        return complex_decay(rate[:, None], self.angle)

    def _projected(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is written into S [B, T, m], the input that passes it by and the gate q, [B, T, D] each."""
        projected = self.project(inputs)
        value, passing, both_gates = projected.split([self.traces, self.size, self.traces + self.size], dim=-1)
        gate_of_value, gate = torch.sigmoid(both_gates).split([self.traces, self.size], dim=-1)
        # Under autocast the projection may be narrower than the state.
        written = (gate_of_value * value).to(self.angle.dtype)
        return written, passing, gate

    def _read(self, both_parts: Tensor, passing: Tensor, gate: Tensor) -> Tensor:
        """The y [B, T, D], given the parts of S."""
        remembered = F.layer_norm(self.read(both_parts), (self.size,))
        return passing + gate * (remembered - passing)


def _spread(first: float, last: float, count: int) -> Tensor:
    """Numbers from the first to the last at equal distances, [count]; a single one is the last."""
    if count == 1:
        return torch.tensor([float(last)])
    return torch.linspace(first, last, count)


class FFM(Recurrent[FFMState]):
    """Layers of `FFMLayer`s, each followed by an MLP, as in the paper's agents; norms are at the inputs of both."""

    state_type = FFMState
    needs_float32 = True
    config: FFMConfig
    recurrences: Sequence[FFMLayer]

    def __init__(self, config: FFMConfig) -> None:
        super().__init__()
        self.config = config
        size = config.model_size
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(config.num_layers))
        is_geometric = config.spacing == "geometric"
        recurrences = nn.ModuleList(
            FFMLayer(size, config.traces, config.contexts, config.span, is_geometric) for _ in range(config.num_layers)
        )
        self.recurrences = recurrences  # type: ignore[assignment]
        self.blocks = mlp_blocks(config)
        self.final_norm = nn.LayerNorm(size)

    @property
    def state_size(self) -> int:
        """Parts of a layer's S."""
        return 2 * self.config.traces * self.config.contexts

    def forward(self, inputs: Tensor, reset: Tensor, state: FFMState, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        self.check(inputs, reset, state)
        stream = finite(inputs)
        keep = (~reset).to(stream.dtype)[:, :, None]
        is_acting = inputs.shape[1] == 1
        after = []
        layers = zip(self.norms, self.recurrences, self.blocks, state.traces)
        for norm, recurrence, block, before in layers:
            compute = recurrence.step if is_acting else recurrence
            output, last = compute(norm(stream), keep, finite(before))
            after.append(last)
            stream = stream + output
            stream = stream + block(stream)
        features = mark_broken(self.final_norm(stream), inputs)
        return CoreOutput(features, FFMState(tuple(after)), losses={})
