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
    """The actions of players who do nothing."""
    return np.full(env.num_envs, FIRE)


def visits(seen: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """For every member the fields of its state [V] at the beginning of each of its visits."""
    visit, x, vx = seen["visit"], seen["x"], seen["vx"]
    is_new = visit[1:] != visit[:-1]
    at_the_start = (x[1:] == x[0]) & (vx[1:] == 0)
    began = np.ones(visit.shape, bool)
    began[1:] = is_new | at_the_start
    members = visit.shape[1]
    return [{name: array[began[:, i], i] for name, array in seen.items()} for i in range(members)]


@pytest.mark.parametrize("visit_frames", [0, 64])
def test_a_round_shows_all_examples_before_the_choices(visit_frames: int) -> None:
    seen, rewards = play(replace(FIXED, examples=3, visit_frames=visit_frames), 200)
    assert set(np.unique(rewards)) == {0.0, 1.0, 10.0}
    for member in visits(seen):
        rounds = len(member["visit"]) // 6
        assert rounds >= 2
        whole_rounds = slice(6 * rounds)
        # Visits 0 to 2 show the examples, 4 to 6 are the choices; 3 would be the delay.
        assert member["visit"][whole_rounds].tolist() == [0, 1, 2, 4, 5, 6] * rounds
        for name in ("match", "other", "match_side"):
            by_round = member[name][whole_rounds].reshape(rounds, 2, 3)
            shown = by_round[:, 0]
            asked = by_round[:, 1]
            assert (shown == asked).all()


def test_examples_of_a_round_and_of_rounds_are_drawn_independently() -> None:
    """Visits of one step: each step that shows an example is a draw."""
    config = replace(FIXED, examples=3, visit_frames=4, shapes=("cube",))
    seen, _ = play(config, 60, still, num_envs=512)
    is_shown = seen["visit"] < 3

    def draws(name: str) -> NDArray[Any]:
        """The values [draws, N] of a field while examples are shown."""
        return np.stack([seen[name][is_shown[:, i], i] for i in range(512)], axis=1)

    match = draws("match")
    assert np.bincount(match.ravel(), minlength=3) / match.size == pytest.approx(1 / 3, abs=0.02)
    for lag in (1, 2, 3):
        assert np.mean(match[lag:] == match[:-lag]) == pytest.approx(1 / 3, abs=0.02)
    sides = draws("match_side")
    assert sides.mean() == pytest.approx(0.5, abs=0.02)
    assert np.mean(sides[1:] == sides[:-1]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("examples", [1, 2])
def test_the_delay_is_dark_and_still_and_lasts_its_frames(examples: int) -> None:
    config = replace(FRAMES, examples=examples, delay_frames=37, image_height=40, image_width=64)
    env = RoomsVectorEnv(4, config)
    env.reset(seed=0)
    state = env.state
    dark = 0
    while dark == 0 or state.room[0] == DARK:
        before = env.get_state()
        view, reward, *_ = env.step(oracle_actions(env))
        is_black = view.max((1, 2, 3)) == 0
        assert is_black.tolist() == (state.room == DARK).tolist()
        if before["room"][0] == DARK:
            assert reward[0] == 0.0
            assert before["visit"][0] == examples
        dark += state.room[0] == DARK
        assert state.frame[0] < 400, "the delay has not begun"
    assert dark == 37
    assert (state.room[0], state.visit[0], state.x[0], state.vx[0]) == (ROOM_2, examples + 1, 288, 400)


def test_without_fixed_visits_only_the_delay_differs() -> None:
    """The same player plays the same trials, each later by the delay."""
    drawn = ("match", "other", "example_side", "match_side", "correct")

    def trials(seen: dict[str, NDArray[Any]], i: int) -> NDArray[Any]:
        """What was drawn for each trial [trials, fields] of a player, as it is found in the second room."""
        choosing = seen["room"][:, i] == ROOM_2
        fields = np.stack([seen[name][choosing, i] for name in drawn], axis=1)
        is_new = np.ones(len(fields), bool)
        is_new[1:] = (fields[1:] != fields[:-1]).any(axis=1)
        return fields[is_new]

    def arrival(seen: dict[str, NDArray[Any]], i: int) -> int:
        """The frame in which a player first is in the second room."""
        return (seen["room"][:, i] == ROOM_2).argmax()

    prompt, _ = play(FRAMES, 500, num_envs=8, seed=1)
    delayed, _ = play(replace(FRAMES, delay_frames=37), 500, num_envs=8, seed=1)
    for i in range(8):
        expected = trials(prompt, i)
        found = trials(delayed, i)
        assert len(found) == 3
        assert (found == expected[: len(found)]).all()
        assert arrival(delayed, i) - arrival(prompt, i) == 37


def test_fixed_visits_take_their_time_whatever_the_player_does() -> None:
    config = replace(FIXED, examples=2, delay_frames=20)
    schedule = [0] * 16 + [1] * 16 + [2] * 5 + [3] * 16 + [4] * 16  # visit 2 is the delay
    rounds = 10
    steps = rounds * len(schedule)
    played, rewards = play(config, steps, oracle_actions)
    passive, nothing = play(config, steps, still)

    for seen in (played, passive):
        assert (seen["visit"][:-1] == np.tile(schedule, rounds)[:, None]).all()
    assert not nothing.any()
    assert rewards.sum(0).tolist() == [rounds * 2 * 11.0] * 64, "1 for a teleport and 10 for a right choice"
    early = (played["room"] == DARK) & (played["visit"] != 2)
    assert early.any(), "a player that finishes sooner waits in the dark"


def test_a_visit_begins_as_the_first_does_whatever_the_player_was_doing() -> None:
    """Players are moved on while they fall and look aside, to the next choice and to the next example.

    Of the old state, only what the engine rounds off the yaw may remain.
    """
    env = RoomsVectorEnv(1, replace(FRAMES, examples=2, visit_frames=7))
    env.reset(seed=0)
    actions = (NINE.index("strafe right"), NINE.index("look left, forward"))
    begun: list[dict[str, Any]] = []
    falling = []
    for frame in range(60):
        visit = env.state.visit[0]
        if env.state.clock[0] == 1:  # the next frame begins the next visit
            falling.append(env.state.vz[0] < 0)
            # As of a player who has just touched something.
            env.state.taken[:] = 1
            env.state.thrown[:] = 9
        env.step(np.array([actions[frame % 2]]))
        if env.state.visit[0] != visit:
            begun.append({name: array[0] for name, array in env.get_state().items()})

    assert [state["visit"] for state in begun][:4] == [1, 3, 4, 0]
    assert {state["visit"] for state in begun} == {0, 1, 3, 4}
    assert falling[:4] == [False, False, True, True]
    for state in begun:
        assert (state["vy"], state["vz"], state["pitch"]) == (0, 0, 0)
        assert (state["taken"], state["clock"]) == (-1, 7)
        position = (state["x"], state["y"], state["z"])
        if state["visit"] > 2:  # a choice
            assert state["room"] == ROOM_2
            assert position == (288, -64, 24.875)
            assert (state["vx"], state["thrown"]) == (400, 160)
            assert abs(state["yaw"]) < 360 / 65536
        else:
            assert state["room"] == ROOM_1
            assert position == (-232, -64, 0)
            assert (state["vx"], state["thrown"]) == (0, 0)
            assert abs(state["yaw"]) < 1e-9
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


# Surfaces of `transfer` and its like take seconds to draw, and do not change the rounds.
DRAWN = ("transfer", "transfer-choose", "unseen")
BY_DRAWING = [pytest.param(name, marks=[pytest.mark.slow] if name in DRAWN else []) for name in VARIANTS]


@pytest.mark.parametrize("variant", BY_DRAWING)
def test_memory_spans_of_the_variants(variant: str) -> None:
    rows = 8 if variant in SPANS else 1
    env = RoomsVectorEnv(rows, VARIANTS[variant])
    altered = RoomsVectorEnv(rows, VARIANTS[variant])
    spans = memory_spans(env, altered)
    if variant in SPANS:
        assert (spans.min(), spans.max()) == SPANS[variant]
    else:
        stated = int(variant.rpartition("-")[2])
        assert spans.max() == stated
        assert spans.max() - spans.min() <= 1


@pytest.mark.parametrize(
    "config", ["small", "small-recall", "full-half", replace(VARIANTS["small"], redraw_match=True)]
)
def test_counterfactuals_show_the_other_example_and_the_same_choices(config: Any) -> None:
    """In the room of a choice the views are the same; with the example in view they are those of the other object."""
    env = RoomsVectorEnv(1, config)
    examples = env.config.examples
    observation, _ = env.reset(seed=4)
    states: list[Any] = []
    seen = []
    while not env.over[0] and len(states) < 400:
        states.append(env.get_state())
        seen.append(observation[0])
        observation, *_ = env.step(env.oracle_actions())
    views = np.stack(seen)
    visits = np.array([state["visit"][0] for state in states])

    found = env.counterfactuals(states)
    assert len(found) > 2
    for begin, other in found:  # the choice begins at this step; `other` are the views up to its end
        end = len(other)
        np.testing.assert_array_equal(other[begin:], views[begin:end])

        # Views of the example have changed, and where matches are drawn for every round no earlier ones.
        changed = np.flatnonzero((other != views[:end]).any(axis=(1, 2, 3)))
        of_the_example = changed[visits[changed] == visits[begin] - examples - 1]
        assert len(of_the_example)
        if env.config.redraw_match:
            round_begins = np.flatnonzero(np.diff(visits[:begin], prepend=0) < 0)
            assert changed.min() >= max(round_begins, default=0), "only in this round"

        # They are the views of a state in which the two objects are exchanged.
        last = of_the_example[-1]
        choice = states[begin]
        exchanged = {**states[last], "match": choice["other"], "other": choice["match"]}
        np.testing.assert_array_equal(other[last], env.set_state(exchanged)[0])
