"""Randomized looks: only the look changes, it is drawn for each episode, and objects remain recognizable."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import envs
from envs.registry import rooms_config
from envs.rooms import RoomsEnv, RoomsVectorEnv, look, oracle_actions
from envs.rooms.level import ROOM_2
from envs.rooms.surfaces import FAMILIES, Pattern, noise, surface
from envs.rooms.textures import TEXTURE_COUNTS, TILE

pytestmark = pytest.mark.xdist_group("looks")  # random surfaces are painted once in a process, for seconds

MEMBERS = 16
RANDOMIZED = {group: rooms_config("full", {"looks": group}) for group in FAMILIES}


@pytest.fixture(scope="module")
def env() -> RoomsVectorEnv:
    """Shared by all tests, each of which resets it."""
    return RoomsVectorEnv(MEMBERS, RANDOMIZED["train"])


def looks(env: RoomsVectorEnv) -> list[look.Look]:
    """The look of every member, as tuples that can be compared."""
    with np.errstate(over="ignore"):
        return [look.drawn(env.scene, env.state, i) for i in range(env.num_envs)]


def test_looks_do_not_change_what_is_drawn_of_the_task(env: RoomsVectorEnv) -> None:
    """All of the state but the look is as without random looks."""
    plain = RoomsVectorEnv(MEMBERS, "full")
    views, _ = env.reset(seed=3)
    plain_views, _ = plain.reset(seed=3)
    assert (views != plain_views).any((1, 2, 3)).all()
    state = env.get_state()
    expected = plain.get_state()
    del expected["look"]
    for name, array in expected.items():
        assert (state[name] == array).all(), name


def test_a_look_lasts_an_episode_and_its_seed_repeats_it(env: RoomsVectorEnv) -> None:
    first, _ = env.reset(seed=4)
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
    config = replace(RANDOMIZED["train"], image_height=40, image_width=64, shrink=2)
    paired = RoomsVectorEnv(4, replace(config, own_view=True))
    single = RoomsVectorEnv(4, config)
    plain = RoomsVectorEnv(4, replace(config, looks="own"))
    views, _ = paired.reset(seed=3)
    expected, _ = single.reset(seed=3)
    for _ in range(190):  # into the second episode
        assert paired.observation_space.contains(views)
        view, own_view = views
        assert (view == expected).all()
        own = plain.set_state(paired.get_state() | {"look": np.zeros(4, np.uint64)})
        assert (own_view == own).all()
        assert (view != own_view).any(axis=(1, 2, 3)).all()

        actions = oracle_actions(single)
        views, reward, *_ = paired.step(actions)
        expected, expected_reward, *_ = single.step(actions)
        assert (reward == expected_reward).all()

    assert (paired.between(actions) == single.between(actions)).all()
    again = paired.set_state(paired.get_state())
    for found, last in zip(again, views, strict=True):
        assert (found == last).all()


def test_a_single_environment_has_a_second_view() -> None:
    env = RoomsEnv(replace(RANDOMIZED["train"], image_height=40, image_width=64, shrink=2, own_view=True))
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    observation, *_ = env.step(0)
    assert env.observation_space.contains(observation)


def test_an_agent_is_tested_without_the_second_view() -> None:
    spec = "rooms:transfer,own_view=True,hud=False,rooms:unseen"
    assert envs.untaught(spec) == envs.held_out(spec) == "rooms:transfer,hud=False,rooms:unseen"
    for unchanged in ("rooms:full, hud=False", "gym:Odd-v0,own_view=True"):
        assert envs.untaught(unchanged) == unchanged


def test_groups_share_no_family_of_patterns() -> None:
    families = [pattern for patterns in FAMILIES.values() for pattern in patterns]
    assert len(families) == len(set(families))


@pytest.fixture(scope="module")
def scenes() -> dict[str, Any]:
    """The scene of every group, whose textures are the level's own and after it the random ones."""
    return {group: RoomsVectorEnv(1, config).scene for group, config in RANDOMIZED.items()}


def test_groups_have_their_numbers_of_textures(scenes: dict[str, Any]) -> None:
    for group, scene in scenes.items():
        own = 1
        found = (len(scene.floors) - own, len(scene.wall) - own, len(scene.sky) - own)
        assert found == TEXTURE_COUNTS[group]


