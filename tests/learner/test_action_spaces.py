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
from agent.core import MemorylessConfig
from envs.gym import adapt
from envs.processes import batch
from learner.config import LearnerConfig
from learner.learner import Learner

SPACES: dict[str, Any] = {
    "Discrete from 3": spaces.Discrete(2, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 2]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-3.0, 1.0, (2,)),
    "Box without bounds": spaces.Box(-np.inf, np.inf, (1, 2)),
    "Tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 2.0, (2,))]),
    "Dict": spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,), np.float64), "hand": spaces.MultiBinary(2)}),
}
UPDATES, ROWS, STEPS = 150, 16, 8


class Imitation(gymnasium.Env[Any, Any]):
    """Shows a sign, 1 or -1, in each of two places, and rewards actions that repeat it: choices by their index, numbers
    by three quarters of the way from the middle of their bounds to the one on that side.

    The reward of a step is the mean over the components, 1 for the right choice or number; 0 is as good as none.
    """

    def __init__(self, space: spaces.Space[Any], observation: str) -> None:
        self.action_space = space
        vector = spaces.Box(-1.0, 1.0, (2,), np.float32)
        image = spaces.Box(0, 255, (1, 2, 1), np.uint8)
        self.observation = observation
        kinds: dict[str, spaces.Space[Any]] = {
            "vector": vector,
            "parts": spaces.Dict({"left": image, "right": spaces.Box(-1.0, 1.0, (1,), np.float64)}),
        }
        self.observation_space = kinds[observation]

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
        if isinstance(space, spaces.Dict):
            return [score for name, part in space.spaces.items() for score in self._scores(part, action[name])]
        if isinstance(space, spaces.Tuple):
            return [score for part, own in zip(space.spaces, action) for score in self._scores(part, own)]
        if isinstance(space, spaces.Box):
            low = np.where(np.isfinite(space.low), space.low, -1.0).ravel()
            high = np.where(np.isfinite(space.high), space.high, 1.0).ravel()
            target = (low + high) / 2 + 0.75 * self.signs * (high - low) / 2
            return (1 - np.abs(np.ravel(action) - target) / (high - low)).tolist()
        chosen = np.ravel(action) - getattr(space, "start", 0)
        return (chosen == (self.signs[: chosen.size] > 0)).astype(float).tolist()


@pytest.mark.parametrize("observation", ["vector", "parts"])
@pytest.mark.parametrize("name", SPACES)
def test_tiny_tasks_are_learned(name: str, observation: str) -> None:
    envs = batch(lambda: adapt(Imitation(SPACES[name], observation)), ROWS)
    interface = read_interface(envs)
    torch.manual_seed(0)
    core = MemorylessConfig(32, 1, 32)
    config = AgentConfig(torso="small", torso_size=32, core=core)
    agent = Agent(config, interface.observation_shape, interface.actions)
    learning = LearnerConfig(learning_rate=1e-2, discount=0.0, entropy_cost=1e-3, device="cpu")
    learner = Learner(agent, learning, 10**6)
    actor = Actor(envs, Agent(config, interface.observation_shape, interface.actions), 0, seed=0)
    rewards: list[float] = []
    for _ in range(UPDATES):
        actor.set_weights(learner.weights(), learner.version)
        trajectory = actor.unroll(STEPS).trajectory
        metrics = learner.update(trajectory)
        assert metrics["importance/mean_rho"] == pytest.approx(1, abs=1e-4)
        rewards.append(float(trajectory.reward[:, 1:].sum() / (~trajectory.reset[:, 1:]).sum()))
    assert np.mean(rewards[:5]) < 0.7
    assert np.mean(rewards[-10:]) > 0.85
