"""One contract suite for all pools, with the counting task, whose agent notices a wrong state."""

import math
import os
import re
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
from actors.actor import MOST_REWARD, Actor, require_rewards
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
from tests.envs import faulty
from tests.waiting import PATIENCE, wait_until

ENVS = 3
"""Environments of an actor."""
LENGTH = 8
"""Steps of an unroll."""
POLICY = (0.1, 0.25, 0.6, 0.05)
"""Probabilities of the actions of constant actors."""
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
    """Makes a pool of one kind; without a function that makes its actors, of counting ones."""
    if request.param == "resident":
        return make_resident_pool
    if request.param != "local":
        request.getfixturevalue("cluster")
    kinds = {"local": LocalPool, "ray": RayPool, "ray by reference": partial(RayPool, by_reference=True)}
    kind = kinds[request.param]
    return lambda build=None, **config: kind(build or partial(make_counting_actor, ENVS), small(**config))


def kept(unroll: Unroll) -> Trajectory:
    """A copy of an unroll's trajectory, which the pool lends only until the next unroll."""
    return map_state(torch.clone, unroll.load())


def weights(marker: float) -> dict[str, torch.Tensor]:
    """Weights of a counting agent."""
    return {"marker": torch.tensor([marker])}


def no_wrong_state(unroll: Unroll) -> None:
    """Asserts that each environment was given its own state."""
    trajectory = unroll.load()
    validate(trajectory)
    assert not trajectory.policy_parameters.any(), "an environment got another's state"