@pytest.mark.parametrize("name", ["floors", "wall", "sky"])
def test_groups_share_no_surface(name: str, scenes: dict[str, Any]) -> None:
    first_own, *_ = getattr(scenes["train"], name)
    surfaces = set()
    count = 0
    colors = []
    for scene in scenes.values():
        own, *random = getattr(scene, name)
        assert (own == first_own).all(), "the first is the level's own"
        surfaces |= {texture.tobytes() for texture in random}
        count += len(random)
        colors.append([texture.mean(axis=(-3, -2)) for texture in random])
    assert len(surfaces) == count

    for one, other in itertools.combinations(colors, 2):
        both_have = zip(one, other, strict=False)  # groups differ in how many they have
        apart = [np.abs(a - b).max() > 5 for a, b in both_have]
        assert np.mean(apart) > 0.9, "a seed has other colors in another group"


@pytest.mark.parametrize("group", RANDOMIZED)
def test_only_the_group_to_train_on_shows_the_level_s_own_surfaces(group: str) -> None:
    env = RoomsVectorEnv(4000, replace(RANDOMIZED[group], image_height=8, image_width=8, hud=False))
    env.reset(seed=1)
    drawn = looks(env)
    own = 0
    for part in ("floor", "wall", "sky"):
        least = min(getattr(one, part) for one in drawn)
        assert (least == own) == (group == "train")


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
    before = env.set_state(state)
    after = env.set_state(state | {"frame": np.full(MEMBERS, 30)})
    wall_ahead = (slice(None), slice(26, 40), slice(36, 60))
    moves = (before != after)[wall_ahead].any((1, 2, 3))
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
def test_objects_are_seen_and_told_apart_by_color(group: str) -> None:
    """The sphere's glow differs from what is behind it, and is nearest to its own color among the level's three.

    Not in every look: a wall may have nearly the color of an object, and all may be dark.
    """
    config = RANDOMIZED[group]
    num_looks = 64
    env = RoomsVectorEnv(num_looks, config)
    env.reset(seed=7)
    left = 0
    place = {"room": ROOM_2, "x": 510.0, "y": 64.0, "shown": -100, "match_side": left}
    sphere = 3 * config.shapes.index("sphere")

    def middle(**fields: float) -> NDArray[np.float64]:
        """The middle of the views [looks, H, W, 3] of a state."""
        state = env.get_state()
        for name, value in (place | fields).items():
            state[name][:] = value
        return env.set_state(state)[:, 10:58, 30:66].astype(float)

    palette = np.array(config.colors, float)
    palette /= np.linalg.norm(palette, axis=1, keepdims=True)
    without = middle(match=sphere, taken=left)
    told = []
    for color in range(3):
        image = middle(match=sphere + color, taken=-1)
        changed = np.abs(image - without).max(3) > 40
        for one in range(num_looks):
            glow = image[one][changed[one]]
            bright = glow[glow.max(1, initial=0) > 110]
            cosine = bright @ palette.T / np.linalg.norm(bright, axis=1, keepdims=True)
            nearest = np.argmax(cosine, axis=1)
            is_seen = changed[one].sum() > 60
            is_told = (nearest == color).sum() > 0.8 * len(nearest)
            told.append(is_seen and is_told)
    assert np.mean(told) >= 0.95


@pytest.mark.parametrize("group", FAMILIES)
def test_a_grid_may_be_given_by_its_axes(group: str) -> None:
    """A surface is the same on all points of a grid and on its two axes, [X, 1] and [1, Y]."""
    axes = (np.arange(0.5, 60), np.arange(0.5, 40))
    for seed in range(24):
        x, y = np.meshgrid(*axes, indexing="ij")
        dense = surface(x, y, group, seed, np.random.default_rng(seed))
        x, y = np.meshgrid(*axes, indexing="ij", sparse=True)
        by_axes = surface(x, y, group, seed, np.random.default_rng(seed))
        assert dense.shape == (60, 40, 3)
        np.testing.assert_array_equal(by_axes, dense)


def test_rows_of_a_pattern_lie_along_either_axis() -> None:
    x, y = np.meshgrid(np.arange(64.0), np.arange(64.0), indexing="ij", sparse=True)
    names = [pattern.__name__ for pattern in FAMILIES["train"]]
    constant = set()
    for repetition in range(20):
        seed = names.index("_stripes") + len(names) * repetition
        stripes = surface(x, y, "train", seed, np.random.default_rng(seed))
        along_x = (stripes == stripes[:1]).all()
        along_y = (stripes == stripes[:, :1]).all()
        constant.add((along_x, along_y))
    assert constant >= {(True, False), (False, True)}
