"""One contract suite for all pools, with the counting task, whose agent notices a wrong state."""

import math
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import ray
import torch
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode, VectorWrapper

from actors import ActorsConfig, Episode, LocalPool, PoolStatus, Unroll
from actors.actor import Actor
from actors.pool import MakeActor
from actors.ray_pool import RayPool
from actors.resident import ResidentActor
from agent import Agent, AgentConfig, Trajectory
from agent.core import LSTMConfig, leaves, map_state
from agent.trajectory import loss_mask, validate
from envs import EnvironmentFailed, guard, make_vector
from envs.processes import batch
from tests.actors import counting
from tests.actors.counting import Counting, CountingAgent, DeviceCounting, make_counting_actor
from tests.commands.cli import PATIENCE, wait_until
from tests.envs import faulty

ENVS, LENGTH = 3, 8
POLICY = (0.1, 0.25, 0.6, 0.05)
for module in (counting, faulty):
    ray.cloudpickle.register_pickle_by_value(module)  # actors do not import tests


def small(**config: Any) -> ActorsConfig:
    """By default two actors with half a CPU each."""
    return ActorsConfig(**{"num_actors": 2, "envs_per_actor": ENVS, "unroll_length": LENGTH, "cpus": 0.5, **config})


def make_resident_pool(build: MakeActor | None = None, **_: Any) -> ResidentActor:
    """One actor, whatever the configuration."""
    agent: Any = CountingAgent()
    return ResidentActor(DeviceCounting(ENVS), agent, LENGTH, seed=7)


ON_RAY = [pytest.param(name, marks=pytest.mark.ray) for name in ("ray", "ray by reference")]


