"""Configurations: presets, the way through JSON, and limits of every number."""

import dataclasses
import importlib
import json
import re
import sys
import typing
from typing import Any

import pytest

import commands
from agent.core import CORES
from agent.core.fields import Checked
from envs import tasks
from sequences.text.config import TextConfig
from training.config import RunConfig, core_name
from training.curriculum import Curriculum
from training.plain import differences, from_plain, to_plain
from training.presets import PRESETS, make_preset
from training.stages import read_stage


def read(config: RunConfig) -> Any:
    """What a program reads from the file that another one wrote."""
    return from_plain(RunConfig, json.loads(json.dumps(to_plain(config))))


@pytest.mark.parametrize("core", [*CORES, "my_module:MyCore"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_and_core_survives_json(preset: str, core: str) -> None:
    config = make_preset(preset, core)
    assert (config.preset, core_name(config)) == (preset, core)
    assert read(config) == config


def test_stages_of_presets_leave_time_for_the_environment() -> None:
    """And their environments are of one kind."""
    for preset in PRESETS:
        config = make_preset(preset, "compressive")
        stages = [read_stage(text) for text in config.stages]
        assert sum(stage.limits["frames"] for stage in stages) <= 0.7 * config.frames
        if stages:
            assert len(Curriculum(config).stages) == len(stages) + 1
    assert make_preset("level", "lstm").stages


def test_sizes_by_layer_survive_json() -> None:
    config = make_preset("cpu", "compressive")
    core = dataclasses.replace(config.agent.core, memory_size=(16, 0), compressed_size=(0, 8))  # type: ignore[call-arg]
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, core=core))
    assert read(config) == config
    for wrong in ([16, "0"], [16, 0.5], "16", [[16, 0]]):
        plain = to_plain(config)
        plain["agent"]["core"]["memory_size"] = wrong
        with pytest.raises(ValueError, match=r"config\.agent\.core\.memory_size: expected an integer"):
            from_plain(RunConfig, plain)


@pytest.mark.parametrize("name", ["unknown", "my_module:MyCore"])
def test_sequence_models_have_no_custom_cores(name: str) -> None:
    plain = to_plain(TextConfig())
    plain["model"]["core"] = {"name": name, "model_size": 8}
    with pytest.raises(ValueError, match=f"config.model.core: expected a core out of compressive, .*, got '{name}'"):
        from_plain(TextConfig, plain)


def test_fields_that_a_file_lacks_have_their_defaults() -> None:
    plain = to_plain(RunConfig())
    del plain["video_episodes"], plain["actors"]["step_seconds"], plain["actors"]["max_episode_steps"]
    assert from_plain(RunConfig, plain) == RunConfig()


def test_the_preset_of_the_paper_is_section_5_7() -> None:
    """The level, a fixed learning rate and the entropy cost are the paper's; the rest of the recipe is IMPALA's."""
    config = make_preset("paper", "compressive")
    assert config.env == "dmlab:rooms_select_nonmatching_object"
    learner = config.learner
    assert (learner.learning_rate, learner.learning_rate_schedule, learner.entropy_cost) == (1.5e-5, "constant", 2e-3)
    assert (learner.baseline_cost, learner.discount, learner.max_gradient_norm) == (0.5, 0.99, 40.0)
    assert (learner.clip_rho, learner.clip_c, learner.lambda_) == (1.0, 1.0, 1.0)
    assert config.agent.torso == "deep"


def test_the_preset_for_dmlab30_is_the_papers_agent_that_reads() -> None:
    paper = make_preset("paper", "lstm")
    all_levels = make_preset("dmlab30", "lstm")
    assert (paper.agent.instruction, all_levels.agent.instruction) == (None, True)
    assert dataclasses.replace(all_levels.agent, instruction=None) == paper.agent
    assert all_levels.learner == paper.learner
    assert all_levels.actors.num_actors % len(tasks(all_levels.env)) == 0


@pytest.mark.parametrize(
    ("core", "slots"),
    [
        ("compressive", {"agent.core.memory_size": (16, 96), "agent.core.clock": (False, True)}),
        ("transformer-xl", {"agent.core.memory_size": (32, 112), "agent.core.clock": (False, True)}),
        ("lstm", {}),
    ],
)
def test_the_preset_for_popgym_is_the_general_one_but_for_three_fields(core: str, slots: Any) -> None:
    general = to_plain(make_preset("general", core))
    popgym = to_plain(make_preset("popgym", core))
    found = {name: (old, new) for name, old, new in differences(general, popgym)}
    env = found.pop("env")
    assert env == ("gym:CartPole-v1", "gym:popgym-AutoencodeEasy-v0")
    assert found == {"preset": ("general", "popgym"), "learner.discount": (0.99, 0.9), **slots}


OURS = ("agent.", "envs.", "actors.", "learner.", "storage.", "sequences.", "training.", "reports.", "commands.")
"""Modules of this project, without those of its tests."""


def checked_classes() -> set[type[Checked]]:
    """All configurations and options of the project, once all commands are imported."""
    for name in set(commands.COMMANDS.values()):
        importlib.import_module(f"commands.{name}")
    kinds: set[type[Checked]] = set()
    waiting = Checked.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith(OURS):
            kinds.add(kind)
    return kinds


def test_every_number_of_every_option_has_limits() -> None:
    """Only a threshold may be any finite number."""
    without_limits = []
    for kind in checked_classes():
        plain = typing.get_type_hints(kind)
        annotated = typing.get_type_hints(kind, include_extras=True)
        for name in plain:
            is_number = re.search(r"\b(int|float)\b", str(plain[name]))
            if is_number and "Range" not in str(annotated[name]):
                without_limits.append(f"{kind.__name__}.{name}")
    assert without_limits == ["CompareOptions.threshold"]


def test_all_options_of_commands_are_checked() -> None:
    kinds = checked_classes()
    options = set()
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("commands."):
            options |= {value for name, value in vars(module).items() if name.endswith("Options")}
    assert len(options) > 10
    assert options <= kinds, options - kinds
