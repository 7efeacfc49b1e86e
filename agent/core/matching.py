"""Cores whose states have equally many bytes, beside `matched_cores`, whose cores cost equally much to act with.

A transformer gets as many slots as fit, a recurrence as many features. Equal states say which core makes the most of
its memory, and not what that costs: a GRU with the bytes of a Compressive Transformer has 2,000 times its weights.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from .config import (
    CompressiveTransformerConfig,
    CoreConfig,
    DeltaNetConfig,
    MemorylessConfig,
    RoutingTransformerConfig,
)
from .cores import make_core
from .state import state_bytes

MOST_UNITS = 2**20
"""Slots or features, at most; a state of more bytes than these need is not filled."""


@functools.cache
def with_state_of(config: CoreConfig, num_bytes: int) -> CoreConfig:
    """The core with the most slots or features whose state has at most `num_bytes` bytes a row, in float32.

    Slots keep their proportion of memory and compressed memory, or of memory and the window of a cluster. What has no
    memory stays as it is.

    Raises:
        ValueError: if the smallest state has more bytes, or layers differ in size.
    """
    if isinstance(config, MemorylessConfig):
        return config
    resize = _resizing(config)
    least = bytes_of_state(resize(1))
    if least > num_bytes:
        raise ValueError(f"state_bytes: expected at least {least:,} for this core, got {num_bytes:,}")

    # The largest size that fits is between `fits` and `too_large`.
    fits, too_large = 1, 2
    while too_large <= MOST_UNITS and bytes_of_state(resize(too_large)) <= num_bytes:
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if bytes_of_state(resize(middle)) <= num_bytes:
            fits = middle
        else:
            too_large = middle
    return resize(fits)


def bytes_of_state(config: Any) -> int:
    """Bytes of the state of one row. No memory is allocated for the core."""
    with torch.device("meta"):
        return state_bytes(make_core(config).initial_state(1))


def _resizing(config: CoreConfig) -> Callable[[int], CoreConfig]:
    """What makes a core of a number of units (slots, or features), which its state grows with."""
    if isinstance(config, CompressiveTransformerConfig | RoutingTransformerConfig):
        older = "window" if isinstance(config, RoutingTransformerConfig) else "compressed_size"
        return functools.partial(_with_slots, config, older)
    # Heads divide the features.
    heads = config.num_heads if isinstance(config, DeltaNetConfig) else 1
    return lambda features: dataclasses.replace(config, model_size=heads * features)


def _with_slots(config: Any, older: str, slots: int) -> CoreConfig:
    """A transformer that attends to so many slots beside its segment; `older` names the field of the older ones."""
    sizes = config.memory_size, getattr(config, older)
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError("state_bytes: expected layers of one size, got one for each layer")
    num_older = round(slots * sizes[1] / max(sum(sizes), 1))
    return dataclasses.replace(config, memory_size=slots - num_older, **{older: num_older})
