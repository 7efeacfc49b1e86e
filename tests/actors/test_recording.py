"""Recordings repeat what was played, and trace every key slot to the steps of a literal memory."""

import numpy as np
import pytest
import torch

from actors import Actor
from actors.evaluation import play_episodes
from actors.recording import Recording, record_episodes
from agent import Agent, AgentConfig
from agent.core import CompressiveTransformerConfig, CoreConfig, LSTMConfig, RoutingTransformerConfig, leaves
from envs import EnvironmentFailed, make_vector
from reports.video import film

ENV = "rooms:small,episode_frames=100"
STEPS = 25
SIZES = {"segment_size": 4, "memory_size": (8, 2), "compressed_size": (3, 4), "compression_rate": (2, 4)}


def make_actor(core: CoreConfig, env: str = ENV) -> Actor:
    torch.manual_seed(0)
    envs = make_vector(env, 1)
    shape = envs.single_observation_space.shape
    agent = Agent(AgentConfig(torso="small", torso_size=8, core=core), shape, int(envs.single_action_space.n))
    return Actor(envs, agent, actor_id=0, seed=3)


def compressive(**changes: object) -> CompressiveTransformerConfig:
    return CompressiveTransformerConfig(8, 2, 2, 8, **{**SIZES, **changes})


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return record_episodes(make_actor(compressive()), 3)


def test_a_recording_repeats_observations_and_rewards(recordings):
    actor = make_actor(compressive())
    for recording in recordings:
        assert recording.observations.shape == (STEPS, 24, 32, 3)
        assert recording.action_names[0] == "forward"
        assert recording.fps == 15
        for step in range(STEPS):
            np.testing.assert_array_equal(recording.observations[step], actor.env_output.observation[0])
            np.testing.assert_array_equal(recording.poses[step], actor.envs.poses()[0])
            (ended,) = actor.step(torch.tensor([recording.actions[step]])) or [None]
            assert recording.rewards[step] == actor.env_output.reward[0]
        assert ended is not None
        assert ended.score == recording.episode.score == recording.rewards.sum()
        np.testing.assert_allclose(recording.returns + recording.rewards, recording.rewards.cumsum())
        actor.step(torch.tensor([0]))  # which only resets


@pytest.mark.parametrize("play", [play_episodes, record_episodes])
def test_endless_episodes_are_named_with_their_last_action(play):
    assert len(play(make_actor(compressive()), 1, max_steps=STEPS)) == 1
    message = rf"episodes of at most {STEPS - 1} steps \(max-episode-steps\), .* its last action was \d"
    with pytest.raises(EnvironmentFailed, match=message):
        play(make_actor(compressive()), 1, max_steps=STEPS - 1)


def literal_slots(sizes: tuple[int, int, int], rate: int, episodes: int) -> list[list[tuple[int, int]]]:
    """(first, last) of every slot before each step, by moving steps from list to list; -1 where there is nothing."""
    n_s, n_m, n_cm = 4, sizes[1], sizes[0]
    nothing = -(10**6)
    compressed, memory, segment = [(nothing, nothing)] * n_cm, [(nothing, nothing)] * n_m, []
    shown, now = [], 0
    for _ in range(episodes):
        begin = now
        for step in range(STEPS + 1):  # the last one only resets
            if step < STEPS:
                slots = compressed + memory + segment + [(now, now)] + [(nothing, nothing)] * (n_s - len(segment) - 1)
                inside = [(max(first - begin, 0), last - begin) if last >= begin else (-1, -1) for first, last in slots]
                shown.append(inside)
            segment.append((now, now))
            now += 1
            if len(segment) == n_s:
                everything = memory + segment
                evicted, memory, segment = everything[:n_s], everything[n_s:], []
                groups = [evicted[i : i + rate] for i in range(0, n_s, rate)]
                compressed = (compressed + [(group[0][0], group[-1][1]) for group in groups])[-n_cm:]
    return shown


def test_slots_trace_to_the_steps_of_a_literal_memory(recordings):
    for layer, rate in enumerate(SIZES["compression_rate"]):
        sizes = (SIZES["compressed_size"][layer], SIZES["memory_size"][layer], 4)
        found = np.concatenate([recording.attention[layer].steps for recording in recordings])
        assert recordings[0].attention[layer].sizes == sizes
        np.testing.assert_array_equal(found, literal_slots(sizes, rate, len(recordings)))


def test_attention_sums_to_1_over_valid_slots(recordings):
    for recording in recordings:
        for index, layer in enumerate(recording.attention):
            assert layer.weights.shape == (STEPS, 2, sum(layer.sizes))
            np.testing.assert_allclose(layer.weights.sum(axis=2), 1, atol=1e-5)
            present = np.broadcast_to(layer.steps[:, None, :, 0] >= 0, layer.weights.shape)
            np.testing.assert_array_equal(layer.weights > 0, present)
            kinds = np.split(layer.weights, np.cumsum(layer.sizes)[:-1], axis=2)
            np.testing.assert_allclose(recording.mass[:, index], np.stack([k.sum(2) for k in kinds], -1), atol=1e-6)
            by_step = layer.by_step()
            np.testing.assert_allclose(by_step.sum(axis=1), 1, atol=1e-5)
            assert np.abs(np.triu(by_step, 1)).max() < 1e-9, "nothing of the future"
            slot = next(s for s in range(layer.sizes[0]) if layer.steps[-1, s, 0] >= 0)
            first, last = layer.steps[-1, slot]
            share = layer.weights[-1, :, slot].mean() / (last - first + 1)
            assert by_step[-1, first : last + 1] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("act", [Actor.unroll, play_episodes, record_episodes])
def test_acting_builds_no_graph(act):
    actor, cached = make_actor(compressive()), []
    with_cache = actor.agent.core.with_cache
    actor.agent.core.with_cache = lambda state: cached.append(with_cache(state)) or cached[-1]
    act(actor, 4)
    assert cached
    assert not any(leaf.requires_grad for leaf in leaves(cached[0].cache))


@pytest.mark.parametrize("kind", ["compressed", "routed"])
def test_most_used_and_routed_memories_trace_to_one_step_each(kind):
    routing = RoutingTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=(8, 2), window=2, clusters=1)
    core = routing if kind == "routed" else compressive(compression="most-used")
    (recording,) = record_episodes(make_actor(core), 1)
    assert recording.kinds == (kind, "memory", "segment")
    assert [layer.rings for layer in recording.attention] == 2 * [(1, 1, 2) if kind == "routed" else None]
    for layer in recording.attention:
        np.testing.assert_array_equal(layer.steps[..., 0], layer.steps[..., 1])
        present = layer.steps[-1, : layer.sizes[0], 0] >= 0
        assert present.any()
        assert (present == (layer.weights[-1, 0, : layer.sizes[0]] > 0)).all()


def test_recordings_without_attention_and_images(tmp_path):
    (recording,) = record_episodes(make_actor(LSTMConfig(8), "diagnostic:tmaze,length=3"), 1)
    assert (recording.attention, recording.poses, recording.observations.ndim) == ((), None, 2)
    with pytest.raises(ValueError, match="expected an image"):
        film([recording], tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())
