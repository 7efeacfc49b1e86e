"""The player that plans: the fastest trials there are, in any set of actions."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import envs
from envs.lab_interface import ACTION_SETS, action_rows
from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv, oracle_actions
from envs.rooms.env import _run
from envs.rooms.planner import Planner, is_planned

SHORT = replace(VARIANTS["small"], action_repeat=8, episode_frames=160)
"""A trial takes four steps."""


def play(env: RoomsVectorEnv, choose: Callable[[RoomsVectorEnv], NDArray[np.int64]]) -> NDArray[np.float64]:
    """The rewards [T, N] of one episode."""
    env.reset(seed=0)
    return np.stack([env.step(choose(env))[1] for _ in range(env.config.episode_steps)])


def first_rewards(seed: int, series: NDArray[np.int64]) -> NDArray[np.float64]:
    """For series [N, T] of actions the frame of the first right choice; infinite without one, or after a wrong one."""
    env = RoomsVectorEnv(len(series), replace(SHORT, action_repeat=1))
    env.reset(seed=[seed] * len(series))
    frames = np.full(len(series), np.inf)
    by_frame = series.repeat(SHORT.action_repeat, axis=1).T
    for actions in by_frame:
        env.step(actions)
        is_right = (env.state.correct > 0) & (env.state.wrong == 0)
        is_first = is_right & np.isinf(frames)
        frames[is_first] = env.state.frame[is_first]
    return frames


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_series_of_actions_is_faster(seed: int) -> None:
    """Of all 9^4 series of four actions."""
    env = RoomsVectorEnv(1, SHORT)
    planner = Planner(SHORT, _run)
    planned = []
    env.reset(seed=[seed])
    while not env.state.correct[0]:
        action = planner.actions(env)
        planned.append(int(action[0]))
        env.step(action)
    assert len(planned) == 4
    every = np.array(list(itertools.product(range(9), repeat=len(planned))))
    assert first_rewards(seed, np.array([planned])) == first_rewards(seed, every).min()


@pytest.mark.parametrize("actions", ACTION_SETS)
def test_it_is_faster_than_the_scripted_player_and_always_right(actions: str) -> None:
    config = replace(VARIANTS["full"], actions=actions, episode_frames=300, image_height=8, image_width=8, hud=False)
    planned = RoomsVectorEnv(8, config)
    scripted = RoomsVectorEnv(8, config)
    planned_scores = play(planned, RoomsVectorEnv.oracle_actions).cumsum(axis=0)
    scripted_scores = play(scripted, oracle_actions).cumsum(axis=0)
    ahead = planned_scores - scripted_scores
    assert (ahead[-1] >= 0).all()
    assert ahead.sum() > 0
    assert not planned.state.wrong.any()


@pytest.mark.slow
def test_it_plans_with_the_pace_of_random_looks() -> None:
    config = replace(VARIANTS["transfer"], image_height=8, image_width=8, hud=False)
    planned = RoomsVectorEnv(2, config)
    scripted = RoomsVectorEnv(2, config)
    planned_scores = play(planned, RoomsVectorEnv.oracle_actions).sum(axis=0)
    scripted_scores = play(scripted, oracle_actions).sum(axis=0)
    assert (planned_scores > scripted_scores).any()
    assert not planned.state.wrong.any()


def test_a_plan_is_searched_once_for_all_that_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    search = Planner._search

    def counted(planner: Planner, start: Any) -> None:
        searches.append(start)
        search(planner, start)

    monkeypatch.setattr(Planner, "_search", counted)
    env = RoomsVectorEnv(16, SHORT)
    planner = Planner(SHORT, _run)
    env.reset(seed=0)
    planner.actions(env)
    assert len(searches) == 2, "the right object is left or right"


def test_elsewhere_the_scripted_player_plays() -> None:
    """In the middle of a trial that was not planned, and where trials cannot be planned."""
    env = RoomsVectorEnv(2, SHORT)
    planner = Planner(SHORT, _run)
    env.reset(seed=0)
    backward = np.full(2, env.config.action_names.index("backward"))
    env.step(backward)
    env.step(backward)
    assert (planner.actions(env) == oracle_actions(env)).all()

    for variant in ("small-recall", "full-recall-112"):
        assert not is_planned(VARIANTS[variant])
        with pytest.raises(ValueError, match="expected one example a round"):
            Planner(VARIANTS[variant], _run)
        other = RoomsVectorEnv(2, VARIANTS[variant])
        other.reset(seed=0)
        assert (other.oracle_actions() == oracle_actions(other)).all()


@pytest.mark.parametrize("actions", ACTION_SETS)
def test_sets_of_actions(actions: str) -> None:
    names, pixels = ACTION_SETS[actions]
    env = envs.make_vector(f"rooms:small,actions={actions}", 1)
    assert env.single_action_space.n == len(names)
    assert env.metadata["action_names"] == names
    level: Any = env
    assert (level.level.actions == action_rows(names, pixels)).all()
    with pytest.raises(ValueError, match="actions: expected one of nine, fifteen, got 'ten'"):
        RoomsConfig(actions="ten")
