"""Policies against torch.distributions, finite differences and quadrature."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform

from agent.policies import SMALL_TABLE, Choice, Numbers, Policy, _tables, make_policy

ROWS, STEPS = 3, 4
SPACES: dict[str, Any] = {
    "discrete": 5,
    "choices": (Choice(2), Choice(7), Choice(3)),
    "switches": (Choice(2),) * 6,
    "a large choice": (Choice(150), *(Choice(2),) * 4),
    "bounded": (Numbers((True, True)),),
    "unbounded": (Numbers((False, False, False)),),
    "some bounded": (Numbers((True, False)),),
    "mixed": (Choice(3), Numbers((True,)), Choice(2), Choice(4), Numbers((False, True))),
}
BOUNDS = ("squash", "clip")


def literal_log_probs(space: Any, bounds: str, parameters: Tensor, action: Tensor) -> Tensor:
    """Part by part, by torch.distributions in float64."""
    parameters = parameters.double()
    if isinstance(space, int):
        return TorchCategorical(logits=parameters).log_prob(action)
    total = torch.zeros(action.shape[:-1], dtype=torch.float64)
    distributions, squashed = literal(space, bounds, parameters)
    for index, distribution in enumerate(distributions):
        column = action[..., index].double()
        if squashed[index]:
            # The density of what the environment receives.
            of_effect = TransformedDistribution(distribution, TanhTransform(cache_size=1))
            total = total + of_effect.log_prob(TanhTransform()(column))
        else:
            total = total + distribution.log_prob(column)
    return total


def literal(space: Any, bounds: str, parameters: Tensor) -> tuple[list[Any], list[bool]]:
    """A distribution for each column of actions, and whether it is squashed.

    A choice has its logits among the parameters. Numbers in a row have all their means and then all logarithms of their
    scales.
    """
    distributions: list[Any] = []
    squashed: list[bool] = []
    parts = list(space)
    begin = 0
    while parts:
        if isinstance(parts[0], Choice):
            size = parts.pop(0).size
            distributions.append(TorchCategorical(logits=parameters[..., begin : begin + size]))
            squashed.append(False)
            begin += size
            continue

        bounded: list[bool] = []
        while parts and isinstance(parts[0], Numbers):
            bounded += parts.pop(0).bounded
        count = len(bounded)
        means = parameters[..., begin : begin + count]
        scales = parameters[..., begin + count : begin + 2 * count].exp()
        distributions += [Normal(means[..., index], scales[..., index]) for index in range(count)]
        squashed += [each and bounds == "squash" for each in bounded]
        begin += 2 * count
    assert begin == parameters.shape[-1]
    return distributions, squashed


def random_parameters(policy: Policy, seed: int = 0) -> Tensor:
    """Within the limits of scales."""
    generator = torch.Generator().manual_seed(seed)
    return 0.7 * torch.randn(ROWS, STEPS, policy.num_parameters, generator=generator).clamp(-2, 2)


def random_actions(policy: Policy, parameters: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(*parameters.shape[:-1], policy.num_uniform, generator=generator)
    return policy.sample(parameters, uniform)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
@given(seed=st.integers(0, 10_000))
def test_log_probs_are_those_of_torch_distributions(name: str, bounds: Any, seed: int) -> None:
    policy = make_policy(SPACES[name], bounds)
    parameters = random_parameters(policy, seed)
    action = random_actions(policy, parameters, seed)
    got = policy.log_prob(parameters, action)
    expected = literal_log_probs(SPACES[name], bounds, parameters, action)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", SPACES)
def test_parameters_of_64_bits_are_computed_with_in_64_bits(name: str) -> None:
    """As odds of an action are, which may differ by a factor of a million."""
    policy = make_policy(SPACES[name], "clip")
    parameters = random_parameters(policy).double()
    action = random_actions(policy, parameters)
    got = policy.log_prob(parameters, action)
    torch.testing.assert_close(got, literal_log_probs(SPACES[name], "clip", parameters, action), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_entropies_are_those_of_torch_distributions(name: str, bounds: Any) -> None:
    policy = make_policy(SPACES[name], bounds)
    parameters = random_parameters(policy)
    wide = parameters.double()
    if isinstance(SPACES[name], int):
        expected = TorchCategorical(logits=wide).entropy()
    else:
        expected = torch.zeros(ROWS, STEPS, dtype=torch.float64)
        for distribution, squashed in zip(*literal(SPACES[name], bounds, wide)):
            expected = expected + distribution.entropy()
            if squashed:
                expected = expected + mean_log_slope_of_tanh(distribution)
    torch.testing.assert_close(policy.entropy(parameters).double(), expected, rtol=1e-5, atol=1e-5)


def mean_log_slope_of_tanh(distribution: Normal) -> Tensor:
    """What squashing adds to the entropy, E[log(1 - tanh(x)^2)], by an integral over 20,001 points."""
    points = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    numbers = distribution.mean[..., None] + distribution.stddev[..., None] * points
    density = Normal(0.0, 1.0).log_prob(points).exp()
    log_slope = 2 * (math.log(2) - numbers - torch.nn.functional.softplus(-2 * numbers))
    return torch.trapezoid(density * log_slope, points, dim=-1)


@pytest.mark.parametrize("name", SPACES)
def test_evenness_is_minus_the_divergence_from_uniform_choices(name: str) -> None:
    """By torch's `kl_divergence`; numbers have their entropy."""
    policy = make_policy(SPACES[name], "clip")
    parameters = random_parameters(policy)
    wide = parameters.double()
    distributions: list[Any] = [TorchCategorical(logits=wide)]
    if not isinstance(SPACES[name], int):
        distributions, _ = literal(SPACES[name], "clip", wide)
    expected = torch.zeros(ROWS, STEPS, dtype=torch.float64)
    for distribution in distributions:
        if isinstance(distribution, TorchCategorical):
            uniform = TorchCategorical(logits=torch.zeros_like(distribution.logits))
            expected = expected - kl_divergence(uniform, distribution)
        else:
            expected = expected + distribution.entropy()
    torch.testing.assert_close(policy.evenness(parameters).double(), expected, rtol=1e-5, atol=1e-5)


