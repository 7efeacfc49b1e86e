"""The recurrent cores of agents and sequence models, behind one contract. docs/core.md describes how to add a core."""

# ruff: noqa: F403 (names are re-exported)
import importlib
from typing import TYPE_CHECKING, Any

from agent.core.config import *

if TYPE_CHECKING:
    from agent.core.compressive_transformer import *
    from agent.core.contract import *
    from agent.core.recurrent import *
    from agent.core.routing import *
    from agent.core.state import *
    from agent.core.transformer import *


def __getattr__(name: str) -> Any:
    """Imports what needs torch on first use."""
    for module in ("contract", "state", "transformer", "compressive_transformer", "routing", "recurrent"):
        if not name.startswith("_") and hasattr(found := importlib.import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
