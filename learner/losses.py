"""The three losses of an actor-critic and the clipping of rewards, as pure functions; losses are scalars.

The IMPALA paper (section 4.2) gives the gradients; the losses here are their antiderivatives. Targets and advantages
are taken as constants. What is weighted how and added up is the business of `learner`.

B batch, T time, A actions. `acted` [B, T] bool is false where the action took no effect; such steps enter no loss.
`reduction` and what is raised are those of `reduce`.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from agent.core import Mean
from learner.vtrace import action_log_probs

Reduction = Literal["sum", "mean"]


def _soft_asymmetric(reward: Tensor) -> Tensor:
    squashed = 5.0 * torch.tanh(reward / 5.0)
    return torch.where(reward < 0, 0.3 * squashed, squashed)


REWARD_CLIPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda reward: reward,
    "abs_one": lambda reward: reward.clamp(-1.0, 1.0),
    "soft_asymmetric": _soft_asymmetric,
}
"""Maps rewards elementwise. `abs_one` and `soft_asymmetric` (5 tanh(r / 5), times 0.3 where r < 0, so that +10, -10 and
+1 become 4.82, -1.45 and 0.99) are the two modes of IMPALA's published code, `scalable_agent`."""


def reduce_losses(losses: dict[str, Mean], all_reduce: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """This learner's parts of the network's auxiliary losses, scalars that add up to the losses of the whole batch.

    `all_reduce` sums a tensor over the learners, without gradient.
    """
    return {name: (mean.total / all_reduce(mean.count).clamp(min=1)).mean() for name, mean in losses.items()}


def reduce(values: Tensor, acted: Tensor, reduction: Reduction) -> Tensor:
    """Reduces [B, T] to a scalar over the steps that acted.

    Args:
        values: [B, T].
        acted: [B, T] bool.
        reduction: "sum" over batch and time, as IMPALA; "mean" over the steps that acted (0 if none did).

    Raises:
        ValueError: if the shapes differ, `acted` is not boolean or the reduction is unknown.
    """
    if values.shape != acted.shape or acted.dtype != torch.bool:
        raise ValueError(f"acted: expected torch.bool {list(values.shape)}, got {acted.dtype} {list(acted.shape)}")
    total = torch.where(acted, values, torch.zeros_like(values)).sum()
    if reduction == "sum":
        return total
    if reduction == "mean":
        return total / acted.sum().clamp(min=1)
    raise ValueError(f"reduction: expected 'sum' or 'mean', got {reduction!r}")


def policy_gradient_loss(
    policy_logits: Tensor, actions: Tensor, advantages: Tensor, acted: Tensor, reduction: Reduction = "sum"
) -> Tensor:
    """-log pi(a) * advantage, whose gradient is the negative of section 4.2's policy gradient.

    Args:
        policy_logits: [B, T, A] of the target policy.
        actions: [B, T] int64 that the behaviour policy chose.
        advantages: [B, T], importance weights included; no gradient passes through them.
    """
    return reduce(-action_log_probs(policy_logits, actions) * advantages.detach(), acted, reduction)


def baseline_loss(values: Tensor, targets: Tensor, acted: Tensor, reduction: Reduction = "sum") -> Tensor:
    """0.5 * (target - value)^2: the l2 loss towards the V-trace targets, section 4.2.

    Args:
        values: [B, T].
        targets: [B, T]; no gradient passes through them.
    """
    return reduce(0.5 * (targets.detach() - values).square(), acted, reduction)


def entropy(policy_logits: Tensor) -> Tensor:
    """The entropy in nats of the policies given by [..., A] logits, [...]."""
    log_probabilities = torch.log_softmax(policy_logits, dim=-1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=-1)


def entropy_loss(policy_logits: Tensor, acted: Tensor, reduction: Reduction = "sum") -> Tensor:
    """The negative entropy of the policy at the steps that acted: less is more random (section 4.2's entropy bonus)."""
    return reduce(-entropy(policy_logits), acted, reduction)
