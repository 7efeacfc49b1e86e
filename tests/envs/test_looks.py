"""Randomised looks: only the look changes, it is drawn for each episode, and objects remain recognizable."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import envs
from envs.registry import rooms_config
from envs.rooms import RoomsEnv, RoomsVectorEnv, look, oracle_actions
from envs.rooms.level import ROOM_2
from envs.rooms.surfaces import FAMILIES, Pattern, noise, surface
from envs.rooms.textures import TEXTURE_COUNTS, TILE

pytestmark = pytest.mark.xdist_group("looks")  # random surfaces are painted once in a process, for seconds

MEMBERS = 16
RANDOMISED = {group: rooms_config("full", {"looks": group}) for group in FAMILIES}


@pytest.fixture(scope="module")
def env() -> RoomsVectorEnv:
    """Shared by all tests, each of which resets it."""
    return RoomsVectorEnv(MEMBERS, RANDOMISED["train"])


def looks(env: RoomsVectorEnv) -> list[look.Look]:
    """The look of every member, as tuples that can be compared."""
    with np.errstate(over="ignore"):
        return [look.drawn(env.scene, env.state, i) for i in range(env.num_envs)]


def test_looks_do_not_change_what_is_drawn_of_the_task(env: RoomsVectorEnv) -> None:
    plain = RoomsVectorEnv(MEMBERS, "full")
    images = [e.reset(seed=3)[0] for e in (env, plain)]
    assert (images[0] != images[1]).any((1, 2, 3)).all()
    for name, array in plain.get_state().items():
        assert name == "look" or (array == env.get_state()[name]).all()


def test_a_look_lasts_an_episode_and_its_seed_repeats_it(env: RoomsVectorEnv) -> None:
    first = env.reset(seed=4)[0]
    before = looks(env)
    assert len(set(before)) == MEMBERS
    for _ in range(180):
        env.step(oracle_actions(env))
    assert looks(env) == before
    env.step(np.zeros(MEMBERS, int))
    assert not set(looks(env)) & set(before)
    assert (env.reset(seed=4)[0] == first).all()


def test_all_textures_are_used_and_the_display_is_hidden_sometimes() -> None:
    batch = RoomsVectorEnv(6000, rooms_config("full", {"looks": "train", "image_height": "40", "image_width": "64"}))
    batch.reset(seed=6)
    drawn = looks(batch)
    for part, textures in (("floor", batch.scene.floors), ("wall", batch.scene.wall), ("sky", batch.scene.sky)):
        assert {getattr(one, part) for one in drawn} == set(range(len(textures)))
    assert np.mean([one.hud > 0 for one in drawn]) == pytest.approx(0.75, abs=0.05)
    pairs = {(one.floor, one.wall) for one in drawn}
    assert len(pairs) > 400, "walls and floors are drawn apart"


def test_a_second_view_shows_the_same_state_with_the_level_s_own_look() -> None:
    """For a teacher. The first view, rewards and motion are as without it."""
    config = replace(RANDOMISED["train"], image_height=40, image_width=64, shrink=2)
    paired, single = RoomsVectorEnv(4, replace(config, own_view=True)), RoomsVectorEnv(4, config)
    plain = RoomsVectorEnv(4, replace(config, looks="own"))
    views, expected = paired.reset(seed=3)[0], single.reset(seed=3)[0]
    for _ in range(190):  # into the second episode
        assert paired.observation_space.contains(views)
        assert (views[0] == expected).all()
        own = plain.set_state(paired.get_state() | {"look": np.zeros(4, np.uint64)})
        assert (views[1] == own).all()
        assert (views[0] != views[1]).any(axis=(1, 2, 3)).all()
        actions = oracle_actions(single)
        (views, reward, *_), (expected, same, *_) = paired.step(actions), single.step(actions)
        assert (reward == same).all()
    assert (paired.between(actions) == single.between(actions)).all()
    assert all((a == b).all() for a, b in zip(paired.set_state(paired.get_state()), views, strict=True))

    one = RoomsEnv(replace(config, own_view=True))
    seen = one.reset(seed=3)[0]
    assert one.observation_space.contains(seen)
    assert one.observation_space.contains(one.step(0)[0])


def test_an_agent_is_tested_without_the_second_view() -> None:
    spec = "rooms:transfer,own_view=True,hud=False,rooms:unseen"
    assert envs.untaught(spec) == envs.held_out(spec) == "rooms:transfer,hud=False,rooms:unseen"
    for unchanged in ("rooms:full, hud=False", "gym:Odd-v0,own_view=True"):
        assert envs.untaught(unchanged) == unchanged


def test_groups_share_no_surface() -> None:
    """No family and no texture is in two groups, and only the group to train on has the level's own."""
    families = [pattern for patterns in FAMILIES.values() for pattern in patterns]
    assert len(families) == len(set(families))
    scenes = {group: RoomsVectorEnv(1, config).scene for group, config in RANDOMISED.items()}
    for group, scene in scenes.items():
        random = (len(scene.floors) - 1, len(scene.wall) - 1, len(scene.sky) - 1)
        assert random == TEXTURE_COUNTS[group], "without the level's own"
    for name in ("floors", "wall", "sky"):
        own, *_ = zip(*(getattr(scene, name) for scene in scenes.values()))
        assert all((texture == own[0]).all() for texture in own), "the first is the level's own"
        seen = [texture.tobytes() for scene in scenes.values() for texture in getattr(scene, name)[1:]]
        assert len(seen) == len(set(seen))
        colours = [[texture.mean(axis=(-3, -2)) for texture in getattr(scene, name)[1:]] for scene in scenes.values()]
        for one, other in itertools.combinations(colours, 2):
            both_have = zip(one, other, strict=False)  # groups differ in how many they have
            apart = [np.abs(a - b).max() > 5 for a, b in both_have]
            assert np.mean(apart) > 0.9, "a seed has other colours in another group"
    for group, config in RANDOMISED.items():
        batch = RoomsVectorEnv(4000, replace(config, image_height=8, image_width=8, hud=False))
        batch.reset(seed=1)
        for part in ("floor", "wall", "sky"):
            assert (min(getattr(one, part) for one in looks(batch)) == 0) == (group == "train")


