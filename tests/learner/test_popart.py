"""Updates with PopArt: the loss against its formula, several learners, updates that are not read, and resumption."""

import copy
import dataclasses
import math

import pytest
import torch

from agent import Agent, Trajectory
from agent.core import LSTMConfig, map_state
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent import agents
from tests.learner.promises import check_shared_batches, check_skipped_updates, same
from tests.learner.test_vtrace import literal

TASKS = 2
CORE = LSTMConfig(16)
CONFIG = LearnerConfig(device="cpu", popart=True, popart_rate=0.1, learning_rate=0.01)


def make_agent(begun: bool = True) -> Agent:
    """In float64, with statistics of its own by task, or without any."""
    plain = agents.make_agent(CORE)
    agent = Agent(plain.config, agents.IMAGE, agents.ACTIONS, popart_tasks=TASKS).double()
    if not begun:
        return agent
    agent.value.mean.copy_(torch.tensor([2.0, -1.0]))
    agent.value.second_moment.copy_(torch.tensor([8.0, 5.0]))
    agent.value.reward_square.copy_(torch.tensor([0.25, 1e6]))
    agent.value.batches.fill_(100)
    return agent


def make_batch(seed: int = 0, rows: int = 6) -> Trajectory:
    """Rows of both tasks; the second has rewards that are 100 times as large."""
    batch = agents.make_trajectory(rows, 6, seed, CORE)
    large = (batch.actor_id % TASKS == 1)[:, None]
    reward = torch.where(large, 100 * batch.reward, batch.reward)
    reward = reward.masked_fill(batch.reset, 0.0)
    return batch._replace(reward=reward, core_state=map_state(torch.Tensor.double, batch.core_state))


@pytest.mark.parametrize("normalize", [False, True])
def test_losses_are_those_of_normalized_values(normalize: bool) -> None:
    """V-trace in units of the reward; errors of values and advantages divided by the scale of their task.

    Normalized advantages are divided by their root mean square, or by that of the task's rewards if it is greater.
    """
    agent = make_agent()
    batch = make_batch()
    reference = copy.deepcopy(agent)
    config = dataclasses.replace(CONFIG, normalize_advantages=normalize)
    metrics = Learner(agent, config, 1000).update(batch)

    # The values of each row's own task, and the policy.
    output = reference(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
    task = batch.actor_id % TASKS
    assert set(task.tolist()) == {0, 1}
    mask = ~batch.reset[:, 1:]
    value = torch.stack([output.value[row, :, number] for row, number in enumerate(task)]).detach()
    log_pi = output.policy_parameters[:, :-1].detach().log_softmax(-1)
    log_mu = batch.policy_parameters.log_softmax(-1)
    action = batch.action[..., None]

    returns = literal(
        log_rhos=(log_pi - log_mu).gather(2, action)[..., 0],
        discounts=CONFIG.discount * batch.discount[:, 1:],
        rewards=batch.reward[:, 1:],
        values=value[:, :-1],
        bootstrap_value=value[:, -1],
        mask=mask,
        rho_bar=1.0,
        c_bar=1.0,
        pg_bar=1.0,
        lambda_=1.0,
    )
    scale = torch.tensor([2.0, 2.0])[task][:, None]  # from the moments of `make_agent`
    errors = (returns.vs - value[:, :-1]) / scale
    expected = 0.5 * (errors.square() / 2)[mask].mean().item()
    assert metrics["loss/baseline"] == pytest.approx(expected, rel=1e-4)

    advantages = returns.pg_advantages / scale
    if normalize:
        size = advantages[mask].square().mean().sqrt()
        size_of_rewards = torch.tensor([0.5, 1000.0])[task][:, None] / scale  # from `make_agent`
        assert size_of_rewards.min() < size < size_of_rewards.max(), "each is the greater one for one of the tasks"
        advantages = advantages / size_of_rewards.maximum(size)
    chosen = log_pi.gather(2, action)[..., 0]
    expected = -(chosen * advantages)[mask].mean().item()
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-4)

    # The statistics move towards the targets and the rewards of each task.
    for number in range(TASKS):
        of_task = task == number
        targets = returns.vs[of_task][mask[of_task]]
        mean = 0.9 * reference.value.mean[number] + 0.1 * targets.mean()
        torch.testing.assert_close(agent.value.mean[number], mean, rtol=1e-4, atol=1e-6)
        rewards = batch.reward[:, 1:][of_task][mask[of_task]].double()
        square = 0.99 * reference.value.reward_square[number] + 0.01 * rewards.square().mean()
        torch.testing.assert_close(agent.value.reward_square[number], square)


