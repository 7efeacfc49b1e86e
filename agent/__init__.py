"""Networks only: pure torch. No Ray, no files, no environments."""

import importlib
from typing import TYPE_CHECKING, Any

from agent.config import AgentConfig

if TYPE_CHECKING:
    from agent.actor_critic import Agent, AgentOutput
    from agent.trajectory import EnvOutput, Observation, Trajectory

__all__ = ["Agent", "AgentConfig", "AgentOutput", "EnvOutput", "Observation", "Trajectory"]


def __getattr__(name: str) -> Any:
    """Imports what needs torch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "actor_critic" if name.startswith("Agent") else "trajectory"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
