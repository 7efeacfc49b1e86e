"""WaveNet (van den Oord et al. 2016) as a recurrent core: dilated causal convolutions behind `agent.core.contract`.

It is the baseline of the paper's section 5.6 and passes the tests of every core. Embedding and softmax are those of
`sequences.model`.

Axes: B batch, T time, D features (model_size).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Core, CoreOutput
from agent.core.contract import check_call, finite, mark_broken
from sequences.speech.config import WaveNetConfig

GATED_VARIANCE = 0.115
"""Mean square of sigmoid(x) tanh(y) for independent standard normal x and y."""


class WaveNetState(NamedTuple):
    """Past inputs of the convolutions.

    past: the newest inputs of each layer, oldest first, [B, (kernel_size - 1) * dilation, D].
    age: [B] int64, steps of the row's episode so far; older inputs count as zeros.
    """

    past: tuple[Tensor, ...]
    age: Tensor


class WaveNet(Core):
    """Gated dilated convolutions with residual and skip connections (section 2.3 and figure 4 of the WaveNet paper).

    A call over T steps computes each layer for all steps at once. The state holds the layers' past inputs, so a call
    with T = 1 costs one product a layer and tap for any receptive field (fast generation, Paine et al. 2016). Sums are
    scaled to keep their variance: the residual by sqrt(1/2), the skips by sqrt(1/N).
    """

    def __init__(self, config: WaveNetConfig) -> None:
        super().__init__()
        self.config, size = config, config.model_size
        convolutions = nn.ModuleList(
            nn.Linear(config.kernel_size * size, 2 * config.gate_size) for _ in range(config.num_layers)
        )
        # The residual stream after the last layer is not used.
        residual = [size] * (config.num_layers - 1) + [0]
        projections = nn.ModuleList(nn.Linear(config.gate_size, config.skip_size + more) for more in residual)
        self.convolutions: Sequence[nn.Linear] = convolutions  # type: ignore[assignment]
        self.projections: Sequence[nn.Linear] = projections  # type: ignore[assignment]
        self.output = nn.Linear(config.skip_size, size)
        self._initialise()

    def _initialise(self) -> None:
        """Initializes weights so that each layer adds as much variance as its input has.

        With torch's default weights the layers add almost nothing, and the scaling removes the input after 30 layers.
        """
        for convolution, projection in zip(self.convolutions, self.projections):
            nn.init.normal_(convolution.weight, std=convolution.in_features**-0.5)
            nn.init.normal_(projection.weight, std=(GATED_VARIANCE * projection.in_features) ** -0.5)
            nn.init.zeros_(convolution.bias)
            nn.init.zeros_(projection.bias)

    def initial_state(self, batch_size: int) -> WaveNetState:
        """Zeros, before the first step of an episode."""
        zeros, config = self.output.weight.new_zeros, self.config
        spans = [(config.kernel_size - 1) * dilation for dilation in config.dilations]
        past = tuple(zeros(batch_size, span, config.model_size) for span in spans)
        return WaveNetState(past, zeros(batch_size, dtype=torch.int64))

    def forward(self, inputs: Tensor, reset: Tensor, state: WaveNetState, return_attention: bool = False) -> CoreOutput:
        config = self.config
        check_call(inputs, reset, state, config.model_size, WaveNetState)
        age = _ages(reset, state.age)
        stream, past, skips = finite(inputs), [], torch.zeros((), device=inputs.device)
        layers = zip(config.dilations, state.past, self.convolutions, self.projections)
        for dilation, before, convolution, projection in layers:
            seen = torch.cat([finite(before), stream.to(before.dtype)], dim=1)
            distances = [tap * dilation for tap in range(config.kernel_size)]
            taps = [_delayed(seen, distance, age) for distance in distances]
            gate, value = convolution(torch.cat(taps, dim=2)).chunk(2, dim=2)
            sizes = [config.skip_size, projection.out_features - config.skip_size]
            skip, residual = projection(gate.sigmoid() * value.tanh()).split(sizes, dim=2)
            skips = skips + skip
            if residual.shape[2]:
                stream = (stream + residual) * 0.5**0.5
            # A copy: a view would keep all steps in memory.
            past.append(seen[:, seen.shape[1] - distances[-1] :].clone())
        features = F.relu(self.output(F.relu(skips * config.num_layers**-0.5)))
        return CoreOutput(mark_broken(features, inputs), WaveNetState(tuple(past), age[:, -1] + 1), {})


def _ages(reset: Tensor, age: Tensor) -> Tensor:
    """Steps of its episode before each step, [B, T], given those before the first [B]."""
    steps = torch.arange(reset.shape[1], device=reset.device)
    begin = torch.where(reset, steps, -1).cummax(dim=1).values
    return torch.where(begin < 0, age[:, None] + steps, steps - begin)


def _delayed(seen: Tensor, distance: int, age: Tensor) -> Tensor:
    """The inputs [B, T, D] `distance` steps before each of the last T; zeros where they belong to another episode."""
    end = seen.shape[1] - distance
    delayed = seen[:, end - age.shape[1] : end]
    return torch.where(age[:, :, None] >= distance, delayed, 0) if distance else delayed
