"""Any gymnasium id as a batch of environments that show images or vectors and have numbered actions.

`adapt` converts a single environment of any origin. `PACKAGES` lists packages that register ids when imported.
"""

import functools
import importlib
import os
import sys
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray

from envs.guard import is_foreign
from envs.processes import batch

Env = gymnasium.Env[Any, Any]


class Package(NamedTuple):
    """A package that registers ids that begin with `prefixes`, and the command that installs it."""

    prefixes: tuple[str, ...]
    installation: str


EXTRA = "pip install -e '.[envs]'"
#: By name of the module. memory-gym pins other releases of gymnasium and pygame, but works with these.
PACKAGES: dict[str, Package] = {
    "minigrid": Package(("MiniGrid-", "BabyAI-"), EXTRA),
    "popgym": Package(("popgym-",), EXTRA),
    "memory_gym": Package(
        ("MortarMayhem", "MysteryPath", "SearingSpotlights", "Endless-"),
        f"{EXTRA} && pip install --no-deps memory-gym==1.0.2",
    ),
}

#: One-hot bits of a cell of MiniGrid's view: its kind (11), colour (6) and state (3).
MINIGRID_BITS = (11, 6, 3)


def make(name: str, num_envs: int, /, *, processes: int = 1, **fields: Any) -> VectorEnv:
    """A batch of the environment with this id.

    Args:
        name: as in `gymnasium.make`, for instance "CartPole-v1" or "package:Id-v0", which imports the package first.
        num_envs: how many.
        processes: how many processes share them; 1 is this one.
        fields: arguments of the environment and of `gymnasium.make`, such as max_episode_steps.

    Raises:
        ValueError: if there is no such id or field, or the spaces are not supported.
        ImportError: if a package is missing.
    """
    return batch(functools.partial(make_env, name, **fields), num_envs, processes)


def make_env(name: str, /, *, view: str = "symbols", **fields: Any) -> Env:
    """One environment as `adapt` makes it; see `make`. `view` is for MiniGrid: symbols or pixels."""
    if name.count(":") > 1:
        raise ValueError(f"environment gym:{name}: expected an id such as CartPole-v1, or package:id")
    _register(name)
    try:
        env = gymnasium.make(name, disable_env_checker=True, **fields)
    except gymnasium.error.Error as error:
        raise ValueError(f"environment gym:{name}: {error}") from error
    except (TypeError, ValueError, ImportError) as error:
        original = error if is_foreign(error) else error.__cause__  # gymnasium wraps some
        if original and is_foreign(original) and not any(f"argument '{field}'" in str(error) for field in fields):
            raise original from None
        if isinstance(error, ImportError):
            raise
        raise ValueError(f"environment gym:{name}: {error}") from None
    if "minigrid" in sys.modules and isinstance(env.unwrapped, sys.modules["minigrid"].minigrid_env.MiniGridEnv):
        env = _minigrid(env, name, view)
    elif view != "symbols":
        raise ValueError(f"environment gym:{name}: a view is chosen for MiniGrid only, got view={view}")
    return adapt(env, f"gym:{name}")


def _register(name: str) -> None:
    """Imports the package that registers an id. Gymnasium imports a package that the id itself names."""
    for module, package in PACKAGES.items():
        if name.startswith(package.prefixes):
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
            os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # pygame looks for a sound card and complains
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ImportError(f"environment gym:{name} needs {error.name}: {package.installation}") from error


def adapt(env: Env, name: str) -> Env:
    """The environment with images as they are and all other observations as vectors.

    An image is a Box of uint8 [height, width, channels], or [height, width], to which an axis of channels is added.
    Every other Box, Discrete, MultiDiscrete, MultiBinary, and Tuples and Dicts of these become one float32 vector, in
    which whole numbers are one-hot (gymnasium's `flatten`).

    Raises:
        ValueError: for observations of another kind, and actions other than Discrete from 0.
    """
    actions, space = env.action_space, env.observation_space
    if not isinstance(actions, spaces.Discrete) or actions.start != 0:
        raise ValueError(f"environment {name}: action space: expected Discrete(n) from 0, got {_line(actions)}")
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        if len(space.shape) == 2:
            grey = spaces.Box(0, 255, (*space.shape, 1), np.uint8)
            return TransformObservation(env, lambda image: image[..., None], grey)
        if space.shape[2] > min(space.shape[:2]):
            raise ValueError(f"environment {name}: expected images [height, width, channels], got {list(space.shape)}")
        return env
    try:
        flat: Any = spaces.flatten_space(space)
    except NotImplementedError:  # a package's own kind of space
        flat = None
    if not isinstance(flat, spaces.Box):
        raise ValueError(
            f"environment {name}: observation space: expected Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or "
            f"Dict of them, got {_line(space)}"
        )
    vector = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
    return TransformObservation(env, lambda value: np.asarray(spaces.flatten(space, value), np.float32), vector)


def _minigrid(env: Env, name: str, view: str) -> Env:
    """MiniGrid without compass and mission: only the agent's view, [7, 7] cells or [56, 56, 3] pixels."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    if view not in ("symbols", "pixels"):
        raise ValueError(f"environment gym:{name}: view: expected symbols or pixels, got {view!r}")
    mission = env.observation_space["mission"]  # type: ignore[index]
    if mission.ordered_placeholders or mission.contains(""):  # BabyAI's missions may be any string
        raise ValueError(f"environment gym:{name}: its mission differs by episode, and missions are not shown")
    if view == "pixels":
        return ImgObsWrapper(RGBImgPartialObsWrapper(env))
    env = ImgObsWrapper(env)
    bits = int(np.prod(env.observation_space.shape[:2])) * sum(MINIGRID_BITS)  # type: ignore[index]
    return TransformObservation(env, one_hot_cells, spaces.Box(0, 1, (bits,), np.float32))


def one_hot_cells(cells: NDArray[np.uint8]) -> NDArray[np.float32]:
    """MiniGrid's symbols [H, W, 3], (kind, colour, state), as a float32 vector with `MINIGRID_BITS` bits a cell."""
    bits = (cells[..., index, None] == np.arange(size) for index, size in enumerate(MINIGRID_BITS))
    return np.concatenate(list(bits), axis=-1).ravel().astype(np.float32)


def _line(space: spaces.Space[Any]) -> str:
    return " ".join(str(space).split())
