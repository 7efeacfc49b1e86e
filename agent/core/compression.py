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

    def valid_ages(self, sizes: LayerSizes, device: torch.device) -> Tensor:
        """Ages [n_cm] that a row's episode must have reached, at the first step of a segment, for slots to be valid."""
        return sizes.rate * torch.arange(sizes.compressed - 1, -1, -1, device=device) + sizes.memory + 1

    def slot_ages(self, sizes: LayerSizes, device: torch.device, source: Tensor | None) -> Tensor:
        """Ages [n_cm, 2] of the oldest and the newest step in each slot, at the first step of a segment.

        `source` [B, n_cm] is the memory that each slot was, where `forward` returns it; ages are then [B, n_cm, 2].
        """
        newest = self.valid_ages(sizes, device)  # a slot is valid if any of its members is
        return torch.stack([newest + sizes.rate - 1, newest], dim=-1)


class ConvolutionCompression(Compression):
    """A convolution over time with kernel and stride c (the paper's best), after dilated ones if there are any.

    A dilated convolution keeps the length; a ReLU and a residual sum follow it. The paper gives no details of them.
    """

    def __init__(self, model_size: int, rate: int, dilations: Sequence[int] = ()) -> None:
        super().__init__(model_size, rate)
        self.dilated = nn.ModuleList(nn.Conv1d(model_size, model_size, 3, padding=d, dilation=d) for d in dilations)
        # With kernel = stride the convolution is one matrix product over the concatenated members of a group.
        self.group = nn.Linear(rate * model_size, model_size)

    def compress(self, evicted: Tensor) -> Tensor:
        for convolution in self.dilated:
            evicted = evicted + F.relu(convolution(evicted.transpose(1, 2))).transpose(1, 2)
        return self.group(evicted.unflatten(1, (-1, self.rate)).flatten(2))


class MeanPooling(Compression):
    """The mean of each group."""

    def compress(self, evicted: Tensor) -> Tensor:
        return evicted.unflatten(1, (-1, self.rate)).mean(dim=2)


class MaxPooling(Compression):
    """The maximum of each group, feature by feature."""

    def compress(self, evicted: Tensor) -> Tensor:
        return evicted.unflatten(1, (-1, self.rate)).amax(dim=2)


class MostUsed(Compression):
    """Keeps the n_s / c memories with the highest usage, in temporal order; measuring the usage is slower."""

    def forward(self, evicted: Tensor, valid: Tensor, usage: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert usage is not None
        ranked = usage.masked_fill(~valid, -1.0)
        # The newest wins a tie: invalid memories, which are the oldest, are then never between valid ones.
        order = ranked.flip(1).argsort(dim=1, descending=True, stable=True)[:, : usage.shape[1] // self.rate]
        index = (usage.shape[1] - 1 - order).sort(dim=1).values
        return evicted.gather(1, index[:, :, None].expand(-1, -1, evicted.shape[2])), index

    def valid_ages(self, sizes: LayerSizes, device: torch.device) -> Tensor:
        # The kept memories stay in order and invalid ones are the oldest: the r-th newest of a segment is valid exactly
        # if r memories of the segment are.
        newer, kept = torch.arange(sizes.compressed - 1, -1, -1, device=device), sizes.segment // sizes.rate
        return newer // kept * sizes.segment + newer % kept + sizes.memory + 1

    def slot_ages(self, sizes: LayerSizes, device: torch.device, source: Tensor | None) -> Tensor:
        assert source is not None
        newer, kept = torch.arange(sizes.compressed - 1, -1, -1, device=device), sizes.segment // sizes.rate
        age = (newer // kept + 1) * sizes.segment + sizes.memory - source
        return torch.stack([age, age], dim=-1)


COMPRESSIONS: dict[str, Callable[[int, int], Compression]] = {
    "convolution": ConvolutionCompression,
    "dilated": functools.partial(ConvolutionCompression, dilations=(1, 2)),
    "mean": MeanPooling,
    "max": MaxPooling,
    "most-used": MostUsed,
}


def autoencoding_loss(
    decoder: nn.Module, rate: int, evicted: Tensor, compressed: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared error of the decoded slots (section 3.2): its sum over the valid memories, and their number.

    `decoder` maps each slot of `compressed` [B, n_s / c, D] to a group of memories. `evicted` [B, n_s, D] receives no
    gradient; its invalid memories, see `valid` [B, n_s], are zeros.
    """
    decoded = decoder(compressed).unflatten(-1, (rate, -1)).flatten(1, 2)
    error = F.mse_loss(decoded, evicted.detach(), reduction="none").mean(dim=2)
    return (error * valid).sum(), valid.sum()


def attention_loss(
    attention: RelativeAttention,
    norm: nn.LayerNorm | None,
    queries: Tensor,
    evicted: Tensor,
    compressed: Tensor,
    valid: Tensor,
) -> tuple[Tensor, Tensor]:
    """Squared error of attention over compressed memory (Algorithm 2): its sum over rows with valid memories, and their
    number. Only `compressed` [B, n_s / c, D] receives a gradient.

    `queries` [B, n_s, D] are the layer inputs of the segment that displaced the memories; `norm` is that of the inputs
    of attention, if there is one. Invalid memories of `evicted` [B, n_s, D], see `valid` [B, n_s], are zeros.
    """
    queries, evicted = queries.detach(), evicted.detach()
    if norm is not None:
        weight, bias = norm.weight.detach(), norm.bias.detach()
        queries, evicted, compressed = (
            F.layer_norm(slots, norm.normalized_shape, weight, bias, norm.eps)
            for slots in (queries, evicted, compressed)
        )
    with torch.no_grad():
        query = attention.query(queries)
        target = attention.reconstruct(query, evicted)
    # Autocast computes mse_loss in float32, unlike a difference.
    error = F.mse_loss(attention.reconstruct(query, compressed), target, reduction="none").mean(dim=(1, 2))
    present = valid.any(dim=1)
    return (error * present).sum(), present.sum()
