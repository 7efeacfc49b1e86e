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
SIZES: dict[str, Any] = {
    "segment_size": 4,
    "memory_size": (8, 2),
    "compressed_size": (3, 4),
    "compression_rate": (2, 4),
}


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


def test_a_recording_repeats_observations_and_rewards(recordings: list[Recording]) -> None:
    actor = make_actor(compressive())
    for recording in recordings:
        assert recording.observations.shape == (STEPS, 24, 32, 3)
        assert recording.action_names[0] == "forward"
        assert recording.fps == 15
        for step in range(STEPS):
            np.testing.assert_array_equal(recording.observations[step], actor.env_output.observation[0])
            np.testing.assert_array_equal(recording.poses[step], actor.envs.poses()[0])
            assert recording.situations[step] == actor.envs.situations()[0]
            (ended,) = actor.step(torch.tensor([recording.actions[step]])) or [None]  # type: ignore[list-item]
            assert recording.rewards[step] == actor.env_output.reward[0]
        (last,) = recording.last_observation
        np.testing.assert_array_equal(last, actor.env_output.observation[0])
        assert recording.terminated
        assert ended is not None
        assert ended.score == recording.episode.score == recording.rewards.sum()
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
    """A mean of inputs is decoded to the mean of what they are decoded to; slots with earlier steps are left out.

    With a rate of 4 the second episode, which begins two steps into a segment, has such a slot.
    """
    torch.manual_seed(0)
    core = compressive(compression="mean", compression_rate=rate)
    config = AgentConfig("small", 8, core, reconstruction_cost=1.0)
    actor = Actor(make_vector(ENV, 1), Agent(config, (24, 32, 3), 9), actor_id=0, seed=3)
    decoder = actor.agent.reconstruction.decoder
    for recording in record_episodes(actor, 2):
        assert {layer.rate for layer in recording.attention} == {rate}
        slots, steps, inputs = recording.compressed
        assert steps.min() >= 0
        assert (np.diff(steps) == 1).all()
        assert 3 <= len(slots) == len(np.unique(steps[:, 0]))
        assert (np.diff(steps[:, 0]) >= rate).all()
        np.testing.assert_allclose(inputs.mean(axis=1), slots, atol=1e-5)
        with torch.no_grad():
            read = decoder(torch.from_numpy(slots)).unflatten(1, (3, 6, 8)).permute(0, 2, 3, 1) * UNIT + MIDDLE
        np.testing.assert_allclose(read, recording.reconstructions[steps].mean(axis=1), atol=0.51)
    assert record_episodes(make_actor(LSTMConfig(8)), 1)[0].compressed is None


