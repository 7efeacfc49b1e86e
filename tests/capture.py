"""What a CUDA graph asks of code, checked on a CPU: which operations it cannot hold, and what a replay does."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from agent.cuda_graphs import Unrecordable

ROOT = Path(__file__).parent.parent
TOOLS = ("tests/capture.py", "agent/cuda_graphs.py", ".")
READS, COPIES = {"tolist", "numpy", "cpu", "__array__", "__dlpack__"}, {"as_tensor", "asarray"}


class Capturable(Unrecordable):
    """`Unrecordable` for a CPU, where what crosses to the host is often no operation. It does not see
    `torch.from_numpy` and `to(device)`.

    Attributes:
        forbidden: the reason, by operation and place in this repository.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.forbidden: dict[str, str] = {}
        self._host = _HostAccess(self.note)

    def __enter__(self) -> Self:
        self._host.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._host.__exit__(*error)

    def note(self, operation: str, reason: str) -> None:
        self.forbidden[f"{operation} in {_place()}"] = reason


class _HostAccess(TorchFunctionMode):
    """Notes what tensors on a CPU do without an operation."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS:
            self.note(name, "reads values")
        elif name in COPIES and not isinstance(args[0], Tensor):
            self.note(name, "values of the host")
        return function(*args, **(kwargs or {}))


def _place() -> str:
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
    ours = [f"{path.relative_to(ROOT)}:{line}" for path, line in frames if path.is_relative_to(ROOT)]
    return [place for place in ours if not place.startswith(TOOLS)][-1]


class EmulatedGraph(Capturable):
    """Records the operations under it and replays them on the same memory, without Python in between.

    Whatever a CUDA graph would freeze is frozen: values of the host, and addresses. `call` records other work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], object]] = []
        self.kept: list[Any] = []  # like a graph, which owns its memory: else later tensors get the same addresses

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        self.kept.append((args, kwargs, result))
        given = set(map(_address, _tensors((args, kwargs))))
        fresh = {index: tensor for index, tensor in enumerate(_tensors(result)) if _address(tensor) not in given}

        def repeat() -> None:
            again = _tensors(operation(*args, **kwargs))
            for index, tensor in fresh.items():
                tensor.copy_(again[index])

        if fresh or operation._schema.is_mutable:  # a view needs nothing
            self.work.append(repeat)
        return result

    def call(self, function: Callable[[], object]) -> None:
        """Does work that is no operation of torch, such as a kernel, now and in every replay."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            function()
        self.work.append(function)

    @torch.no_grad()
    def replay(self) -> None:
        """Does all work again; the results are written where those of the recording are."""
        for work in self.work:
            work()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
