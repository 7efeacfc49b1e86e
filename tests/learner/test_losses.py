"""The losses against literal loops, and the clipping of rewards."""

import math

import pytest
import torch

from agent.policies import Categorical
from learner import losses

ROWS, STEPS, ACTIONS = 3, 5, 4


@pytest.mark.parametrize("acting", [0.7, 0.0])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_losses_equal_literal_loops(reduction: str, acting: float) -> None:
    """Their gradients pass through policy and values, not through advantages and targets."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, STEPS, ACTIONS, generator=generator, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(ACTIONS, (ROWS, STEPS), generator=generator)
    advantages, values, targets = (
        torch.randn(ROWS, STEPS, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    mask = torch.rand(ROWS, STEPS, generator=generator) < acting

    def probabilities(b: int, t: int) -> list[float]:
        exponentials = [math.exp(x) for x in logits[b, t].tolist()]
        return [x / sum(exponentials) for x in exponentials]

    def policy_gradient(b: int, t: int) -> float:
        return -math.log(probabilities(b, t)[actions[b, t]]) * advantages[b, t].item()

    def baseline(b: int, t: int) -> float:
        return 0.5 * (targets[b, t].item() - values[b, t].item()) ** 2

    def negative_entropy(b: int, t: int) -> float:
        return sum(p * math.log(p) for p in probabilities(b, t))

    policy = Categorical(ACTIONS)
    log_probs = policy.log_prob(logits, actions)
    got = {
        policy_gradient: losses.policy_gradient_loss(log_probs, advantages, mask, reduction),
        baseline: losses.baseline_loss(values, targets, mask, reduction),
        negative_entropy: losses.entropy_loss(policy.entropy(logits), mask, reduction),
    }
    steps = [(b, t) for b in range(ROWS) for t in range(STEPS) if mask[b, t]]
    assert len(steps) < ROWS * STEPS
    for of_step, loss in got.items():
        expected = sum(of_step(b, t) for b, t in steps) / (max(1, len(steps)) if reduction == "mean" else 1)
        assert loss.item() == pytest.approx(expected, rel=1e-12)
    sum(got.values()).backward()
    assert (logits.grad is None, values.grad is None) == (False, False)
    assert advantages.grad is targets.grad is None


def test_reduce_errors() -> None:
    values = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"mask: expected torch.bool \[2, 3\], got torch.bool \[3\]"):
        losses.reduce(values, torch.ones(3, dtype=torch.bool), "sum")


def test_reward_clipping() -> None:
    rewards = torch.tensor([10.0, -10.0, 1.0, 0.5, 0.0, -0.5])
    clipped = {name: clip(rewards).tolist() for name, clip in losses.REWARD_CLIPPING.items()}
    assert clipped["none"] == rewards.tolist()
    assert clipped["abs_one"] == [1.0, -1.0, 1.0, 0.5, 0.0, -0.5]
    large, small = math.tanh(2), math.tanh(0.1)
    expected = [5 * large, -1.5 * large, 5 * math.tanh(0.2), 5 * small, 0.0, -1.5 * small]
    assert clipped["soft_asymmetric"] == pytest.approx(expected, rel=1e-6)
