"""Running moments, and the standardization of vectors by them.

A moment moves towards that of each batch by a share of the distance. The first batches have equal shares, because
moments that begin at 0 and 1 would be wrong for many updates.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agent.encoders import vectors_of
from agent.trajectory import Sensed

RATE = 1e-4
"""Share of a batch in the moments of observations, after the first 1 / RATE batches. It is small, so that most runs
have the moments of all that they have seen: whatever moves them shifts all that an agent sees. With 0.002 they followed
the last few episodes, and an agent of cartpole-swingup fell from a return of 731 to 296 when it was given the moments
of a hundred thousand steps later."""
LARGEST = torch.finfo(torch.float32).max
LEAST_DEVIATION = 1e-4
"""Least standard deviation, as a multiple of min(1, root mean square of the element). What has nearly always been the
same would otherwise become huge when it changes for once."""


def share_of_batch(batches: Tensor, rate: float) -> Tensor:
    """The share of the newest of a number of batches in running moments: 1 / batches, and `rate` at least."""
    return (1 / batches.clamp(min=1).double()).clamp(min=rate)


def move(moment: Tensor, batch: Tensor, share: Tensor, known: Tensor) -> None:
    """Moves a moment towards that of a batch, where `known` is true, in place."""
    moved = (1 - share) * moment + share * batch  # exactly the batch's for a share of 1, however small it is
    moment.copy_(torch.where(known, moved, moment))


class Standardization(nn.Module):
    """Standardizes the vectors of observations by their running means and deviations. Images stay as they are.

    Elements whose size is far from 1, such as the velocities of MountainCar or of MuJoCo's joints, are then as easily
    told apart as others (recommended by Andrychowicz et al. 2021, arXiv:2006.05990).

    Args:
        sizes: number of elements of each vector, in the order of the parts; at least one vector.

    Buffers, of the N elements of all vectors, one vector after the other:
        mean, second_moment: [N] float64. They begin as those of a standard normal distribution.
        batches: scalar int64, the number of batches.
    """

    mean: Tensor
    second_moment: Tensor
    batches: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)
        number = sum(sizes)
        self.register_buffer("mean", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("second_moment", torch.ones(number, dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    @property
    def deviation(self) -> Tensor:
        """[N] float64, the standard deviations within their limit; see `LEAST_DEVIATION`."""
        variance = self.second_moment - self.mean.square()
        size = torch.where(self.second_moment > 0, self.second_moment.clamp(max=1), 1)
        return variance.maximum(LEAST_DEVIATION**2 * size).sqrt()

    def forward(self, sensed: Sensed) -> Sensed:
        """Standardizes the vectors [..., features] float32 among the parts of an observation.

        Raises:
            ValueError: if there are other vectors than those whose moments are known.
        """
        sizes = [vectors.shape[-1] for vectors in vectors_of(sensed)]
        if sizes != self.sizes:
            raise ValueError(f"observation: expected vectors of {self.sizes} features, got {sizes}")
        means = self.mean.float().split(self.sizes)
        deviations = self.deviation.float().split(self.sizes)
        parts = sensed if isinstance(sensed, tuple) else (sensed,)
        standardized: list[Tensor] = []
        vector = 0  # the number of the next vector; images are not counted
        for part in parts:
            if part.dtype == torch.float32:
                standard = (part - means[vector]) / deviations[vector]
                # Sizes near the largest of float32, which stand for "nothing" in some environments, would be infinite.
                part = standard.clamp(-LARGEST, LARGEST)
                vector += 1
            standardized.append(part)
        if isinstance(sensed, tuple):
            return tuple(standardized)
        return standardized[0]

    def sums(self, sensed: Sensed) -> Tensor:
        """Number, sum and sum of squares of each element, [3, N] float64."""
        columns: list[Tensor] = []
        for part in vectors_of(sensed):
            vectors = part.flatten(0, -2).double()
            number = torch.full_like(vectors[0], len(vectors))
            columns.append(torch.stack([number, vectors.sum(dim=0), vectors.square().sum(dim=0)]))
        return torch.cat(columns, dim=1)

    @torch.no_grad()
    def update_statistics(self, sums: Tensor, skipped: Tensor | None = None) -> None:
        """Moves the moments towards those of a batch, given its `sums`.

        `skipped` is a scalar, 1 to change nothing. Reads nothing from the device.
        """
        number, total, squares = sums
        known = torch.ones_like(self.batches, dtype=torch.bool)
        if skipped is not None:
            known = skipped == 0
        self.batches += known
        share = share_of_batch(self.batches, RATE)
        move(self.mean, total / number, share, known)
        move(self.second_moment, squares / number, share, known)
