"""The laws of motion against Quake 3's formulas and figures measured on DeepMind Lab (docs/environments.md)."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from envs.lab_interface import NINE, action_rows
from envs.rooms import RoomsVectorEnv, physics
from envs.rooms.config import RoomsConfig
from envs.rooms.level import ROOM_2, build

FORWARD = NINE.index("forward")
STRAFE_RIGHT = NINE.index("strafe right")
FIRE = NINE.index("fire")
"""Actions. FIRE does not move the player."""


def follow(actions: Any, **state: Any) -> dict[str, NDArray[Any]]:
    """The states [T] after each action of a player on the level, one frame a step; `state` is how it begins."""
    env = RoomsVectorEnv(1, RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1))
    env.reset(seed=0)
    for name, value in state.items():
        getattr(env.state, name)[:] = value
    seen = []
    for action in actions:
        env.step(np.array([action]))
        seen.append({name: array[0] for name, array in env.get_state().items()})
    return {name: np.array([each[name] for each in seen]) for name in seen[0]}


def move_times(count: int) -> list[int]:
    """Literally: two clocks gain 16 ms a frame; the server's shows multiples of 50, the client's drifts by +1 or -2."""
    # When the client enters the loaded level.
    residual = 32
    server = 400
    client = 400
    moves = []
    for _ in range(count + 2):
        residual += 16
        server += residual // 50 * 50
        residual %= 50
        client += 16
        move = 14 if client >= server - 5 else 17
        client += move - 16
        moves.append(move)
    return moves[2:]


def test_the_times_of_moves_and_their_mean_of_16_ms() -> None:
    time = physics.LOADED
    moves = []
    for frame in range(5000):
        move = physics.move_time(time, frame)
        moves.append(move)
        time += move
    assert moves == move_times(5000)
    assert sum(moves) / 5000 == pytest.approx(16, abs=0.01)

    # Measured on DeepMind Lab: frames 1 to 27, and those of frames 27 to 124 in which the pattern is broken.
    assert moves[:27] == [14, 14, 17, 17, *[14, 17, 17] * 6, 14, 14, 17, 17, 14]
    two_short = []
    three_long = []
    for frame in range(27, 125):
        if moves[frame - 2 : frame] == [14, 14]:
            two_short.append(frame)
        if moves[frame - 3 : frame] == [17, 17, 17]:
            three_long.append(frame)
    assert two_short == [49, 124]
    assert three_long == [73, 98]


def quake(speed: int, moves: list[int], wish: float) -> list[int]:
    """Speeds after each move of a player on the floor: friction 6, stop speed 100, acceleration 10, whole numbers.

    `moves` are in ms, and `wish` is the speed at which the player wants to run.
    """
    speeds = []
    for ms in moves:
        seconds = ms / 1000
        slower = 0.0
        if speed:
            slower = max(speed - 6 * max(speed, 100) * seconds, 0)
        gain = min(10 * wish * seconds, max(wish - slower, 0))
        speed = math.floor(slower + gain + 0.5)
        speeds.append(speed)
    return speeds


def test_a_runner_and_his_friction() -> None:
    moves = move_times(70)
    seen = follow([FORWARD] * 30 + [FIRE] * 40)
    running = quake(0, moves[:30], wish=320)
    stopping = quake(running[-1], moves[30:], wish=0)
    assert seen["vx"].tolist() == running + stopping

    # Measured on DeepMind Lab.
    assert seen["vx"][:10].tolist() == [45, 81, 125, 167, 198, 232, 263, 286, 311, 320]
    assert seen["x"][[0, 9, 29, 39, 69]] == pytest.approx([-231.3728, -199.3582, -98.2382, -67.6, -57.7325], abs=1e-3)


def test_a_teleported_player_is_thrown_falls_and_can_hardly_steer() -> None:
    seen = follow([FORWARD] * 56 + [STRAFE_RIGHT] * 16)

    # Measured on DeepMind Lab, whose origin is 24.125 u above the feet.
    assert seen["z"][[54, 55, 56, 69, 70]] == pytest.approx([0, 24.7594, 24.4058, 1.457, 0], abs=1e-3)
    assert seen["x"][[54, 55, 70, 71]] == pytest.approx([29.1219, 294.8, 390.7999, 396.9063], abs=1e-3)
    assert seen["vz"][[55, 56, 57, 69, 70]].tolist() == [-14, -28, -39, -195, 0]
    assert seen["vx"][55:72].tolist() == [400] * 16 + [359]
    assert seen["vy"][[56, 57, 69, 70]].tolist() == [-5, -9, -65, -70]

    # From the teleport in frame 55 on, the height is that of a fall at 800 u/s^2 from the speed of the frame before.
    height = 24.875
    speed = 0.0
    expected = []
    for frame, ms in list(enumerate(move_times(72)))[55:70]:
        seconds = ms / 1000
        height += speed * seconds - 800 * seconds**2 / 2
        expected.append(height)
        speed = seen["vz"][frame]
    assert seen["z"][55:70] == pytest.approx(expected)


@pytest.mark.parametrize(("height", "speed"), [(0.0, 400), (24.875, 400)])
def test_a_throw_has_no_friction_for_160_ms_and_in_the_air(height: float, speed: int) -> None:
    """A fall from 24.875 u takes longer: 16 frames."""
    seen = follow([FIRE] * 20, room=ROOM_2, visit=2, x=288, y=-64, z=height, vx=speed, thrown=160)
    free = 16
    if height == 0:
        ends = np.cumsum(move_times(20))
        free = int((ends < 160).sum())
    assert (seen["vx"][:free] == speed).all()
    assert seen["vx"][free] < speed


@pytest.mark.parametrize("thrown", [0, 160])
def test_the_floor_ends_a_fall_but_not_the_speed_of_a_thrown_player(thrown: int) -> None:
    """PM_SlideMove leaves the velocity of a thrown player as it is; in the next frame he stands."""
    seen = follow([FIRE] * 8, room=ROOM_2, visit=2, x=288, y=-64, z=2.0, vz=-20.0, thrown=thrown)
    height = 2.0
    speed = -20.0
    heights = []
    speeds = []
    for ms in move_times(8):
        if height < physics.GROUND:
            speed = 0.0
        else:
            after = speed - 0.8 * ms
            height += (speed + after) / 2 * ms / 1000
            keeps_speed = height > 0 or thrown
            speed = math.floor(after + 0.5) if keeps_speed else 0.0
        heights.append(max(height, 0.0))
        speeds.append(speed)
    assert seen["z"] == pytest.approx(heights)
    assert seen["vz"].tolist() == speeds

    landed = heights.index(0.0)
    falls_on = min(speeds[landed:]) < 0
    assert falls_on == bool(thrown)


@given(st.floats(-400, 400), st.floats(-400, 400), st.floats(-180, 180), st.integers(0, 8))
def test_walking_never_gains_speed_beyond_the_run_speed(vx: float, vy: float, yaw: float, action: int) -> None:
    _, _, right, forward, *_ = action_rows(NINE, 20)[action]
    before = math.hypot(vx, vy)
    after = math.hypot(*physics.accelerate(vx, vy, yaw, forward, right, 320.0, 0.017, True, False))
    assert after <= max(before, 320.0 * math.sqrt(2)) + 1e-6


def test_directions_with_yaw_90_looking_along_y() -> None:
    directions = [
        # Forward, right, direction.
        (1, 0, (0, 1)),
        (-1, 0, (0, -1)),
        (0, 1, (1, 0)),
        (0, -1, (-1, 0)),
    ]
    for forward, right, direction in directions:
        velocity = physics.accelerate(0.0, 0.0, 90.0, forward, right, 320.0, 0.014, True, False)
        assert np.allclose(np.array(velocity) / np.hypot(*velocity), direction)
    diagonal = physics.accelerate(0.0, 0.0, 0.0, 1.0, 1.0, 320.0, 0.014, True, False)
    assert math.hypot(*diagonal) == pytest.approx(44.8), "a diagonal is not faster"


def test_yaw_wraps_and_pitch_clamps() -> None:
    assert physics.turn(179.0, 0.0, -20.0, 0.0)[0] == pytest.approx(-178.888)
    assert physics.turn(-179.0, 0.0, 20.0, 0.0)[0] == pytest.approx(178.888)
    for sign in (-1, 1):
        assert physics.turn(0.0, sign * 87.0, 0.0, sign * 512.0)[1] == pytest.approx(sign * 87.890625)


SOLIDS = build(RoomsConfig()).solids


@pytest.mark.parametrize(
    ("place", "way", "end", "stopped"),
    [
        # The wall at 128 stops the player at 128 - 15 - 0.125 = 112.875.
        ((100, 100), (20, 5), (112.875, 105), (True, False)),
        ((100, 100), (20, 20), (112.875, 112.875), (True, True)),
        ((112.875, 100), (1, 5), (112.875, 105), (True, False)),
        ((112.875, 100), (-1, 5), (111.875, 105), (False, False)),
        # A fence begins at y = 24, which stops the player at 24 - 15.125 = 8.875, and at x = 0: -15.125.
        ((-20, 10), (10, 0), (-15.125, 10), (True, False)),
        ((-20, 0), (10, 10), (-10, 8.875), (False, True)),  # around the fence's corner, below it
        ((-20, 4), (10, 20), (-15.125, 24), (True, False)),  # and before it
        ((-15.125, 8.875), (5, 5), (-15.125, 13.875), (True, False)),  # exactly at the corner
    ],
)
def test_walls_stop_one_axis_and_let_the_other_slide(
    place: tuple[float, float], way: tuple[float, float], end: tuple[float, float], stopped: tuple[bool, bool]
) -> None:
    """From (x, y) by (dx, dy); whether the motion along x and along y is stopped."""
    x, y, stopped_x, stopped_y = physics.slide(SOLIDS, *map(float, (*place, *way)))
    assert (x, y) == pytest.approx(end)
    assert (stopped_x, stopped_y) == stopped


@given(st.floats(-250, 110), st.floats(-240, 110), st.floats(-9, 9), st.floats(-9, 9))
def test_no_way_leads_into_a_solid(x: float, y: float, dx: float, dy: float) -> None:
    def inside(x: float, y: float) -> Any:
        return ((SOLIDS[:, 0] < x) & (x < SOLIDS[:, 2]) & (SOLIDS[:, 1] < y) & (y < SOLIDS[:, 3])).any()

    if not inside(x, y):
        assert not inside(*physics.slide(SOLIDS, x, y, dx, dy)[:2])


def test_the_engine_walks_along_angles_of_16_bits() -> None:
    assert physics.stepped(2.112) == 384 * 360 / 65536  # measured on DeepMind Lab: 2.1094 degrees
    assert physics.stepped(2 * 2.112) == 769 * 360 / 65536
    assert physics.stepped(-2.112) == -384 * 360 / 65536


@pytest.mark.slow
def test_the_pace_of_random_looks_differs_by_episode_within_3_percent() -> None:
    """By the way of a player at full speed in 20 frames, which begins at x = -232."""
    config = RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1, looks="train")
    env = RoomsVectorEnv(64, config)
    env.reset(seed=0)
    env.state.vx[:] = 320.0
    before = env.state.x.copy()
    for _ in range(20):
        env.step(np.full(64, FORWARD))
    with_own_looks = follow([FORWARD] * 20, vx=320.0)["x"][-1] + 232
    pace = (env.state.x - before) / with_own_looks
    assert 0.969 < pace.min() < 0.98
    assert 1.02 < pace.max() < 1.031
