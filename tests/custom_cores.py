"""Cores that are in no list: one that keeps the contract, and for each promise one that breaks it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, Core, CoreOutput


class AverageState(NamedTuple):
    """average: [B, model_size]."""

    average: Tensor


class Average(Core):
    """A moving average of each feature."""

    def __init__(self, model_size: int, keep: float = 0.9) -> None:
        super().__init__()
        self.keep = keep
        self.projection = nn.Linear(model_size, model_size)

    def initial_state(self, batch_size: int) -> AverageState:
        return AverageState(self.projection.bias.new_zeros(batch_size, self.projection.out_features))

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        average = state.average
        projected = self.projection(inputs)
        features = []
        for step in range(inputs.shape[1]):
            average = average.masked_fill(reset[:, step, None], 0)
            average = self.keep * average + (1 - self.keep) * projected[:, step]
            features.append(average)
        return CoreOutput(torch.stack(features, dim=1), AverageState(average), {})


class Wide(CompressiveTransformer):
    """A Compressive Transformer with sizes of its own, whose states are in segments."""

    def __init__(self, model_size: int, segment_size: int = 4) -> None:
        sizes = CompressiveTransformerConfig(
            model_size, 1, 2, mlp_size=8, segment_size=segment_size, memory_size=4, compressed_size=4
        )
        super().__init__(sizes)


class PhaseState(NamedTuple):
    """average: as of `Average`. offset: steps into a round of `segment_size`, shared by all rows."""

    average: Tensor
    offset: int


class Phase(Average):
    """An average whose weight depends on the step of a round. Its state counts the steps, and has no segment."""

    def __init__(self, model_size: int, segment_size: int = 4) -> None:
        super().__init__(model_size)
        self.segment_size = segment_size

    def initial_state(self, batch_size: int) -> Any:
        return PhaseState(super().initial_state(batch_size).average, 0)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        steps = torch.arange(inputs.shape[1]) + state.offset
        weights = 1 + steps % self.segment_size
        output = super().forward(inputs * weights[:, None], reset, AverageState(state.average))
        offset = (state.offset + inputs.shape[1]) % self.segment_size
        return output._replace(state=PhaseState(output.state.average, offset))


class WrappedState(NamedTuple):
    """inner: of a core with segments. average: as of `Average`."""

    inner: Any
    average: Tensor


class Wrapped(Average):
    """An average beside a core whose state counts steps, deep in the state of both."""

    def __init__(self, model_size: int, segment_size: int = 4) -> None:
        super().__init__(model_size)
        self.inner = Wide(model_size, segment_size)

    def initial_state(self, batch_size: int) -> Any:
        average = super().initial_state(batch_size).average
        return WrappedState(self.inner.initial_state(batch_size), average)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        inner = self.inner(inputs, reset, state.inner)
        output = super().forward(inputs, reset, AverageState(state.average))
        after = WrappedState(inner.state, output.state.average)
        return CoreOutput(inner.features + output.features, after, inner.losses)


class NoTuple(Average):
    """Its state is a tensor."""

    def initial_state(self, batch_size: int) -> Any:
        return super().initial_state(batch_size).average


class OtherRows(Average):
    """Its state has the batch behind the features."""

    def initial_state(self, batch_size: int) -> AverageState:
        return AverageState(super().initial_state(batch_size).average.T)


class Listed(Average):
    """Its state has a list."""

    def initial_state(self, batch_size: int) -> Any:
        return WrappedState([], super().initial_state(batch_size).average)


class Counting(Phase):
    """It counts from 1."""

    def initial_state(self, batch_size: int) -> Any:
        return super().initial_state(batch_size)._replace(offset=1)


class NoOutput(Average):
    """It returns a tuple."""

    def forward(self, *arguments: Any) -> Any:
        return tuple(super().forward(*arguments))


class OtherSize(Average):
    """Its features have another size."""

    def forward(self, *arguments: Any) -> CoreOutput:
        output = super().forward(*arguments)
        return output._replace(features=output.features[..., 1:])


class Infinite(Average):
    """Its features are too large."""

    def forward(self, *arguments: Any) -> CoreOutput:
        output = super().forward(*arguments)
        return output._replace(features=output.features / 0)


class Growing(Average):
    """Its state grows."""

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        output = super().forward(inputs, reset, state)
        return output._replace(state=AverageState(output.state.average.repeat(1, 2)))


class InPlace(Average):
    """It changes the state that it is given."""

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        output = super().forward(inputs, reset, state)
        state.average.copy_(output.state.average.detach())
        return output


class Detached(Average):
    """Its features have no gradient."""

    def forward(self, *arguments: Any) -> CoreOutput:
        output = super().forward(*arguments)
        return output._replace(features=output.features.detach())


class ByCall(Average):
    """It depends on how many steps a call has."""

    def forward(self, inputs: Tensor, *arguments: Any) -> CoreOutput:
        output = super().forward(inputs, *arguments)
        return output._replace(features=output.features / inputs.shape[1])


class Seeing(Average):
    """Each step sees the next one, as far as calls have several."""

    def forward(self, inputs: Tensor, *arguments: Any) -> CoreOutput:
        output = super().forward(inputs, *arguments)
        return output._replace(features=output.features + inputs.roll(-1, dims=1) - inputs)


class Mixing(Average):
    """Rows are normalized together."""

    def forward(self, inputs: Tensor, *arguments: Any) -> CoreOutput:
        return super().forward(inputs - inputs.mean(dim=0), *arguments)


class NextRow(Average):
    """The last row sees the one before it."""

    def forward(self, inputs: Tensor, *arguments: Any) -> CoreOutput:
        seen = inputs.clone()
        if len(inputs) > 1:
            seen[-1] += inputs[-2]
        return super().forward(seen, *arguments)


class SeveralRows(Average):
    """It drops the batch axis of a row alone."""

    def forward(self, inputs: Tensor, *arguments: Any) -> CoreOutput:
        return super().forward(inputs.squeeze(0), *arguments)


class NoAttention(Average):
    """It cannot be asked for attention weights."""

    def forward(self, inputs: Tensor, reset: Tensor, state: Any) -> CoreOutput:  # type: ignore[override]
        return super().forward(inputs, reset, state)


class OtherLosses(Average):
    """Its loss is a tensor."""

    def forward(self, *arguments: Any) -> CoreOutput:
        output = super().forward(*arguments)
        losses: Any = {"size": output.features.square().mean()}
        return output._replace(losses=losses)


class AtBorders(Average):
    """It forgets at every third step alone."""

    def forward(self, inputs: Tensor, reset: Tensor, *arguments: Any) -> CoreOutput:
        if inputs.shape[1] > 1:
            is_border = torch.arange(inputs.shape[1]) % 3 == 0
            reset = reset & is_border
        return super().forward(inputs, reset, *arguments)


class Remembering(Average):
    """It forgets nothing at a reset."""

    def forward(self, inputs: Tensor, reset: Tensor, *arguments: Any) -> CoreOutput:
        return super().forward(inputs, torch.zeros_like(reset), *arguments)


class FirstState(Average):
    """A call of several steps returns the state after its first one."""

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        output = super().forward(inputs, reset, state)
        first = super().forward(inputs[:, :1], reset[:, :1], state)
        return output._replace(state=first.state)


class LastState(Average):
    """Its features do not depend on the state that a call of several steps returns, but those of single steps do."""

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        output = super().forward(inputs, reset, state)
        if inputs.shape[1] == 6:
            return output._replace(state=AverageState(2 * output.state.average))
        return output


BROKEN = {
    NoTuple: "initial_state: expected a NamedTuple of tensors, got Tensor",
    Listed: "initial_state: state: expected tensors, ints, None, KVCache and tuples of them, got list",
    OtherRows: r"initial_state: expected tensors of 3 rows, got one of \[8, 3\]",
    Counting: "initial_state: expected the offset 0 into the segment, got 1",
    NoOutput: "forward: expected a CoreOutput, got tuple",
    NoAttention: r"forward: expected a result for inputs \[3, 6, 8\], resets, .*TypeError: .* positional arguments",
    OtherSize: r"features: expected torch.float32 \[3, 6, 8\], got torch.float32 \[3, 6, 7\]",
    Infinite: "features: expected finite numbers",
    Growing: r"state: expected .* AverageState of torch.float32 \[3, 8\], got .* \[3, 16\]",
    OtherLosses: r"losses: expected a dict of agent.core.Mean, empty for none, got \{'size': tensor",
    InPlace: "expected a call to leave its state as it was",
    Detached: "features: expected a gradient",
    ByCall: "the same features in one call as in calls of one step each, got",
    AtBorders: "the same features in one call as in calls of one step each, got",
    Seeing: "in one call as in calls of one step each, got",
    Mixing: "in rows beside one that changes, got",
    NextRow: "in rows beside one that changes, got",
    SeveralRows: r"forward: expected a result for inputs \[1, 6, 8\], .*Error: .* \(.*/custom_cores.py, line \d+\)",
    FirstState: "the same features in one call as in two, got",
    LastState: "the same state in one call as in two, got",
    Remembering: "after a reset, when what was before it changes, got",
}
"""What `check_core` says of each, for 8 features."""
