"""Views: objects, pads, walls and ring where a pinhole camera sees them, no leak between the rooms, the display."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv
from envs.rooms.config import LEVEL_COLORS
from envs.rooms.level import CHOICES, GRAY, ROOM_1, ROOM_2
from envs.rooms.render import PULSE_SECONDS
from envs.rooms.scene import UNIT
from envs.rooms.shapes import NEAR, SHAPES, distances

MANY = [name for name, config in VARIANTS.items() if config.num_objects > 2]
"""Variants with enough objects for a third to take the place of one of two."""

LEFT, RIGHT = 0, 1
"""Sides of an example and of a choice."""
EYE = 50
"""Height of the eye above the floor, in u."""

LARGE = RoomsConfig(image_height=512, image_width=512, hud=False, bob_height=0.0)
"""A view in which sizes can be measured."""
FOCAL = 256
"""The focal length of a view of 512 x 512 pixels, in pixels: half of its width, at a field of view of 90 degrees."""
HORIZON = 256
"""The row of the horizon in such a view: `HORIZON + FOCAL * depth / distance` is that of a point below the eye."""


def numbered(shape: str, color: int = 0) -> int:
    """The number of an object; its three colors follow each other."""
    return 3 * RoomsConfig().shapes.index(shape) + color


def view(config: str | RoomsConfig = "full", **state: float) -> NDArray[Any]:
    """The view of one environment, whose objects appeared long ago, with parts of its state set."""
    env = RoomsVectorEnv(1, config)
    env.reset(seed=0)
    defaults = {"match": 0, "other": 1, "example_side": LEFT, "match_side": LEFT, "shown": -100}
    for name, value in {**defaults, **state}.items():
        getattr(env.state, name)[:] = value
    return env.set_state(env.get_state())[0].astype(int)


def at_arrival(config: str = "full", **state: float) -> NDArray[Any]:
    """The view of a player who has just been teleported to the room of the choice."""
    env = RoomsVectorEnv(1, config)
    x, y = env.level.arrival[:2]
    return view(config, room=ROOM_2, x=x, y=y, **state)


def columns(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The columns in which two views differ."""
    return np.flatnonzero((a != b).any((0, 2)))


def rows(a: NDArray[Any], b: NDArray[Any]) -> Any:
    """The rows in which two views differ."""
    return np.flatnonzero((a != b).any((1, 2)))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_examples_and_choices_are_seen_on_their_sides(variant: str) -> None:
    """The example from the start, both choices on arrival: the columns that change with the object are on its side."""
    config = VARIANTS[variant]

    def check(left: NDArray[Any], right: NDArray[Any]) -> None:
        """Columns that change with the object on the left are in the left half, and the others in the right half."""
        for changed in (left, right):
            assert len(changed) >= 3 / config.shrink
        assert left.max() < config.image_width / 2 <= right.min()

    left, right = (
        columns(view(variant, match=0, example_side=side), view(variant, match=1, example_side=side))
        for side in (LEFT, RIGHT)
    )
    check(left, right)

    if variant in MANY:
        match = columns(at_arrival(variant, match=0, other=2), at_arrival(variant, match=1, other=2))
        other = columns(at_arrival(variant, other=1), at_arrival(variant, other=2))
        check(left=match, right=other)


def test_the_field_of_view_is_90_degrees() -> None:
    """A sphere 200 u away, whose near edge is just inside or just outside the edge of the view."""
    half_width = 4.6  # of the sphere from there, in degrees
    for degrees, seen in ((44, True), (46, False)):
        angle = np.radians(degrees + half_width)
        x, y = np.array(CHOICES[LEFT]) - 200.0 * np.array([np.cos(angle), np.sin(angle)])
        place = {"room": ROOM_2, "x": x, "y": y, "other": numbered("sphere", 2)}
        a = view(match=numbered("sphere", 0), **place)
        b = view(match=numbered("sphere", 1), **place)
        assert (a != b).any() == seen


