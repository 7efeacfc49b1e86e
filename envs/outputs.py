"""What an environment returns, checked: its code is foreign, and all that follows relies on spaces, shapes and dtypes.

`CheckedEnv` stands around an environment's own code, beneath all that reads what it returns. Errors name the call, the
field, what its space says and what came; `envs.guard` adds the environment. Infos are not checked: of them only the
counters are read that an environment names (see `envs.processes`).
"""

import inspect
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from envs.guard import OutputError

Env = gymnasium.Env[Any, Any]
NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose values are arrays of numbers."""
Place = tuple[Any, ...]
"""Keys and indices that lead to a part of a nest."""
NUMBERS = (float, int)
LISTS = (tuple, list)
LARGEST = float(np.finfo(np.float32).max)
"""The greatest magnitude of numbers that are learned from, which are float32."""
MOST_NUMBERS = 1_000_000
"""Most numbers of an observation that is a vector, and most actions."""
SHOWN = 6
"""Most numbers of an array that an error shows; of longer ones it shows the range."""
LONGEST_LINE = 300
"""Most characters of a space that an error shows; of longer ones it shows the beginning and the end."""
RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations, rewards and ends of episodes are what its spaces and gymnasium promise.

    Rewards are floats, observations arrays of their space's dtype; see `conformer`.

    Raises:
        ValueError: if its `reset` or `step` cannot be called as gymnasium's.
        OutputError: from `reset` and `step`, if they return anything else.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        # Of the space as it is now: environments may change their own later.
        self._conform_first = conformer(env.observation_space, "reset: observation")
        self._conform = conformer(env.observation_space, "step: observation")
        _require_call("reset", _called(env, "reset"), seed=0, options=None)
        _require_call("step", _called(env, "step"), 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begins an episode."""
        answer = self.env.reset(seed=seed, options=options)
        observation, infos = _values("reset", answer, RESET)
        return self._conform_first(observation), infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """One step."""
        answer = self.env.step(action)
        observation, reward, terminated, truncated, infos = _values("step", answer, STEP)
        return (
            self._conform(observation),
            number(reward, "step: reward"),
            flag(terminated, "step: terminated"),
            flag(truncated, "step: truncated"),
            infos,
        )


def checked(env: Env) -> Env:
    """The environment with a `CheckedEnv` beneath the wrappers of `gymnasium.make`, which unpack what it returns.

    Raises a ValueError for spaces that are none, and for metadata of a form that is not known.
    """
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            raise ValueError(f"{name}: expected a space of gymnasium, got {describe_value(space)}")
    _require_metadata(env.metadata)
    if isinstance(env, TimeLimit | OrderEnforcing):
        env.env = checked(env.env)
        return env
    return CheckedEnv(env)


def wrappers_of(env: Env) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """The wrappers of an environment, the outer ones first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _require_metadata(metadata: Mapping[str, Any]) -> None:
    """Raises a ValueError for entries that this program reads and that have another form than it expects."""
    repeat = metadata.get("action_repeat", 1)
    is_whole = isinstance(repeat, int | np.integer) and not isinstance(repeat, bool)
    if not is_whole or repeat < 1:
        raise ValueError(f"metadata['action_repeat']: expected the number of frames of a step, got {repeat!r}")
    for name in ("episode_metrics", "action_names", "observation_names", "element_names"):
        words = metadata.get(name, ())
        if not isinstance(words, tuple | list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"metadata[{name!r}]: expected a tuple of words, got {words!r}")
    pace = metadata.get("render_fps")
    is_number = isinstance(pace, int | float | np.number) and math.isfinite(pace) and pace >= 0
    if pace is not None and not is_number:
        raise ValueError(f"metadata['render_fps']: expected a number of pictures a second, got {pace!r}")


def _called(env: Env, name: str) -> Any:
    """The method that a call reaches first, but for wrappers of gymnasium's, which pass their arguments on."""
    while isinstance(env, gymnasium.Wrapper):
        method = getattr(type(env), name)
        if not method.__module__.startswith("gymnasium."):
            break
        env = env.env
    return getattr(env, name)


def _require_call(name: str, method: Any, *arguments: Any, **options: Any) -> None:
    try:
        signature = inspect.signature(method)
    except ValueError:  # of compiled code, whose parameters are not known
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError:
        expected = inspect.signature(getattr(gymnasium.Env, name))
        raise ValueError(f"{name}: expected parameters as gymnasium's {expected}, got {signature}") from None


