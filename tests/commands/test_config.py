"""Configurations survive their file, and every preset stands with every core."""

import dataclasses
import importlib
import json
import math
import re
import sys
import typing
from pathlib import Path

import pytest

from agent.core import CORES
from agent.fields import Checked
from commands import speech
from learner import checkpoints
from speech import training
from tests.commands.cli import refusal
from text import presets as text_presets
from training import text_runs
from training.config import RunConfig, from_plain, read_kind, read_plain, to_plain
from training.presets import PRESETS, make_preset


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
    del plain["video_episodes"], plain["actors"]["step_seconds"], plain["actors"]["max_episode_steps"]
    assert from_plain(plain) == RunConfig()


def test_unrolls_end_where_segments_do() -> None:
    plain = to_plain(make_preset("cpu", "compressive"))
    plain["actors"]["unroll_length"] = 17
    with pytest.raises(ValueError, match="unroll_length: expected a multiple of the core's segment_size = 16, got 17"):
        from_plain(plain)


SEQUENCES = {
    "text": text_runs.to_plain(text_presets.make_preset("cpu", "compressive")),
    "speech": speech.to_plain(training.make_preset("cpu", "lstm")),
}


@pytest.mark.parametrize(
    "command", [["launch", "--local", "--resume"], ["evaluate"], ["visualize"], ["report"], ["compare", "--from"]]
)
@pytest.mark.parametrize("kind", SEQUENCES)
def test_what_takes_a_run_of_another_kind_is_said(
    kind: str, command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SEQUENCES[kind]))
    error = refusal([*command, str(tmp_path)], capfd)
    assert f"{tmp_path} is a run of `compressive {kind} train`, expected one of `compressive launch`" in error
    assert f"use compressive {kind} evaluate, sample or train --resume, or compressive status" in error


def test_kinds_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError, match=r"is not a run: expected a folder with config\.json.*text train"):
        read_kind(tmp_path)
    path.write_text(json.dumps(SEQUENCES["text"]))
    assert read_kind(tmp_path)[0] == "text"
    assert read_plain(tmp_path, "text") | {"kind": "text"} == json.loads(path.read_text())
    path.write_text('{"frames": 3}')
    assert read_kind(tmp_path) == ("launch", {"frames": 3})
    with pytest.raises(
        ValueError, match=r"run of `compressive launch`, expected one of `compressive text train`; use "
    ):
        read_plain(tmp_path, "text")
    for kind in ("video", None, ["text"]):
        path.write_text(json.dumps({"kind": kind}))
        with pytest.raises(ValueError, match=r"config\.json: kind: expected one of launch, text, speech, got "):
            read_kind(tmp_path)


OURS = ("agent.", "actors.", "learner.", "text.", "speech.", "commands.")
COMMANDS = ("launch", "evaluate", "visualize", "report", "compare", "status", "text", "speech")


def test_every_number_of_every_option_has_limits() -> None:
    """Numbers without are those where any finite one is meant."""
    for name in COMMANDS:
        importlib.import_module(f"commands.{name}")
    kinds, found = [Checked], []
    for kind in kinds:  # grows meanwhile
        kinds += kind.__subclasses__()
    for kind in (kind for kind in kinds[1:] if kind.__module__.startswith(OURS)):
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            plain = str(typing.get_type_hints(kind)[name])
            if re.search(r"\b(int|float)\b", plain) and "Range" not in str(hint):
                found.append(f"{kind.__name__}.{name}")
    assert found == ["Options.threshold"]
    ours = {module for module in sys.modules.values() if module.__name__.startswith("commands.")}
    options = {each for module in ours for name, each in vars(module).items() if name.endswith("Options")}
    assert options <= {*kinds}, options - {*kinds}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_json_file_has_numbers_that_are_not_finite(value: float, tmp_path: Path) -> None:
    checkpoints.write_json(tmp_path / "evaluation.json", {"return": [value, (value, 1.0)], "by": {"task": value}})
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {
        "return": [None, [None, 1.0]],
        "by": {"task": None},
    }
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoints.save(tmp_path / "run", 1, {}, {"score": value})
    assert not (tmp_path / "run").exists()
