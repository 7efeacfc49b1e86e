"""Cores whose states have equally many bytes."""

import dataclasses

import pytest
import torch

from agent.core import make_core, matched_cores, state_bytes
from agent.core.config import CoreConfig, DeltaNetConfig
from agent.core.cores import CORE_CLASSES
from agent.core.matching import bytes_of_state, with_state_of

SIZES = {"model_size": 16, "num_layers": 2, "num_heads": 4, "mlp_size": 32, "segment_size": 8}
CORES = matched_cores(SIZES, memory=8, compressed=24)


def sizes(config: CoreConfig) -> dict[str, int]:
    names = ("model_size", "memory_size", "compressed_size", "window", "traces")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("num_bytes", [6_000, 16_000])
def test_no_more_fits_into_so_many_bytes(core: str, num_bytes: int) -> None:
    config = CORES[core]
    found = with_state_of(config, num_bytes)
    size = state_bytes(make_core(found).initial_state(1))
    assert bytes_of_state(found) == size
    assert size <= num_bytes
    before = sizes(config)
    after = sizes(found)
    assert dataclasses.replace(found, **before) == config, "nothing else has changed"
    if core == "memoryless":
        assert after == before
        return

    # The next larger config has a larger state: one with another slot, in the same proportions, or another feature.
    if "memory_size" in after:
        older = "window" if "window" in after else "compressed_size"
        share_of_older = before[older] / (before["memory_size"] + before[older])
        slots = after["memory_size"] + after[older]
        assert after[older] == round(share_of_older * slots), "the proportions are kept"
        num_older = round(share_of_older * (slots + 1))
        grown = dataclasses.replace(found, **{"memory_size": slots + 1 - num_older, older: num_older})
    elif core == "ffm":
        grown = dataclasses.replace(found, traces=found.traces + 1)
    else:
        features = 4 if core == "deltanet" else 1  # a multiple of its four heads
        grown = dataclasses.replace(found, model_size=after["model_size"] + features)
    assert bytes_of_state(grown) > num_bytes


def test_a_state_that_is_smaller_than_any_is_refused() -> None:
    least = bytes_of_state(dataclasses.replace(CORES["compressive"], memory_size=0, compressed_size=1))
    with pytest.raises(ValueError, match=rf"^state_bytes: expected at least {least:,} for this core, got 100$"):
        with_state_of(CORES["compressive"], 100)


@dataclasses.dataclass(frozen=True)
class TracesConfig:
    """Of a core of another project, whose state has a size of its own."""

    model_size: int = 8
    traces: int = 4


class Traces(torch.nn.Module):
    def __init__(self, config: TracesConfig) -> None:
        super().__init__()
        self.traces = config.traces

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor]:
        return (torch.zeros(batch_size, self.traces),)


def test_a_state_that_does_not_grow_with_the_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core would become so large that it does not fit into memory."""
    monkeypatch.setitem(CORE_CLASSES, TracesConfig, Traces)
    expected = "state_bytes: expected a state that grows with model_size .*, got 16 bytes with any in TracesConfig"
    with pytest.raises(ValueError, match=expected):
        with_state_of(TracesConfig(), 6_000)


def test_a_core_of_many_heads_fits() -> None:
    """No size that is tried is above the largest that is allowed."""
    config = DeltaNetConfig(model_size=64, num_layers=1, num_heads=32)
    assert with_state_of(config, 24 * 1024).model_size == 32 * 13  # 32 heads of 13 x 13 numbers have 21,632 bytes
    assert bytes_of_state(with_state_of(config, 24 * 1024)) == 4 * 32 * 13**2


def test_layers_of_different_sizes_are_refused() -> None:
    config = dataclasses.replace(CORES["compressive"], memory_size=(8, 4))
    with pytest.raises(ValueError, match=r"^state_bytes: expected layers of one size, got one for each layer$"):
        with_state_of(config, 10_000)


def test_matched_cores_attend_to_equally_many_slots() -> None:
    """The router's window is a quarter of them."""
    assert (CORES["compressive"].memory_size, CORES["compressive"].compressed_size) == (8, 24)
    assert CORES["transformer-xl"].memory_size == CORES["gated-transformer-xl"].memory_size == 32
    assert (CORES["routing"].memory_size, CORES["routing"].window) == (24, 8)
