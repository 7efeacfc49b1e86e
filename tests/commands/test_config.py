"""Configurations survive their file, and every preset stands with every core."""

import dataclasses
import json

import pytest

from agent.core import CORES
from commands.config import RunConfig, from_plain, to_plain
from commands.presets import PRESETS, make_preset


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("preset", PRESETS)
def test_there_and_back(preset: str, core: str) -> None:
    config = make_preset(preset, core)
    assert (config.preset, config.core_name) == (preset, core)
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_sizes_that_differ_by_layer() -> None:
    config = make_preset("cpu", "compressive")
    core = dataclasses.replace(config.agent.core, memory_size=(16, 8), compressed_size=(0, 4))
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, core=core))
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_a_file_from_before_a_field_was_there_gets_its_default() -> None:
    plain = to_plain(RunConfig())
    del plain["video_episodes"]
    assert from_plain(plain) == RunConfig()


def test_unrolls_end_where_segments_do() -> None:
    plain = to_plain(make_preset("cpu", "compressive"))
    plain["actors"]["unroll_length"] = 17
    with pytest.raises(ValueError, match="unroll_length: expected a multiple of the core's segment_size = 16, got 17"):
        from_plain(plain)
