"""Agents with a teacher: what their losses are, what these train, and that they learn to act as it does."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from agent import Agent, AgentConfig, Trajectory
from agent.core import index_state, map_state
from agent.policies import Choice
from agent.popart import PopArt
from agent.teaching import TaughtAgent, TaughtState
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.agent.agents import ACTIONS, CORES, IMAGE, agent_inputs, make_taught, make_trajectory

ROWS, STEPS = 2, 9


def pairs(rows: int = ROWS, steps: int = STEPS) -> dict[str, Any]:
    """Inputs with two views."""
    one = agent_inputs(rows, steps, seed=0)
    other = agent_inputs(rows, steps, seed=1)
    return {**one, "observation": (one["observation"], other["observation"])}


@pytest.mark.parametrize("core", CORES)
def test_it_sees_one_view_and_its_teacher_the_other(core: str) -> None:
    agent = make_taught(CORES[core])
    inputs = pairs()
    state = agent.initial_state(ROWS)
    found = agent(**inputs, state=state)
    own_view, other_view = inputs.pop("observation")
    alone = agent.alone()(own_view, **inputs, state=state.own)
    teacher = agent.teacher(other_view, **inputs, state=state.teacher)
    for name in ("policy_parameters", "value", "inputs"):
        assert torch.equal(getattr(found, name), getattr(alone, name))

    policy = Categorical(logits=alone.policy_parameters)
    divergence = kl_divergence(Categorical(logits=teacher.policy_parameters), policy)
    torch.testing.assert_close(found.losses["teacher"].value, divergence.mean())
    difference = (teacher.inputs - alone.inputs).square().mean()
    torch.testing.assert_close(found.losses["teacher_features"].value, difference)
    assert found.losses.keys() - alone.losses.keys() == {"teacher", "teacher_features"}


def test_with_the_same_weights_and_views_there_is_nothing_to_learn() -> None:
    agent = make_taught()
    agent.begin_with(agent.alone().state_dict())
    inputs = pairs()
    view, _ = inputs.pop("observation")
    losses = agent((view, view), **inputs, state=agent.initial_state(ROWS)).losses
    assert losses["teacher"].value == 0
    assert losses["teacher_features"].value == 0


@pytest.mark.parametrize("core", CORES)
def test_sequences_may_be_cut_also_with_a_cache(core: str) -> None:
    """The teacher's memory is part of the state."""
    agent = make_taught(CORES[core])
    inputs = pairs()
    with torch.no_grad():
        whole = agent(**inputs, state=agent.initial_state(ROWS))
        state = agent.with_cache(agent.initial_state(ROWS))
        for step in range(STEPS):
            now = index_state(tuple(inputs.values()), (slice(None), slice(step, step + 1)))
            output = agent(*now, state=state)
            state = output.state
            torch.testing.assert_close(output.policy_parameters, whole.policy_parameters[:, step : step + 1])
    state = agent.without_cache(state)
    assert isinstance(state, TaughtState)
    map_state(torch.testing.assert_close, state, whole.state)


def test_training_mode_is_that_of_all_but_the_teacher() -> None:
    agent = make_taught()
    assert agent.train() is agent
    assert agent.core.training
    assert not any(module.training for module in agent.teacher.modules())
    agent.eval()
    assert not any(module.training for module in agent.modules())


def test_its_values_are_normalized_by_task() -> None:
    config = AgentConfig(torso="small", torso_size=16, core=CORES["lstm"])
    agent = TaughtAgent(config, (IMAGE, IMAGE), ACTIONS, popart_tasks=3)
    assert isinstance(agent.value, PopArt)
    assert len(agent.value.mean) == len(agent.teacher.value.mean) == 3


def test_losses_are_computed_in_float32() -> None:
    """Under autocast features are bfloat16, in which small differences would be rounded away."""
    agent = make_taught()
    with torch.autocast("cpu", torch.bfloat16):
        losses = agent(**pairs(), state=agent.initial_state(ROWS)).losses
    assert losses["teacher"].total.dtype == torch.float32
    assert losses["teacher_features"].total.dtype == torch.float32


