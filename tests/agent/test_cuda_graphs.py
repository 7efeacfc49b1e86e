"""What cannot be recorded as a CUDA graph, found before it is tried."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent import Agent, AgentConfig
from agent.core import Core, CoreOutput, CustomCoreConfig, make_core
from agent.cuda_graphs import graphs_of, value_read
from tests.agent.agents import CORES, IMAGE, make_agent

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.mark.parametrize("name", CORES)
def test_our_cores_read_no_values(name: str) -> None:
    core = make_core(CORES[name])
    torch.manual_seed(0)
    assert value_read(core, 16, 8) == ""
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
    """A core without memory that reads values in one of several ways, which `how` names."""

    def __init__(self, model_size: int, how: str = "item") -> None:
        super().__init__()
        self.linear = nn.Linear(model_size, model_size)
        self.how = how

    def initial_state(self, batch_size: int) -> tuple[Tensor]:
        return (torch.zeros(batch_size, 1),)

    def forward(self, inputs: Tensor, reset: Tensor, state: Any, return_attention: bool = False) -> CoreOutput:
        features = self.linear(inputs)
        if self.how == "item" and features.sum().item() > 1e9:
            features = -features
        if self.how == "nonzero":
            torch.nonzero(reset)
        if self.how == "mask":
            features = features + inputs[reset].sum()
        if self.how == "backward":
            features = ReadsInBackward.apply(features)
        return CoreOutput(features, state, {}, None)


@pytest.mark.parametrize(
    ("how", "operation"),
    [
        ("item", "aten._local_scalar_dense"),
        ("nonzero", "aten.nonzero"),
        ("mask", "aten.index"),
        ("backward", "aten._local_scalar_dense"),
        ("not at all", ""),
    ],
)
def test_what_reads_values_is_not_recorded(how: str, operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """There is a warning, where a GPU would record."""
    core = CustomCoreConfig(f"{__name__}:Reads", 16, (f"how={how}",))
    agent = Agent(AgentConfig(torso="small", torso_size=16, core=core), IMAGE, 5)
    assert value_read(agent.core, 16, 1) == operation
    assert graphs_of(agent, CPU) is None
    assert not caplog.messages
    assert (graphs_of(agent, GPU) is None) == bool(operation)
    warnings = []
    if operation:
        warnings = [
            f"core {core.name}: {operation} reads values of tensors, so nothing is recorded as a CUDA graph, which "
            "makes acting and learning slower"
        ]
    assert caplog.messages == warnings


def test_our_agents_are_recorded() -> None:
    assert graphs_of(make_agent(), GPU) is not None
