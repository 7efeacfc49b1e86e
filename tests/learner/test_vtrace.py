"""V-trace against the literal sum of the paper and rlax; masked steps, and errors."""

import functools
import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.vtrace import vtrace

assert_close = functools.partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11)


def random_inputs(rows: int, steps: int, seed: int, acting: float = 0.8) -> dict[str, Tensor]:
    """Arguments of `vtrace`; `acting` is the share of steps that are not masked."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "log_rhos": 0.7 * normal(rows, steps),
        "discounts": 0.9 * (torch.rand(rows, steps, generator=generator) < 0.9).double(),
        "rewards": normal(rows, steps),
        "values": normal(rows, steps),
        "bootstrap_value": normal(rows),
        "mask": torch.rand(rows, steps, generator=generator) < acting,
    }


class LiteralReturns(NamedTuple):
    """See `learner.vtrace.VTraceReturns`."""

    vs: Tensor
    pg_advantages: Tensor
    mean_rho: float
    clipped_fraction: float


def literal(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    mask: Tensor,
    rho_bar: float | None,
    c_bar: float | None,
    pg_bar: float | None,
    lambda_: float,
) -> LiteralReturns:
    """Equation (1) as it is printed, for each row and step: O(T^2), no recursion.

    v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V
    where the sum ends before the next masked step.
    """
    # Without a threshold, nothing is clipped.
    rho_bar = math.inf if rho_bar is None else rho_bar
    c_bar = math.inf if c_bar is None else c_bar
    pg_bar = math.inf if pg_bar is None else pg_bar
    rows, steps = rewards.shape
    vs = torch.zeros_like(values)
    advantages = torch.zeros_like(values)
    for b in range(rows):
        rho = [math.exp(x) for x in log_rhos[b].tolist()]
        discount = discounts[b].tolist()
        reward = rewards[b].tolist()
        value = [*values[b].tolist(), bootstrap_value[b].item()]

        for s in range(steps):
            total = value[s]
            for t in range(s, steps):
                if not mask[b, t]:
                    break
                product = 1.0
                for i in range(s, t):
                    product *= discount[i] * lambda_ * min(c_bar, rho[i])
                delta = min(rho_bar, rho[t]) * (reward[t] + discount[t] * value[t + 1] - value[t])
                total += product * delta
            vs[b, s] = total

        # Section 4.2: the action value is estimated by the target of the next step.
        following = [*vs[b].tolist(), bootstrap_value[b].item()]
        for s in range(steps):
            if mask[b, s]:
                q = reward[s] + discount[s] * following[s + 1]
                advantages[b, s] = min(pg_bar, rho[s]) * (q - value[s])

    rhos = log_rhos[mask].exp().tolist()
    count = max(1, len(rhos))
    clipped = [rho for rho in rhos if rho > 1.001 * rho_bar]
    return LiteralReturns(vs, advantages, sum(rhos) / count, len(clipped) / count)


THRESHOLDS = [0.5, 1.0, 2.0, None]
"""From low to high; None is infinite."""
C_AND_RHO = list(itertools.combinations_with_replacement(THRESHOLDS, 2))
"""All pairs of a c-bar and a rho-bar that is at least as high."""


@settings(max_examples=15 * settings.default.max_examples)
@given(
    rows=st.integers(1, 3),
    steps=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    acting=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    c_and_rho=st.sampled_from(C_AND_RHO),
    pg_bar=st.sampled_from(THRESHOLDS),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_equals_the_literal_sum_of_the_paper(
    rows: int, steps: int, seed: int, acting: Any, c_and_rho: Any, pg_bar: float | None, lambda_: float
) -> None:
    inputs = random_inputs(rows, steps, seed, acting)
    for name in ("log_rhos", "rewards", "values", "bootstrap_value"):
        inputs[name].requires_grad_()
    c_bar, rho_bar = c_and_rho
    returns = vtrace(
        **inputs,
        clip_rho_threshold=rho_bar,
        clip_c_threshold=c_bar,
        clip_pg_rho_threshold=pg_bar,
        lambda_=lambda_,
    )
    assert not any(tensor.requires_grad for tensor in returns)

    expected = literal(**inputs, rho_bar=rho_bar, c_bar=c_bar, pg_bar=pg_bar, lambda_=lambda_)
    assert_close(returns.vs, expected.vs)
    assert_close(returns.pg_advantages, expected.pg_advantages)
    assert returns.mean_rho.item() == pytest.approx(expected.mean_rho)
    assert returns.clipped_fraction.item() == pytest.approx(expected.clipped_fraction)


def test_thresholds_are_those_of_the_paper_by_default() -> None:
    inputs = random_inputs(rows=3, steps=7, seed=0)
    returns = vtrace(**inputs)
    expected = literal(**inputs, rho_bar=1.0, c_bar=1.0, pg_bar=1.0, lambda_=1.0)
    assert_close(returns.vs, expected.vs)
    assert_close(returns.pg_advantages, expected.pg_advantages)


def test_weights_that_only_rounding_clips_are_not_counted() -> None:
    inputs = random_inputs(rows=1, steps=4, seed=0)
    inputs["mask"] = torch.ones(1, 4, dtype=torch.bool)
    inputs["log_rhos"] = torch.tensor([[0.0, 1e-6, -1e-6, 0.01]], dtype=torch.float64)
    assert vtrace(**inputs).clipped_fraction.item() == 0.25


RLAX = {
    "log_rhos": torch.tensor([[0.4, 1.7, 0.9, 2.5, 1.1]], dtype=torch.float64).log(),
    "discounts": torch.tensor([[0.9, 0.9, 0.0, 0.9, 0.9]], dtype=torch.float64),
    "rewards": torch.tensor([[1.0, 0.0, -2.0, 0.5, 3.0]], dtype=torch.float64),
    "values": torch.tensor([[0.3, -0.8, 1.2, 0.5, -0.1]], dtype=torch.float64),
    "bootstrap_value": torch.tensor([0.7], dtype=torch.float64),
    "mask": torch.ones(1, 5, dtype=torch.bool),
}
# What rlax.vtrace_td_error_and_advantage returns for them (rlax 0.1.9, jax 0.10.2, float64), whose c-bar is 1:
# (rho-bar, pg-bar, lambda), the targets (errors + values), and the advantages.
# With lambda below 1 rlax mixes values into the advantages, so only its targets are the paper's.
GOLDEN = [
    ((1.0, 1.0, 1.0), [0.03568, -1.512, -1.68, 3.767, 3.63], [-0.26432, -0.712, -2.88, 3.267, 3.73]),
    ((2.0, 1.5, 1.0), [0.50944, -0.196, -1.68, 4.0127, 4.003], [0.20944, -1.068, -2.88, 5.40405, 4.103]),
    ((1.0, 1.0, 0.7), [0.3085312, -0.7344, -1.68, 2.7599, 3.63], None),
]


@pytest.mark.parametrize(("options", "vs", "advantages"), GOLDEN)
def test_equals_rlax(options: tuple[float, float, float], vs: list[float], advantages: list[float] | None) -> None:
    rho_bar, pg_bar, lambda_ = options
    returns = vtrace(**RLAX, clip_rho_threshold=rho_bar, clip_pg_rho_threshold=pg_bar, lambda_=lambda_)
    assert returns.vs[0].tolist() == pytest.approx(vs, rel=1e-12)
    if advantages is not None:
        assert returns.pg_advantages[0].tolist() == pytest.approx(advantages, rel=1e-12)


@settings(max_examples=8 * settings.default.max_examples)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 8), junk=st.sampled_from([0.0, 1e9, -math.inf, math.nan]))
def test_masked_steps_are_never_used(seed: int, steps: int, junk: Any) -> None:
    inputs = random_inputs(3, steps, seed, acting=0.6)
    changed = dict(inputs)
    for name in ("log_rhos", "discounts", "rewards"):
        changed[name] = torch.where(inputs["mask"], inputs[name], junk)
    for clean, dirty in zip(vtrace(**inputs), vtrace(**changed)):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_rhos", torch.zeros(1, 0), r"expected \[B, T\] with T >= 1, got \[1, 0\]"),
        ("rewards", torch.zeros(2, 5), r"expected \[1, 5\] as log_rhos, got \[2, 5\]"),
        ("mask", torch.ones(1, 5), r"expected torch.bool, got torch.float32"),
        ("bootstrap_value", torch.zeros(1, 1), r"expected \[1\], got \[1, 1\]"),
        ("clip_rho_threshold", 0.0, "expected a number above 0, or None, got 0.0"),
        ("clip_c_threshold", math.nan, "expected a number above 0, or None, got nan"),
        ("clip_c_threshold", 1.5, "expected at most clip_rho_threshold, 1.0, got 1.5"),
        ("clip_c_threshold", None, "expected at most clip_rho_threshold, 1.0, got inf"),
        ("clip_pg_rho_threshold", -1.0, "expected a number above 0, or None, got -1.0"),
        ("lambda_", 1.01, "expected 0 to 1, got 1.01"),
    ],
)
def test_errors_name_the_argument(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        vtrace(**{**RLAX, name: value})
