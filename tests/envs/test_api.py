"""The environments as gymnasium sees them: seeds, batches, autoreset, copies, state, configs and names."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import envs
from envs.registry import prepare, rooms_config
from envs.rooms import VARIANTS, RoomsConfig, RoomsEnv, RoomsVectorEnv, warm_up
from envs.rooms.config import resolve

TINY = RoomsConfig(image_height=16, image_width=16, hud=False)


def rollout(env, steps, seed=0):
    """Observations, rewards, terminations of random actions that differ by environment and step only."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 9, (steps, 8))[:, : env.num_envs]
    return [np.stack(part) for part in zip(*(env.step(a)[:3] for a in actions))]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_gymnasium_checks_the_single_environment(variant):
    check_env(RoomsEnv(variant, render_mode="rgb_array"), skip_render_check=False)


@pytest.mark.parametrize("suffix", ["", "-Small", "-Full-Randomised", "-Small-Recall-66"])
def test_registered_names(suffix):
    name = f"RoomsSelectNonmatchingObject{suffix}-v0"
    env = gymnasium.make(f"compressive/{name}")
    assert env.reset(seed=0)[0].shape == env.observation_space.shape
    batch = gymnasium.make_vec(f"compressive/{name}", num_envs=3)
    assert isinstance(batch, RoomsVectorEnv)
    assert batch.reset(seed=0)[0].shape == (3, *env.observation_space.shape)


def test_vector_environment_has_the_spaces_and_metadata_of_gymnasium():
    env = RoomsVectorEnv(3, TINY)
    observation, infos = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.single_observation_space.contains(observation[0])
    assert env.action_space.contains(env.action_space.sample())
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.metadata["episode_metrics"] == ("correct_choices", "wrong_choices")
    observation, reward, terminated, truncated, infos = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert (reward.shape, reward.dtype) == ((3,), np.float64)
    assert (terminated.dtype, truncated.dtype) == (bool, bool)
    for name in env.metadata["episode_metrics"]:
        assert infos[name].shape == (3,)
        assert infos[f"_{name}"].all()


def test_same_seed_same_episode_other_seed_another():
    runs = []
    for seed in (7, 7, 8):
        env = RoomsVectorEnv(4, TINY)
        first = env.reset(seed=seed)[0]
        runs.append([first, *rollout(env, 400)])
    assert all((a == b).all() for a, b in zip(runs[0], runs[1]))
    assert (runs[0][0] != runs[2][0]).any()


def test_an_environment_does_not_depend_on_its_neighbours():
    """Members of a batch do what they do alone, over two episodes, whatever the others do."""
    batch = RoomsVectorEnv(8, TINY)
    batch.reset(seed=list(range(8)))
    together = rollout(batch, 365)
    for i in (0, 3, 7):
        alone = RoomsVectorEnv(1, TINY)
        alone.reset(seed=[i])
        rng = np.random.default_rng(0)
        for t, actions in enumerate(rng.integers(0, 9, (365, 8))):
            observation, reward, terminated, _, _ = alone.step(actions[i : i + 1])
            assert (observation[0] == together[0][t, i]).all()
            assert (reward[0], terminated[0]) == (together[1][t, i], together[2][t, i])


def test_a_single_environment_is_member_0_of_a_batch_with_its_seed():
    single, batch = RoomsEnv(TINY), RoomsVectorEnv(2, TINY)
    a, b = single.reset(seed=5)[0], batch.reset(seed=5)[0]
    assert (a == b[0]).all()
    for action in (0, 6, 7, 3, 0, 0):
        assert (single.step(action)[0] == batch.step(np.array([action, 1]))[0][0]).all()


def test_reset_without_a_seed_goes_on_and_with_a_mask_spares_the_rest():
    env = RoomsVectorEnv(64, TINY)
    env.reset(seed=1)
    match = env.state.match.copy()
    env.step(np.zeros(64, int))
    mask = np.arange(64) < 32
    env.reset(options={"reset_mask": mask})
    assert (env.state.frame[:32] == 0).all()
    assert (env.state.frame[32:] == 4).all()
    assert (env.state.match[:32] != match[:32]).any()
    assert (env.state.match[32:] == match[32:]).all()


def test_what_a_step_returns_is_safe_to_keep_unless_asked_otherwise():
    env = RoomsVectorEnv(2, TINY)
    env.reset(seed=0)
    kept = env.step(np.zeros(2, int))
    before = [np.array(part) for part in kept[:4]]
    for _ in range(200):
        env.step(np.zeros(2, int))
    assert all((a == b).all() for a, b in zip(kept[:4], before))
    shared = RoomsVectorEnv(2, TINY, copy=False)
    assert shared.reset(seed=0)[0] is shared.step(np.zeros(2, int))[0]


