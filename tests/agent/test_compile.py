"""`torch.compile` of every core: one graph without breaks, the same numbers as eager, and a bounded number of graphs.

The default backend here traces forward and backward, and runs the graphs without compiling them, which takes minutes on
a CPU; the slow test compiles.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from agent.core import (
    DeltaNetConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    RoutingTransformerConfig,
    detach_state,
    map_state,
)
from tests.agent.tiny import SIZE, config_of, normal, sum_losses

pytestmark = pytest.mark.xdist_group("compiler")  # it takes seconds to get ready
SEGMENT = 4


compressive = functools.partial(config_of, SEGMENT, c=2, num_layers=1)
MOST_USED = {"compressed_position": "time", "compression": "most-used", "compression_loss": "autoencoding"}
CONFIGS: dict[str, Any] = {
    "post": compressive(n_cm=3),
    "pre-gru-time-most-used-autoencoding": compressive(n_m=6, n_cm=3, norm="pre", gate="gru", **MOST_USED),
    "pre-dilated-bptt": compressive(n_cm=3, norm="pre", compression="dilated", compression_loss="bptt"),
    "transformer-xl": compressive(n_cm=0),
    "routing": RoutingTransformerConfig(SIZE, 1, 2, 6, segment_size=SEGMENT, memory_size=3, window=2, clusters=3),
    "lstm": LSTMConfig(SIZE, 1),
    "gru": GRUConfig(SIZE, 1),
    "mingru": MinGRUConfig(SIZE, 1, 8),
    "lru": LRUConfig(SIZE, 1, 8),
    "deltanet": DeltaNetConfig(SIZE, 1, 8, 2),
    "memoryless": MemorylessConfig(SIZE, 1, 8),
}


LEARNING = [("aot_eager", config) for config in CONFIGS.values()]
LEARNING.append(pytest.param("inductor", CONFIGS["post"], marks=pytest.mark.slow))


@pytest.mark.parametrize(("backend", "config"), LEARNING, ids=[*CONFIGS, "compiled"])
def test_learning_is_one_graph(build: Callable[..., Any], backend: str, config: Any) -> None:
    torch.compiler.reset()
    core, counter = build(config).train(), CompileCounterWithBackend(backend)
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    states, steps = [core.initial_state(2)] * 2, 2 * SEGMENT
    for seed in range(4):
        inputs, reset, results = normal(2, steps, SIZE, seed=seed), normal(2, steps, seed=seed) > 0.8, []
        for which, function in enumerate((compiled, core)):
            core.zero_grad()
            output = function(inputs, reset, detach_state(states[which]))
            (output.features.square().mean() + sum_losses(output)).backward()
            grads = {name: p.grad for name, p in core.named_parameters() if p.grad is not None}
            results.append((output.features, output.losses, grads))
            states[which] = output.state
        torch.testing.assert_close(*results, rtol=0, atol=1e-10)
        map_state(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-10), *states)
    assert counter.frame_count == 1


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_acting_is_three_graphs(build: Callable[..., Any], cached: bool) -> None:
    """One for a segment's first step, one for its last, and one for all others."""
    torch.compiler.reset()
    core, counter = build(CONFIGS["post"]), CompileCounterWithBackend("eager")
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    inputs, reset = normal(2, 3 * SEGMENT, SIZE), normal(2, 3 * SEGMENT) > 1.3
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
