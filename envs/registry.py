"""Environments by name: a spec, as typed on a command line, becomes a batch of environments.

Each kind of environment is one function in `MAKERS`. What a spec says as a text is in `specs.py`.
"""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from envs import atari, dm, dmlab, gym, pool
from envs.diagnostic import Recall, TMaze
from envs.guard import EnvironmentFailed, calling, close
from envs.outputs import is_picture
from envs.processes import batch, fitting_batch
from envs.retention import KeyToDoor, PassiveTMaze, RepeatPrevious, VisualMatch
from envs.rewriting import Association, ColorCubes, EndlessTMaze
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.config import resolve
from envs.specs import Spec, literals, parse_spec, tasks

if TYPE_CHECKING:
    from envs.device import DeviceEnv


TASKS: dict[str, type[Any]] = {
    "recall": Recall,
    "tmaze": TMaze,
    "passive-tmaze": PassiveTMaze,
    "repeat-previous": RepeatPrevious,
    "visual-match": VisualMatch,
    "key-to-door": KeyToDoor,
    "endless-tmaze": EndlessTMaze,
    "association": Association,
    "color-cubes": ColorCubes,
}
"""The tasks of `diagnostic`, by name as in "diagnostic:recall,delay=20"."""


def rooms_config(name: str, overrides: dict[str, str]) -> RoomsConfig:
    """A variant of the rooms level with some fields replaced; shapes as "cube+sphere", colors as "ff0000+00ff00"."""
    config = resolve(name)
    _check_fields("the rooms level", overrides, [field.name for field in dataclasses.fields(RoomsConfig)])
    changes = literals(overrides)
    if "shapes" in overrides:
        changes["shapes"] = tuple(overrides["shapes"].split("+"))
    if "colors" in overrides:
        colors = overrides["colors"].split("+")
        if not all(re.fullmatch("[0-9a-fA-F]{6}", color) for color in colors):
            got = overrides["colors"]
            raise ValueError(f"colors: expected six hexadecimal digits each, as in ff0000+00ff00, got {got!r}")
        changes["colors"] = tuple(tuple(bytes.fromhex(color)) for color in colors)
    return dataclasses.replace(config, **changes)


def _check_fields(owner: str, overrides: dict[str, str], known: Sequence[str]) -> None:
    for field in overrides:
        if field not in known:
            raise ValueError(f"{owner} has no field {field!r}; there are: {', '.join(known) or 'none'}")


def _rooms(name: str, overrides: dict[str, str], num_envs: int, _: int) -> VectorEnv:
    return RoomsVectorEnv(num_envs, rooms_config(name, overrides))


def _dmlab(name: str, overrides: dict[str, str], num_envs: int, _: int) -> VectorEnv:
    if not name:
        raise ValueError("expected the name of a level, as in dmlab:rooms_select_nonmatching_object")
    _check_fields("a level of DeepMind Lab", overrides, dmlab.FIELDS)
    return dmlab.make(name, num_envs, **literals(overrides))


def diagnostic_task(name: str, overrides: dict[str, str]) -> tuple[type[Any], dict[str, Any]]:
    """The class of a diagnostic task and its fields."""
    if name not in TASKS:
        raise ValueError(f"no diagnostic task {name!r}; there are: {', '.join(TASKS)}")
    _check_fields(f"diagnostic:{name}", overrides, list(inspect.signature(TASKS[name]).parameters)[1:])
    return TASKS[name], literals(overrides)


def _diagnostic(name: str, overrides: dict[str, str], num_envs: int, _: int) -> VectorEnv:
    task, fields = diagnostic_task(name, overrides)
    return task(num_envs, **fields)


def _gym(name: str, overrides: dict[str, str], num_envs: int, actors: int) -> VectorEnv:
    """Copies of an environment of gymnasium; of an Atari game, a batch with its preprocessing unless `raw` is True."""
    if gym.package_of(name) != "ale_py":
        return _copies(gym.make_env, name, overrides, num_envs, actors)
    raw = literals(overrides).get("raw", False)
    if not isinstance(raw, bool):
        raise ValueError(f"raw: expected True or False, got {raw!r}")
    others = {field: text for field, text in overrides.items() if field != "raw"}
    if raw:
        return _copies(gym.make_env, name, others, num_envs, actors)
    _check_fields(f"gym:{name} without raw=True", others, (*atari.ALLOWED, "raw"))
    return atari.make(name, num_envs, actors, **literals(others))


