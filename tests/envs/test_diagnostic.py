"""The diagnostic tasks: the scores they state, and what they show at each step."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import envs
from envs.diagnostic import Recall, TMaze


def mean_score(env: Any, choose: Callable[..., Any], steps: int, all_episodes: bool = True) -> tuple[float, float]:
    """Mean and standard error of the scores of all episodes that end within some steps, or of the first of each row;
    choose() -> actions [N]."""
    env.reset(seed=0)
    totals = np.zeros(env.num_envs)
    scores = []
    counts = np.ones(env.num_envs, bool)
    for _ in range(steps):
        _, reward, terminated, truncated, _ = env.step(choose())
        totals += reward
        over = terminated | truncated
        scores += totals[over & counts].tolist()
        totals[over] = 0
        if not all_episodes:
            counts &= ~over
    return float(np.mean(scores)), float(np.std(scores) / math.sqrt(len(scores)))


NAMES = (
    "recall",
    "recall,delay=3,symbols=7",
    "recall,reward=100",
    "tmaze",
    "tmaze,length=1",
    "passive-tmaze",
    "passive-tmaze,length=1",
    "repeat-previous",
    "repeat-previous,delay=1,symbols=3,steps=9",
    "visual-match,apple=0.5",
    "visual-match,delay=1,symbols=2",
    "key-to-door",
    "key-to-door,delay=2,apple=1.0",
    "endless-tmaze,length=1",
    "endless-tmaze,length=2,corridors=2,uniform=True",
    "association",
    "association,keys=2,values=3,steps=9",
    "color-cubes",
    "color-cubes,size=4,extreme=True",
)


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_the_oracle_and_of_random_actions(name: str) -> None:
    spec = f"diagnostic:{name}"
    expected = envs.reference_scores(spec)
    oracle = expected["oracle"]
    assert oracle is not None
    assert expected["human"] is None
    assert envs.mean_normalized({spec: oracle}) == {"oracle_normalized": pytest.approx(100)}

    env = envs.make_vector(spec, 512)
    mean, error = mean_score(env, env.oracle_actions, 100)
    if name.startswith("association"):  # in which chance decides how much is asked
        assert abs(mean - oracle) < 4 * error < 0.1
    else:
        assert mean == pytest.approx(oracle)
        assert error == pytest.approx(0.0, abs=1e-9)

    rng = np.random.default_rng(0)
    mean, error = mean_score(env, lambda: rng.integers(env.single_action_space.n, size=512), 200)
    assert abs(mean - expected["random"]) < 4 * error + 1e-9 < 0.1 * oracle


WITHOUT_MEMORY: dict[str, Callable[[Any], Any]] = {
    "recall": lambda seen: np.zeros(len(seen), int),
    # It waits where the sign says right.
    "tmaze": lambda seen: np.where((seen[:, 1] == 1) | (seen[:, 2] == 1), 1, 0),
    "passive-tmaze": lambda seen: np.where(seen[:, 3] == 1, 1, 0),
    "repeat-previous": lambda seen: np.zeros(len(seen), int),
    "visual-match,apple=0.5": lambda seen: seen[:, 4].astype(int),
    "key-to-door,apple=1.0": lambda seen: seen[:, 1].astype(int),
    "endless-tmaze,length=1": lambda seen: np.where(seen[:, 2] == 1, 0, 2),
    "association": lambda seen: np.zeros(len(seen), int),
}
"""Players that act by the present observation alone."""


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_scores_of_players_without_memory(name: str) -> None:
    expected = envs.reference_scores(f"diagnostic:{name}")["memoryless"]
    assert expected is not None
    env: Any = envs.make_vector(f"diagnostic:{name}", 512)
    # `observe` is what the environment shows at present. First episodes: those that end soon would count more often.
    mean, error = mean_score(env, lambda: WITHOUT_MEMORY[name](env.observe()), 200, all_episodes=False)
    assert abs(mean - expected) < 4 * error + 1e-9


def test_recall_shows_the_symbol_once_and_asks_for_it_after_the_delay() -> None:
    """Observations are the symbol, one-hot, and whether it is asked for."""
    env = Recall(50, delay=4, symbols=3)
    observation, _ = env.reset(seed=1)
    shown = [observation]
    for step in range(5):
        observation, reward, terminated, truncated, _ = env.step(env.oracle_actions())
        shown.append(observation)
        is_last = step == 4
        assert (terminated == is_last).all()
        assert (reward == is_last).all()
        assert not truncated.any()
    assert (shown[0][:, :3].argmax(axis=1) == env.symbol).all()
    assert set(env.symbol) == {0, 1, 2}
    assert [view.sum() for view in shown[:4]] == [50, 0, 0, 0]
    assert (shown[4] == [0, 0, 0, 1]).all()

    # In the next episode a wrong answer has no reward.
    env.step(np.zeros(50, int))
    wrong = (env.symbol + 1) % 3
    for _ in range(5):
        _, reward, *_ = env.step(wrong)
        assert not reward.any()


def test_tmaze_shows_the_sign_at_the_start_only_and_ends_at_a_turn() -> None:
    env = TMaze(40, length=3)
    begin = env.reset(seed=0)[0]
    assert (begin[:, :2].argmax(axis=1) == env.side).all()
    assert set(env.side) == {0, 1}
    for turn in (1, 2):
        observation, *_ = env.step(np.full(40, turn))
        assert np.array_equal(observation, begin), "a turn in the corridor does nothing"

    # At the junction after three steps, where a further one does nothing.
    for place in (1, 2, 3, 3):
        observation, reward, terminated, truncated, _ = env.step(np.zeros(40, int))
        assert (observation == [0, 0, place == 3]).all()
        assert not reward.any()
        assert not terminated.any()
        assert not truncated.any()

    _, reward, terminated, truncated, _ = env.step(np.ones(40, int))
    assert (reward == np.where(env.side == 0, 1, -1)).all()
    assert (terminated & ~truncated).all()


def test_tmaze_is_truncated_without_a_turn() -> None:
    env = TMaze(2, length=3)
    env.reset(seed=0)
    for step in range(16):
        _, _, terminated, truncated, _ = env.step(np.zeros(2, int))
        assert not terminated.any()
        assert truncated.all() == (step == 15)
