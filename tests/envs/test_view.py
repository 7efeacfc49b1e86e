"""Views: visibility and size of the objects, no leak between the rooms, the display."""

import numpy as np
import pytest

from envs.rooms import VARIANTS, RoomsConfig, RoomsVectorEnv
from envs.rooms.config import LEVEL_COLOURS
from envs.rooms.level import CHOICES, ROOM_1, ROOM_2
from envs.rooms.render import PULSE_SECONDS, UNIT
from envs.rooms.shapes import SHAPES

#: Variants with enough objects for a third to take the place of one of two.
MANY = [name for name, config in VARIANTS.items() if config.num_objects > 2]


def view(config="full", **state):
    """The view of one environment with parts of its state set."""
    env = RoomsVectorEnv(1, config)
    env.reset(seed=0)
    env.state.match[:], env.state.other[:], env.state.example_side[:], env.state.match_side[:] = 0, 1, 0, 0
    for name, value in state.items():
        getattr(env.state, name)[:] = value
    return env.set_state(env.get_state())[0].astype(int)


def at_arrival(config="full", **state):
    env = RoomsVectorEnv(1, config)
    return view(config, room=ROOM_2, x=env.level.arrival[0], y=env.level.arrival[1], **state)


def columns(a, b):
    """The columns in which two views differ."""
    return np.flatnonzero((a != b).any((0, 2)))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_examples_and_choices_are_seen_on_their_sides(variant):
    """The example from the start, both choices on arrival."""
    pairs = [[view(variant, match=match, example_side=side) for match in (0, 1)] for side in (0, 1)]
    if variant in MANY:
        pairs.append([at_arrival(variant, match=match, other=2) for match in (0, 1)])
        pairs.append([at_arrival(variant, other=other) for other in (1, 2)])
    changed = [columns(*pair) for pair in pairs]
    assert min(map(len, changed)) >= 3
    for left, right in zip(changed[::2], changed[1::2]):
        assert left.max() < VARIANTS[variant].image_width / 2 <= right.min()


def test_the_field_of_view_is_90_degrees():
    """A sphere 200 u away, its near edge (4.6 degrees from its centre) on this or that side of the view's."""
    for degrees, seen in ((44, True), (46, False)):
        sphere, angle = 3 * 10, np.radians(degrees + 4.6)
        x, y = np.array(CHOICES[0]) - 200.0 * np.array([np.cos(angle), np.sin(angle)])
        a, b = (view(room=ROOM_2, x=x, y=y, match=sphere + colour, other=sphere + 2) for colour in (0, 1))
        assert (a != b).any() == seen


@pytest.mark.parametrize(("room", "x"), [(ROOM_1, 40), (ROOM_2, 600)])
@pytest.mark.parametrize(("side", "y", "turn"), [(0, 64, 90), (1, -192, -90)])
def test_objects_stand_where_they_do_in_the_level(room, x, side, y, turn):
    """Seen along x or y, from 90 u away within the room, an object is in the middle of the view."""
    config = RoomsConfig(image_height=40, image_width=129, hud=False)
    for yaw in (0, turn):
        there = {"x": x - 90 * np.cos(np.radians(yaw)), "y": y - 90 * np.sin(np.radians(yaw)), "yaw": yaw}
        place = {"room": room, "other": 33, "example_side": side, "match_side": side, **there}
        seen = columns(*(view(config, match=match, **place) for match in (30, 31)))
        assert len(seen) > 20
        assert abs(seen.min() + seen.max() - 128) <= 1


def test_the_objects_are_twelve_shapes_in_pink_light_blue_and_green():
    names = "barbell coil cone crossbar cube cylinder double_prism glow_ball pot_cone prism_jack sphere toroid"
    assert RoomsConfig().shapes == tuple(SHAPES) == tuple(names.split())
    assert RoomsConfig().colours == LEVEL_COLOURS == ((250, 50, 135), (125, 208, 236), (88, 230, 150))


