"""The shared recurrent core: one contract, several cores, used unchanged by agents, text and speech.

A new core is one file and one line in `CORES`; it then runs under the same test suite as the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.core.baselines import LSTM, LSTMConfig, Memoryless, MemorylessConfig
from agent.core.compressive_transformer import CompressiveState, CompressiveTransformer, CompressiveTransformerConfig
from agent.core.contract import Core, CoreOutput
from agent.core.state import (
    State,
    concatenate_states,
    detach_state,
    index_state,
    leaves,
    map_state,
    state_bytes,
    state_to,
)


@dataclass(frozen=True)
class TransformerXLConfig(CompressiveTransformerConfig):
    """Transformer-XL: the same class without compressed memory (which is what is paid for by more memory)."""

    memory_size: int = 128
    """Slots of memory a layer (n_m)."""
    compressed_size: int = 0
    """Always 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compressed_size:
            raise ValueError(f"compressed_size: expected 0 for Transformer-XL, got {self.compressed_size}")


CoreConfig = CompressiveTransformerConfig | TransformerXLConfig | LSTMConfig | MemorylessConfig

CORES: dict[str, tuple[type, Callable[[Any], Core]]] = {
    "compressive": (CompressiveTransformerConfig, CompressiveTransformer),
    "transformer-xl": (TransformerXLConfig, CompressiveTransformer),
    "lstm": (LSTMConfig, LSTM),
    "memoryless": (MemorylessConfig, Memoryless),
}


def make_core(config: Any) -> Core:
    """Builds the core that a config describes.

    Raises:
        ValueError: if no core has such a config.
    """
    for config_type, build in CORES.values():
        if type(config) is config_type:
            return build(config)
    raise ValueError(f"core: expected a config of {', '.join(CORES)}, got {type(config).__name__}")


__all__ = [
    "CORES",
    "LSTM",
    "CompressiveState",
    "CompressiveTransformer",
    "CompressiveTransformerConfig",
    "Core",
    "CoreConfig",
    "CoreOutput",
    "LSTMConfig",
    "Memoryless",
    "MemorylessConfig",
    "State",
    "TransformerXLConfig",
    "concatenate_states",
    "detach_state",
    "index_state",
    "leaves",
    "make_core",
    "map_state",
    "state_bytes",
    "state_to",
]
