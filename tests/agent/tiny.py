"""A tiny Compressive Transformer, inputs for it and the validity of its slots, for the tests of its parts."""

from typing import Any

import torch
from torch import Tensor

from agent.core import CompressiveState, CompressiveTransformer, CompressiveTransformerConfig
from agent.core.config import Sizes

SIZE = 4
HEADS = 2
NORMS = ("post", "pre")
GATES = ("residual", "gru")
POSITIONS = ("slot", "time")


def config_of(
    n_s: int = 4, n_m: Sizes = 4, n_cm: Sizes = 4, c: Sizes = 2, **fields: Any
) -> CompressiveTransformerConfig:
    """A config by the sizes of the paper: segment, memory, compressed memory and compression rate."""
    defaults = {"model_size": SIZE, "num_layers": 2, "num_heads": HEADS, "mlp_size": 6}
    sizes = {"segment_size": n_s, "memory_size": n_m, "compressed_size": n_cm, "compression_rate": c}
    return CompressiveTransformerConfig(**{**defaults, **sizes, **fields})


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in float64, the same in every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def resets(rows: int, steps: int, *places: tuple[int, int]) -> Tensor:
    """Resets [rows, steps], true at these places: pairs of a row and a step."""
    reset = torch.zeros(rows, steps, dtype=torch.bool)
    for row, step in places:
        reset[row, step] = True
    return reset


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def sum_losses(output: Any) -> Any:
    return sum(loss.value for loss in output.losses.values())


def validity(core: CompressiveTransformer, state: CompressiveState, layer: int = 0) -> tuple[Tensor, ...]:
    """Which slots belong to their row's episode, [B, n_cm], [B, n_m] and [B, n_s]."""
    sizes = core.layers[layer].sizes
    minimum_ages = core.layers[layer].minimum_ages(state.offset, state.age.device)
    filled = state.age[:, None] >= minimum_ages
    unfilled = torch.zeros(len(filled), sizes.segment - state.offset, dtype=torch.bool)
    return torch.cat([filled, unfilled], dim=1).split([sizes.compressed, sizes.memory, sizes.segment], dim=1)


def remembered(core: CompressiveTransformer, inputs: Tensor, reset: Tensor) -> CompressiveState:
    """The state after these steps."""
    with torch.no_grad():
        return core(inputs, reset, core.initial_state(len(inputs))).state
