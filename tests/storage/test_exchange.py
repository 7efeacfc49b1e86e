"""Agents as ONNX: greedy actions, values and states of every core, and what the file says of itself."""

import copy
import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent import Agent, AgentConfig
from agent.acting_step import ActingStep
from agent.core import CORES as NAMES
from agent.core import CustomCoreConfig
from agent.encoders import has_parts, part_shapes
from agent.policies import Choice, Numbers
from agent.trajectory import Observation
from storage.exchange import KEY, _quiet, describe, write_onnx, write_program
from tests.agent.cores import CONFIGS, SIZE

CORES: dict[str, Any] = {name: next(iter(CONFIGS[name].values())) for name in NAMES}
CORES["most-used"] = CONFIGS["compressive"]["most-used"]
CORES["clock"] = CONFIGS["compressive"]["pre-clock"]
CUSTOM = {
    name: CustomCoreConfig(f"tests.custom_cores:{name}", SIZE, ("segment_size=4",))
    for name in ("Wide", "Phase", "Wrapped")
}
"""They count steps beside a segment, without one, and deep in their state."""
IMAGE = (12, 16, 3)
VECTOR = (5,)
WORDS = 12
"""Ids of an instruction."""
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra onnx and onnxruntime",
)


def make_agent(core: Any, shape: Any = VECTOR, actions: Any = 4, vocabulary: int = 0, **fields: Any) -> Agent:
    """An agent that is always the same, and prefers some actions to others."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=core, **fields)
    agent = Agent(config, shape, actions, vocabulary=vocabulary).eval()
    with torch.no_grad():  # new policies are all nearly uniform
        agent.policy.weight.mul_(100)
    return agent


def steps(agent: Agent, rows: int, count: int, seed: int = 0) -> Any:
    """Observation parts, last actions, last rewards and resets of each step.

    Instructions of zero to seven words change at random, and some are equal.
    """
    generator = torch.Generator().manual_seed(seed)
    actions = agent.made_for.actions
    vocabulary = agent.made_for.vocabulary
    for step in range(count):
        parts = []
        for shape in part_shapes(agent.made_for.observation_shape):
            part = torch.randn(rows, *shape, generator=generator)
            is_image = len(shape) == 3
            if is_image:
                part = (60 * part + 128).clamp(0, 255).to(torch.uint8)
            parts.append(part)

        # Each row has one of four texts, which have 0, 1, 4 and 7 words.
        if vocabulary:
            texts = torch.randint(1, vocabulary, (4, WORDS), generator=generator)
            texts[torch.arange(WORDS) >= torch.tensor([[0], [1], [4], [7]])] = 0
            parts.append(texts[torch.randint(0, 4, (rows,), generator=generator)])

        # All rows begin with the first step.
        reset = torch.rand(rows, generator=generator) < 0.1
        if step == 0:
            reset[:] = True
        if isinstance(actions, int):
            action = torch.randint(0, actions, (rows,), generator=generator)
        else:
            action = torch.stack([torch.randint(0, 2, (rows,), generator=generator).float() for _ in range(3)], dim=1)
        last = agent.distribution.last_action(action, reset)
        yield tuple(parts), last, torch.randn(rows, generator=generator), reset


def play(agent: Agent, rows: int, count: int) -> Any:
    """What the agent itself makes of the steps: the policy's parameters, the most probable action, and the value."""
    agent = copy.deepcopy(agent)
    if agent.instruction is not None:
        agent.instruction.shares = True  # as when it learned
    state = agent.with_cache(agent.initial_state(rows))
    policy = agent.distribution
    for parts, action, reward, reset in steps(agent, rows, count):
        seen = [part[:, None] for part in parts]
        words = None
        if agent.instruction is not None:
            words = seen.pop()
        observation: Any = tuple(seen)
        if not has_parts(agent.made_for.observation_shape):
            (observation,) = seen
        if words is not None:
            observation = Observation(observation, words)
        with torch.no_grad():
            output = agent(observation, action[:, None], reward[:, None], reset[:, None], state)
        state = output.state
        parameters = output.policy_parameters[:, 0]
        yield parameters, policy.effect(policy.mode(parameters)), output.value[:, 0]


@pytest.mark.parametrize("core", [*CORES, *CUSTOM])
def test_the_step_with_an_explicit_state_acts_as_the_agent_does(core: str) -> None:
    """Over several segments, with resets."""
    agent = make_agent((CORES | CUSTOM)[core], skip=True)
    step = ActingStep(agent)
    state = step.initial_state(3)
    for given, expected in zip(steps(agent, 3, 50), play(agent, 3, 50), strict=True):
        expected_parameters, expected_action, expected_value = expected
        with torch.no_grad():
            parameters, action, value, *state = step(*given, tuple(state))
        torch.testing.assert_close(parameters, expected_parameters, rtol=0, atol=1e-4)
        assert torch.equal(action, expected_action)
        torch.testing.assert_close(value, expected_value, rtol=0, atol=1e-4)

    # The offset is one number; all others have rows.
    shapes = [tuple(part.shape[1:]) for part in state if part.ndim > 0]
    described = [each.shape for each in step.state_tensors if each.name != "offset"]
    assert shapes == described


