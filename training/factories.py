"""Builds the parts of an agent's run from its configuration: network, actors, pool, learner."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from actors import Actor, LocalPool, Pool
from actors.config import ActorsConfig
from actors.interface import Interface, read_interface
from agent import Agent, AgentConfig
from agent.actor_critic import MadeFor
from agent.core import CustomCoreConfig, state_bytes
from agent.core.checking import describe_raised
from agent.encoders import part_shapes
from agent.memory_check import build_network
from agent.precision import resolve_precision
from agent.teaching import TaughtAgent
from envs import limit_calls, make_vector, observe, tasks, untaught
from envs.guard import close, closed_on_error
from envs.gym import import_named
from envs.processes import cores
from learner.learner import Learner, resolve_device
from learner.replay import Replay
from training import resident
from training.config import Configuration, RunConfig

if TYPE_CHECKING:
    from learner.group import MakeReplica

PIXEL_STEPS = 8
"""Random actions before pixels are looked at, by which stacks of four frames are full."""
REPLAY_BYTES = 2_000_000_000
"""Most bytes of replayed unrolls in a checkpoint."""


def interface(env: str) -> Interface:
    """The interface of an environment, which is created once to find out; all tasks of several must have the same.

    Raises:
        ValueError: if there is no such environment, it is not supported, or its tasks differ.
        ImportError: if it needs a package that is not installed.
    """
    # Several tasks share one network, so they need the same interface.
    names = tasks(env)
    first, _ = inspect_task(names[0])
    for task in names[1:]:
        other, _ = inspect_task(task)
        if other != first:
            raise ValueError(f"env: expected {first} as in {names[0]}, got {other} in {task}")
    return first


def episode_metrics(env: str) -> set[str]:
    """What the tasks of an environment count in episodes; raises as `interface` does."""
    found: set[str] = set()
    for task in tasks(env):
        _, names = inspect_task(task)
        found.update(names)
    return found


@functools.cache
def inspect_task(task: str) -> tuple[Interface, tuple[str, ...]]:
    """The interface of a single task, and what it counts in episodes."""
    envs = make_vector(task, 1)
    try:
        return read_interface(envs), tuple(envs.metadata.get("episode_metrics", ()))
    finally:
        close(envs, task)


def require_interface(env: str, like: str) -> None:
    """Raises a ValueError if observations or actions of two environments differ; frames a step may."""
    expected = interface(like)
    actual = interface(env)
    with_same_repeat = actual._replace(action_repeat=expected.action_repeat)
    if with_same_repeat != expected:
        raise ValueError(f"env: expected {expected} as in {like}, got {actual} in {env}")


def import_core(config: Configuration) -> None:
    """Imports the module of a custom core, from where modules of environments are found.

    Raises:
        ImportError: if there is no such module, or none of a package that it needs.
        ValueError: if its code raises another error.
    """
    core = config.core_config
    if not isinstance(core, CustomCoreConfig):
        return
    name = f"core {core.name}"
    try:
        import_named(core.module, name)
    except ImportError as error:
        if str(error).startswith(name):
            raise
        raise ImportError(f"{name}: {error}") from error
    except Exception as error:
        raised = describe_raised(error, core.module)
        raise ValueError(f"{name}: expected a module that can be imported, got {raised}") from error


def make_agent(config: RunConfig) -> Agent:
    """The run's network with new weights, drawn from torch's global generator."""
    import_core(config)
    config = resolve_pixel_zero(config)
    names = tasks(config.env)
    has_teacher = config.learner.teacher_cost > 0
    if not has_teacher and untaught(config.env) != config.env:
        raise ValueError(f"env: expected own_view=False without a teacher (learner.teacher-cost), got {config.env}")
    known = interface(names[0])  # the trainer compares all tasks, once
    popart_tasks = 0
    if config.learner.popart:
        popart_tasks = len(names)
    kind = TaughtAgent if has_teacher else Agent
    made_for = MadeFor(known.observation_shape, known.actions, known.vocabulary, popart_tasks, known.mask_at)
    build = functools.partial(kind, config.agent, *made_for)
    return build_network(build, config.agent, config.actors.envs_per_actor)


def make_actor(config: RunConfig, generation: int, actor_id: int, incarnation: int, env: str | None = None) -> Actor:
    """A training actor, which plays one of the run's tasks. No two actors, restarts or resumed runs share a seed.

    Args:
        generation: the number of the stage, and 32 more for every resumption; see `Curriculum.generation`.
        actor_id: which actor; of n tasks it plays number `actor_id` modulo n.
        incarnation: how often it was replaced.
        env: the environment of the present stage; None for the run's. The network is the same in all stages.
    """
    # The actor is made where it acts, so the limit of calls is set there, too.
    actors = config.actors
    limit_calls(actors.step_seconds)

    # The environments of its task.
    names = tasks(env or config.env)
    task = names[actor_id % len(names)]
    stream = episode_stream(generation, actor_id, incarnation)
    envs = make_vector(task, actors.envs_per_actor, stream, actors=_actors_of_a_machine(actors))

    with closed_on_error(envs, task):
        agent = make_agent(config)
        seed = _acting_seed(config, generation, incarnation)
        return Actor(
            envs,
            agent,
            actor_id,
            seed,
            task=task,
            device=actors.device,
            precision=actors.precision,
            stagger=actors.stagger,
        )


def _actors_of_a_machine(actors: ActorsConfig) -> int:
    """How many actors may share the cores of this machine: those of the run that its CPUs have room for."""
    if actors.cpus == 0:
        return actors.num_actors
    have_room = int(cores() / actors.cpus)
    return max(1, min(actors.num_actors, have_room))


def _acting_seed(config: RunConfig, generation: int, incarnation: int) -> int:
    """The seed of actors, which differs between stages, resumptions and restarts."""
    # Training draws from branch 1 of the run's seeds, evaluation from branch 2.
    sequence = np.random.SeedSequence([config.seed, 1, generation, incarnation])
    return int(sequence.generate_state(1)[0])


def episode_stream(generation: int, actor_id: int, incarnation: int) -> int:
    """A number of 31 bits that differs between actors, restarts and resumptions of a run; see `envs.make_vector`.

    It is unique for 4096 actors with 256 restarts each and 2048 generations: 32 stages with 64 resumptions each. Beyond
    that numbers repeat, but never those of another stage.
    """
    # 11 bits, 8 bits and 12 bits.
    high = (generation % 2048) << 20
    middle = (incarnation % 256) << 12
    low = actor_id % 4096
    return high | middle | low


def make_pool(config: RunConfig, env: str, generation: int, local: bool, updater: Any) -> Pool:
    """The actors of a stage: on the learner's device, in this process, or on the Ray cluster that it is connected to.

    Args:
        env: the environment of the stage.
        generation: see `make_actor`.
        updater: the learner, or a group of learners.
    """
    if config.resident and isinstance(updater, Learner):
        agent: Any = updater.agent
        playing = dataclasses.replace(config, env=env)
        seed = _acting_seed(config, generation, 0)
        return resident.make_pool(playing, agent, seed, updater.device)
    if config.resident:
        num_envs = config.actors.num_actors * config.actors.envs_per_actor
        return resident.GroupPool(updater, num_envs)

    # Actors beside the learner.
    build = functools.partial(make_actor, config, generation, env=env)
    if local:
        return LocalPool(build, config.actors)
    from actors.ray_pool import RayPool

    return RayPool(build, config.actors, by_reference=config.learners > 1)


def learning_device(config: RunConfig) -> torch.device:
    """The device of the learner. Several learners on Ray may be where GPUs are, without one on this machine."""
    if config.learners > 1 and config.learner.device != "auto":
        return torch.device(config.learner.device)
    return resolve_device(config.learner.device)


def acting_device(config: RunConfig) -> torch.device:
    """The device of the actors' network."""
    if config.resident:
        return learning_device(config)
    return torch.device(config.actors.device)