def test_objects_hover_19_u_above_the_floor_and_bob_by_4():
    """The lowest point of a sphere over its bobbing: the edge of its foot, which is 6.4 u wide to either side, 93.6 u
    away. The eye is 50 u above the floor."""
    config = RoomsConfig(image_height=512, image_width=512, hud=False)

    def lowest(frame):
        there, gone = (view(config, room=ROOM_2, x=500, y=64, match=30, frame=frame, taken=t) for t in (-1, 0))
        rows = np.flatnonzero((there != gone).any((1, 2)))
        return 50 - 93.6 * (rows.max() + 1 - 256) / 256

    heights = [lowest(frame) for frame in range(0, 76, 5)]
    assert (min(heights) + max(heights)) / 2 == pytest.approx(19, abs=1)
    assert max(heights) - min(heights) == pytest.approx(8, abs=1)


def test_objects_are_about_32_u_tall_and_at_most_32_wide():
    for name, (_, radius, half) in SHAPES.items():
        assert 2 * half * UNIT == pytest.approx({"cylinder": 49, "double_prism": 15}.get(name, 32), abs=9), name
        assert 2 * radius * UNIT <= 33, name


def test_the_glow_pulses_at_a_fifth_of_a_hertz():
    still = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.15, spin_seconds=1000.0)
    reds = [view(still, room=ROOM_2, x=540.0, y=64.0, match=30, frame=f)[..., 0] for f in range(0, 301, 75)]
    glow = reds[0] != reds[2]
    bright = [red[glow].sum() for red in reds]
    assert PULSE_SECONDS == 5.0
    assert bright[0] == bright[4] > bright[1] == bright[3] > bright[2]
    assert bright[2] / bright[0] == pytest.approx(0.85, abs=0.01)


def test_walls_are_128_u_high_and_the_eye_50_above_the_floor():
    """The far wall, 360 u ahead at the start, ends 78 u above the horizon and 50 below: rows 25.6 to 42.7 of 72."""
    env = RoomsVectorEnv(1, RoomsConfig(hud=False))
    painted = env.reset(seed=0)[0][0]

    def rows(texture):
        blank = np.zeros_like(getattr(env.scene, texture))
        env.scene, kept = env.scene._replace(**{texture: blank}), env.scene
        changed = (env.set_state(env.get_state())[0] != painted).any(2)[:, 48]
        env.scene = kept
        return np.flatnonzero(changed).tolist()

    assert rows("sky") == list(range(26))
    assert rows("wall") == list(range(26, 43))
    assert rows("floors") == list(range(43, 72))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_rooms_show_nothing_of_each_other(variant):
    """Room 1 nothing of the choices; room 2 the same objects whichever is the match."""
    if variant in MANY:
        assert (view(variant, other=1, match_side=0) == view(variant, other=2, match_side=1)).all()
    a = at_arrival(variant, match=0, other=1, match_side=0, example_side=0)
    assert (a == at_arrival(variant, match=1, other=0, match_side=1, example_side=1)).all()


def test_objects_show_their_colour():
    for colour, wanted in enumerate(np.array(LEVEL_COLOURS)):
        near = view(room=ROOM_2, x=510.0, y=64.0, match=3 * 10 + colour, frame=0)
        cosine = (near @ wanted) / np.linalg.norm(near, axis=2) / np.linalg.norm(wanted)
        assert ((cosine > 0.9995) & (near.max(2) > 0.7 * wanted.max())).sum() > 150


def test_objects_spin_once_in_2_048_seconds():
    """25 turns take 3072 frames. A coil looks alike after whole turns only."""
    still, coil = RoomsConfig(hud=False, bob_height=0.0, glow_pulse=0.0), 3
    place = {"room": ROOM_2, "x": 510.0, "y": 64.0, "match": coil}
    first, *later = (view(still, frame=frame, **place) for frame in (0, 3072, 1536, 1024, 3010))
    changed = [(first != seen).any(2).sum() for seen in later]
    assert changed[0] <= 2, "but for rounding at an edge"
    assert min(changed[1:]) > 20


def test_the_display_shows_the_score_and_the_clock():
    off = view(RoomsConfig(hud=False))
    assert set(columns(view(), off)) <= {*range(2, 30), *range(78, 96)}
    changed = view(score=37.0) != view(score=0.0)
    assert changed[60:, 80:].any()
    assert not changed[:60].any()
    for score in (-120.0, 9999.0):
        assert (view(score=score) != view(score=0.0)).any()
    on, off = view(frame=300), view(RoomsConfig(hud=False), frame=300)
    assert (on[:10, 78:] != off[:10, 78:]).any()
