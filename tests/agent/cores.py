"""Every core in several small configs, for the tests of the contract. A new core adds its own to `CONFIGS`."""

from typing import Any

import pytest

from agent.core import (
    CompressiveTransformerConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    Sizes,
    TransformerXLConfig,
)
from speech.config import WaveNetConfig

SIZE = 8
CYCLE = 60  # a multiple of every segment below, so that a state that consumed it has offset 0


def compressive(**fields: Any) -> CompressiveTransformerConfig:
    return CompressiveTransformerConfig(model_size=SIZE, num_layers=2, num_heads=2, mlp_size=12, **fields)


def transformer_xl(**fields: Any) -> TransformerXLConfig:
    return TransformerXLConfig(model_size=SIZE, num_layers=2, num_heads=2, mlp_size=12, **fields)


def sizes(n_s: int, n_m: Sizes, n_cm: Sizes = 0, c: Sizes = 4) -> dict[str, Any]:
    return {"segment_size": n_s, "memory_size": n_m, "compressed_size": n_cm, "compression_rate": c}


PRE, TIME = {"norm": "pre"}, {"compressed_position": "time"}
CONFIGS: dict[str, dict[str, Any]] = {
    "compressive": {
        "post": compressive(**sizes(4, 4, 4, 2)),
        "pre-gru-time-mean": compressive(**sizes(4, 6, 3, 4), **PRE, **TIME, gate="gru", compression="mean"),
        "pre-time-max-short-memory": compressive(**sizes(6, 2, 2, 2), **PRE, **TIME, compression="max"),
        "post-gru-no-memory": compressive(**sizes(4, 0, 5, 2), gate="gru"),
        "post-time-one-step": compressive(**sizes(1, 3, 2, 1), **TIME),
        "no-compressed": compressive(**sizes(4, 5)),
        "no-loss": compressive(**sizes(2, 3, 4, 2), compression_loss="none"),
        "dilated": compressive(**sizes(4, 3, 5, 2), compression="dilated"),
        "most-used": compressive(**sizes(4, 5, 5, 2), compression="most-used"),
        "pre-most-used-short-memory": compressive(**sizes(6, 1, 5, 3), **PRE, **TIME, compression="most-used"),
        "autoencoding": compressive(**sizes(4, 4, 4, 4), compression_loss="autoencoding"),
        "pre-dilated-autoencoding": compressive(
            **sizes(6, 4, 4, 3), **PRE, compression="dilated", compression_loss="autoencoding"
        ),
        "bptt": compressive(**sizes(4, 4, 4, 2), compression_loss="bptt"),
        "most-used-bptt": compressive(**sizes(4, 0, 4, 2), compression="most-used", compression_loss="bptt"),
        "by-layer": compressive(**sizes(4, (1, 6), (3, 5), (2, 4)), **TIME),
        "pre-memory-in-one-layer": compressive(**sizes(4, (4, 0), (0, 3), (3, 2)), **PRE, gate="gru"),
        "by-layer-most-used": compressive(**sizes(4, (5, 2), (3, 0), (2, 1)), compression="most-used"),
    },
    "transformer-xl": {
        "post": transformer_xl(**sizes(4, 8)),
        "pre-gru-short-memory": transformer_xl(**sizes(5, 3), norm="pre", gate="gru"),
        "no-memory": transformer_xl(**sizes(4, 0)),
        "by-layer": transformer_xl(**sizes(4, (0, 6))),
    },
    "gated-transformer-xl": {
        "default": GatedTransformerXLConfig(SIZE, 2, 2, 12, segment_size=4, memory_size=6),
        "post": GatedTransformerXLConfig(SIZE, 2, 2, 12, segment_size=3, memory_size=5, norm="post"),
    },
    "lstm": {"one-layer": LSTMConfig(SIZE, 1), "three-layers": LSTMConfig(SIZE, 3)},
    "gru": {"one-layer": GRUConfig(SIZE, 1), "three-layers": GRUConfig(SIZE, 3)},
    "mingru": {"one-layer": MinGRUConfig(SIZE, 1, 12), "three-layers": MinGRUConfig(SIZE, 3, 12)},
    "memoryless": {"two-blocks": MemorylessConfig(SIZE, 2, 12)},
    "wavenet": {
        "two-stacks": WaveNetConfig(SIZE, 4, 2, kernel_size=2, gate_size=6, skip_size=10),
        "three-taps": WaveNetConfig(SIZE, 2, 3, kernel_size=3, gate_size=5, skip_size=12),
    },
}
CASES = {f"{core}/{name}": config for core, configs in CONFIGS.items() for name, config in configs.items()}
WITH_SEGMENTS = {name: config for name, config in CASES.items() if hasattr(config, "segment_size")}
FORGETFUL = [CASES["memoryless/two-blocks"]]

every_core = pytest.mark.parametrize("config", CASES.values(), ids=CASES)
every_core_with_segments = pytest.mark.parametrize("config", WITH_SEGMENTS.values(), ids=WITH_SEGMENTS)