def _envpool(name: str, overrides: dict[str, str], num_envs: int, actors: int) -> VectorEnv:
    return pool.make(name, num_envs, actors, **literals(overrides))


def _copies(
    make_env: Callable[..., Any], name: str, overrides: dict[str, str], num_envs: int, actors: int
) -> VectorEnv:
    """Copies of one environment, in as many processes as the user says, or as fit them."""
    fields = literals(overrides)
    processes = fields.pop("processes", None)
    make = functools.partial(make_env, name, **fields)
    if processes is None:
        return fitting_batch(make, num_envs, actors)
    return batch(make, num_envs, processes)


MAKERS: dict[str, Callable[[str, dict[str, str], int, int], VectorEnv]] = {
    "rooms": _rooms,
    "dmlab": _dmlab,
    "gym": _gym,
    "dm": functools.partial(_copies, dm.make_env),
    "envpool": _envpool,
    "diagnostic": _diagnostic,
}
"""What makes a batch of each kind: a function of name, overrides, num_envs and the number of actors on this machine."""


def make_vector(spec: str, num_envs: int, stream: int | None = None, actors: int = 1) -> VectorEnv:
    """A batch of `num_envs` environments, e.g. of "rooms:full" or "rooms:small,object_scale=2.0".

    All kinds reset as gymnasium's NEXT_STEP and name in `metadata["episode_metrics"]` the counters in their infos.

    Args:
        spec: of one task.
        stream: 0 to 2^31 - 1; separates episodes from those of other streams where seeds (Lab's have 31 bits) cannot.
        actors: how many actors share the cores of this machine. Several copies of a slow environment of gymnasium or
            dm_env are divided among as many processes as there are cores for each actor, unless the spec says
            `processes=N`. Episodes are the same.

    Raises:
        ValueError: for unknown kinds, names and fields (lists those that exist), and for several tasks.
        EnvironmentFailed: if the environment's own code raises.
    """
    names = tasks(spec)
    if len(names) > 1:
        raise ValueError(f"environment {spec!r}: expected one task, got {len(names)}")
    kind, name, overrides = parse_spec(spec)
    if stream is not None and kind == "dmlab":
        overrides["stream"] = str(stream)
    with calling(spec, "while it was made"):
        return MAKERS[kind](name, overrides, num_envs, actors)


def make_device(spec: str, num_envs: int, device: str) -> "DeviceEnv":
    """A batch of `num_envs` environments whose memory is tensors on a device, such as "cuda" or "cpu".

    Row for row the episodes of `make_vector`; on a GPU up to rounding.

    Raises:
        ValueError: as `make_vector` does, for environments that cannot be on a device, and without a GPU for "cuda".
        ImportError: if the extra `gpu` is needed and not installed.
    """
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r}: expected a GPU and a build of torch for it, found none")
    names = tasks(spec)
    kind, name, overrides = parse_spec(names[0])
    if len(names) == 1 and kind == "rooms":
        from envs.rooms.device import DeviceRooms

        return DeviceRooms(num_envs, rooms_config(name, overrides), device)
    if len(names) == 1 and (kind, name) == ("diagnostic", "recall"):
        from envs.diagnostic_device import DeviceRecall

        task, fields = diagnostic_task(name, overrides)
        return DeviceRecall(task(num_envs, **fields), device)
    raise ValueError(f"environment {spec!r}: expected one task that runs on a device: rooms:* or diagnostic:recall")


def with_view(spec: str, trained: str) -> str:
    """The spec with the view on which an agent was trained, in tasks whose own has another size.

    The view is that of the rooms level and of DeepMind Lab: rows, columns and `shrink`. Tasks whose specs have one of
    these fields stay as they are, and so do those that cannot have that view.
    """
    view = _view(parse_spec(tasks(trained)[0]))
    if view is None:
        return spec
    return ",".join(_shown_as(task, view) for task in tasks(spec))


