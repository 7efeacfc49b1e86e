"""Compression functions (paper, section 3.2): modules that map evicted memories to fewer slots.

A compression function maps evicted memories [B, n, D] to [B, n / c, D]. All but most-used let group g of c consecutive
memories become slot g. To add one, write the module and name it in `COMPRESSIONS`. The losses that train them are in
`layer.py`, for they know the attention and the queries.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F


class Compression(nn.Module):
    """What all compression functions share: the rate."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__()
        self.model_size = model_size
        self.rate = rate

    def forward(self, evicted: Tensor) -> Tensor:
        """Compresses [B, n, D], n a multiple of the rate, to [B, n / rate, D]."""
        raise NotImplementedError

    def groups(self, evicted: Tensor) -> Tensor:
        """Consecutive memories by group: [B, n / rate, rate, D]."""
        return evicted.unflatten(1, (-1, self.rate))


class ConvolutionCompression(Compression):
    """A convolution over time with kernel and stride c (the paper's best)."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__(model_size, rate)
        # With kernel = stride the convolution is one matrix product over the joined members of a group.
        self.group = nn.Linear(rate * model_size, model_size)

    def forward(self, evicted: Tensor) -> Tensor:
        return self.group(self.groups(evicted).flatten(2))


class DilatedCompression(Compression):
    """Convolutions with dilations 1 and 2 that keep the length, each with a ReLU and a residual, then one with kernel
    and stride c. The paper names dilated convolutions and gives no more; the residual keeps the memories in reach."""

    def __init__(self, model_size: int, rate: int) -> None:
        super().__init__(model_size, rate)
        self.dilated = nn.ModuleList(nn.Conv1d(model_size, model_size, 3, padding=d, dilation=d) for d in (1, 2))
        self.group = nn.Linear(rate * model_size, model_size)

    def forward(self, evicted: Tensor) -> Tensor:
        for convolution in self.dilated:
            evicted = evicted + F.relu(convolution(evicted.transpose(1, 2))).transpose(1, 2)
        return self.group(self.groups(evicted).flatten(2))


class MeanPooling(Compression):
    """The mean of each group."""

    def forward(self, evicted: Tensor) -> Tensor:
        return self.groups(evicted).mean(dim=2)


class MaxPooling(Compression):
    """The maximum of each group, feature by feature."""

    def forward(self, evicted: Tensor) -> Tensor:
        return self.groups(evicted).amax(dim=2)


class MostUsed(Compression):
    """Keeps the n / c memories that were attended to most, in temporal order; the core measures that (slower)."""

    def select(self, usage: Tensor, valid: Tensor) -> Tensor:
        """Indices [B, n / c] of the memories to keep, ascending.

        Args:
            usage: [B, n], mean attention a memory received each time it could be attended to.
            valid: [B, n] bool; memories that are not valid are kept only where there are too few others.
        """
        ranked = usage.masked_fill(~valid, -1.0)
        # Of equals the newest wins, so that invalid memories, which are the oldest, are never between valid ones.
        order = ranked.flip(1).argsort(dim=1, descending=True, stable=True)[:, : usage.shape[1] // self.rate]
        return (usage.shape[1] - 1 - order).sort(dim=1).values

    def gather(self, evicted: Tensor, index: Tensor) -> Tensor:
        """The memories at `index`: [B, n / c, D]."""
        return evicted.gather(1, index[:, :, None].expand(-1, -1, evicted.shape[2]))


COMPRESSIONS: dict[str, Callable[[int, int], Compression]] = {
    "convolution": ConvolutionCompression,
    "dilated": DilatedCompression,
    "mean": MeanPooling,
    "max": MaxPooling,
    "most-used": MostUsed,
}
