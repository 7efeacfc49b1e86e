"""Any gymnasium id as an environment whose observations and actions have one of the few forms that agents know.

`adapt` converts a single environment of any origin. `PACKAGES` lists packages that register ids when imported.
"""

import functools
import importlib.util
import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dm_env
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TransformObservation
from numpy.typing import NDArray

from envs.actions import adapt_actions
from envs.gymnasium_names import with_known_names
from envs.masks import MASK, PossibleActions, has_mask, with_mask
from envs.observations import adapt_observations
from envs.outputs import checked, line, wrappers_of

logger = logging.getLogger(__name__)

Env = gymnasium.Env[Any, Any]
EXTRA = "pip install -e '.[envs]'"
PACKAGES: dict[str, tuple[str, str]] = {
    "minigrid": ("MiniGrid-|BabyAI-", EXTRA),
    "popgym": ("popgym-", EXTRA),
    "memory_gym": (
        "MortarMayhem|MysteryPath|SearingSpotlights|Endless-",
        f"{EXTRA} && pip install --no-deps memory-gym==1.0.2",
    ),
    "ale_py": (r"ALE/|\w+NoFrameskip-v", EXTRA),
    "miniworld": ("MiniWorld-", "pip install miniworld"),
    "vizdoom.gymnasium_wrapper": ("Vizdoom", "pip install vizdoom"),
    "shimmy": ("bsuite/|dm_control/", "pip install 'shimmy[bsuite,dm-control]'"),
}
"""Module -> the ids that it registers when it is imported (how they begin), and the command that installs it. Runs of
other people may name these modules. memory-gym pins other releases of gymnasium and pygame, but works with these."""
NORMALIZING = {
    "NormalizeObservation": "each copy of it standardizes observations by statistics of its own, which no checkpoint "
    "keeps: evaluations and films begin them anew, and show the agent others than it learned from",
    "NormalizeReward": "returns are of rewards that each copy of it divides by statistics of its own, which "
    "evaluations begin anew, and not of the environment's rewards",
}
"""Wrappers of gymnasium that go on learning statistics, and what that means for a run."""
MINIGRID_BITS = (11, 6, 3)
"""One-hot bits of a cell of MiniGrid's view: its kind (11), color (6) and state (3)."""
MISSION_CHARACTERS = 1000
"""More than a mission of BabyAI has."""
_warned: set[str] = set()
"""Environments that have been made in this process, with the warnings of gymnasium."""


def make_env(name: str, /, **fields: Any) -> Env:
    """An environment as `adapt` makes it.

    Args:
        name: as in `gymnasium.make`, for instance "CartPole-v1" or "package:Id-v0", which imports the package first;
            or "module:Class" of an environment that is not registered, or "module:function" that makes one.
        fields: arguments of the environment and of `gymnasium.make`, such as max_episode_steps. Of MiniGrid also
            `view`, "symbols" or "pixels", and `tile`, height and width of a cell in pixels; see `_minigrid`. `shrink`
            as of `adapt`, and `action_mask`, whether infos or a method have a mask (see `envs.masks`), unless the
            environment has such a parameter itself.

    Raises:
        ValueError: if there is no such id or field, or the spaces are not supported.
        ImportError: if a package is missing.
    """
    if name.count(":") > 1:
        raise ValueError("expected an id such as CartPole-v1, or package:id")
    identity = spec_of_object(name) or register(name)
    of_images = _pop_ours(identity, fields, ("shrink",))
    of_view = _pop_ours(identity, fields, ("view", "tile"))
    of_mask = _pop_ours(identity, fields, (MASK,))
    env = with_known_names(_make_checked(name, identity, fields))
    for wrapper in _normalizing(env):
        _warn_of(name, wrapper)
    if _is_of_minigrid(env):
        env = _minigrid(env, **of_view)
    elif of_view:
        raise ValueError(f"{' and '.join(of_view)}: expected an environment of MiniGrid, or one with such a parameter")
    return adapt(with_mask(env, **of_mask), **of_images)


