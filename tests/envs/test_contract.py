"""The contract of all environments: one suite, run for each spec below. A new kind of environment adds a line.

Specs of packages that are not installed are skipped.
"""

import re
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

import envs
from actors import Actor
from agent import Agent, AgentConfig
from agent.core import GRUConfig
from agent.trajectory import loss_mask, validate
from envs.gym import PACKAGES
from tests.envs.lab import Lab, Module

SPECS = (
    "rooms:small,episode_frames=50",
    "rooms:full,randomise=True,redraw_match=True,examples=2,delay_frames=30,episode_frames=120,image_width=64",
    "dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32,processes=0",
    "diagnostic:recall,delay=5",
    "diagnostic:tmaze,length=2",
    "dm:envs.dm:RoomsDmEnv,config=small",
    "dm:tests.envs.dm_tasks:Walk",
    "gym:CartPole-v1",
    "gym:CartPole-v1,max_episode_steps=9",
    "gym:Taxi-v4,max_episode_steps=9",
    "gym:MiniGrid-MemoryS7-v0,max_steps=12",
    "gym:MiniGrid-MemoryS7-v0,max_steps=12,view=pixels",
    "gym:popgym-RepeatFirstEasy-v0",
    "gym:popgym-AutoencodeEasy-v0",
    "gym:popgym-PositionOnlyCartPoleEasy-v0",
    "gym:MortarMayhem-Grid-v0,max_episode_steps=12",
)
STEPS, UNROLL = 64, 20
Step = tuple[Any, ...]


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for module, (pattern, installation) in PACKAGES.items():
        if re.match(f"gym:({pattern})", request.param):
            pytest.importorskip(module, reason=f"{module} is not installed: {installation}")
    monkeypatch.setattr(Lab, "frames", 50)
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    return request.param


def actions_for(env: VectorEnv, rows: int, steps: int = STEPS) -> np.ndarray:
    """Random actions [steps, rows] in which a row's do not depend on how many rows there are."""
    columns = [np.random.default_rng(row).integers(env.single_action_space.n, size=steps) for row in range(rows)]
    return np.stack(columns, axis=1)


def play(env: VectorEnv, actions: np.ndarray) -> list[Step]:
    """The outputs of each step, with the environment's counters in place of infos."""
    names = env.metadata["episode_metrics"]
    steps = (env.step(action) for action in actions)
    return [(*values, *(infos[name] for name in names)) for *values, infos in steps]


def same(left: list[Step], right: list[Step]) -> bool:
    return all(np.array_equal(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other))


def rows_of(steps: list[Step], rows: slice) -> list[Step]:
    return [tuple(value[rows] for value in step) for step in steps]


def test_spaces_types_and_counters(spec: str) -> None:
    """What a step returns is also safe to keep."""
    env = envs.make_vector(spec, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.metadata["action_repeat"] >= 1
    kept = [env.reset(seed=0)[0]]
    assert env.observation_space.contains(kept[0])
    assert kept[0].dtype == (np.uint8 if kept[0].ndim == 4 else np.float32)
    copies = [kept[0].copy()]
    for action in actions_for(env, 3):
        *parts, infos = env.step(action)
        observation, reward, terminated, truncated = parts
        assert env.observation_space.contains(observation)
        assert env.single_observation_space.contains(observation[2])
        assert (reward.shape, reward.dtype) == ((3,), np.float64)
        assert np.isfinite(reward).all()
        assert (terminated.dtype, truncated.dtype) == (bool, bool)
        assert not (terminated & truncated).any()
        for name in env.metadata["episode_metrics"]:
            assert infos[name].shape == (3,)
            assert infos[f"_{name}"].all()
        kept += parts
        copies += [part.copy() for part in parts]
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies))


def test_equal_seeds_give_equal_episodes_and_others_do_not(spec: str) -> None:
    """In another environment, in the same one after other episodes, and not with another seed."""
    env, other = envs.make_vector(spec, 3), envs.make_vector(spec, 3)
    first, steps = env.reset(seed=7)[0], play(env, actions_for(env, 3))
    for again in (other, env):
        assert np.array_equal(again.reset(seed=7)[0], first)
        assert same(play(again, actions_for(env, 3)), steps)
    env.reset(seed=80)
    assert not same(play(env, actions_for(env, 3)), steps)


def test_no_environment_depends_on_its_neighbours(spec: str) -> None:
    together = envs.make_vector(spec, 3)
    begin, seeds = together.reset(seed=[11, 12, 13])[0], (11, 12, 13)
    actions = actions_for(together, 3)
    steps = play(together, actions)
    if spec.startswith("dmlab:"):  # later episodes have seeds that depend on how many environments share them out
        steps = steps[: next(index for index, step in enumerate(steps) if step[2].any())]
        actions = actions[: len(steps)]
        assert steps
    for row in (0, 2):
        alone = envs.make_vector(spec, 1)
        assert np.array_equal(alone.reset(seed=[seeds[row]])[0][0], begin[row])
        assert same(play(alone, actions[:, row : row + 1]), rows_of(steps, slice(row, row + 1)))


def test_the_step_after_the_end_begins_an_episode(spec: str) -> None:
    left, right = (envs.make_vector(spec, 3) for _ in range(2))
    assert np.array_equal(left.reset(seed=1)[0], right.reset(seed=1)[0])
    over, ended = np.zeros(3, bool), 0
    for action in actions_for(left, 3, 200):
        others = np.where(over, (action + 1) % left.single_action_space.n, action)
        one, other = (env.step(given)[:4] for env, given in ((left, action), (right, others)))
        assert all(np.array_equal(a, b) for a, b in zip(one, other))
        assert not one[1][over].any()
        assert not (one[2] | one[3])[over].any()
        over = one[2] | one[3]
        ended += over.sum()
    assert ended >= 3


def test_a_state_resumes_exactly(spec: str) -> None:
    env, other = (envs.make_vector(spec, 3) for _ in range(2))
    if not hasattr(env, "get_state"):
        pytest.skip("it has no state to save")
    env.reset(seed=3)
    observation = play(env, actions_for(env, 3, 30))[-1][0]
    state = env.get_state()
    expected = play(env, actions_for(env, 3))
    assert np.array_equal(other.set_state(state), observation)
    assert same(play(other, actions_for(other, 3)), expected)


def test_an_actor_unrolls_it(spec: str) -> None:
    """Score and steps of episodes are those of their trajectory."""
    env = envs.make_vector(spec, 2)
    config = AgentConfig(torso="small", torso_size=8, core=GRUConfig(8), reconstruction_cost=1.0)
    agent = Agent(config, env.single_observation_space.shape or (), int(env.single_action_space.n))
    unroll = Actor(env, agent, actor_id=0, seed=1).unroll(UNROLL)
    trajectory = unroll.trajectory
    validate(trajectory)
    for first in unroll.episodes[:1]:  # there are none where they are long
        assert loss_mask(trajectory)[first.environment, : first.steps].all()
        rewards = trajectory.reward[first.environment, 1 : first.steps + 1]
        assert first.score == pytest.approx(float(rewards.sum()), abs=1e-5)
    env.close()
