"""Views: objects, pads, walls and ring where a pinhole camera sees them, no leak between the rooms, the display."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv
from envs.rooms.config import LEVEL_COLOURS
from envs.rooms.level import CHOICES, GREY, ROOM_1, ROOM_2
from envs.rooms.render import PULSE_SECONDS, UNIT
from envs.rooms.shapes import NEAR, SHAPES, distances

MANY = [name for name, config in VARIANTS.items() if config.num_objects > 2]
"""Variants with enough objects for a third to take the place of one of two."""


def view(config: str = "full", **state: float) -> NDArray[Any]:
    """The view of one environment, whose objects appeared long ago, with parts of its state set."""
    env = RoomsVectorEnv(1, config)
    env.reset(seed=0)
    env.state.match[:], env.state.other[:], env.state.example_side[:], env.state.match_side[:] = 0, 1, 0, 0
    env.state.shown[:] = -100
    for name, value in state.items():
        getattr(env.state, name)[:] = value
    return env.set_state(env.get_state())[0].astype(int)


def at_arrival(config: str = "full", **state: float) -> NDArray[Any]:
    env = RoomsVectorEnv(1, config)
    return view(config, room=ROOM_2, x=env.level.arrival[0], y=env.level.arrival[1], **state)


def columns(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The columns in which two views differ."""
    return np.flatnonzero((a != b).any((0, 2)))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_examples_and_choices_are_seen_on_their_sides(variant: str) -> None:
    """The example from the start, both choices on arrival."""
    pairs = [[view(variant, match=match, example_side=side) for match in (0, 1)] for side in (0, 1)]
    if variant in MANY:
        pairs.append([at_arrival(variant, match=match, other=2) for match in (0, 1)])
        pairs.append([at_arrival(variant, other=other) for other in (1, 2)])
    changed = [columns(*pair) for pair in pairs]
    assert min(map(len, changed)) >= 3 / VARIANTS[variant].shrink
    for left, right in zip(changed[::2], changed[1::2]):
        assert left.max() < VARIANTS[variant].image_width / 2 <= right.min()


def test_the_field_of_view_is_90_degrees() -> None:
    """A sphere 200 u away, its near edge (4.6 degrees from its centre) on this or that side of the view's."""
    for degrees, seen in ((44, True), (46, False)):
        sphere, angle = 3 * 10, np.radians(degrees + 4.6)
        x, y = np.array(CHOICES[0]) - 200.0 * np.array([np.cos(angle), np.sin(angle)])
        a, b = (view(room=ROOM_2, x=x, y=y, match=sphere + colour, other=sphere + 2) for colour in (0, 1))
        assert (a != b).any() == seen


@pytest.mark.parametrize(("room", "x"), [(ROOM_1, 40), (ROOM_2, 600)])
@pytest.mark.parametrize(("side", "y", "turn"), [(0, 64, 90), (1, -192, -90)])
def test_objects_stand_where_they_do_in_the_level(room: int, x: int, side: int, y: int, turn: int) -> None:
    """Seen along x or y, from 90 u away within the room, an object is in the middle of the view."""
    config = RoomsConfig(image_height=40, image_width=129, hud=False)
    for yaw in (0, turn):
        there = {"x": x - 90 * np.cos(np.radians(yaw)), "y": y - 90 * np.sin(np.radians(yaw)), "yaw": yaw}
        place = {"room": room, "other": 33, "example_side": side, "match_side": side, **there}
        seen = columns(*(view(config, match=match, **place) for match in (30, 31)))
        assert len(seen) > 15
        assert abs(seen.min() + seen.max() - 128) <= 1


def test_the_objects_are_twelve_shapes_in_pink_light_blue_and_green() -> None:
    names = "barbell coil cone crossbar cube cylinder double_prism glow_ball pot_cone prism_jack sphere toroid"
    assert RoomsConfig().shapes == tuple(SHAPES) == tuple(names.split())
    assert RoomsConfig().colours == LEVEL_COLOURS == ((250, 50, 135), (125, 208, 236), (88, 230, 150))


def test_objects_hover_19_u_above_the_floor_and_bob_by_4() -> None:
    """The lowest point of a sphere's belt over its bobbing, 100 u away. The eye is 50 u above the floor."""
    config = RoomsConfig(image_height=512, image_width=512, hud=False)

    def lowest(frame: int) -> float:
        there, gone = (view(config, room=ROOM_2, x=500, y=64, match=30, frame=frame, taken=t) for t in (-1, 0))
        rows = np.flatnonzero((there != gone).any((1, 2)))
        return 50 - 100.0 * (rows.max() + 1 - 256) / 256

    heights = [lowest(frame) for frame in range(0, 76, 5)]
    assert (min(heights) + max(heights)) / 2 == pytest.approx(19, abs=1)
    assert max(heights) - min(heights) == pytest.approx(8, abs=1)


def rows(a: NDArray[Any], b: NDArray[Any]) -> Any:
    """The rows in which two views differ."""
    return np.flatnonzero((a != b).any((1, 2)))