def _make_checked(name: str, identity: str | EnvSpec, fields: dict[str, Any]) -> Env:
    """What `gymnasium.make` makes of an id or of an object, as `envs.outputs.checked` has it.

    Raises a ValueError or an ImportError, which say more than gymnasium's own; see `make_env`.
    """
    if isinstance(identity, EnvSpec) and "id" in fields:  # which `gymnasium.make` calls its own first parameter
        identity.kwargs["id"] = fields.pop("id")
    try:
        with warnings.catch_warnings():
            # Films try whether an environment draws itself: it need not say before that it does.
            warnings.filterwarnings("ignore", ".*render_mode", UserWarning)
            if name in _warned:  # else said for each environment of a batch
                warnings.simplefilter("ignore", UserWarning)
                warnings.simplefilter("ignore", DeprecationWarning)  # of an id that has a newer version
            _warned.add(name)
            return checked(gymnasium.make(identity, disable_env_checker=True, **fields))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"gym:{name}: {error}") from None
    except ModuleNotFoundError as error:
        # Gymnasium's own environments name some of the packages that are missing, but not all.
        family = _own_family(identity)
        if not family:
            raise
        raise ImportError(f"gym:{name} needs {error.name}: pip install 'gymnasium[{family}]'") from None
    except gymnasium.error.Error as error:
        is_known = isinstance(error, gymnasium.error.VersionNotFound | gymnasium.error.DeprecatedEnv)
        others = "" if is_known else _other_names(name, identity)
        raise ValueError(f"{error}{others}") from error


def _normalizing(env: Env) -> list[str]:
    """Those of `NORMALIZING` in which an environment is, if their statistics still change."""
    found = []
    for layer in wrappers_of(env):
        for wrapper in (NormalizeObservation, NormalizeReward):
            if isinstance(layer, wrapper) and layer.update_running_mean:
                found.append(wrapper.__name__)
    return found


@functools.cache
def _warn_of(name: str, wrapper: str) -> None:
    """Warns once in a process, however many environments there are."""
    instead = "leave the wrapper out: the preset general needs none"
    logger.warning("gym:%s is in a %s: %s; %s", name, wrapper, NORMALIZING[wrapper], instead)


def _own_family(identity: str | EnvSpec) -> str:
    """The family of one of gymnasium's own environments, such as box2d, by which its extras are named; else empty."""
    spec = gymnasium.registry.get(str(identity))
    entry_point = str(spec.entry_point) if spec else ""
    if not entry_point.startswith("gymnasium.envs."):
        return ""
    return entry_point.split(".")[2]


def _other_names(name: str, identity: str | EnvSpec) -> str:
    """What else the user may have meant by the name of an environment that cannot be made, as a further sentence."""
    module, colon, own_name = name.partition(":")
    if not colon:
        return f" A class of your own is gym:MODULE:{name}."
    is_object = isinstance(identity, EnvSpec)
    if not package_of(name) and not is_object:
        return f" Nor has {module} a gymnasium.Env, or a function, of the name {own_name}."
    return ""


def _is_of_minigrid(env: Env) -> bool:
    """Whether an environment, beneath its wrappers, is one of MiniGrid's, which has been imported then."""
    minigrid: Any = sys.modules.get("minigrid")
    return minigrid is not None and isinstance(env.unwrapped, minigrid.minigrid_env.MiniGridEnv)


