"""Recordings repeat what was played, and trace every key slot to the steps of a literal memory."""

import base64
import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from actors import Actor
from actors.evaluation import play_episodes
from actors.recorder import RENDERED, record_episodes
from actors.recording import Compressed, Recording
from agent import Agent, AgentConfig
from agent.core import CompressiveTransformerConfig, CoreConfig, LSTMConfig, RoutingTransformerConfig, leaves
from agent.encoders import MIDDLE, UNIT, Reconstruction
from envs import EnvironmentFailed, drawing, make_vector
from envs.rooms import RoomsVectorEnv, oracle_actions
from reports.compression import what_is_kept
from reports.episode import page_data
from reports.video import film
from reports.views import BACKGROUND, BARS, WIDTH, bars, looks, views, what_is_seen

ENV = "rooms:small,episode_frames=100"
STEPS = 25
"""Of each episode: a step has four frames."""
SIZES: dict[str, Any] = {
    "segment_size": 4,
    "memory_size": (8, 2),
    "compressed_size": (3, 4),
    "compression_rate": (2, 4),
}


def make_actor(core: CoreConfig, env: str = ENV) -> Actor:
    """One environment, and an agent that is new and always the same."""
    torch.manual_seed(0)
    envs = make_vector(env, 1)
    shape = envs.single_observation_space.shape
    agent = Agent(AgentConfig(torso="small", torso_size=8, core=core), shape, int(envs.single_action_space.n))
    return Actor(envs, agent, actor_id=0, seed=3)


def compressive(**changes: object) -> CompressiveTransformerConfig:
    """Two layers whose memories have different sizes."""
    return CompressiveTransformerConfig(8, 2, 2, 8, **{**SIZES, **changes})


def in_choice_room(recording: Recording) -> NDArray[np.bool_]:
    """Of each step whether it is in room 1, that of choices."""
    assert recording.poses is not None
    return recording.poses[:, 3] == 1


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    """Three episodes, one after the other."""
    return record_episodes(make_actor(compressive()), 3)


def test_a_recording_repeats_observations_and_rewards(recordings: list[Recording]) -> None:
    """An actor in the same environment takes the recorded actions."""
    actor = make_actor(compressive())
    for recording in recordings:
        assert recording.observations.shape == (STEPS, 24, 32, 3)
        assert recording.action_names[0] == "forward"
        assert recording.fps == 15
        for step in range(STEPS):
            np.testing.assert_array_equal(recording.observations[step], actor.env_output.observation[0])
            np.testing.assert_array_equal(recording.poses[step], actor.envs.poses()[0])
            assert recording.situations[step] == actor.envs.situations()[0]
            ended = actor.step(torch.tensor([recording.actions[step]]))
            assert recording.rewards[step] == actor.env_output.reward[0]

        # The episode has ended with the last of these steps.
        (last,) = recording.last_observation
        np.testing.assert_array_equal(last, actor.env_output.observation[0])
        assert recording.terminated
        (episode,) = ended
        assert episode.score == recording.episode.score == recording.rewards.sum()
        np.testing.assert_allclose(recording.returns + recording.rewards, recording.rewards.cumsum())
        actor.step(torch.tensor([0]))  # which only resets


@pytest.mark.parametrize("play", [play_episodes, record_episodes])
def test_endless_episodes_are_named_with_their_last_action(play: Any) -> None:
    assert len(play(make_actor(compressive()), 1, max_steps=STEPS)) == 1
    message = rf"episodes of at most {STEPS - 1} steps \(max-episode-steps\), .* its last action was \d"
    with pytest.raises(EnvironmentFailed, match=message):
        play(make_actor(compressive()), 1, max_steps=STEPS - 1)