LARGE = RoomsConfig(image_height=512, image_width=512, hud=False, bob_height=0.0)


def test_objects_have_the_measured_heights() -> None:
    heights = (32, 35, 35, 34, 35, 49, 17, 33, 32, 32, 30, 34)
    for (name, (_, radius, half, *_)), height in zip(SHAPES.items(), heights):
        assert 2 * half * UNIT == pytest.approx(height, abs=1), name
        assert 2 * radius * UNIT <= 38, name


def test_shapes_lie_inside_their_balls() -> None:
    points = np.random.default_rng(0).normal(size=(1000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for name, (kind, *_, ball) in SHAPES.items():
        assert min(min(distances(kind, *point)) for point in ball * points) > NEAR, name


def test_a_cylinder_is_as_large_as_the_pinhole_formula_says() -> None:
    """Its body, which alone shows the colour, is 28 u tall and 15.4 u wide; the whole is 49 u tall, from 19 u up."""
    place = {"room": ROOM_2, "x": 500.0, "y": 64.0, "other": 2}
    one, two, gone = view(LARGE, match=15, **place), view(LARGE, match=16, **place), view(LARGE, taken=0, **place)
    assert np.ptp(rows(one, two)) == pytest.approx(256 * 28 / 100, rel=0.1)
    assert np.ptp(columns(one, two)) == pytest.approx(256 * 15.4 / 100, rel=0.08)
    whole = rows(one, gone)
    assert whole.max() == pytest.approx(256 + 256 * (50 - 19) / 92.4, abs=3)
    assert whole.min() == pytest.approx(256 - 256 * (19 + 49 - 50) / 100, abs=4)


@pytest.mark.parametrize(("age", "size"), [(0, 0.46), (17, 0.73), (34, 1.0), (60, 1.0)])
def test_objects_grow_in_34_frames_from_46_percent(age: int, size: float) -> None:
    place = {"room": ROOM_2, "x": 500.0, "y": 64.0, "match": 15, "other": 2, "frame": 500}
    seen = rows(view(LARGE, shown=500 - age, **place), view(LARGE, taken=0, **place))
    assert np.ptp(seen) == pytest.approx(256 * 49 / 100 * size, rel=0.08)


@pytest.mark.parametrize(("item", "place", "half", "tall"), [(0, (40, 64), 24.5, 8), (2, (64, -64), 23.5, 9)])
def test_pads_are_raised_octagons(item: int, place: tuple[int, int], half: float, tall: int) -> None:
    """Seen along x from 100 u away: from the far edge of the top down to the near edge's foot, and as wide."""
    env = RoomsVectorEnv(1, LARGE)
    env.reset(seed=0)
    state = env.get_state() | {"x": np.array([place[0] - 100.0]), "y": np.array([float(place[1])])}
    state["shown"][:], state["example_side"][:] = -100, 1
    flat = env.scene.pads.copy()
    flat[0, item, 2] = 0.0
    pictures = []
    for pads in (env.scene.pads, flat):
        env.scene = env.scene._replace(pads=pads)
        pictures.append(env.set_state(state)[0])
    seen = rows(*pictures)
    assert seen.min() == pytest.approx(256 + 256 * (50 - tall) / (100 + half), abs=2)
    assert seen.max() == pytest.approx(256 + 256 * 50 / (100 - half), abs=2)
    side = half * np.tan(np.pi / 8)  # of the octagon, halved: the corners at which it looks widest
    assert np.ptp(columns(*pictures)) == pytest.approx(2 * 256 * half / (100 - side), abs=2)


def test_the_view_rises_with_the_players_feet() -> None:
    """The far wall's foot, 360 u ahead: 50 or 75 u below the eye."""
    config = RoomsConfig(hud=False)
    for z in (0.0, 25.0):
        column = view(config, x=-232.0, y=-64.0, z=z)[:, 36]
        floor = column[:, 0] > column[:, 2]
        assert np.flatnonzero(floor).min() == round(36 + 48 * (50 + z) / 360)


def test_a_ring_around_the_start_fades_in_28_frames() -> None:
    place, config = {"x": -232.0, "y": -64.0, "match": 15}, RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.0)
    added = []
    for age in (0, 14, 28):
        config = RoomsConfig(hud=False, object_scale=0.1)
        ring, none = (view(config, frame=age, shown=shown, **place) for shown in (0, -100))
        added.append((ring - none)[45:].sum())
    assert added[0] > 1.8 * added[1] > 0 == added[2]
    away = [view(config, frame=0, shown=shown, **place | {"x": -200.0})[50:] for shown in (0, -100)]
    assert (away[0] == away[1]).all()


def test_the_view_of_a_teleport_is_gray_under_the_display() -> None:
    """The shade is the low byte of the client's clock, which is a move of 14 or 17 ms ahead: 1319 + 17 - 1280 = 56."""
    place = {"room": GREY, "frame": 55, "shown": 0, "time": 1319, "gray_until": 1350}
    seen = view(**place)
    assert (seen[12:48] == 56).all()
    assert (seen != 56).any()
    assert (view("small", **place) == 56).all(), "without a display"
    assert (view("small", **place | {"gray_until": 1336}) != 56).any()


def test_the_glow_pulses_at_a_fifth_of_a_hertz() -> None:
    """In 5 s of the engine's clock, of 0.016 s a frame: 625 frames are two periods."""
    still = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.15, spin_seconds=1e9)
    frames = (0, 78, 156, 547, 625)
    reds = [view(still, room=ROOM_2, x=540.0, y=64.0, match=30, frame=f)[..., 0] for f in frames]
    glow = reds[0] != reds[2]
    bright = [red[glow].sum() for red in reds]
    assert PULSE_SECONDS == 5.0
    assert bright[0] == bright[4] > bright[1] == bright[3] > bright[2]
    assert bright[2] / bright[0] == pytest.approx(0.85, abs=0.01)


