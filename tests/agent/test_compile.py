"""`torch.compile` of every core: one graph without breaks, the same numbers as eager, and a bounded number of graphs.

The default backend here traces forward and backward, and runs the graphs without compiling them, which takes minutes on
a CPU; the slow test compiles.
"""

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from agent.core import (
    CompressiveTransformerConfig,
    GRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    detach_state,
    map_state,
)
from tests.agent.tiny import SIZE, config_of, sum_losses

pytestmark = pytest.mark.xdist_group("compiler")  # it takes seconds to get ready
SEGMENT = 4


def compressive(**fields: Any) -> CompressiveTransformerConfig:
    return config_of(SEGMENT, fields.pop("n_m", 4), fields.pop("n_cm", 3), 2, num_layers=1, **fields)


CONFIGS: dict[str, Any] = {
    "post": compressive(),
    "pre-gru-time-most-used-autoencoding": compressive(
        norm="pre",
        gate="gru",
        compressed_position="time",
        compression="most-used",
        compression_loss="autoencoding",
        n_m=6,
    ),
    "pre-dilated-bptt": compressive(norm="pre", compression="dilated", compression_loss="bptt"),
    "transformer-xl": compressive(n_cm=0),
    "lstm": LSTMConfig(SIZE, 1),
    "gru": GRUConfig(SIZE, 1),
    "mingru": MinGRUConfig(SIZE, 1, 8),
    "memoryless": MemorylessConfig(SIZE, 1, 8),
}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check_learning(core: Any, backend: str, segments: int) -> int:
    """Learns from consecutive calls, compiled and not, compares, and returns how many graphs that took."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    generator = torch.Generator().manual_seed(0)
    steps = segments * SEGMENT
    states = [core.initial_state(2)] * 2
    for _ in range(4):
        inputs = torch.randn(2, steps, SIZE, generator=generator, dtype=torch.float64)
        reset = torch.rand(2, steps, generator=generator) < 0.2
        results = []
        for which, function in enumerate((compiled, core)):
            core.zero_grad()
            output = function(inputs, reset, detach_state(states[which]))
            (output.features.square().mean() + sum_losses(output)).backward()
            grads = {name: p.grad for name, p in core.named_parameters() if p.grad is not None}
            results.append((output.features, output.losses, grads))
            states[which] = output.state
        torch.testing.assert_close(*results, rtol=0, atol=1e-10)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-10), *states)
    return counter.frame_count


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_learning_is_one_graph(build, config) -> None:
    assert check_learning(build(config).train(), "aot_eager", segments=2) == 1


@pytest.mark.slow
def test_learning_is_the_same_when_really_compiled(build) -> None:
    assert check_learning(build(compressive()).train(), "inductor", segments=1) == 1


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_acting_is_three_graphs(build, cached) -> None:
    """One for a segment's first step, one for its last, and one for all others."""
    core = build(compressive())
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    inputs, reset = torch.randn(2, 3 * SEGMENT, SIZE).double(), torch.rand(2, 3 * SEGMENT) < 0.1
    with torch.no_grad():
        state = core.with_cache(core.initial_state(2)) if cached else core.initial_state(2)
        expected = core(inputs, reset, state)
        features = []
        for step in range(3 * SEGMENT):
            output = compiled(inputs[:, step : step + 1], reset[:, step : step + 1], state)
            features.append(output.features)
            state = output.state
    torch.testing.assert_close(torch.cat(features, dim=1), expected.features, rtol=0, atol=1e-10)
    map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-10), state, expected.state)
    assert counter.frame_count == 3
