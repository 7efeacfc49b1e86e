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
from actors.interface import read_interface
from agent import Agent, AgentConfig
from agent.core import GRUConfig
from agent.trajectory import loss_mask, validate
from envs.gym import PACKAGES
from envs.outputs import leaves
from tests.envs.lab import Lab, Module

SPECS = (
    "rooms:small,episode_frames=50",
    "rooms:full,looks=choose,redraw_match=True,examples=2,delay_frames=30,episode_frames=120,image_width=64",
    "dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32,processes=0",
    "diagnostic:recall,delay=5",
    "diagnostic:tmaze,length=2",
    "diagnostic:repeat-previous,steps=9",
    "diagnostic:endless-tmaze,length=1,corridors=2,uniform=True",
    "diagnostic:color-cubes,targets=1,size=3",
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
    # Actions that are vectors, several parts, and texts.
    "gym:Pendulum-v1,max_episode_steps=9",
    "gym:popgym-BattleshipEasy-v0,max_episode_steps=9",
    "gym:BabyAI-GoToLocal-v0,max_steps=12",
    "gym:tests.envs.odd:Many-v0",
    "dm:tests.envs.dm_tasks:Drift",
    # Batches of other libraries.
    "gym:ALE/Breakout-v5,max_num_frames_per_episode=60",
    "gym:PongNoFrameskip-v4,max_num_frames_per_episode=60,grayscale=False,stack_num=2,img_height=30,img_width=20",
    "gym:ALE/Pong-v5,max_num_frames_per_episode=60,continuous=True,frameskip=2,repeat_action_probability=0",
    "gym:ALE/Pong-v5,raw=True,max_episode_steps=9",
    "envpool:CartPole-v1",
    "envpool:Pong-v5,max_episode_steps=15,stack_num=3,img_height=20",
    "envpool:HalfCheetah-v4,max_episode_steps=12",
    "envpool:Taxi-v3,max_episode_steps=12",
    "envpool:CartpoleSwingup-v1,max_episode_steps=12",
    "envpool:FetchReach-v4,max_episode_steps=12",
    "envpool:MiniGrid-DoorKey-5x5-v0,max_episode_steps=12",
    "envpool:BabyAI-GoToLocal-v0,max_episode_steps=12",
)
STEPS = 64
UNROLL = 20
"""Steps that a test plays, and those of an unroll."""
Step = tuple[Any, ...]


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each spec whose package is installed; DeepMind Lab is its double."""
    for module, (pattern, installation) in PACKAGES.items():
        if re.match(f"gym:({pattern})", request.param):
            pytest.importorskip(module, reason=f"{module} is not installed: {installation}")
    if request.param.startswith("envpool:"):
        pytest.importorskip("envpool", reason="envpool is not installed: pip install -e '.[envpool]'")
    monkeypatch.setattr(Lab, "frames", 50)
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    return request.param


def actions_for(env: VectorEnv, rows: int, steps: int = STEPS) -> np.ndarray:
    """Random actions [steps, rows, ...] in which a row's do not depend on how many rows there are."""
    space = env.single_action_space
    columns = []
    for row in range(rows):
        space.seed(row)
        columns.append([space.sample() for _ in range(steps)])
    return np.stack(columns, axis=1)


def play(env: VectorEnv, actions: np.ndarray) -> list[Step]:
    """The outputs of each step, with the environment's counters in place of infos."""
    names = env.metadata["episode_metrics"]
    steps = []
    for action in actions:
        *values, infos = env.step(action)
        counters = [infos[name] for name in names]
        steps.append((*values, *counters))
    return steps