@pytest.mark.parametrize("rate", [1, 2, 4])
def test_compressed_slots_are_recorded_with_their_steps(rate: int) -> None:
    """The decoder is linear: the mean of inputs is decoded to the mean of their reconstructions.

    Slots that hold steps of the episode before are left out. With a rate of 4 the second episode, which begins two
    steps into a segment, has such a slot.
    """
    torch.manual_seed(0)
    core = compressive(compression="mean", compression_rate=rate)
    config = AgentConfig("small", 8, core, reconstruction_cost=1.0)
    actor = Actor(make_vector(ENV, 1), Agent(config, (24, 32, 3), 9), actor_id=0, seed=3)
    decoder = actor.agent.reconstruction.decoder
    for recording in record_episodes(actor, 2):
        assert {layer.rate for layer in recording.attention} == {rate}
        slots, steps, inputs = recording.compressed

        # Each slot holds `rate` successive steps, which no other slot holds.
        assert steps.min() >= 0
        assert (np.diff(steps) == 1).all()
        first_steps = steps[:, 0]
        assert 3 <= len(slots) == len(np.unique(first_steps))
        assert (np.diff(first_steps) >= rate).all()

        np.testing.assert_allclose(inputs.mean(axis=1), slots, atol=1e-5)
        with torch.no_grad():
            decoded = decoder(torch.from_numpy(slots))
        pictures = decoded.unflatten(1, (3, 6, 8)).permute(0, 2, 3, 1) * UNIT + MIDDLE
        means = recording.reconstructions[steps].mean(axis=1)
        np.testing.assert_allclose(pictures, means, atol=0.51)  # reconstructions are rounded
    assert record_episodes(make_actor(LSTMConfig(8)), 1)[0].compressed is None


