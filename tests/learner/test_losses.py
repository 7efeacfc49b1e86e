"""The losses against literal loops, and the clipping of rewards."""

import math

import pytest
import torch
from torch import Tensor

from agent.policies import Categorical
from learner import losses

ROWS = 3
STEPS = 5
ACTIONS = 4


@pytest.mark.parametrize("acting", [0.7, 0.0])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_losses_equal_literal_loops(reduction: str, acting: float) -> None:
    """Their gradients pass through policy and values, not through advantages and targets."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    logits = normal(ROWS, STEPS, ACTIONS)
    actions = torch.randint(ACTIONS, (ROWS, STEPS), generator=generator)
    advantages = normal(ROWS, STEPS)
    values = normal(ROWS, STEPS)
    targets = normal(ROWS, STEPS)
    mask = torch.rand(ROWS, STEPS, generator=generator) < acting

    policy = Categorical(ACTIONS)
    log_probs = policy.log_prob(logits, actions)
    policy_gradient = losses.policy_gradient_loss(log_probs, advantages, mask, reduction)
    baseline = losses.baseline_loss(values, targets, mask, reduction)
    negative_entropy = losses.entropy_loss(policy.entropy(logits), mask, reduction)

    # The sums over the steps that are not masked.
    expected = {"policy gradient": 0.0, "baseline": 0.0, "negative entropy": 0.0}
    steps = mask.nonzero().tolist()
    assert len(steps) < ROWS * STEPS
    for b, t in steps:
        exponentials = [math.exp(x) for x in logits[b, t].tolist()]
        probabilities = [x / sum(exponentials) for x in exponentials]
        expected["policy gradient"] -= math.log(probabilities[actions[b, t]]) * advantages[b, t].item()
        expected["baseline"] += 0.5 * (targets[b, t].item() - values[b, t].item()) ** 2
        expected["negative entropy"] += sum(p * math.log(p) for p in probabilities)
    if reduction == "mean":
        count = max(1, len(steps))
        expected = {name: total / count for name, total in expected.items()}
    assert policy_gradient.item() == pytest.approx(expected["policy gradient"], rel=1e-12)
    assert baseline.item() == pytest.approx(expected["baseline"], rel=1e-12)
    assert negative_entropy.item() == pytest.approx(expected["negative entropy"], rel=1e-12)

    (policy_gradient + baseline + negative_entropy).backward()
    assert logits.grad is not None
    assert values.grad is not None
    assert advantages.grad is None
    assert targets.grad is None


def test_a_mask_of_another_shape_is_refused() -> None:
    values = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"mask: expected torch.bool \[2, 3\], got torch.bool \[3\]"):
        losses.reduce(values, torch.ones(3, dtype=torch.bool), "sum")


def test_reward_clipping() -> None:
    rewards = torch.tensor([10.0, -10.0, 1.0, 0.5, 0.0, -0.5])
    clipped = {name: clip(rewards).tolist() for name, clip in losses.REWARD_CLIPPING.items()}
    assert clipped["none"] == rewards.tolist()
    assert clipped["abs_one"] == [1.0, -1.0, 1.0, 0.5, 0.0, -0.5]
    # tanh(r / 5), times 5, or 1.5 if it is negative.
    expected = [
        5 * math.tanh(2),
        -1.5 * math.tanh(2),
        5 * math.tanh(0.2),
        5 * math.tanh(0.1),
        0.0,
        -1.5 * math.tanh(0.1),
    ]
    assert clipped["soft_asymmetric"] == pytest.approx(expected, rel=1e-6)
