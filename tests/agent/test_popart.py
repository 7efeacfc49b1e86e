"""PopArt's value head: exact preservation of values, its statistics, and what depends on the task."""

import math

import pytest
import torch
from torch import Tensor

from agent import Agent
from agent.popart import LEAST_SCALE, MOST_SCALE, PopArt
from tests.agent import agents

TASKS = 3


def make_head(seed: int = 0) -> PopArt:
    torch.manual_seed(seed)
    return PopArt(8, TASKS)


def batch(task: Tensor, size: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Targets [B, 5] of tasks [B] with means and deviations of a size by task, and a mask."""
    generator = torch.Generator().manual_seed(seed)
    targets = size[task][:, None] * (3 + torch.randn(len(task), 5, generator=generator))
    mask = torch.rand(targets.shape, generator=generator) < 0.7
    return targets, mask


def test_values_stay_when_the_statistics_move() -> None:
    head = make_head()
    features = torch.randn(100, 8)
    task = torch.tensor([0, 1, 2, 1])
    size = torch.tensor([1.0, 1e-2, 1e3])
    before = head(features)
    for step in range(200):
        targets, mask = batch(task, size, step)
        head.update_statistics(head.sums(targets, mask, task), 0.1)
        now = head(features)
        largest = float((head.scale + head.mean.abs()).max())
        torch.testing.assert_close(now, before, rtol=1e-6, atol=1e-6 * largest)
        before = now
    torch.testing.assert_close(head.scale, size.double(), rtol=0.5, atol=0.0)
    torch.testing.assert_close(head.mean, 3 * size.double(), rtol=0.3, atol=0.0)


def test_values_stay_to_1e_6_in_one_step() -> None:
    """Of a head whose values, means and deviations are all of one size."""
    head = make_head()
    features = torch.randn(1000, 8)
    task = torch.arange(TASKS)
    before = head(features)
    targets, mask = batch(task, torch.full((TASKS,), 2.0))
    head.update_statistics(head.sums(targets, mask, task), 0.5)
    assert not head.weight.allclose(make_head().weight)
    torch.testing.assert_close(head(features), before, rtol=1e-6, atol=1e-6)


def test_statistics_are_moving_moments_of_each_task() -> None:
    """Against the formula of the papers; a task without targets keeps its own, and masked targets do not count."""
    rate = 0.25
    head = make_head()
    head.batches.fill_(10)  # so that the batch has the share `rate`
    task = torch.tensor([2, 0, 2, 0])
    targets, mask = batch(task, torch.ones(TASKS))
    targets[~mask] = torch.nan
    head.update_statistics(head.sums(targets, mask, task), rate)

    # The moments begin at 0 and 1.
    for index in (0, 2):
        of_task = task == index
        own = targets[of_task][mask[of_task]].double()
        mean = rate * own.mean()
        second_moment = (1 - rate) + rate * own.square().mean()
        torch.testing.assert_close(head.mean[index], mean)
        torch.testing.assert_close(head.second_moment[index], second_moment)
        torch.testing.assert_close(head.scale[index], (second_moment - mean**2).sqrt())
    assert head.mean[1] == 0
    assert head.second_moment[1] == 1
    assert head.scale[1] == 1


def test_the_first_batches_have_equal_shares() -> None:
    rate = 0.3
    head = make_head()
    task = torch.tensor([0, 1])
    batches = 100 * torch.randn(5, 2, 4)
    mask = torch.ones(2, 4, dtype=torch.bool)
    mean = torch.zeros(2)
    second_moment = torch.zeros(2)
    for number, targets in enumerate(batches, 1):
        head.update_statistics(head.sums(targets, mask, task), rate)
        share = max(rate, 1 / number)
        mean = mean + share * (targets.double().mean(1) - mean)
        second_moment = second_moment + share * (targets.double().square().mean(1) - second_moment)
        torch.testing.assert_close(head.mean[:2], mean)
        torch.testing.assert_close(head.second_moment[:2], second_moment)
        if number == 3:  # the plain mean of all targets so far
            torch.testing.assert_close(head.mean[:2], batches[:3].double().mean((0, 2)))
    assert head.batches.tolist() == [5, 5, 0]
    assert head.mean[2] == 0
    assert head.second_moment[2] == 1


def test_the_scale_has_a_lower_limit() -> None:
    """Of targets that are all equal."""
    head = make_head()
    constant = torch.full((TASKS, 4), 5.0)
    mask = torch.ones(TASKS, 4, dtype=torch.bool)
    head.update_statistics(head.sums(constant, mask, torch.arange(TASKS)), 1.0)
    assert LEAST_SCALE == 1e-4
    assert head.scale.tolist() == [LEAST_SCALE] * TASKS


def test_a_skipped_batch_changes_nothing() -> None:
    head = make_head()
    task = torch.arange(TASKS)
    mask = torch.ones(TASKS, 4, dtype=torch.bool)
    head.update_statistics(head.sums(torch.full((TASKS, 4), 5.0), mask, task), 1.0)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    broken = torch.full((TASKS, 4), torch.nan)
    head.update_statistics(head.sums(broken, mask, task), 1.0, skipped=torch.tensor(1.0))
    for name, value in head.state_dict().items():
        assert value.equal(before[name]), name


def test_the_scale_of_huge_targets_is_limited_and_values_stay() -> None:
    head = make_head()
    features = torch.randn(100, 8)
    task = torch.arange(TASKS)
    before = head(features)
    targets, mask = batch(task, torch.tensor([1.0, 1e9, 1e18]))
    head.update_statistics(head.sums(targets, mask, task), 1.0)
    assert MOST_SCALE == 1e15
    assert head.scale[0] < 10
    assert 1e8 < head.scale[1] < 1e10
    assert head.scale[2] == MOST_SCALE
    size = head.mean.abs().max().item()
    torch.testing.assert_close(head(features), before, rtol=1e-6, atol=1e-6 * size)


def test_values_begin_where_temporal_differences_are_0_in_the_mean() -> None:
    """Of each task; tasks that have had a batch, and those without rows in this one, are left alone."""
    head = make_head()
    task = torch.tensor([0, 1, 0])
    rewards = torch.tensor([[-1.0, -1.0], [5.0, 7.0], [-1.0, torch.nan]])
    discounts = torch.tensor([[0.99, 0.99], [0.9, 0.0], [0.99, torch.nan]])
    mask = ~rewards.isnan()
    sums_of_rewards = head.sums(rewards, mask, task)
    sums_of_ends = head.sums(1 - discounts, mask, task)
    constants = head.first_values(sums_of_rewards, sums_of_ends)
    expected = torch.tensor([-100.0, 12 / 1.1, 0.0], dtype=torch.float64)
    torch.testing.assert_close(constants, expected, rtol=1e-6, atol=0)
    for row in (0, 1):
        constant = expected[task[row]]
        differences = rewards[row] + discounts[row] * constant - constant
        assert differences.mean().item() == pytest.approx(0.0, abs=1e-4)

    head.batches[1] = 1
    assert head.first_values(sums_of_rewards, sums_of_ends)[1] == 0

    endless = torch.zeros(3, TASKS, dtype=torch.float64)  # a discount of 1, and no episode ended
    assert head.first_values(sums_of_rewards, endless).tolist() == [0, 0, 0]


def test_rewards_have_no_size_before_the_first_one() -> None:
    """Of three tasks one had rewards before, one has its first ones now, and one none yet."""
    head = make_head()
    head.reward_square[0] = 9.0
    rewards = torch.tensor([[1.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    sums = head.sums(rewards, torch.ones_like(rewards, dtype=torch.bool), torch.arange(TASKS))
    assert head.reward_sizes(sums).tolist() == pytest.approx([3, math.sqrt(2), math.inf])
    nothing = torch.zeros_like(sums)
    assert head.reward_sizes(nothing).tolist() == [3, math.inf, math.inf]


def test_what_was_added_to_values_stays_in_them() -> None:
    head = make_head()
    features = torch.randn(100, 8)
    value_offset = torch.tensor([-100.0, 30.0, 0.0], dtype=torch.float64)
    expected = head(features) + value_offset.float()
    task = torch.tensor([0, 1])
    targets, mask = batch(task, torch.tensor([50.0, 2.0, 1.0]))
    head.update_statistics(head.sums(targets, mask, task), 0.1, value_offset=value_offset)
    torch.testing.assert_close(head(features), expected, rtol=1e-5, atol=1e-3)


def test_a_skipped_batch_leaves_a_bias_that_rounding_would_change() -> None:
    head = make_head()
    head.mean.fill_(100.0)
    head.bias.data.fill_(1e-9)
    sums = head.sums(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64))
    head.update_statistics(sums, 0.1, skipped=torch.ones(()))
    assert (head.bias == torch.tensor(1e-9)).all()


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_the_task_reaches_nothing_but_its_column(tasks: int) -> None:
    """The policy is that of an agent without tasks, and a row's value trains the column of its task alone."""
    plain = agents.make_agent()
    agent = Agent(plain.config, agents.IMAGE, agents.ACTIONS, popart_tasks=tasks).eval()
    shared = {name: value for name, value in plain.state_dict().items() if not name.startswith("value")}
    missing, _ = agent.load_state_dict(shared, strict=False)
    statistics = {"value.mean", "value.second_moment", "value.reward_square", "value.batches"}
    assert set(missing) == {"value.weight", "value.bias", *statistics}

    inputs = agents.agent_inputs(2, 6)
    output = agent(**inputs, state=agent.initial_state(2))
    expected = plain(**inputs, state=plain.initial_state(2))
    assert output.policy_parameters.equal(expected.policy_parameters)
    assert output.value.shape == ((2, 6, tasks) if tasks > 1 else (2, 6))

    # The second row is of the last task.
    values = agent.value.of_task(output.value, torch.tensor([0, tasks - 1]))
    assert values[1].equal(output.value[1].reshape(6, tasks)[:, -1])
    (gradient,) = torch.autograd.grad(values[1].sum(), agent.value.weight)
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [tasks - 1]