def test_the_state_is_described() -> None:
    said = describe(ActingStep(make_agent(CORES["compressive"])), {"task": "any"})
    names = [each["name"] for each in said["state"]]
    assert names == ["memory_0", "memory_1", "compressed_0", "compressed_1", "age", "offset", "inputs", "resets"]
    assert said["state"][0]["shape"] == (4, SIZE)
    assert said["task"] == "any"
    assert said["policy"] == {"kind": "Categorical", "parameters": 4, "columns": [{"logits": [0, 4]}]}
    assert said["last_action"] == {"shape": [], "at an episode's start": -1}


FEW = [
    ("gru", VECTOR, 4, 0),
]
MORE = [
    ("gru", (IMAGE, VECTOR), (Choice(2), Numbers((True, False))), 0),
    ("clock", IMAGE, 4, 9),
    *((name, VECTOR, 4, 0) for name in CORES if name != "gru"),
    ("compressive", IMAGE, 4, 0),
    ("gru", (IMAGE, VECTOR), 4, 9),
]
"""A core is written in 8 to 19 seconds."""


@needs_onnx
@pytest.mark.parametrize(
    ("core", "shape", "actions", "vocabulary"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=str,
)
def test_onnx_acts_as_the_agent_does(core: str, shape: Any, actions: Any, vocabulary: int, tmp_path: Path) -> None:
    """With one, three and many rows, by onnxruntime and numpy alone; the state begins as the file says."""
    import onnxruntime

    agent = make_agent(CORES[core], shape, actions, vocabulary)
    write_onnx(ActingStep(agent, WORDS), tmp_path / "agent.onnx", {})
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    said = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    names = [each.name for each in session.get_inputs()]
    for rows in (1, 3, 17):
        state = {}
        for each in said["state"]:
            size = () if each["name"] == "offset" else (rows, *each["shape"])
            state[each["name"]] = np.full(size, each["initial"], each["dtype"])
        for given, expected in zip(steps(agent, rows, 20), play(agent, rows, 20), strict=True):
            expected_parameters, expected_action, expected_value = expected
            parts, last_action, last_reward, reset = given

            # The state's tensors come last among the inputs.
            values = [part.numpy() for part in (*parts, last_action, last_reward, reset)]
            feed = dict(zip(names, values)) | state
            parameters, action, value, *after = session.run(None, {name: feed[name] for name in names})
            state = dict(zip(state, after, strict=True))
            np.testing.assert_allclose(parameters, expected_parameters, rtol=0, atol=1e-4)
            np.testing.assert_allclose(action, expected_action, rtol=0, atol=1e-4)
            np.testing.assert_allclose(value, expected_value, rtol=0, atol=1e-4)


@needs_onnx
def test_values_of_several_tasks_are_in_columns(tmp_path: Path) -> None:
    """One for each task of PopArt: the file can be read, and has them."""
    torch.manual_seed(0)
    config = AgentConfig(torso="small", torso_size=16, core=CORES["gru"])
    step = ActingStep(Agent(config, VECTOR, 4, popart_tasks=2).eval())
    path = tmp_path / "agent.onnx"
    write_onnx(step, path, {})

    from onnxruntime import InferenceSession

    session = InferenceSession(path)
    (value,) = [each for each in session.get_outputs() if each.name == "value"]
    assert value.shape == ["rows", 2]


def test_instructions_are_a_part_of_what_is_seen() -> None:
    agent = make_agent(CORES["gru"], IMAGE, vocabulary=9)
    said = describe(ActingStep(agent, WORDS), {})
    assert [part["name"] for part in said["observation"]] == ["observation", "instruction"]
    assert said["observation"][1] == {"name": "instruction", "shape": [WORDS], "dtype": "int64"}


def test_a_program_of_torch_acts_as_the_agent_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = make_agent(CORES["compressive"])
    with caplog.at_level(logging.WARNING):
        write_program(ActingStep(agent), tmp_path / "agent.pt2", {"task": "any"})
    assert not caplog.records, "nothing of a temporary name"
    extra = {KEY: ""}
    program = torch.export.load(tmp_path / "agent.pt2", extra_files=extra).module()
    assert extra[KEY] == json.dumps(describe(ActingStep(agent), {"task": "any"}))
    state = tuple(ActingStep(agent).initial_state(5))
    for given, expected in zip(steps(agent, 5, 10), play(agent, 5, 10), strict=True):
        expected_parameters, expected_action, _ = expected
        parameters, action, _, *after = program(*given, state)
        state = tuple(after)
        torch.testing.assert_close(parameters, expected_parameters, rtol=0, atol=1e-4)
        assert torch.equal(action, expected_action)


def test_only_the_exporter_is_silenced() -> None:
    before = logging.root.manager.disable
    with _quiet():
        assert not logging.getLogger("any").isEnabledFor(logging.WARNING)
    assert logging.root.manager.disable == before


def test_without_the_extra_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^writing ONNX needs onnx and onnxscript: pip install -e '\.\[onnx\]'$"):
        write_onnx(ActingStep(make_agent(CORES["gru"])), tmp_path / "agent.onnx", {})
