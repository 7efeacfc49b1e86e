"""The shared recurrent core: one contract, several cores, used unchanged by agents, text and speech.

A new core is one file and one line in `CORES`, and runs under the same tests as the others: docs/core.md, "To add".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agent.core.compressive_transformer import (
    ATTENTION_KINDS,
    CompressiveState,
    CompressiveTransformer,
    CompressiveTransformerConfig,
    Sizes,
)
from agent.core.contract import Core, CoreOutput
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
    Shared,
    State,
    concatenate_states,
    detach_state,
    index_state,
    leaves,
    map_state,
    state_bytes,
    state_to,
    take_up_state,
)


@dataclass(frozen=True)
class TransformerXLConfig(CompressiveTransformerConfig):
    """Transformer-XL: the same class without compressed memory (which is what is paid for by more memory).

    Fields that say how to compress mean nothing here: they keep their defaults.
    """

    memory_size: Sizes = 128
    """Slots of memory (n_m), one number or one a layer."""
    compressed_size: Sizes = 0
    """Always 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(self.by_layer("compressed_size")):
            raise ValueError(f"compressed_size: expected 0 for Transformer-XL, got {self.compressed_size}")
        for name in ("compression", "compression_loss", "compression_rate", "compressed_position"):
            value, default = getattr(self, name), getattr(CompressiveTransformerConfig, name)
            if value != default and value != (default,) * self.num_layers:
                expected = f"the default, {default!r}, for Transformer-XL, which compresses nothing"
                raise ValueError(f"{name}: expected {expected}, got {value!r}")


@dataclass(frozen=True)
class GatedTransformerXLConfig(TransformerXLConfig):
    """GTrXL (Parisotto et al. 2019): Transformer-XL with the norm at the input of each sub-layer, and GRU gates."""

    norm: Literal["pre", "post"] = "pre"
    """Layer normalisation before each sub-layer, as in GTrXL, or after it."""
    gate: Literal["residual", "gru"] = "gru"
    """Always gru."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gate != "gru":
            raise ValueError(f"gate: expected gru for gated Transformer-XL, got {self.gate!r}")


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
    """Builds the core that a config describes.

    Raises:
        ValueError: if no core has such a config.
    """
    for config_type, build in CORES.values():
        if type(config) is config_type:
            return build(config)
    raise ValueError(f"core: expected a config of {', '.join(CORES)}, got {type(config).__name__}")


__all__ = [
    "ATTENTION_KINDS",
    "CORES",
    "GRU",
    "LSTM",
    "CompressiveState",
    "CompressiveTransformer",
    "CompressiveTransformerConfig",
    "Core",
    "CoreConfig",
    "CoreOutput",
    "GRUConfig",
    "GatedTransformerXLConfig",
    "LSTMConfig",
    "Memoryless",
    "MemorylessConfig",
    "MinGRU",
    "MinGRUConfig",
    "Shared",
    "Sizes",
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
    "take_up_state",
]
