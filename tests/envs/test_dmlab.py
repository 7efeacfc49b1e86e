"""The adapter of DeepMind Lab against a double that behaves as the real `deepmind_lab.Lab` was found to.

The tests marked `dmlab` need the real package; everything else runs anywhere.
"""

import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import envs
from envs.dmlab import LAB_ACTIONS, DMLabEnv, make

LEVEL = "contributed/dmlab30/rooms_select_nonmatching_object"


class Lab:
    """Raises what Lab raises, and shows what it was told: the image holds the frame and the last action.

    `rewards` maps the frame of an episode (1..720) to its reward.
    """

    frames = 720
    rewards: dict[int, float] = {30: 1.0, 60: 10.0, 90: 1.0, 91: -10.0, 717: 1.0, 719: 10.0}  # noqa: RUF012

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        if not all(isinstance(v, str) for v in (config or {}).values()):
            raise TypeError("config values must be strings")
        assert renderer in ("software", "hardware")
        assert level.startswith("contributed/dmlab30/"), "the level cannot be found"
        self.size = int(config["height"]), int(config["width"])
        assert config["fps"] == "60"
        self.names = observations
        self.frame = None
        self.seeds = []
        self.counted = 0
        self.closed = False

    def reset(self, episode=-1, seed=None):
        assert seed is None or isinstance(seed, int)
        self.seeds.append(seed)
        self.frame, self.action = 0, np.zeros(7, np.intc)

    def is_running(self):
        return self.frame is not None and self.frame < self.frames

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status.")
        image = np.zeros((*self.size, 3), np.uint8)
        image[..., 0], image[..., 1] = self.frame % 256, self.seeds[-1] % 251
        image[0, :7, 2] = self.action % 256
        return dict.fromkeys(self.names, image)

    def step(self, action, num_steps=1):
        if not isinstance(action, np.ndarray):
            raise TypeError("argument 1 must be numpy.ndarray")
        if action.dtype != np.intc or action.shape != (7,):
            raise ValueError("action must be an int array of shape (7,)")
        if not self.is_running():
            raise RuntimeError("Environment in wrong status.")
        self.action = action
        begin, self.frame = self.frame, min(self.frame + num_steps, self.frames)
        total = sum(self.rewards.get(frame, 0.0) for frame in range(begin + 1, self.frame + 1))
        self.counted += num_steps  # overshoots where num_steps does not divide 720
        return total

    def close(self):
        self.closed = True


class Module:
    """Stands in for the module `deepmind_lab`."""

    Lab = Lab


def lab(**kwargs):
    return DMLabEnv(lab=Module, **kwargs)


def test_gymnasium_checks_it():
    check_env(lab(render_mode="rgb_array"), skip_render_check=True)


def test_an_episode_is_180_steps_and_ends_with_the_last_observation_there_was():
    env = lab()
    observation, infos = env.reset(seed=3)
    assert (observation.shape, observation.dtype) == ((72, 96, 3), np.uint8)
    assert infos == {"correct_choices": 0, "wrong_choices": 0}
    total, kept = 0.0, []
    for step in range(1, 181):
        observation, reward, terminated, truncated, infos = env.step(0)
        total += reward
        kept.append(observation)
        assert terminated == (step == 180)
        assert not truncated
    assert observation[0, 0, 0] == (179 * 4) % 256
    assert kept[0][0, 0, 0] == 4, "observations are safe to keep"
    assert total == 13.0
    assert infos == {"correct_choices": 2, "wrong_choices": 1}
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    assert env.reset()[1] == {"correct_choices": 0, "wrong_choices": 0}


def test_frames_that_do_not_divide_the_episode():
    env = lab(action_repeat=7)
    env.reset(seed=0)
    steps = 1
    while not env.step(8)[2]:
        steps += 1
    assert steps == 103


@pytest.mark.parametrize(
    ("action", "row"),
    [
        (0, (0, 0, 0, 1, 0, 0, 0)),
        (1, (0, 0, 0, -1, 0, 0, 0)),
        (2, (0, 0, -1, 0, 0, 0, 0)),
        (3, (0, 0, 1, 0, 0, 0, 0)),
        (4, (-20, 0, 0, 0, 0, 0, 0)),
        (5, (20, 0, 0, 0, 0, 0, 0)),
        (6, (-20, 0, 0, 1, 0, 0, 0)),
        (7, (20, 0, 0, 1, 0, 0, 0)),
        (8, (0, 0, 0, 0, 1, 0, 0)),
    ],
)
def test_the_nine_actions_of_scalable_agent(action, row):
    assert tuple(LAB_ACTIONS[action]) == row
    env = lab()
    env.reset(seed=0)
    assert (env.step(action)[0][0, :7, 2] == np.array(row) % 256).all()


@pytest.mark.parametrize("action", [-1, 9])
def test_wrong_actions(action):
    env = lab()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected 0\.\.8"):
        env.step(action)


def test_levels_by_either_name_and_choices_of_this_level_only():
    assert lab().level == lab(level=LEVEL).level == LEVEL
    other = lab(level="rooms_watermaze")
    assert other.level == "contributed/dmlab30/rooms_watermaze"
    other.reset(seed=0)
    infos = [other.step(0)[4] for _ in range(180)]
    assert infos[-1] == {"correct_choices": 0, "wrong_choices": 0}


def test_episodes_of_a_seed_differ_and_repeat():
    env = lab()
    for seed in (1, None, None, 1, None):
        env.reset(seed=seed)
    first, second, third, again, and_again = env._lab.seeds
    assert len({first, second, third}) == 3
    assert (again, and_again) == (first, second)


def test_close():
    env = lab()
    env.close()
    assert env._lab.closed


def test_the_batch_resets_at_the_next_step_and_carries_the_counters():
    batch = make("rooms_select_nonmatching_object", 3, lab=Module)
    assert batch.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert batch.metadata["episode_metrics"] == ("correct_choices", "wrong_choices")
    first = batch.reset(seed=0)[0]
    assert first.shape == (3, 72, 96, 3)
    for step in range(1, 181):
        _, reward, terminated, _, infos = batch.step(np.zeros(3, int))
        assert terminated.all() == (step == 180)
    assert infos["correct_choices"].tolist() == [2, 2, 2]
    assert infos["_wrong_choices"].all()
    observation, reward, terminated, _, infos = batch.step(np.zeros(3, int))
    assert (observation[..., 0] == 0).all()
    assert not reward.any()
    assert not terminated.any()
    assert infos["wrong_choices"].tolist() == [0, 0, 0]
    batch.close()


def test_without_deepmind_lab_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(ImportError, match="--env rooms:full"):
        envs.make_vector("dmlab:rooms_select_nonmatching_object", 1)


def test_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", Module)
    batch = envs.make_vector("dmlab:rooms_select_nonmatching_object,image_height=24,image_width=32", 2)
    assert batch.reset(seed=0)[0].shape == (2, 24, 32, 3)


@pytest.mark.dmlab
def test_the_real_level():
    pytest.importorskip("deepmind_lab")
    env = DMLabEnv()
    check_env(env, skip_render_check=True)
    for _ in range(2):
        env.reset(seed=1)
        steps = 1
        while not env.step(8)[2]:
            steps += 1
        assert steps == 180
    env.close()
