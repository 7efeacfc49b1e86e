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
    CompressiveTransformerConfig,
    Core,
    GatedTransformerXLConfig,
    LSTMConfig,
    RoutingTransformerConfig,
    TransformerXLConfig,
    WaveNetConfig,
    make_core,
)
from agent.core.fields import Above0, Checked, Decay, Positive, Size
from agent.memory_check import build_network, machine_memory
from tests.agent.tiny import SIZE, config_of, normal, resets


@dataclass(frozen=True)
class Config(Checked):
    """A field of each kind."""

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
def test_a_value_outside_of_types_or_limits_is_named(field: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}: expected {expected}")):
        Config(**{field: value})


def test_values_within_types_and_limits_are_kept() -> None:
    config = Config(
        steps=2**63 - 1, sizes=[3], rate=1, decay=0, cost=-1e38, norm="post", path=Path("é"), names=("a",), on=True
    )
    assert config.sizes == [3]
    assert config.rate == 1
    assert config.decay == 0


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
    with pytest.raises(ValueError, match=message):
        config_of(**fields)


def test_a_rate_that_is_not_used_may_be_anything() -> None:
    assert config_of(n_s=4, n_m=4, n_cm=0, c=3).compressed_size == 0


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


@pytest.mark.parametrize("config", [TransformerXLConfig, GatedTransformerXLConfig])
def test_transformer_xl_may_give_its_sizes_by_layer(config: Any) -> None:
    by_layer = config(num_layers=2, compression_rate=(4, 4), compressed_size=(0, 0))
    assert by_layer.layer_sizes[1].compressed == 0


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_active_while_training_only(build: Callable[..., Any], training: bool) -> None:
    core = build(config_of(dropout=0.5)).train(training)
    one = core(normal(1, 6, SIZE), resets(1, 6), core.initial_state(1)).features
    two = core(normal(1, 6, SIZE), resets(1, 6), core.initial_state(1)).features
    assert torch.equal(one, two) != training


def recorded(config: Any, devices: list[str]) -> Callable[[], Core]:
    """Makes the core of a config, and appends the device on which it is made."""

    def build() -> Core:
        core = make_core(config)
        devices.append(next(core.parameters()).device.type)
        return core

    return build


def test_a_network_larger_than_memory_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made on the meta device first, unless it is small for the machine."""
    config = LSTMConfig(2**10)
    weight_bytes = 4 * sum(parameter.numel() for parameter in make_core(config).parameters())
    with_gradients_and_moments = 4 * weight_bytes
    devices: list[str] = []

    # There is no room for a state.
    monkeypatch.setattr(memory_check, "machine_memory", lambda: with_gradients_and_moments)
    with pytest.raises(ValueError, match=r"network: .* memory of 0.1 GB, got .* 0.1 GB for weights, .* 0.0 GB for"):
        build_network(recorded(config, devices), config)
    assert devices == ["meta"]

    monkeypatch.setattr(memory_check, "machine_memory", lambda: with_gradients_and_moments + 2**20)
    build_network(recorded(config, devices), config, rows=2)
    assert devices == ["meta", "meta", "cpu"]

    monkeypatch.setattr(memory_check, "machine_memory", lambda: 10**12)
    build_network(recorded(config, devices), config)
    assert devices == ["meta", "meta", "cpu", "cpu"]


def test_a_core_that_the_meta_device_cannot_make_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number in its configuration may be a size, and then it is tried on the meta device, which has no numbers."""
    devices: list[str] = []

    def build() -> Core:
        core = recorded(LSTMConfig(8), devices)()
        next(core.parameters()).sum().item()
        return core

    monkeypatch.setattr(memory_check, "machine_memory", lambda: 10**9)
    build_network(build, LSTMConfig(2**20))
    assert devices == ["meta", "cpu"]


def test_memory_is_the_least_of_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine, and of the control groups of the process, version 2 and 1: of each and those around it."""
    groups = tmp_path / "cgroup"
    monkeypatch.setattr(memory_check, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_check, "PROCESS_GROUPS", groups)
    machine = machine_memory()
    assert machine > 2**30, "without groups"

    def limit(group: str, content: str) -> None:
        file = tmp_path / group
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    groups.write_text("5:cpu,cpuacct:/a\n4:memory:/slurm/job\n0::/slice/unit:1\n")
    assert machine_memory() == machine, "the groups are not shown here"
    limit("slice/memory.max", "3000\n")
    limit("slice/unit:1/memory.max", "max\n")
    assert machine_memory() == 3000
    limit("slice/unit:1/memory.max", "2000\n")
    assert machine_memory() == 2000
    limit("memory/slurm/job/memory.limit_in_bytes", "1000\n")
    assert machine_memory() == 1000
    limit("memory.max", "500\n")
    assert machine_memory() == 500
    limit("a/memory.max", "1\n")
    assert machine_memory() == 500, "a group of another controller"


@pytest.mark.parametrize("rate", [64, 512])
@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
def test_weights_that_compress_count(rate: int, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix for each step of a compressed slot, and as many that decode it."""
    fields = {"segment_size": rate, "memory_size": rate, "compressed_size": 1, "compression_rate": rate}
    config = CompressiveTransformerConfig(rate, 1, 1, mlp_size=8, **fields, compression_loss=loss)
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in make_core(config).parameters())
    assert memory_check._most_bytes(config, rows=1) >= 16 * weights


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
    devices: list[str] = []
    monkeypatch.setattr(memory_check, "machine_memory", lambda: 10**10)
    with pytest.raises(ValueError, match=r"network: .* memory of 10.0 GB, got .* 0.0 GB for weights, .* 17.\d GB for"):
        build_network(recorded(config, devices), config, rows)
    assert devices == ["meta"]
