"""A core whose state is one tensor of floats, as other libraries keep that of an LSTM: see docs/integrations.md."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .contract import Core
from .state import State, fill_state, leaves, offset_of, with_offset


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
        first = core.initial_state(1)
        numbers = sum(leaf.numel() for leaf in leaves(first))
        self.state_size = numbers + 1

    def initial_state(self, batch_size: int) -> Tensor:
        """Zeros [B, state_size]."""
        weight = next(self.core.parameters())
        return weight.new_zeros(batch_size, self.state_size)

    def counts(self, state: Tensor) -> Tensor:
        """The last column, int64, where rows of zeros have taken the count of the others."""
        counts = state[:, -1].long()
        count_of_others = F.pad(counts, (0, 1), value=1).max()  # at least 1, also without rows
        is_new = counts == 0
        return torch.where(is_new, count_of_others, counts)

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
        for count in counts.unique().tolist() or [1]:  # without rows, features and a state of none
            has_count = counts == count
            rows = has_count.nonzero()[:, 0]
            nested = self._unflatten(state[rows], offset=count - 1)
            output = self.core(inputs[rows], reset[rows], nested)

            # The features carry the core's losses to the backward pass. Each is a mean over the rows of this call.
            share = len(rows) / max(1, len(inputs))
            with_losses = output.features
            for loss in output.losses.values():
                with_losses = _Attach.apply(with_losses, share * loss.value)
            next_state = self._flatten(output.state, len(rows))

            row_groups.append(rows)
            features.append(with_losses)
            states.append(next_state)

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
        first_state = self.core.initial_state(1)
        columns = []
        for leaf, first in zip(leaves(state), leaves(first_state)):
            difference = leaf - first  # so that zeros are the first state
            flat = difference.reshape(batch_size, first.numel())
            columns.append(flat.to(like))

        # Cores without segments have no offset.
        count = (offset_of(state) or 0) + 1
        count_column = torch.full_like(like[:, :1], count)
        columns.append(count_column)
        return torch.cat(columns, dim=1)

    def _unflatten(self, flat: Tensor, offset: int) -> State:
        """The opposite of `_flatten`."""
        first = self.core.initial_state(1)
        first_leaves = list(leaves(first))
        sizes = [leaf.numel() for leaf in first_leaves]
        *columns, _ = flat.split([*sizes, 1], dim=1)  # the last column is the count

        restored = []
        for column, leaf in zip(columns, first_leaves, strict=True):
            difference = column.reshape(len(flat), *leaf.shape[1:])
            restored.append(difference.to(leaf.dtype) + leaf)
        return with_offset(fill_state(first, restored), offset)


class _Attach(torch.autograd.Function):
    """Returns the features; their backward pass adds the gradient of a loss."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, loss: Tensor) -> Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())
