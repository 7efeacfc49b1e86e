"""Batches on their way to a learner's device, beside its updates. No Ray."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from agent.core.state import leaves, map_state
from agent.trajectory import Trajectory


def load(trajectories: Sequence[Trajectory], device: torch.device) -> Callable[[], Trajectory]:
    """Joins trajectories by rows and moves the batch to a device; from any thread.

    Args:
        trajectories: in numpy arrays on the CPU, which may be read-only. They are copied once, and no longer used then.

    Returns:
        a function for the thread that learns, which returns the batch. On a GPU the copy may still be in progress: then
        the current stream waits for it, not the thread.
    """
    joined = map_state(functools.partial(_join, device.type == "cuda"), *trajectories)
    if device.type != "cuda":
        return lambda: joined
    # On a stream of its own, so that the copy runs beside the present update.
    with torch.cuda.stream(_stream(device)):
        moved = map_state(lambda leaf: leaf.to(device, non_blocking=True), joined)
        event = torch.cuda.current_stream(device).record_event()

    def take() -> Trajectory:
        current = torch.cuda.current_stream(device)
        current.wait_event(event)
        for leaf in leaves(moved):
            leaf.record_stream(current)  # so that its memory is not used anew while `current` needs it
        return moved

    return take


def _join(pinned: bool, *arrays: np.ndarray) -> Tensor:
    """Concatenates arrays by rows into a tensor; from pinned memory, copies to a GPU do not hold up the thread."""
    first = arrays[0]
    rows = sum(len(array) for array in arrays)
    size = first.shape[1:]
    # Torch has no function from numpy's dtypes to its own.
    empty = np.empty(0, first.dtype)
    dtype = torch.from_numpy(empty).dtype
    joined = torch.empty((rows, *size), dtype=dtype, pin_memory=pinned)
    np.concatenate(arrays, out=joined.numpy())
    return joined


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for copies; always the same, because memory is cached by stream."""
    return torch.cuda.Stream(device)