def taught_batch() -> Trajectory:
    """A batch of an agent whose second view is the first with a quarter of its contrast."""
    batch = make_trajectory(4, 12)
    faint = (batch.observation.float() / 4 + 96).to(torch.uint8)  # type: ignore[union-attr]
    return batch._replace(observation=(faint, batch.observation), core_state=make_taught().initial_state(4))


def test_a_learner_trains_it_towards_the_teacher_that_stays() -> None:
    agent = make_taught()
    batch = taught_batch()
    before = {name: weight.clone() for name, weight in agent.teacher.state_dict().items()}
    learner = Learner(agent, LearnerConfig(device="cpu", learning_rate=1e-3, teacher_cost=10.0), 10_000)
    found = [learner.update(batch) for _ in range(60)]
    for name in ("loss/teacher", "loss/teacher_features"):
        assert found[-1][name] < 0.7 * found[0][name]
    for name, weight in agent.teacher.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert not any(parameter.grad is not None for parameter in agent.teacher.parameters())


def test_the_cost_of_the_teacher_falls() -> None:
    """To 0 within 80 steps; an update has up to 48. With the tiny learning rate nothing else changes the loss."""
    config = LearnerConfig(device="cpu", learning_rate=1e-9, teacher_cost=4.0, teacher_cost_end=0.0)
    learner = Learner(make_taught(), config, total_steps=80)
    batch = taught_batch()
    metrics = [learner.update(batch) for _ in range(4)]
    first, second, _, last = [row["loss/teacher"] for row in metrics]
    assert first > second > last
    assert last == 0
    assert [row["teacher_cost"] for row in metrics[::3]] == [4, 0]


def test_the_teacher_has_no_dropout() -> None:
    """While the agent has it."""
    agent = make_taught(dataclasses.replace(CORES["compressive"], dropout=0.5)).train()
    assert agent.training
    assert not agent.teacher.training
    inputs = pairs()
    state = agent.initial_state(ROWS)
    first = agent(**inputs, state=state)
    second = agent(**inputs, state=state)
    assert not torch.equal(first.policy_parameters, second.policy_parameters)

    _, view = inputs.pop("observation")
    first = agent.teacher(view, **inputs, state=state.teacher)
    second = agent.teacher(view, **inputs, state=state.teacher)
    assert torch.equal(first.policy_parameters, second.policy_parameters)


def test_both_networks_begin_with_the_weights_of_another_agent() -> None:
    """The other agent's own teacher does not matter."""
    source = make_taught()
    agent = make_taught()
    with torch.no_grad():
        source.policy.bias.fill_(1.0)
        source.teacher.policy.bias.fill_(2.0)
    agent.begin_with(source.state_dict())
    assert agent.policy.bias.tolist() == [1.0] * ACTIONS
    assert agent.teacher.policy.bias.tolist() == [1.0] * ACTIONS


def test_alone_it_is_a_copy_and_draws_no_random_numbers() -> None:
    agent = make_taught()
    random = torch.get_rng_state()
    alone = agent.alone()
    assert torch.equal(torch.get_rng_state(), random)
    assert type(alone) is Agent
    assert alone.state_dict().keys() == {name for name in agent.state_dict() if not name.startswith("teacher.")}
    alone.policy.bias.data.fill_(3.0)
    assert 3.0 not in agent.policy.bias


@pytest.mark.parametrize("shape", [IMAGE, (IMAGE,), (IMAGE, (12, 20, 3)), ((7,), (7,)), (IMAGE, IMAGE, IMAGE)])
def test_observations_that_are_no_pair_of_images_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^teacher_cost: expected an environment that shows each state twice"):
        TaughtAgent(AgentConfig(torso="small"), shape, ACTIONS)


def test_instructions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^teacher_cost: expected an environment without instructions"):
        TaughtAgent(AgentConfig(torso="small"), (IMAGE, IMAGE), ACTIONS, vocabulary=7)


def test_masks_of_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^teacher_cost: expected an environment without a mask of actions"):
        TaughtAgent(AgentConfig(torso="small"), (IMAGE, IMAGE), ACTIONS, mask_at=0)


def test_actions_of_several_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^teacher_cost: expected one choice of several actions"):
        TaughtAgent(AgentConfig(torso="small"), (IMAGE, IMAGE), (Choice(2), Choice(3)))
