"""Small cores and sound for tests."""

from typing import Any

import numpy as np

from agent.core import CompressiveTransformerConfig, LSTMConfig, TransformerXLConfig, WaveNetConfig

TRANSFORMER = {"model_size": 16, "num_layers": 2, "num_heads": 2, "mlp_size": 16, "segment_size": 8, "norm": "pre"}
TINY: dict[str, Any] = {
    "compressive": CompressiveTransformerConfig(**TRANSFORMER, memory_size=8, compressed_size=4, compression_rate=4),
    "transformer-xl": TransformerXLConfig(**TRANSFORMER, memory_size=12),
    "lstm": LSTMConfig(16),
    "wavenet": WaveNetConfig(16, num_layers=6, stack_layers=3, gate_size=16, skip_size=16),
}


def noise(length: int) -> np.ndarray:
    """Random levels."""
    return np.random.default_rng(0).integers(0, 256, length).astype(np.uint8)