def _values(call: str, answer: Any, names: tuple[str, ...]) -> Any:
    """The values that a call returned, if there are as many as names."""
    if isinstance(answer, LISTS) and len(answer) == len(names):
        return answer
    got = describe_value(answer)
    if isinstance(answer, LISTS):
        got = str(len(answer))
    raise OutputError(f"{call}: expected {len(names)} values ({', '.join(names)}) as gymnasium's Env, got {got}")


def conformer(space: spaces.Space[Any], name: str) -> Callable[[Any], Any]:
    """A function that returns a value as a space says, with an array of its shape and dtype at every leaf.

    Numbers of another dtype are converted if their values allow it: floats are rounded, whole numbers must stay as they
    are (those for Discrete are Python ints). The limits of a Box and of a Text do not count, as many environments
    exceed them. Further keys of dicts are left out, and values of other spaces are returned as they are. The function
    is called at every step of every environment, so everything that depends on the space alone is done here.

    Raises:
        OutputError: by the function, for another shape, a missing part, floats that are not finite in float32, what is
            no text in place of one, and values outside of Discrete, MultiDiscrete and MultiBinary; begins with `name`
            and the place in the value.
    """
    if isinstance(space, spaces.Dict):
        return _dict_conformer(space, name)
    if isinstance(space, spaces.Tuple):
        return _tuple_conformer(space, name)
    if isinstance(space, spaces.Discrete):
        return _discrete_conformer(space, name)
    if isinstance(space, spaces.Text):
        return _text_conformer(name)
    if not isinstance(space, NUMERIC):
        return lambda value: value
    return _array_conformer(space, name)


def _dict_conformer(space: spaces.Dict, name: str) -> Callable[[Any], Any]:
    parts = {key: conformer(part, f"{name}[{key!r}]") for key, part in space.spaces.items()}

    def conform(value: Any) -> Any:
        if not isinstance(value, Mapping) or any(key not in value for key in parts):
            raise OutputError(f"{name}: expected a dict of {_keys(parts)}, got {describe_value(value)}")
        return {key: part(value[key]) for key, part in parts.items()}

    return conform


def _tuple_conformer(space: spaces.Tuple, name: str) -> Callable[[Any], Any]:
    parts = [conformer(part, f"{name}[{index}]") for index, part in enumerate(space.spaces)]

    def conform(value: Any) -> Any:
        if not isinstance(value, LISTS):
            raise OutputError(f"{name}: expected a tuple of {len(parts)}, got {describe_value(value)}")
        if len(value) != len(parts):
            raise OutputError(f"{name}: expected a tuple of {len(parts)}, got one of {len(value)}")
        return tuple([part(item) for part, item in zip(parts, value)])

    return conform


def _discrete_conformer(space: spaces.Discrete, name: str) -> Callable[[Any], Any]:
    first = int(space.start)
    last = first + int(space.n) - 1

    def conform(value: Any) -> Any:
        whole = value if type(value) is int else int(_converted(space, value, name))
        if not first <= whole <= last:
            raise OutputError(f"{name}: expected a value of {line(space)}, got {describe_value(value)}")
        return whole

    return conform


def _text_conformer(name: str) -> Callable[[Any], Any]:
    def conform(value: Any) -> Any:
        if not isinstance(value, str):
            raise OutputError(f"{name}: expected a text, got {describe_value(value)}")
        return value

    return conform


def _array_conformer(space: Any, name: str) -> Callable[[Any], NDArray[Any]]:
    dtype = space.dtype
    shape = space.shape
    floats = dtype.kind == "f"
    limits: Any = None  # from the first to before the second
    if isinstance(space, spaces.MultiDiscrete):
        limits = (space.start, space.start + space.nvec)
    elif isinstance(space, spaces.MultiBinary):
        limits = (0, 2)

    def conform(value: Any) -> NDArray[Any]:
        array = value
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            array = _converted(space, value, name)
        # A sum of squares is that small unless a number is not finite or beyond 10^19: then each is looked at.
        if floats and not float(np.vdot(array, array)) <= LARGEST:
            _require_finite(array, name)
        if limits and not ((array >= limits[0]) & (array < limits[1])).all():
            raise OutputError(f"{name}: expected a value of {line(space)}, got {describe_value(array)}")
        return array

    return conform


def _converted(space: spaces.Space[Any], value: Any, name: str) -> NDArray[Any]:
    """The value as an array of a space's shape and dtype."""
    dtype: Any = space.dtype
    array = _numbers(value)
    if array is not None and array.shape == space.shape:
        with np.errstate(invalid="ignore", over="ignore"):
            converted = array.astype(dtype)
        if dtype.kind == "f" or np.array_equal(converted, array):
            return converted
    raise OutputError(
        f"{name}: expected {dtype} {list(space.shape or ())} as in its space, got {describe_value(value)}"
    )


