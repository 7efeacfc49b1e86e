"""Observations of gymnasium's environments, and the errors for those that are not supported."""

import importlib.util
import re
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envs
from envs.gym import PACKAGES, adapt, make_env, one_hot_cells

FLOATS = spaces.Box(-2.0, 3.0, (2, 2), np.float64)


class Shows(gymnasium.Env):
    """Observations are samples of a space; `last` is the last."""

    def __init__(self, space: spaces.Space[Any], actions: Any = None) -> None:
        self.observation_space, self.action_space = space, actions or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
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
        (spaces.Box(0, 255, (4,), np.uint8), lambda x: x),
        (spaces.Dict({"a": FLOATS, "b": spaces.Discrete(2)}), lambda x: [*x["a"].ravel(), *np.eye(2)[x["b"]]]),
    ],
)
def test_other_observations_become_vectors(space: spaces.Space[Any], values: Any) -> None:
    env = adapt(Shows(space))
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        assert observation.dtype == env.observation_space.dtype == np.float32
        assert env.observation_space.contains(observation)
        np.testing.assert_allclose(observation, np.asarray(values(env.unwrapped.last), np.float32))


def test_images_are_kept_and_grey_ones_get_an_axis() -> None:
    colour = Shows(spaces.Box(0, 255, (12, 16, 3), np.uint8))
    assert adapt(colour) is colour
    grey = adapt(Shows(spaces.Box(0, 255, (12, 16), np.uint8)))
    observation, _ = grey.reset(seed=0)
    assert grey.observation_space == spaces.Box(0, 255, (12, 16, 1), np.uint8)
    assert np.array_equal(observation[..., 0], grey.unwrapped.last)


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (FLOATS, spaces.MultiDiscrete([3, 3]), r"action space: expected Discrete\(n\) from 0, got MultiDiscrete"),
        (FLOATS, spaces.Discrete(3, start=1), r"expected Discrete\(n\) from 0, got Discrete\(3, start=1\)"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), None, r"\[height, width, channels\], got \[4, 84, 84\]"),
        (FLOATS, spaces.Discrete(10**12), r"expected at most 1,000,000 actions, got Discrete\(10+\)"),
        (spaces.Discrete(10**12), None, r"expected 1 to 1,000,000 numbers .*, got 1,000,000,000,000 in Discrete"),
        (spaces.Box(0, 255, (1, 9, 1), np.uint8), None, r"expected images of at least 2 x 2 pixels, got \[1, 9, 1\]"),
        (spaces.Box(0, 255, (9, 1), np.uint8), None, r"expected images of at least 2 x 2 pixels, got \[9, 1\]"),
        (spaces.Box(0, 1, (0,)), None, r"expected 1 to 1,000,000 numbers .*, got 0 in Box"),
        (spaces.Tuple([FLOATS, spaces.Dict({})]), None, r"expected Box, .*, got Dict\(\) as observation\[1\]"),
    ],
)
def test_other_spaces_are_refused_by_name(space: spaces.Space[Any], actions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapt(Shows(space, actions))


@pytest.mark.parametrize(
    "words", [spaces.Text(5), spaces.OneOf([FLOATS, FLOATS]), spaces.Sequence(FLOATS), spaces.Graph(FLOATS, None)]
)
def test_observations_that_are_no_numbers_are_refused_wherever_they_are(words: spaces.Space[Any]) -> None:
    """gymnasium flattens text to numbers of characters, and a choice of spaces to one of them and padding."""
    nests = {
        "observation": words,
        r"observation\['told'\]": spaces.Dict({"seen": FLOATS, "told": words}),
        r"observation\[0\]\['told'\]\[1\]": spaces.Tuple([spaces.Dict(told=spaces.Tuple([FLOATS, words]))]),
    }
    for place, space in nests.items():
        with pytest.raises(
            ValueError, match=rf"^observation space: expected Box, .* got {type(words).__name__}.* as {place}$"
        ):
            adapt(Shows(space))


CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "images"),
    [
        (
            spaces.Dict(arm=FLOATS, eyes=spaces.Tuple([CAMERA, CAMERA])),
            ("observation['eyes'][0]", "observation['eyes'][1]"),
        ),
        (spaces.Dict(depth=spaces.Box(0, 9, (4, 5), np.uint8)), ("observation['depth']",)),
        (spaces.Box(0, 1, (4, 5, 3), np.float32), ("observation",)),
        (spaces.Dict(arm=FLOATS, keys=spaces.MultiBinary([4, 5])), ()),
        (CAMERA, None),
    ],
)
def test_images_that_become_part_of_a_vector_are_named(space: spaces.Space[Any], images: Any) -> None:
    found = adapt(Shows(space)).metadata.get("flattened_images")
    names = found and tuple(name.partition(" (")[0] for name in found)
    assert names == images


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("MiniGrid-MemoryS13-v0", "minigrid"),
        ("popgym-CountRecallEasy-v0", "popgym"),
        ("MysteryPath-v0", "memory_gym"),
        ("ALE/Pong-v5", "ale_py"),
        ("PongNoFrameskip-v4", "ale_py"),
    ],
)
def test_a_missing_package_is_named_with_its_installation(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"gym:{name} needs {module}: {re.escape(PACKAGES[module][1])}"):
        envs.make_vector(f"gym:{name}", 1)


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
    ("name", "size", "tile"),
    [("MiniGrid-DoorKey-6x6-v0", 7, 8), ("MiniGrid-LavaCrossingS9N1-v0", 5, 8), ("MiniGrid-MemoryS7-v0", 3, 28)],
)
def test_minigrid_pixels_are_those_of_its_own_wrapper(name: str, size: int, tile: int) -> None:
    """Also while a key is carried, through doors, and beside cells that are not seen."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    ours = make_env(name, view="pixels", agent_view_size=size, tile=tile)
    reference = ImgObsWrapper(RGBImgPartialObsWrapper(gymnasium.make(name, agent_view_size=size), tile_size=tile))
    assert (ours.reset(seed=0)[0] == reference.reset(seed=0)[0]).all()
    assert ours.observation_space == reference.observation_space
    carried = 0
    for action in np.random.default_rng(0).choice(6, p=[0.2, 0.2, 0.3, 0.1, 0.05, 0.15], size=1500):
        (view, *_, ended, cut, _), (expected, *_) = ours.step(action), reference.step(action)
        carried += ours.unwrapped.carrying is not None
        assert view.dtype == np.uint8
        assert (view == expected).all()
        if ended or cut:
            assert (ours.reset()[0] == reference.reset()[0]).all()
    assert carried > 100 or "Door" not in name


@minigrid
def test_minigrid_draws_itself_and_names_its_actions() -> None:
    spec = envs.drawing("gym:MiniGrid-MemoryS7-v0")
    assert spec.endswith("render_mode=rgb_array")
    assert envs.make_vector(spec, 1).metadata["action_names"][:3] == ["left", "right", "forward"]


@minigrid
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:MiniGrid-MemoryS7-v0,view=both", "view: expected symbols or pixels, got 'both'"),
        ("gym:MiniGrid-MemoryS7-v0,view=pixels,tile=0", "tile: expected an integer from 1 to 64, got 0"),
        ("gym:MiniGrid-GoToDoor-5x5-v0", "mission differs by episode"),
        ("gym:BabyAI-GoToObj-v0", "mission differs by episode"),
    ],
)
def test_what_minigrid_cannot_do(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"environment {spec}: .*{message}"):
        envs.make_vector(spec, 1)
