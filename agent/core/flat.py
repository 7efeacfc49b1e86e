"""A core whose state is one tensor of floats, as other libraries keep that of an LSTM: see docs/integrations.md."""

from typing import Any

import torch
from torch import Tensor, nn

from .contract import Core
from .state import State, leaves, map_state


class FlatCore(nn.Module):
    """Maps inputs [B, T, D], resets [B, T] and a state [B, state_size] to features [B, T, D] and the next state.

    Zeros are the state before the first step. The last column counts the row's steps into its segment, from 1. A row of
    zeros takes the count of the other rows, so that rows that are stepped together stay together. Rows with different
    counts are computed apart, with one call for each count.

    The core's own losses are attached to the features: a backward pass through these adds the gradients of the losses
    with weight 1, whatever is computed from the features. Whole numbers of a state are exact up to 2^24.
    """

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.state_size = 1 + sum(leaf.numel() for leaf in leaves(core.initial_state(1)))

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros [B, state_size]."""
        return next(self.core.parameters()).new_zeros(batch_size, self.state_size)

    def counts(self, state: Tensor) -> Tensor:
        """The last column, int64, where rows of zeros have taken the count of the others."""
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

        # One call for all rows that are equally far into their segments.
        counts = self.counts(state)
        row_groups = []
        features = []
        states = []
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero()[:, 0]
            nested = self._unflatten(state[rows], offset=count - 1)
            output = self.core(inputs[rows], reset[rows], nested)
            with_losses = output.features
            for loss in output.losses.values():
                with_losses = _Attach.apply(with_losses, loss.value)
            row_groups.append(rows)
            features.append(with_losses)
            states.append(self._flatten(output.state, len(rows)))

        joined_features = torch.cat(features)
        joined_states = torch.cat(states)
        if len(row_groups) > 1:
            # Back to the order of the arguments.
            order = torch.cat(row_groups).argsort()
            joined_features = joined_features[order]
            joined_states = joined_states[order]
        return joined_features, joined_states

    def _flatten(self, state: State, batch_size: int) -> Tensor:
        """The state as [B, state_size]: its differences from the first state, and the count."""
        like = self.initial_state(batch_size)
        columns = []
        for leaf, first in zip(leaves(state), leaves(self.core.initial_state(1))):
            difference = leaf - first  # so that zeros are the first state
            columns.append(difference.reshape(batch_size, -1).to(like))
        count = getattr(state, "offset", 0) + 1
        columns.append(torch.full_like(like[:, :1], count))
        return torch.cat(columns, dim=1)

    def _unflatten(self, flat: Tensor, offset: int) -> State:
        """The opposite of `_flatten`."""
        first = self.core.initial_state(1)
        sizes = [leaf.numel() for leaf in leaves(first)]
        columns = iter(flat.split([*sizes, 1], dim=1))

        def restore(leaf: Tensor) -> Tensor:
            difference = next(columns).reshape(len(flat), *leaf.shape[1:])
            return difference.to(leaf.dtype) + leaf

        state = map_state(restore, first)
        if hasattr(state, "offset"):
            return state._replace(offset=offset)
        return state


class _Attach(torch.autograd.Function):
    """Returns the features; their backward pass adds the gradient of a loss."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, loss: Tensor) -> Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())
