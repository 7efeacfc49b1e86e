"""The examples do what they say: the same updates as the learner, and a memory that learns."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors import Actor
from actors.interface import read_interface
from agent import Agent, AgentConfig, Trajectory
from agent.core import CompressiveTransformer, CompressiveTransformerConfig, matched_cores
from envs import make_vector
from examples import core_in_your_loop, impala
from learner.config import LearnerConfig
from learner.learner import Learner
from learner.vtrace import vtrace

SIZES = {"model_size": 16, "num_layers": 1, "num_heads": 2, "mlp_size": 16, "segment_size": 8, "norm": "pre"}


def make_agent(core: str) -> Agent:
    """A small agent for `rooms:small`, with the same weights at each call."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=matched_cores(SIZES, 8, 4)[core], reconstruction_cost=1.0)
    return Agent(config, (24, 32, 3), 7)


@pytest.mark.parametrize("core", ["compressive", "lstm"])
def test_updates_equal_those_of_the_learner(core: str) -> None:
    ours = make_agent(core)
    settings = impala.Settings()
    optimizer = impala.make_optimizer(ours, settings)
    config = LearnerConfig(
        learning_rate=settings.learning_rate,
        discount=settings.discount,
        lambda_=settings.lambda_,
        entropy_cost=settings.entropy_cost,
        baseline_cost=settings.baseline_cost,
        reward_clipping="abs_one",
        max_gradient_norm=settings.max_gradient_norm,
        device="cpu",
    )
    learner = Learner(copy.deepcopy(ours), config, total_steps=10**6)

    actor = impala.Actor(make_vector("rooms:small,episode_frames=80", 3), copy.deepcopy(ours).eval(), seed=1)
    for _ in range(3):  # the actor's weights get old: V-trace has something to correct
        trajectory = actor.unroll(16)
        losses = impala.update(ours, optimizer, trajectory, settings)
        metrics = learner.update(trajectory)
        assert losses == pytest.approx({name: metrics[f"loss/{name}"] for name in losses}, rel=1e-4, abs=1e-6)

    weights = ours.state_dict()
    for name, expected in learner.weights().items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-5, atol=1e-6, msg=name)


def test_unrolls_equal_those_of_the_actor() -> None:
    agent = make_agent("compressive")
    ours = impala.Actor(make_vector("rooms:small,episode_frames=80", 2), agent.eval(), seed=0)
    theirs = Actor(make_vector("rooms:small,episode_frames=80", 2), copy.deepcopy(agent), 0, seed=0)

    # Both begin with the same episodes, first observations and random numbers.
    theirs.reset_envs(0)
    ours.envs.reset(seed=0)
    theirs.generator = torch.Generator().manual_seed(0)
    theirs.env_output = theirs.env_output._replace(observation=ours.output.observation.clone())

    scores: list[float] = []
    for _ in range(4):
        unroll = theirs.unroll(16)
        found = ours.unroll(16)
        for name in ("observation", "last_action", "reward", "discount", "reset", "action", "policy_parameters"):
            expected = getattr(unroll.trajectory, name)
            np.testing.assert_allclose(getattr(found, name), expected, atol=1e-6, err_msg=name)
        scores += [episode.score for episode in unroll.episodes]
    assert len(scores) > 4
    assert ours.finished == pytest.approx(scores)


def test_actions_that_are_vectors_are_learned_as_by_the_learner() -> None:
    """Pendulum: a number that is sampled without bounds, and received within -1..1."""
    torch.manual_seed(0)
    envs = make_vector("gym:Pendulum-v1,max_episode_steps=10", 3)
    seen = read_interface(envs)
    core = matched_cores(SIZES, 8, 4)["compressive"]
    ours = Agent(AgentConfig(torso="small", torso_size=16, core=core), seen.observation_shape, seen.actions)
    actor = impala.Actor(envs, copy.deepcopy(ours).eval(), seed=1)
    settings = impala.Settings(entropy_cost=0.02)
    config = LearnerConfig(
        discount=settings.discount,
        lambda_=settings.lambda_,
        entropy_cost=settings.entropy_cost,
        baseline_cost=settings.baseline_cost,
        reward_clipping="abs_one",
        device="cpu",
    )
    learner = Learner(copy.deepcopy(ours), config, total_steps=10**6)

    # Some actions are out of bounds; their effect is the last action of the next step.
    trajectory = actor.unroll(16)
    assert trajectory.action.abs().max() > 1
    effect = ours.distribution.effect(trajectory.action)
    expected = torch.where(trajectory.reset[:, 1:, None], 0.0, effect)
    torch.testing.assert_close(trajectory.last_action[:, 1:], expected)

    losses = impala.update(ours, impala.make_optimizer(ours, settings), trajectory, settings)
    metrics = learner.update(trajectory)
    assert losses == pytest.approx({name: metrics[f"loss/{name}"] for name in losses}, rel=1e-4, abs=1e-6)


