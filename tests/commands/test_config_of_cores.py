"""Configurations of every core on their way through JSON and the command line."""

import dataclasses
import json

import pytest

from agent.core import CORES
from commands.options import parse
from training.config import RunConfig, from_plain, to_plain
from training.presets import PRESETS, make_preset


def with_core(config: RunConfig, **fields) -> RunConfig:
    agent = dataclasses.replace(config.agent, core=dataclasses.replace(config.agent.core, **fields))
    return dataclasses.replace(config, agent=agent)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_core_has_a_preset_that_survives_json(preset, core) -> None:
    config = make_preset(preset, core)
    assert config.core_name == core
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_sizes_by_layer_survive_json() -> None:
    config = with_core(make_preset("cpu", "compressive"), memory_size=(16, 0), compressed_size=(0, 8))
    read = from_plain(json.loads(json.dumps(to_plain(config))))
    assert read == config
    assert read.agent.core.memory_size == (16, 0)


@pytest.mark.parametrize("wrong", [[16, "0"], [16, 0.5], "16", [[16, 0]]])
def test_sizes_of_another_type_are_refused(wrong) -> None:
    plain = to_plain(make_preset("cpu", "compressive"))
    plain["agent"]["core"]["memory_size"] = wrong
    with pytest.raises(ValueError, match=r"config\.agent\.core\.memory_size: expected an integer"):
        from_plain(plain)


def test_sizes_on_the_command_line() -> None:
    kind = CORES["compressive"][0]
    assert parse(kind, "core", args=["--memory-size", "16"]).memory_size == 16
    words = ["--num-layers", "2", "--memory-size", "16", "0", "--compressed-size", "0", "8"]
    config = parse(kind, "core", args=words)
    assert (config.memory_size, config.compressed_size) == ((16, 0), (0, 8))
