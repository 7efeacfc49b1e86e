"""The class of each core, by the type of its configuration. docs/extending.md says how to add a core."""

import importlib
import inspect
from typing import Any

import torch

from .checking import describe_raised
from .compressive_transformer import CompressiveTransformer
from .config import (
    CORES,
    CompressiveTransformerConfig,
    CustomCoreConfig,
    DeltaNetConfig,
    FFMConfig,
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
from .ffm import FFM
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
    FFMConfig: FFM,
    DeltaNetConfig: DeltaNet,
    MemorylessConfig: Memoryless,
    WaveNetConfig: WaveNet,
}


def make_core(config: Any) -> Core:
    """Builds the core of a configuration.

    Raises:
        ValueError: if the configuration belongs to no core, or a custom one has no such class or arguments, or raises.
        ImportError: if there is no module of a custom core.
    """
    if isinstance(config, CustomCoreConfig):
        return _make_custom(config)
    if type(config) not in CORE_CLASSES:
        raise ValueError(f"core: expected a config of {', '.join(CORES)}, got {type(config).__name__}")
    return CORE_CLASSES[type(config)](config)


def _make_custom(config: CustomCoreConfig) -> Core:
    """An instance of the class that a configuration names. Its module runs as Python code."""
    _, _, name = config.name.partition(":")
    module = importlib.import_module(config.module)
    kind = getattr(module, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Core):
        got = "nothing of this name" if kind is None else repr(kind)
        raise ValueError(f"core {config.name}: expected a subclass of agent.core.Core, got {got}")
    signature = inspect.signature(kind)
    try:
        signature.bind(**config.keywords)
    except TypeError as error:
        taken = ", ".join(signature.parameters)
        given = ", ".join(config.keywords)
        raise ValueError(
            f"core {config.name}: expected arguments of the class ({taken}), got {given}: {error}"
        ) from None
    try:
        return kind(**config.keywords)
    except Exception as error:
        # On the meta device, which has no numbers, some cores cannot be made; callers expect torch's own errors there.
        if torch.get_default_device().type == "meta" and isinstance(error, (RuntimeError, NotImplementedError)):
            raise
        raised = describe_raised(error, kind.__module__)
        raise ValueError(f"core {config.name}: expected an instance of the class, got {raised}") from error