def _pop_ours(identity: str | EnvSpec, fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Removes from the fields those of the names that are no parameters of the environment itself, and returns them."""
    given = [name for name in names if name in fields]
    if not given:
        return {}
    own: Collection[str] = ()
    with suppress(Exception):  # an id that is none, or a creator whose parameters are not known
        own = _parameters(identity)
    ours = {}
    for name in given:
        if name not in own:
            ours[name] = fields.pop(name)
    return ours


def _parameters(identity: str | EnvSpec) -> Collection[str]:
    """Names of the parameters of what makes an environment. Raises errors of many kinds if they are not known."""
    if isinstance(identity, EnvSpec):
        spec = identity
    else:
        _, _, registered = identity.rpartition(":")
        spec = gymnasium.spec(registered)
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    return inspect.signature(creator).parameters.keys()


def spec_of_object(name: str) -> EnvSpec | None:
    """What gymnasium makes an environment from that is no registered id, but a class or function; None for an id.

    Raises:
        ImportError: if there is no such module.
        ValueError: for another class.
    """
    module, colon, identity = name.partition(":")
    if not colon or package_of(name):
        return None
    # To import the module may register the id.
    imported = import_named(module, f"gym:{name}")
    if identity in gymnasium.registry:
        return None
    found: Any = getattr(imported, identity, None)
    is_class = inspect.isclass(found)
    if not is_class and not inspect.isfunction(found):
        return None

    if is_class and not issubclass(found, gymnasium.Env):
        got = f"the class {found.__module__}.{found.__qualname__}, which is none: wrap it in one"
        if issubclass(found, VectorEnv):
            got = "a gymnasium.vector.VectorEnv: name the environment of one row, of which batches are made here"
        if issubclass(found, dm_env.Environment):
            got = f"a dm_env.Environment, whose spec is dm:{name}"
        raise ValueError(f"expected a gymnasium.Env, or a function that makes one, got {got}")
    return EnvSpec(f"{identity}-v0", entry_point=found)


def import_named(module: str, spec: str) -> Any:
    """Imports the module that a spec names; if there is none, an ImportError says where it was looked for.

    It is looked for in the working directory, too, where Python does not look by itself: the folder may be of someone
    else, and libraries import many optional packages, whose names a file there may have. From now on it is on the path,
    as the last place, so that a module finds those beside it.
    """
    _see_working_directory(module)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a package that the module needs
        expected = f"{spec}: expected a module in the working directory or an installed one, got {module!r}"
        hint = ""
        package, dot, _ = module.partition(".")
        if module.endswith(".py"):
            hint = f"; without its ending: {spec.replace('.py:', ':')}"
        elif dot and Path(package).is_dir():
            place = getattr(sys.modules.get(package), "__file__", None) or "elsewhere"
            hint = f"; the folder {package} here is hidden by the package of that name in {place}: rename it"
        raise ImportError(f"{expected}{hint}") from None


def _see_working_directory(module: str) -> None:
    """Appends the working directory to the path of modules if nothing else has the package of a module."""
    package, _, _ = module.partition(".")
    folder = os.getcwd()
    with suppress(ImportError, ValueError):  # a name that is none, or a module that is being made
        is_elsewhere = package in sys.modules or importlib.util.find_spec(package) is not None
        if not is_elsewhere and folder not in sys.path:
            sys.path.append(folder)
            importlib.invalidate_caches()


def register(name: str) -> str:
    """Imports the package that registers an id, if it is one of `PACKAGES`; returns the id for `gymnasium.make`.

    Gymnasium imports other packages, which the id itself names.
    """
    module = package_of(name)
    if not module:
        return name
    import_installed(module, f"gym:{name}", PACKAGES[module][1])
    return name.rpartition(":")[2]


def package_of(name: str) -> str:
    """The one of `PACKAGES` that registers an id; empty if it is none of them."""
    named, _, identity = name.rpartition(":")
    for module, (pattern, _) in PACKAGES.items():
        if named == module or (not named and re.match(pattern, identity)):
            return module
    return ""


def import_installed(module: str, spec: str, installation: str) -> Any:
    """Imports a module that a spec needs, but not from the working directory: that may be a folder of someone else's.

    Raises an ImportError with the command that installs it if it is missing.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # pygame looks for a sound card and complains
    if lacks_screen():
        os.environ.setdefault("PYGLET_HEADLESS", "1")  # pyglet, with which MiniWorld draws, cannot begin otherwise
    package, _, _ = module.partition(".")
    if package not in sys.modules and _is_in_working_directory(package):
        raise ImportError(f"{spec} needs {package}, installed and not in the working directory: {installation}")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"{spec} needs {error.name}: {installation}") from None
    if package == "ale_py":
        ale = sys.modules[package]
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # else every environment prints a greeting
    return found


