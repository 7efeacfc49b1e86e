"""Compression functions (paper, section 3.2): modules that map evicted memories to fewer slots.

A compression function maps [B, n, D] to [B, n / c, D]; group g of c consecutive memories becomes slot g. To add one,
write the module and name it in `COMPRESSIONS`. Losses that train them live with the core, which knows the queries.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ConvolutionCompression(nn.Module):
    """A convolution over time with kernel and stride c (the paper's best)."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__()
        self.rate = rate
        # With kernel = stride the convolution is one matrix product over the joined members of a group.
        self.group = nn.Linear(rate * model_size, model_size)

    def forward(self, evicted: Tensor) -> Tensor:
        batch, slots, size = evicted.shape
        return self.group(evicted.reshape(batch, slots // self.rate, self.rate * size))


class MeanPooling(nn.Module):
    """The mean of each group."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, evicted: Tensor) -> Tensor:
        return evicted.unflatten(1, (-1, self.rate)).mean(dim=2)


class MaxPooling(nn.Module):
    """The maximum of each group, feature by feature."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, evicted: Tensor) -> Tensor:
        return evicted.unflatten(1, (-1, self.rate)).amax(dim=2)


COMPRESSIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "convolution": ConvolutionCompression,
    "mean": MeanPooling,
    "max": MaxPooling,
}


def compress_valid(valid: Tensor, rate: int) -> Tensor:
    """Validity of compressed slots [B, n / c]: a slot is valid if any member [B, n] is."""
    return torch.any(valid.unflatten(1, (-1, rate)), dim=2)
