"""How fast the Compressive Transformer core learns and acts on one CPU thread, and how large its state is.

    python benchmarks/core.py [--seconds 10]

Learning is forward + backward of one segment a call with full memories, task and compression losses; sizes are those at
which other code was measured (d 256, 4 layers, 4 heads, n_s 128, n_m 128, n_cm 64, c 4, batch 4). Acting is one step a
call, with projected keys and values kept for a segment (`with_cache`) and without. Rates are per second of CPU time,
which other processes disturb less than wall time. Prints one JSON object.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.core import CompressiveTransformer, CompressiveTransformerConfig, detach_state, state_bytes

BATCH = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "post_residual": {},
    "pre_gru": {"norm": "pre", "gate": "gru"},
    "transformer_xl": {"memory_size": 192, "compressed_size": 0},
}


def make(**fields: Any) -> CompressiveTransformer:
    """The core at the sizes of the module's docstring, but for `fields`."""
    torch.manual_seed(0)
    sizes = {"segment_size": 128, "memory_size": 128, "compressed_size": 64, "compression_rate": 4}
    return CompressiveTransformer(
        CompressiveTransformerConfig(model_size=256, num_layers=4, num_heads=4, mlp_size=1024, **{**sizes, **fields})
    )


def rate(work: Callable[[], int], seconds: float) -> float:
    """Tokens per CPU-second of `work`, which returns how many tokens it did."""
    work()
    tokens, begin = 0, time.process_time()
    while (elapsed := time.process_time() - begin) < seconds:
        tokens += work()
    return tokens / elapsed


def filled_state(core: CompressiveTransformer, rows: int) -> Any:
    """A state whose memories are full."""
    steps = 5 * core.config.segment_size
    with torch.no_grad():
        reset = torch.zeros(rows, steps, dtype=torch.bool)
        return core(torch.randn(rows, steps, core.config.model_size), reset, core.initial_state(rows)).state


def learning(core: CompressiveTransformer, seconds: float) -> float:
    """Forward and backward."""
    core.train()
    steps = core.config.segment_size
    inputs, reset = torch.randn(BATCH, steps, 256, requires_grad=True), torch.zeros(BATCH, steps, dtype=torch.bool)
    state = filled_state(core, BATCH)

    def update() -> int:
        nonlocal state
        core.zero_grad(set_to_none=True)
        output = core(inputs, reset, detach_state(state))
        state = output.state
        (output.features.square().mean() + sum(output.losses.values())).backward()
        return BATCH * steps

    return rate(update, seconds)


def acting(core: CompressiveTransformer, seconds: float, cached: bool) -> float:
    """A whole segment in calls of one step, which includes the turn of the segment."""
    core.eval()
    steps = core.config.segment_size
    inputs, reset = torch.randn(BATCH, steps, 256), torch.zeros(BATCH, steps, dtype=torch.bool)
    state = filled_state(core, BATCH)
    state = core.with_cache(state) if cached else state

    def segment() -> int:
        nonlocal state
        for step in range(steps):
            state = core(inputs[:, step : step + 1], reset[:, step : step + 1], state).state
        return BATCH * steps

    with torch.no_grad():
        return rate(segment, seconds)


def main(seconds: float) -> dict[str, Any]:
    """Measures and returns the figures."""
    torch.set_num_threads(1)
    core = make()
    cached, recomputed = (acting(core, seconds, cached) for cached in (True, False))
    return {
        "benchmark": "core",
        "model": "d 256, 4 layers, 4 heads, mlp 1024, n_s 128, n_m 128, n_cm 64, c 4, batch 4, 1 thread, float32",
        "forward_backward_tokens_per_cpu_second": {
            name: round(learning(make(**fields), seconds)) for name, fields in VARIANTS.items()
        },
        "acting_tokens_per_cpu_second": {
            "cached": round(cached),
            "recomputed": round(recomputed),
            "ratio": round(cached / recomputed, 2),
        },
        "state_bytes_per_row": {
            "stored": state_bytes(core.initial_state(1)),
            "with_cache": state_bytes(core.with_cache(core.initial_state(1))),
        },
        "torch": torch.__version__,
        "cpu_cores": os.cpu_count(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time for each figure, after a warm-up")
    print(json.dumps(main(parser.parse_args().seconds), indent=2))
