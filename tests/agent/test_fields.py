"""Configurations refuse values outside the types and limits of their fields; networks must fit into memory; dropout."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch

from agent import memory_check
from agent.core import (
    Core,
    GatedTransformerXLConfig,
    LSTMConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
    WaveNetConfig,
    make_core,
)
from agent.core.fields import Above0, Checked, Decay, Positive, Size
from agent.memory_check import build_network
from tests.agent.tiny import SIZE, config_of, normal, resets


@dataclass(frozen=True)
class Config(Checked):
    steps: Positive = 1
    sizes: Size | tuple[Size, ...] = (1, 2)
    rate: Above0 | None = None
    decay: Decay = 0.5
    cost: float = 1.0
    norm: Literal["pre", "post"] = "pre"
    path: Annotated[Path | None, "of a run"] = None
    names: tuple[str, ...] = ()
    on: bool = False


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("steps", 0, "1 or more, got 0"),
        ("steps", 2**64, "at most 9223372036854775807, got 18446744073709551616"),
        ("steps", 1.5, "an integer, got 1.5"),
        ("steps", True, "an integer, got True"),
        ("sizes", (1, 0), "an integer or a list, each 1 or more, got (1, 0)"),
        ("sizes", 2**25, "at most 16777216 or a list, got 33554432"),
        ("sizes", "8", "an integer or a list, got '8'"),
        ("rate", 0.0, "a positive number or None, got 0.0"),
        ("rate", math.nan, "a positive number or None, got nan"),
        ("rate", 10**400, "a finite number or None, got 1000"),
        ("decay", 1.0, "a number in [0, 1), got 1.0"),
        ("cost", -math.inf, "a finite number, got -inf"),
        ("cost", None, "a number, got None"),
        ("norm", ["pre"], "one of pre, post, got ['pre']"),
        ("path", Path("a\0b"), "a path in UTF-8 without NUL or None, got"),
        ("names", ("a", "\udcff"), "a list, each text in UTF-8 without NUL, got ('a', '\\udcff')"),
        ("on", 1, "True or False, got 1"),
    ],
)
def test_a_value_that_cannot_be_is_named(field: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}: expected {expected}")):
        Config(**{field: value})
    config = Config(2**63 - 1, [3], 1, 0, -1e38, "post", Path("é"), ("a",), True)
    assert (config.sizes, config.rate, config.decay) == ([3], 1, 0), "within types and limits"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"c": (2, 3)}, "compression_rate: expected a divisor of segment_size = 4, got 3"),
        ({"model_size": 5}, "model_size: expected a multiple of num_heads = 2, got 5"),
        ({"model_size": 5, "num_heads": 1}, "model_size: expected an even number .*, got 5"),
        ({"attention": "flex", "compression": "most-used"}, "attention: expected sdpa with most-used .*, got 'flex'"),
        ({"n_m": (1, 2, 3)}, r"memory_size: expected one number or 2 \(num_layers\), got \(1, 2, 3\)"),
        ({"n_cm": (4, -1)}, r"compressed_size: expected an integer or a list, each 0 or more, got \(4, -1\)"),
        ({"compression": "most"}, "compression: expected one of convolution, .*mean.*, got 'most'"),
    ],
)
def test_impossible_transformers_are_named(fields: dict[str, Any], message: str) -> None:
    assert config_of(4, 4, 0, 3).compressed_size == 0, "a rate that is not used may be anything"
    with pytest.raises(ValueError, match=message):
        config_of(**fields)


@pytest.mark.parametrize("config", [TransformerXLConfig, GatedTransformerXLConfig])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("compressed_size", 4, "0 for Transformer-XL"),
        ("compression_loss", "bptt", "'attention' for Transformer-XL"),
        ("compression_rate", (4, 2), "4 for Transformer-XL"),
    ],
)
def test_transformer_xl_does_not_compress(
    config: Any, name: str, value: int | str | tuple[int, int], expected: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected {expected}.*, got "):
        config(num_layers=2, **{name: value})
    assert config(num_layers=2, compression_rate=(4, 4), compressed_size=(0, 0)).layer_sizes[1].compressed == 0


def test_dropout_is_active_while_training_only(build: Callable[..., Any]) -> None:
    core = build(config_of(dropout=0.5))
    for training in (False, True):
        core.train(training)
        one, two = (core(normal(1, 6, SIZE), resets(1, 6), core.initial_state(1)).features for _ in range(2))
        assert torch.equal(one, two) != training


def test_a_network_larger_than_memory_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = LSTMConfig(2**10), []

    def build() -> Core:
        core = make_core(config)
        made.append(str(next(core.parameters()).device))
        return core

    weights = 4 * sum(parameter.numel() for parameter in make_core(config).parameters())
    monkeypatch.setattr(memory_check, "machine_memory", lambda: 4 * weights)
    with pytest.raises(ValueError, match=r"network: .* memory of 0.1 GB, got .* 0.1 GB for weights, .* 0.0 GB for"):
        build_network(build, config)
    monkeypatch.setattr(memory_check, "machine_memory", lambda: 4 * weights + 2**20)
    build_network(build, config, rows=2)
    monkeypatch.setattr(memory_check, "machine_memory", lambda: 10**12)
    build_network(build, config)
    assert made == ["meta", "meta", "cpu", "cpu"], "a network that is small for the machine is built once"


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (RoutingTransformerConfig(64, 2, 2, 64, 8, 8, window=512, clusters=512), 128),
        (WaveNetConfig(8, 24, 24, gate_size=8, skip_size=8), 32),
    ],
    ids=["routing", "wavenet"],
)
def test_states_of_more_slots_than_any_size_are_refused(
    config: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their weights are small. States of 17 GB are refused before anything is allocated."""
    made = []

    def build() -> Core:
        core = make_core(config)
        made.append(str(next(core.parameters()).device))
        return core

    monkeypatch.setattr(memory_check, "machine_memory", lambda: 10**10)
    with pytest.raises(ValueError, match=r"network: .* memory of 10.0 GB, got .* 0.0 GB for weights, .* 17.\d GB for"):
        build_network(build, config, rows)
    assert made == ["meta"]