@pytest.mark.parametrize("core", [compressive(), pytest.param(LSTMConfig(8), marks=pytest.mark.slow)])
def test_with_the_same_views_an_agent_would_not_do_otherwise(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counterfactual views are replaced by those that were seen. Later episodes begin within a segment."""
    actor = make_actor(core, "rooms:small-recall,episode_frames=600")
    for weights in actor.agent.policy.parameters():
        weights.data.mul_(100)  # a new policy is nearly uniform, and would hide a difference
    counterfactuals = actor.envs.counterfactuals

    def same(states: Any) -> list[tuple[Any, Any]]:
        views = np.concatenate([actor.envs._slow.set_state(state) for state in states])
        return [(begin, views[: len(other)]) for begin, other in counterfactuals(states)]

    monkeypatch.setattr(actor.envs, "counterfactuals", same, raising=False)
    for recording in record_episodes(actor, 3):
        taken = recording.probabilities[np.arange(len(recording.actions)), recording.actions]
        known = np.isfinite(recording.counterfactual_probabilities)
        assert known.any()
        assert known.tolist() == in_choice_room(recording).tolist()
        np.testing.assert_allclose(recording.counterfactual_probabilities[known], taken[known], rtol=1e-3)
        assert (recording.counterfactual_distances[known] == 0).all(), "no view differs"
        assert np.isnan(recording.counterfactual_distances[~known]).all()


@pytest.mark.parametrize("rounds", ["", pytest.param(",examples=2,redraw_match=True", marks=pytest.mark.slow)])
def test_a_supposed_example_brings_the_rewards_that_the_agent_is_given(
    rounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counterfactual steps end with the choice and its reward. Two choices in one room count as two rooms."""
    actor = make_actor(LSTMConfig(8), f"rooms:small,episode_frames=900{rounds}")
    act = actor.act
    set_state = RoomsVectorEnv.set_state
    supposed: list[dict[str, Any]] = []  # the states of counterfactual steps
    given: list[Tensor] = []  # the rewards that the agent was given with their observations

    def play(**options: Any) -> tuple[Tensor, Any]:
        """The oracle's actions, but for each third choice, which is wrong."""
        envs = actor.envs
        state = envs.state
        is_wrong = (state.correct + state.wrong) % 3 == 1
        sides = np.where(is_wrong, 1 - state.match_side, state.match_side)
        supposing = SimpleNamespace(state=state._replace(match_side=sides), level=envs.level, config=envs.config)
        _, output = act(**options)
        return torch.from_numpy(oracle_actions(supposing)), output

    def remember_states(envs: Any, state: Any) -> Any:
        if envs.num_envs > 1:
            supposed.append(state)
        return set_state(envs, state)

    def remember_rewards(agent: Agent, inputs: Any) -> None:
        _, _, rewards, *_ = inputs
        if rewards.shape[1] > 1:
            given.append(rewards)

    monkeypatch.setattr(RoomsVectorEnv, "set_state", remember_states)
    monkeypatch.setattr(actor, "act", play)
    actor.agent.register_forward_pre_hook(remember_rewards)
    (recording,) = record_episodes(actor, 1)
    choices = np.flatnonzero(recording.choices)
    assert len(choices) > 6
    assert set(recording.choices) == {-1, 0, 1}
    assert len(given) == len(supposed) >= len(choices)

    # From each supposed state the environment itself gives the same reward.
    one = RoomsVectorEnv(1, actor.envs.config)
    for (rewards,), states in zip(given, supposed):
        for step, action in enumerate(recording.actions[: len(rewards) - 1]):
            one.set_state({name: array[step : step + 1] for name, array in states.items()})
            _, reward, *_ = one.step(np.array([action]))
            assert reward == rewards[step + 1]

    # Each choice has a room of its own, from the step at which it was entered to the choice.
    entered = recording.room_entries
    lengths = [len(rewards) for (rewards,) in given]
    inside = in_choice_room(recording)
    for choice in choices:
        assert choice + 1 in lengths
        assert np.isfinite(recording.counterfactual_probabilities[choice])
        if choice + 1 < len(entered) and inside[choice + 1]:
            assert entered[choice + 1] in (-1, choice + 1), "the reward has come, or the next choice"
        room = slice(entered[choice], choice + 1)
        assert inside[room].all()
        assert (entered[room] == entered[choice]).all()
        assert not recording.choices[room][:-1].any(), "one choice"
    assert (np.isnan(recording.counterfactual_probabilities) == (entered < 0)).all()


def with_slots(
    recordings: list[Recording], informative: bool = True, views: tuple[int, int, int] = (2, 3, 3), count: int = 40
) -> list[Recording]:
    """Recordings with `count` slots each, of a view that repeats for three steps.

    Inputs are the pixels of the views, of this height, width and channels. So are slots if they are informative, and
    otherwise noise.
    """
    rng = np.random.default_rng(0)
    found = []
    for recording in recordings:
        pictures = rng.integers(0, 256, (count, *views)).astype(np.uint8)
        steps = np.arange(3 * count).reshape(count, 3)
        pixels = pictures.reshape(count, -1) / 255.0
        slots = pixels if informative else rng.standard_normal(pixels.shape)
        compressed = Compressed(slots, steps, pixels[:, None].repeat(3, axis=1))
        reconstructions = pictures.repeat(3, axis=0)
        found.append(replace(recording, compressed=compressed, reconstructions=reconstructions, situations=None))
    return found


def percent(text: str) -> int:
    """The number of a text such as "95 %"."""
    return int(text.removesuffix(" %"))


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_reads_what_compressed_slots_hold(recordings: list[Recording], informative: bool) -> None:
    kept = what_is_kept(with_slots(recordings[:2], informative))
    assert kept["names"] is None
    views = kept["views"]
    assert (views["slots"], views["rate"], views["thing"]) == (80, 3, "")
    assert len(views["rows"]) == 3

    for row in views["rows"]:
        _, from_slots, *from_controls = row
        assert min(percent(cell["text"]) for cell in from_controls) > 95
        if informative:
            assert percent(from_slots["text"]) > 95
        else:
            assert percent(from_slots["text"]) < 5

    headline, details, *_ = kept["says"]
    if informative:
        assert headline == "Compressed memory keeps the views."
        assert details.startswith("Compressed memory keeps")
    else:
        assert headline == "Compressed memory loses most of what a linear probe can read of the views."
        assert details.startswith("Compressed memory loses 100 % of")


def test_a_probe_reads_gray_views(recordings: list[Recording]) -> None:
    assert what_is_kept(with_slots(recordings[:2], views=(2, 3, 1))) is not None


def test_the_picture_of_a_slot_is_not_black_if_others_are() -> None:
    """Most slots are of a wait in the dark."""
    played = record_episodes(make_actor(compressive()), 2)
    dark = []
    for recording in with_slots(played):
        pictures = recording.reconstructions.copy()
        pictures[: 3 * 36] = 0
        dark.append(replace(recording, reconstructions=pictures))
    kept = what_is_kept(dark)
    assert kept is not None
    _, _, encoded = kept["views"]["picture"].partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    shown = np.asarray(image.convert("RGB"))
    above = shown[: len(shown) // 2]  # as it was; below is what the probe reads
    assert above.max() > 0


THINGS = ("light blue cone", "red cone", "red cube")
EPISODES = 24
"""Of each thing a third."""


def with_things(recording: Recording, informative: bool) -> list[Recording]:
    """Episodes with nine slots of two steps each, whose inputs say which thing there is: slots as well, or noise.

    For 13 steps the thing is seen. Then it is only known for three steps, and in the last two there are others as well.
    """
    rng = np.random.default_rng(0)
    played = []
    for episode in range(EPISODES):
        kind = episode % 3
        thing = THINGS[kind]
        other = THINGS[kind - 1]
        seen: Any = {"example": (f"{thing}, left", 0.0, 1.0)}
        known: Any = {"example": thing}  # without a place, which would follow a comma
        choosing = known | {"to take": f"{other}, left", "to leave": f"{thing}, right"}
        situations = (*[seen] * 13, *[known] * 3, *[choosing] * 2)

        inputs = rng.standard_normal((9, 2, 8))
        inputs[..., :3] = 9 * np.eye(3)[kind]
        slots = inputs.mean(axis=1) if informative else rng.standard_normal((9, 8))
        compressed = Compressed(slots, np.arange(18).reshape(9, 2), inputs)
        played.append(replace(recording, compressed=compressed, situations=situations, poses=None))
    return played


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_names_what_compressed_slots_hold(recordings: list[Recording], informative: bool) -> None:
    """Slots count while one thing is seen: six of each episode, of 12 of the first 13 steps."""
    kept = what_is_kept(with_things(recordings[0], informative))
    assert kept["views"] is None
    names = kept["names"]
    assert (names["slots"], names["episodes"]) == (EPISODES * 6, EPISODES)

    rows = names["rows"]
    assert [row[0]["small"] for row in rows] == [", ".join(THINGS), "light blue, red", "cone, cube"]
    by_chance = [row[-1] for row in rows]
    assert by_chance == ["33 %", "67 %", "67 %"]
    controls = {cell["text"] for row in rows for cell in row[2:4]}
    assert controls == {"100 %"}

    headline, details, *_ = kept["says"]
    name_from_slots = percent(rows[0][1]["text"])
    if informative:
        assert name_from_slots == 100
        assert headline == "Compressed memory keeps the name, the color and the shape."
        assert details.startswith("Compressed memory keeps the name")
    else:
        assert name_from_slots <= 50
        assert details.startswith("Compressed memory loses ")


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_counts_slots_while_the_thing_is_in_view(recordings: list[Recording], informative: bool) -> None:
    """In a view of 90 degrees it is in the first nine steps, which four whole slots hold."""
    plan = recordings[0].floor_plan | {"view": 90.0}
    poses = np.array([[-1.0, 1.0, 0.0, 0.0]] * 9 + [[1.0, 1.0, 0.0, 0.0]] * 9)
    played = [replace(each, floor_plan=plan, poses=poses) for each in with_things(recordings[0], informative)]
    assert what_is_kept(played)["names"]["slots"] == EPISODES * 4


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_of_few_episodes_leaves_out_what_it_cannot_tell(recordings: list[Recording], informative: bool) -> None:
    few = what_is_kept(with_things(recordings[0], informative)[:12])
    why = " cannot be told: to tell 3 answers apart takes 18 episodes (--episodes), not 12."
    assert sum(said.endswith(why) for said in few["says"]) == 1
    assert "Too few episodes were played to tell whether compressed memory keeps the" in few["says"][0]
    assert [row[0]["text"] for row in few["names"]["rows"]] == ["color", "shape"]


def test_without_enough_to_fit_a_probe_nothing_is_said(recordings: list[Recording]) -> None:
    first, second = with_slots(recordings[:2])
    assert what_is_kept([first, second]) is not None
    assert what_is_kept([first]) is None, "one episode"
    assert what_is_kept(with_slots(recordings[:2], count=30)) is None, "too few slots"

    constant = [replace(each, reconstructions=np.zeros_like(each.reconstructions)) for each in (first, second)]
    assert what_is_kept(constant) is None, "all views are the same"

    slots, steps, inputs = second.compressed
    empty = replace(second, compressed=Compressed(slots[:0], steps[:0], inputs[:0]))
    assert what_is_kept([first, empty]) is None, "one of two episodes has no slots"

    nothing = [replace(each, compressed=None) for each in (first, second)]
    assert what_is_kept(nothing) is None, "nothing was compressed"


def in_episode(first: int, last: int, begin: int) -> tuple[int, int]:
    """(first, last) step counted from the episode's begin; -1 if all are before it."""
    if last < begin:
        return -1, -1
    return max(first - begin, 0), last - begin


def literal_slots(sizes: tuple[int, int, int], rate: int, episodes: int) -> list[list[tuple[int, int]]]:
    """(first, last) step of every slot before each step, by moving steps from list to list; -1 where there is nothing.

    `sizes` are those of compressed memory, memory and segment.
    """
    compressed_size, memory_size, segment_size = sizes
    nothing = (-(10**6), -(10**6))
    compressed = [nothing] * compressed_size
    memory = [nothing] * memory_size
    segment: list[tuple[int, int]] = []
    shown = []
    now = 0  # steps of all episodes
    for _ in range(episodes):
        begin = now
        for step in range(STEPS + 1):
            if step < STEPS:  # the last one only resets
                present = [(now, now)]
                to_come = [nothing] * (segment_size - len(segment) - 1)
                slots = compressed + memory + segment + present + to_come
                shown.append([in_episode(first, last, begin) for first, last in slots])
            segment.append((now, now))
            now += 1

            # A whole segment moves into memory, and the oldest steps of memory are compressed.
            if len(segment) == segment_size:
                everything = memory + segment
                evicted = everything[:segment_size]
                memory = everything[segment_size:]
                segment = []
                for start in range(0, segment_size, rate):
                    group = evicted[start : start + rate]
                    first, _ = group[0]
                    _, last = group[-1]
                    compressed.append((first, last))
                compressed = compressed[-compressed_size:]
    return shown


def test_slots_trace_to_the_steps_of_a_literal_memory(recordings: list[Recording]) -> None:
    for layer, rate in enumerate(SIZES["compression_rate"]):
        sizes = (SIZES["compressed_size"][layer], SIZES["memory_size"][layer], SIZES["segment_size"])
        found = np.concatenate([recording.attention[layer].steps for recording in recordings])
        assert recordings[0].attention[layer].sizes == sizes
        np.testing.assert_array_equal(found, literal_slots(sizes, rate, len(recordings)))


def test_attention_sums_to_1_over_valid_slots(recordings: list[Recording]) -> None:
    for recording in recordings:
        for index, layer in enumerate(recording.attention):
            assert layer.weights.shape == (STEPS, 2, sum(layer.sizes))
            np.testing.assert_allclose(layer.weights.sum(axis=2), 1, atol=1e-5)
            present = np.broadcast_to(layer.steps[:, None, :, 0] >= 0, layer.weights.shape)
            np.testing.assert_array_equal(layer.weights > 0, present)
            kinds = np.split(layer.weights, np.cumsum(layer.sizes)[:-1], axis=2)
            by_kind = np.stack([kind.sum(axis=2) for kind in kinds], axis=-1)
            np.testing.assert_allclose(recording.attention_by_kind[:, index], by_kind, atol=1e-6)


def test_attention_by_step_shares_a_slot_among_its_steps(recordings: list[Recording]) -> None:
    for recording in recordings:
        for layer in recording.attention:
            by_step = layer.by_step()
            np.testing.assert_allclose(by_step.sum(axis=1), 1, atol=1e-5)
            assert np.abs(np.triu(by_step, 1)).max() < 1e-9, "nothing of the future"

            # The first compressed slot that is in use at the last step.
            compressed_steps = layer.steps[-1, : layer.sizes[0]]
            slot = int(np.flatnonzero(compressed_steps[:, 0] >= 0)[0])
            first, last = compressed_steps[slot]
            share = layer.weights[-1, :, slot].mean() / (last - first + 1)
            assert by_step[-1, first : last + 1] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("elements", [1, 3 * STEPS, 10**9])
def test_the_attention_of_long_episodes_is_computed_in_parts(
    elements: int, recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.recording.ELEMENTS_AT_ONCE", elements)
    for layer in recordings[0].attention:
        np.testing.assert_array_equal(np.stack([*layer.rows_by_step()]), layer.by_step())


@pytest.mark.parametrize("act", [Actor.unroll, play_episodes, record_episodes])
def test_acting_builds_no_graph(act: Any) -> None:
    actor = make_actor(compressive())
    with_cache = actor.agent.core.with_cache
    cached: list[Any] = []

    def remember(state: Any) -> Any:
        cached.append(with_cache(state))
        return cached[-1]

    actor.agent.core.with_cache = remember  # type: ignore[method-assign]
    act(actor, 4)
    assert cached
    assert not any(leaf.requires_grad for leaf in leaves(cached[0].cache))


@pytest.mark.parametrize("name", ["poses", "situations", "between"])
def test_what_only_recordings_ask_for_is_guarded(name: str) -> None:
    """An error in one of the methods that recordings call is said to be the environment's."""
    actor = make_actor(LSTMConfig(8))
    setattr(actor.envs, name, lambda *_: {}[name])
    with pytest.raises(EnvironmentFailed, match=f"failed in {name}: KeyError"):
        record_episodes(actor, 1)


@pytest.mark.parametrize("kind", ["compressed", "routed"])
def test_most_used_and_routed_memories_trace_to_one_step_each(kind: str) -> None:
    cores = {
        "compressed": compressive(compression="most-used"),
        "routed": RoutingTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=(8, 2), window=2, clusters=1),
    }
    rings = {"compressed": None, "routed": (1, 1, 2)}
    (recording,) = record_episodes(make_actor(cores[kind]), 1)
    assert recording.slot_kinds == (kind, "memory", "segment")
    assert [layer.rings for layer in recording.attention] == [rings[kind], rings[kind]]
    for layer in recording.attention:
        first = layer.steps[..., 0]
        last = layer.steps[..., 1]
        np.testing.assert_array_equal(first, last)

        of_kind = slice(layer.sizes[0])
        present = first[-1, of_kind] >= 0
        assert present.any()
        assert (present == (layer.weights[-1, 0, of_kind] > 0)).all()


def test_vectors_are_shown_as_bars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (recording,) = record_episodes(make_actor(LSTMConfig(8), "diagnostic:tmaze,length=3"), 1)
    assert recording.observations.ndim == 2
    assert recording.attention == ()

    # There is nothing of what only images or rooms have.
    assert recording.poses is None
    assert recording.situations is None
    assert recording.renderings is None
    assert recording.views_between is None
    assert recording.reconstructions is None

    assert views(recording).shape == (len(recording.actions), BARS, WIDTH, 3)
    assert recording.action_names == ("forward", "left", "right")
    named = "in the episode: sign left, sign right, junction, from left to right."
    assert what_is_seen(recording).startswith("The vector")
    assert what_is_seen(recording).endswith(named)
    assert what_is_seen(replace(recording, element_names=())).endswith("in the episode.")
    long = replace(recording, observations=np.ones((3, 70_000)), element_names=())
    assert what_is_seen(long).endswith("in the episode, the largest of 15 neighbors in each bar.")

    monkeypatch.chdir(tmp_path)
    film([recording], Path("1:2.mp4"))  # "1:" is no protocol
    assert Path("1:2.mp4").stat().st_size > 1000


def test_bars_have_the_height_of_their_elements() -> None:
    """The largest value of each element has the height of half of the picture, above or below the line of 0."""
    vectors = np.array([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0]])
    within_bars = [3, 13, 23]  # columns of a picture that is 30 wide
    lit = bars(vectors, 30)[:, :, within_bars, 0] > 20
    first, second = lit
    assert first.sum(axis=0).tolist() == [BARS // 2 + 1, BARS // 2 + 1, 1]  # each has the line of 0
    assert first[: BARS // 2, 0].all()
    assert first[BARS // 2 :, 1].all()
    assert second.sum(axis=0).tolist() == [BARS // 4 + 1, BARS // 4 + 1, 1]

    # Three bars of ten columns leave two of 32.
    beside = bars(np.ones((1, 3)), 32)[0, :, 30:]
    assert (beside == BACKGROUND).all()


def test_bars_without_negative_values_have_the_whole_height() -> None:
    lit = bars(np.array([[1.0], [0.5]]), 30)[:, :, 3, 0] > 20
    assert lit.sum(axis=1).tolist() == [BARS, BARS // 2 + 1]


@pytest.mark.parametrize(("size", "width"), [(76, 300), (300, 300), (980, 300), (5000, 300), (70_000, 300), (4000, 3)])
def test_bars_that_do_not_fit_are_in_rows(size: int, width: int) -> None:
    """However long a vector is, its picture is no higher, and each of its elements is seen."""
    one_hot = np.zeros((3, size), np.float32)
    one_hot[np.arange(3), [0, size // 2, size - 1]] = 1
    shown = bars(one_hot, width)
    assert shown.shape[2:] == (width, 3)
    assert BARS // 2 < shown.shape[1] < BARS + 3
    lit = (shown > 100).all(axis=3).sum(axis=(1, 2))
    assert (lit > 0).all()
    assert lit.max() == lit.min()


class Drawn(gymnasium.Env):
    """Shows a vector, and draws its step in the brightness of a picture larger than is kept."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self.step_number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        return np.full(2, self.step_number / 8, np.float32), 1.0, self.step_number == 5, False, {}

    def render(self) -> NDArray[np.uint8]:
        return np.full((400, 600, 3), 40 * self.step_number, np.uint8)


gymnasium.register("Drawn-v0", Drawn)


def test_an_environment_of_vectors_draws_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it draws is reduced to half of its 400 x 600 pixels, and shown above the bars."""
    spec = drawing("gym:Drawn-v0")
    assert spec == "gym:Drawn-v0,render_mode=rgb_array"
    assert drawing("gym:Drawn-v0,processes=2") == spec
    (recording,) = record_episodes(make_actor(LSTMConfig(8), spec), 1)
    assert recording.fps == 50
    assert recording.renderings.shape == (5, RENDERED, 300, 3)
    assert recording.renderings[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160]
    shown = views(recording)
    np.testing.assert_array_equal(shown[:, :RENDERED], recording.renderings)
    assert shown.shape == (5, RENDERED + BARS, 300, 3)

    # Without a pace it is shown at 15 pictures a second.
    for pace in (None, 0):
        monkeypatch.setitem(Drawn.metadata, "render_fps", pace)
        (recording,) = record_episodes(make_actor(LSTMConfig(8), spec), 1)
        assert recording.fps == 15

    # Other environments stay as they are: of images, without a picture, and without a mode of rendering.
    assert drawing(ENV) == ENV
    monkeypatch.setattr(Drawn, "render", lambda self: None)
    assert drawing("gym:Drawn-v0") == "gym:Drawn-v0"
    assert drawing("gym:Drawn-v0,processes=2") == "gym:Drawn-v0", "which knows the texts of what is observed, too"
    monkeypatch.setattr(Drawn, "__init__", lambda self: None)  # takes no render_mode
    assert drawing("gym:Drawn-v0") == "gym:Drawn-v0"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a variable does not tell whether there is a screen")
def test_pygame_looks_for_no_screen_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # which is restored
        monkeypatch.delenv(name)
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    drawing("gym:Drawn-v0")
    assert "SDL_VIDEODRIVER" not in os.environ
    monkeypatch.delenv("WAYLAND_DISPLAY")
    drawing("gym:Drawn-v0")
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_pictures_of_long_episodes_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Films and pages show no more than RENDERED_STEPS. A step of the rooms has four frames in detail."""
    for module in ("actors.recorder", "reports.views"):
        monkeypatch.setattr(f"{module}.RENDERED_STEPS", 7)
    for env, frames in ((ENV, 4), ("diagnostic:recall,delay=10", 1)):
        (recording,) = record_episodes(make_actor(compressive(), env), 1, in_detail=True)
        assert len(recording.actions) > 7
        film([recording], tmp_path / "a.mp4")
        with av.open(tmp_path / "a.mp4") as video:
            assert sum(1 for _ in video.decode(video=0)) == 7 * frames
        page = page_data([recording], "a", "compressive")
        assert page["note"] == f"The page shows the first 7 of {len(recording.actions)} steps, because of its size."
        assert len(page["episodes"][0]["actions"]) == 7


def test_the_view_is_redrawn_as_the_decoder_has_it() -> None:
    """A decoder that answers the mean pixels of an image, in the units of its loss, draws that image."""
    decoder = Reconstruction(8, (12, 16, 3))
    image = torch.randint(0, 256, (1, 12, 16, 3), dtype=torch.uint8)
    small = F.adaptive_avg_pool2d(image.permute(0, 3, 1, 2).double(), (6, 8))
    with torch.no_grad():
        decoder.decoder.weight.zero_()
        decoder.decoder.bias.copy_(((small - 127.5) / 63.75).flatten())
        drawn = decoder.picture(torch.zeros(1, 8))
    np.testing.assert_allclose(drawn, small.permute(0, 2, 3, 1), atol=0.51)
    assert decoder(torch.zeros(1, 8), image).total.item() == pytest.approx(0, abs=1e-6)


def test_looks_are_the_largest_weights_of_earlier_steps(recordings: list[Recording]) -> None:
    found = list(looks(recordings[0], 3))

    # At the last step: the weight of each earlier step outside of compressed memory, as a mean over layers and heads.
    last_step = STEPS - 1
    attention = recordings[0].attention
    expected = np.zeros(STEPS)
    for layer in attention:
        for slot, (first, last) in enumerate(layer.steps[last_step]):
            is_compressed = slot < layer.sizes[0]
            if first == last >= 0 and not is_compressed:
                expected[first] += layer.weights[last_step, :, slot].mean() / len(attention)
    exact = [look for look in found[last_step] if look.kind != "compressed"]
    assert exact
    for look in exact:
        assert look.weight == pytest.approx(expected[look.first], abs=1e-6)

    weights = [look.weight for look in found[last_step]]
    assert weights == sorted(weights, reverse=True)
    assert found[0] == []
    for step, earlier in enumerate(found):
        assert all(look.last < step for look in earlier)
