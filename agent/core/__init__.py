"""The recurrent cores of agents, text and speech, behind one contract. docs/core.md describes how to add a core."""

# ruff: noqa: F401 (names are re-exported)
import importlib
from typing import TYPE_CHECKING, Any

from agent.core.config import (
    CORES,
    CompressiveTransformerConfig,
    CoreConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    Sizes,
    TransformerXLConfig,
)

if TYPE_CHECKING:
    from agent.core.compressive_transformer import ATTENTION_KINDS, CompressiveState, CompressiveTransformer
    from agent.core.contract import Core, CoreOutput, Mean, make_core
    from agent.core.recurrent import GRU, LSTM, Memoryless, MinGRU
    from agent.core.state import (
        State,
        concatenate_states,
        detach_state,
        index_state,
        leaves,
        map_state,
        restore_state,
        state_bytes,
        state_to,
    )


def __getattr__(name: str) -> Any:
    """Imports what needs torch on first use."""
    for module in ("contract", "state", "compressive_transformer", "recurrent"):
        if not name.startswith("_") and hasattr(found := importlib.import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
