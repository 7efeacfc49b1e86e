"""Builds networks that fit into the machine's memory, and refuses others with a clear error."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch

from agent.core.config import CompressiveTransformerConfig, RoutingTransformerConfig, WaveNetConfig
from agent.core.state import state_bytes

Network = TypeVar("Network", bound=Any)  # a module with `initial_state`


CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows control groups."""
PROCESS_GROUPS = Path("/proc/self/cgroup")
"""The list of the control groups of this process."""


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the process's control groups (of a container, or of a SLURM job)."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _memory_limits():
        with suppress(OSError, ValueError):  # no such group, or "max"
            memory = min(memory, int(file.read_text()))
    return memory


def _memory_limits() -> Iterator[Path]:
    """Files of the limits of the process's control groups and of the groups around them, of version 2 and 1."""
    lines = []
    with suppress(OSError):
        lines = PROCESS_GROUPS.read_text().splitlines()
    for line in lines:
        # Such as "0::/slice/job" of version 2, and "4:memory:/slice/job" of version 1.
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for relative in (group, *group.parents):
            yield root / relative / name


def build_network(build: Callable[[], Network], config: Any, rows: int = 1) -> Network:
    """Calls `build` unless weights, gradients, Adam's two moments and the state of `rows` rows exceed the memory.

    A network that may be too large is first built on the meta device: it allocates nothing, but takes a second or two.

    Raises:
        ValueError: if the network needs more than the machine's memory.
    """
    memory = machine_memory()
    if _most_bytes(config, rows) <= memory:
        return build()

    try:
        with torch.device("meta"):
            network = build()
            state = rows * state_bytes(network.initial_state(1))
    except (RuntimeError, NotImplementedError):
        # A core of the user's own may read its tensors where it is made, which the meta device cannot.
        return build()
    tensors = [*network.parameters(), *network.buffers()]
    weights = 4 * sum(tensor.nbytes for tensor in tensors)  # with gradients and moments
    if weights + state > memory:
        raise ValueError(
            f"network: expected at most the machine's memory of {memory / 1e9:.1f} GB, got sizes that need "
            f"{weights / 1e9:,.1f} GB for weights, gradients and Adam's moments and {state / 1e9:,.1f} GB for state"
        )
    return build()


def _most_bytes(config: Any, rows: int) -> int:
    """A generous upper bound of what a network and the state of `rows` rows need, from the configuration alone.

    No layer has more than 64 matrices of the largest size beside those of `_num_convolved`, and the state of a row no
    more than one for each layer beside the slots of `_num_slots`. Each number takes 16 bytes: its own four, and those
    of its gradient and its two moments.
    """
    # Any number in the text of the configuration may be a size. Other numbers can only raise the bound, so that the
    # network is built on the meta device first.
    found = re.findall(r"\d+", str(config))
    largest_size = max([256, *map(int, found)])
    core = getattr(config, "core", config)
    num_layers = getattr(core, "num_layers", 1)
    in_matrices = (64 + _num_convolved(core) + rows) * num_layers * largest_size**2
    in_slots = rows * _num_slots(core) * largest_size
    return 16 * (in_matrices + in_slots)


def _num_convolved(core: Any) -> int:
    """Matrices of a layer that compress: one for each step of a compressed slot, and as many that decode it."""
    if not isinstance(core, CompressiveTransformerConfig):
        return 0
    rates = core.compression_rate
    if isinstance(rates, int):
        rates = (rates,)
    return 2 * max(rates)


def _num_slots(core: Any) -> int:
    """Slots of a row's state where they may be more than any size: products of sizes, or powers of 2. Else 0."""
    if isinstance(core, RoutingTransformerConfig):
        return sum(sizes.slots for sizes in core.layer_sizes)
    if isinstance(core, WaveNetConfig):
        return core.receptive_field
    return 0