@pytest.fixture(params=["local", "resident", *ON_RAY])
def make_pool(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "resident":
        return make_resident_pool
    if request.param != "local":
        request.getfixturevalue("cluster")
    kind = {"local": LocalPool, "ray": RayPool}.get(request.param, partial(RayPool, by_reference=True))
    return lambda build=None, **config: kind(build or partial(make_counting_actor, ENVS), small(**config))


def kept(unroll: Unroll) -> Trajectory:
    """An unroll's trajectory for longer than until the next one, which is the longest that a pool may lend it."""
    return map_state(torch.clone, unroll.load())


def weights(marker: float) -> dict[str, torch.Tensor]:
    return {"marker": torch.tensor([marker])}


def no_wrong_state(unroll: Unroll) -> None:
    trajectory = unroll.load()
    validate(trajectory)
    assert not trajectory.policy_parameters.any(), "an environment got another's state"


def test_no_environment_receives_the_state_of_another(make_pool: Callable[..., Any]) -> None:
    """And the unrolls of an actor follow each other."""
    last: dict[int, torch.Tensor] = {}
    with make_pool(in_flight=2) as pool:
        actors = {0} if isinstance(pool, ResidentActor) else {0, 1}
        pool.publish(weights(0), 0)
        for update in range(10_000):  # processes do not start at the same time
            if update >= 12 and last.keys() == actors:
                break
            unroll = pool.get()
            no_wrong_state(unroll)
            seen = unroll.load()
            # The learner replays from the state at the trajectory's first step, which must agree, too.
            replay = CountingAgent()(seen.observation, seen.last_action, seen.reward, seen.reset, seen.core_state)
            assert not replay.policy_parameters.any()
            actor = int(seen.actor_id[0])
            if actor in last:
                torch.testing.assert_close(seen.observation[:, 0], last[actor])
            last[actor] = seen.observation[:, -1].clone()
            pool.publish(weights(update), update + 1)
    assert last.keys() == actors


def test_a_shuffled_state_is_noticed() -> None:
    actor = make_counting_actor(ENVS, 0, 0)
    actor.unroll(LENGTH)
    actor.core_state = actor.core_state._replace(last=actor.core_state.last.flip(0))
    assert actor.unroll(LENGTH).trajectory.policy_parameters.any()


def test_a_trajectory_has_its_episodes_and_version(make_pool: Callable[..., Any]) -> None:
    with make_pool(num_actors=1) as pool:
        pool.publish(weights(0), 0)
        parts, ended = list[Trajectory](), list[Episode]()
        for version in range(1, 6):
            unroll = pool.get()
            parts.append(kept(unroll))
            ended += unroll.episodes
            pool.publish(weights(float(version)), version)
    versions = [int(part.version[0]) for part in parts]
    assert versions == sorted(versions)
    assert versions[-1] >= 3, "new weights must reach the actor within the unrolls in flight"
    observation = torch.cat([part.observation[:, :-1] for part in parts], dim=1)
    number, episode, steps = observation.unbind(2)
    discount, reset = (torch.cat([getattr(part, name)[:, :-1] for part in parts], 1) for name in ("discount", "reset"))
    lengths = 5 + number[:, :1] % 7
    assert len(lengths.unique()) > 1
    assert torch.equal(reset, steps == 0)
    assert torch.equal(torch.cat([loss_mask(part) for part in parts], dim=1), steps < lengths)
    # Even episodes terminate, odd ones are truncated and keep their discount.
    assert torch.equal(discount == 0, (steps == lengths) & (episode % 2 == 0))
    assert ended
    for one in ended:
        length = int(lengths[one.environment])
        assert (one.steps, one.score, one.metrics) == (length, length * (length + 1) / 2, {"evens": length // 2})


@pytest.mark.ray
def test_killed_actor_comes_back_with_fresh_memory(cluster: None) -> None:
    with RayPool(partial(make_counting_actor, ENVS), small()) as pool:
        victim = ray.get(pool.members[0].handle.pid.remote())
        pool.publish(weights(0), 0)
        for _ in range(6):
            no_wrong_state(pool.get())
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        numbers: set[int] = set()
        while not (pool.status().restarts == 1 and pool.status().alive == 2):
            no_wrong_state(pool.get())
            assert time.monotonic() - begin < PATIENCE, "the actor did not come back"
        while len(numbers) < 2 * ENVS:
            numbers |= set(pool.get().load().observation[:, 0, 0].long().tolist())
            assert time.monotonic() - begin < PATIENCE, "both actors deliver"
        assert ray.get(pool.members[0].handle.pid.remote()) != victim


@pytest.mark.ray
def test_a_wait_for_actors_that_have_no_room_can_be_ended(cluster: None) -> None:
    """The pool does not change."""
    begin = time.monotonic()

    def check() -> None:
        if time.monotonic() - begin > 1:
            raise EOFError

    with RayPool(partial(make_counting_actor, ENVS), small(cpus=100)) as pool:
        pool.publish(weights(0), 0)
        with pytest.raises(EOFError):
            pool.get(check)
        assert time.monotonic() - begin < 30
        assert pool.status() == (PoolStatus(alive=0, restarts=0, waiting=0))


def make_faulty_actor(fault: str, actor_id: int, incarnation: int) -> Actor:
    """An actor whose environment has a fault in its twentieth step."""
    if fault == "sleep":
        guard.limit_calls(1.0)
    agent = Agent(AgentConfig(core=LSTMConfig(8), torso_size=8), (2,), 3)
    return Actor(batch(partial(faulty.Faulty, fault, at=20), 2), agent, actor_id, 0, task="Faulty")


@pytest.mark.parametrize("reward", [-math.inf, math.nan, 1e39])
def test_rewards_that_are_not_finite_are_refused(reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = make_counting_actor(ENVS, 0, 0)
    advance = actor.envs.advance
    monkeypatch.setattr(actor.envs, "advance", lambda *arguments: (np.full(ENVS, reward), *advance(*arguments)[1:]))
    with pytest.raises(EnvironmentFailed, match=r"step: reward: expected finite numbers \(float32\), got \["):
        actor.unroll(1)


def initial_weights() -> dict[str, torch.Tensor]:
    return make_faulty_actor("", 0, 0).agent.state_dict()


@pytest.mark.parametrize("make_pool", ["local", *ON_RAY], indirect=True)
def test_an_exit_in_an_environment_is_an_error(make_pool: Callable[..., Any]) -> None:
    with make_pool(partial(make_faulty_actor, "exit"), num_actors=1) as pool:
        pool.publish(initial_weights(), 0)
        pool.get()
        pool.get()
        with pytest.raises(EnvironmentFailed, match=r"environment Faulty failed in step with .*: SystemExit: 0"):
            pool.get()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sleep", "die"])
def test_an_actor_whose_environment_hangs_or_dies_is_replaced(fault: str, cluster: None) -> None:
    def make(actor_id: int, incarnation: int) -> Actor:
        return make_faulty_actor("" if incarnation else fault, actor_id, incarnation)

    with RayPool(make, small(num_actors=1)) as pool:
        pool.publish(initial_weights(), 0)
        for _ in range(6):  # the fault is in the third unroll
            pool.get()
        assert pool.status().restarts == 1


@pytest.mark.ray
@pytest.mark.parametrize(
    ("error", "when", "raised"),
    [
        (ZeroDivisionError("broken"), "in step", ray.exceptions.RayTaskError),
        (ValueError("broken"), "made", ray.exceptions.RayActorError),
        (EnvironmentFailed("broken"), "made", EnvironmentFailed),
    ],
)
def test_a_bug_in_an_actor_is_raised_and_not_retried(
    error: BaseException, when: str, raised: type[BaseException], cluster: None
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise error

    def broken(actor_id: int, incarnation: int) -> Actor:
        if when == "made":
            fail()
        actor = make_counting_actor(ENVS, actor_id, incarnation)
        actor.envs.step = fail  # type: ignore[method-assign]
        return actor

    with RayPool(broken, small(num_actors=1)) as pool:
        pool.publish(weights(0), 0)
        with pytest.raises(raised, match="broken"):
            pool.get()
        assert pool.status().restarts == 0


@pytest.mark.ray
@pytest.mark.slow
def test_an_actor_that_dies_again_and_again_stops_the_run(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.failures.MAX_FAILURES", 1)

    def dies(actor_id: int, incarnation: int) -> Actor:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with RayPool(dies, small(num_actors=1)) as pool:
        pool.publish(weights(0), 0)
        with pytest.raises(RuntimeError, match="actor 0 died 2 times in a row"):
            pool.get()


@pytest.mark.ray
@pytest.mark.slow
def test_an_actor_that_does_not_answer_is_replaced(cluster: None) -> None:
    with RayPool(partial(make_counting_actor, ENVS), small(step_seconds=1.0)) as pool:
        pool.publish(weights(0), 0)
        while pool.status().alive < 2:
            no_wrong_state(pool.get())
        stopped = ray.get(pool.members[0].handle.pid.remote())
        os.kill(stopped, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while pool.status() != PoolStatus(alive=2, restarts=1, waiting=pool.status().waiting):
            no_wrong_state(pool.get())
            assert time.monotonic() < deadline
        wait_until(lambda: not Path(f"/proc/{stopped}").exists())


@pytest.mark.parametrize("over", [False, True])
def test_an_actor_resumes_exactly(over: bool) -> None:
    """Also between an episode's end and the step that resets."""
    actor, again = (make_counting_actor(ENVS, 0, incarnation) for incarnation in range(2))
    actor.unroll(LENGTH)
    while actor.over.any() != over:
        actor.unroll(1)
    again.load_state_dict(actor.state_dict())
    following, resumed = actor.unroll(LENGTH), again.unroll(LENGTH)
    assert resumed.episodes == following.episodes
    for expected, value in zip(leaves(following.trajectory), leaves(resumed.trajectory)):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    no_wrong_state(resumed)


def make_constant_actor(actor_id: int, sample: bool = True) -> Actor:
    """Sixteen environments and the constant policy `POLICY`."""
    agent = Agent(AgentConfig(torso_size=4, core=LSTMConfig(4)), (5,), len(POLICY))
    agent.policy.weight.data.zero_()
    agent.policy.bias.data = torch.tensor(POLICY).log()
    return Actor(make_vector("diagnostic:recall", 16), agent, actor_id, seed=3, sample=sample)


def test_actions_are_drawn_from_the_policy_or_its_most_probable() -> None:
    """By actors of one seed alike if their ids are the same."""
    first, again, other = (make_constant_actor(actor_id).unroll(200).trajectory for actor_id in (0, 0, 1))
    assert torch.equal(first.observation, again.observation)
    assert torch.equal(first.action, again.action)
    assert not torch.equal(first.observation, other.observation)
    assert not torch.equal(first.action, other.action)
    expected = first.action.numel() * torch.tensor(POLICY)
    counts = first.action.flatten().bincount(minlength=len(POLICY))
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, 99.9 %
    assert (make_constant_actor(0, sample=False).unroll(20).trajectory.action == 2).all()


def test_without_an_environment_state_an_actor_resumes_with_new_episodes() -> None:
    actor, again = (Actor(VectorWrapper(Counting(ENVS)), CountingAgent(), 0, seed) for seed in (7, 8))
    actor.unroll(LENGTH)
    again.load_state_dict(actor.state_dict())
    unroll = again.unroll(LENGTH)
    no_wrong_state(unroll)
    assert unroll.trajectory.reset[:, 0].all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"autoreset_mode": AutoresetMode.SAME_STEP}}, "autoreset_mode: expected"),
        ({"single_action_space": Counting(1).single_observation_space}, "action space: expected Discrete"),
        ({"single_observation_space": Counting(1).single_action_space}, "observation space: expected a Box"),
        ({"single_observation_space": Dict(image=Counting(1).single_observation_space)}, "a Dict of one of these"),
    ],
)
def test_unsupported_environments_are_refused(change: dict[str, Any], message: str) -> None:
    envs = Counting(2)
    for name, value in change.items():
        setattr(envs, name, value)
    with pytest.raises(ValueError, match=message):
        Actor(envs, CountingAgent(), 0, 0)
