"""The losses against literal loops, their gradients against the paper, and the clipping of rewards."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner import losses

ROWS, STEPS, ACTIONS = 3, 5, 4


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "logits": normal(ROWS, STEPS, ACTIONS),
        "actions": torch.randint(ACTIONS, (ROWS, STEPS), generator=generator),
        "advantages": normal(ROWS, STEPS),
        "values": normal(ROWS, STEPS),
        "targets": normal(ROWS, STEPS),
        "mask": torch.rand(ROWS, STEPS, generator=generator) < 0.7,
    }


def probabilities(batch, b, t):
    exponentials = [math.exp(x) for x in batch["logits"][b, t].tolist()]
    return [x / sum(exponentials) for x in exponentials]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_losses_equal_literal_loops(batch, reduction):
    logits, mask = batch["logits"], batch["mask"]

    def policy_gradient(b, t):
        return -math.log(probabilities(batch, b, t)[batch["actions"][b, t]]) * batch["advantages"][b, t].item()

    def baseline(b, t):
        return 0.5 * (batch["targets"][b, t].item() - batch["values"][b, t].item()) ** 2

    def negative_entropy(b, t):
        return sum(p * math.log(p) for p in probabilities(batch, b, t))

    got = {
        policy_gradient: losses.policy_gradient_loss(logits, batch["actions"], batch["advantages"], mask, reduction),
        baseline: losses.baseline_loss(batch["values"], batch["targets"], mask, reduction),
        negative_entropy: losses.entropy_loss(logits, mask, reduction),
    }
    steps = [(b, t) for b in range(ROWS) for t in range(STEPS) if mask[b, t]]
    assert 0 < len(steps) < ROWS * STEPS
    for of_step, loss in got.items():
        total = sum(of_step(b, t) for b, t in steps)
        assert loss.item() == pytest.approx(total / (len(steps) if reduction == "mean" else 1), rel=1e-12)


def test_policy_gradient_is_that_of_the_paper(batch):
    """The gradient of -log pi(a) by the logits is softmax - one-hot; section 4.2 weights it by the advantage."""
    logits = batch["logits"].requires_grad_()
    advantages = batch["advantages"].requires_grad_()
    losses.policy_gradient_loss(logits, batch["actions"], advantages, batch["mask"], "sum").backward()
    one_hot = torch.nn.functional.one_hot(batch["actions"], ACTIONS)
    weight = (batch["advantages"] * batch["mask"]).detach()[..., None]
    torch.testing.assert_close(logits.grad, weight * (logits.detach().softmax(-1) - one_hot))
    assert advantages.grad is None


def test_baseline_gradient_is_value_minus_target(batch):
    values, targets = batch["values"].requires_grad_(), batch["targets"].requires_grad_()
    losses.baseline_loss(values, targets, batch["mask"], "sum").backward()
    torch.testing.assert_close(values.grad, ((values - targets) * batch["mask"]).detach())
    assert targets.grad is None


@settings(max_examples=8 * settings.default.max_examples)
@given(rows=st.integers(1, 4), steps=st.integers(1, 6), seed=st.integers(0, 1000), acting=st.floats(0, 1))
def test_mean_is_sum_over_count_and_zero_of_none(rows, steps, seed, acting):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, steps, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, steps, generator=generator) < acting
    total = losses.reduce(values, mask, "sum")
    torch.testing.assert_close(losses.reduce(values, mask, "mean") * max(1, int(mask.sum())), total)
    torch.testing.assert_close(total, values[mask].sum())


def test_reduce_errors():
    values = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"mask: expected torch.bool \[2, 3\], got torch.bool \[3\]"):
        losses.reduce(values, torch.ones(3, dtype=torch.bool), "sum")
    with pytest.raises(ValueError, match="reduction: expected 'sum' or 'mean', got 'max'"):
        losses.reduce(values, torch.ones(2, 3, dtype=torch.bool), "max")


def test_reward_clipping():
    rewards = torch.tensor([10.0, -10.0, 1.0, 0.0, -0.5])
    clipped = {name: clip(rewards).tolist() for name, clip in losses.REWARD_CLIPPING.items()}
    assert clipped["none"] == rewards.tolist()
    assert clipped["abs_one"] == [1.0, -1.0, 1.0, 0.0, -0.5]
    expected = [5 * math.tanh(2), -1.5 * math.tanh(2), 5 * math.tanh(0.2), 0.0, -1.5 * math.tanh(0.1)]
    assert clipped["soft_asymmetric"] == pytest.approx(expected, rel=1e-6)