def _shown_as(task: str, view: dict[str, int]) -> str:
    """A task with a view; the task as it is if it has no view, says what it is to show, or already has that size."""
    parsed = parse_spec(task)
    own = _view(parsed)
    chooses_view = bool(parsed.overrides.keys() & view.keys())
    if own is None or chooses_view:
        return task
    if own["image_height"] == view["image_height"] and own["image_width"] == view["image_width"]:
        return task

    fields = {name: str(value) for name, value in view.items()}
    shown = parsed._replace(overrides={**parsed.overrides, **fields})
    if _view(shown) is None:  # the task cannot be shown so
        return task
    return str(shown)


def _view(spec: Spec) -> dict[str, int] | None:
    """The fields of a task's view; None if it has none or they are wrong."""
    try:
        if spec.kind == "rooms":
            config = rooms_config(spec.name, spec.overrides)
            shrink = config.shrink
            height = config.image_height
            width = config.image_width
        elif spec.kind == "dmlab":
            fields = literals(spec.overrides)
            shrink = fields.get("shrink", 1)
            height, width = dmlab.image_size(fields.get("image_height"), fields.get("image_width"), shrink)
        else:
            return None
    except ValueError:  # which is reported where the environment is made
        return None
    return {"image_height": height, "image_width": width, "shrink": shrink}


def drawing(task: str) -> str:
    """The spec of a task with which `render()` returns pictures, for films; if nothing does, that without processes."""
    kind, name, overrides = parse_spec(task)
    if kind not in ("gym", "envpool"):
        return task
    if gym.lacks_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen and complains
    alone = {field: value for field, value in overrides.items() if field != "processes"}  # others cannot draw
    spec = str(Spec(kind, name, {**alone, "render_mode": "rgb_array"}))
    with suppress(ValueError, ImportError, EnvironmentFailed):
        with _begun(spec) as envs, calling(spec, "in render"):
            picture = envs.render()[0]  # type: ignore[index]
        if is_picture(picture):
            return spec
    return str(Spec(kind, name, alone))


def prepare(spec: str, skip_missing: bool = False) -> str:
    """Does once what a machine's first environment costs (compiling, caching), before many processes need it.

    Of several tasks it first tries all levels of DeepMind Lab, whose data may be missing. Returns the spec, or with
    `skip_missing` that of the tasks that can be played.

    Raises:
        ValueError: as `make_vector`, and naming all levels that cannot be played.
        EnvironmentFailed: as `make_vector`.
        WrongOutput: if an environment returns what its spaces do not allow.
    """
    names = tasks(spec)
    missing: dict[str, str] = {}
    for task in names:
        try:
            with _begun(task) as envs:
                action = np.zeros(envs.action_space.shape or (), envs.action_space.dtype)
                with calling(task, "in step", action):
                    envs.step(action)
        except (ValueError, EnvironmentFailed) as error:
            if len(names) == 1 or not task.startswith("dmlab:"):
                raise
            missing[task] = str(error).splitlines()[0]
    if not missing:
        return spec
    if len(missing) == len(names) or not skip_missing:
        raise ValueError(
            f"{len(missing)} of {len(names)} levels cannot be played here: {', '.join(missing)}; the first: "
            f"{next(iter(missing.values()))}; expected their data, or --skip-missing-levels to train on the others"
        )
    return ",".join(task for task in names if task not in missing)


def observe(task: str, steps: int) -> Any:
    """The observation of one environment after a number of random actions, the same at each call.

    Raises:
        ValueError, ImportError, EnvironmentFailed: as `prepare`.
    """
    with _begun(task) as envs:
        envs.action_space.seed(0)
        observation: Any = None
        for _ in range(steps):
            action = envs.action_space.sample()
            with calling(task, "in step", action):
                observation, *_ = envs.step(action)
        return observation


@contextmanager
def _begun(task: str) -> Iterator[VectorEnv]:
    """Makes an environment and resets it; closes it after the block."""
    envs = make_vector(task, 1)
    try:
        with calling(task, "in reset"):
            envs.reset(seed=0)
        yield envs
    finally:
        close(envs, task)
