"""What memory caused: slots that cannot matter, a dependence that was put there, and cores that have no effects."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors import Actor
from actors.causes import STRETCH, Effects, effects
from actors.interface import read_interface
from actors.recorder import record_episodes
from actors.recording import Attention, Recording
from agent import Agent, AgentConfig
from agent.core import CompressiveTransformerConfig, CoreConfig, LSTMConfig, RoutingTransformerConfig
from envs import make_vector
from reports.episode import agreement, page_data
from tests.agent.tiny import normal
from tests.commands.pages import unpacked

ENV = "rooms:small,episode_frames=120"
SIZES: dict[str, Any] = {"segment_size": 4, "memory_size": 4}
COMPRESSIVE = CompressiveTransformerConfig(8, 2, 2, 8, **SIZES, compressed_size=4, compression_rate=2)
ROUTING = RoutingTransformerConfig(8, 2, 2, 8, **SIZES, window=2, clusters=2, groups=2)


def recorded(core: CoreConfig, with_effects: bool = True) -> Recording:
    """An episode of a new agent, which is not its first one: its memory is full when it begins."""
    torch.manual_seed(0)
    envs = make_vector(ENV, 2)
    shape = envs.single_observation_space.shape
    config = AgentConfig(torso="small", torso_size=8, core=core, skip=True)
    agent = Agent(config, shape, int(envs.single_action_space.n))
    agent.policy.weight.data.mul_(300)  # it begins nearly uniform
    _, recording = record_episodes(Actor(envs, agent, actor_id=0, seed=3), 2, with_effects=with_effects)
    return recording


@pytest.mark.parametrize("core", [COMPRESSIVE, ROUTING], ids=["compressive", "routing"])
def test_only_what_is_in_memory_has_an_effect(core: CoreConfig) -> None:
    recording = recorded(core)
    assert recording.effects is not None
    assert len(recording.effects) == len(recording.rewards)

    # At the first step nothing is in memory.
    first = recording.effects[0]
    assert not first.slots.any()
    assert not first.kinds.any()
    assert first.stretch.tolist() == [-1, -1]

    for step, found in enumerate(recording.effects):
        held = recording.attention[0].steps[step]
        is_unused = held[:, 0] < 0
        is_present = held[:, 1] >= step
        assert not found.slots[is_unused | is_present].any()
    for step, found in enumerate(recording.effects[1:], start=1):
        low, high = found.stretch
        assert 0 <= low <= high < step
        assert high - low < STRETCH
        assert np.isfinite(found.stretch_effect)

    # Other slots have effects, also those of the first kind, which hold the oldest steps.
    for layer in recording.attention:
        oldest = layer.steps[:, : layer.sizes[0], 0]
        assert (oldest >= 0).any()
    assert any(found.kinds[0] for found in recording.effects)
    of_slots = np.stack([found.slots for found in recording.effects])
    assert (of_slots != 0).mean() > 0.3


def steps_in_slots(agent: Agent, state: Any, step: int) -> NDArray[np.int64]:
    """(first, last) step that each slot of the only layer holds before this step; -1 for slots without one."""
    held: NDArray[np.int64] = (step - agent.core.slot_ages(0, state)[0]).numpy()
    held[held[:, 1] > step] = -1
    return held


@pytest.mark.parametrize(("skip", "possible"), [(False, None), (True, None), (True, [False, True, True])])
def test_effects_are_falls_of_the_log_odds(skip: bool, possible: list[bool] | None) -> None:
    """The literal formula, for an agent of one layer: log-odds with all slots, less those with some of them hidden."""
    mask = None if possible is None else torch.tensor(possible)
    torch.manual_seed(0)
    core = CompressiveTransformerConfig(8, 1, 2, 8, **SIZES, compressed_size=0)
    agent = Agent(AgentConfig(torso="small", torso_size=8, core=core, skip=skip), (3,), 3).eval()
    agent.policy.weight.data.mul_(30)  # several actions matter, so that log-odds are not linear in the logits
    with torch.no_grad():
        start = agent.initial_state(2)
        state = agent.core(normal(2, 6, 8).float(), torch.eye(2, 6, dtype=torch.bool), start).state
    held = steps_in_slots(agent, state, step=6)
    inputs = normal(8, seed=1).float()
    action = 2
    found = effects(agent, state, inputs, torch.tensor(action), (held,), mask)
    with torch.autocast("cpu", torch.bfloat16):  # as actors do; the core is too narrow to gain from it
        mixed = effects(agent, state, inputs, torch.tensor(action), (held,), mask)
    assert np.array_equal(mixed.slots, found.slots)

    def log_odds(hidden: list[int]) -> float:
        without = torch.zeros(2, 8, dtype=torch.bool)
        without[0, hidden] = True
        with torch.no_grad():
            features = agent.core(
                inputs.expand(2, 1, 8), torch.zeros(2, 1, dtype=torch.bool), state, hidden=[without]
            ).features
            if skip:
                features = features + inputs
            weights = agent.policy(features)[0, 0].double().exp()
            if mask is not None:
                weights = weights * mask
            probabilities = weights / weights.sum()
            return float(probabilities[action].logit())

    # The first six slots are memory, which has four, and the segment so far.
    full = log_odds([])
    for slot in range(6):
        assert found.slots[slot] == pytest.approx(full - log_odds([slot]), abs=1e-5)
    of_memory = full - log_odds([0, 1, 2, 3])
    of_segment = full - log_odds([4, 5])
    assert found.kinds == pytest.approx([0.0, of_memory, of_segment], abs=1e-5)

    # All six are fewer than a stretch, so that a stretch may begin at any of them and ends with the last.
    by_begin = [full - log_odds(list(range(begin, 6))) for begin in range(6)]
    assert found.stretch_effect == pytest.approx(max(by_begin), abs=1e-5)
    assert found.stretch.tolist() == [int(np.argmax(by_begin)), 5]


def test_a_dependence_that_was_put_there_is_found() -> None:
    """A question asks for the key of step 7, and the policy reads only the value of that key."""
    torch.manual_seed(0)
    core = CompressiveTransformerConfig(8, 1, 1, 8, segment_size=8, memory_size=16, compressed_size=0, norm="pre")
    agent = Agent(AgentConfig(torso="small", torso_size=8, core=core), (3,), 2).eval()
    signs = torch.tensor([1.0, -1.0])
    key = signs.repeat(4)
    question = signs.repeat_interleave(2).repeat(2)
    answer = signs.repeat_interleave(4)  # the three are at right angles, and have a mean of 0
    inputs = torch.randn(1, 20, 8)
    inputs[0, 7] = key

    # One layer of attention alone, whose queries, keys and values are these.
    layer = agent.core.layers[0]
    with torch.no_grad():
        for weight in (*layer.mlp.parameters(), *layer.attention.parameters()):
            weight.zero_()
        layer.attention.query.weight.copy_(torch.outer(key, question))
        layer.attention.key_value.weight[:8] = torch.eye(8)
        layer.attention.key_value.weight[8:] = torch.outer(answer, key) / 8
        layer.attention.output.weight.copy_(torch.eye(8))
        agent.policy.weight.copy_(torch.stack([answer, -answer]))
        state = agent.core(inputs, torch.zeros(1, 20, dtype=torch.bool), agent.initial_state(1)).state
    held = steps_in_slots(agent, state, step=20)
    found = effects(agent, state, question, torch.tensor(0), (held,))
    strongest = found.slots.argmax()
    assert held[strongest].tolist() == [7, 7]
    low, high = found.stretch
    assert low <= 7 <= high
    others = np.delete(np.abs(found.slots), strongest)
    assert found.slots.max() > 3 * others.max()


def test_memory_has_no_effect_where_one_action_is_possible() -> None:
    torch.manual_seed(0)
    envs = make_vector("gym:tests.envs.masked:Doors,is_forced=True", 1)
    seen = read_interface(envs)
    config = AgentConfig(torso="small", torso_size=8, core=COMPRESSIVE)
    agent = Agent(config, seen.observation_shape, seen.actions, mask_at=seen.mask_at)
    agent.policy.weight.data.mul_(300)
    (recording,) = record_episodes(Actor(envs, agent, actor_id=0, seed=3), 1, with_effects=True)
    assert recording.effects is not None
    for found in recording.effects:
        assert not found.slots.any()
        assert not found.kinds.any()


def test_effects_are_computed_if_asked_for_and_if_the_core_has_attention() -> None:
    assert recorded(LSTMConfig(8)).effects is None
    assert recorded(COMPRESSIVE, with_effects=False).effects is None
    assert agreement([recorded(LSTMConfig(8))]) is None


def test_agreement_counts_decisive_steps() -> None:
    """A step is decisive if the odds of its action would fall to a tenth. Attention to the step itself is left out.

    At step 1 both attention and effect name step 0. At step 2 attention names step 0, the effect step 1.
    """
    held = np.array([[[0, 0], [-1, -1], [-1, -1]], [[0, 0], [1, 1], [-1, -1]], [[0, 0], [1, 1], [2, 2]]])
    weights = np.array([[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.3, 0.1, 0.6]], np.float32)
    attention = Attention((0, 0, 3), weights[:, None], held)
    nothing = np.zeros(3)
    found = (
        Effects(nothing, nothing, np.array([-1, -1]), 0.0),
        Effects(nothing, nothing, np.array([0, 0]), 2.4),  # log 10 is 2.303
        Effects(nothing, nothing, np.array([1, 1]), 3.0),
    )
    recording = replace(recorded(COMPRESSIVE, with_effects=False), attention=(attention,), effects=found)
    assert agreement([recording]) == {"agree": 1, "of": 2, "steps": STRETCH}

    first, second, third = found
    less = (first, second._replace(stretch_effect=2.2), third)
    assert agreement([replace(recording, effects=less)]) == {"agree": 0, "of": 1, "steps": STRETCH}


def test_a_page_has_the_effects_in_thousandths() -> None:
    recording = recorded(COMPRESSIVE)
    assert recording.effects is not None
    (episode,) = page_data([recording], "title", "compressive")["episodes"]
    slots = np.stack([each.slots for each in recording.effects])
    found = unpacked(episode["effects"]["slots"], "<i2").reshape(slots.shape) / 1000
    np.testing.assert_allclose(found, slots, atol=6e-4)
    assert np.abs(slots).max() > 1e-3
    huge = tuple(each._replace(slots=each.slots + 99.0) for each in recording.effects)
    (episode,) = page_data([replace(recording, effects=huge)], "title", "compressive")["episodes"]
    assert (unpacked(episode["effects"]["slots"], "<i2") == 32_767).all(), "as large as it can say"
