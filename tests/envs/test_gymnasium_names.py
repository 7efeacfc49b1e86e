"""Names of the actions and observations of gymnasium's own environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.toy_text import CliffWalkingEnv, TaxiEnv
from gymnasium.wrappers import TimeLimit, TransformAction, TransformObservation

import envs
from envs.gymnasium_names import KNOWN_NAMES, with_known_names

MISSING = (ImportError, gymnasium.error.DependencyNotInstalled)
CARTPOLE = KNOWN_NAMES["CartPoleEnv"]


class OwnCartPole(CartPoleEnv):
    """May give actions another meaning."""


def test_each_known_environment_is_one_of_gymnasium() -> None:
    ids = {str(spec.entry_point).rpartition(":")[2] for spec in gymnasium.registry.values()}
    assert set(KNOWN_NAMES) <= ids


@pytest.mark.parametrize(
    ("name", "actions", "elements"),
    [
        ("Acrobot-v1", 3, 6),
        ("BipedalWalker-v3", 4, None),
        ("Blackjack-v1", 2, None),
        ("CarRacing-v3", 3, None),
        ("CarRacing-v3,continuous=False", 5, None),
        ("CartPole-v1", 2, 4),
        ("CliffWalking-v1", 4, None),
        ("FrozenLake-v1", 4, None),
        ("HalfCheetah-v5", 6, None),
        ("LunarLander-v3", 4, 8),
        ("LunarLander-v3,continuous=True", 2, 8),
        ("MountainCar-v0", 3, 2),
        ("MountainCarContinuous-v0", 1, 2),
        ("Pendulum-v1", 1, 3),
        ("Taxi-v4", 6, None),
    ],
)
def test_names(name: str, actions: int, elements: int | None) -> None:
    try:
        vector = envs.make_vector(f"gym:{name}", 1)
    except MISSING as error:
        pytest.skip(str(error))
    names = vector.metadata["action_names"]
    assert len(set(names)) == actions
    assert all(name and not name.isdigit() for name in names)
    if elements is not None:
        assert len(set(vector.metadata["element_names"])) == elements
    vector.close()


def test_the_frozen_lake_calls_its_directions_the_same() -> None:
    from gymnasium.envs.toy_text import frozen_lake

    (names,) = KNOWN_NAMES["FrozenLakeEnv"].actions
    for name in names:
        assert names.index(name) == getattr(frozen_lake, name.upper())


def test_names_of_actions_are_what_they_do() -> None:
    (pushes,) = CARTPOLE.actions
    for name, sign in (("left", -1), ("right", 1)):
        env = CartPoleEnv()
        env.reset(seed=0)
        before = env.state[1]
        (_, velocity, _, _), *_ = env.step(pushes.index(name))
        assert sign * (velocity - before) > 0

    (names,) = KNOWN_NAMES["TaxiEnv"].actions
    taxi = TaxiEnv()
    taxi.reset(seed=0)
    for name, row, column in (("down", 3, 2), ("up", 1, 2), ("right", 2, 3), ("left", 2, 1)):
        taxi.s = taxi.encode(2, 2, 0, 1)
        state, *_ = taxi.step(names.index(name))
        assert tuple(taxi.decode(state))[:2] == (row, column)
    for name, passenger, reward in (("pick up", 0, -1), ("drop off", 4, 20)):
        taxi.s = taxi.encode(0, 0, passenger, 0)
        assert taxi.step(names.index(name))[1] == reward

    (moves,) = KNOWN_NAMES["CliffWalkingEnv"].actions
    cliff = CliffWalkingEnv()
    cliff.reset(seed=0)
    for name, cell in (("up", 1 * 12 + 5), ("right", 2 * 12 + 6), ("left", 2 * 12 + 4), ("down", 3 * 12)):
        cliff.s = 2 * 12 + 5  # below is the cliff, from which one is taken to the start
        assert cliff.step(moves.index(name))[0] == cell


def test_wrappers_and_subclasses_may_give_another_meaning() -> None:
    def known(env: gymnasium.Env) -> dict[str, object]:
        return {name: value for name, value in with_known_names(env).metadata.items() if name.endswith("_names")}

    both = {"action_names": CARTPOLE.actions[0], "element_names": CARTPOLE.elements}
    assert known(TimeLimit(CartPoleEnv(), 10)) == both
    flipped = TransformAction(CartPoleEnv(), lambda action: 1 - action, CartPoleEnv().action_space)
    assert known(flipped) == {}
    space = CartPoleEnv().observation_space
    assert known(TransformObservation(CartPoleEnv(), np.flip, space)) == {}
    assert known(OwnCartPole()) == {}


def test_names_that_an_environment_has_stay() -> None:
    env = CartPoleEnv()
    env.metadata = {**env.metadata, "action_names": ("west", "east")}
    assert with_known_names(env).metadata["action_names"] == ("west", "east")
