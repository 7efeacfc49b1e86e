"""A core whose state is one tensor of floats, as other libraries keep that of an LSTM: see docs/integrations.md."""

from typing import Any

import torch
from torch import Tensor, nn

from .contract import Core
from .state import State, leaves, map_state


class FlatCore(nn.Module):
    """Maps inputs [B, T, D], resets [B, T] and a state [B, state_size] to features [B, T, D] and the next state.

    Zeros are the state before the first step. The last column counts the row's steps into its segment, from 1; rows of
    zeros join the count of the others, so that rows that are stepped together stay together. Rows with different counts
    are computed apart, with one call for each count.

    The core's own losses are attached to the features: a backward pass through these adds their gradients, with
    weight 1 whatever its loss is. Whole numbers of a state are exact up to 2^24.
    """

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.state_size = 1 + sum(leaf.numel() for leaf in leaves(core.initial_state(1)))

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros [B, state_size]."""
        return next(self.core.parameters()).new_zeros(batch_size, self.state_size)

    def counts(self, state: Tensor) -> Tensor:
        """The last column, int64, after rows of zeros have joined the others."""
        counts = state[:, -1].long()
        return torch.where(counts == 0, counts.max().clamp(min=1), counts)

    def forward(self, inputs: Tensor, reset: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See the class.

        Raises:
            ValueError: if the state has another shape; and see `check_call`.
        """
        if state.shape != (len(inputs), self.state_size):
            expected = [len(inputs), self.state_size]
            raise ValueError(f"state: expected {expected}, got {list(state.shape)}")
        counts, parts = self.counts(state), []
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero()[:, 0]
            output = self.core(inputs[rows], reset[rows], self._unflatten(state[rows], count - 1))
            features = output.features
            for loss in output.losses.values():
                features = _Attach.apply(features, loss.value)
            parts.append((rows, features, self._flatten(output.state, len(rows))))
        order, features, after = (torch.cat(part) for part in zip(*parts))
        if len(parts) > 1:
            features, after = features[order.argsort()], after[order.argsort()]
        return features, after

    def _flatten(self, state: State, batch_size: int) -> Tensor:
        start = self.core.initial_state(1)
        parts = [(leaf - first).reshape(batch_size, -1) for leaf, first in zip(leaves(state), leaves(start))]
        flat = self.initial_state(batch_size)
        count = torch.full_like(flat[:, :1], getattr(state, "offset", 0) + 1)
        return torch.cat([*(part.to(flat) for part in parts), count], dim=1)

    def _unflatten(self, flat: Tensor, offset: int) -> Any:
        start = self.core.initial_state(1)
        parts = iter(flat.split([*(leaf.numel() for leaf in leaves(start)), 1], dim=1))
        state = map_state(lambda leaf: next(parts).reshape(len(flat), *leaf.shape[1:]).to(leaf.dtype) + leaf, start)
        return state._replace(offset=offset) if hasattr(state, "offset") else state


class _Attach(torch.autograd.Function):
    """Returns the features; their backward pass adds the gradient of a loss."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, loss: Tensor) -> Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())