@pytest.mark.parametrize(("room", "x"), [(ROOM_1, 40), (ROOM_2, 600)])
@pytest.mark.parametrize(("side", "y", "turn"), [(LEFT, 64, 90), (RIGHT, -192, -90)])
def test_objects_stand_where_they_do_in_the_level(room: int, x: int, side: int, y: int, turn: int) -> None:
    """Seen along x or y, from 90 u away within the room, an object is in the middle of the view."""
    config = RoomsConfig(image_height=40, image_width=129, hud=False)
    middle = 64  # of 129 columns
    for yaw in (0, turn):
        angle = np.radians(yaw)
        player = {"x": x - 90 * np.cos(angle), "y": y - 90 * np.sin(angle), "yaw": yaw}
        place = {"room": room, "other": numbered("toroid"), "example_side": side, "match_side": side, **player}
        pink = view(config, match=numbered("sphere", 0), **place)
        blue = view(config, match=numbered("sphere", 1), **place)
        seen = columns(pink, blue)
        assert len(seen) > 15
        assert abs(seen.min() + seen.max() - 2 * middle) <= 1


def test_the_objects_are_twelve_shapes_in_pink_light_blue_and_green() -> None:
    names = "barbell coil cone crossbar cube cylinder double_prism glow_ball pot_cone prism_jack sphere toroid"
    assert RoomsConfig().shapes == tuple(SHAPES) == tuple(names.split())
    assert RoomsConfig().colors == LEVEL_COLORS == ((250, 50, 135), (125, 208, 236), (88, 230, 150))


def test_objects_hover_19_u_above_the_floor_and_bob_by_4() -> None:
    """The lowest point of a sphere's belt over its bobbing, 100 u away."""
    bobbing = RoomsConfig(image_height=512, image_width=512, hud=False)

    def lowest(frame: int) -> float:
        """The height in u of the sphere's lowest pixel above the floor."""
        place = {"room": ROOM_2, "x": 500, "y": 64, "match": numbered("sphere"), "frame": frame}
        there = view(bobbing, taken=-1, **place)
        gone = view(bobbing, taken=0, **place)
        bottom = rows(there, gone).max() + 1
        return EYE - 100.0 * (bottom - HORIZON) / FOCAL

    heights = [lowest(frame) for frame in range(0, 76, 5)]
    assert (min(heights) + max(heights)) / 2 == pytest.approx(19, abs=1)
    assert max(heights) - min(heights) == pytest.approx(8, abs=1)


def test_objects_have_the_measured_heights() -> None:
    heights = (32, 35, 35, 34, 35, 49, 17, 33, 32, 32, 30, 34)
    for (name, (_, radius, half, *_)), height in zip(SHAPES.items(), heights):
        assert 2 * half * UNIT == pytest.approx(height, abs=1), name
        assert 2 * radius * UNIT <= 38, name