def test_state_resumes_exactly():
    env = RoomsVectorEnv(8, TINY)
    env.reset(seed=3)
    rollout(env, 170)
    state = env.get_state()
    seen = env.render()
    expected = rollout(env, 200, seed=9)
    other = RoomsVectorEnv(8, TINY)
    assert (other.set_state(state) == np.stack(seen)).all()
    assert all((a == b).all() for a, b in zip(rollout(other, 200, seed=9), expected))


def test_set_state_names_what_is_wrong():
    env = RoomsVectorEnv(2, TINY)
    env.reset(seed=0)
    state = env.get_state()
    with pytest.raises(ValueError, match=r"state\['x'\].*\(2,\).*\(3,\)"):
        env.set_state({**state, "x": np.zeros(3)})
    del state["x"]
    with pytest.raises(ValueError, match="expected the fields"):
        env.set_state(state)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, int), "expected integers"),
        (np.zeros(2), "expected integers"),
        (np.array([0, 9]), "expected 0..8"),
        (np.array([-1, 0]), "expected 0..8"),
    ],
)
def test_wrong_actions(actions, message):
    env = RoomsVectorEnv(2, TINY)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)


def test_step_needs_a_reset():
    with pytest.raises(RuntimeError, match="before reset"):
        RoomsVectorEnv(1, TINY).step(np.zeros(1, int))
    single = RoomsEnv(RoomsConfig(image_height=16, image_width=16, hud=False, episode_frames=4))
    single.reset(seed=0)
    assert single.step(0)[2]
    with pytest.raises(RuntimeError, match="call reset"):
        single.step(0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_height", 4),
        ("image_width", 32.0),
        ("action_repeat", 0),
        ("episode_frames", 0),
        ("shapes", ("teapot",)),
        ("shapes", ()),
        ("shapes", ("cube", "cube")),
        ("colours", ((1, 2),)),
        ("colours", ((1, 2, 300),)),
        ("object_scale", 0.0),
        ("object_scale", float("nan")),
        ("pickup_scale", 4.0),
        ("distance_scale", 0.1),
        ("wall_height", 40.0),
        ("glow_pulse", 2.0),
        ("fov_degrees", 180.0),
        ("hud", 1),
        ("spin_seconds", 0.0),
        ("randomise", 1),
        ("fixed_sides", "left"),
        ("examples", 0),
        ("delay_frames", -4),
        ("delay_halvings", -1),
        ("visit_frames", 2.5),
        ("run_speed", "fast"),
        ("episode_frames", 10**20),
        ("examples", 10**9),
        ("throw_seconds", 1e300),
        ("reward_wrong", -(10**400)),
    ],
)
def test_bad_configs_name_the_field_and_the_value(field, value):
    with pytest.raises(ValueError, match=rf"RoomsConfig\.{field}: expected .*got"):
        RoomsConfig(**{field: value})


def test_configs_that_do_not_fit_together():
    with pytest.raises(ValueError, match=r"RoomsConfig\.redraw_match: expected True with examples=3, got False"):
        RoomsConfig(examples=3)
    with pytest.raises(ValueError, match=r"RoomsConfig\.delay_halvings: expected .*delay_frames=7.* got 3"):
        RoomsConfig(delay_frames=7, delay_halvings=3)
    with pytest.raises(ValueError, match="at least 2 objects"):
        RoomsConfig(shapes=("cube",), colours=((1, 2, 3),))
    with pytest.raises(ValueError, match=r"RoomsConfig\.hud: expected False for images smaller than 40 x 64"):
        RoomsConfig(image_height=24, image_width=32)


def test_specs():
    assert envs.make_vector("rooms:full", 2).num_envs == 2
    spec = "rooms:small,object_scale=2,image_height=32,shapes=cube+cone,colours=ff0000+0000ff"
    config = envs.make_vector(spec, 1).config
    assert (config.object_scale, config.image_height, config.image_width) == (2, 32, 32)
    assert config.shapes == ("cube", "cone")
    assert config.colours == ((255, 0, 0), (0, 0, 255))
    assert not rooms_config("full", {"hud": "False"}).hud
    prepare("rooms:small")
    warm_up("small")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rooms", "rooms, dmlab, gym, dm, diagnostic"),
        ("atari:pong", "rooms, dmlab, gym, dm, diagnostic"),
        ("rooms:large", "full, .*small"),
        ("rooms:full,colour=red", "object_scale"),
        ("rooms:full,hud", "field=value"),
        ("rooms:full,hud=True, hud=False", "each field once, got hud twice"),
        ("rooms:full,object_scale=big", r"RoomsConfig\.object_scale"),
        ("rooms:full,object_scale=-1", r"RoomsConfig\.object_scale"),
        ("rooms:full,colours=red", r"RoomsConfig\.colours"),
        ("dmlab:", "name of a level"),
        ("dmlab:lasertag,fps=30", "image_height"),
    ],
)
def test_unknown_names_list_what_exists(spec, message):
    with pytest.raises(ValueError, match=message):
        envs.make_vector(spec, 1)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("rooms:small", ["rooms:small"]),
        ("rooms:small,hud=False,look_pixels=9", ["rooms:small,hud=False,look_pixels=9"]),
        ("rooms:small,rooms:full", ["rooms:small", "rooms:full"]),
        ("rooms:full,hud=False,dmlab:a/b,test=True", ["rooms:full,hud=False", "dmlab:a/b,test=True"]),
        ("rooms:small,colours=ff0000+0000ff,rooms:small", ["rooms:small,colours=ff0000+0000ff", "rooms:small"]),
    ],
)
def test_tasks_are_joined_by_commas(spec, names):
    assert list(envs.tasks(spec)) == names
    assert list(envs.tasks(",".join(envs.tasks(spec)))) == names


