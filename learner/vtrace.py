"""V-trace (IMPALA, Espeholt et al. 2018, arXiv:1802.01561, section 4.1) as pure functions of batch first tensors.

Time indices: step t has an observation, its value V_t and an action. `rewards[:, t]` and `discounts[:, t]` follow that
action: `trajectory.reward[:, t + 1]` and gamma times `trajectory.discount[:, t + 1]`.

Mask: the action at the last observation of an episode has no effect. There, mask_t is false, delta_t = 0 and the trace
is cut, so that vs_t = V_t; rewards, discounts and importance weights of such a step are never used. The step before it
bootstraps by its own discount: 0 where the episode terminated, gamma where it was truncated.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """Constants without gradient.

    vs: [B, T] targets of the value function, equation (1); the values where the mask is false.
    pg_advantages: [B, T] clipped importance weight * (r + discount * vs_{t+1} - V); 0 where the mask is false.
    mean_rho: scalar, mean of the importance weights before clipping where the mask is true.
    clipped_fraction: scalar, fraction of these weights above `clip_rho_threshold` (0 without clipping), by more than a
        thousandth: acting and learning round differently, so that equal policies have weights of nearly 1.
    """

    vs: Tensor
    pg_advantages: Tensor
    mean_rho: Tensor
    clipped_fraction: Tensor


def vtrace(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    mask: Tensor,
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
        log_rhos: [B, T] log pi(a_t | x_t) - log mu(a_t | x_t) of the target policy pi and the behavior policy mu.
        discounts: [B, T] gamma times the environment's discount after action t.
        rewards: [B, T] rewards of action t, clipped and scaled.
        values: [B, T] V_t.
        bootstrap_value: [B] V_T.
        mask: [B, T] bool, false where the action had no effect.
        clip_rho_threshold: rho_bar > 0, which determines the fixed point; None does not clip.
        clip_c_threshold: 0 < c_bar <= rho_bar, which determines speed and variance; None does not clip.
        clip_pg_rho_threshold: threshold > 0 of the weights of the policy gradient; None does not clip.
        lambda_: factor of the traces in [0, 1] (Remark 2); 1 is the paper's V-trace, 0 gives one-step targets. The
            advantages use vs_{t+1} without another lambda, in contrast to rlax: they look two steps ahead for 0.

    Raises:
        ValueError: names the argument, the expected and the actual value, shape or dtype.
    """
    _check(log_rhos, discounts, rewards, values, bootstrap_value, mask)
    rho_bar = _bar("clip_rho_threshold", clip_rho_threshold)
    c_bar = _bar("clip_c_threshold", clip_c_threshold)
    pg_rho_bar = _bar("clip_pg_rho_threshold", clip_pg_rho_threshold)
    if c_bar > rho_bar:
        raise ValueError(f"clip_c_threshold: expected at most clip_rho_threshold, {rho_bar}, got {c_bar}")
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_: expected 0 to 1, got {lambda_}")
    with torch.no_grad():
        rhos = log_rhos.exp()
        next_values = torch.cat([values[:, 1:], bootstrap_value.unsqueeze(1)], dim=1)
        errors = rewards + discounts * next_values - values
        # `where`, not a product: masked values may be infinite or NaN.
        deltas = torch.where(mask, rhos.clamp(max=rho_bar) * errors, 0.0)
        decays = torch.where(mask, discounts * lambda_ * rhos.clamp(max=c_bar), 0.0)

        # vs_t - V_t, from the last step to the first.
        correction = torch.zeros_like(bootstrap_value)
        corrections: list[Tensor] = []
        for delta, decay in zip(reversed(deltas.unbind(1)), reversed(decays.unbind(1)), strict=True):
            correction = delta + decay * correction
            corrections.append(correction)
        corrections.reverse()
        vs = values + torch.stack(corrections, dim=1)

        # The advantage of an action: its value by the targets, less that of the state.
        next_vs = torch.cat([vs[:, 1:], bootstrap_value.unsqueeze(1)], dim=1)
        action_values = rewards + discounts * next_vs
        advantages = rhos.clamp(max=pg_rho_bar) * (action_values - values)

        count = mask.sum().clamp(min=1)
        clipped = mask & (rhos > 1.001 * rho_bar)
        return VTraceReturns(
            vs=vs,
            pg_advantages=torch.where(mask, advantages, 0.0),
            mean_rho=torch.where(mask, rhos, 0.0).sum() / count,
            clipped_fraction=clipped.sum() / count,
        )


def _bar(name: str, threshold: float | None) -> float:
    """A threshold as a number; None does not clip."""
    if threshold is None:
        return math.inf
    if not threshold > 0:
        raise ValueError(f"{name}: expected a number above 0, or None, got {threshold}")
    return threshold


def _check(
    log_rhos: Tensor, discounts: Tensor, rewards: Tensor, values: Tensor, bootstrap_value: Tensor, mask: Tensor
) -> None:
    """Raises the errors of `vtrace` about tensors."""
    if log_rhos.ndim != 2 or log_rhos.shape[1] == 0:
        raise ValueError(f"log_rhos: expected [B, T] with T >= 1, got {list(log_rhos.shape)}")
    others = {"discounts": discounts, "rewards": rewards, "values": values, "mask": mask}
    for name, tensor in others.items():
        if tensor.shape != log_rhos.shape:
            raise ValueError(f"{name}: expected {list(log_rhos.shape)} as log_rhos, got {list(tensor.shape)}")
    if bootstrap_value.shape != log_rhos.shape[:1]:
        raise ValueError(f"bootstrap_value: expected {list(log_rhos.shape[:1])}, got {list(bootstrap_value.shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected torch.bool, got {mask.dtype}")