def _require_finite(array: NDArray[Any], name: str) -> None:
    finite = np.abs(array.astype(np.float64)) <= LARGEST  # false for NaN, too
    if not finite.all():
        first = tuple(np.argwhere(~finite)[0].tolist())
        where = f" at {list(first)}, {array.size - finite.sum()} of {array.size}" if first else ""
        raise OutputError(f"{name}: expected finite numbers (float32), got {array[first]}{where}")


def number(value: Any, name: str) -> float:
    """One number as a float. Raises an OutputError for anything else, also for arrays [1], and beyond float32."""
    plain = value.item() if isinstance(value, np.number) else value
    if isinstance(plain, NUMBERS) and -LARGEST <= plain <= LARGEST:
        return float(plain)
    array = _numbers(value)
    if array is None or array.shape:
        raise OutputError(f"{name}: expected one number, shape [], got {describe_value(value)}")
    if not abs(float(array)) <= LARGEST:
        raise OutputError(f"{name}: expected a finite number (float32), got {value}")
    return float(array)


def flag(value: Any, name: str) -> bool:
    """True or False, also as 1 or 0. Raises an OutputError for anything else."""
    if value is True or value is False:
        return value
    array = _numbers(value)
    if array is None or array.shape or float(array) not in (0.0, 1.0):
        raise OutputError(f"{name}: expected True or False, got {describe_value(value)}")
    return bool(array)


def leaves(space: spaces.Space[Any], place: Place = ()) -> Iterator[tuple[Place, spaces.Space[Any]]]:
    """The spaces in a nest of Dicts and Tuples, each with its place in it; empty Dicts and Tuples are leaves, too."""
    if isinstance(space, spaces.Dict) and space.spaces:
        for key, part in space.spaces.items():
            yield from leaves(part, (*place, key))
    elif isinstance(space, spaces.Tuple) and space.spaces:
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*place, index))
    else:
        yield place, space


def at(value: Any, place: Place) -> Any:
    """The part of a nest at a place."""
    for key in place:
        value = value[key]
    return value


def expression(place: Place, root: str) -> str:
    """A place in a nest as in Python, for errors: observation['eyes'][0]."""
    return root + "".join(f"[{key!r}]" for key in place)


def label(place: Place, root: str) -> str:
    """A place in a nest as a short name: "eyes[0]", "arm.hand"; `root` if there is no nest, or for "root[0]"."""
    if not place:
        return root
    first, *others = place
    text = f"{root}[{first}]" if isinstance(first, int) else str(first)
    for key in others:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}"
    return text


def is_picture(value: Any) -> bool:
    """Whether what `render` returned can be filmed: uint8 [height, width, 3]."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    return value.ndim == 3 and value.shape[2] == 3


def describe_value(value: Any) -> str:
    """What a value is, for errors: dtype, shape and numbers of an array, type and text of other objects."""
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"a dict of {_keys(value)}"
    array = _numbers(value)
    if array is None:
        return f"{type(value).__name__} {reprlib.repr(value)}{_why_no_array(value)}"
    if not array.shape:
        return f"{array.dtype} {array}"
    numbers = ""
    if 0 < array.size <= SHOWN:
        numbers = f" {array.tolist()}"
    elif array.size:
        numbers = f" from {array.min()} to {array.max()}"
    return f"{array.dtype} {list(array.shape)}{numbers}"


def _why_no_array(value: Any) -> str:
    """Why an array of another library, such as a tensor on a GPU, is none of numpy; empty for what is no array."""
    if not hasattr(value, "__array__"):
        return ""
    try:
        np.asarray(value)
    except Exception as error:  # of a foreign object
        reason, *_ = str(error).splitlines() or [""]
        return f" ({reason})" if reason else ""
    return ""


def line(space: spaces.Space[Any]) -> str:
    """A space as text on one line, for errors: of a long one its beginning and its end."""
    text = " ".join(str(space).split())
    if len(text) <= LONGEST_LINE:
        return text
    half = LONGEST_LINE // 2
    return f"{text[:half]} ... {text[-half:]}"


def _keys(names: Mapping[Any, Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _numbers(value: Any) -> NDArray[Any] | None:
    """The value as an array of numbers; None if it is none."""
    try:
        array = np.asarray(value)
    except Exception:  # lists of unequal lengths, or whatever a foreign object raises
        return None
    return array if array.dtype.kind in "biuf" else None
