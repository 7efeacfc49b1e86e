"""What cannot be recorded as a CUDA graph, found before it is tried, and what a recording that fails leads to."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent import Agent, AgentConfig
from agent.core import Core, CoreOutput, CustomCoreConfig, make_core
from agent.cuda_graphs import RecordingFailed, cuda_graph, graphs_of, record, why_unrecordable
from tests.agent.agents import CORES, IMAGE, make_agent

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.mark.parametrize("name", CORES)
def test_our_cores_can_be_recorded(name: str) -> None:
    core = make_core(CORES[name])
    torch.manual_seed(0)
    assert why_unrecordable(core, 16, 8) == ""
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn), "the random numbers of others stay as they are"


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        gradients[0].sum().item()
        return gradients[0]


class Reads(Core):
    """A core without memory that does what no graph can hold in one of several ways, which `how` names."""

    def __init__(self, model_size: int, how: str = "item") -> None:
        super().__init__()
        self.linear = nn.Linear(model_size, model_size)
        self.bias = nn.Parameter(torch.zeros(model_size))
        self.how = how

    def initial_state(self, batch_size: int) -> tuple[Tensor]:
        return (torch.zeros(batch_size, 1),)

    def with_cache(self, state: Any) -> Any:
        if self.how == "item in with_cache":
            state[0].sum().item()
        return state

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        features = self.linear(inputs)
        if self.how == "item" and features.sum().item() > 1e9:
            features = -features
        if self.how == "item of one step" and inputs.shape[1] == 1:
            features.sum().item()
        if self.how == "nonzero":
            torch.nonzero(reset)
        if self.how == "mask":
            features = features + inputs[reset].sum()
        if self.how == "number behind a mask":
            features = features.index_put((reset,), torch.zeros(()))
        if self.how == "backward":
            features = ReadsInBackward.apply(features)
        if self.how == "backward of a parameter":
            features = features + ReadsInBackward.apply(self.bias)
        if self.how == "other device":
            reset.to("meta")
        if self.how == "values of the host":
            features = features * torch.tensor([2.0], device=features.device)
        return CoreOutput(features, state, {}, None)


ITEM = "aten._local_scalar_dense.default (reads values)"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("item", ITEM),
        ("item in with_cache", ITEM),
        ("item of one step", ITEM),
        ("nonzero", "aten.nonzero.default (its shape depends on values)"),
        ("mask", "aten.index.Tensor (a boolean index, whose shape depends on values)"),
        ("backward", ITEM),
        ("backward of a parameter", ITEM),
        ("other device", "aten._to_copy.default (a copy between devices)"),
        ("values of the host", "aten.lift_fresh.default (values of the host)"),
        ("number behind a mask", ""),
        ("not at all", ""),
    ],
)
def test_what_reads_values_is_not_recorded(how: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """There is a warning, where a GPU would record."""
    core = CustomCoreConfig(f"{__name__}:Reads", 16, (f"how={how}",))
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=core), IMAGE, 5)
    assert why_unrecordable(agent.core, 16, 2) == reason
    assert graphs_of(agent, CPU) is None
    assert not caplog.messages
    assert (graphs_of(agent, GPU) is None) == bool(reason)
    warnings = []
    if reason:
        slower = "which makes acting and learning slower"
        warnings = [f"core {core.name} is not recorded as a CUDA graph, {slower}: {reason}"]
    assert caplog.messages == warnings


def failing(error: Exception) -> Callable[..., Any]:
    def capture(function: Callable[[], None]) -> Any:
        raise error

    return capture


def test_without_memory_for_a_graph_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert record(failing(torch.OutOfMemoryError("2 GiB")), lambda: None, "acting") is None
    assert caplog.messages == ["acting is not recorded as a CUDA graph, which makes it slower: 2 GiB"]


def test_a_recording_that_fails_ends_with_advice() -> None:
    """The GPU cannot be used any more."""
    message = r"an update cannot be recorded .*--learner.no-cuda-graph.*: operation not permitted"
    with pytest.raises(RecordingFailed, match=message):
        record(failing(RuntimeError("operation not permitted")), lambda: None, "an update")


def test_each_gpu_records_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's default stream for recordings is that of the first GPU that has recorded. CUDA is emulated."""
    current = [torch.device("cuda", 0)]
    recorded_on = []

    @contextmanager
    def device(chosen: torch.device) -> Any:
        current.append(chosen)
        yield
        current.pop()

    class Stream:
        def __init__(self, device: torch.device | None = None) -> None:
            self.device = device or current[-1]

    @contextmanager
    def on_stream(stream: Stream) -> Any:
        recorded_on.append(stream.device)
        yield

    class Graph:
        def capture_begin(self, **options: Any) -> None:
            pass

        def capture_end(self) -> None:
            pass

    for name, fake in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "device": device,
        "stream": on_stream,
        "current_stream": Stream,
        "set_stream": lambda stream: None,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    for gpu in gpus:
        cuda_graph(gpu)(lambda: None)
    assert recorded_on == gpus


def test_our_agents_are_recorded() -> None:
    assert graphs_of(make_agent(), GPU) is not None