def arrays(value: Any) -> list[np.ndarray]:
    """The arrays of an observation or of a step, however they are nested."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in arrays(part)]
    return [value]


def same(left: Any, right: Any) -> bool:
    """Whether the arrays of two values, however they are nested, are equal."""
    return all(np.array_equal(a, b) for a, b in zip(arrays(left), arrays(right), strict=True))


def only_row(value: Any, row: int) -> list[np.ndarray]:
    """The arrays of a value for one of the environments, [1, ...]."""
    return [array[row : row + 1] for array in arrays(value)]


def test_spaces_types_and_counters(spec: str) -> None:
    """What a step returns is also safe to keep."""
    env = envs.make_vector(spec, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.metadata["action_repeat"] >= 1
    first = env.reset(seed=0)[0]
    assert env.observation_space.contains(first)
    kept = arrays(first)
    for array in kept:
        assert (array.dtype, array.ndim) in ((np.uint8, 4), (np.float32, 2), (np.int64, 2))
    copies = [array.copy() for array in kept]
    for action in actions_for(env, 3):
        *parts, infos = env.step(action)
        observation, reward, terminated, truncated = parts

        assert env.observation_space.contains(observation)
        for array, (_, space) in zip(arrays(observation), leaves(env.single_observation_space), strict=True):
            assert space.contains(array[2])
        assert (reward.shape, reward.dtype) == ((3,), np.float64)
        assert np.isfinite(reward).all()
        assert (terminated.dtype, truncated.dtype) == (bool, bool)
        assert not (terminated & truncated).any()
        for name in env.metadata["episode_metrics"]:
            assert infos[name].shape == (3,)
            assert infos[f"_{name}"].all()

        kept += arrays(parts)
        copies += [part.copy() for part in arrays(parts)]
    for array, copy in zip(kept, copies, strict=True):
        assert np.array_equal(array, copy), "a later step has written into it"


def test_equal_seeds_give_equal_episodes_and_others_do_not(spec: str) -> None:
    """In another environment, in the same one after other episodes, and not with another seed."""
    env = envs.make_vector(spec, 3)
    other = envs.make_vector(spec, 3)
    actions = actions_for(env, 3)
    first, _ = env.reset(seed=7)
    steps = play(env, actions)
    for again in (other, env):
        assert same(again.reset(seed=7)[0], first)
        assert same(play(again, actions), steps)
    env.reset(seed=80)
    assert not same(play(env, actions), steps)


def test_no_environment_depends_on_its_neighbors(spec: str) -> None:
    seeds = [11, 12, 13]
    together = envs.make_vector(spec, 3)
    actions = actions_for(together, 3)
    begin, _ = together.reset(seed=seeds)
    steps = play(together, actions)
    if spec.startswith("dmlab:"):  # later episodes have seeds that depend on how many environments share them out
        first_end = next(index for index, (_, _, terminated, *_) in enumerate(steps) if terminated.any())
        steps = steps[:first_end]
        actions = actions[:first_end]
        assert steps
    for row in (0, 2):
        alone = envs.make_vector(spec, 1)
        first, _ = alone.reset(seed=[seeds[row]])
        assert same(first, only_row(begin, row))
        assert same(play(alone, actions[:, row : row + 1]), only_row(steps, row))


def test_the_step_after_the_end_begins_an_episode(spec: str) -> None:
    """Its action makes no difference, and its reward is 0."""
    env = envs.make_vector(spec, 3)
    other = envs.make_vector(spec, 3)
    assert same(env.reset(seed=1)[0], other.reset(seed=1)[0])
    actions = actions_for(env, 3, 200)
    over = np.zeros(3, bool)
    ended = 0
    for action, another in zip(actions, np.roll(actions, 1, axis=0), strict=True):
        *parts, _ = env.step(action)
        changed = action.copy()
        changed[over] = another[over]
        *other_parts, _ = other.step(changed)
        assert same(other_parts, parts)

        _, reward, terminated, truncated = parts
        assert not reward[over].any()
        assert not (terminated | truncated)[over].any()
        over = terminated | truncated
        ended += over.sum()
    assert ended >= 3


def test_an_episode_that_is_ended_is_followed_by_the_next(spec: str) -> None:
    """As after an end of its own, the next step's action makes no difference. Other rows play on."""
    undisturbed, env, other = (envs.make_vector(spec, 3) for _ in range(3))
    if not hasattr(env, "end_episodes"):
        pytest.skip("its episodes cannot be ended")
    actions = actions_for(env, 3, 3)
    first = actions[:1]
    played = []
    for each in (undisturbed, env, other):
        each.reset(seed=1)
        played.append(play(each, first))
    _, _, terminated, truncated, *_ = played[0][0]
    assert not (terminated | truncated)[1]

    ended = np.array([False, True, False])
    env.end_episodes(ended)
    other.end_episodes(ended)
    changed = actions[1:].copy()
    changed[0, 1] = actions[0, 1]
    steps = play(env, actions[1:])
    assert same(steps, play(other, changed))
    begin, *_ = steps
    expected, *_ = play(undisturbed, actions[1:2])
    assert same(only_row(begin, 0), only_row(expected, 0))
    assert same(only_row(begin, 2), only_row(expected, 2))
    _, reward, terminated, truncated, *_ = begin
    assert reward[1] == 0
    assert not terminated[1]
    assert not truncated[1]


def test_a_state_resumes_exactly(spec: str) -> None:
    env = envs.make_vector(spec, 3)
    other = envs.make_vector(spec, 3)
    if not hasattr(env, "get_state"):
        pytest.skip("it has no state to save")
    env.reset(seed=3)
    observation, *_ = play(env, actions_for(env, 3, 30))[-1]
    state = env.get_state()
    expected = play(env, actions_for(env, 3))
    assert np.array_equal(other.set_state(state), observation)
    assert same(play(other, actions_for(other, 3)), expected)


def test_an_actor_unrolls_it(spec: str) -> None:
    """Score and steps of episodes are those of their trajectory."""
    env = envs.make_vector(spec, 2)
    config = AgentConfig(torso="small", torso_size=8, core=GRUConfig(8), reconstruction_cost=1.0)
    shape, actions, _, vocabulary, _ = read_interface(env)
    agent = Agent(config, shape, actions, vocabulary)
    unroll = Actor(env, agent, actor_id=0, seed=1).unroll(UNROLL)
    trajectory = unroll.trajectory
    validate(trajectory)
    if unroll.episodes:  # there are none where they are long
        first = unroll.episodes[0]
        assert loss_mask(trajectory)[first.environment, : first.steps].all()
        rewards = trajectory.reward[first.environment, 1 : first.steps + 1]
        assert first.score == pytest.approx(float(rewards.sum()), abs=1e-5)
    env.close()
