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

FORWARD, STRAFE_RIGHT, FIRE = (NINE.index(n) for n in ("forward", "strafe right", "fire"))


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
    residual, server, client, moves = 32, 400, 400, []  # when the client enters the loaded level
    for _ in range(count + 2):
        residual += 16
        server, residual = server + residual // 50 * 50, residual % 50
        client += 16
        moves.append(14 if client >= server - 5 else 17)
        client += moves[-1] - 16
    return moves[2:]


def test_the_times_of_moves_and_their_mean_of_16_ms() -> None:
    time, moves = physics.LOADED, []
    for frame in range(5000):
        moves.append(physics.move_time(time, frame))
        time += moves[-1]
    assert moves == move_times(5000)
    # Measured on DeepMind Lab: frames 1 to 27, and where the pattern is broken later.
    assert moves[:27] == [14, 14, 17, 17, *[14, 17, 17] * 6, 14, 14, 17, 17, 14]
    assert [i + 1 for i in range(26, 124) if moves[i] == moves[i - 1] == 14] == [49, 124]
    assert [i + 1 for i in range(26, 124) if moves[i - 2 : i + 1] == [17, 17, 17]] == [73, 98]
    assert sum(moves) / 5000 == pytest.approx(16, abs=0.01)


def quake(speeds: Any, moves: Any, wish: Any) -> Any:
    """Speeds after each move of a player on the floor: friction 6, stop speed 100, acceleration 10, whole numbers."""
    for ms in moves:
        speed = speeds[-1]
        speed = max(speed - max(speed, 100) * 6 * ms / 1000, 0) if speed else 0
        speeds.append(math.floor(speed + min(10 * ms / 1000 * wish, max(wish - speed, 0)) + 0.5))
    return speeds[1:]


def test_a_runner_and_his_friction() -> None:
    moves = move_times(70)
    seen = follow([FORWARD] * 30 + [FIRE] * 40)
    running = quake([0], moves[:30], 320)
    assert seen["vx"].tolist() == running + quake(running[-1:], moves[30:], 0)
    # Measured on DeepMind Lab.
    assert seen["vx"][:10].tolist() == [45, 81, 125, 167, 198, 232, 263, 286, 311, 320]
    assert seen["x"][[0, 9, 29, 39, 69]] == pytest.approx([-231.3728, -199.3582, -98.2382, -67.6, -57.7325], abs=1e-3)


def test_a_teleported_player_is_thrown_falls_and_can_hardly_steer() -> None:
    seen, moves = follow([FORWARD] * 56 + [STRAFE_RIGHT] * 16), move_times(72)
    # Measured on DeepMind Lab, whose origin is 24.125 u above the feet.
    assert seen["z"][[54, 55, 56, 69, 70]] == pytest.approx([0, 24.7594, 24.4058, 1.457, 0], abs=1e-3)
    assert seen["x"][[54, 55, 70, 71]] == pytest.approx([29.1219, 294.8, 390.7999, 396.9063], abs=1e-3)
    assert seen["vz"][[55, 56, 57, 69, 70]].tolist() == [-14, -28, -39, -195, 0]
    assert seen["vx"][55:72].tolist() == [400] * 16 + [359]
    assert seen["vy"][[56, 57, 69, 70]].tolist() == [-5, -9, -65, -70]
    heights = [24.875]
    for ms, speed in zip(moves[55:70], [0, *seen["vz"][55:69]]):
        heights.append(heights[-1] + speed * ms / 1000 - 400 * (ms / 1000) ** 2)
    assert seen["z"][55:70] == pytest.approx(heights[1:])


@pytest.mark.parametrize(("height", "speed"), [(0.0, 400), (24.875, 400)])
def test_for_160_ms_a_throw_knows_no_friction(height: float, speed: int) -> None:
    seen = follow([FIRE] * 20, room=ROOM_2, visit=2, x=288, y=-64, z=height, vx=speed, thrown=160)
    moves = np.cumsum(move_times(20))
    free = int((moves < 160).sum()) if height == 0 else 16
    assert (seen["vx"][:free] == speed).all()
    assert seen["vx"][free] < speed


