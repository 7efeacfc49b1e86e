"""WaveNet (van den Oord et al. 2016) as a recurrent core: dilated causal convolutions behind the contract of all cores.

It is the baseline of the paper's section 5.6, for waveforms. What embeds the samples and predicts the next one is not
here.

Axes: B batch, T time, D features (model_size).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import WaveNetConfig
from .contract import Core, CoreOutput, check_call, finite, mark_broken

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

    convolutions: Sequence[nn.Linear]
    projections: Sequence[nn.Linear]

    def __init__(self, config: WaveNetConfig) -> None:
        super().__init__()
        self.config = config
        size = config.model_size

        # A convolution is one matrix product over the concatenated taps; sigmoid and tanh have a half of it each.
        convolutions = nn.ModuleList()
        for _ in range(config.num_layers):
            convolution = nn.Linear(config.kernel_size * size, 2 * config.gate_size)
            convolutions.append(convolution)
        self.convolutions = convolutions  # type: ignore[assignment]

        # To the skip connections and to the residual stream, which is not used after the last layer.
        residual_sizes = [size] * (config.num_layers - 1) + [0]
        projections = nn.ModuleList()
        for residual_size in residual_sizes:
            projection = nn.Linear(config.gate_size, config.skip_size + residual_size)
            projections.append(projection)
        self.projections = projections  # type: ignore[assignment]
        self.output = nn.Linear(config.skip_size, size)
        self._initialise()

    def _initialise(self) -> None:
        """Initializes weights so that each layer adds as much variance as its input has.

        With torch's default weights the layers add almost nothing, and the scaling removes the input after 30 layers.
        """
        for convolution, projection in zip(self.convolutions, self.projections):
            # The variances of the outputs if the weights had variance 1. The second one's inputs are gated values.
            variance = convolution.in_features
            gated_variance = GATED_VARIANCE * projection.in_features
            nn.init.normal_(convolution.weight, std=variance**-0.5)
            nn.init.normal_(projection.weight, std=gated_variance**-0.5)
            nn.init.zeros_(convolution.bias)
            nn.init.zeros_(projection.bias)

    def initial_state(self, batch_size: int) -> WaveNetState:
        """Zeros, before the first step of an episode."""
        zeros = self.output.weight.new_zeros
        past = []
        for dilation in self.config.dilations:
            steps = (self.config.kernel_size - 1) * dilation
            past.append(zeros(batch_size, steps, self.config.model_size))
        return WaveNetState(tuple(past), age=zeros(batch_size, dtype=torch.int64))

    def forward(self, inputs: Tensor, reset: Tensor, state: WaveNetState, return_attention: bool = False) -> CoreOutput:
        """See `Core`."""
        config = self.config
        check_call(inputs, reset, state, config.model_size, WaveNetState)
        expected = [((config.kernel_size - 1) * dilation, config.model_size) for dilation in config.dilations]
        found = [tuple(past.shape[1:]) for past in state.past]
        if found != expected:
            raise ValueError(f"state: expected past inputs (steps, features) by layer {expected}, got {found}")
        age = _ages(reset, state.age)
        stream = finite(inputs)
        skips = torch.zeros((), device=inputs.device)
        past = []
        layers = zip(config.dilations, state.past, self.convolutions, self.projections)
        for dilation, before, convolution, projection in layers:
            # The layer's inputs at this step and at earlier ones, which are zeros before the episode.
            current = stream.to(before.dtype)
            seen = torch.cat([finite(before), current], dim=1)
            taps = []
            for tap in range(config.kernel_size):
                distance = tap * dilation
                delayed = _delayed(seen, distance, age)  # [B, T, D]
                taps.append(delayed)

            # The gated convolution.
            joined_taps = torch.cat(taps, dim=2)
            convolved = convolution(joined_taps)
            gate, value = convolved.chunk(2, dim=2)
            gated = gate.sigmoid() * value.tanh()

            # Its output goes to the skip connections and to the residual stream.
            residual_size = projection.out_features - config.skip_size
            projected = projection(gated)
            skip, residual = projected.split([config.skip_size, residual_size], dim=2)
            skips = skips + skip
            if residual_size:
                total = stream + residual
                stream = total * 0.5**0.5

            # A copy: a view would keep all steps in memory.
            first = seen.shape[1] - before.shape[1]
            newest = seen[:, first:].clone()
            past.append(newest)

        scaled_skips = skips * config.num_layers**-0.5
        hidden = F.relu(scaled_skips)
        features = F.relu(self.output(hidden))
        age_after = age[:, -1] + 1
        next_state = WaveNetState(tuple(past), age_after)
        return CoreOutput(mark_broken(features, inputs), next_state, losses={})


def _ages(reset: Tensor, age: Tensor) -> Tensor:
    """Steps of its episode before each step, [B, T], given those before the first [B]."""
    steps = torch.arange(reset.shape[1], device=reset.device)

    # The first step of each step's episode; -1 if it is before these steps.
    own_start = torch.where(reset, steps, -1)
    start = own_start.cummax(dim=1).values

    began_earlier = start < 0
    since_earlier = age[:, None] + steps
    since_start = steps - start
    return torch.where(began_earlier, since_earlier, since_start)


def _delayed(seen: Tensor, distance: int, age: Tensor) -> Tensor:
    """The inputs [B, T, D] `distance` steps before each of the last T; zeros where they belong to another episode."""
    num_steps = age.shape[1]
    end = seen.shape[1] - distance
    begin = end - num_steps
    delayed = seen[:, begin:end]
    if distance == 0:
        return delayed
    same_episode = age[:, :, None] >= distance
    return torch.where(same_episode, delayed, 0)
