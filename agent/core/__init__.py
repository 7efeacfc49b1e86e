"""The recurrent cores of agents, text and speech, behind one contract. docs/core.md describes how to add a core."""

# ruff: noqa: F401 (names are re-exported)
from collections.abc import Callable
from typing import Any

from agent.core.compressive_transformer import ATTENTION_KINDS, CompressiveState, CompressiveTransformer
from agent.core.config import CompressiveTransformerConfig, GatedTransformerXLConfig, Sizes, TransformerXLConfig
from agent.core.contract import Core, CoreOutput, Mean
from agent.core.recurrent import (
    GRU,
    LSTM,
    GRUConfig,
    LSTMConfig,
    Memoryless,
    MemorylessConfig,
    MinGRU,
    MinGRUConfig,
)
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

CoreConfig = (
    CompressiveTransformerConfig
    | TransformerXLConfig
    | GatedTransformerXLConfig
    | LSTMConfig
    | GRUConfig
    | MinGRUConfig
    | MemorylessConfig
)

CORES: dict[str, tuple[type, Callable[[Any], Core]]] = {
    "compressive": (CompressiveTransformerConfig, CompressiveTransformer),
    "transformer-xl": (TransformerXLConfig, CompressiveTransformer),
    "gated-transformer-xl": (GatedTransformerXLConfig, CompressiveTransformer),
    "lstm": (LSTMConfig, LSTM),
    "gru": (GRUConfig, GRU),
    "mingru": (MinGRUConfig, MinGRU),
    "memoryless": (MemorylessConfig, Memoryless),
}


def make_core(config: Any) -> Core:
    """Builds the core of a config.

    Raises:
        ValueError: if the config belongs to no core of `CORES`.
    """
    for config_type, build in CORES.values():
        if type(config) is config_type:
            return build(config)
    raise ValueError(f"core: expected a config of {', '.join(CORES)}, got {type(config).__name__}")