@pytest.mark.parametrize("thrown", [0, 160])
def test_the_floor_ends_a_fall_but_not_the_speed_of_one_that_is_thrown(thrown: int) -> None:
    """PM_SlideMove leaves the velocity of a thrown player as it is; in the next frame he stands."""
    seen = follow([FIRE] * 8, room=ROOM_2, visit=2, x=288, y=-64, z=2.0, vz=-20.0, thrown=thrown)
    height, speed, heights, speeds = 2.0, -20.0, [], []
    for ms in move_times(8):
        if height < physics.GROUND:
            speed = 0.0
        else:
            after = speed - 0.8 * ms
            height += (speed + after) / 2 * ms / 1000
            speed = math.floor(after + 0.5) if height > 0 or thrown else 0.0
        heights.append(max(height, 0.0))
        speeds.append(speed)
    assert seen["z"] == pytest.approx(heights)
    assert seen["vz"].tolist() == speeds
    assert (min(speeds[heights.index(0.0) :]) < 0) == bool(thrown)


@given(st.floats(-400, 400), st.floats(-400, 400), st.floats(-180, 180), st.integers(0, 8))
def test_walking_never_gains_speed_beyond_the_run_speed(vx: float, vy: float, yaw: float, action: int) -> None:
    _, _, right, forward = action_rows(NINE, 20)[action][:4]
    before = math.hypot(vx, vy)
    after = math.hypot(*physics.accelerate(vx, vy, yaw, forward, right, 320.0, 0.017, True, False))
    assert after <= max(before, 320.0 * math.sqrt(2)) + 1e-6


def test_directions_with_yaw_90_looking_along_y() -> None:
    for forward, right, direction in ((1, 0, (0, 1)), (-1, 0, (0, -1)), (0, 1, (1, 0)), (0, -1, (-1, 0))):
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
    ("way", "ends"),
    [
        # 128 - 15 - 0.125 = 112.875; a fence begins at 24 - 15.125 = 8.875 and ends at x -15.125.
        ((100, 100, 20, 5), (112.875, 105, True, False)),
        ((100, 100, 20, 20), (112.875, 112.875, True, True)),
        ((112.875, 100, 1, 5), (112.875, 105, True, False)),
        ((112.875, 100, -1, 5), (111.875, 105, False, False)),
        ((-20, 10, 10, 0), (-15.125, 10, True, False)),
        ((-20, 0, 10, 10), (-10, 8.875, False, True)),  # around the fence's corner, below it
        ((-20, 4, 10, 20), (-15.125, 24, True, False)),  # and before it
        ((-15.125, 8.875, 5, 5), (-15.125, 13.875, True, False)),  # exactly at the corner
    ],
)
def test_walls_stop_one_axis_and_let_the_other_slide(
    way: tuple[float, ...],
    ends: tuple[float, float, bool, bool] | tuple[float, int, bool, bool] | tuple[int, float, bool, bool],
) -> None:
    assert physics.slide(SOLIDS, *map(float, way)) == pytest.approx(ends)


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


def test_the_pace_of_random_looks_differs_by_episode_within_3_percent() -> None:
    """By the way of a player at full speed in 20 frames."""
    config = RoomsConfig(image_height=8, image_width=8, hud=False, action_repeat=1, looks="train")
    env = RoomsVectorEnv(64, config)
    env.reset(seed=0)
    env.state.vx[:] = 320.0
    before = env.state.x.copy()
    for _ in range(20):
        env.step(np.full(64, FORWARD))
    own = follow([FORWARD] * 20, vx=320.0)["x"][-1] + 232
    pace = (env.state.x - before) / own
    assert 0.969 < pace.min() < 0.98
    assert 1.02 < pace.max() < 1.031
