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


class RecordingFailed(RuntimeError):
    """Operations cannot be recorded as a CUDA graph, and the attempt has left the GPU unusable for this process."""


def cuda_graph(device: torch.device) -> Capture:
    """Records CUDA graphs of a GPU, which need not be the thread's current one.

    A function must have been called before it is recorded, so that all its kernels are compiled, and must not do what
    `Unrecordable` notes.
    """

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            before = torch.cuda.current_stream()
            # Without a stream of its own torch records on one that belongs to the first GPU that has recorded.
            stream = torch.cuda.Stream(device)
            try:
                # Other threads may use the device meanwhile, for instance to write a checkpoint.
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    function()
            finally:
                # After an error torch leaves the thread on the stream of the recording.
                torch.cuda.set_stream(before)

        def replay() -> None:
            with torch.cuda.device(device):
                graph.replay()

        return replay

    return capture


def record(capture: Capture, function: Callable[[], None], what: str) -> Callable[[], None] | None:
    """The recorded function; None if the device's memory does not hold it as well, of which there is a warning.

    Args:
        what: is recorded, for people, such as "acting".

    Raises:
        RecordingFailed: if it failed for another reason. There is no way on: torch's allocator is damaged.
    """
    try:
        return capture(function)
    except torch.OutOfMemoryError as error:
        logger.warning("%s is not recorded as a CUDA graph, which makes it slower: %s", what, error)
        return None
    except RuntimeError as error:
        without = "--learner.no-cuda-graph does without"
        raise RecordingFailed(f"{what} cannot be recorded as a CUDA graph ({without}): {error}") from error


def graphs_of(agent: nn.Module, device: torch.device) -> Capture | None:
    """How the device records what an agent does. None without a GPU, and for a core of the user's own that no graph
    can hold, of which there is a warning."""
    if device.type != "cuda":
        return None
    config = getattr(agent, "config", None)
    core_config = getattr(config, "core", None)
    if isinstance(core_config, CustomCoreConfig):
        core: Any = agent.core
        reason = why_unrecordable(core, core_config.model_size, core_config.segment_size)
        if reason:
            slower = "which makes acting and learning slower"
            logger.warning("core %s is not recorded as a CUDA graph, %s: %s", core_config.name, slower, reason)
            return None
    return cuda_graph(device)


def why_unrecordable(core: Core, model_size: int, steps: int) -> str:
    """The first operation of a core that no graph can hold, and why; empty if there is none.

    To try it instead would leave torch's allocator damaged. Learns from two segments of zeros, then acts for a step.
    """
    parameters = [parameter for parameter in core.parameters() if parameter.requires_grad]
    device = parameters[0].device if parameters else torch.device("cpu")
    inputs = torch.zeros(1, steps, model_size, device=device, requires_grad=True)
    reset = torch.zeros(1, steps, dtype=torch.bool, device=device)
    state = map_state(lambda leaf: leaf.to(device), core.initial_state(1))

    # The random numbers of others stay as they are.
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus), Unrecordable(device) as unrecordable:
        with torch.enable_grad():
            for _ in range(2):
                output = core(inputs, reset, state)
                state = map_state(Tensor.detach, output.state)
                total = output.features.sum() + sum(loss.value for loss in output.losses.values())
                if total.requires_grad:
                    torch.autograd.grad(total, [inputs, *parameters], allow_unused=True)
        with torch.no_grad():
            cached = core.with_cache(state)
            output = core(inputs[:, :1], reset[:, :1], cached)
            core.without_cache(output.state)
    if not unrecordable.found:
        return ""
    operation, reason = unrecordable.found[0]
    return f"{operation} ({reason})"


class Unrecordable(TorchDispatchMode):
    """Notes the operations under it, backward included, that no graph can hold, because they wait for the device or
    depend on its values.

    Some operations, such as `F.one_hot`, read values on a CPU only; they are noted if that is the device.

    Args:
        device: whose operations are looked at; those of the host alone are not.

    Attributes:
        found: operation and reason, in their order.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.found: list[tuple[str, str]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        reason = _dependence(operation, args, kwargs)
        if reason and self.device.type in _kinds_of_devices((args, kwargs)):
            self.note(str(operation), reason)
        return operation(*args, **kwargs)

    def note(self, operation: str, reason: str) -> None:
        """Notes an operation."""
        self.found.append((operation, reason))


def _dependence(operation: Any, args: tuple, kwargs: dict) -> str:
    """How an operation waits for the device, or depends on the values of tensors; empty if it does not."""
    name = str(operation.overloadpacket)
    if torch.Tag.data_dependent_output in operation.tags:
        return "reads values"
    if name.startswith(("aten.index", "aten._index_put", "aten._unsafe_index")):
        return _dependence_of_index(name, args)
    if torch.Tag.dynamic_output_shape in operation.tags:
        return "its shape depends on values"
    if name == "aten.lift_fresh":
        return "values of the host"
    if name in ("aten._to_copy", "aten.copy_"):
        devices = {torch.device(kwargs.get("device") or args[0].device), *(tensor.device for tensor in _tensors(args))}
        return "a copy between devices" if len(devices) > 1 else ""
    return ""


def _dependence_of_index(name: str, args: tuple) -> str:
    """Why an index with a mask cannot be recorded, but for a number that is written where the mask is true."""
    masks = [index for index in _tensors(args[1]) if index.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return ""
    writes_number = "index_put" in name and args[2].dim() == 0 and args[2].device.type == "cpu"
    if writes_number and not any(args[3:]):
        return ""  # torch fills the masked places
    return "a boolean index, whose shape depends on values"


def _kinds_of_devices(nest: Any) -> set[str]:
    """The types of all devices in arguments: those of tensors, and those that are named."""
    devices = [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.device)]
    devices += [tensor.device for tensor in _tensors(nest)]
    return {device.type for device in devices}


def _tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]
