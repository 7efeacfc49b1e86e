"""PopArt (van Hasselt et al. 2016; by task: Hessel et al. 2019): a value head whose weights learn normalized values."""

import torch
from torch import Tensor, nn

from agent.moments import move, share_of_batch

LEAST_SCALE = 1e-4
MOST_SCALE = 1e15
"""Limits of a task's standard deviation. The least is that of Hessel et al.; their greatest, 1e6, is too small for sums
of money. Squares have to be finite, and in float32 normalized values times the scale."""


class PopArt(nn.Linear):
    """A linear value head with a column for each of K tasks, which returns values in units of the reward.

    Column k computes (v - mean_k) / scale_k of the value v, where mean and scale are those of the task's value targets.

    Buffers:
        mean, second_moment: [K] float64, running moments of the targets.
        reward_square: [K] float64, running mean of the squares of rewards.
        batches: [K] int64, batches with targets of each task.
    """

    mean: Tensor
    second_moment: Tensor
    reward_square: Tensor
    batches: Tensor

    def __init__(self, size: int, tasks: int) -> None:
        super().__init__(size, tasks)
        self.register_buffer("mean", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("second_moment", torch.ones(tasks, dtype=torch.float64))
        self.register_buffer("reward_square", torch.zeros(tasks, dtype=torch.float64))
        self.register_buffer("batches", torch.zeros(tasks, dtype=torch.int64))

    @property
    def scale(self) -> Tensor:
        """[K] float64, the standard deviations within their limits."""
        variance = self.second_moment - self.mean.square()
        return variance.clamp(LEAST_SCALE**2, MOST_SCALE**2).sqrt()

    def forward(self, features: Tensor) -> Tensor:
        """Values [..., K] of features [..., size]."""
        normalized = super().forward(features)
        return normalized * self.scale.to(normalized.dtype) + self.mean.to(normalized.dtype)

    def of_task(self, values: Tensor, task: Tensor) -> Tensor:
        """The values [B, T] of tasks [B] int64, out of [B, T, K], or of [B, T] for K = 1."""
        if values.ndim == 2:
            return values
        steps = values.shape[1]
        index = task[:, None, None].expand(-1, steps, 1)
        return values.gather(2, index).squeeze(2)

    def sums(self, targets: Tensor, mask: Tensor, task: Tensor) -> Tensor:
        """Number, sum and sum of squares by task, [3, K] float64, of targets [B, T] where `mask` [B, T] is true.

        `task` [B] int64 is that of each row.
        """
        targets = torch.where(mask, targets, 0.0).double()
        number = mask.double().sum(dim=1)
        total = targets.sum(dim=1)
        squares = targets.square().sum(dim=1)
        by_row = torch.stack([number, total, squares])  # [3, B]
        tasks = torch.arange(self.out_features, device=task.device)
        is_task = (task[:, None] == tasks).double()  # [B, K]
        return by_row @ is_task

    @torch.no_grad()
    def first_values(self, rewards: Tensor, ends: Tensor) -> Tensor:
        """What to add to the values of each task in its first batch, [K] float64; 0 for tasks that have had one.

        Values that begin at 0 are wrong by the same amount in all states, and while they fall or rise to where they
        belong, the states that an agent meets early look better or worse than those that it meets late. A policy that
        follows such differences may end exploration before the first success: Acrobot's did. So values begin at the
        constant c at which temporal differences r + discount c - c are 0 in the mean of the first batch.

        Args:
            rewards: `sums` of the rewards.
            ends: `sums` of 1 - discount, the share of the future that a step ends.
        """
        _, total_reward, _ = rewards
        _, total_end, _ = ends
        is_first = (self.batches == 0) & (total_end > 0)
        divisor = torch.where(is_first, total_end, 1.0)  # not 0, also where the quotient is not used
        constant = total_reward / divisor
        return torch.where(is_first, constant, 0.0)

    @torch.no_grad()
    def reward_sizes(self, rewards: Tensor) -> Tensor:
        """The root mean square of the rewards of each task, [K] float64; infinite as long as all of them were 0.

        `rewards`: `sums` of the rewards of a batch, which count for tasks that have had none before.
        """
        count, _, squares = rewards
        of_batch = squares / count.clamp(min=1)
        square = torch.where(self.reward_square > 0, self.reward_square, of_batch)
        return torch.where(square > 0, square.sqrt(), torch.inf)

    @torch.no_grad()
    def update_statistics(
        self,
        sums: Tensor,
        rate: float,
        skipped: Tensor | None = None,
        value_offset: Tensor | float = 0.0,
        rewards: Tensor | None = None,
    ) -> None:
        """Moves the statistics towards those of a batch, and changes the weights so that all values stay the same.

        Reads nothing from the device.

        Args:
            sums: of `sums`. The statistics of a task without targets stay.
            rate: share of the batch in the new moments, beta in the papers. The first 1 / rate batches of a task have
                equal shares instead, since moments that begin at 0 and 1 would be wrong for many updates.
            skipped: scalar, 1 to change nothing, bit for bit.
            value_offset: [K], added to the values of each task, see `first_values`; it is part of them from now on.
            rewards: `sums` of the rewards, whose size moves at a tenth of the rate: they may be rare.
        """
        count, total, squares = sums
        known = count > 0
        if skipped is not None:
            known = known & (skipped == 0)

        # What turns the head's output into values so far; the offset is added to them.
        old_mean = self.mean + value_offset
        old_scale = self.scale

        # The statistics.
        self.batches += known
        share = share_of_batch(self.batches, rate)
        divisor = count.clamp(min=1)
        move(self.mean, total / divisor, share, known)
        move(self.second_moment, squares / divisor, share, known)
        if rewards is not None:
            reward_count, _, reward_squares = rewards
            slower_share = share_of_batch(self.batches, rate / 10)
            move(self.reward_square, reward_squares / reward_count.clamp(min=1), slower_share, known)

        # The weights that give the same values: w' = w scale / scale', b' = (scale b + mean - mean') / scale'.
        new_mean = self.mean
        new_scale = self.scale  # computed anew from the moments
        ratio = old_scale / new_scale
        old_bias = self.bias.double()
        new_bias = (old_scale * old_bias + old_mean - new_mean) / new_scale
        self.weight.copy_(self.weight.double() * ratio[:, None])
        # Where nothing is known the bias stays, bit for bit: rounding would change it. There the ratio is exactly 1.
        self.bias.copy_(torch.where(known, new_bias, old_bias))