@pytest.mark.parametrize("core", [compressive(), LSTMConfig(8)])
def test_with_the_same_views_an_agent_would_not_do_otherwise(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later episodes begin within a segment."""
    actor = make_actor(core, "rooms:small-recall,episode_frames=600")
    for weights in actor.agent.policy.parameters():
        weights.data.mul_(100)
    counterfactuals = actor.envs.counterfactuals

    def same(states: Any) -> list[tuple[Any, Any]]:
        views = np.concatenate([actor.envs._slow.set_state(state) for state in states])
        return [(begin, views[: len(other)]) for begin, other in counterfactuals(states)]

    monkeypatch.setattr(actor.envs, "counterfactuals", same, raising=False)
    for recording in record_episodes(actor, 3):
        taken = recording.probabilities[np.arange(len(recording.actions)), recording.actions]
        known = np.isfinite(recording.counterfactual_probabilities)
        assert known.any()
        assert known.tolist() == (recording.poses[:, 3] == 1).tolist()
        np.testing.assert_allclose(recording.counterfactual_probabilities[known], taken[known], rtol=1e-3)
        assert (recording.counterfactual_distances[known] == 0).all(), "no view differs"
        assert np.isnan(recording.counterfactual_distances[~known]).all()


@pytest.mark.parametrize("rounds", ["", ",examples=2,redraw_match=True"])
def test_a_supposed_example_brings_the_rewards_that_the_agent_is_given(
    rounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the choice, the last step of which is that of the choice; two choices in one room are two rooms."""
    actor = make_actor(LSTMConfig(8), f"rooms:small,episode_frames=900{rounds}")
    supposed, given, act = [], [], actor.act

    def play(**options: Any) -> tuple[Tensor, Any]:
        """The oracle's actions, but for each third choice, which is wrong."""
        state = actor.envs.state
        is_wrong = (state.correct + state.wrong) % 3 == 1
        sides = np.where(is_wrong, 1 - state.match_side, state.match_side)
        envs = actor.envs
        supposing = SimpleNamespace(state=state._replace(match_side=sides), level=envs.level, config=envs.config)
        return torch.from_numpy(oracle_actions(supposing)), act(**options)[1]

    def remember(envs: Any, state: Any) -> Any:
        if envs.num_envs > 1:
            supposed.append(state)
        return set_state(envs, state)

    set_state = RoomsVectorEnv.set_state
    monkeypatch.setattr(RoomsVectorEnv, "set_state", remember)
    monkeypatch.setattr(actor, "act", play)
    actor.agent.register_forward_pre_hook(lambda _, inputs: given.append(inputs[2]) if inputs[2].shape[1] > 1 else None)
    (recording,) = record_episodes(actor, 1)
    choices, entered = np.flatnonzero(recording.choices), recording.room_entries
    assert len(choices) > 6
    assert set(recording.choices) == {-1, 0, 1}
    assert len(given) == len(supposed) >= len(choices)
    one = RoomsVectorEnv(1, actor.envs.config)
    for (rewards,), states in zip(given, supposed):
        for step, action in enumerate(recording.actions[: len(rewards) - 1]):
            one.set_state({name: array[step : step + 1] for name, array in states.items()})
            assert one.step(np.array([action]))[1] == rewards[step + 1]
    lengths = [len(rewards) for (rewards,) in given]
    for choice in choices:
        assert choice + 1 in lengths
        assert np.isfinite(recording.counterfactual_probabilities[choice])
        if choice + 1 < len(entered) and recording.poses[choice + 1, 3] == 1:
            assert entered[choice + 1] in (-1, choice + 1), "the reward has come, or the next choice"
        room = slice(entered[choice], choice + 1)
        assert (recording.poses[room, 3] == 1).all()
        assert (entered[room] == entered[choice]).all()
        assert not recording.choices[room][:-1].any(), "one choice"
    assert (np.isnan(recording.counterfactual_probabilities) == (entered < 0)).all()


def with_slots(
    recordings: list[Recording], informative: bool = True, views: tuple[int, int, int] = (2, 3, 3), count: int = 40
) -> Any:
    """Recordings whose slots have all 18 numbers of a view that repeats three times, or noise; inputs are the views."""
    rng, found = np.random.default_rng(0), []
    for recording in recordings:
        drawn, steps = rng.integers(0, 256, (count, *views)).astype(np.uint8), np.arange(3 * count).reshape(count, 3)
        flat = drawn.reshape(count, -1) / 255.0
        slots = flat if informative else rng.standard_normal(flat.shape)
        compressed = Compressed(slots, steps, flat[:, None].repeat(3, axis=1))
        drawn = drawn.repeat(3, axis=0)
        found.append(replace(recording, compressed=compressed, reconstructions=drawn, situations=None))
    return found


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_reads_what_compressed_slots_hold(recordings: list[Recording], informative: bool) -> None:
    kept = what_is_kept(with_slots(recordings[:2], informative))
    views = kept["views"]
    assert (kept["names"], views["slots"], views["rate"], views["thing"], len(views["rows"])) == (None, 80, 3, "", 3)
    for row in views["rows"]:
        slot, *controls = (int(cell["text"].removesuffix(" %")) for cell in row[1:])
        assert slot > 95 if informative else slot < 5
        assert min(controls) > 95
    assert kept["says"][1].startswith(f"Compressed memory {'keeps' if informative else 'loses 100 % of'}")
    lost = "Compressed memory loses most of what a linear probe can read of the views."
    assert kept["says"][0] == ("Compressed memory keeps the views." if informative else lost)
    assert what_is_kept(with_slots(recordings[:2], views=(2, 3, 1))) is not None, "gray"


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
    source = kept["views"]["picture"]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB"))
    above = shown[: len(shown) // 2]  # as it was; below is what the probe reads
    assert above.max() > 0


@pytest.mark.parametrize("informative", [True, False])
def test_a_probe_names_what_compressed_slots_hold(recordings: list[Recording], informative: bool) -> None:
    """Slots count while one thing is there: not where it is only known (no comma), nor with another."""
    rng, things, played = np.random.default_rng(0), ["light blue cone", "red cone", "red cube"], []
    for episode in range(24):
        thing = things[episode % 3]
        inputs = rng.standard_normal((9, 2, 8))
        inputs[..., :3] = 9 * np.eye(3)[episode % 3]
        slots = inputs.mean(axis=1) if informative else rng.standard_normal((9, 8))
        both = {"to take": f"{things[episode % 3 - 1]}, left", "to leave": f"{thing}, right"}
        shown, known = {"example": (f"{thing}, left", 0.0, 1.0)}, {"example": thing}
        situations = [shown] * 13 + [known] * 3 + [known | both] * 2
        compressed = Compressed(slots, np.arange(18).reshape(9, 2), inputs)
        played.append(replace(recordings[0], compressed=compressed, situations=tuple(situations), poses=None))
    kept = what_is_kept(played)
    assert (kept["views"], kept["names"]["slots"], kept["names"]["episodes"]) == (None, 24 * 6, 24)
    rows = kept["names"]["rows"]
    assert [row[0]["small"] for row in rows] == [", ".join(things), "light blue, red", "cone, cube"]
    assert [row[-1] for row in rows] == ["33 %", "67 %", "67 %"]
    assert kept["says"][1].startswith(f"Compressed memory {'keeps the name' if informative else 'loses '}")
    if informative:
        assert kept["says"][0] == "Compressed memory keeps the name, the colour and the shape."
    assert (rows[0][1]["text"] == "100 %") == informative == (int(rows[0][1]["text"][:-2]) > 50)
    assert {cell["text"] for row in rows for cell in row[2:4]} == {"100 %"}
    plan = recordings[0].floor_plan | {"view": 90.0}
    poses = np.array([[-1.0, 1.0, 0.0, 0.0]] * 9 + [[1.0, 1.0, 0.0, 0.0]] * 9)
    aside = what_is_kept([replace(each, floor_plan=plan, poses=poses) for each in played])["names"]["slots"]
    assert aside == 24 * 4, "the first nine steps"
    few = what_is_kept(played[:12])
    why = " cannot be told: to tell 3 answers apart takes 18 episodes (--episodes), not 12."
    assert sum(said.endswith(why) for said in few["says"]) == 1
    assert "Too few episodes were played to tell whether compressed memory keeps the" in few["says"][0]
    assert [row[0]["text"] for row in few["names"]["rows"]] == ["colour", "shape"]


def test_without_enough_to_fit_a_probe_nothing_is_said(recordings: list[Recording]) -> None:
    two = with_slots(recordings[:2])
    constant = [replace(each, reconstructions=np.zeros_like(each.reconstructions)) for each in two]
    empty = [two[0], replace(two[1], compressed=Compressed(*(part[:0] for part in two[1].compressed)))]
    nothing = [replace(each, compressed=None) for each in two]
    for found in (two[:1], with_slots(recordings[:2], count=30), constant, empty, nothing):
        assert what_is_kept(found) is None


def literal_slots(sizes: tuple[int, int, int], rate: int, episodes: int) -> list[list[tuple[int, int]]]:
    """(first, last) of every slot before each step, by moving steps from list to list; -1 where there is nothing."""
    n_s, n_m, n_cm = 4, sizes[1], sizes[0]
    nothing = -(10**6)
    compressed = [(nothing, nothing)] * n_cm
    memory = [(nothing, nothing)] * n_m
    segment: list[tuple[int, int]] = []
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


def test_slots_trace_to_the_steps_of_a_literal_memory(recordings: list[Recording]) -> None:
    for layer, rate in enumerate(SIZES["compression_rate"]):
        sizes = (SIZES["compressed_size"][layer], SIZES["memory_size"][layer], 4)
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
            np.testing.assert_allclose(
                recording.attention_by_kind[:, index], np.stack([k.sum(2) for k in kinds], -1), atol=1e-6
            )
            by_step = layer.by_step()
            np.testing.assert_allclose(by_step.sum(axis=1), 1, atol=1e-5)
            assert np.abs(np.triu(by_step, 1)).max() < 1e-9, "nothing of the future"
            slot = next(s for s in range(layer.sizes[0]) if layer.steps[-1, s, 0] >= 0)
            first, last = layer.steps[-1, slot]
            share = layer.weights[-1, :, slot].mean() / (last - first + 1)
            assert by_step[-1, first : last + 1] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("act", [Actor.unroll, play_episodes, record_episodes])
def test_acting_builds_no_graph(act: Any) -> None:
    actor, cached = make_actor(compressive()), []
    with_cache = actor.agent.core.with_cache
    actor.agent.core.with_cache = lambda state: cached.append(with_cache(state)) or cached[-1]  # type: ignore[method-assign]
    act(actor, 4)
    assert cached
    assert not any(leaf.requires_grad for leaf in leaves(cached[0].cache))


@pytest.mark.parametrize("name", ["poses", "situations", "between"])
def test_what_only_recordings_ask_for_is_guarded(name: str) -> None:
    actor = make_actor(LSTMConfig(8))
    setattr(actor.envs, name, lambda *_: {}[name])
    with pytest.raises(EnvironmentFailed, match=f"failed in {name}: KeyError"):
        record_episodes(actor, 1)


@pytest.mark.parametrize("kind", ["compressed", "routed"])
def test_most_used_and_routed_memories_trace_to_one_step_each(kind: str) -> None:
    routing = RoutingTransformerConfig(8, 2, 2, 8, segment_size=4, memory_size=(8, 2), window=2, clusters=1)
    core = routing if kind == "routed" else compressive(compression="most-used")
    (recording,) = record_episodes(make_actor(core), 1)
    assert recording.slot_kinds == (kind, "memory", "segment")
    assert [layer.rings for layer in recording.attention] == 2 * [(1, 1, 2) if kind == "routed" else None]
    for layer in recording.attention:
        np.testing.assert_array_equal(layer.steps[..., 0], layer.steps[..., 1])
        present = layer.steps[-1, : layer.sizes[0], 0] >= 0
        assert present.any()
        assert (present == (layer.weights[-1, 0, : layer.sizes[0]] > 0)).all()


def test_vectors_are_shown_as_bars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (recording,) = record_episodes(make_actor(LSTMConfig(8), "diagnostic:tmaze,length=3"), 1)
    assert (recording.attention, recording.observations.ndim) == ((), 2)
    assert (recording.poses, recording.situations) == (None, None)
    assert (recording.renderings, recording.views_between, recording.reconstructions) == (None, None, None)
    assert views(recording).shape == (len(recording.actions), BARS, WIDTH, 3)
    assert recording.action_names == ("forward", "left", "right")
    named = "in the episode: sign left, sign right, junction, from left to right."
    assert what_is_seen(recording).startswith("The vector")
    assert what_is_seen(recording).endswith(named)
    assert what_is_seen(replace(recording, element_names=())).endswith("in the episode.")
    monkeypatch.chdir(tmp_path)
    film([recording], Path("1:2.mp4"))  # "1:" is no protocol
    assert Path("1:2.mp4").stat().st_size > 1000


def test_bars_have_the_height_of_their_elements() -> None:
    first, second = bars(np.array([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0]]), 30)[:, :, [3, 13, 23], 0] > 20  # one colour
    assert first.sum(axis=0).tolist() == [BARS // 2 + 1, BARS // 2 + 1, 1]  # each has the line of 0
    assert first[: BARS // 2, 0].all()
    assert first[BARS // 2 :, 1].all()
    assert second.sum(axis=0).tolist() == [BARS // 4 + 1, BARS // 4 + 1, 1]
    beside = bars(np.ones((1, 3)), 32)[0, :, 30:]
    assert (beside == BACKGROUND).all()
    positive = bars(np.array([[1.0], [0.5]]), 30)[:, :, 3, 0] > 20
    assert positive.sum(axis=1).tolist() == [BARS, BARS // 2 + 1]


@pytest.mark.parametrize("size", [76, 300, 980, 5000])
def test_bars_that_do_not_fit_are_in_rows(size: int) -> None:
    one_hot = np.eye(size, dtype=np.float32)[[0, size // 2, size - 1]]
    shown = bars(one_hot, 300)
    assert shown.shape[2:] == (300, 3)
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
    spec = drawing("gym:Drawn-v0")
    assert spec == "gym:Drawn-v0,render_mode=rgb_array"
    assert drawing("gym:Drawn-v0,processes=2") == spec
    (recording,) = record_episodes(make_actor(LSTMConfig(8), spec), 1)
    monkeypatch.setattr(Drawn, "render", lambda self: None)
    assert drawing("gym:Drawn-v0") == "gym:Drawn-v0"
    monkeypatch.setattr(Drawn, "__init__", lambda self: None)  # takes no render_mode
    assert drawing("gym:Drawn-v0") == "gym:Drawn-v0"
    assert (recording.fps, recording.renderings.shape) == (50, (5, RENDERED, 300, 3))
    assert recording.renderings[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160]
    shown = views(recording)
    np.testing.assert_array_equal(shown[:, :RENDERED], recording.renderings)
    assert shown.shape == (5, RENDERED + BARS, 300, 3)
    assert drawing(ENV) == ENV


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
    step, attention = STEPS - 1, recordings[0].attention
    sums = np.zeros(STEPS)
    for layer in attention:
        for slot, (first, last) in enumerate(layer.steps[step]):
            if first == last >= 0 and slot >= layer.sizes[0]:  # of one step, not compressed
                sums[first] += layer.weights[step, :, slot].mean() / len(attention)
    exact = [look for look in found[step] if look.kind != "compressed"]
    assert exact
    for look in exact:
        assert look.weight == pytest.approx(sums[look.first], abs=1e-6)
    assert [look.weight for look in found[step]] == sorted((look.weight for look in found[step]), reverse=True)
    assert found[0] == []
    assert all(look.last < at for at, some in enumerate(found) for look in some)
