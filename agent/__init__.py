"""Networks only: pure torch. No Ray, no files, no environments."""

from agent.actor_critic import Agent, AgentConfig, AgentOutput
from agent.trajectory import Observation, Trajectory

__all__ = ["Agent", "AgentConfig", "AgentOutput", "Observation", "Trajectory"]