def test_shapes_lie_inside_their_balls() -> None:
    points = np.random.default_rng(0).normal(size=(1000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for name, (kind, *_, ball) in SHAPES.items():
        for point in ball * points:
            assert min(distances(kind, *point)) > NEAR, name


def test_a_cylinder_is_as_large_as_the_pinhole_formula_says() -> None:
    """Its body, which alone shows the color, is 28 u tall and 15.4 u wide; the whole is 49 u tall, from 19 u up."""
    place = {"room": ROOM_2, "x": 500.0, "y": 64.0, "other": 2}
    distance = 100
    near_edge = 92.4  # the distance of the part that is seen lowest
    pink = view(LARGE, match=numbered("cylinder", 0), **place)
    blue = view(LARGE, match=numbered("cylinder", 1), **place)
    gone = view(LARGE, taken=0, **place)

    assert np.ptp(rows(pink, blue)) == pytest.approx(FOCAL * 28 / distance, rel=0.1)
    assert np.ptp(columns(pink, blue)) == pytest.approx(FOCAL * 15.4 / distance, rel=0.08)

    whole = rows(pink, gone)
    assert whole.max() == pytest.approx(HORIZON + FOCAL * (EYE - 19) / near_edge, abs=3)
    assert whole.min() == pytest.approx(HORIZON - FOCAL * (19 + 49 - EYE) / distance, abs=4)


@pytest.mark.parametrize(("age", "size"), [(0, 0.46), (17, 0.73), (34, 1.0), (60, 1.0)])
def test_objects_grow_in_34_frames_from_46_percent(age: int, size: float) -> None:
    """A cylinder 100 u away, whose full height is 49 u."""
    place = {"room": ROOM_2, "x": 500.0, "y": 64.0, "match": numbered("cylinder"), "other": 2, "frame": 500}
    growing = view(LARGE, shown=500 - age, **place)
    gone = view(LARGE, taken=0, **place)
    assert np.ptp(rows(growing, gone)) == pytest.approx(FOCAL * 49 / 100 * size, rel=0.08)


@pytest.mark.parametrize(("item", "place", "half", "tall"), [(0, (40, 64), 24.5, 8), (2, (64, -64), 23.5, 9)])
def test_pads_are_raised_octagons(item: int, place: tuple[int, int], half: float, tall: int) -> None:
    """Seen along x from 100 u away: from the far edge of the top down to the near edge's foot, and as wide."""
    env = RoomsVectorEnv(1, LARGE)
    env.reset(seed=0)
    distance = 100.0
    x, y = place
    state = env.get_state() | {"x": np.array([x - distance]), "y": np.array([float(y)])}
    state["shown"][:] = -100
    state["example_side"][:] = RIGHT

    # The pad is where the view changes once its height is 0.
    raised = env.set_state(state)[0]
    flat = env.scene.pads.copy()
    flat[0, item, 2] = 0.0
    env.scene = env.scene._replace(pads=flat)
    without = env.set_state(state)[0]

    seen = rows(raised, without)
    assert seen.min() == pytest.approx(HORIZON + FOCAL * (EYE - tall) / (distance + half), abs=2)
    assert seen.max() == pytest.approx(HORIZON + FOCAL * EYE / (distance - half), abs=2)
    half_side = half * np.tan(np.pi / 8)  # of the octagon, which looks widest at the corners nearest to the eye
    assert np.ptp(columns(raised, without)) == pytest.approx(2 * FOCAL * half / (distance - half_side), abs=2)


def test_the_view_rises_with_the_players_feet() -> None:
    """The far wall's foot, 360 u ahead: 50 or 75 u below the eye.

    In a view of 72 x 96 pixels the horizon is row 36, and the focal length 48 pixels.
    """
    config = RoomsConfig(hud=False)
    for z in (0.0, 25.0):
        column = view(config, x=-232.0, y=-64.0, z=z)[:, 36]
        red, blue = column[:, 0], column[:, 2]
        floor = red > blue
        assert np.flatnonzero(floor).min() == round(36 + 48 * (EYE + z) / 360)


def test_a_ring_around_the_start_fades_in_28_frames() -> None:
    """The ring is the difference to the view in a trial that began long ago."""
    config = RoomsConfig(hud=False, object_scale=0.1)
    place = {"x": -232.0, "y": -64.0, "match": numbered("cylinder")}

    def added(age: int) -> int:
        """What the ring adds to the lower part of the view, so many frames after the trial began."""
        with_ring = view(config, frame=age, shown=0, **place)
        without = view(config, frame=age, shown=-100, **place)
        return (with_ring - without)[45:].sum()

    at_first, halfway, at_last = (added(age) for age in (0, 14, 28))
    assert at_first > 1.8 * halfway > 0 == at_last

    place["x"] = -200.0
    away = view(config, frame=0, shown=0, **place)[50:]
    away_later = view(config, frame=0, shown=-100, **place)[50:]
    assert (away == away_later).all(), "the ring is around the start only"


def test_the_view_of_a_teleport_is_gray_under_the_display() -> None:
    """The shade is the low byte of the client's clock, which is a move of 14 or 17 ms ahead: 1319 + 17 - 1280 = 56."""
    place = {"room": GRAY, "frame": 55, "shown": 0, "time": 1319, "gray_until": 1350}
    seen = view(**place)
    assert (seen[12:48] == 56).all(), "the rows between the parts of the display"
    assert (seen != 56).any(), "the display is seen"
    assert (view("small", **place) == 56).all(), "without a display"

    place["gray_until"] = 1336  # the clock of this frame: it is over
    assert (view("small", **place) != 56).any()


def test_the_glow_pulses_at_a_fifth_of_a_hertz() -> None:
    """In 5 s of the engine's clock, of 0.016 s a frame: 625 frames are two periods."""
    still = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.15, spin_seconds=1e9)
    place = {"room": ROOM_2, "x": 540.0, "y": 64.0, "match": numbered("sphere")}
    frames = (0, 78, 156, 547, 625)  # after 0, 1/4, 1/2, 7/4 and 2 periods
    reds = [view(still, frame=frame, **place)[..., 0] for frame in frames]
    glow = reds[0] != reds[2]
    at_first, quarter, half, three_quarters, after_two = (red[glow].sum() for red in reds)

    assert PULSE_SECONDS == 5.0
    assert at_first == after_two > quarter == three_quarters > half
    assert half / at_first == pytest.approx(0.85, abs=0.01)


def test_walls_are_128_u_high_and_the_eye_50_above_the_floor() -> None:
    """The far wall, 360 u ahead at the start, ends 78 u above the horizon and 50 below: rows 25.6 to 42.7 of 72."""
    env = RoomsVectorEnv(1, RoomsConfig(hud=False))
    painted = env.reset(seed=0)[0][0]

    def painted_by(texture: str) -> list[int]:
        """The rows of a column that change if the texture is black."""
        scene = env.scene
        black = np.zeros_like(getattr(scene, texture))
        env.scene = scene._replace(**{texture: black})
        changed = (env.set_state(env.get_state())[0] != painted).any(2)
        env.scene = scene
        return np.flatnonzero(changed[:, 36]).tolist()

    assert painted_by("sky") == list(range(26))
    assert painted_by("wall") == list(range(26, 43))
    assert painted_by("floors") == list(range(43, 72))


@pytest.mark.parametrize(
    ("shrink", "spec"),
    [(2, "full-half"), (3, "full"), (3, "small"), pytest.param(2, "transfer", marks=pytest.mark.slow)],
)
def test_smaller_images_are_means_over_blocks_of_the_view(shrink: int, spec: str) -> None:
    large = dataclasses.replace(VARIANTS[spec], image_height=72, image_width=96, shrink=1)
    height, width = 72 // shrink, 96 // shrink
    small = dataclasses.replace(large, image_height=height, image_width=width, shrink=shrink)
    if spec == "full-half":
        assert small == VARIANTS["full-half"]
        assert large == VARIANTS["full"]

    env = RoomsVectorEnv(3, large)
    smaller = RoomsVectorEnv(3, small)
    views, _ = env.reset(seed=2)
    images, _ = smaller.reset(seed=2)
    random = np.random.default_rng(0)
    for _ in range(60):
        blocks = views.reshape(3, height, shrink, width, shrink, 3)
        assert np.array_equal(images, np.floor(blocks.mean((2, 4)) + 0.5))
        actions = random.integers(9, size=3)
        views = env.step(actions)[0]
        images = smaller.step(actions)[0]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_rooms_show_nothing_of_each_other(variant: str) -> None:
    """Room 1 shows nothing of the choices; room 2 shows the same objects, whichever of them is the match."""
    if variant in MANY:
        one = view(variant, other=1, match_side=LEFT)
        another = view(variant, other=2, match_side=RIGHT)
        assert (one == another).all()
    match_left = at_arrival(variant, match=0, other=1, match_side=LEFT, example_side=LEFT)
    match_right = at_arrival(variant, match=1, other=0, match_side=RIGHT, example_side=RIGHT)
    assert (match_left == match_right).all()


def test_objects_show_their_color() -> None:
    """Many pixels of a sphere nearby have its color, in shades that are not much darker."""
    for color, wanted in enumerate(np.array(LEVEL_COLORS)):
        near = view(room=ROOM_2, x=510.0, y=64.0, match=numbered("sphere", color), frame=0)
        cosine = (near @ wanted) / np.linalg.norm(near, axis=2) / np.linalg.norm(wanted)
        bright = near.max(2) > 0.7 * wanted.max()
        assert ((cosine > 0.9995) & bright).sum() > 100


def test_objects_spin_once_in_2_048_seconds() -> None:
    """On the engine's clock: 128 frames of 0.016 s. A coil looks alike after whole turns only."""
    still = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.0)
    place = {"room": ROOM_2, "x": 510.0, "y": 64.0, "match": numbered("coil")}
    first = view(still, frame=0, **place)

    def changed(frame: int) -> int:
        """The number of pixels that differ from the first frame."""
        return (first != view(still, frame=frame, **place)).any(2).sum()

    assert changed(128) <= 2, "but for rounding at an edge"
    for part_of_a_turn in (64, 43, 122):
        assert changed(part_of_a_turn) > 20


def test_the_display_shows_the_score_and_the_clock() -> None:
    without = RoomsConfig(hud=False)
    assert set(columns(view(), view(without))) <= {*range(1, 54), *range(88, 96)}

    no_score = view(score=0.0)
    changed = view(score=37.0) != no_score
    assert changed[60:66, 88:].any()
    assert not changed[:60].any()
    for score in (-120.0, 9999.0):
        assert (view(score=score) != no_score).any()

    clock = view(frame=300)[:4, 88:]
    no_clock = view(without, frame=300)[:4, 88:]
    assert (clock != no_clock).any()
