"""Every core in several small configs, for the tests of the contract. A new core adds its own to `CONFIGS`."""

import functools
from collections.abc import Iterable
from typing import Any

import pytest

from agent.core import (
    DeltaNetConfig,
    FFMConfig,
    GatedTransformerXLConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MemorylessConfig,
    MinGRUConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
    WaveNetConfig,
)
from tests.agent.tiny import config_of

SIZE = 8
CYCLE = 60  # a multiple of every segment below, so that a state that consumed it has offset 0
compressive = functools.partial(config_of, model_size=SIZE, mlp_size=12)  # of n_s, n_m, n_cm and c
transformer_xl = functools.partial(TransformerXLConfig, SIZE, 2, 2, 12)  # of n_s and n_m
routing = functools.partial(RoutingTransformerConfig, SIZE, 2, 2, 12)  # of n_s, n_m, w, k and G
gated = functools.partial(GatedTransformerXLConfig, SIZE, 2, 2, 12)
PRE = {"norm": "pre"}
TIME = {"compressed_position": "time"}
MOST_USED = {"compression": "most-used"}
AUTOENCODING = {"compression_loss": "autoencoding"}
CONFIGS: dict[str, dict[str, Any]] = {
    "compressive": {
        "post": compressive(4, 4, 4, 2),
        "pre-gru-time-mean": compressive(4, 6, 3, 4, **PRE, **TIME, gate="gru", compression="mean"),
        "pre-time-max-short-memory": compressive(6, 2, 2, 2, **PRE, **TIME, compression="max"),
        "post-gru-no-memory": compressive(4, 0, 5, 2, gate="gru"),
        "post-time-one-step": compressive(1, 3, 2, 1, **TIME),
        "no-compressed": compressive(4, 5, 0),
        "no-loss": compressive(2, 3, 4, 2, compression_loss="none"),
        "dilated": compressive(4, 3, 5, 2, compression="dilated"),
        "most-used": compressive(4, 5, 5, 2, **MOST_USED),
        "pre-most-used-short-memory": compressive(6, 1, 5, 3, **PRE, **TIME, **MOST_USED),
        "autoencoding": compressive(4, 4, 4, 4, **AUTOENCODING),
        "pre-dilated-autoencoding": compressive(6, 4, 4, 3, **PRE, **AUTOENCODING, compression="dilated"),
        "bptt": compressive(4, 4, 4, 2, compression_loss="bptt"),
        "most-used-bptt": compressive(4, 0, 4, 2, **MOST_USED, compression_loss="bptt"),
        "by-layer": compressive(4, (1, 6), (3, 5), (2, 4), **TIME),
        "pre-memory-in-one-layer": compressive(4, (4, 0), (0, 3), (3, 2), **PRE, gate="gru"),
        "by-layer-most-used": compressive(4, (5, 2), (3, 0), (2, 1), **MOST_USED),
        "pre-clock": compressive(4, 3, 4, 2, **PRE, clock=True),
    },
    "transformer-xl": {
        "post": transformer_xl(4, 8),
        "pre-gru-short-memory": transformer_xl(5, 3, norm="pre", gate="gru"),
        "no-memory": transformer_xl(4, 0),
        "by-layer": transformer_xl(4, (0, 6)),
    },
    "gated-transformer-xl": {"default": gated(4, 6), "post": gated(3, 5, norm="post")},
    "routing": {
        "post": routing(4, 4, window=3, clusters=3),
        "pre-gru-short-memory": routing(5, 2, window=2, clusters=4, **PRE, gate="gru"),
        "group-for-each-head": routing(4, 5, window=3, clusters=2, groups=2),
        "pre-one-step": routing(1, 2, window=2, clusters=2, norm="pre"),
        "no-memory": routing(4, 0, window=4, clusters=3),
        "clock": routing(4, 4, window=3, clusters=3, clock=True),
        "one-of-two-layers": routing(4, (6, 3), window=(0, 5), clusters=(1, 3), groups=2),
    },
    "lstm": {"one-layer": LSTMConfig(SIZE, 1), "three-layers": LSTMConfig(SIZE, 3)},
    "gru": {"one-layer": GRUConfig(SIZE, 1), "three-layers": GRUConfig(SIZE, 3)},
    "mingru": {"one-layer": MinGRUConfig(SIZE, 1, 12), "three-layers": MinGRUConfig(SIZE, 3, 12)},
    "lru": {"one-layer": LRUConfig(SIZE, 1, 12), "three-layers": LRUConfig(SIZE, 3, 12)},
    "ffm": {
        "one-layer": FFMConfig(SIZE, 1, 12, 3, 2, spacing="even"),
        "three-layers": FFMConfig(SIZE, 3, 12, 2, 3, span=16),
    },
    "deltanet": {"one-head": DeltaNetConfig(SIZE, 1, 12, 1), "two-heads": DeltaNetConfig(SIZE, 2, 12, 2)},
    "memoryless": {"two-blocks": MemorylessConfig(SIZE, 2, 12)},
    "wavenet": {
        "two-stacks": WaveNetConfig(SIZE, 4, 2, kernel_size=2, gate_size=6, skip_size=10),
        "three-taps": WaveNetConfig(SIZE, 2, 3, kernel_size=3, gate_size=5, skip_size=12),
    },
}
# All of them, by names such as "compressive/post".
CASES = {f"{core}/{name}": config for core, configs in CONFIGS.items() for name, config in configs.items()}
WITH_SEGMENTS = {name: config for name, config in CASES.items() if hasattr(config, "segment_size")}
FORGETFUL = [CASES["memoryless/two-blocks"]]
"""Cores whose features do not depend on earlier steps."""

FURTHER = {
    "compressive/pre-time-max-short-memory", "compressive/post-gru-no-memory", "compressive/post-time-one-step",
    "compressive/no-loss", "compressive/dilated", "compressive/autoencoding", "compressive/bptt",
    "compressive/most-used-bptt", "compressive/pre-memory-in-one-layer", "compressive/by-layer-most-used",
    "transformer-xl/pre-gru-short-memory", "transformer-xl/no-memory", "gated-transformer-xl/post",
    "routing/pre-gru-short-memory", "routing/pre-one-step", "routing/no-memory",
    "lstm/one-layer", "gru/one-layer", "mingru/one-layer", "lru/one-layer", "ffm/one-layer", "deltanet/one-head",
    "wavenet/two-stacks",
}  # fmt: skip
"""Configs whose parts are in others as well: they are among the slow tests. New ones are among the others."""
assert CASES.keys() >= FURTHER


QUICK = {
    "compressive/post", "compressive/pre-clock", "transformer-xl/post", "routing/clock", "lstm/three-layers",
    "gru/three-layers", "ffm/three-layers", "deltanet/two-heads",
}  # fmt: skip
"""Configs for a test that takes seconds with each; the others are among the slow tests."""


def cases(chosen: Iterable[str] = CASES, takes_seconds: bool = False) -> list[Any]:
    """Parameters of a test: the configs with these names, `FURTHER` ones or all but `QUICK` ones marked as slow."""
    found = []
    for name in chosen:
        is_slow = name not in QUICK if takes_seconds else name in FURTHER
        marks = [pytest.mark.slow] if is_slow else []
        found.append(pytest.param(CASES[name], id=name, marks=marks))
    return found


every_core = pytest.mark.parametrize("config", cases())
