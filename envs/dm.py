"""dm_env both ways: any `dm_env.Environment` as a `gymnasium.Env`, and the rooms level as a `dm_env.Environment`."""

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from envs.guard import is_foreign
from envs.gym import adapt
from envs.processes import batch
from envs.rooms import RoomsConfig, RoomsEnv


class DmEnv(gymnasium.Env[Any, Any]):
    """A `dm_env.Environment` as a `gymnasium.Env`.

    An episode's last step is truncated where its discount is not 0, else terminated; discounts within an episode are
    ignored. dm_env seeds environments when they are made, so `reset` with a seed makes a new one if `make` takes a
    seed.

    Args:
        make: makes an environment, with a parameter `seed` if it can be seeded. For an existing one use
            `lambda: environment`.
        name: for messages.

    Raises:
        ValueError: for specs that are not arrays of numbers, and if `make` does not return an environment.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, make: Callable[..., dm_env.Environment], name: str = "DmEnv") -> None:
        self._make = make
        self._environment = make()
        if not hasattr(self._environment, "observation_spec"):
            raise ValueError(f"{name}: expected a dm_env.Environment, got a {type(self._environment).__name__}")
        self.observation_space = to_space(self._environment.observation_spec(), name)
        self.action_space = to_space(self._environment.action_spec(), name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; without a seed, the environment's random stream continues."""
        super().reset(seed=seed)
        if seed is not None and "seed" in inspect.signature(self._make).parameters:
            self._environment.close()
            self._environment = self._make(seed=seed)
        return _as_arrays(self.observation_space, self._environment.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step. Raises RuntimeError if the environment begins an episode instead, as it does after the end."""
        timestep = self._environment.step(_as_arrays(self.action_space, action))
        if timestep.first():
            raise RuntimeError("step() before reset() or after the episode ended: call reset()")
        reward = 0.0 if timestep.reward is None else float(timestep.reward)
        truncated = timestep.last() and bool(timestep.discount)
        observation = _as_arrays(self.observation_space, timestep.observation)
        return observation, reward, timestep.last() and not truncated, truncated, {}

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


def to_space(spec: Any, name: str = "spec") -> spaces.Space[Any]:
    """The space of a spec or of a nest of specs: Discrete, Box, Tuple or Dict."""
    if isinstance(spec, Mapping):
        return spaces.Dict({key: to_space(part, f"{name}[{key!r}]") for key, part in spec.items()})
    if isinstance(spec, (tuple, list)):
        return spaces.Tuple([to_space(part, f"{name}[{index}]") for index, part in enumerate(spec)])
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(spec.num_values, dtype=spec.dtype.type)
    if not isinstance(spec, specs.Array) or spec.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected a spec of numbers, got {spec}")
    if isinstance(spec, specs.BoundedArray):
        low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
        return spaces.Box(low, high, dtype=spec.dtype.type)
    known: dict[str, Any] = {"f": (-np.inf, np.inf), "b": (0, 1)}
    least, most = known.get(spec.dtype.kind) or (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
    return spaces.Box(least, most, spec.shape, spec.dtype.type)


def _as_arrays(space: spaces.Space[Any], value: Any) -> Any:
    """The value with a fresh array of the space's type at every leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _as_arrays(part, value[key]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_arrays(part, item) for part, item in zip(space, value))
    return np.array(value, space.dtype)


class RoomsDmEnv(dm_env.Environment):
    """The rooms level as a `dm_env.Environment`: observation [H, W, 3] uint8, nine actions, see `RoomsVectorEnv`.

    Args:
        config: a `RoomsConfig` or the name of a variant.
        seed: of the random stream of all episodes; None for a random one.
    """

    def __init__(self, config: RoomsConfig | str = "full", seed: int | None = None) -> None:
        self._env, self._seed, self._over = RoomsEnv(config), seed, True

    def reset(self) -> dm_env.TimeStep:
        """Begins an episode."""
        observation, _ = self._env.reset(seed=self._seed)
        self._seed, self._over = None, False  # later episodes continue the stream
        return dm_env.restart(observation)

    def step(self, action: int) -> dm_env.TimeStep:
        """One agent step; before the first episode and after the end of one, the start of the next."""
        if self._over:
            return self.reset()
        observation, reward, self._over, _, _ = self._env.step(action)
        return (dm_env.termination if self._over else dm_env.transition)(reward, observation)

    def observation_spec(self) -> specs.BoundedArray:
        """The view, pixels."""
        return specs.BoundedArray(self._env.observation_space.shape, np.uint8, 0, 255, name="view")

    def action_spec(self) -> specs.DiscreteArray:
        """Indices of `lab_interface.NINE`."""
        return specs.DiscreteArray(int(self._env.action_space.n), name="action")  # type: ignore[attr-defined]


def make(name: str, num_envs: int, /, *, processes: int = 1, **fields: Any) -> VectorEnv:
    """A batch of the `dm_env.Environment` that "module:constructor" makes with the fields, as `gym.adapt` shows it.

    The constructor is a subclass of `dm_env.Environment`, or a function that is annotated to return one. If it takes
    a `seed`, its episodes depend on the seed of the batch. See `gym.make` for the rest.
    """
    return batch(functools.partial(make_env, name, **fields), num_envs, processes)


def make_env(name: str, /, **fields: Any) -> gymnasium.Env[Any, Any]:
    """One environment; see `make`."""
    module, _, constructor = name.partition(":")
    if not module or not constructor:
        raise ValueError(f"expected a module and a constructor in it, as in dm:module:Class, got dm:{name}")
    try:
        make = getattr(importlib.import_module(module), constructor)
    except (AttributeError, TypeError, ValueError) as error:
        if is_foreign(error):  # raised by the module's own code
            raise
        raise ValueError(f"environment dm:{name}: {error}") from error
    if not _makes_environments(make):  # before anything is called: "dm:os:system,command=..."
        raise ValueError(
            f"environment dm:{name}: expected a subclass of dm_env.Environment, or a function annotated to return one, "
            f"got a {type(make).__name__}"
        )
    try:
        inspect.signature(make).bind(**fields)
    except TypeError as error:
        raise ValueError(f"environment dm:{name}: {error}") from error
    return adapt(DmEnv(functools.partial(make, **fields), f"dm:{name}"), f"dm:{name}")


def _makes_environments(make: Any) -> bool:
    """Whether `make` is a subclass of `dm_env.Environment` or a Python function annotated to return one."""
    if inspect.isfunction(make):
        try:
            make = typing.get_type_hints(make).get("return")
        except Exception:  # an annotation that cannot be read
            return False
    return inspect.isclass(make) and issubclass(make, dm_env.Environment)