def test_targets_and_advantages_equal_those_of_the_learner() -> None:
    """Also where episodes were truncated, so that a reset cuts traces and no discount does."""
    generator = torch.Generator().manual_seed(0)
    rows = 4
    steps = 8
    log_rhos = torch.randn(rows, steps, generator=generator)
    rewards = torch.randn(rows, steps, generator=generator)
    values = torch.randn(rows, steps + 1, generator=generator)
    discounts = torch.full((rows, steps), 0.9)
    mask = torch.rand(rows, steps, generator=generator) > 0.3
    settings = impala.Settings()
    targets, advantages = impala.vtrace(log_rhos, discounts, rewards, values, mask, settings)
    bootstrap = values[:, -1]
    expected = vtrace(log_rhos, discounts, rewards, values[:, :-1], bootstrap, mask, lambda_=settings.lambda_)
    torch.testing.assert_close(targets[mask], expected.vs[mask])
    torch.testing.assert_close(advantages, expected.pg_advantages)


def test_the_core_remembers_in_a_loop_of_its_own() -> None:
    assert core_in_your_loop.train(updates=120) > 0.9


def test_the_loop_trains_the_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    cores: list[CompressiveTransformer] = []
    before: list[torch.Tensor] = []

    def make(config: CompressiveTransformerConfig) -> CompressiveTransformer:
        cores.append(CompressiveTransformer(config))
        before.extend(weight.detach().clone() for weight in cores[-1].compression_parameters())
        return cores[-1]

    monkeypatch.setattr(core_in_your_loop, "CompressiveTransformer", make)
    core_in_your_loop.train(updates=2)
    (core,) = cores
    assert before
    for weight, old in zip(core.compression_parameters(), before, strict=True):
        assert not torch.equal(weight, old)


def test_the_loop_needs_compressed_memory() -> None:
    """Without it the core guesses."""
    accuracy = core_in_your_loop.train(updates=40, compressed_size=0)
    chance = 1 / core_in_your_loop.SYMBOLS
    assert accuracy == pytest.approx(chance, abs=0.02)


def test_the_loop_asks_for_symbols_of_the_right_time() -> None:
    """The targets of the second batch are its symbols and the last ones of the first, `DELAY` steps late."""
    rows, steps, delay = core_in_your_loop.ROWS, core_in_your_loop.STEPS, core_in_your_loop.DELAY
    generator = torch.Generator().manual_seed(0)
    first, _, last = core_in_your_loop.batch(generator, torch.zeros(rows, delay))
    second, targets, _ = core_in_your_loop.batch(generator, last)
    stream = torch.cat([first, second], dim=1)
    begin = steps - delay
    assert torch.equal(targets, stream[:, begin : begin + steps])


@pytest.mark.usefixtures("two_threads")
def test_the_loop_is_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple] = []
    monkeypatch.setattr(core_in_your_loop, "train", lambda *arguments: trained.append(arguments))
    core_in_your_loop.main()
    assert trained == [()]


@pytest.mark.usefixtures("two_threads")
def test_the_script_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The actor gets new weights after every second update, and the mean return is that of the last 200 episodes.

    The sum of the weights of the value stands for all weights. Every unroll adds 100 episodes with its number as their
    return, so that the mean of the last 200 is known.
    """
    learned: list[float] = []
    acted: list[float] = []
    update = impala.update
    unroll = impala.Actor.unroll

    def recorded_update(agent: Agent, *arguments: Any) -> dict[str, float]:
        losses = update(agent, *arguments)
        learned.append(agent.value.weight.sum().item())
        return losses

    def recorded_unroll(actor: impala.Actor, length: int) -> Trajectory:
        acted.append(actor.agent.value.weight.sum().item())
        actor.finished += [len(acted)] * 100
        return unroll(actor, length)

    monkeypatch.setattr(impala, "update", recorded_update)
    monkeypatch.setattr(impala.Actor, "unroll", recorded_unroll)
    options = ["--updates=20", "--environments=2", "--unroll-length=16", "--env=diagnostic:recall"]
    monkeypatch.setattr(sys, "argv", ["impala.py", *options])
    impala.main()

    # Of each two unrolls both are played with the weights of the second update before.
    assert len(set(learned)) == 20
    assert acted[2::2] == acted[3::2] == learned[1:-1:2]
    assert acted[0] == acted[1] != acted[2]

    printed = re.search(r"update 20  640 steps  return (\S+)", capsys.readouterr().out)
    assert printed
    of_unrolls_19_and_20 = 19.5
    assert float(printed[1]) == pytest.approx(of_unrolls_19_and_20, abs=1), "a few episodes of recall are among them"


def test_the_script_is_short() -> None:
    assert len(Path(impala.__file__).read_text().splitlines()) <= 250
