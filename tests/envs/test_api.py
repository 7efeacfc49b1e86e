"""The rooms level as gymnasium environments, wrong calls, configs, and specs of every kind."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs.observations import block_means
from envs.registry import rooms_config
from envs.rooms import VARIANTS, RoomsConfig, RoomsEnv, RoomsVectorEnv
from envs.rooms.config import RANGES

ROOT = Path(__file__).parents[2]
TINY = RoomsConfig(image_height=16, image_width=16, hud=False, episode_frames=64)


def test_a_single_environment_is_member_0_of_a_batch_with_its_seed() -> None:
    single = RoomsEnv(TINY)
    batch = RoomsVectorEnv(2, TINY)
    assert (single.reset(seed=5)[0] == batch.reset(seed=5)[0][0]).all()
    for step, action in enumerate([0, 6, 7, 3] * 4):
        observation, _, over, _, _ = single.step(action)
        views, *_ = batch.step(np.array([action, 1]))
        assert (observation == views[0]).all()
        assert over == (step == 15)
    with pytest.raises(RuntimeError, match="call reset"):
        single.step(0)


def test_gymnasium_checks_the_single_environment() -> None:
    check_env(RoomsEnv("small", render_mode="rgb_array"), skip_render_check=False)


@pytest.mark.parametrize("spec", ["rooms:small", "diagnostic:recall"])
def test_wrong_calls_of_batched_environments(spec: str) -> None:
    with pytest.raises(ValueError, match="num_envs: expected at least 1, got 0"):
        envs.make_vector(spec, 0)
    env = envs.make_vector(spec, 2)
    num_actions = int(env.single_action_space.n)
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(np.zeros(2, int))
    env.reset(seed=0)
    too_many = np.zeros(3, int)
    no_integers = np.zeros(2)
    for actions in (too_many, no_integers, np.array([0, num_actions]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions: expected"):
            env.step(actions)
    with pytest.raises(ValueError, match="expected 2 seeds, got 1"):
        env.reset(seed=[0])


@pytest.mark.parametrize("spec", ["rooms:small", "diagnostic:recall"])
def test_states_of_another_form_are_refused(spec: str) -> None:
    env = envs.make_vector(spec, 2)
    env.reset(seed=0)
    of_another_shape = env.get_state() | {"rng": np.zeros(3)}
    with_more = env.get_state() | {"more": np.zeros(2)}
    empty: dict[str, Any] = {}
    for wrong in (of_another_shape, with_more, empty):
        with pytest.raises(ValueError, match=r"state\['\w+'\]: expected"):
            env.set_state(wrong)
    with pytest.raises(ValueError, match=r"^state\['more'\]: expected nothing, got float64 \[2\]$"):
        env.set_state(with_more)
    without = env.get_state()
    del without["rng"]
    with pytest.raises(ValueError, match=r"^state\['rng'\]: expected uint64 \[2\], got nothing$"):
        env.set_state(without)


REGISTERED = ["Rooms", "Rooms-Full", "Rooms-SmallRecall", "Rooms-SmallRecall66"]


@pytest.mark.parametrize("name", [*REGISTERED, pytest.param("Rooms-Transfer", marks=pytest.mark.slow)])
def test_registered_names(name: str) -> None:
    env = gymnasium.make(f"compressive/{name}-v0", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=False)
    env.reset(seed=0)
    assert env.render().shape == env.observation_space.shape
    batch = gymnasium.make_vec(f"compressive/{name}-v0", num_envs=3)
    assert isinstance(batch, RoomsVectorEnv)
    assert batch.reset(seed=0)[0].shape == (3, *env.observation_space.shape)


def test_every_variant_has_a_name() -> None:
    assert set(envs.names.ROOMS) == set(VARIANTS)
    assert gymnasium.make("compressive/Rooms-v0").unwrapped.config == VARIANTS["full"]
    assert gymnasium.make(envs.names.rooms_name("small-recall-long")).unwrapped.config == VARIANTS["small-recall-long"]


def test_a_spec_with_fields_has_no_name() -> None:
    assert envs.names.gymnasium_name("rooms", "small", {}) == "compressive/Rooms-Small-v0"
    assert envs.names.gymnasium_name("gym", "CartPole-v1", {}) == "CartPole-v1"
    for kind, name, fields in (("rooms", "small", {"hud": "True"}), ("gym", "Unknown-v0", {}), ("dm", "a:B", {})):
        assert envs.names.gymnasium_name(kind, name, fields) is None


def test_the_level_needs_numpy_numba_and_gymnasium_alone() -> None:
    absent = ("torch", "ray", "dm_env", "PIL", "av", "fsspec", "safetensors", "tyro", "rich", "jinja2", "filelock")
    program = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))  # importing them raises an ImportError
import envs, gymnasium
assert "numba" not in sys.modules
for made in (gymnasium.make("compressive/Rooms-Small-v0"), gymnasium.make_vec("compressive/Rooms-Small-v0", 2)):
    made.reset(seed=0)
    made.step(made.action_space.sample())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("field", RANGES)
def test_numbers_out_of_their_range_are_named(field: str) -> None:
    low, high = RANGES[field]
    too_large_for_a_float = 10**400
    for value in (low - 1, high * 2, too_large_for_a_float, float("nan"), "fast"):
        with pytest.raises(ValueError, match=rf"RoomsConfig\.{field}: expected .*got"):
            RoomsConfig(**{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_width": 32.0}, "image_width: expected an integer, got 32.0"),
        ({"hud": 1}, "hud: expected True or False, got 1"),
        ({"spin_seconds": 0.0}, "spin_seconds: expected more than 0"),
        ({"pickup_scale": 4.0}, "pickup_scale: expected .*got 4.0"),
        ({"wall_height": 40.0}, "wall_height: expected .*eye_height=50"),
        ({"shapes": ("teapot",)}, "shapes: expected .*got"),
        ({"shapes": ("cube", "cube")}, "shapes: expected none twice"),
        ({"shapes": ("cube",), "colors": ((1, 2, 3),)}, "shapes: expected at least 2 objects"),
        ({"colors": ((1, 2, 300),)}, "colors: expected .*got"),
        ({"examples": 3}, "redraw_match: expected True with examples=3, got False"),
        ({"delay_frames": 7, "delay_halvings": 3}, "delay_halvings: expected .*delay_frames=7.* got 3"),
        ({"image_height": 300, "shrink": 4}, "shrink: expected a view of at most 1024 x 1024 pixels, got 4"),
        ({"image_height": 24, "image_width": 32}, "hud: expected False for images smaller than 40 x 64"),
    ],
)
def test_bad_configs_name_the_field_and_the_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"RoomsConfig\.{message}"):
        RoomsConfig(**fields)


def test_specs() -> None:
    spec = "rooms:small,object_scale=2,image_height=32,shapes=cube+cone,colors=ff0000+0000ff"
    config = envs.make_vector(spec, 1).config
    assert config.object_scale == 2
    assert (config.image_height, config.image_width) == (32, 32)
    assert config.shapes == ("cube", "cone")
    assert config.colors == ((255, 0, 0), (0, 0, 255))
    assert not rooms_config("full", {"hud": "False"}).hud
    imported = "gym:envs:compressive/Rooms-Small-v0"
    assert envs.make_vector(imported, 1).num_envs == 1


def test_the_rooms_of_all_streams_are_the_same() -> None:
    """Only the seed makes a difference."""
    views, _ = envs.make_vector("rooms:small", 2).reset(seed=3)
    of_a_stream, _ = envs.make_vector("rooms:small", 2, stream=4).reset(seed=3)
    assert (views == of_a_stream).all()


@pytest.mark.parametrize(("fields", "steps"), [("", 3), (",steps=2", 2)])
def test_a_function_that_makes_an_environment(fields: str, steps: int) -> None:
    env = envs.make_vector(f"gym:tests.envs.odd:wrapped{fields}", 2)
    env.reset(seed=0)
    truncated = [env.step(np.zeros(2, np.int64))[3].tolist() for _ in range(steps)]
    env.close()
    assert truncated == [[False, False]] * (steps - 1) + [[True, True]]


def test_fields_are_the_environments_own_if_it_has_such_parameters() -> None:
    env = envs.make_vector("gym:tests.envs.odd:Named,view=third,tile=4,id=b,shrink=0.5", 1)
    assert env.envs[0].unwrapped.given == ("third", 4, "b", 0.5)  # type: ignore[attr-defined]
    registered = envs.make_vector("gym:tests.envs.odd:Named-v0,view=third,tile=4", 1)
    assert registered.envs[0].unwrapped.given == ("third", 4, "a", 1)  # type: ignore[attr-defined]


def test_images_of_environments_are_made_smaller() -> None:
    """The level through dm_env, and an image beside numbers, in processes of their own."""
    rooms = envs.make_vector("dm:envs.dm:RoomsDmEnv,config=small,shrink=2", 1)
    whole = envs.make_vector("dm:envs.dm:RoomsDmEnv,config=small", 1)
    assert (rooms.reset(seed=1)[0] == block_means(whole.reset(seed=1)[0], 2)).all()
    camera = envs.make_vector("gym:tests.envs.odd:Camera-v0,shrink=4,processes=1", 1)
    assert [part.shape for part in camera.single_observation_space] == [(2, 3, 3), (2,)]  # type: ignore[attr-defined]
    camera.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("atari:pong", "rooms, dmlab, gym, dm, envpool, diagnostic"),
        ("rooms:large", "full, .*small"),
        ("rooms:full,color=red", "object_scale"),
        ("rooms:full,hud", "field=value"),
        ("rooms:full,hud=True, hud=False", "each field once, got hud twice"),
        ("rooms:full,colors=red", "colors: expected six hexadecimal digits each, as in ff0000.00ff00, got 'red'"),
        ("rooms:full,colors=ff0000+00ff0", r"colors: expected .*, got 'ff0000\+00ff0'"),
        ("rooms:small,rooms:full", "expected one task, got 2"),
        ("dmlab:", "name of a level"),
        ("dmlab:lasertag,fps=30", "image_height"),
        ("diagnostic:recal", "recall, tmaze"),
        ("diagnostic:recall,length=3", "no field 'length'; there are: delay, symbols"),
        ("diagnostic:recall,delay=0", r"delay: expected an integer in 1\.\.10\^9, got 0"),
        ("diagnostic:recall,delay=True", "delay: expected an integer .*, got True"),
        ("diagnostic:tmaze,length=99999999999999999999", "length: expected an integer .*, got 9"),
        ("gym:", "Malformed environment ID"),
        ("gym:a:b:c", "environment gym:a:b:c: expected an id such as"),
        ("gym:CartPole-v1,max_episode_steps=-3", "gym:CartPole-v1,.*: .*max_episode_steps"),
        ("gym:CartPol-v1", "gym:CartPol-v1: .* Did you mean: `CartPole`.* is gym:MODULE:CartPol-v1"),
        ("gym:CartPole-v9", r"provides versioned environments: \[ `v0`, `v1` \]\.$"),
        ("gym:envs.diagnostic:Recall", "got a gymnasium.vector.VectorEnv: name the environment of one row"),
        ("gym:CartPole-v1,gravity=3", "unexpected keyword argument 'gravity'$"),
        ("gym:tests.envs.odd:needs_two,width=2", r"missing 1 required .*'height'; arguments stand .*,height=VALUE$"),
        (
            "gym:tests.envs.odd:needs_two",
            r"missing 2 required .*; arguments stand behind the name, as in ,width=VALUE$",
        ),
        ("gym:CartPole-v1,view=pixels", "view: expected an environment of MiniGrid, or one with such a parameter"),
        ("gym:tests.envs.odd:OldGym", r"got the class tests\.envs\.odd\.OldGym, which is none: wrap it in one$"),
        ("gym:CartPole-v1,shrink=2", "gym:CartPole-v1,shrink=2: shrink: expected observations with an image"),
        ("gym:tests.envs.odd:Odd,view=pixels,tile=3", "view and tile: expected an environment of MiniGrid"),
        ("gym:envs.mine:Env", r"got 'envs.mine'; the folder envs here is hidden by .*envs.__init__.py: rename it"),
        ("gym:CartPole-v1,processes=none", "processes: expected a whole number, got 'none'"),
        ("dm:Walk", "environment dm:Walk: .* as in dm:module:Class"),
        ("dm:tests.envs.dm_tasks:Run", "no attribute 'Run'"),
        ("dm:envs.dm:DmEnv", "dm:envs.dm:DmEnv: expected a subclass of dm_env.Environment"),
        ("dm:os:system,command=touch touched", "expected a subclass .* got a builtin_function_or_method"),
        ("dm:tests.envs.dm_tasks:says_nothing", "or a function annotated to return one, got a function"),
        ("dm:tests.envs.dm_tasks:makes_walks,gravity=2", "unexpected keyword argument 'gravity'"),
        ("dm:nowhere:Walk", "dm:nowhere:Walk: expected a module .* or an installed one, got 'nowhere'$"),
        ("gym:nowhere:Id-v0", "gym:nowhere:Id-v0: expected a module .* or an installed one, got 'nowhere'$"),
        ("gym:odd.py:Odd", "got 'odd.py'; without its ending: gym:odd:Odd"),
        ("gym:tests.envs.odd:Even", "Nor has tests.envs.odd a gymnasium.Env, or a function, of the name Even."),
        ("gym:tests.envs.odd:OddDm", "got a dm_env.Environment, whose spec is dm:tests.envs.odd:OddDm$"),
        (
            "gym:tests.envs.odd:itertools",
            "Nor has tests.envs.odd a gymnasium.Env, or a function, of the name itertools.",
        ),
        ("dm:tests.envs.odd:Odd", "got a gymnasium.Env, whose spec is gym:tests.envs.odd:Odd"),
    ],
)
def test_wrong_specs_are_named(spec: str, message: str) -> None:
    with pytest.raises((ValueError, ImportError), match=message):
        envs.make_vector(spec, 1)


GOLDEN = {
    "full": (37.0, 5, [9091912, 8721030, 7455024, 10090644, 9488968]),
    "small": (21.0, 18, [981867, 1011060, 942759, 1056900, 1081994]),
}
"""Sum of rewards, number of choices, and sums of the pixels of every 50th view, of `random_steps`."""


def random_steps(variant: str) -> list[Any]:
    """Views, rewards and terminations of 250 random steps of four environments."""
    env = RoomsVectorEnv(4, variant)
    env.reset(seed=11)
    steps = []
    for actions in np.random.default_rng(0).integers(0, 9, (250, 4)):
        views, rewards, terminated, _, _ = env.step(actions)
        steps.append((views, rewards, terminated))
    return steps


@pytest.mark.parametrize("variant", GOLDEN)
def test_the_level_is_what_it_was(variant: str) -> None:
    """Pixels are compared to 0.01 %: another machine may round a few of them differently. An object that moves by one
    pixel changes more."""
    total, choices, pixels = GOLDEN[variant]
    steps = random_steps(variant)
    rewards = np.array([reward for _, reward, _ in steps])
    assert rewards.sum() == total
    assert (abs(rewards) > 5).sum() == choices  # a choice is worth 10 or -10, a teleport 1
    every_50th = [int(views.sum(dtype=int)) for views, _, _ in steps[49::50]]
    assert every_50th == pytest.approx(pixels, rel=1e-4)


DIGEST = """
import hashlib
from tests.envs.test_api import random_steps

digest = hashlib.sha256()
for step in random_steps("full") + random_steps("small"):
    for part in step:
        digest.update(part.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_cold_and_cached_compilation_give_the_same_bits(tmp_path: Path) -> None:
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DIGEST]
    cold = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert list(tmp_path.rglob("*.nbc")), "numba has cached what it compiled"
    cached = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert list(tmp_path.rglob("*.nbc"))
    assert cold.stdout == cached.stdout
    assert len(cold.stdout.strip()) == 64
