"""CUDA graphs: operations that are recorded once, and that a GPU then repeats without the host."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agent.core.config import CustomCoreConfig
from agent.core.contract import Core
from agent.core.state import map_state

logger = logging.getLogger(__name__)

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of a function, without calling it otherwise; returns a function that repeats them."""


def cuda_graph(device: torch.device) -> Capture:
    """Records CUDA graphs of a GPU, which need not be the thread's current one.

    A function must have been called before it is recorded, so that all its kernels are compiled, and must not read
    values of the device (see `value_read`).
    """

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream()
            try:
                # Other threads may use the device meanwhile, for instance to write a checkpoint.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    function()
            finally:
                # After an error torch leaves the thread on the stream of the recording.
                torch.cuda.set_stream(stream)

        def replay() -> None:
            with torch.cuda.device(device):
                graph.replay()

        return replay

    return capture


def graphs_of(agent: nn.Module, device: torch.device) -> Capture | None:
    """How the device records what an agent does. None without a GPU, and for a core of the user's own that reads
    values of tensors, of which there is a warning."""
    if device.type != "cuda":
        return None
    config = getattr(agent, "config", None)
    core_config = getattr(config, "core", None)
    if isinstance(core_config, CustomCoreConfig):
        core: Any = agent.core
        read = value_read(core, core_config.model_size, core_config.segment_size)
        if read:
            slower = "so nothing is recorded as a CUDA graph, which makes acting and learning slower"
            logger.warning("core %s: %s reads values of tensors, %s", core_config.name, read, slower)
            return None
    return cuda_graph(device)


def value_read(core: Core, model_size: int, steps: int) -> str:
    """The first operation of a core that reads values of tensors, in its forward or backward pass; empty if none does.

    No graph can hold it, and an attempt to record it leaves torch's allocator damaged. Plays two segments of zeros.
    """
    parameter = next(core.parameters(), torch.zeros(()))
    gpus = [parameter.device] if parameter.is_cuda else []
    inputs = torch.zeros(1, steps, model_size, device=parameter.device, requires_grad=True)
    reset = torch.zeros(1, steps, dtype=torch.bool, device=parameter.device)
    state = map_state(lambda leaf: leaf.to(parameter.device), core.initial_state(1))
    with torch.enable_grad(), torch.random.fork_rng(gpus), _Reads() as reads:
        for _ in range(2):
            output = core(inputs, reset, state)
            state = map_state(Tensor.detach, output.state)
            total = output.features.sum() + sum(loss.value for loss in output.losses.values())
            if total.requires_grad:
                torch.autograd.grad(total, inputs, allow_unused=True)
    return reads.first


class _Reads(TorchDispatchMode):
    """Finds the first operation under it, backward included, that reads values. `first` is its name, or empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not self.first and value_dependence(operation, args):
            self.first = str(operation.overloadpacket)
        return operation(*args, **(kwargs or {}))


def value_dependence(operation: Any, args: tuple) -> str:
    """How an operation's result on the host, or its shape, depends on the values of tensors; empty if it does not."""
    if torch.Tag.data_dependent_output in operation.tags:
        return "reads values"
    if str(operation.overloadpacket).startswith(("aten.index", "aten._index_put", "aten._unsafe_index")):
        indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
        has_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        return "a boolean index, whose shape depends on values" if has_mask else ""
    if torch.Tag.dynamic_output_shape in operation.tags:
        return "its shape depends on values"
    return ""
