"""The tools of `tests.capture` themselves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.capture import Capturable, EmulatedGraph

FORBIDDEN: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "aten._local_scalar_dense.default": ("reads", lambda x: x.sum().item()),
    "aten.equal.default": ("reads", lambda x: torch.equal(x, x)),
    "tolist": ("reads", lambda x: x.tolist()),
    "numpy": ("reads", lambda x: x.numpy()),
    "cpu": ("reads", lambda x: x.cpu()),
    "aten.nonzero.default": ("shape", torch.nonzero),
    "aten.masked_select.default": ("shape", lambda x: x.masked_select(x > 0)),
    "aten._unique2.default": ("shape", torch.unique),
    "aten.index.Tensor": ("boolean", lambda x: x[x > 0]),
    "aten.index_put_.default": ("boolean", lambda x: x.clone().index_put_((x > 0,), x[:1])),
    "aten.lift_fresh.default": ("host", lambda x: x + torch.tensor(1.0)),
    "as_tensor": ("host", lambda x: torch.as_tensor(x.shape)),
    "aten._to_copy.default": ("between devices", lambda x: x.to("meta")),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_graph_cannot_hold_is_found(name: str) -> None:
    reason, function = FORBIDDEN[name]
    values = torch.ones(3)
    with Capturable() as mode:
        function(values)
    found = {
        operation: why
        for operation, why in mode.forbidden.items()
        if operation.startswith(f"{name} in tests/test_capt")
    }
    ((_, why),) = found.items()
    assert reason in why


def test_what_a_graph_can_hold_is_allowed() -> None:
    """Backward, too; and indices of integers, whose shapes are known."""
    values, index = torch.ones(3, requires_grad=True), torch.arange(2)
    with Capturable() as mode:
        torch.where(index > 0, values[index], 0.0).clamp(min=0).double().sum().backward()
    assert mode.forbidden == {}
    values.register_hook(lambda gradient: gradient * gradient.sum().item())
    with Capturable() as mode:
        values.sum().backward()
    assert len(mode.forbidden) == 1


def test_a_replay_computes_anew_at_the_same_addresses() -> None:
    host, memory, calls = 2.0, torch.arange(4.0), []
    with torch.no_grad(), EmulatedGraph() as graph:
        doubled = memory * host
        doubled[1:].add_(1)
        view = doubled.view(2, 2).T
        top, place = view.max(dim=0)
        graph.call(lambda: calls.append(doubled.add_(0).tolist()))
        memory.add_(10)
    assert (memory.tolist(), doubled.tolist(), place.tolist()) == ([10, 11, 12, 13], [0, 3, 5, 7], [1, 1])
    results = memory, doubled, view, top, place
    addresses = [tensor.data_ptr() for tensor in results]
    host = 5.0  # frozen in the graph
    memory.copy_(torch.tensor([8.0, 4, 2, 1]))
    graph.replay()
    after = [18, 14, 12, 11], [16, 9, 5, 3], [[16, 5], [9, 3]], [16, 5], [0, 0]
    assert tuple(tensor.tolist() for tensor in results) == after
    assert addresses == [tensor.data_ptr() for tensor in results]
    assert calls == [[0, 3, 5, 7], [16, 9, 5, 3]]
    assert graph.forbidden == {}
    graph.replay()
    assert doubled.tolist() == [36, 29, 25, 23]