def test_evenness_pulls_at_improbable_choices_where_the_entropy_does_not() -> None:
    policy = make_policy(4)
    logits = torch.tensor([[20.0, 0.0, 0.0, 0.0]], requires_grad=True)
    (of_entropy,) = torch.autograd.grad(policy.entropy(logits).sum(), logits)
    (of_evenness,) = torch.autograd.grad(policy.evenness(logits).sum(), logits)
    assert of_entropy.abs().max() < 1e-6
    torch.testing.assert_close(of_evenness, torch.tensor([[-0.75, 0.25, 0.25, 0.25]]))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("function", ["log_prob", "entropy", "evenness"])
def test_gradients_are_those_of_finite_differences(name: str, function: str) -> None:
    policy = make_policy(SPACES[name])
    parameters = random_parameters(policy)[0]
    action = random_actions(policy, parameters)

    def total(values: Tensor) -> Tensor:
        if function == "log_prob":
            return policy.log_prob(values, action).sum()
        return getattr(policy, function)(values).sum()

    values = parameters.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(values), values)
    step = 1e-2
    for place in np.ndindex(*parameters.shape):
        change = torch.zeros_like(parameters)
        change[place] = step
        difference = (total(parameters + change) - total(parameters - change)).item() / (2 * step)
        assert gradient[place].item() == pytest.approx(difference, abs=3e-3, rel=3e-3)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_samples_have_the_moments_of_the_distribution(name: str, bounds: Any) -> None:
    count = 40_000
    space = SPACES[name]
    policy = make_policy(space, bounds)
    one = random_parameters(policy)[:1, :1]
    action = random_actions(policy, one.expand(1, count, -1))[0]
    parameters = one[0, 0].double()
    if isinstance(space, int):
        shares = torch.nn.functional.one_hot(action, space).double().mean(dim=0)
        torch.testing.assert_close(shares, parameters.softmax(-1), rtol=0, atol=0.012)
        return
    distributions, _ = literal(space, bounds, parameters)
    for column, distribution in zip(action.double().unbind(-1), distributions, strict=True):
        if isinstance(distribution, Normal):
            error_of_mean = distribution.stddev.item() / count**0.5
            assert column.mean().item() == pytest.approx(distribution.mean.item(), abs=4 * error_of_mean)
            assert column.std().item() == pytest.approx(distribution.stddev.item(), rel=0.03)
        else:
            for value, probability in enumerate(distribution.probs.tolist()):
                share = (column == value).double().mean().item()
                assert share == pytest.approx(probability, abs=0.012)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_the_environment_receives_numbers_within_their_bounds(name: str, bounds: Any) -> None:
    """Numbers with bounds are within -1..1; choices and other numbers stay."""
    policy = make_policy(SPACES[name], bounds)
    action = random_actions(policy, 3 * random_parameters(policy))
    received = policy.effect(action)
    assert received.shape == action.shape
    assert received.dtype == action.dtype
    if isinstance(SPACES[name], int):
        assert received.equal(action)
        return
    is_bounded: list[bool] = []
    for part in SPACES[name]:
        is_bounded += part.bounded if isinstance(part, Numbers) else [False]
    for column, bounded in enumerate(is_bounded):
        sampled = action[..., column]
        if not bounded:
            assert received[..., column].equal(sampled)
        elif bounds == "squash":
            torch.testing.assert_close(received[..., column], sampled.tanh())
        else:
            torch.testing.assert_close(received[..., column], sampled.clamp(-1, 1))


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_last_actions_and_their_encodings(name: str, bounds: Any) -> None:
    """At an episode start there is no last action, which is encoded as zeros."""
    policy = make_policy(SPACES[name], bounds)
    action = random_actions(policy, 3 * random_parameters(policy))
    received = policy.effect(action)
    assert policy.encode(received).shape == (ROWS, STEPS, policy.num_features)
    assert not policy.encode(policy.none(ROWS)).any()

    resets = torch.tensor([True, False, True])
    last = policy.last_action(received[:, 0], resets)
    assert last[resets].equal(policy.none(2))
    assert last[~resets].equal(received[~resets, 0])
    assert last.dtype == action.dtype


