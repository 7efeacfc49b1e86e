"""EnvPool's batched environments, which are C++ with threads: Atari, MuJoCo, MiniGrid and others.

EnvPool resets on the next step. Its seeds are chosen when a pool is made, so a reset with seeds makes another pool.
"""

import difflib
import functools
import os
import re
import tempfile
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.foreign import ForeignVectorEnv, require_environments, require_fields, threads
from envs.guard import ForeignError, ProcessDied
from envs.gym import MISSION_CHARACTERS, import_installed, one_hot_cells
from envs.processes import ProcessVectorEnv

INSTALLATION = "pip install -e '.[envpool]'"
SEEDS = 2**31
ALLOWED = {"num_threads": (1, 1024), "frame_skip": (1, 1000), "max_episode_steps": (1, 10**9)}
"""Limits of fields that many environments have, and that EnvPool does not check."""
RESERVED = {
    # What the adapter chooses.
    "num_envs",
    "batch_size",
    "num_threads",
    "max_num_players",
    "thread_affinity_offset",
    "seed",
    "env_seed",
    "base_path",
    "gym_reset_return_info",
    # What a pool plays: the id says it.
    "task",
    "task_name",
    "env_name",
}
"""Fields that users may not set."""
FILES = re.compile(r".*_(path|file|dir|args)")
"""Names of fields that name files and programs."""
WORD = re.compile(r"[\w-]*")
STACK = "stack_num"
"""Fields of images and stacks of frames: their frames are counted as in papers about Atari and VizDoom."""
MINIGRID = ("MiniGrid-", "BabyAI-")
MISSIONS = 16
"""How many episodes show whether MiniGrid's missions differ by episode."""


class PoolVectorEnv(ForeignVectorEnv):
    """A pool of one kind of environment.

    Args:
        name: EnvPool's id.
        options: of `envpool.make`.
    """

    def __init__(self, name: str, num_envs: int, options: dict[str, Any], render_mode: str | None = None) -> None:
        self.name = name
        self.options = options
        one = make_pool(name, 1, [0], **options)
        metadata: dict[str, Any] = {}
        if STACK in one.config:
            metadata["action_repeat"] = one.config["frame_skip"]
        observation_space = with_bounds(one.single_observation_space)
        action_space = with_bounds(one.single_action_space)
        one.close()
        self._read: Any = None
        if name.startswith(MINIGRID):
            metadata["action_names"] = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
            observation_space, self._read = _minigrid(observation_space, make_pool(name, MISSIONS, [*range(MISSIONS)]))
        super().__init__(num_envs, observation_space, action_space, **metadata)
        self.render_mode = render_mode
        self.envs = None

    def begin(self, seeds: list[int | None]) -> Any:
        """Begins an episode everywhere; in the pool that there is, if no row has a seed."""
        if self.envs is None or any(seed is not None for seed in seeds):
            self.close_extras()
            # Rows without a seed have a random one.
            chosen = np.random.SeedSequence().generate_state(self.num_envs).tolist()
            for row, seed in enumerate(seeds):
                if seed is not None:
                    chosen[row] = seed
            in_range = [seed % SEEDS for seed in chosen]
            self.envs = make_pool(self.name, self.num_envs, in_range, self.render_mode, **self.options)
        return self._seen(self.envs.reset()[0])

    def advance(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """One step everywhere."""
        observation, reward, terminated, truncated, _ = self.envs.step(actions)
        return self._seen(observation), reward, terminated, truncated

    def _seen(self, observation: Any) -> Any:
        return observation if self._read is None else self._read(observation)

    def render(self) -> tuple[Any, ...]:
        """What each environment draws of itself, uint8 [height, width, 3]."""
        return tuple(self.envs.render(np.arange(self.num_envs)))

    def close_extras(self, **_: Any) -> None:
        """Closes the pool."""
        if self.envs is not None:
            self.envs.close()


def make(name: str, num_envs: int, actors: int = 1, *, render_mode: str | None = None, **fields: Any) -> PoolVectorEnv:
    """A batch of EnvPool's environment `name`, such as Pong-v5.

    Args:
        actors: how many actors share the cores of this machine.
        render_mode: rgb_array if `render` is called.
        fields: num_threads, and EnvPool's numbers and words for this environment; none of them names a file.

    Raises:
        ImportError: without EnvPool, or what it needs for this environment.
        ValueError: if there is no such environment or field, for values that EnvPool does not take, and for games of
            several players.
    """
    envpool = import_installed("envpool", f"envpool:{name}", INSTALLATION)
    known = envpool.list_all_envs()
    if name not in known:
        close = difflib.get_close_matches(name, known)
        which = ", ".join(close) or "those of envpool.list_all_envs()"
        raise ValueError(f"EnvPool has no environment {name!r}; there are: {which}")
    try:
        config = envpool.make_spec(name).config._asdict()
    except ImportError as error:
        raise ImportError(f"envpool:{name}: {error}") from None
    if config["max_num_players"] != 1:
        raise ValueError(f"expected an environment of one player, got {config['max_num_players']} players")
    require_environments(num_envs)
    options = {"num_threads": threads(num_envs, actors), **fields}
    require_fields({field: value for field, value in options.items() if field in ALLOWED}, ALLOWED)
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode: expected rgb_array, got {render_mode!r}")

    chosen = {field: value for field, value in fields.items() if field != "num_threads"}
    _require_known(name, chosen, config)
    if chosen or render_mode:
        _try(name, tuple(sorted(chosen.items())), render_mode)
    return PoolVectorEnv(name, num_envs, options, render_mode)


def make_pool(name: str, num_envs: int, seeds: list[int], render_mode: str | None = None, **options: Any) -> Any:
    """EnvPool's own environment, of gymnasium's kind."""
    import envpool

    if render_mode is not None:
        options["render_mode"] = render_mode
    pool: Any = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seeds, **options)
    with warnings.catch_warnings():
        # It makes its spaces when they are first read, of bounds in float64.
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        assert pool.observation_space is not None
        assert pool.action_space is not None
    return pool


