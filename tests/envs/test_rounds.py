"""Options that need more memory: rounds of several examples, a delay, fixed visits, matches drawn for every trial."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.lab_interface import NINE
from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, oracle_actions
from envs.rooms.level import DARK, ROOM_1, ROOM_2
from envs.rooms.oracle import memory_spans
from envs.rooms.physics import LOADED

FIRE = NINE.index("fire")
STEPS = RoomsConfig(image_height=8, image_width=8, hud=False, redraw_match=True, episode_frames=4800)
FRAMES = replace(STEPS, action_repeat=1)
FIXED = replace(STEPS, visit_frames=64)


def play(
    config: Any, steps: int, policy: Callable[..., Any] = oracle_actions, num_envs: int = 64, seed: int = 0
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """Arrays [steps + 1, N] of the state's fields before each step and after the last, and rewards [steps, N]."""
    env = RoomsVectorEnv(num_envs, config)
    env.reset(seed=seed)
    states, rewards = [env.get_state()], []
    for _ in range(steps):
        rewards.append(env.step(policy(env))[1])
        states.append(env.get_state())
    return {name: np.array([state[name] for state in states]) for name in states[0]}, np.array(rewards)


def still(env: RoomsVectorEnv) -> NDArray[Any]:
    return np.full(env.num_envs, FIRE)


