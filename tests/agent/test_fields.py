"""Configurations refuse values that are not of their fields' types or not within the limits that these state."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from agent import memory_check as room
from agent.core import LSTM, LSTMConfig
from agent.fields import Above0, Checked, Decay, Positive, Size
from agent.memory_check import build_network


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
        ("sizes", 0, "1 or more, got 0"),
        ("sizes", (1, 0), "1 or more, got (1, 0)"),
        ("sizes", 2**25, "at most 16777216, got 33554432"),
        ("sizes", "8", "an integer or a list, got '8'"),
        ("rate", 0.0, "a positive number or None, got 0.0"),
        ("rate", math.nan, "a positive number or None, got nan"),
        ("rate", math.inf, "a finite number, a positive number or None, got inf"),
        ("rate", 10**400, "a finite number, a positive number or None, got 1000"),
        ("decay", 1.0, "a number in [0, 1), got 1.0"),
        ("cost", -math.inf, "a finite number, got -inf"),
        ("cost", None, "a number, got None"),
        ("norm", ["pre"], "one of pre, post, got ['pre']"),
        ("path", Path("a\0b"), "a path in UTF-8 without NUL or None, got"),
        ("names", ("a", "\udcff"), "text in UTF-8 without NUL, got ('a', '\\udcff')"),
        ("on", 1, "True or False, got 1"),
    ],
)
def test_a_value_that_cannot_be_is_named(field: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}: expected {expected}")):
        Config(**{field: value})  # type: ignore[arg-type]


def test_values_that_can_be_are_kept() -> None:
    config = Config(2**63 - 1, [3], 1, 0, -1e38, "post", Path("é"), ("a",), True)  # type: ignore[arg-type]
    assert (config.sizes, config.rate, config.decay) == ([3], 1, 0)
    assert Config().rate is None


def test_a_network_larger_than_memory_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = LSTMConfig(2**10), []

    def build() -> LSTM:
        core = LSTM(config)
        made.append(str(next(core.parameters()).device))
        return core

    weights = 4 * sum(parameter.numel() for parameter in LSTM(config).parameters())
    monkeypatch.setattr(room, "machine_memory", lambda: 4 * weights)
    with pytest.raises(ValueError, match=r"network: .* memory of 0.1 GB, got .* 0.1 GB for weights, .* 0.0 GB for"):
        build_network(build, config)
    assert made == ["meta"]
    monkeypatch.setattr(room, "machine_memory", lambda: 4 * weights + 2**20)
    build_network(build, config, rows=2)
    assert made == ["meta", "meta", "cpu"]
    monkeypatch.setattr(room, "machine_memory", lambda: 10**12)
    build_network(build, config)
    assert made[3:] == ["cpu"], "what is small for the machine is made once"