def resolve_precisions(config: RunConfig) -> RunConfig:
    """The configuration with float32 or bfloat16 in place of "auto", as this machine's devices compute them.

    What may be on other machines' GPUs keeps "auto", and each learner or actor finds out for itself: several learners,
    resident actors beside them, and actors with a share of a GPU.
    """
    learner = config.learner.precision
    actors = config.actors.precision
    several = config.learners > 1
    if not several:
        learner = resolve_precision(learner, learning_device(config))
    act_elsewhere = several if config.resident else config.actors.gpus > 0
    if not act_elsewhere:
        actors = resolve_precision(actors, acting_device(config))
    return dataclasses.replace(
        config,
        learner=dataclasses.replace(config.learner, precision=learner),
        actors=dataclasses.replace(config.actors, precision=actors),
    )


def resolve_pixel_zero(config: RunConfig) -> RunConfig:
    """The configuration with a number in place of "auto": the median of the pixels of an observation of each task.

    It does not depend on the run's seed. Without images it is the default.
    """
    if config.agent.pixel_zero != "auto":
        return config
    pixels = []
    for task in tasks(config.env):
        pixels += _pixels(task)
    zero = AgentConfig.pixel_zero
    if pixels:
        zero = float(np.median(np.concatenate(pixels)))
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, pixel_zero=zero))