@pytest.mark.parametrize("pattern", [each for family in FAMILIES.values() for each in family])
def test_patterns_are_shades(pattern: Pattern) -> None:
    """In 0..1, and not all the same, but for a plain surface."""
    x, y = np.meshgrid(np.arange(0.5, TILE), np.arange(0.5, 128), indexing="ij")
    drawn = np.stack([pattern(x, y, np.random.default_rng(seed)) for seed in range(20)])
    assert 0 <= drawn.min() < drawn.max() <= 1
    assert (np.ptp(drawn, axis=(1, 2)).mean() > 0.2) == (pattern.__name__ != "_flat")


def test_noise_repeats_with_the_tile_of_a_wall() -> None:
    x, y = np.meshgrid(np.arange(0.5, 2 * TILE), np.arange(0.5, 64), indexing="ij")
    drawn = noise(x, y, np.random.default_rng(0), 2.0, 0.7)
    np.testing.assert_allclose(drawn[:TILE], drawn[TILE:], atol=1e-12)
    assert (drawn.min(), drawn.max()) == (0, 1)
    assert np.abs(np.diff(drawn, axis=0)).max() < 0.3, "smooth"


def test_light_moves_along_the_walls_of_some_episodes(env: RoomsVectorEnv) -> None:
    env.reset(seed=5)
    state = env.get_state() | {"shown": np.full(MEMBERS, -100), "frame": np.full(MEMBERS, 10)}
    views = env.set_state(state), env.set_state(state | {"frame": np.full(MEMBERS, 30)})
    moves = (views[0] != views[1])[:, 26:40, 36:60].any((1, 2, 3))  # the wall ahead
    assert moves.tolist() == [one.lamp > 0 for one in looks(env)]
    assert 0 < moves.sum() < MEMBERS


def test_random_looks_stay_within_their_ranges(env: RoomsVectorEnv) -> None:
    env.reset(seed=8)
    for drawn in looks(env):
        assert 88 < 2 * np.degrees(np.arctan(48 / drawn.focal)) < 92.1
        assert 0.85 <= min(drawn.wide, drawn.tall) <= max(drawn.wide, drawn.tall) <= 1.15
        assert 0.3 <= drawn.grown <= 0.7
        assert 0 <= drawn.tone < len(env.scene.tones) == 17
    assert (env.scene.tones[0] == np.arange(256)).all()


@pytest.mark.parametrize("group", FAMILIES)
def test_objects_are_seen_and_told_apart_by_colour(group: str) -> None:
    """The sphere's glow differs from what is behind it, and is nearest to its own colour among the level's three.

    Not in every look: a wall may have nearly the colour of an object, and all may be dark.
    """
    looks = 64
    env = RoomsVectorEnv(looks, RANDOMISED[group])
    env.reset(seed=7)
    state = env.get_state()
    state["shown"][:] = -100
    state["room"][:], state["x"][:], state["y"][:] = ROOM_2, 510.0, 64.0
    palette = np.array(RANDOMISED[group].colours, float)
    palette /= np.linalg.norm(palette, axis=1, keepdims=True)
    views = {}
    for item in (*range(30, 33), None):
        if item is not None:
            state["match"][:], state["match_side"][:] = item, 0
        state["taken"][:] = -1 if item is not None else 0
        views[item] = env.set_state(state)[:, 10:58, 30:66].astype(float)
    told = []
    for colour in range(3):
        image = views[30 + colour]
        changed = np.abs(image - views[None]).max(3) > 40
        for one in range(looks):
            glow = image[one][changed[one]]
            bright = glow[glow.max(1, initial=0) > 110]
            nearest = np.argmax(bright @ palette.T / np.linalg.norm(bright, axis=1, keepdims=True), axis=1)
            told.append(changed[one].sum() > 60 and (nearest == colour).sum() > 0.8 * len(nearest))
    assert np.mean(told) >= 0.95


@pytest.mark.parametrize("group", FAMILIES)
def test_a_grid_may_be_given_by_its_axes(group: str) -> None:
    """A surface is the same on all points of a grid and on its two axes, [X, 1] and [1, Y]."""
    for seed in range(24):
        drawn = []
        for sparse in (False, True):
            x, y = np.meshgrid(np.arange(0.5, 60), np.arange(0.5, 40), indexing="ij", sparse=sparse)
            drawn.append(surface(x, y, group, seed, np.random.default_rng(seed)))
        assert drawn[0].shape == (60, 40, 3)
        np.testing.assert_array_equal(*drawn)


def test_rows_of_a_pattern_lie_along_either_axis() -> None:
    x, y = np.meshgrid(np.arange(64.0), np.arange(64.0), indexing="ij", sparse=True)
    names = [pattern.__name__ for pattern in FAMILIES["train"]]
    constant = set()
    for repetition in range(20):
        seed = names.index("_stripes") + len(names) * repetition
        stripes = surface(x, y, "train", seed, np.random.default_rng(seed))
        constant.add(((stripes == stripes[:1]).all(), (stripes == stripes[:, :1]).all()))
    assert {(True, False), (False, True)} <= constant
