"""dm_env both ways: any `dm_env.Environment` as a `gymnasium.Env`, and the rooms level as a `dm_env.Environment`."""

import functools
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from envs.guard import OutputError
from envs.gym import adapt, import_named
from envs.outputs import conformer, describe_value, number
from envs.rooms import RoomsConfig, RoomsEnv


class DmEnv(gymnasium.Env[Any, Any]):
    """A `dm_env.Environment` as a `gymnasium.Env`.

    An episode's last step is truncated where its discount is not 0, else terminated; discounts within an episode are
    ignored. dm_env seeds environments when they are made, so `reset` with a seed makes a new one if `make` takes a
    seed.

    Args:
        make: makes an environment, with a parameter `seed` if it can be seeded. For an existing one use
            `lambda: environment`.

    Raises:
        ValueError: for specs that are not arrays of numbers.
        OutputError: from `reset` and `step`, for what is not as the specs say.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, make: Callable[..., dm_env.Environment]) -> None:
        self._make = make
        self._environment = make()
        self.observation_space = to_space(self._environment.observation_spec())
        self.action_space = to_space(self._environment.action_spec())
        self.metadata = {**self.metadata, "action_names": _column_names(self._environment.action_spec())}
        self._conform_first = conformer(self.observation_space, "reset: observation")
        self._conform = conformer(self.observation_space, "step: observation")
        self._conform_action = conformer(self.action_space, "step: action")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; without a seed, the environment's random stream continues."""
        super().reset(seed=seed)
        if seed is not None and "seed" in inspect.signature(self._make).parameters:
            self._environment.close()
            self._environment = self._make(seed=seed)
        timestep = _timestep("reset", self._environment.reset())
        return self._conform_first(timestep.observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step. Raises an OutputError if the environment begins an episode instead, as it does after the end."""
        own_action = _with_own_dtypes(self.action_space, self._conform_action(action))
        timestep = _timestep("step", self._environment.step(own_action))
        if timestep.first():
            raise OutputError(
                "step: expected a further step of the episode, got the first one of another; before an episode, and "
                "after its end, call reset()"
            )
        observation = self._conform(timestep.observation)
        reward = number(timestep.reward, "step: reward")
        over = bool(timestep.last())
        truncated = over and number(timestep.discount, "step: discount") != 0.0
        return observation, reward, over and not truncated, truncated, {}

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


def _timestep(call: str, answer: Any) -> Any:
    """What a call returned, if it has what a `dm_env.TimeStep` has."""
    if not all(hasattr(answer, name) for name in ("first", "last", "reward", "discount", "observation")):
        raise OutputError(f"{call}: expected a dm_env.TimeStep, got {describe_value(answer)}")
    return answer


def _with_own_dtypes(space: spaces.Space[Any], action: Any) -> Any:
    """An action in which choices are numbers of their spec's dtype, which it may check."""
    if isinstance(space, spaces.Dict):
        return {name: _with_own_dtypes(part, action[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_with_own_dtypes(part, item) for part, item in zip(space.spaces, action, strict=True))
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(action)
    return action


def _column_names(spec: Any) -> tuple[str, ...]:
    """Names of the numbers of an action, which dm_control joins by tabs; empty if the spec has none."""
    name = getattr(spec, "name", None)
    if isinstance(spec, specs.DiscreteArray) or not isinstance(name, str):
        return ()
    return tuple(name.split("\t"))


def to_space(spec: Any) -> spaces.Space[Any]:
    """The space of a spec or of a nest of specs: Discrete, Box, Tuple or Dict."""
    if isinstance(spec, Mapping):
        return spaces.Dict({key: to_space(part) for key, part in spec.items()})
    if isinstance(spec, (tuple, list)):
        return spaces.Tuple([to_space(part) for part in spec])
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(spec.num_values, dtype=spec.dtype.type)
    if not isinstance(spec, specs.Array) or spec.dtype.kind not in "biuf":
        raise ValueError(f"expected specs of numbers, got {spec}")

    low: Any
    high: Any
    if isinstance(spec, specs.BoundedArray):
        low = np.broadcast_to(spec.minimum, spec.shape)
        high = np.broadcast_to(spec.maximum, spec.shape)
    elif spec.dtype.kind == "f":
        low = -np.inf
        high = np.inf
    elif spec.dtype.kind == "b":
        low = 0
        high = 1
    else:
        low = np.iinfo(spec.dtype).min
        high = np.iinfo(spec.dtype).max
    return spaces.Box(low, high, spec.shape, spec.dtype.type)


class RoomsDmEnv(dm_env.Environment):
    """The rooms level as a `dm_env.Environment`: observation [H, W, 3] uint8, nine actions, see `RoomsVectorEnv`.

    The configuration may be named by a variant. `seed` is that of all episodes' random stream; None for a random one.
    """

    def __init__(self, config: RoomsConfig | str = "full", seed: int | None = None) -> None:
        self._env = RoomsEnv(config)
        self._seed = seed
        self._over = True

    def reset(self) -> dm_env.TimeStep:
        """Begins an episode."""
        observation, _ = self._env.reset(seed=self._seed)
        self._seed = None  # later episodes continue the stream
        self._over = False
        return dm_env.restart(observation)

    def step(self, action: int) -> dm_env.TimeStep:
        """One agent step; before the first episode and after the end of one, the start of the next."""
        if self._over:
            return self.reset()
        observation, reward, self._over, _, _ = self._env.step(action)
        if self._over:
            return dm_env.termination(reward, observation)
        return dm_env.transition(reward, observation)

    def observation_spec(self) -> specs.BoundedArray:
        """The view, pixels."""
        return specs.BoundedArray(self._env.observation_space.shape, np.uint8, 0, 255, name="view")

    def action_spec(self) -> specs.DiscreteArray:
        """Indices of `lab_interface.NINE`."""
        return specs.DiscreteArray(int(self._env.action_space.n), name="action")  # type: ignore[attr-defined]


def control_suite(domain: str, task: str, seed: int | None = None) -> dm_env.Environment:
    """A task of dm_control's suite: dm:envs.dm:control_suite,domain=cartpole,task=swingup.

    Raises:
        ImportError: if dm_control is not installed.
        ValueError: if there is no such task.
    """
    try:
        from dm_control import suite
    except ModuleNotFoundError as error:
        raise ImportError(f"dm_control's suite needs {error.name}: pip install dm_control") from None
    if (domain, task) not in suite.ALL_TASKS:
        known = ", ".join(sorted(" ".join(pair) for pair in suite.ALL_TASKS))
        raise ValueError(f"no task {task!r} in the domain {domain!r}; there are: {known}")
    made: dm_env.Environment = suite.load(domain, task, task_kwargs={"random": seed})
    return made


def make_env(name: str, /, **fields: Any) -> gymnasium.Env[Any, Any]:
    """The `dm_env.Environment` that "module:constructor" makes with the fields, as `gym.adapt` shows it.

    The constructor is a subclass of `dm_env.Environment`, or a function that is annotated to return one. If it takes
    a `seed`, episodes depend on the seeds that `reset` gets. `shrink` is that of `gym.adapt`, unless it has such a
    parameter itself.
    """
    module, _, constructor = name.partition(":")
    if not module or not constructor:
        raise ValueError("expected a module and a constructor in it, as in dm:module:Class")
    import_named(module, f"dm:{name}")
    make = pkgutil.resolve_name(name)
    _require_constructor(make, name)

    # Ours, unless the environment itself has a parameter of that name.
    signature = inspect.signature(make)
    shrink = 1
    if "shrink" not in signature.parameters:
        shrink = fields.pop("shrink", 1)
    signature.bind(**fields)  # an error before the call, if they do not fit
    return adapt(DmEnv(functools.partial(make, **fields)), shrink)


def _require_constructor(make: Any, name: str) -> None:
    """Raises a ValueError unless `make`, which a spec names, is known to make a `dm_env.Environment`.

    It is not called to find out: that would run whatever a spec such as dm:os:system,command=... names.
    """
    made = make
    if inspect.isfunction(make):
        with suppress(Exception):  # an annotation that cannot be read
            made = typing.get_type_hints(make).get("return")
    if inspect.isclass(made) and issubclass(made, dm_env.Environment):
        return
    got = f"a {type(make).__name__}"
    if inspect.isclass(made) and issubclass(made, gymnasium.Env):
        got = f"a gymnasium.Env, whose spec is gym:{name}"
    raise ValueError(f"expected a subclass of dm_env.Environment, or a function annotated to return one, got {got}")
