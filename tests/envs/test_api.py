"""The rooms level as gymnasium environments, wrong calls of batched environments, configs and specs."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.registry import prepare, rooms_config
from envs.rooms import RoomsConfig, RoomsEnv, RoomsVectorEnv

TINY = RoomsConfig(image_height=16, image_width=16, hud=False)


def test_gymnasium_checks_the_single_environment():
    check_env(RoomsEnv("small", render_mode="rgb_array"), skip_render_check=False)
    single = RoomsEnv(RoomsConfig(image_height=16, image_width=16, hud=False, episode_frames=4))
    single.reset(seed=0)
    assert single.step(0)[2]
    with pytest.raises(RuntimeError, match="call reset"):
        single.step(0)


@pytest.mark.parametrize("spec", ["rooms:small", "diagnostic:recall"])
def test_wrong_calls_of_batched_environments(spec):
    env = envs.make_vector(spec, 2)
    last = int(env.single_action_space.n) - 1
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(np.zeros(2, int))
    env.reset(seed=0)
    for actions in (np.zeros(3, int), np.zeros(2)):
        with pytest.raises(ValueError, match=r"expected integers \[2\]"):
            env.step(actions)
    for actions in ([0, last + 1], [-1, 0]):
        with pytest.raises(ValueError, match=rf"expected 0\.\.{last}, got {min(actions)}\.\.{max(actions)}"):
            env.step(np.array(actions))
    for wrong, message in (
        ({"seed": [0]}, "expected 2 seeds, got 1"),
        ({"options": {"mask": 1}}, "options: expected none or reset_mask, got mask"),
        ({"options": {"reset_mask": np.zeros(2, bool)}}, r"reset_mask: expected bool \[2\] with a True"),
    ):
        with pytest.raises(ValueError, match=message):
            env.reset(**wrong)
    state = env.get_state()
    with pytest.raises(ValueError, match=r"state\['rng'\]: expected uint64 \(2,\), got float64 \(3,\)"):
        env.set_state({**state, "rng": np.zeros(3)})
    with pytest.raises(ValueError, match="expected the fields"):
        env.set_state({"rng": state["rng"]})
    with pytest.raises(ValueError, match="num_envs: expected at least 1, got 0"):
        envs.make_vector(spec, 0)


@pytest.mark.parametrize("suffix", ["", "-Small", "-Full-Randomised", "-Small-Recall-66"])
def test_registered_names(suffix):
    name = f"RoomsSelectNonmatchingObject{suffix}-v0"
    env = gymnasium.make(f"compressive/{name}")
    assert env.reset(seed=0)[0].shape == env.observation_space.shape
    batch = gymnasium.make_vec(f"compressive/{name}", num_envs=3)
    assert isinstance(batch, RoomsVectorEnv)
    assert batch.reset(seed=0)[0].shape == (3, *env.observation_space.shape)


def test_a_single_environment_is_member_0_of_a_batch_with_its_seed():
    single, batch = RoomsEnv(TINY), RoomsVectorEnv(2, TINY)
    a, b = single.reset(seed=5)[0], batch.reset(seed=5)[0]
    assert (a == b[0]).all()
    for action in (0, 6, 7, 3, 0, 0):
        assert (single.step(action)[0] == batch.step(np.array([action, 1]))[0][0]).all()


def test_reset_with_a_mask_and_without_a_seed():
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


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("image_height", (4,)),
        ("image_width", (32.0,)),
        ("fov_degrees", (180.0,)),
        ("hud", (1,)),
        ("randomise", (1,)),
        ("fixed_sides", ("left",)),
        ("action_repeat", (0,)),
        ("episode_frames", (0, 10**20)),
        ("examples", (0, 10**9)),
        ("delay_frames", (-4,)),
        ("delay_halvings", (-1,)),
        ("visit_frames", (2.5,)),
        ("shapes", (("teapot",), (), ("cube", "cube"), "cube")),
        ("colours", (((1, 2),), ((1, 2, 300),), ([1, 2, 3],))),
        ("object_scale", (0.0, float("nan"))),
        ("pickup_scale", (4.0, 0)),
        ("distance_scale", (0.1,)),
        ("wall_height", (40.0,)),
        ("glow_pulse", (2.0,)),
        ("spin_seconds", (0.0,)),
        ("run_speed", ("fast", 0)),
        ("throw_seconds", (1e300,)),
        ("reward_wrong", (-(10**400),)),
    ],
)
def test_bad_configs_name_the_field_and_the_value(field, values):
    for value in values:
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
    with pytest.raises(ValueError, match=f"environment '{twice}': expected each task once, got it twice"):
        envs.tasks(spec)


def test_a_shared_test_version_is_tested_once():
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


#: Sum of rewards, choices, and sums of the pixels of every 50th view, in 250 random steps of 4 environments.
GOLDEN = {
    "full": (37.0, 5, [7733740, 7991053, 6468199, 9545870, 8235171]),
    "small": (32.0, 21, [962662, 887094, 869904, 1045737, 984916]),
}


@pytest.mark.parametrize("variant", list(GOLDEN))
def test_the_level_is_what_it_was(variant):
    """Pixels are compared to 0.01 %: another machine may round a few of them differently. An object that moves by one
    pixel changes more."""
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