@functools.cache
def _pixels(task: str) -> list[np.ndarray]:
    """The pixels of each image that a task shows after some random actions; looked at once for all variants."""
    seen, _ = inspect_task(task)
    if not any(len(shape) == 3 for shape in part_shapes(seen.observation_shape)):
        return []
    # A stack of frames begins with empty ones.
    observation = observe(task, PIXEL_STEPS)
    return [part.ravel() for part in _arrays(observation) if part.dtype == np.uint8]


def _arrays(observation: Any) -> Iterator[np.ndarray]:
    """The arrays of an observation that may be a Dict or a Tuple of others."""
    if isinstance(observation, dict):
        observation = tuple(observation.values())
    if not isinstance(observation, tuple):
        yield observation
        return
    for part in observation:
        yield from _arrays(part)


def make_learner(config: RunConfig, agent: Agent) -> Learner:
    """The learner in this process; on the CPU if it only follows several learners on Ray."""
    learning = config.learner
    if config.learners > 1:
        learning = dataclasses.replace(learning, device="cpu")
    # Schedules are in frames, and learners count steps.
    steps = config.schedule_end // interface(config.env).action_repeat
    rows = config.rows_per_update or config.rows_of_batch
    return Learner(agent, learning, max(1, steps), rows=rows)


def make_replica(config: RunConfig, agent: Agent, learner: Learner, present: RunConfig) -> "MakeReplica":
    """How several learners are made. Those that act for themselves play the environment of the present stage."""
    if config.resident:
        return functools.partial(resident.ResidentLearner, agent, present, learner.total_steps)
    return learner.replicate()


def make_replay(config: RunConfig, learner: Learner, local: bool) -> Replay | None:
    """The buffer of unrolls that are learned from again; None if there are none.

    Raises a ValueError if it is too large for a checkpoint, of which it is a part if actors are in this process.
    """
    if not config.replay.share:
        return None
    unrolls = config.replay.unrolls
    most = REPLAY_BYTES // unroll_bytes(config, learner.agent)
    if local and unrolls > most:
        megabytes = unroll_bytes(config, learner.agent) / 1e6
        limit = f"at most {most}, because checkpoints of actors in this process hold them"
        advice = f"--replay.unrolls {most}" if most else "--replay.share 0"
        raise ValueError(
            f"replay.unrolls: expected {limit} and one of {config.env} has {megabytes:.1f} MB, got {unrolls}; {advice}"
        )
    capacity = unrolls * config.actors.envs_per_actor
    return Replay(config.replay, learner, capacity, config.seed, config.rows_of_batch)


def unroll_bytes(config: RunConfig, agent: Any) -> int:
    """Size of an actor's unroll."""
    actors = config.actors
    shape = interface(config.env).observation_shape
    observation = 0
    for part in part_shapes(shape):
        is_image = len(part) == 3
        bytes_a_value = 1 if is_image else 4
        observation += math.prod(part) * bytes_a_value

    # T + 1 observations and one state a row; all else is small.
    observations = (actors.unroll_length + 1) * observation
    state = state_bytes(agent.initial_state(1))
    return actors.envs_per_actor * (observations + state)