@pytest.mark.parametrize(
    ("spec", "twice"),
    [
        ("rooms:small,rooms:full,rooms:small", "rooms:small"),
        ("rooms:small,hud=False,bob_height=1,rooms:small,bob_height=1,hud=False", "rooms:small,bob_height=1,hud=False"),
        ("dmlab:dmlab30,dmlab:rooms_watermaze,instruction=True", "dmlab:rooms_watermaze,instruction=True"),
        ("dmlab:dmlab30,dmlab:dmlab30", "dmlab:rooms_collect_good_objects_train,instruction=True"),
    ],
)
def test_a_task_that_comes_twice_is_refused(spec, twice):
    """It would be played twice with the same seeds, and its scores would count for two."""
    with pytest.raises(ValueError, match=f"environment '{twice}': expected each task once, got it twice"):
        envs.tasks(spec)


def test_levels_with_one_test_version_are_tested_on_it_once():
    both = "dmlab:rooms_collect_good_objects_test,test=True,image_width=8,dmlab:rooms_collect_good_objects_train"
    tested = envs.held_out(f"{both},image_width=8")
    assert envs.tasks(tested) == ("dmlab:rooms_collect_good_objects_test,test=True,image_width=8",)


def test_several_tasks_are_prepared_but_not_one_environment():
    prepare("rooms:small,rooms:small,hud=False")
    with pytest.raises(ValueError, match="expected one task, got 2"):
        envs.make_vector("rooms:small,rooms:full", 1)
    with pytest.raises(ValueError, match=r"'atari:pong'.*rooms, dmlab"):
        envs.tasks("rooms:small,atari:pong")


def test_rooms_need_no_streams():
    one, other = envs.make_vector("rooms:small", 2), envs.make_vector("rooms:small", 2, stream=4)
    assert (one.reset(seed=3)[0] == other.reset(seed=3)[0]).all()


def test_an_oracle_has_about_20_trials_an_episode_on_the_small_level():
    env = RoomsVectorEnv(8, "small")
    env.reset(seed=0)
    scores = np.zeros(8)
    for _ in range(resolve("small").episode_steps):
        scores += env.step(envs.rooms.oracle_actions(env))[1]
    assert (scores >= 18 * 11).all()


#: Of 250 random steps of 4 members: sum of the rewards, choices, and sums of all pixels of the views at every 50th.
GOLDEN = {
    "full": (37.0, 5, [7733740, 7991053, 6468199, 9545870, 8235171]),
    "small": (32.0, 21, [962662, 887094, 869904, 1045737, 984916]),
}


@pytest.mark.parametrize("variant", list(GOLDEN))
def test_the_level_is_what_it_was(variant):
    """Options leave the level alone. Pixels are compared to 0.01 %, for another machine may round a few of them
    otherwise; a single object moved by a pixel makes more."""
    env = RoomsVectorEnv(4, variant)
    env.reset(seed=11)
    total, choices, pixels = 0.0, 0, []
    for t, actions in enumerate(np.random.default_rng(0).integers(0, 9, (250, 4))):
        view, reward, _, _, _ = env.step(actions)
        total += reward.sum()
        choices += (abs(reward) > 5).sum()
        if t % 50 == 49:
            pixels.append(int(view.sum(dtype=int)))
    expected_total, expected_choices, expected_pixels = GOLDEN[variant]
    assert (total, choices) == (expected_total, expected_choices)
    assert pixels == pytest.approx(expected_pixels, rel=1e-4)


DIGEST = """
import hashlib, numpy as np
from envs.rooms import RoomsVectorEnv
digest = hashlib.sha256()
for variant in ("full", "small"):
    env = RoomsVectorEnv(4, variant)
    env.reset(seed=11)
    for actions in np.random.default_rng(0).integers(0, 9, (250, 4)):
        for part in env.step(actions)[:3]:
            digest.update(np.ascontiguousarray(part).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_cold_and_cached_compilation_give_the_same_bits(tmp_path):
    digests = []
    for _ in range(2):
        variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", DIGEST]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        digests.append(done.stdout.strip())
        assert list(tmp_path.rglob("*.nbc"))
    assert digests[0] == digests[1]
