"""PopArt's value head: exact preservation of values, its statistics, and what depends on the task."""

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


def batch(head: PopArt, task: Tensor, size: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Targets [B, 5] of tasks [B] with means and deviations of a size by task, and a mask."""
    generator = torch.Generator().manual_seed(seed)
    targets = size[task][:, None] * (3 + torch.randn(len(task), 5, generator=generator))
    return targets, torch.rand(targets.shape, generator=generator) < 0.7


def test_values_stay_when_the_statistics_move() -> None:
    head, features, task = make_head(), torch.randn(100, 8), torch.tensor([0, 1, 2, 1])
    size = torch.tensor([1.0, 1e-2, 1e3])
    before = head(features)
    for step in range(200):
        targets, mask = batch(head, task, size, step)
        head.update_statistics(head.sums(targets, mask, task), 0.1)
        now = head(features)
        torch.testing.assert_close(now, before, rtol=1e-6, atol=1e-6 * float((head.scale + head.mean.abs()).max()))
        before = now
    torch.testing.assert_close(head.scale, size.double(), rtol=0.5, atol=0.0)
    torch.testing.assert_close(head.mean, 3 * size.double(), rtol=0.3, atol=0.0)


def test_values_stay_to_1e_6_in_one_step() -> None:
    """Of a head whose values, means and deviations are all of one size."""
    head, features, task = make_head(), torch.randn(1000, 8), torch.arange(TASKS)
    before = head(features)
    targets, mask = batch(head, task, torch.full((TASKS,), 2.0))
    head.update_statistics(head.sums(targets, mask, task), 0.5)
    assert not head.weight.allclose(make_head().weight)
    torch.testing.assert_close(head(features), before, rtol=1e-6, atol=1e-6)


def test_statistics_are_moving_moments_of_each_task() -> None:
    """Against the formula of the papers; a task without targets keeps its own, and masked targets do not count."""
    head, task, rate = make_head(), torch.tensor([2, 0, 2, 0]), 0.25
    head.batches.fill_(10)
    targets, mask = batch(head, task, torch.ones(TASKS))
    targets[~mask] = torch.nan
    head.update_statistics(head.sums(targets, mask, task), rate)
    for index in range(TASKS):
        own = targets[task == index][mask[task == index]].double()
        mean, second = (rate * own.mean(), 1 - rate + rate * own.square().mean()) if len(own) else (0.0, 1.0)
        expected = torch.tensor([mean, second, (second - mean**2) ** 0.5], dtype=torch.float64)
        torch.testing.assert_close(torch.stack([head.mean, head.second_moment, head.scale])[:, index], expected)


def test_the_first_batches_have_equal_shares() -> None:
    head, task, rate = make_head(), torch.tensor([0, 1]), 0.3
    batches = 100 * torch.randn(5, 2, 4)
    mean = second = 0.0
    for number, targets in enumerate(batches, 1):
        head.update_statistics(head.sums(targets, torch.ones(2, 4, dtype=torch.bool), task), rate)
        share = max(rate, 1 / number)
        mean = mean + share * (targets.double().mean(1) - mean)
        second = second + share * (targets.double().square().mean(1) - second)
        torch.testing.assert_close(head.mean[:2], mean)
        torch.testing.assert_close(head.second_moment[:2], second)
        if number == 3:  # the plain mean of all targets so far
            torch.testing.assert_close(head.mean[:2], batches[:3].double().mean((0, 2)))
    assert (head.batches.tolist(), head.mean[2], head.second_moment[2]) == ([5, 5, 0], 0, 1)


def test_the_scale_has_limits_and_a_skipped_batch_changes_nothing() -> None:
    head, task = make_head(), torch.arange(TASKS)
    constant, mask = torch.full((TASKS, 4), 5.0), torch.ones(TASKS, 4, dtype=torch.bool)
    head.update_statistics(head.sums(constant, mask, task), 1.0)
    assert head.scale.tolist() == [LEAST_SCALE] * TASKS == [1e-4] * TASKS
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.update_statistics(head.sums(constant * torch.nan, mask, task), 1.0, skipped=torch.tensor(1.0))
    assert all(value.equal(before[name]) for name, value in head.state_dict().items())


def test_the_scale_of_huge_targets_is_limited_and_values_stay() -> None:
    head, features, task = make_head(), torch.randn(100, 8), torch.arange(TASKS)
    before = head(features)
    targets, mask = batch(head, task, torch.tensor([1.0, 1e7, 1e9]))
    head.update_statistics(head.sums(targets, mask, task), 1.0)
    assert head.scale[0] < 10
    assert head.scale[1:].tolist() == [MOST_SCALE] * 2 == [1e6] * 2
    size = head.mean.abs().max().item()
    torch.testing.assert_close(head(features), before, rtol=1e-6, atol=1e-6 * size)


def test_values_begin_where_temporal_differences_are_0_in_the_mean() -> None:
    """Of each task; tasks that have had a batch, and those without rows in this one, are left alone."""
    head, task = make_head(), torch.tensor([0, 1, 0])
    rewards = torch.tensor([[-1.0, -1.0], [5.0, 7.0], [-1.0, torch.nan]])
    discounts = torch.tensor([[0.99, 0.99], [0.9, 0.0], [0.99, torch.nan]])
    mask = ~rewards.isnan()
    sums = head.sums(rewards, mask, task), head.sums(1 - discounts, mask, task)
    expected = torch.tensor([-100.0, 12 / 1.1, 0.0], dtype=torch.float64)
    torch.testing.assert_close(head.first_values(*sums), expected, rtol=1e-6, atol=0)
    for row, constant in ((0, expected[0]), (1, expected[1])):
        differences = rewards[row] + discounts[row] * constant - constant
        assert differences.mean().item() == pytest.approx(0.0, abs=1e-4)
    head.batches[1] = 1
    assert head.first_values(*sums)[1] == 0
    endless = torch.zeros(3, TASKS, dtype=torch.float64)  # a discount of 1, and no episode ended
    assert head.first_values(sums[0], endless).tolist() == [0, 0, 0]


def test_what_was_added_to_values_stays_in_them() -> None:
    head, features, task = make_head(), torch.randn(100, 8), torch.tensor([0, 1])
    value_offset = torch.tensor([-100.0, 30.0, 0.0], dtype=torch.float64)
    expected = head(features) + value_offset.float()
    targets, mask = batch(head, task, torch.tensor([50.0, 2.0, 1.0]))
    head.update_statistics(head.sums(targets, mask, task), 0.1, value_offset=value_offset)
    torch.testing.assert_close(head(features), expected, rtol=1e-5, atol=1e-3)


def test_a_skipped_batch_leaves_a_bias_that_rounding_would_change() -> None:
    head, task = make_head(), torch.zeros(1, dtype=torch.int64)
    head.mean.fill_(100.0)
    head.bias.data.fill_(1e-9)
    head.update_statistics(head.sums(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), task), 0.1, torch.ones(()))
    assert (head.bias == torch.tensor(1e-9)).all()


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_the_task_reaches_nothing_but_its_column(tasks: list[int]) -> None:
    plain = agents.make_agent()
    agent = Agent(plain.config, agents.IMAGE, agents.ACTIONS, popart_tasks=tasks).eval()
    missing, _ = agent.load_state_dict({k: v for k, v in plain.state_dict().items() if k[:5] != "value"}, strict=False)
    statistics = {"value.mean", "value.second_moment", "value.reward_square", "value.batches"}
    assert set(missing) == {"value.weight", "value.bias", *statistics}
    inputs, task = agents.agent_inputs(2, 6), torch.tensor([0, tasks - 1])
    output, expected = (each(**inputs, state=each.initial_state(2)) for each in (agent, plain))
    assert output.policy_parameters.equal(expected.policy_parameters)
    assert output.value.shape == ((2, 6, tasks) if tasks > 1 else (2, 6))
    values = agent.value.of_task(output.value, task)
    assert values[1].equal(output.value[1].reshape(6, tasks)[:, -1])
    (gradient,) = torch.autograd.grad(values[1].sum(), agent.value.weight)
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [tasks - 1]
