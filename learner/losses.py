"""The three losses of an actor-critic, as pure functions that return scalars, and the clipping of rewards.

The gradients are those of the IMPALA paper, section 4.2. No gradient passes through targets and advantages.
`learner.impala` weights and adds the losses.

B batch, T time. Steps where `mask` [B, T] bool is false (the action had no effect) enter no loss. See
`reduce` for `reduction` and errors.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from agent.core import Mean

Reduction = Literal["sum", "mean"]


def _soft_asymmetric(reward: Tensor) -> Tensor:
    """Squashes rewards into -1.5..5, with less weight on negative ones."""
    squashed = 5.0 * torch.tanh(reward / 5.0)
    return torch.where(reward < 0, 0.3 * squashed, squashed)


REWARD_CLIPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda reward: reward,
    "abs_one": lambda reward: reward.clamp(-1.0, 1.0),
    "soft_asymmetric": _soft_asymmetric,
}
"""Elementwise functions of rewards; `abs_one` and `soft_asymmetric` are the two of IMPALA's code, `scalable_agent`."""


def reduce_losses(losses: dict[str, Mean], all_reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """This learner's parts of the network's auxiliary losses, scalars that add up to the losses of the whole batch.

    `all_reduce` sums a tensor over the learners, without gradient.
    """
    parts: dict[str, Tensor] = {}
    for name, mean in losses.items():
        # The count is that of the batch, the total that of this learner's rows.
        count = all_reduce(mean.count).clamp(min=1)
        parts[name] = (mean.total / count).mean()
    return parts


def reduce(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Reduces values [B, T] where `mask` [B, T] is true: "sum", as IMPALA, or "mean" (0 if the mask is all false).

    Raises:
        ValueError: if the shapes differ or `mask` is not boolean.
    """
    if values.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(f"mask: expected torch.bool {list(values.shape)}, got {mask.dtype} {list(mask.shape)}")
    # `where`, not a product: masked values may be infinite or NaN.
    total = torch.where(mask, values, 0.0).sum()
    if reduction == "sum":
        return total
    return total / mask.sum().clamp(min=1)


def policy_gradient_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor, reduction: Reduction = "sum") -> Tensor:
    """-log pi(a) * advantage, whose gradient is the negative policy gradient of section 4.2.

    Log-probabilities [B, T] are those of the behavior policy's actions under the target policy; advantages [B, T]
    include the importance weights.
    """
    return reduce(-log_probs * advantages.detach(), mask, reduction)


def baseline_loss(values: Tensor, targets: Tensor, mask: Tensor, reduction: Reduction = "sum") -> Tensor:
    """0.5 * (target - value)^2 of values and V-trace targets [B, T], section 4.2."""
    errors = targets.detach() - values
    return reduce(0.5 * errors.square(), mask, reduction)


def entropy_loss(entropy: Tensor, mask: Tensor, reduction: Reduction = "sum") -> Tensor:
    """The negative entropy [B, T] of the policy, section 4.2."""
    return reduce(-entropy, mask, reduction)
