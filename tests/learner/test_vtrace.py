"""V-trace against the literal sum of the paper, calculation by hand, rlax, and its identities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.vtrace import action_log_probs, vtrace

# Few steps, exactly representable, so that the arithmetic below can be followed.
HAND = {
    "log_rhos": torch.tensor([[2.0, 0.5, 1.5]], dtype=torch.float64).log(),
    "discounts": torch.full((1, 3), 0.5, dtype=torch.float64),
    "rewards": torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64),
    "values": torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64),
    "bootstrap_value": torch.tensor([8.0], dtype=torch.float64),
    "mask": torch.ones(1, 3, dtype=torch.bool),
}


def random_inputs(rows: int, steps: int, seed: int, acting: float = 0.8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "log_rhos": 0.7 * normal(rows, steps),
        "discounts": 0.9 * (torch.rand(rows, steps, generator=generator) < 0.9).double(),
        "rewards": normal(rows, steps),
        "values": normal(rows, steps),
        "bootstrap_value": normal(rows),
        "mask": torch.rand(rows, steps, generator=generator) < acting,
    }


def literal(
    log_rhos, discounts, rewards, values, bootstrap_value, mask, rho_bar=1.0, c_bar=1.0, pg_bar=1.0, lambda_=1.0
):
    """Equation (1) as it is printed, for each row and step: O(T^2), no recursion.

    v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V
    where the sum ends before the next masked step.
    """
    rows, steps = rewards.shape
    infinity = float("inf")
    rho_bar, c_bar, pg_bar = (infinity if bar is None else bar for bar in (rho_bar, c_bar, pg_bar))
    vs = torch.zeros_like(values)
    advantages = torch.zeros_like(values)
    for b in range(rows):
        value = [*values[b].tolist(), bootstrap_value[b].item()]
        rho = [math.exp(x) for x in log_rhos[b].tolist()]
        for s in range(steps):
            end = next((t for t in range(s, steps) if not mask[b, t]), steps)
            total = value[s]
            for t in range(s, end):
                product = 1.0
                for i in range(s, t):
                    product *= discounts[b, i].item() * lambda_ * min(c_bar, rho[i])
                delta = min(rho_bar, rho[t]) * (rewards[b, t].item() + discounts[b, t].item() * value[t + 1] - value[t])
                total += product * delta
            vs[b, s] = total
        following = [*vs[b].tolist(), bootstrap_value[b].item()]
        for s in range(steps):
            if mask[b, s]:
                q = rewards[b, s].item() + discounts[b, s].item() * following[s + 1]
                advantages[b, s] = min(pg_bar, rho[s]) * (q - value[s])
    return vs, advantages


THRESHOLDS = [0.5, 1.0, 2.0, None]


@settings(max_examples=15 * settings.default.max_examples)
@given(
    rows=st.integers(1, 3),
    steps=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    acting=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    bars=st.sampled_from([(rho, c) for at, rho in enumerate(THRESHOLDS) for c in THRESHOLDS[: at + 1]]),
    pg_bar=st.sampled_from(THRESHOLDS),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_equals_the_literal_sum_of_the_paper(rows, steps, seed, acting, bars, pg_bar, lambda_):
    rho_bar, c_bar = bars
    inputs = random_inputs(rows, steps, seed, acting)
    returns = vtrace(
        **inputs, clip_rho_threshold=rho_bar, clip_c_threshold=c_bar, clip_pg_rho_threshold=pg_bar, lambda_=lambda_
    )
    vs, advantages = literal(**inputs, rho_bar=rho_bar, c_bar=c_bar, pg_bar=pg_bar, lambda_=lambda_)
    torch.testing.assert_close(returns.vs, vs, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(returns.pg_advantages, advantages, rtol=1e-11, atol=1e-11)


def test_by_hand():
    # min(1, rho) = c = 1, 0.5, 1
    # delta_0 = 1   * ( 1 + 0.5 * 2 - 1) =  1       vs_2 = 4 - 1                                     = 3
    # delta_1 = 0.5 * ( 2 + 0.5 * 4 - 2) =  1       vs_1 = 2 + 1 + 0.5 * 0.5 * (3 - 4)               = 2.75
    # delta_2 = 1   * (-1 + 0.5 * 8 - 4) = -1       vs_0 = 1 + 1 + 0.5 * 1 * (2.75 - 2)              = 2.375
    # advantages: 1 * (1 + 0.5 * 2.75 - 1) = 1.375;  0.5 * (2 + 0.5 * 3 - 2) = 0.75;  1 * (-1 + 0.5 * 8 - 4) = -1
    returns = vtrace(**HAND)
    assert returns.vs.tolist() == [pytest.approx([2.375, 2.75, 3.0])]
    assert returns.pg_advantages.tolist() == [pytest.approx([1.375, 0.75, -1.0])]
    assert (returns.mean_rho.item(), returns.clipped_fraction.item()) == (pytest.approx(4 / 3), pytest.approx(2 / 3))
    # rho-bar 2: 2, 0.5, 1.5; c-bar 1 and lambda 0.5: c = 0.5, 0.25, 0.5; policy gradient not clipped
    # delta_0 = 2   * 1    =  2      vs_2 = 4 - 1.5                             = 2.5
    # delta_1 = 0.5 * 2    =  1      vs_1 = 2 + 1 + 0.5 * 0.25 * (2.5 - 4)      = 2.8125
    # delta_2 = 1.5 * (-1) = -1.5    vs_0 = 1 + 2 + 0.5 * 0.5 * (2.8125 - 2)    = 3.203125
    # advantages: 2 * (1 + 0.5 * 2.8125 - 1) = 2.8125;  0.5 * (2 + 0.5 * 2.5 - 2) = 0.625;  1.5 * (-1) = -1.5
    returns = vtrace(**HAND, clip_rho_threshold=2.0, clip_pg_rho_threshold=None, lambda_=0.5)
    assert returns.vs.tolist() == [pytest.approx([3.203125, 2.8125, 2.5])]
    assert returns.pg_advantages.tolist() == [pytest.approx([2.8125, 0.625, -1.5])]
    assert returns.clipped_fraction.item() == 0.0  # none exceeds 2


# rlax.vtrace_td_error_and_advantage (rlax 0.1.9, jax 0.10.2, float64), whose c-bar is 1: errors + values, pg_advantage.
# With lambda below 1 rlax mixes values into the advantages, so only its targets are the paper's.
RLAX = {
    "log_rhos": torch.tensor([[0.4, 1.7, 0.9, 2.5, 1.1]], dtype=torch.float64).log(),
    "discounts": torch.tensor([[0.9, 0.9, 0.0, 0.9, 0.9]], dtype=torch.float64),
    "rewards": torch.tensor([[1.0, 0.0, -2.0, 0.5, 3.0]], dtype=torch.float64),
    "values": torch.tensor([[0.3, -0.8, 1.2, 0.5, -0.1]], dtype=torch.float64),
    "bootstrap_value": torch.tensor([0.7], dtype=torch.float64),
    "mask": torch.ones(1, 5, dtype=torch.bool),
}
GOLDEN = [
    ((1.0, 1.0, 1.0), [0.03568, -1.512, -1.68, 3.767, 3.63], [-0.26432, -0.712, -2.88, 3.267, 3.73]),
    ((2.0, 1.5, 1.0), [0.50944, -0.196, -1.68, 4.0127, 4.003], [0.20944, -1.068, -2.88, 5.40405, 4.103]),
    ((1.0, 1.0, 0.7), [0.3085312, -0.7344, -1.68, 2.7599, 3.63], None),
]


@pytest.mark.parametrize(("options", "vs", "advantages"), GOLDEN)
def test_equals_rlax(options, vs, advantages):
    rho_bar, pg_bar, lambda_ = options
    returns = vtrace(**RLAX, clip_rho_threshold=rho_bar, clip_pg_rho_threshold=pg_bar, lambda_=lambda_)
    assert returns.vs[0].tolist() == pytest.approx(vs, rel=1e-12)
    if advantages is not None:
        assert returns.pg_advantages[0].tolist() == pytest.approx(advantages, rel=1e-12)


@pytest.mark.parametrize(
    ("discount", "vs", "advantages"),
    [(0.5, [6.0, 10.0, 4.0], [5.0, 0.0, 1.0]), (0.0, [1.0, 10.0, 4.0], [0.0, 0.0, 1.0])],
    ids=["truncated", "terminated"],
)
def test_bootstrap_at_the_end_of_an_episode(discount, vs, advantages):
    """Step 0 ends an episode, step 1 is its last observation, step 2 begins the next: vs_0 = 1 + discount * V_1."""
    returns = vtrace(
        log_rhos=torch.tensor([[0.0, 5.0, 0.0]]),
        discounts=torch.tensor([[discount, 0.5, 0.5]]),
        rewards=torch.tensor([[1.0, 99.0, 2.0]]),
        values=torch.tensor([[1.0, 10.0, 3.0]]),
        bootstrap_value=torch.tensor([4.0]),
        mask=torch.tensor([[True, False, True]]),
    )
    assert (returns.vs.tolist(), returns.pg_advantages.tolist()) == ([vs], [advantages])
    assert (returns.mean_rho.item(), returns.clipped_fraction.item()) == (1.0, 0.0)


@settings(max_examples=8 * settings.default.max_examples)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 8),
    junk=st.sampled_from([0.0, 1e9, float("inf"), float("-inf"), float("nan")]),
)
def test_masked_steps_are_never_used(seed, steps, junk):
    inputs = random_inputs(3, steps, seed, acting=0.6)
    changed = dict(inputs)
    for name in ("log_rhos", "discounts", "rewards"):
        changed[name] = torch.where(inputs["mask"], inputs[name], junk)
    for clean, dirty in zip(vtrace(**inputs), vtrace(**changed)):
        assert torch.equal(clean, dirty)


@settings(max_examples=8 * settings.default.max_examples)
@given(seed=st.integers(0, 10_000), steps=st.integers(2, 8), data=st.data())
def test_nothing_crosses_an_episode_end_or_a_row(seed, steps, data):
    inputs = random_inputs(2, steps, seed, acting=1.0)
    cut = data.draw(st.integers(0, steps - 2))
    if data.draw(st.booleans()):
        inputs["mask"][0, cut] = False
    else:
        inputs["discounts"][0, cut] = 0.0
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    for name in ("log_rhos", "discounts", "rewards", "values"):
        changed[name][0, cut + 1 :] += 1.0
    changed["bootstrap_value"][0] += 1.0
    before, after = vtrace(**inputs), vtrace(**changed)
    assert torch.equal(before.vs[0, : cut + 1], after.vs[0, : cut + 1])
    assert torch.equal(before.pg_advantages[0, : cut + 1], after.pg_advantages[0, : cut + 1])
    assert torch.equal(before.vs[1], after.vs[1])


def test_no_gradient_passes():
    inputs = random_inputs(2, 5, seed=4)
    for name in ("log_rhos", "rewards", "values", "bootstrap_value"):
        inputs[name].requires_grad_()
    assert not any(tensor.requires_grad for tensor in vtrace(**inputs))


def test_action_log_probs_are_those_of_a_categorical_distribution():
    logits, actions = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [3, 0, 1]])
    expected = torch.distributions.Categorical(logits=logits).log_prob(actions)
    torch.testing.assert_close(action_log_probs(logits, actions), expected)
    with pytest.raises(ValueError, match=r"actions: expected \[2, 3\], got \[2, 2\]"):
        action_log_probs(logits, actions[:, :2])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_rhos", torch.zeros(3), r"log_rhos: expected \[B, T\] with T >= 1, got \[3\]"),
        ("log_rhos", torch.zeros(1, 0), r"log_rhos: expected \[B, T\] with T >= 1, got \[1, 0\]"),
        ("discounts", torch.zeros(1, 4), r"discounts: expected \[1, 3\] as log_rhos, got \[1, 4\]"),
        ("rewards", torch.zeros(2, 3), r"rewards: expected \[1, 3\] as log_rhos, got \[2, 3\]"),
        ("values", torch.zeros(1, 3, 1), r"values: expected \[1, 3\] as log_rhos, got \[1, 3, 1\]"),
        ("mask", torch.ones(1, 3), r"mask: expected torch.bool, got torch.float32"),
        ("bootstrap_value", torch.zeros(1, 1), r"bootstrap_value: expected \[1\], got \[1, 1\]"),
        ("clip_rho_threshold", 0.0, r"clip_rho_threshold: expected a positive number or None, got 0.0"),
        ("clip_c_threshold", 1.5, r"clip_c_threshold: expected at most clip_rho_threshold = 1.0, got 1.5"),
        ("clip_c_threshold", None, r"clip_c_threshold: expected at most clip_rho_threshold = 1.0, got None"),
        ("lambda_", 1.5, r"lambda_: expected a number in \[0, 1\], got 1.5"),
    ],
)
def test_errors_name_the_argument(name, value, message):
    with pytest.raises(ValueError, match=message):
        vtrace(**{**HAND, name: value})