def lacks_screen() -> bool:
    """Whether this machine surely has no screen. On other systems than Linux no variable tells."""
    has_screen = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return sys.platform == "linux" and not has_screen


def _is_in_working_directory(package: str) -> bool:
    """Whether the working directory is where Python would find a package that is not imported yet."""
    source = importlib.util.find_spec(package)
    if source is None:
        return False
    # A package has folders, a module of one file has that file.
    places = source.submodule_search_locations or [source.origin or ""]
    folders = [Path(place).parent.resolve() for place in places]
    return Path.cwd() in folders


def adapt(env: Env, shrink: int = 1) -> Env:
    """The environment with observations and actions of the few forms that agents know.

    Observations are images, vectors, several of these, or one of all that beside words; see `envs.observations`.
    Actions are a number or a vector; see `envs.actions`. `metadata["action_mask_at"]` is where in the vector the mask
    of an environment begins that has one; see `envs.masks`.

    Args:
        env: returns what its spaces say; see `envs.outputs.checked`.
        shrink: images are made smaller by so many times a side; see `shown_as`.

    Raises:
        ValueError: for spaces that have no such form; see `shown_as`, `action_vector` and `PossibleActions`.
    """
    adapted = adapt_actions(env)
    if has_mask(env.observation_space):
        adapted = PossibleActions(adapted)
    return adapt_observations(adapted, shrink)


def _minigrid(env: Env, view: str = "symbols", tile: int = 8) -> Env:
    """MiniGrid's view of the agent without the compass: [7, 7] cells, or [7 tile, 7 tile, 3] pixels.

    With the mission as text, if it differs by episode. Of an environment that does not show MiniGrid's symbols, such as
    one in a wrapper of the user's, the observations stay as they are, but for the mission.
    """
    names = [action.name for action in env.unwrapped.actions]  # type: ignore[attr-defined]
    env.metadata = {**env.metadata, "action_names": names}
    if not _shows_symbols(env):
        if (view, tile) != ("symbols", 8):
            expected = "MiniGrid's own observations, of which they choose the form"
            raise ValueError(f"view and tile: expected {expected}, got {line(env.observation_space)}")
        return _with_text(env)
    if view not in ("symbols", "pixels"):
        raise ValueError(f"view: expected symbols or pixels, got {view!r}")
    if type(tile) is not int or not 1 <= tile <= 64:
        raise ValueError(f"tile: expected an integer from 1 to 64, got {tile!r}")
    given: Any = env.observation_space
    width, height = given["image"].shape[:2]
    if view == "pixels":
        look: Callable[[Any], Any] = functools.partial(draw_cells, tile=tile)
        seen: spaces.Box[Any] = spaces.Box(0, 255, (tile * height, tile * width, 3), np.uint8)
    else:
        look = one_hot_cells
        seen = spaces.Box(0, 1, (width * height * sum(MINIGRID_BITS),), np.float32)

    if _differs(given["mission"]):
        both = spaces.Dict(image=seen, mission=spaces.Text(MISSION_CHARACTERS))
        return TransformObservation(env, lambda own: {"image": look(own["image"]), "mission": own["mission"]}, both)
    return TransformObservation(env, lambda own: look(own["image"]), seen)


def _shows_symbols(env: Env) -> bool:
    """Whether observations of an environment of MiniGrid are its symbols: no wrapper makes others of them."""
    from minigrid.core.mission import MissionSpace
    from minigrid.wrappers import FullyObsWrapper, ViewSizeWrapper

    space = env.observation_space
    if not isinstance(space, spaces.Dict) or set(space.spaces) != {"image", "direction", "mission"}:
        return False
    layer = env
    is_same = space == env.unwrapped.observation_space
    while isinstance(layer, gymnasium.Wrapper):
        shows_cells = isinstance(layer, FullyObsWrapper | ViewSizeWrapper)
        if isinstance(layer, gymnasium.ObservationWrapper) and not shows_cells:
            return False
        is_same = is_same or shows_cells
        layer = layer.env
    return is_same and isinstance(space["mission"], MissionSpace)


