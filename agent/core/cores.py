"""The class of each core, by the type of its configuration. docs/extending.md lists what a new core needs."""

from typing import Any

from .compressive_transformer import CompressiveTransformer
from .config import (
    CORES,
    CompressiveTransformerConfig,
    DeltaNetConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
    WaveNetConfig,
)
from .contract import Core
from .linear import LRU, DeltaNet
from .recurrent import GRU, LSTM, Memoryless, MinGRU
from .routing import RoutingTransformer
from .wavenet import WaveNet

CORE_CLASSES: dict[type, type[Core]] = {
    CompressiveTransformerConfig: CompressiveTransformer,
    TransformerXLConfig: CompressiveTransformer,
    GatedTransformerXLConfig: CompressiveTransformer,
    RoutingTransformerConfig: RoutingTransformer,
    LSTMConfig: LSTM,
    GRUConfig: GRU,
    MinGRUConfig: MinGRU,
    LRUConfig: LRU,
    DeltaNetConfig: DeltaNet,
    MemorylessConfig: Memoryless,
    WaveNetConfig: WaveNet,
}


def make_core(config: Any) -> Core:
    """Builds the core of a configuration.

    Raises:
        ValueError: if the configuration belongs to no core.
    """
    if type(config) not in CORE_CLASSES:
        raise ValueError(f"core: expected a config of {', '.join(CORES)}, got {type(config).__name__}")
    return CORE_CLASSES[type(config)](config)