def test_the_first_batch_has_no_advantage_where_all_rewards_are_equal() -> None:
    """In Acrobot every step costs 1 until the goal is reached: then all states are worth -1 / (1 - discount)."""
    batch = make_batch()
    batch = batch._replace(reward=torch.full_like(batch.reward, -1.0), discount=torch.ones_like(batch.discount))
    learner = Learner(make_agent(begun=False), CONFIG, 1000)
    metrics = learner.update(batch)
    assert metrics["value/mean"] == pytest.approx(-100, rel=1e-6)
    assert metrics["loss/policy"] == pytest.approx(0, abs=1e-4)
    assert metrics["loss/baseline"] == pytest.approx(0, abs=1e-6)
    assert learner.update(batch)["value/mean"] == pytest.approx(-100, rel=1e-3)


def test_before_a_first_reward_values_teach_the_policy_nothing() -> None:
    """They may be noise, as those of another run. The first rewards say how large advantages are in the same update."""
    config = dataclasses.replace(CONFIG, normalize_advantages=True)
    agent = make_agent(begun=False)
    torch.nn.init.normal_(agent.value.weight, std=0.01)
    learner = Learner(agent, config, 1000)
    batch = make_batch()
    for seed in range(2):
        nothing = make_batch(seed)
        metrics = learner.update(nothing._replace(reward=torch.zeros_like(nothing.reward)))
        assert metrics["value/target_mean"] != 0
        assert metrics["loss/policy"] == 0
    assert learner.update(batch)["loss/policy"] != 0


@pytest.mark.parametrize("version", [1, 1000])
def test_the_values_of_a_task_begin_with_its_first_batch(version: int) -> None:
    """Also if that comes late: the tasks of a batch are those of the actors that were ready."""
    learner = Learner(make_agent(begun=False), CONFIG, 10_000)
    of_first = make_batch()._replace(actor_id=torch.zeros(6, dtype=torch.int64))
    learner.update(of_first)
    learner.version = version
    costs = make_batch()._replace(actor_id=torch.ones(6, dtype=torch.int64))
    costs = costs._replace(reward=torch.full_like(costs.reward, -1.0), discount=torch.ones_like(costs.discount))
    assert learner.update(costs)["value/mean"] == pytest.approx(-100, abs=1)


@pytest.mark.parametrize("begun", [True, False])
def test_learners_that_share_a_batch_have_the_statistics_of_the_whole(begun: bool) -> None:
    """The first learner has the first three rows, all of one task."""
    tasks = torch.tensor([0, 0, 0, 1, 1, 0])
    batches = [make_batch(seed)._replace(actor_id=tasks) for seed in range(3)]
    check_shared_batches(lambda: make_agent(begun), CONFIG, batches)


@pytest.mark.parametrize("begun", [True, False])
def test_nothing_waits_for_the_device_and_skipped_updates_change_nothing(begun: bool) -> None:
    bad = make_batch(1)
    bad.reward[0, 3] = math.nan
    check_skipped_updates(lambda: make_agent(begun), CONFIG, bad, [make_batch(0), make_batch(2), make_batch(3)])


def test_statistics_are_restored_with_the_weights() -> None:
    learner = Learner(make_agent(), CONFIG, 1000)
    other = Learner(make_agent(), CONFIG, 1000)
    learner.update(make_batch(0))
    other.load_state_dict(learner.state_dict())
    assert other.agent.value.mean.tolist() != make_agent().value.mean.tolist()
    assert learner.update(make_batch(1)) == other.update(make_batch(1))
    same(learner, other)
