"""What a CUDA graph asks of code, checked on a CPU: which operations it cannot hold, and what a replay does."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from agent.cuda_graphs import value_dependence

ROOT = Path(__file__).parent.parent
READS, COPIES = {"tolist", "numpy", "cpu", "__array__", "__dlpack__"}, {"as_tensor", "asarray"}


class Capturable(TorchDispatchMode):
    """Notes the operations under it, backward included, that wait for the device or depend on its values.

    On a CPU it sees neither `torch.from_numpy` nor `to(device)`. Some operations, such as `F.one_hot`, read values on a
    CPU only; they are noted.

    Attributes:
        forbidden: the reason, by operation and place in this repository.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: dict[str, str] = {}
        self._host = _HostAccess(self.note)

    def __enter__(self) -> Self:
        self._host.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._host.__exit__(*error)

    def note(self, operation: Any, reason: str) -> None:
        """Notes an operation, unless the reason is empty."""
        if reason:
            self.forbidden[f"{operation} in {_place()}"] = reason

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self.note(operation, _reason(operation, args, kwargs))
        return operation(*args, **kwargs)


class _HostAccess(TorchFunctionMode):
    """Notes what tensors on a CPU do without an operation."""

    def __init__(self, note: Callable[[Any, str], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        self.note(name, "reads values" if name in READS else "")
        self.note(name, "values of the host" if name in COPIES and not isinstance(args[0], Tensor) else "")
        return function(*args, **(kwargs or {}))


def _reason(operation: Any, args: tuple, kwargs: dict) -> str:
    name = str(operation.overloadpacket)
    dependence = value_dependence(operation, args)
    if dependence:
        return dependence
    if name == "aten.lift_fresh":
        return "values of the host"
    if name in ("aten._to_copy", "aten.copy_"):
        devices = {torch.device(kwargs.get("device") or args[0].device), *(tensor.device for tensor in _tensors(args))}
        return "a copy between devices" if len(devices) > 1 else ""
    return ""


def _place() -> str:
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
    ours = [f"{path.relative_to(ROOT)}:{line}" for path, line in frames if path.is_relative_to(ROOT)]
    return [place for place in ours if not place.startswith(("tests/capture.py", "."))][-1]


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
