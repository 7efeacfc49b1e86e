"""Compression functions and the losses that train them (Rae et al. 2020, section 3.2 and Algorithm 2).

Axes: B batch, D features. Sizes: n_s memories evicted together, c compression rate, n_cm compressed slots.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import RelativeAttention
from .config import LayerSizes
from .contract import Mean


class Compression(nn.Module):
    """Maps evicted memories [B, n_s, D] to slots [B, n_s / c, D]; each group of c consecutive memories becomes one."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def compress(self, evicted: Tensor) -> Tensor:
        """Maps [B, n_s, D] to [B, n_s / c, D]; memories that precede an episode start are zeros."""
        raise NotImplementedError

    def forward(self, evicted: Tensor, valid: Tensor, usage: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns slots [B, n_s / c, D] and, if each slot is one of the memories, which one: [B, n_s / c] int64.

        `valid` [B, n_s] bool is true for memories of the row's current episode; `usage` [B, n_s], if it is measured, is
        the attention that a memory received on average from each step that could attend to it.
        """
        return self.compress(evicted), None

    def minimum_ages(self, sizes: LayerSizes, device: torch.device) -> Tensor:
        """Minimum episode age for each compressed slot to be valid, [n_cm] int64, at the first step of a segment.

        That is the age of the newest step in the slot: a slot is valid if any of its members is.
        """
        newer_slots = torch.arange(sizes.compressed - 1, -1, -1, device=device)
        return sizes.rate * newer_slots + sizes.memory + 1

    def slot_ages(self, sizes: LayerSizes, device: torch.device, source: Tensor | None) -> Tensor:
        """Ages [n_cm, 2] of the oldest and the newest step in each slot, at the first step of a segment.

        `source` [B, n_cm] is the memory that each slot was, where `forward` returns it; ages are then [B, n_cm, 2].
        """
        newest = self.minimum_ages(sizes, device)
        oldest = newest + sizes.rate - 1
        return torch.stack([oldest, newest], dim=-1)


class ConvolutionCompression(Compression):
    """A convolution over time with kernel and stride c (the paper's best), after dilated ones if there are any.

    A dilated convolution keeps the length; a ReLU and a residual sum follow it. The paper gives no details of them.
    """

    def __init__(self, model_size: int, rate: int, dilations: Sequence[int] = ()) -> None:
        super().__init__(model_size, rate)
        self.dilated = nn.ModuleList()
        for dilation in dilations:
            self.dilated.append(nn.Conv1d(model_size, model_size, 3, padding=dilation, dilation=dilation))
        # With kernel = stride the convolution is one matrix product over the concatenated members of a group.
        self.group = nn.Linear(rate * model_size, model_size)

    def compress(self, evicted: Tensor) -> Tensor:
        for convolution in self.dilated:
            # Torch convolves over the last axis.
            time_last = evicted.transpose(1, 2)
            branch = F.relu(convolution(time_last))
            evicted = evicted + branch.transpose(1, 2)
        groups = _in_groups(evicted, self.rate)
        return self.group(groups.flatten(2))


class MeanPooling(Compression):
    """The mean of each group."""

    def compress(self, evicted: Tensor) -> Tensor:
        groups = _in_groups(evicted, self.rate)
        return groups.mean(dim=2)


class MaxPooling(Compression):
    """The maximum of each group, feature by feature."""

    def compress(self, evicted: Tensor) -> Tensor:
        groups = _in_groups(evicted, self.rate)
        return groups.amax(dim=2)


class MostUsed(Compression):
    """Keeps the n_s / c memories with the highest usage, in temporal order; measuring the usage is slower."""

    def forward(self, evicted: Tensor, valid: Tensor, usage: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert usage is not None
        num_evicted = usage.shape[1]
        num_kept = num_evicted // self.rate
        ranked = usage.masked_fill(~valid, -1.0)  # usage is not negative

        # The newest wins a tie: invalid memories, which are the oldest, are then never between valid ones.
        newest_first = ranked.flip(1)
        by_usage = newest_first.argsort(dim=1, descending=True, stable=True)
        from_newest = by_usage[:, :num_kept]
        most_used = num_evicted - 1 - from_newest

        # In temporal order, and all features of each.
        index = most_used.sort(dim=1).values
        size = evicted.shape[2]
        whole_slots = index[:, :, None].expand(-1, -1, size)
        slots = evicted.gather(1, whole_slots)
        return slots, index

    def minimum_ages(self, sizes: LayerSizes, device: torch.device) -> Tensor:
        # The kept memories stay in order and invalid ones are the oldest: the r-th newest of a segment is valid exactly
        # if r memories of the segment are.
        newer_slots = torch.arange(sizes.compressed - 1, -1, -1, device=device)
        kept = sizes.segment // sizes.rate
        newer_segments = newer_slots // kept
        newer_in_segment = newer_slots % kept
        evicted_since = newer_segments * sizes.segment
        return evicted_since + newer_in_segment + sizes.memory + 1

    def slot_ages(self, sizes: LayerSizes, device: torch.device, source: Tensor | None) -> Tensor:
        assert source is not None
        newer_slots = torch.arange(sizes.compressed - 1, -1, -1, device=device)
        kept = sizes.segment // sizes.rate
        newer_segments = newer_slots // kept
        # `source` counts from the oldest of the segment.
        age_of_oldest = (newer_segments + 1) * sizes.segment + sizes.memory
        age = age_of_oldest - source
        return torch.stack([age, age], dim=-1)


def _in_groups(evicted: Tensor, rate: int) -> Tensor:
    """Groups of consecutive memories: [B, n_s, D] to [B, n_s / c, c, D]."""
    return evicted.unflatten(1, (-1, rate))


COMPRESSIONS: dict[str, Callable[[int, int], Compression]] = {
    "convolution": ConvolutionCompression,
    "dilated": functools.partial(ConvolutionCompression, dilations=(1, 2)),
    "mean": MeanPooling,
    "max": MaxPooling,
    "most-used": MostUsed,
}


def autoencoding_loss(decoder: nn.Module, rate: int, evicted: Tensor, compressed: Tensor, valid: Tensor) -> Mean:
    """Squared error of the decoded slots (section 3.2): its sum over the valid memories, and their number; scalars.

    `decoder` maps each slot of `compressed` [B, n_s / c, D] to a group of memories. `evicted` [B, n_s, D] receives no
    gradient; its invalid memories, see `valid` [B, n_s], are zeros.
    """
    flat_groups = decoder(compressed)  # [B, n_s / c, c D]
    groups = flat_groups.unflatten(-1, (rate, -1))
    decoded = groups.flatten(1, 2)  # [B, n_s, D]
    squared_error = F.mse_loss(decoded, evicted.detach(), reduction="none")
    error = squared_error.mean(dim=2)
    total = (error * valid).sum()
    return Mean(total, valid.sum())


def attention_loss(
    attention: RelativeAttention,
    norm: nn.LayerNorm | None,
    queries: Tensor,
    evicted: Tensor,
    compressed: Tensor,
    valid: Tensor,
) -> Mean:
    """Squared error of attention over compressed memory (Algorithm 2): its sum over rows with valid memories, and their
    number; scalars. Only `compressed` [B, n_s / c, D] receives a gradient.

    `queries` [B, n_s, D] are the layer inputs of the segment that displaced the memories; `norm` is that of the inputs
    of attention, if there is one. Invalid memories of `evicted` [B, n_s, D], see `valid` [B, n_s], are zeros.
    """
    queries = queries.detach()
    evicted = evicted.detach()
    if norm is not None:
        fixed_norm = _without_gradient(norm)
        queries = fixed_norm(queries)
        evicted = fixed_norm(evicted)
        compressed = fixed_norm(compressed)

    # What attention over the memories gives, the compressed slots are to give, too.
    with torch.no_grad():
        query = attention.query(queries)
        target = attention.reconstruct(query, evicted)
    reconstruction = attention.reconstruct(query, compressed)

    # Autocast computes mse_loss in float32, unlike a difference.
    squared_error = F.mse_loss(reconstruction, target, reduction="none")
    error = squared_error.mean(dim=(1, 2))  # [B]
    present = valid.any(dim=1)
    total = (error * present).sum()
    return Mean(total, present.sum())


def _without_gradient(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """The norm as a function of slots [..., D] whose parameters receive no gradient."""
    weight = norm.weight.detach()
    bias = norm.bias.detach()
    return lambda slots: F.layer_norm(slots, norm.normalized_shape, weight, bias, norm.eps)
