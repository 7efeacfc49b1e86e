"""Agents learn tiny tasks in every space of actions, from observations of every kind."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from actors import Actor
from actors.interface import read_interface
from agent import Agent, AgentConfig
from agent.actor_critic import MadeFor
from agent.core import MemorylessConfig
from envs.gym import adapt
from envs.processes import batch
from learner.config import LearnerConfig
from learner.learner import Learner
from tests.envs.masked import Dials, Doors, Masked

SPACES: dict[str, Any] = {
    "Discrete from 3": spaces.Discrete(2, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 2]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-3.0, 1.0, (2,)),
    "Box without bounds": spaces.Box(-np.inf, np.inf, (1, 2)),
    "Tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 2.0, (2,))]),
    "Dict": spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,), np.float64), "hand": spaces.MultiBinary(2)}),
}
UPDATES = 150
ROWS = 16
STEPS = 8


class Imitation(gymnasium.Env[Any, Any]):
    """Shows a sign, 1 or -1, in each of two places, and rewards actions that repeat it: choices by their index, numbers
    by three quarters of the way from the middle of their bounds to the one on that side.

    The reward of a step is the mean over the components: 1 for the right choice or number, 0 for the wrong choice.
    """

    def __init__(self, space: spaces.Space[Any], observation: str) -> None:
        self.action_space = space
        self.observation = observation
        if observation == "vector":
            self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        else:
            image = spaces.Box(0, 255, (1, 2, 1), np.uint8)
            number = spaces.Box(-1.0, 1.0, (1,), np.float64)
            self.observation_space = spaces.Dict({"left": image, "right": number})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        self.signs = self.np_random.choice([-1.0, 1.0], 2)
        if self.observation == "vector":
            return self.signs.astype(np.float32)
        pixels = np.full((1, 2, 1), 255 * (self.signs[0] > 0), np.uint8)
        return {"left": pixels, "right": self.signs[1:]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        reward = float(np.mean(self._scores(self.action_space, action)))
        self.steps += 1
        return self._observe(), reward, False, self.steps == 5, {}

    def _scores(self, space: Any, action: Any) -> list[float]:
        """One for each component of an action."""
        if isinstance(space, spaces.Dict):
            scores = []
            for name, part in space.spaces.items():
                scores += self._scores(part, action[name])
            return scores
        if isinstance(space, spaces.Tuple):
            scores = []
            for part, own in zip(space.spaces, action):
                scores += self._scores(part, own)
            return scores
        if isinstance(space, spaces.Box):
            # Numbers without bounds count as within -1..1.
            low = np.where(np.isfinite(space.low), space.low, -1.0).ravel()
            high = np.where(np.isfinite(space.high), space.high, 1.0).ravel()
            middle = (low + high) / 2
            target = middle + 0.75 * self.signs * (high - low) / 2
            distance = np.abs(np.ravel(action) - target)
            return (1 - distance / (high - low)).tolist()
        # Choices: index 1 is right for a positive sign, 0 for a negative one.
        chosen = np.ravel(action) - getattr(space, "start", 0)
        right = self.signs[: chosen.size] > 0
        return (chosen == right).astype(float).tolist()


CASES = [pytest.param(name, "vector", marks=pytest.mark.slow) for name in SPACES]
CASES += [pytest.param("Discrete from 3", "parts", marks=pytest.mark.slow), pytest.param("Dict", "parts")]


@pytest.mark.parametrize(("name", "observation"), CASES)
def test_tiny_tasks_are_learned(name: str, observation: str) -> None:
    envs = batch(lambda: adapt(Imitation(SPACES[name], observation)), ROWS)
    interface = read_interface(envs)

    # Without memory and without a value of later steps: each step is a task of its own.
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=32, core=MemorylessConfig(32, 1, 32))
    agent = Agent(config, interface.observation_shape, interface.actions)
    learning = LearnerConfig(learning_rate=1e-2, discount=0.0, entropy_cost=1e-3, device="cpu")
    learner = Learner(agent, learning, 10**6)
    actor = Actor(envs, Agent(config, interface.observation_shape, interface.actions), 0, seed=0)

    mean_rewards: list[float] = []
    for _ in range(UPDATES):
        actor.set_weights(learner.weights(), learner.version)
        trajectory = actor.unroll(STEPS).trajectory
        metrics = learner.update(trajectory)
        assert metrics["importance/mean_rho"] == pytest.approx(1, abs=1e-4), "on-policy"
        # The first observation of an episode has no reward.
        total = trajectory.reward[:, 1:].sum()
        count = (~trajectory.reset[:, 1:]).sum()
        mean_rewards.append(float(total / count))
    assert np.mean(mean_rewards[:5]) < 0.7
    assert np.mean(mean_rewards[-10:]) > 0.85


@pytest.mark.parametrize(("kind", "at_first"), [(Doors, 0.5), (Dials, 2 / 3)])
def test_a_task_is_learned_whose_actions_are_not_always_possible(kind: type[Masked], at_first: float) -> None:
    """Its environment refuses impossible actions; what is right at first is a uniform policy among the possible."""
    envs = batch(lambda: adapt(kind()), ROWS)
    known = read_interface(envs)
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=32, core=MemorylessConfig(32, 1, 32), standardize=True)
    made_for = MadeFor(known.observation_shape, known.actions, 0, 0, known.mask_at)
    learning = LearnerConfig(learning_rate=1e-2, discount=0.0, exploration="evenness", entropy_cost=1e-3, device="cpu")
    learner = Learner(Agent(config, *made_for), learning, 10**6)
    actor = Actor(envs, Agent(config, *made_for), 0, seed=0)
    rewards: list[float] = []
    for _ in range(40):
        actor.set_weights(learner.weights(), learner.version)
        trajectory = actor.unroll(STEPS).trajectory
        metrics = learner.update(trajectory)
        assert metrics["importance/mean_rho"] == pytest.approx(1, abs=1e-4), "on-policy"
        took_effect = ~trajectory.reset[:, 1:]
        rewards.append(float(trajectory.reward[:, 1:][took_effect].mean()))
    assert rewards[0] == pytest.approx(at_first, abs=0.15)
    assert np.mean(rewards[-5:]) > 0.9
