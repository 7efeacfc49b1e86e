"""The contract of all environments: one suite, run for each spec below. A new kind of environment adds a line.

Specs of packages that are not installed are skipped.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv

import envs
from actors import Actor
from agent import Agent, AgentConfig
from agent.core import GRUConfig
from agent.trajectory import loss_mask, validate
from envs.gym import PACKAGES
from tests.envs.lab import Lab

SPECS = (
    "rooms:small,episode_frames=50",
    "rooms:full,randomise=True,redraw_match=True,examples=2,delay_frames=30,episode_frames=120,image_width=64",
    "dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32",
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
    for module, package in PACKAGES.items():
        if request.param.startswith(tuple(f"gym:{prefix}" for prefix in package.prefixes)):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed: {package.installation}")
            pytest.importorskip(module)
    double = ModuleType("deepmind_lab")
    double.Lab = type("Lab", (Lab,), {"frames": 50})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepmind_lab", double)
    return request.param


def actions_for(env: VectorEnv, rows: int, steps: int = STEPS) -> np.ndarray:
    """Random actions [steps, rows] in which a row's do not depend on how many rows there are."""
    columns = [np.random.default_rng(row).integers(env.single_action_space.n, size=steps) for row in range(rows)]  # type: ignore[attr-defined]
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


class Single(gymnasium.Env):
    """A batch of one as a single environment, for gymnasium's checker."""

    def __init__(self, spec: str) -> None:
        self.envs = envs.make_vector(spec, 1)
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.envs.reset(seed=None if seed is None else [seed])[0][0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, _ = self.envs.step(np.array([action]))
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def test_gymnasium_checks_it(spec: str) -> None:
    check_env(Single(spec), skip_render_check=True)


def test_spaces_types_and_counters(spec: str) -> None:
    env = envs.make_vector(spec, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.metadata["action_repeat"] >= 1
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation.dtype == (np.uint8 if observation.ndim == 4 else np.float32)
    for action in actions_for(env, 3):
        observation, reward, terminated, truncated, infos = env.step(action)
        assert env.observation_space.contains(observation)
        assert env.single_observation_space.contains(observation[2])
        assert (reward.shape, reward.dtype) == ((3,), np.float64)
        assert (terminated.dtype, truncated.dtype) == (bool, bool)
        assert not (terminated & truncated).any()
        for name in env.metadata["episode_metrics"]:
            assert infos[name].shape == (3,)
            assert infos[f"_{name}"].all()
    env.close()


def test_equal_seeds_give_equal_episodes_and_others_do_not(spec: str) -> None:
    runs, firsts = [], []
    for seed in (7, 7, 80):
        env = envs.make_vector(spec, 3)
        firsts.append(env.reset(seed=seed)[0])
        runs.append(play(env, actions_for(env, 3)))
        env.close()
    assert np.array_equal(firsts[0], firsts[1])
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_reset_with_a_seed_begins_anew(spec: str) -> None:
    env = envs.make_vector(spec, 2)
    first, steps = env.reset(seed=3)[0], play(env, actions_for(env, 2))
    assert np.array_equal(env.reset(seed=3)[0], first)
    assert same(play(env, actions_for(env, 2)), steps)
    env.close()


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
        alone.close()
    together.close()


def test_the_step_after_the_end_begins_an_episode(spec: str) -> None:
    left, right = (envs.make_vector(spec, 3) for _ in range(2))
    assert np.array_equal(left.reset(seed=1)[0], right.reset(seed=1)[0])
    over, ended = np.zeros(3, bool), 0
    for action in actions_for(left, 3, 200):
        others = np.where(over, (action + 1) % left.single_action_space.n, action)  # type: ignore[attr-defined]
        one, other = (env.step(given)[:4] for env, given in ((left, action), (right, others)))
        assert all(np.array_equal(a, b) for a, b in zip(one, other))
        assert not one[1][over].any()
        assert not (one[2] | one[3])[over].any()
        over = one[2] | one[3]
        ended += over.sum()
    assert ended >= 3
    for env in (left, right):
        env.close()


def test_what_a_step_returns_is_safe_to_keep(spec: str) -> None:
    env = envs.make_vector(spec, 2)
    kept = [env.reset(seed=0)[0]]
    copies = [kept[0].copy()]
    for action in actions_for(env, 2):
        parts = env.step(action)[:4]
        kept += parts
        copies += [part.copy() for part in parts]
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies))
    env.close()


def test_a_state_resumes_exactly(spec: str) -> None:
    env, other = (envs.make_vector(spec, 3) for _ in range(2))
    if not hasattr(env, "get_state"):
        pytest.skip("it has no state to save")
    env.reset(seed=3)
    observation = play(env, actions_for(env, 3, 30))[-1][0]
    state = env.get_state()
    expected = play(env, actions_for(env, 3))
    assert np.array_equal(other.set_state(state), observation)  # type: ignore[attr-defined]
    assert same(play(other, actions_for(other, 3)), expected)


def test_an_actor_unrolls_it(spec: str) -> None:
    """Score and steps of episodes are those of their trajectory."""
    env = envs.make_vector(spec, 2)
    config = AgentConfig(torso="small", torso_size=8, core=GRUConfig(8), reconstruction_cost=1.0)
    agent = Agent(config, env.single_observation_space.shape or (), int(env.single_action_space.n))  # type: ignore[attr-defined]
    unroll = Actor(env, agent, actor_id=0, seed=1).unroll(UNROLL)
    trajectory = unroll.trajectory
    validate(trajectory)
    if unroll.episodes:  # short ones only
        first = unroll.episodes[0]
        row = first.environment
        assert loss_mask(trajectory)[row, : first.steps].all()
        assert first.score == pytest.approx(float(trajectory.reward[row, 1 : first.steps + 1].sum()), abs=1e-5)
    env.close()
