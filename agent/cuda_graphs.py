"""CUDA graphs: operations that are recorded once, and that a GPU then repeats without the host."""

from collections.abc import Callable

import torch

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of a function, without calling it otherwise; returns a function that repeats them."""


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """Captures a function as a CUDA graph. It must have been called before, so that all its kernels are compiled."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile, for instance to write a checkpoint.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    return graph.replay
