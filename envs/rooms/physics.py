"""Motion of the player: Quake 3's walking and falling as DeepMind Lab runs it, as scalar functions.

Positions are in units (u), speeds in u/s, angles in degrees; yaw 0 looks along +x and grows to the left, so a positive
look action (to the right) lowers it. All agrees with DeepMind Lab frame by frame: docs/environments.md.
"""

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

FRAMES_PER_SECOND = 60
FRAME_SECONDS = 0.016
"""The engine's time of a frame: 0.96 of a sixtieth of a second. Motion, spin, bobbing and pulse follow this clock."""
SERVER_FRAME = 50
"""Milliseconds between frames of the engine's server."""
LOADED = 447
SERVER_LOADED = 400
"""Where the engine's clocks (ms) stand when a level has been loaded: the player's moves, and the server's frames."""
GRAVITY = 800.0
ACCELERATION = 10.0
AIR_ACCELERATION = 1.0
FRICTION = 6.0
STOP_SPEED = 100.0
GROUND = 0.25
"""A player so far above the floor or less stands on it."""
HALF_WIDTH = 15.0
WALL_GAP = 0.125
"""The engine stops a player so far from a wall."""
DEGREES_PER_PIXEL = 0.1056
ANGLE_STEP = 360.0 / 65536
"""The engine moves along directions of 16 bits."""
PITCH_LIMIT = 16000 * ANGLE_STEP


