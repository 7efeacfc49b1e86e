"""Networks are built only if they fit into the machine's memory: a size with too many digits is refused in one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from agent.core.state import state_bytes

Network = TypeVar("Network", bound=Any)


def machine_memory() -> int:
    """Bytes of memory that this machine, or the control group (container) that the process is in, has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return memory


def build_network(build: Callable[[], Network], rows: int = 1) -> Network:
    """What `build` makes, after it was made on the meta device, which allocates nothing, to see how large it is.

    Counted are four times the weights, for gradients and Adam's two moments are as large, and the state of `rows` rows.

    Raises:
        ValueError: if that is more than the machine's memory.
    """
    with torch.device("meta"):
        network = build()
        state = state_bytes(network.initial_state(1))
    weights = sum(tensor.numel() * tensor.element_size() for tensor in (*network.parameters(), *network.buffers()))
    needed, memory = 4 * weights + rows * state, machine_memory()
    if needed > memory:
        raise ValueError(
            f"network: expected at most the machine's memory of {memory / 1e9:.1f} GB, got sizes that need "
            f"{needed / 1e9:,.1f} GB: {4 * weights / 1e9:,.1f} for weights, gradients and Adam's two moments, and "
            f"{rows * state / 1e9:,.1f} for the state of {rows} rows"
        )
    return build()
