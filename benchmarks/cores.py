"""How fast every core learns and acts at one size, and how much memory a row takes: the table in docs/core.md.

    python -m benchmarks.cores [--seconds 5] [--cores gru deltanet]

The sizes are those of `matched_cores`: D = 64, two layers with MLPs of 128 (LSTM and GRU: one layer without), segments
of 16, and 16 slots of memory and 16 compressed ones. Learning is forward and backward of 128 steps of 16 rows, acting
single steps of 32 rows. One thread is used, and rates are per second of CPU time, which other processes disturb less.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from agent.core import detach_state, make_core, state_bytes
from agent.core.config import CoreConfig, matched_cores
from benchmarks.common import in_turns, markdown, run
from training.config import require_one_of

SIZE = 64
SIZES = {"model_size": SIZE, "num_layers": 2, "num_heads": 4, "mlp_size": 128, "segment_size": 16, "norm": "pre"}
SLOTS = 16
"""Of memory, and of compressed memory."""
STEPS = 128
LEARNING_ROWS = 16
ACTING_ROWS = 32


@dataclass
class Options:
    seconds: float = 5.0
    """Time for each figure, after a warm-up."""
    turns: int = 5
    """Measurements of each figure, within that time; the median counts."""
    cores: tuple[str, ...] = ()
    """Names of cores; all if there are none."""


def measure(options: Options) -> dict[str, Any]:
    configs: dict[str, CoreConfig] = matched_cores(SIZES, SLOTS, SLOTS)
    names = options.cores or tuple(configs)
    for name in names:
        require_one_of("cores", name, configs)
    works: dict[tuple[str, str], Callable[[], float]] = {}
    states = {}
    for name in names:
        torch.manual_seed(0)
        core = make_core(configs[name])
        works[name, "learning"] = learning(core)
        works[name, "acting"] = acting(make_core(configs[name]))
        states[name] = state_bytes(core.initial_state(1))
    rates = in_turns(works, options.seconds, options.turns, time.process_time)

    found = {}
    for name in names:
        found[name] = {
            "learning, tokens a CPU-second (more is better)": round(rates[name, "learning"]),
            f"acting, CPU ms a step of {ACTING_ROWS} rows (less is better)": round(1000 / rates[name, "acting"], 2),
            "state of a row, bytes (less is better)": states[name],
        }
    measures = list(found[names[0]])
    rows: list[list[Any]] = [["", *names]]
    for each in measures:
        rows.append([each, *(found[name][each] for name in names)])
    return {"by core": found, "table": markdown(rows).splitlines()}


def learning(core: Any) -> Callable[[], float]:
    """Forward and backward of a call, from memory to memory; returns its tokens."""
    inputs = torch.randn(LEARNING_ROWS, STEPS, SIZE, requires_grad=True)
    reset = torch.zeros(LEARNING_ROWS, STEPS, dtype=torch.bool)
    state = core.initial_state(LEARNING_ROWS)

    def update() -> float:
        nonlocal state
        core.zero_grad(set_to_none=True)
        output = core(inputs, reset, state)
        losses = sum(loss.value for loss in output.losses.values())
        (output.features.square().mean() + losses).backward()
        state = detach_state(output.state)
        return float(LEARNING_ROWS * STEPS)

    return update


def acting(core: nn.Module) -> Callable[[], float]:
    """Single steps over two segments, with a cache; returns their number."""
    core.eval()
    inputs = torch.randn(ACTING_ROWS, 1, SIZE)
    reset = torch.zeros(ACTING_ROWS, 1, dtype=torch.bool)
    state: Any = core.with_cache(core.initial_state(ACTING_ROWS))  # type: ignore[operator]
    count = 2 * SIZES["segment_size"]  # type: ignore[operator]

    @torch.no_grad()
    def steps() -> float:
        nonlocal state
        for _ in range(count):
            state = core(inputs, reset, state).state
        return float(count)

    return steps


if __name__ == "__main__":
    run(measure, Options)