@register_jitable
def move_time(time: int, frame: int) -> int:
    """Milliseconds of the next move: 14 or 17, since the client's clock drifts relative to the server's.

    It gains 1 ms a frame and loses 2 where it is less than 6 ms behind the server, which advances by 50 ms at once.
    `time` is the engine's in ms, `LOADED` and the moves since then; `frame` counts frames since the level was loaded.
    """
    server = SERVER_LOADED + SERVER_FRAME * ((16 * (frame + 5)) // SERVER_FRAME)
    return 14 if time >= server - 5 else 17


@register_jitable
def client_time(time: int, frame: int) -> int:
    """The time in ms at which the engine's client draws: one move ahead of the player. Arguments as of `move_time`."""
    return time + move_time(time, frame)


@register_jitable
def next_server_frame(time: int) -> int:
    """The first multiple of `SERVER_FRAME` after a time, in ms."""
    return time - time % SERVER_FRAME + SERVER_FRAME


@register_jitable
def stepped(yaw: float) -> float:
    """The angle rounded to the engine's 16 bits."""
    return ANGLE_STEP * math.floor(yaw / ANGLE_STEP + 0.5)


@register_jitable
def turn(yaw: float, pitch: float, look_right: float, look_down: float) -> tuple[float, float]:
    """Yaw in [-180, 180) and clamped pitch (positive down) after one frame of looking, in mouse units a frame."""
    yaw -= DEGREES_PER_PIXEL * look_right
    if yaw >= 180.0:
        yaw -= 360.0
    elif yaw < -180.0:
        yaw += 360.0
    pitch += DEGREES_PER_PIXEL * look_down
    pitch = min(max(pitch, -PITCH_LIMIT), PITCH_LIMIT)
    return yaw, pitch


@register_jitable
def accelerate(
    vx: float,
    vy: float,
    yaw: float,
    forward: float,
    right: float,
    run_speed: float,
    seconds: float,
    grounded: bool,
    thrown: bool,
) -> tuple[float, float]:
    """Velocity after friction and acceleration of one move (bg_pmove.c: PM_Friction, PM_Accelerate).

    `forward` and `right` are in -1..1; a diagonal asks for the same speed as a straight run. In the air there is no
    friction and a tenth of the acceleration, and on the floor too for a player whom a teleporter has `thrown`.
    """
    walks = grounded and not thrown
    speed = math.sqrt(vx * vx + vy * vy)
    if speed < 1.0:
        vx = 0.0
        vy = 0.0
    elif walks:
        loss = max(speed, STOP_SPEED) * FRICTION * seconds
        kept = max(speed - loss, 0.0) / speed
        vx *= kept
        vy *= kept

    # The engine limits the speed along the direction that is asked for.
    length = math.sqrt(forward * forward + right * right)
    if length > 0.0:
        yaw = math.radians(stepped(yaw))
        wish_x = (forward * math.cos(yaw) + right * math.sin(yaw)) / length
        wish_y = (forward * math.sin(yaw) - right * math.cos(yaw)) / length
        missing = run_speed - (vx * wish_x + vy * wish_y)
        if missing > 0.0:
            acceleration = ACCELERATION if walks else AIR_ACCELERATION
            gain = min(acceleration * seconds * run_speed, missing)
            vx += gain * wish_x
            vy += gain * wish_y
    return vx, vy


@register_jitable
def slide(solids: NDArray[np.float64], x: float, y: float, dx: float, dy: float) -> tuple[float, float, bool, bool]:
    """The way (dx, dy) from (x, y) among solids [K, 4] (x0, y0, x1, y1), which are grown by the player's half width.

    The player goes to the first solid on the way, and along it for the rest. Returns the position, and whether a wall
    was met along x and along y.
    """
    met_x = False
    met_y = False
    for _ in range(3):
        # The box around the way.
        left = min(x, x + dx)
        right = max(x, x + dx)
        low = min(y, y + dy)
        high = max(y, y + dy)

        # The first edge on the way: at which share of it, across which axis (-1: none), and where.
        first = 1.0
        axis = -1
        edge = 0.0
        for k in range(solids.shape[0]):
            x0 = solids[k, 0]
            y0 = solids[k, 1]
            x1 = solids[k, 2]
            y1 = solids[k, 3]
            if right <= x0 or left >= x1 or high <= y0 or low >= y1:
                continue

            # The share of the way at which it reaches the solid's nearer edges.
            near_x = x0 if dx > 0.0 else x1
            near_y = y0 if dy > 0.0 else y1
            at_x = (near_x - x) / dx if dx != 0.0 else -1.0
            at_y = (near_y - y) / dy if dy != 0.0 else -1.0
            if 0.0 <= at_x < first and y0 <= y + at_x * dy <= y1:
                first = at_x
                axis = 0
                edge = near_x
            if 0.0 <= at_y < first and x0 < x + at_y * dx < x1:
                first = at_y
                axis = 1
                edge = near_y

        # Up to the edge.
        x += first * dx
        y += first * dy
        if axis < 0:
            break

        # The rest of the way goes along the edge.
        dx *= 1.0 - first
        dy *= 1.0 - first
        if axis == 0:
            x = edge
            dx = 0.0
            met_x = True
        else:
            y = edge
            dy = 0.0
            met_y = True
    return x, y, met_x, met_y


@register_jitable
def move(
    state: Any, i: int, solids: NDArray[np.float64], forward: float, right: float, run_speed: float, milliseconds: float
) -> None:
    """One move of player i of `level.State`: friction, acceleration, way, fall, and velocity rounded to whole u/s.

    While `State.thrown` counts down, walls and the floor stop the player without changing the velocity (PM_SlideMove).
    """
    seconds = 0.001 * milliseconds
    state.thrown[i] = max(state.thrown[i] - milliseconds, 0)
    thrown = state.thrown[i] > 0
    grounded = state.z[i] < GROUND
    vx, vy = accelerate(state.vx[i], state.vy[i], state.yaw[i], forward, right, run_speed, seconds, grounded, thrown)

    # The fall, up to the floor.
    vz = 0.0
    if not grounded:
        vz = state.vz[i] - GRAVITY * seconds
        state.z[i] += 0.5 * (state.vz[i] + vz) * seconds
        if state.z[i] <= 0.0:
            state.z[i] = 0.0
            if not thrown:
                vz = 0.0

    # The way, along walls where it meets them.
    x, y, met_x, met_y = slide(solids, state.x[i], state.y[i], vx * seconds, vy * seconds)
    state.x[i] = x
    state.y[i] = y
    if met_x and not thrown:
        vx = 0.0
    if met_y and not thrown:
        vy = 0.0

    state.vx[i] = math.floor(vx + 0.5)
    state.vy[i] = math.floor(vy + 0.5)
    state.vz[i] = math.floor(vz + 0.5)