def _differs(mission: Any) -> bool:
    """Whether a space of missions has several. BabyAI's may be any string."""
    return bool(mission.ordered_placeholders) or mission.contains("")


def _with_text(env: Env) -> Env:
    """An environment of MiniGrid with the mission as text, or without it if it has only one; all else as it is."""
    from minigrid.core.mission import MissionSpace

    space = env.observation_space
    mission = space.spaces.get("mission") if isinstance(space, spaces.Dict) else None
    if not isinstance(space, spaces.Dict) or not isinstance(mission, MissionSpace):
        return env
    parts = dict(space.spaces)
    del parts["mission"]
    if _differs(mission):
        parts["mission"] = spaces.Text(MISSION_CHARACTERS)
    return TransformObservation(env, lambda own: {name: own[name] for name in parts}, spaces.Dict(parts))


def draw_cells(cells: NDArray[np.uint8], tile: int) -> NDArray[np.uint8]:
    """The pixels [tile H, tile W, 3] of MiniGrid's RGBImgPartialObsWrapper from its symbols [W, H, 3].

    That wrapper computes the view a second time and joins its tiles one by one, which takes twice as long as the rest
    of a step. Of the whole grid, which FullyObsWrapper shows, all cells are drawn as seen.
    """
    from minigrid.core.constants import OBJECT_TO_IDX

    width, height = cells.shape[:2]
    # In its own view the agent has no symbol: it is at the bottom, and looks up.
    place = (width // 2, height - 1)
    looks = 3
    has_symbol = cells[..., 0] == OBJECT_TO_IDX["agent"]
    if has_symbol.any():
        x, y = np.argwhere(has_symbol)[0].tolist()
        place = (x, y)
        looks = int(cells[x, y, 2])
    tiles = []
    for y in range(height):
        for x in range(width):
            kind, color, state = cells[x, y].tolist()
            direction = looks if (x, y) == place else None
            tiles.append(_tile(kind, color, state, direction, tile))
    # From [H W, tile, tile, 3]: the rows of pixels of a row of tiles are joined.
    by_place = np.stack(tiles).reshape(height, width, tile, tile, 3)
    return by_place.swapaxes(1, 2).reshape(height * tile, width * tile, 3)


@functools.cache
def _tile(kind: int, color: int, state: int, direction: int | None, size: int) -> NDArray[np.uint8]:
    """A cell as MiniGrid draws it: lighter if it is seen, and with the agent on it where that looks in a direction."""
    from minigrid.core.constants import IDX_TO_COLOR, OBJECT_TO_IDX
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import WorldObj

    item = WorldObj.decode(kind, color, state)
    if item is not None:
        item.color = IDX_TO_COLOR[color]  # a goal's is not decoded
    is_seen = kind != OBJECT_TO_IDX["unseen"]
    drawn = Grid.render_tile(item, direction, is_seen, size)
    return drawn.astype(np.uint8)  # as Grid.render does


def one_hot_cells(cells: NDArray[np.uint8]) -> NDArray[np.float32]:
    """MiniGrid's symbols [..., W, H, 3], (kind, color, state), as float32 vectors with `MINIGRID_BITS` bits a cell.

    Where the agent itself is shown, its state is where it looks: of four directions, the last one has no bit.
    """
    one_hots = [cells[..., index, None] == np.arange(size) for index, size in enumerate(MINIGRID_BITS)]
    bits = np.concatenate(one_hots, axis=-1)  # [..., W, H, bits]
    return bits.reshape(*cells.shape[:-3], -1).astype(np.float32)