def test_no_environment_receives_the_state_of_another(make_pool: Callable[..., Any]) -> None:
    """And an actor's unrolls follow each other: the next begins with the last observation of the one before."""
    last: dict[int, torch.Tensor] = {}  # observations by actor
    with make_pool(in_flight=2) as pool:
        actors = {0} if isinstance(pool, ResidentActor) else {0, 1}
        pool.publish(weights(0), 0)

        # At least twelve unrolls, and of each actor: processes do not start at the same time.
        for update in range(10_000):
            if update >= 12 and last.keys() == actors:
                break
            unroll = pool.get()
            no_wrong_state(unroll)

            # The learner replays from the state at the trajectory's first step, which must agree, too.
            seen = unroll.load()
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
    """The counting task says which steps each episode has."""
    parts: list[Trajectory] = []
    ended: list[Episode] = []
    with make_pool(num_actors=1) as pool:
        pool.publish(weights(0), 0)
        for version in range(1, 6):
            unroll = pool.get()
            parts.append(kept(unroll))
            ended += unroll.episodes
            pool.publish(weights(float(version)), version)
    versions = [int(part.version[0]) for part in parts]
    assert versions == sorted(versions)
    assert versions[-1] >= 3, "new weights must reach the actor within the unrolls in flight"

    # All unrolls in a row, each without its last step, which is also the first of the next.
    number, episode, step = torch.cat([part.observation[:, :-1] for part in parts], dim=1).unbind(2)
    discount = torch.cat([part.discount[:, :-1] for part in parts], dim=1)
    reset = torch.cat([part.reset[:, :-1] for part in parts], dim=1)
    counts_in_loss = torch.cat([loss_mask(part) for part in parts], dim=1)
    lengths = 5 + number[:, :1] % 7
    assert len(lengths.unique()) > 1
    assert torch.equal(reset, step == 0)
    assert torch.equal(counts_in_loss, step < lengths)

    # Even episodes terminate, odd ones are truncated and keep their discount.
    terminated = (step == lengths) & (episode % 2 == 0)
    assert torch.equal(discount == 0, terminated)

    assert ended
    for one in ended:
        length = int(lengths[one.environment])
        assert one.steps == length
        assert one.score == sum(range(1, length + 1))
        assert one.metrics == {"evens": length // 2}


@pytest.mark.ray
def test_killed_actor_comes_back_with_fresh_memory(cluster: None) -> None:
    with RayPool(partial(make_counting_actor, ENVS), small()) as pool:
        victim = ray.get(pool.members[0].handle.pid.remote())
        pool.publish(weights(0), 0)
        for _ in range(6):
            no_wrong_state(pool.get())
        os.kill(victim, signal.SIGKILL)

        begin = time.monotonic()
        while not (pool.status().restarts == 1 and pool.status().alive == 2):
            no_wrong_state(pool.get())
            assert time.monotonic() - begin < PATIENCE, "the actor did not come back"

        # Both actors deliver: there are as many numbers as environments.
        numbers: set[int] = set()
        while len(numbers) < 2 * ENVS:
            numbers |= set(pool.get().load().observation[:, 0, 0].long().tolist())
            assert time.monotonic() - begin < PATIENCE, "one of the actors does not deliver"
        assert ray.get(pool.members[0].handle.pid.remote()) != victim


@pytest.mark.ray
def test_a_wait_for_actors_that_have_no_room_can_be_ended(cluster: None) -> None:
    """By an error of the check, which leaves the pool as it was."""
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


@pytest.mark.parametrize("reward", [-math.inf, math.nan, 1e39, 3e38, -1e20])
def test_rewards_that_cannot_be_learned_from_are_refused(reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also finite ones, if the sum of a few of their squares is not finite in float32."""
    actor = make_counting_actor(ENVS, 0, 0)
    advance = actor.envs.advance

    def advance_with_this_reward(*arguments: Any) -> Any:
        _, terminated, truncated = advance(*arguments)
        return np.full(ENVS, reward), terminated, truncated

    monkeypatch.setattr(actor.envs, "advance", advance_with_this_reward)
    expected = r"numbers from -1e\+18 to 1e\+18, whose squares float32 can sum"
    got = re.escape(str(np.float64(reward)))
    with pytest.raises(EnvironmentFailed, match=f"^environment .*, step: reward: expected {expected}, got {got}$"):
        actor.unroll(1)


def test_the_largest_rewards_are_accepted() -> None:
    require_rewards(np.array([MOST_REWARD, -MOST_REWARD, 0.0]))


def initial_weights() -> dict[str, torch.Tensor]:
    """Weights for actors with faults."""
    return make_faulty_actor("", 0, 0).agent.state_dict()


@pytest.mark.parametrize("make_pool", ["local", *ON_RAY], indirect=True)
def test_an_exit_in_an_environment_is_an_error(make_pool: Callable[..., Any]) -> None:
    """In its twentieth step, and so in the third unroll."""
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
        """Only the first actor has the fault, not those that replace it."""
        fault_of_this = fault if incarnation == 0 else ""
        return make_faulty_actor(fault_of_this, actor_id, incarnation)

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
        pytest.param(ValueError("broken"), "made", ray.exceptions.RayTaskError, marks=pytest.mark.slow),
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
    """Meanwhile each unroll of the others comes once: no two show the same steps."""
    seen = set()
    with RayPool(partial(make_counting_actor, ENVS), small(step_seconds=1.0)) as pool:
        pool.publish(weights(0), 0)
        while pool.status().alive < 2:
            no_wrong_state(pool.get())
        stopped = ray.get(pool.members[0].handle.pid.remote())
        os.kill(stopped, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while pool.status() != PoolStatus(alive=2, restarts=1, waiting=pool.status().waiting):
            unroll = pool.get()
            no_wrong_state(unroll)
            shown = np.asarray(unroll.trajectory.observation).tobytes()
            assert shown not in seen
            seen.add(shown)
            assert time.monotonic() < deadline
        wait_until(lambda: not Path(f"/proc/{stopped}").exists())


@pytest.mark.ray
@pytest.mark.slow
def test_an_actor_that_hangs_while_it_is_made_is_replaced(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In code that nothing interrupts, as that of an engine which waits for a server."""
    monkeypatch.setattr("actors.ray_pool.MAKING_SECONDS", 1.0)

    def hangs_once(actor_id: int, incarnation: int) -> Actor:
        if (actor_id, incarnation) == (1, 0):
            time.sleep(10_000)
        return make_counting_actor(ENVS, actor_id, incarnation)

    with RayPool(hangs_once, small(step_seconds=0.3)) as pool:
        pool.publish(weights(0), 0)
        deadline = time.monotonic() + PATIENCE
        while (pool.status().alive, pool.status().restarts) != (2, 1):
            no_wrong_state(pool.get())
            assert time.monotonic() < deadline


def test_an_actor_that_cannot_be_made_leaves_no_other_open() -> None:
    made: list[Actor] = []

    def make(actor_id: int, incarnation: int) -> Actor:
        if actor_id == 2:
            raise EnvironmentFailed("it cannot be made")
        actor = make_counting_actor(ENVS, actor_id, incarnation)
        made.append(actor)
        return actor

    with pytest.raises(EnvironmentFailed, match="it cannot be made"):
        LocalPool(make, small(num_actors=3))
    assert [actor.envs.closed for actor in made] == [True, True]


def test_an_actor_that_fails_to_close_leaves_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def close(actor: Actor) -> None:
        closed.append(actor.actor_id)
        if actor.actor_id == 0:
            raise EnvironmentFailed("it does not close")

    monkeypatch.setattr(Actor, "close", close)
    pool = LocalPool(partial(make_counting_actor, ENVS), small())
    with pytest.raises(EnvironmentFailed, match="it does not close"):
        pool.close()
    assert closed == [0, 1]


@pytest.mark.parametrize("over", [False, True])
def test_an_actor_resumes_exactly(over: bool) -> None:
    """Also between an episode's end and the step that resets."""
    actor = make_counting_actor(ENVS, actor_id=0, incarnation=0)
    actor.unroll(LENGTH)
    while actor.over.any() != over:
        actor.unroll(1)

    again = make_counting_actor(ENVS, actor_id=0, incarnation=1)
    again.load_state_dict(actor.state_dict())
    following = actor.unroll(LENGTH)
    resumed = again.unroll(LENGTH)
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
    actions = make_constant_actor(0).unroll(200).trajectory.action
    expected = actions.numel() * torch.tensor(POLICY)
    counts = actions.flatten().bincount(minlength=len(POLICY))
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.3, "3 degrees of freedom, 99.9 %"

    greedy = make_constant_actor(0, sample=False).unroll(20).trajectory.action
    assert (greedy == np.argmax(POLICY)).all()


def test_actors_of_one_seed_differ_by_their_ids() -> None:
    first = make_constant_actor(0).unroll(200).trajectory
    again = make_constant_actor(0).unroll(200).trajectory
    other = make_constant_actor(1).unroll(200).trajectory
    assert torch.equal(first.observation, again.observation)
    assert torch.equal(first.action, again.action)
    assert not torch.equal(first.observation, other.observation)
    assert not torch.equal(first.action, other.action)


def test_without_an_environment_state_an_actor_resumes_with_new_episodes() -> None:
    """A wrapper hides the methods by which the environments' state is saved."""
    actor = Actor(VectorWrapper(Counting(ENVS)), CountingAgent(), actor_id=0, seed=7)
    actor.unroll(LENGTH)
    again = Actor(VectorWrapper(Counting(ENVS)), CountingAgent(), actor_id=0, seed=8)
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
