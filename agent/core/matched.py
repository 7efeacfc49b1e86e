"""Every core at one size, for presets that compare them."""

from typing import Any

from agent.core.config import (
    CompressiveTransformerConfig,
    CoreConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    TransformerXLConfig,
)


def matched_cores(
    transformer: dict[str, Any],
    memory: int,
    compressed: int,
    rate: int = 4,
    baseline: int | None = None,
    recurrent_layers: int = 1,
) -> dict[str, CoreConfig]:
    """Configurations by the name of their core.

    Transformer-XL has the compressed slots as memory: the same attention cost.

    Args:
        transformer: sizes of the transformers; model_size, num_layers and mlp_size are those of the other cores too.
        memory, compressed, rate: of the Compressive Transformer.
        baseline: slots of Transformer-XL, if not memory + compressed.
        recurrent_layers: of LSTM and GRU.
    """
    size, layers, mlp = (transformer[name] for name in ("model_size", "num_layers", "mlp_size"))
    slots = memory + compressed if baseline is None else baseline
    return {
        "compressive": CompressiveTransformerConfig(
            **transformer, memory_size=memory, compressed_size=compressed, compression_rate=rate
        ),
        "transformer-xl": TransformerXLConfig(**transformer, memory_size=slots),
        "gated-transformer-xl": GatedTransformerXLConfig(**{**transformer, "norm": "pre"}, memory_size=slots),
        "lstm": LSTMConfig(size, recurrent_layers),
        "gru": GRUConfig(size, recurrent_layers),
        "mingru": MinGRUConfig(size, layers, mlp),
        "memoryless": MemorylessConfig(size, layers, mlp),
    }
