"""The laws of motion against measurements on DeepMind Lab (Quake 3's walking)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.lab_interface import NINE, action_rows
from envs.rooms import physics
from envs.rooms.config import RoomsConfig
from envs.rooms.level import build


def run_frames(count, forward=1.0, right=0.0, speed=(0.0, 0.0), grounded=True):
    """Distance covered in each frame, in the open."""
    vx, vy = speed
    covered = []
    for _ in range(count):
        x = y = 0.0
        for _ in range(physics.MOVES_PER_FRAME):
            vx, vy = physics.accelerate(vx, vy, 0.0, forward, right, 320.0, grounded)
            x, y = x + vx * physics.MOVE_SECONDS, y + vy * physics.MOVE_SECONDS
        covered.append(math.hypot(x, y))
    return np.array(covered)


def test_a_runner_reaches_full_speed_after_nine_frames():
    covered = run_frames(20)
    assert covered[0] == pytest.approx(0.63, abs=0.01)
    assert covered[-1] == pytest.approx(320 / 60)
    assert (covered > 0.97 * 320 / 60).argmax() + 1 in (8, 9, 10)
    assert (np.diff(covered) >= -1e-9).all()
    assert run_frames(30, 1.0, 1.0)[-1] == pytest.approx(covered[-1]), "a diagonal is not faster"


def test_friction_stops_a_runner_except_in_flight():
    covered = run_frames(60, forward=0.0, speed=(320.0, 0.0))
    assert covered[-1] == 0.0
    # v / 6 down to the stop speed of 100 u/s, then 600 u/s^2: (320 - 100) / 6 + 100^2 / 1200 = 45 u.
    assert covered.sum() == pytest.approx(45.0, abs=2.5)
    assert run_frames(10, forward=0.0, speed=(400.0, 0.0), grounded=False).sum() == pytest.approx(10 * 400 / 60)


@given(st.floats(-400, 400), st.floats(-400, 400), st.floats(-180, 180), st.integers(0, 8))
def test_walking_never_gains_speed_beyond_the_run_speed(vx, vy, yaw, action):
    _, _, right, forward = action_rows(NINE, 20)[action][:4]
    before = math.hypot(vx, vy)
    after = math.hypot(*physics.accelerate(vx, vy, yaw, forward, right, 320.0, True))
    assert after <= max(before, 320.0 * math.sqrt(2)) + 1e-6


def test_directions_with_yaw_90_looking_along_y():
    for forward, right, direction in ((1, 0, (0, 1)), (-1, 0, (0, -1)), (0, 1, (1, 0)), (0, -1, (-1, 0))):
        velocity = physics.accelerate(0.0, 0.0, 90.0, forward, right, 320.0, True)
        assert np.allclose(np.array(velocity) / np.hypot(*velocity), direction)


def test_yaw_wraps_and_pitch_clamps_at_87_9():
    assert physics.turn(179.0, 0.0, -20.0, 0.0)[0] == pytest.approx(-178.888)
    assert physics.turn(-179.0, 0.0, 20.0, 0.0)[0] == pytest.approx(178.888)
    for sign in (-1, 1):
        assert physics.turn(0.0, sign * 87.0, 0.0, sign * 512.0)[1] == pytest.approx(sign * 87.9)


def test_walls_stop_one_axis_and_let_the_other_slide():
    solids = build(RoomsConfig()).solids
    x, vx = physics.slide(solids, 0, 112.0, 0.0, 300.0)
    y, vy = physics.slide(solids, 1, 0.0, 112.0, 300.0)
    assert (x, vx) == (113.0, 0.0)
    assert (y, vy) == (2.5, 300.0)
