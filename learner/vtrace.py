"""V-trace (IMPALA, Espeholt et al. 2018, arXiv:1802.01561, section 4.1) as pure functions of batch first tensors.

The targets and the advantages are constants to the optimizer: no gradient passes through anything returned here. What
is made of them is the business of `losses`.

Time indices. Step t of a trajectory has an observation, the value V_t of it and an action. `rewards[:, t]` and
`discounts[:, t]` are what came *of* that action: `trajectory.reward[:, t + 1]` and gamma times
`trajectory.discount[:, t + 1]`.

Steps that do not act. At the last observation of an episode the action is ignored, so there is nothing to learn and
nothing to correct: delta_t = 0 and the trace is cut, hence vs_t = V_t. The step before it decides by its own discount:
a terminated episode has discount 0 there and so bootstraps from nothing, a truncated one has discount gamma and so
bootstraps from vs_t = V_t, the value of its last observation. The rewards, discounts and importance weights *at* a step
that does not act (gamma * 1 in a `Trajectory`, as no environment terminates by being reset) are never used, whatever
they hold: if they were, V_t would be tied to the first value of the next episode.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """What V-trace makes of a batch; nothing here carries a gradient."""

    vs: Tensor
    """[B, T] targets of the value function, equation (1); equal to the values where no action took effect."""
    pg_advantages: Tensor
    """[B, T] clipped importance weight times (r + discount * vs_{t+1} - V); 0 where no action took effect."""
    mean_rho: Tensor
    """Scalar: mean of the importance weights before clipping, over the steps that acted."""
    clipped_fraction: Tensor
    """Scalar: the fraction of the steps that acted whose weight exceeds `clip_rho_threshold` (0 without clipping)."""


def action_log_probs(policy_logits: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities of the actions.

    Args:
        policy_logits: [..., A] unnormalised.
        actions: [...] int64 in [0, A).

    Returns:
        [...] log pi(a), differentiable in the logits.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if policy_logits.shape[:-1] != actions.shape:
        raise ValueError(f"actions: expected {list(policy_logits.shape[:-1])}, got {list(actions.shape)}")
    return torch.log_softmax(policy_logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def vtrace(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    acted: Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_c_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    lambda_: float = 1.0,
) -> VTraceReturns:
    """V-trace targets and policy gradient advantages.

    The targets are equation (1) in its recursive form (Remark 1),

        vs_t - V_t = delta_t + discount_t * c_t * (vs_{t+1} - V_{t+1}),
        delta_t = min(rho_bar, rho_t) * (r_t + discount_t * V_{t+1} - V_t),    c_t = lambda * min(c_bar, rho_t),

    where V_T = vs_T is the bootstrap. The advantages take q_t = r_t + discount_t * vs_{t+1} as the estimate of the
    action value, with vs_{t+1} and not V_{t+1} (section 4.2, "V-trace actor-critic algorithm").

    Args:
        log_rhos: [B, T] log pi(a_t | x_t) - log mu(a_t | x_t) of the target policy pi and the behaviour policy mu.
        discounts: [B, T] gamma times the environment's discount of what followed action t.
        rewards: [B, T] rewards of action t, as they are to be learned (clipped, scaled).
        values: [B, T] V_t.
        bootstrap_value: [B] V_T.
        acted: [B, T] bool, false where the action took no effect (see the module's text).
        clip_rho_threshold: rho_bar; None does not clip. It sets which policy's value is the fixed point.
        clip_c_threshold: c_bar, at most rho_bar (section 4.1); None does not clip. It sets the speed and variance of
            the traces.
        clip_pg_rho_threshold: the threshold of the weights of the policy gradient; None does not clip.
        lambda_: factor of the traces in [0, 1] (Remark 2); 1 is the paper's V-trace, 0 one-step targets. The advantages
            take vs_{t+1} without another lambda (rlax: lambda vs_{t+1} + (1 - lambda) V_{t+1}): two steps for 0.

    Raises:
        ValueError: names the argument, what was expected and what came.
    """
    _check(log_rhos, discounts, rewards, values, bootstrap_value, acted)
    for name, threshold in (("rho", clip_rho_threshold), ("c", clip_c_threshold), ("pg_rho", clip_pg_rho_threshold)):
        if threshold is not None and not threshold > 0:
            raise ValueError(f"clip_{name}_threshold: expected a positive number or None, got {threshold}")
    if (clip_c_threshold or math.inf) > (clip_rho_threshold or math.inf):
        raise ValueError(
            f"clip_c_threshold: expected at most clip_rho_threshold = {clip_rho_threshold}, got {clip_c_threshold}"
        )
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_: expected a number in [0, 1], got {lambda_}")
    with torch.no_grad():
        rhos = log_rhos.exp()
        clipped_rhos = _clip(rhos, clip_rho_threshold)
        next_values = torch.cat([values[:, 1:], bootstrap_value.unsqueeze(1)], dim=1)
        zero = torch.zeros_like(values)
        # `where`, not a product: what stands at a step that did not act may be anything, an infinity included.
        deltas = torch.where(acted, clipped_rhos * (rewards + discounts * next_values - values), zero)
        decays = torch.where(acted, discounts * lambda_ * _clip(rhos, clip_c_threshold), zero)

        correction = torch.zeros_like(bootstrap_value)
        corrections: list[Tensor] = []
        for delta, decay in zip(reversed(deltas.unbind(1)), reversed(decays.unbind(1)), strict=True):
            correction = delta + decay * correction
            corrections.append(correction)
        vs = values + torch.stack(corrections[::-1], dim=1)

        next_vs = torch.cat([vs[:, 1:], bootstrap_value.unsqueeze(1)], dim=1)
        pg_rhos = _clip(rhos, clip_pg_rho_threshold)
        pg_advantages = torch.where(acted, pg_rhos * (rewards + discounts * next_vs - values), zero)

        count = acted.sum().clamp(min=1)
        exceeds = acted & (rhos > clip_rho_threshold) if clip_rho_threshold is not None else torch.zeros_like(acted)
        return VTraceReturns(
            vs=vs,
            pg_advantages=pg_advantages,
            mean_rho=torch.where(acted, rhos, zero).sum() / count,
            clipped_fraction=exceeds.sum() / count,
        )


def _clip(weights: Tensor, threshold: float | None) -> Tensor:
    return weights if threshold is None else weights.clamp(max=threshold)


def _check(
    log_rhos: Tensor, discounts: Tensor, rewards: Tensor, values: Tensor, bootstrap_value: Tensor, acted: Tensor
) -> None:
    if log_rhos.ndim != 2 or log_rhos.shape[1] == 0:
        raise ValueError(f"log_rhos: expected [B, T] with T >= 1, got {list(log_rhos.shape)}")
    for name, tensor in (("discounts", discounts), ("rewards", rewards), ("values", values), ("acted", acted)):
        if tensor.shape != log_rhos.shape:
            raise ValueError(f"{name}: expected {list(log_rhos.shape)} as log_rhos, got {list(tensor.shape)}")
    if bootstrap_value.shape != log_rhos.shape[:1]:
        raise ValueError(f"bootstrap_value: expected {list(log_rhos.shape[:1])}, got {list(bootstrap_value.shape)}")
    if acted.dtype != torch.bool:
        raise ValueError(f"acted: expected torch.bool, got {acted.dtype}")