@pytest.mark.parametrize("name", SPACES)
def test_the_importance_weight_is_1_on_policy(name: str) -> None:
    """Also where numbers are squashed to their bounds, whose density is infinite."""
    policy = make_policy(SPACES[name])
    parameters = 5 * random_parameters(policy)
    action = random_actions(policy, parameters)
    ratio = (policy.log_prob(parameters.clone(), action) - policy.log_prob(parameters, action)).exp()
    assert ratio.eq(1).all()


@pytest.mark.parametrize("name", SPACES)
def test_the_mode_has_the_highest_log_prob(name: str) -> None:
    """Of what is sampled: before numbers are squashed."""
    policy = make_policy(SPACES[name], "clip")
    parameters = random_parameters(policy)
    best = policy.log_prob(parameters, policy.mode(parameters))
    for seed in range(20):
        assert (policy.log_prob(parameters, random_actions(policy, parameters, seed)) <= best + 1e-6).all()


@pytest.mark.parametrize("name", SPACES)
def test_first_policies_are_uniform_and_half_a_unit_wide(name: str) -> None:
    """The probabilities of each choice in turn, and the means and scales of all numbers."""
    sizes: list[int] = []
    numbers = 0
    parts = [Choice(5)] if name == "discrete" else SPACES[name]
    for part in parts:
        if isinstance(part, Numbers):
            numbers += len(part.bounded)
        else:
            sizes.append(part.size)
    uniform = [1 / size for size in sizes for _ in range(size)]

    policy = make_policy(SPACES[name])
    shown = policy.show(policy.first)
    assert shown.probabilities.tolist() == pytest.approx(uniform)
    assert shown.means.tolist() == [0.0] * numbers
    assert shown.scales.tolist() == pytest.approx([0.5] * numbers)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_the_layout_of_parameters_is_enough_to_act(name: str, bounds: Any) -> None:
    """Most probable actions and log-probabilities from parameters, with what the layout says alone."""
    policy = make_policy(SPACES[name], bounds)
    parameters = 4 * random_parameters(policy)
    action = random_actions(policy, parameters)
    modes = []
    total = torch.zeros(ROWS, STEPS)
    columns = action.unsqueeze(-1) if name == "discrete" else action
    for number, column in enumerate(policy.layout()):
        chosen = columns[..., number]
        if "logits" in column:
            logits = parameters[..., slice(*column["logits"])]
            modes.append(logits.argmax(dim=-1).float())
            total += TorchCategorical(logits=logits).log_prob(chosen)
            continue
        mean = parameters[..., column["mean"]]
        scale = parameters[..., column["log_scale"]].clamp(*column["log_scale within"]).exp()
        effects = {"none": mean, "tanh": mean.tanh(), "cut to -1..1": mean.clamp(-1, 1)}
        modes.append(effects[column["effect"]])
        total += Normal(mean, scale).log_prob(chosen)
        if column["effect"] == "tanh":
            total -= (1 - chosen.double().tanh().square()).log().float()
    found = torch.stack(modes, dim=-1)
    expected = policy.effect(policy.mode(parameters))
    torch.testing.assert_close(found, expected.float().reshape(found.shape))
    torch.testing.assert_close(total, policy.log_prob(parameters, action), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("log_scale", "limit"), [(-40.0, -5.0), (40.0, 2.0)])
