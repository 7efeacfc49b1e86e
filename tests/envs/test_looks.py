"""Randomised looks: only the look changes, it is drawn for each episode, and objects remain recognizable."""

import numpy as np
import pytest

from envs.registry import rooms_config
from envs.rooms import RoomsVectorEnv, look, oracle_actions
from envs.rooms.level import ROOM_2

MEMBERS = 16
RANDOMISED = rooms_config("transfer", {})


@pytest.fixture(scope="module")
def env() -> RoomsVectorEnv:
    """Shared by all tests, each of which resets it."""
    return RoomsVectorEnv(MEMBERS, RANDOMISED)


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
    batch = RoomsVectorEnv(1000, rooms_config("full", {"randomise": "True", "image_height": "40", "image_width": "64"}))
    batch.reset(seed=6)
    drawn = looks(batch)
    for part in ("floor", "wall", "sky"):
        assert {getattr(one, part) for one in drawn} == set(range(len(batch.scene.wall)))
    assert np.mean([one.hud > 0 for one in drawn]) == pytest.approx(0.75, abs=0.05)
    pairs = {(one.floor, one.wall) for one in drawn}
    assert len(pairs) > 400, "walls and floors are drawn apart"


def test_random_looks_stay_within_their_ranges(env: RoomsVectorEnv) -> None:
    env.reset(seed=8)
    for drawn in looks(env):
        assert 88 < 2 * np.degrees(np.arctan(48 / drawn.focal)) < 92.1
        assert 0.85 <= min(drawn.wide, drawn.tall) <= max(drawn.wide, drawn.tall) <= 1.15
        assert 0.3 <= drawn.grown <= 0.7
        assert 0 <= drawn.tone < len(env.scene.tones) == 17
    assert (env.scene.tones[0] == np.arange(256)).all()


def test_objects_are_seen_and_told_apart_by_colour_in_every_look(env: RoomsVectorEnv) -> None:
    """The sphere's glow differs from what is behind it, and is nearest to its own colour among the level's three."""
    env.reset(seed=7)
    state = env.get_state()
    state["shown"][:] = -100
    state["room"][:], state["x"][:], state["y"][:] = ROOM_2, 510.0, 64.0
    palette = np.array(RANDOMISED.colours, float)
    palette /= np.linalg.norm(palette, axis=1, keepdims=True)
    views = {}
    for item in (*range(30, 33), None):
        if item is not None:
            state["match"][:], state["match_side"][:] = item, 0
        state["taken"][:] = -1 if item is not None else 0
        views[item] = env.set_state(state)[:, 10:58, 30:66].astype(float)
    for colour in range(3):
        image = views[30 + colour]
        changed = np.abs(image - views[None]).max(3) > 40
        assert (changed.sum((1, 2)) > 100).all()
        for member in range(MEMBERS):
            glow = image[member][changed[member]]
            bright = glow[glow.max(1) > 110]
            nearest = np.argmax(bright @ palette.T / np.linalg.norm(bright, axis=1, keepdims=True), axis=1)
            assert np.mean(nearest == colour) > 0.8