def test_walls_are_128_u_high_and_the_eye_50_above_the_floor() -> None:
    """The far wall, 360 u ahead at the start, ends 78 u above the horizon and 50 below: rows 25.6 to 42.7 of 72."""
    env = RoomsVectorEnv(1, RoomsConfig(hud=False))
    painted = env.reset(seed=0)[0][0]

    def rows(texture: NDArray[Any]) -> Any:
        blank = np.zeros_like(getattr(env.scene, texture))
        env.scene, kept = env.scene._replace(**{texture: blank}), env.scene
        changed = (env.set_state(env.get_state())[0] != painted).any(2)[:, 36]
        env.scene = kept
        return np.flatnonzero(changed).tolist()

    assert rows("sky") == list(range(26))
    assert rows("wall") == list(range(26, 43))
    assert rows("floors") == list(range(43, 72))


@pytest.mark.parametrize(("shrink", "spec"), [(2, "full-half"), (2, "transfer"), (3, "full"), (3, "small")])
def test_smaller_images_are_means_over_blocks_of_the_view(shrink: int, spec: str) -> None:
    large = dataclasses.replace(VARIANTS[spec], image_height=72, image_width=96, shrink=1)
    small = dataclasses.replace(large, image_height=72 // shrink, image_width=96 // shrink, shrink=shrink)
    assert spec != "full-half" or small == VARIANTS[spec]
    assert spec != "full-half" or large == VARIANTS["full"]
    one, other, random = RoomsVectorEnv(3, large), RoomsVectorEnv(3, small), np.random.default_rng(0)
    views, images = one.reset(seed=2)[0], other.reset(seed=2)[0]
    for _ in range(60):
        blocks = views.reshape(3, 72 // shrink, shrink, 96 // shrink, shrink, 3)
        assert np.array_equal(images, np.floor(blocks.mean((2, 4)) + 0.5))
        actions = random.integers(9, size=3)
        views, images = one.step(actions)[0], other.step(actions)[0]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_rooms_show_nothing_of_each_other(variant: str) -> None:
    """Room 1 nothing of the choices; room 2 the same objects whichever is the match."""
    if variant in MANY:
        assert (view(variant, other=1, match_side=0) == view(variant, other=2, match_side=1)).all()
    a = at_arrival(variant, match=0, other=1, match_side=0, example_side=0)
    assert (a == at_arrival(variant, match=1, other=0, match_side=1, example_side=1)).all()


def test_objects_show_their_colour() -> None:
    for colour, wanted in enumerate(np.array(LEVEL_COLOURS)):
        near = view(room=ROOM_2, x=510.0, y=64.0, match=3 * 10 + colour, frame=0)
        cosine = (near @ wanted) / np.linalg.norm(near, axis=2) / np.linalg.norm(wanted)
        assert ((cosine > 0.9995) & (near.max(2) > 0.7 * wanted.max())).sum() > 100


def test_objects_spin_once_in_2_048_seconds() -> None:
    """On the engine's clock: 128 frames of 0.016 s. A coil looks alike after whole turns only."""
    still, coil = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.0), 3
    place = {"room": ROOM_2, "x": 510.0, "y": 64.0, "match": coil}
    first, *later = (view(still, frame=frame, **place) for frame in (0, 128, 64, 43, 122))
    changed = [(first != seen).any(2).sum() for seen in later]
    assert changed[0] <= 2, "but for rounding at an edge"
    assert min(changed[1:]) > 20


def test_the_display_shows_the_score_and_the_clock() -> None:
    off = view(RoomsConfig(hud=False))
    assert set(columns(view(), off)) <= {*range(1, 54), *range(88, 96)}
    changed = view(score=37.0) != view(score=0.0)
    assert changed[60:66, 88:].any()
    assert not changed[:60].any()
    for score in (-120.0, 9999.0):
        assert (view(score=score) != view(score=0.0)).any()
    on, off = view(frame=300), view(RoomsConfig(hud=False), frame=300)
    assert (on[:4, 88:] != off[:4, 88:]).any()