def _require_known(name: str, fields: dict[str, Any], config: dict[str, Any]) -> None:
    """Raises a ValueError for a field that EnvPool does not have or that may not be chosen, or of another type."""
    known = [field for field, default in config.items() if _may_be_chosen(field, default)]
    for field, value in fields.items():
        if field not in known:
            raise ValueError(f"envpool:{name} has no field {field!r}; there are: {', '.join(['num_threads', *known])}")
        default = config[field]
        if not _is_like(value, default):
            kind = f"a value of {type(default).__name__}"
            if isinstance(default, str):
                kind = "a word"
            raise ValueError(f"{field}: expected {kind}, such as {default!r}, got {value!r}")


def _may_be_chosen(field: str, default: Any) -> bool:
    """Whether users may set a field of EnvPool's: a number or a word that the adapter leaves to them."""
    if field in RESERVED or FILES.fullmatch(field):
        return False
    return isinstance(default, bool | int | float | str)


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of a field's default. A whole number may stand for a float."""
    if isinstance(default, float):
        return type(value) in (int, float)
    if isinstance(default, str):
        return isinstance(value, str) and WORD.fullmatch(value) is not None
    return type(value) is type(default)


@functools.cache
def _try(name: str, fields: tuple[tuple[str, Any], ...], render_mode: str | None) -> None:
    """Makes an environment with these fields in a process of its own: values that it cannot take end the process.

    Raises a ValueError if it does not begin an episode, or cannot be drawn.
    """
    make_env = functools.partial(_Trial, name, dict(fields), render_mode)
    try:
        ProcessVectorEnv(make_env, 1, 1, quiet=True, import_main=False).close()
    except (ForeignError, ProcessDied) as error:
        given = ", ".join(f"{field}={value}" for field, value in fields)
        if render_mode:
            given += f" render_mode={render_mode}"
        raise ValueError(f"EnvPool does not take {given.strip()}: {str(error).splitlines()[0]}") from None


class _Trial(gymnasium.Env[Any, Any]):
    """Raises or dies while it is made, if EnvPool does with these options."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def __init__(self, name: str, options: dict[str, Any], render_mode: str | None) -> None:
        # MuJoCo writes a file into the working directory and a line to standard output if it cannot draw.
        os.chdir(tempfile.gettempdir())
        os.dup2(2, 1)
        pool = make_pool(name, 1, [0], render_mode, num_threads=1, **options)
        pool.reset()
        if render_mode:
            pool.render(np.zeros(1, int))
        pool.close()


def with_bounds(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space with infinite bounds where EnvPool has those of floats in C++, of which the lower one is above 0."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: with_bounds(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([with_bounds(part) for part in space.spaces])
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    dtype: Any = space.dtype
    limits = np.finfo(dtype)
    # C++'s std::numeric_limits::min() is the least positive number, which EnvPool has for a lower bound.
    is_unbounded = np.isin(space.low, (limits.tiny, limits.min))
    low = np.where(is_unbounded, -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _minigrid(space: Any, episodes: Any) -> tuple[spaces.Space[Any], Any]:
    """MiniGrid's view as `envs.gym` shows it: one-hot cells, and the mission as text if it differs by episode.

    Args:
        space: of EnvPool's observations: the image [W, H, 3], the direction, and the mission in bytes.
        episodes: a pool, to see missions of.

    Returns:
        The space of what is seen of one environment, and a function to it from a batch of observations.
    """
    width, height = space["image"].shape[:2]
    cells = one_hot_cells(np.zeros((width, height, 3), np.uint8)).shape
    view = spaces.Box(0, 1, cells, np.float32)
    missions = _texts(episodes.reset()[0]["mission"])
    episodes.close()
    if len(set(missions)) == 1:
        return view, lambda seen: one_hot_cells(seen["image"])
    both = spaces.Dict(image=view, mission=spaces.Text(MISSION_CHARACTERS))
    return both, lambda seen: {"image": one_hot_cells(seen["image"]), "mission": _texts(seen["mission"])}


def _texts(bytes_: NDArray[np.uint8]) -> tuple[str, ...]:
    """Texts from their bytes [N, length], which end with zeros."""
    return tuple([row.tobytes().rstrip(b"\0").decode(errors="replace") for row in bytes_])
