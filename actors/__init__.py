"""Everywhere actions happen: actors and their pools, evaluation and recording. Ray only in `ray_pool`."""

import importlib
from typing import TYPE_CHECKING

from actors.config import ActorsConfig, ClusterError

if TYPE_CHECKING:
    from actors.actor import Actor, Episode, Unroll
    from actors.pool import LocalPool, Pool, PoolStatus

__all__ = ["Actor", "ActorsConfig", "ClusterError", "Episode", "LocalPool", "Pool", "PoolStatus", "Unroll"]


def __getattr__(name: str) -> object:
    """Imports what needs torch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "actor"
    if "Pool" in name:
        module = "pool"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
