"""The recurrent cores of agents and sequence models, behind one contract.

docs/core.md describes the contract, docs/extending.md how to add a core.
"""

# ruff: noqa: F401 (names are re-exported)
import importlib
from typing import TYPE_CHECKING, Any

from .config import (
    CORES,
    AgentCoreConfig,
    CompressiveTransformerConfig,
    CoreConfig,
    CustomCoreConfig,
    DeltaNetConfig,
    FFMConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LayerSizes,
    LRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
    WaveNetConfig,
    is_custom,
    matched_cores,
)

if TYPE_CHECKING:
    from .checking import check_core
    from .compressive_transformer import CompressiveState, CompressiveTransformer
    from .contract import Core, CoreOutput, Mean
    from .cores import make_core
    from .flat import FlatCore
    from .routing import RoutingTransformer
    from .state import (
        State,
        concatenate_states,
        detach_state,
        fill_state,
        index_state,
        leaves,
        map_state,
        restore_state,
        state_bytes,
        state_to,
    )
    from .transformer import Transformer

_MODULES = {
    "checking": ("check_core",),
    "compressive_transformer": ("CompressiveState", "CompressiveTransformer"),
    "contract": ("Core", "CoreOutput", "Mean"),
    "cores": ("make_core",),
    "flat": ("FlatCore",),
    "routing": ("RoutingTransformer",),
    "state": (
        "State",
        "concatenate_states",
        "detach_state",
        "fill_state",
        "index_state",
        "leaves",
        "map_state",
        "restore_state",
        "state_bytes",
        "state_to",
    ),
    "transformer": ("Transformer",),
}
"""What the package exports of the modules that need torch: they are imported on first use."""


def __dir__() -> list[str]:
    """All names, also those that are imported on first use."""
    return sorted([*globals(), *(name for names in _MODULES.values() for name in names)])


def __getattr__(name: str) -> Any:
    """Imports the module of a name in `_MODULES`."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
