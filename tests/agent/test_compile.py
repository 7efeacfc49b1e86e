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
    FFMConfig,
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
assert_close = functools.partial(torch.testing.assert_close, rtol=0, atol=1e-10)


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
    "ffm": FFMConfig(SIZE, 1, 8, 3, 2),
    "deltanet": DeltaNetConfig(SIZE, 1, 8, 2),
    "memoryless": MemorylessConfig(SIZE, 1, 8),
}


FEW = ("post", "lru", "memoryless")
LEARNING = []
for name, config in CONFIGS.items():
    marks = [] if name in FEW else [pytest.mark.slow]
    LEARNING.append(pytest.param("aot_eager", config, id=name, marks=marks))
LEARNING.append(pytest.param("inductor", CONFIGS["post"], id="compiled", marks=pytest.mark.slow))


@pytest.mark.parametrize(("backend", "config"), LEARNING)
def test_learning_is_one_graph(build: Callable[..., Any], backend: str, config: Any) -> None:
    torch.compiler.reset()
    core = build(config).train()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    steps = 2 * SEGMENT

    def learn(function: Any, seed: int, state: Any) -> tuple[Any, tuple]:
        """The next state; and the features, the losses and all gradients."""
        inputs = normal(2, steps, SIZE, seed=seed)
        reset = normal(2, steps, seed=seed) > 0.8
        core.zero_grad()
        output = function(inputs, reset, detach_state(state))
        (output.features.square().mean() + sum_losses(output)).backward()
        grads = {name: parameter.grad for name, parameter in core.named_parameters() if parameter.grad is not None}
        return output.state, (output.features, output.losses, grads)

    state = core.initial_state(2)
    expected_state = state
    for seed in range(4):
        state, found = learn(compiled, seed, state)
        expected_state, expected = learn(core, seed, expected_state)
        assert_close(found, expected)
        map_state(assert_close, state, expected_state)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
def test_acting_is_three_graphs(build: Callable[..., Any], cached: bool) -> None:
    """One for a segment's first step, one for its last, and one for all others."""
    torch.compiler.reset()
    core = build(CONFIGS["post"])
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(core, fullgraph=True, backend=counter)
    steps = 3 * SEGMENT
    inputs = normal(2, steps, SIZE)
    reset = normal(2, steps) > 1.3
    with torch.no_grad():
        state = core.initial_state(2)
        if cached:
            state = core.with_cache(state)
        expected = core(inputs, reset, state)
        features = []
        for step in range(steps):
            output = compiled(inputs[:, step : step + 1], reset[:, step : step + 1], state)
            features.append(output.features)
            state = output.state
    assert_close(torch.cat(features, dim=1), expected.features)
    map_state(assert_close, state, expected.state)
    assert counter.frame_count == 3
