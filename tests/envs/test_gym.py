"""Observations of gymnasium's environments, and the errors for those that are not supported."""

import importlib.util
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envs
from envs.gym import PACKAGES, adapt, one_hot_cells

FLOATS = spaces.Box(-2.0, 3.0, (2, 2), np.float64)


class Shows(gymnasium.Env):
    """Observations are samples of a space; `last` is the last."""

    def __init__(self, space: spaces.Space, actions: spaces.Space | None = None) -> None:
        self.observation_space, self.action_space = space, actions or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.last = self.observation_space.sample()
        return self.last, {}


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (spaces.Discrete(3, start=4), lambda x: np.eye(3)[x - 4]),
        (spaces.MultiDiscrete([2, 3]), lambda x: [*np.eye(2)[x[0]], *np.eye(3)[x[1]]]),
        (spaces.MultiBinary(3), lambda x: x),
        (FLOATS, lambda x: x.ravel()),
        (spaces.Box(-9, 9, (), np.int64), lambda x: [x]),
        (spaces.Box(0, 255, (4,), np.uint8), lambda x: x),
        (spaces.Tuple((spaces.Discrete(2), FLOATS)), lambda x: [*np.eye(2)[x[0]], *x[1].ravel()]),
        (spaces.Dict({"a": FLOATS, "b": spaces.Discrete(2)}), lambda x: [*x["a"].ravel(), *np.eye(2)[x["b"]]]),
    ],
)
def test_other_observations_become_vectors(space: spaces.Space, values: Any) -> None:
    env = adapt(Shows(space), "test")
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        assert observation.dtype == env.observation_space.dtype == np.float32
        assert env.observation_space.contains(observation)
        np.testing.assert_allclose(observation, np.asarray(values(env.unwrapped.last), np.float32))  # type: ignore[attr-defined]


def test_images_are_kept_and_grey_ones_get_an_axis() -> None:
    colour = Shows(spaces.Box(0, 255, (12, 16, 3), np.uint8))
    assert adapt(colour, "test") is colour
    grey = adapt(Shows(spaces.Box(0, 255, (12, 16), np.uint8)), "test")
    observation, _ = grey.reset(seed=0)
    assert grey.observation_space == spaces.Box(0, 255, (12, 16, 1), np.uint8)
    assert np.array_equal(observation[..., 0], grey.unwrapped.last)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (FLOATS, spaces.MultiDiscrete([3, 3]), r"action space: expected Discrete\(n\) from 0, got MultiDiscrete"),
        (FLOATS, spaces.Box(-1, 1, (2,)), r"expected Discrete\(n\) from 0, got Box"),
        (FLOATS, spaces.Discrete(3, start=1), r"expected Discrete\(n\) from 0, got Discrete\(3, start=1\)"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), None, r"\[height, width, channels\], got \[4, 84, 84\]"),
        (spaces.Sequence(spaces.Discrete(2)), None, "observation space: expected Box, .* got Sequence"),
        (spaces.Dict({"a": spaces.Sequence(FLOATS)}), None, "observation space: expected Box, .* got Dict"),
        (spaces.Space(), None, "observation space: expected Box"),
    ],
)
def test_other_spaces_are_refused_by_name(space: spaces.Space, actions: spaces.Space, message: str) -> None:
    with pytest.raises(ValueError, match=f"environment gym:Shows-v0: .*{message}"):
        adapt(Shows(space, actions), "gym:Shows-v0")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:", "Malformed environment ID"),
        ("gym:a:b:c", "gym:a:b:c: expected an id such as CartPole-v1, or package:id"),
        ("gym:CartPole-v1,max_episode_steps=-3", "gym:CartPole-v1: .*max_episode_steps"),
        ("gym:CartPol-v1", "gym:CartPol-v1: .* Did you mean: `CartPole`"),
        ("gym:CartPole-v1,gravity=3", "unexpected keyword argument 'gravity'"),
        ("gym:CartPole-v1,num_envs=3", "unexpected keyword argument 'num_envs'"),
        ("gym:CartPole-v1,disable_env_checker=False", "multiple values for keyword argument 'disable_env_checker'"),
        ("gym:CartPole-v1,view=pixels", "for MiniGrid only"),
        ("gym:CartPole-v1,processes=none", "processes: expected an integer of at least 1, got 'none'"),
        ("gym:Pendulum-v1", r"gym:Pendulum-v1: action space: expected Discrete\(n\) from 0, got Box"),
    ],
)
def test_wrong_names_and_fields(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make_vector(spec, 1)


def test_a_package_named_in_the_id_is_imported() -> None:
    with pytest.raises(ImportError, match="nowhere"):
        envs.make_vector("gym:nowhere:Id-v0", 1)
    assert envs.make_vector("gym:envs.rooms:compressive/RoomsSelectNonmatchingObject-Small-v0", 1).num_envs == 1


@pytest.mark.parametrize(
    ("name", "module"),
    [("MiniGrid-MemoryS13-v0", "minigrid"), ("popgym-CountRecallEasy-v0", "popgym"), ("MysteryPath-v0", "memory_gym")],
)
def test_a_missing_package_is_named_with_its_installation(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        envs.make_vector(f"gym:{name}", 1)
    assert str(caught.value) == f"environment gym:{name} needs {module}: {PACKAGES[module].installation}"


minigrid = pytest.mark.skipif(not importlib.util.find_spec("minigrid"), reason="minigrid is not installed")


@minigrid
def test_minigrid_symbols_are_those_of_its_own_one_hot_wrapper() -> None:
    from minigrid.wrappers import OneHotPartialObsWrapper

    env = gymnasium.make("MiniGrid-Unlock-v0")
    reference = OneHotPartialObsWrapper(env)
    env.reset(seed=0)
    for action in env.unwrapped.np_random.integers(7, size=60):
        cells = env.step(action)[0]["image"]
        bits = reference.observation({"image": cells})["image"]
        assert np.array_equal(one_hot_cells(cells), bits.ravel())
        assert one_hot_cells(cells).sum() == 3 * 49


@minigrid
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:MiniGrid-MemoryS7-v0,view=both", "view: expected symbols or pixels, got 'both'"),
        ("gym:MiniGrid-GoToDoor-5x5-v0", "mission differs by episode"),
        ("gym:BabyAI-GoToObj-v0", "mission differs by episode"),
    ],
)
def test_what_minigrid_cannot_do(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{spec.partition(',')[0]}: .*{message}"):
        envs.make_vector(spec, 1)