def test_the_scale_stays_within_its_limits(log_scale: float, limit: float) -> None:
    policy = make_policy((Numbers((False,)),))
    parameters = torch.tensor([0.0, log_scale])
    expected = Normal(0.0, math.exp(limit)).entropy()
    torch.testing.assert_close(policy.entropy(parameters), expected)
    for uniform in (0.0, 1.0):
        assert policy.sample(parameters, torch.tensor([uniform])).isfinite().all()


@pytest.mark.parametrize(("beyond", "limit", "sign"), [(-5.1, -5.0, -1.0), (2.1, 2.0, 1.0)])
def test_a_scale_beyond_a_limit_comes_back_and_goes_no_further(beyond: float, limit: float, sign: float) -> None:
    """The entropy grows with the scale: to descend along sign * entropy leads back."""
    policy = make_policy((Numbers((False,)),))
    for direction in (1.0, -1.0):
        parameters = torch.tensor([0.3, beyond], requires_grad=True)
        loss = direction * sign * policy.entropy(parameters)
        loss.backward()
        gradient = parameters.grad
        assert gradient is not None
        moved = beyond - gradient[1].item()
        leads_back = direction > 0
        assert (moved != beyond) == leads_back
        if leads_back:
            assert abs(moved - limit) < abs(beyond - limit) or (moved - limit) * sign < 0

    # Numbers are as without gradients, and a scale within the limits has the gradient of any function.
    with torch.no_grad():
        expected = policy.entropy(torch.tensor([0.3, beyond]))
    torch.testing.assert_close(policy.entropy(torch.tensor([0.3, beyond])), expected)


@given(st.lists(st.sampled_from([2, 3, 40, 300, 5000]), min_size=1, max_size=40))
def test_tables_of_choices_are_hardly_larger_than_their_logits(sizes: list[int]) -> None:
    """Twenty switches beside a choice of 5,000 would be a table of 105,000 numbers."""
    tables = _tables(sizes)
    assert [size for table in tables for size in table] == sizes
    for table in tables:
        assert len(table) * max(table) <= max(SMALL_TABLE, 2 * sum(table))
    assert _tables([2] * 100) == [[2] * 100]
    assert _tables([2, 7, 3]) == [[2, 7, 3]]


def test_wrong_shapes_and_empty_spaces_are_refused() -> None:
    policy = make_policy((Choice(2), Numbers((True,))))
    with pytest.raises(ValueError, match=r"actions: expected \[3, 4, 2\], got \[3, 4, 3\]"):
        policy.log_prob(random_parameters(policy), torch.zeros(3, 4, 3))
    with pytest.raises(ValueError, match=r"actions: expected \[2, 3\], got \[2, 2\]"):
        make_policy(4).log_prob(torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="actions: expected at least 1, got 0"):
        make_policy(0)
    with pytest.raises(ValueError, match="actions: expected at least one part, got none"):
        make_policy(())
    for empty in (Choice(0), Numbers(())):
        with pytest.raises(ValueError, match=r"actions: expected at least one in every part, got (Choice|Numbers)\("):
            make_policy((Choice(2), empty))
    with pytest.raises(ValueError, match="bounds: expected one of squash, clip, got 'none'"):
        make_policy((Choice(2),), "none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale: expected one of independent, state, got 'fixed'"):
        make_policy(4, scale="fixed")  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", SPACES)
def test_a_policy_can_be_made_without_memory(name: str, bounds: Any) -> None:
    """As networks are that may be too large for the machine."""
    with torch.device("meta"):
        policy = make_policy(SPACES[name], bounds)
    assert policy.num_parameters == make_policy(SPACES[name], bounds).num_parameters