def visits(seen: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """For every member the visits it made, as the numbers of the steps at which they began and their state then."""
    began = np.ones(seen["visit"].shape, bool)
    began[1:] = (seen["visit"][1:] != seen["visit"][:-1]) | (seen["x"][1:] == seen["x"][0]) & (seen["vx"][1:] == 0)
    return [{name: array[began[:, i], i] for name, array in seen.items()} for i in range(seen["visit"].shape[1])]


@pytest.mark.parametrize("visit_frames", [0, 64])
def test_a_round_shows_all_examples_before_the_choices(visit_frames: int) -> None:
    seen, rewards = play(replace(FIXED, examples=3, visit_frames=visit_frames), 200)
    assert set(np.unique(rewards)) == {0.0, 1.0, 10.0}
    for member in visits(seen):
        rounds = len(member["visit"]) // 6
        assert rounds >= 2
        assert member["visit"][: 6 * rounds].tolist() == [0, 1, 2, 4, 5, 6] * rounds
        for name in ("match", "other", "match_side"):
            shown, asked = member[name][: 6 * rounds].reshape(rounds, 2, 3).transpose(1, 0, 2)
            assert (shown == asked).all()


def test_examples_of_a_round_and_of_rounds_are_drawn_independently() -> None:
    config = replace(FIXED, examples=3, visit_frames=4, shapes=("cube",))
    seen, _ = play(config, 60, still, num_envs=512)
    shown = seen["visit"] < 3
    match = np.stack([seen["match"][shown[:, i], i] for i in range(512)], 1)
    assert np.bincount(match.ravel(), minlength=3) / match.size == pytest.approx(1 / 3, abs=0.02)
    for lag in (1, 2, 3):
        assert np.mean(match[lag:] == match[:-lag]) == pytest.approx(1 / 3, abs=0.02)
    sides = np.stack([seen["match_side"][shown[:, i], i] for i in range(512)], 1)
    assert sides.mean() == pytest.approx(0.5, abs=0.02)
    assert np.mean(sides[1:] == sides[:-1]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("examples", [1, 2])
def test_the_delay_is_dark_and_still_and_lasts_its_frames(examples: int) -> None:
    config = replace(FRAMES, examples=examples, delay_frames=37, image_height=40, image_width=64)
    env = RoomsVectorEnv(4, config)
    env.reset(seed=0)
    dark = 0
    while dark == 0 or env.state.room[0] == DARK:
        before = env.get_state()
        view, reward, _, _, _ = env.step(oracle_actions(env))
        assert (view.max((1, 2, 3)) == 0).tolist() == (env.state.room == DARK).tolist()
        if before["room"][0] == DARK:
            assert reward[0] == 0.0
            assert before["visit"][0] == examples
        dark += env.state.room[0] == DARK
        assert env.state.frame[0] < 400
    state = env.state
    assert dark == 37
    assert (state.room[0], state.visit[0], state.x[0], state.vx[0]) == (ROOM_2, examples + 1, 288, 400)


def test_without_fixed_visits_only_the_delay_differs() -> None:
    """The same player plays the same trials, each later by the delay."""
    a, b = (play(replace(FRAMES, delay_frames=delay), 500, num_envs=8, seed=1)[0] for delay in (0, 37))
    drawn = ("match", "other", "example_side", "match_side", "correct")
    for i in range(8):
        trials = [np.transpose([s[name][s["room"][:, i] == ROOM_2, i] for name in drawn]) for s in (a, b)]
        first, second = (each[np.r_[True, (each[1:] != each[:-1]).any(1)]] for each in trials)
        assert len(second) == 3
        assert (first[: len(second)] == second).all()
        arrivals = [(s["room"][:, i] == ROOM_2).argmax() for s in (a, b)]
        assert arrivals[1] - arrivals[0] == 37


def test_fixed_visits_take_their_time_whatever_the_player_does() -> None:
    config, schedule = replace(FIXED, examples=2, delay_frames=20), np.repeat([0, 1, 2, 3, 4], [16, 16, 5, 16, 16])
    (played, rewards), (passive, nothing) = (play(config, 10 * 69, policy) for policy in (oracle_actions, still))
    for seen in (played, passive):
        assert (seen["visit"][:-1] == np.tile(schedule, 10)[:, None]).all()
    assert not nothing.any()
    assert rewards.sum(0).tolist() == [10 * 2 * 11.0] * 64
    early = (played["room"] == DARK) & (played["visit"] != 2)
    assert early.any(), "a player that finishes sooner waits in the dark"


def test_a_visit_begins_as_the_first_does_whatever_the_player_was_doing() -> None:
    """Moved on in the air and askew, to the next choice and to the next example; only what yaw rounds off remains."""
    env = RoomsVectorEnv(1, replace(FRAMES, examples=2, visit_frames=7))
    env.reset(seed=0)
    begun: dict[str, Any] = {}
    falling = []
    for frame in range(60):
        visit = int(env.state.visit[0])
        if env.state.clock[0] == 1:  # the next visit begins; as of a player who has touched something
            env.state.taken[:], env.state.thrown[:] = 1, 9
            falling.append(env.state.vz[0] < 0)
        env.step(np.array([NINE.index("look left, forward" if frame % 2 else "strafe right")]))
        if env.state.visit[0] != visit:
            begun.setdefault(int(env.state.visit[0]), []).append({n: a[0] for n, a in env.get_state().items()})
    assert list(begun) == [1, 3, 4, 0]
    assert falling[:4] == [False, False, True, True]
    for states in begun.values():
        for state in states:
            choosing = state["visit"] > 2
            place = (288, -64, 24.875, 400) if choosing else (-232, -64, 0, 0)
            assert tuple(state[name] for name in ("x", "y", "z", "vx")) == place
            assert (state["vy"], state["vz"], state["pitch"], state["taken"]) == (0, 0, 0, -1)
            assert (state["thrown"], state["clock"]) == (160 if choosing else 0, 7)
            assert state["room"] == (ROOM_2 if choosing else ROOM_1)
            assert abs(state["yaw"]) < (360 / 65536 if choosing else 1e-9)
            if not choosing:
                assert (state["shown"], state["time"]) == (state["frame"] - 1, LOADED + 14)


def test_an_action_before_the_level_is_loaded_is_ignored() -> None:
    """In the frame in which an example appears, but not at the beginning of an episode."""
    env = RoomsVectorEnv(1, replace(FRAMES, visit_frames=5, examples=2))
    env.reset(seed=0)
    speeds = []
    for _ in range(11):
        env.step(np.array([NINE.index("forward")]))
        speeds.append((int(env.state.visit[0]), env.state.vx[0]))
    assert speeds[0] == (0, 45), "the first move of 14 ms"
    assert speeds[4:7] == [(1, 0), (1, 45), (1, 89)]


def test_the_delay_is_halved_as_often_as_not() -> None:
    config = replace(FIXED, delay_frames=112, delay_halvings=2, visit_frames=4)
    seen, _ = play(config, 300, still, num_envs=32)
    dark = (seen["room"] == DARK) & (np.roll(seen["visit"], 1, axis=0) == 0)
    lengths, counts = np.unique(seen["clock"][dark], return_counts=True)
    assert lengths.tolist() == [28, 56, 112]
    assert counts / counts.sum() == pytest.approx(1 / 3, abs=0.06)


def test_fixed_sides_put_the_lower_number_left() -> None:
    seen, _ = play(replace(FIXED, fixed_sides=True, visit_frames=4), 100, still)
    assert (seen["match_side"] == (seen["match"] > seen["other"])).all()
    assert not seen["example_side"].any()
    assert seen["match_side"].mean() == pytest.approx(0.5, abs=0.05)


SPANS = {
    "full": (5, 8),
    "full-half": (5, 8),
    "transfer": (5, 7),
    "transfer-choose": (5, 7),
    "unseen": (5, 7),
    "small": (1, 1),
    "small-recall": (4, 66),
    "small-recall-long": (18, 130),
}
"""Least and greatest number of steps that a memory has to bridge; the names of other variants state it."""


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_memory_spans_of_the_variants(variant: str) -> None:
    spans = memory_spans(*(RoomsVectorEnv(8 if variant in SPANS else 1, VARIANTS[variant]) for _ in range(2)))
    if variant in SPANS:
        assert (spans.min(), spans.max()) == SPANS[variant]
    else:
        assert spans.max() == int(variant.rpartition("-")[2])
        assert spans.max() - spans.min() <= 1


@pytest.mark.parametrize("env", ["small", "small-recall", "full-half", replace(VARIANTS["small"], redraw_match=True)])
def test_counterfactuals_show_the_other_example_and_the_same_choices(env: Any) -> None:
    """In the room of a choice the views are the same; with the example in view they are those of the other object."""
    envs = RoomsVectorEnv(1, env)
    observation, _ = envs.reset(seed=4)
    states: list[Any] = []
    views = []
    while not envs.over[0] and len(states) < 400:
        states.append(envs.get_state())
        views.append(observation[0])
        observation = envs.step(envs.oracle_actions())[0]
    found = envs.counterfactuals(states)
    assert len(found) > 2
    visits = np.array([state["visit"][0] for state in states])
    for begin, other in found:
        end, examples = len(other), envs.config.examples
        np.testing.assert_array_equal(other[begin:], views[begin:end])
        objects = {name: states[begin][name] for name in ("match", "other")}
        changed = np.flatnonzero((other != np.stack(views[:end])).any(axis=(1, 2, 3)))
        shown = changed[visits[changed] == visits[begin] - examples - 1]
        assert len(shown)
        if envs.config.redraw_match:
            rounds = np.flatnonzero(np.diff(visits[:begin], prepend=0) < 0)
            assert changed.min() >= max(rounds, default=0), "only in this round"
        last = shown[-1]
        expected = {**states[last], "match": objects["other"], "other": objects["match"]}
        np.testing.assert_array_equal(other[last], envs.set_state(expected)[0])
