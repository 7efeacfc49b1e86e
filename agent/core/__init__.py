"""The recurrent cores of agents and sequence models, behind one contract. docs/core.md describes how to add a core."""

# ruff: noqa: F403 (names are re-exported)
import importlib
from typing import TYPE_CHECKING, Any

from .config import *

if TYPE_CHECKING:
    from .compressive_transformer import *
    from .contract import *
    from .flat import *
    from .recurrent import *
    from .routing import *
    from .state import *
    from .transformer import *


def __getattr__(name: str) -> Any:
    """Imports what needs torch on first use."""
    for module in ("contract", "state", "transformer", "compressive_transformer", "routing", "recurrent", "flat"):
        if not name.startswith("_") and hasattr(found := importlib.import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
