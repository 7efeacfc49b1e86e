"""Cores whose states have equally many bytes, beside `matched_cores`, whose cores cost equally much to act with.

A transformer gets as many slots as fit, FFM as many traces, another recurrence as many features. Equal states say
which core makes the most of its memory, and not what that costs: a GRU with the bytes of a Compressive Transformer has
2,000 times its weights.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from .config import (
    AgentCoreConfig,
    CompressiveTransformerConfig,
    CustomCoreConfig,
    DeltaNetConfig,
    FFMConfig,
    MemorylessConfig,
    RoutingTransformerConfig,
)
from .cores import make_core
from .state import state_bytes

MOST_UNITS = 2**20
"""Slots, traces or features, at most; a state of more bytes than these need is not filled."""


@functools.cache
def with_state_of(config: AgentCoreConfig, num_bytes: int) -> AgentCoreConfig:
    """The core with the most slots, traces or features whose state has at most `num_bytes` bytes a row, in float32.

    Slots keep their proportion of memory and compressed memory, or of memory and the window of a cluster. What has no
    memory stays as it is.

    Raises:
        ValueError: if the smallest state has more bytes, layers differ in size, a state does not grow with the
            features, or a custom core cannot be made without memory.
    """
    if isinstance(config, MemorylessConfig):
        return config
    resize, most_units = _resizing(config)
    least = _bytes_without_memory(resize(1))
    if least > num_bytes:
        raise ValueError(f"state_bytes: expected at least {least:,} for this core, got {num_bytes:,}")
    if _bytes_without_memory(resize(most_units)) == least:
        expected = "expected a state that grows with model_size (see agent/core/matching.py)"
        raise ValueError(f"state_bytes: {expected}, got {least:,} bytes with any in {type(config).__name__}")

    def is_small_enough(units: int) -> bool:
        return _bytes_without_memory(resize(units)) <= num_bytes

    # The largest size that fits is found by bisection. First a size that is too large, or larger than is allowed.
    fits = 1
    too_large = 2
    while too_large <= most_units and is_small_enough(too_large):
        fits = too_large
        too_large = 2 * too_large

    # The largest one that fits is at least `fits` and below `too_large`.
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if is_small_enough(middle):
            fits = middle
        else:
            too_large = middle
    return resize(fits)


def bytes_of_state(config: Any) -> int:
    """Bytes of the state of one row. No memory is allocated for a core of this package."""
    if not isinstance(config, CustomCoreConfig):
        return _bytes_without_memory(config)
    # It may read its tensors where it is made, which the meta device cannot.
    with torch.random.fork_rng([]):
        return state_bytes(make_core(config).initial_state(1))


def _bytes_without_memory(config: Any) -> int:
    """Bytes of the state of one row of a core on torch's meta device; a ValueError if it cannot be made there."""
    try:
        with torch.device("meta"):
            return state_bytes(make_core(config).initial_state(1))
    except (RuntimeError, NotImplementedError) as error:
        expected = "expected a core that can be made on torch's meta device, which has shapes and no numbers"
        raise ValueError(f"state_bytes: {expected}, got: {error}") from error


def _resizing(config: AgentCoreConfig) -> tuple[Callable[[int], AgentCoreConfig], int]:
    """A function that returns the core with a number of units, and the most units.

    Units are slots of a transformer, traces of FFM, or features.
    """
    if isinstance(config, CompressiveTransformerConfig):
        return functools.partial(_with_slots, config, "compressed_size"), MOST_UNITS
    if isinstance(config, RoutingTransformerConfig):
        return functools.partial(_with_slots, config, "window"), MOST_UNITS
    if isinstance(config, FFMConfig):
        return functools.partial(_with_traces, config), MOST_UNITS
    features_of_unit = 1
    if isinstance(config, DeltaNetConfig):
        features_of_unit = config.num_heads  # which divides the features
    most_units = MOST_UNITS // features_of_unit
    return functools.partial(_with_features, config, features_of_unit), most_units


def _with_traces(config: FFMConfig, traces: int) -> AgentCoreConfig:
    """FFM with so many traces."""
    return dataclasses.replace(config, traces=traces)


def _with_features(config: Any, features_of_unit: int, units: int) -> AgentCoreConfig:
    """A recurrent core with so many features, in units of several."""
    return dataclasses.replace(config, model_size=features_of_unit * units)


def _with_slots(config: Any, older_field: str, slots: int) -> AgentCoreConfig:
    """A transformer that attends to so many slots beside its segment, in the proportion of `config`.

    `older_field` names the size of the slots that are older than memory.
    """
    memory = config.memory_size
    older = getattr(config, older_field)
    same_in_all_layers = isinstance(memory, int) and isinstance(older, int)
    if not same_in_all_layers:
        raise ValueError("state_bytes: expected layers of one size, got one for each layer")

    both = max(memory + older, 1)  # a core without memory has 0 of each
    num_older = round(slots * older / both)
    new_sizes = {"memory_size": slots - num_older, older_field: num_older}
    return dataclasses.replace(config, **new_sizes)
