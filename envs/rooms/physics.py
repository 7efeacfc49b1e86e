"""How the player moves: Quake 3's walking on a flat floor, as scalar functions over one environment.

Nothing here knows the level's rules or which target compiles it. Positions are in units (u), speeds in u/s, angles in
degrees; yaw 0 looks along +x and grows to the left, so a positive look action (to the right) lowers it.
"""

from __future__ import annotations

import math

from numba.extending import register_jitable

FRAMES_PER_SECOND = 60
#: The engine moves the player twice a frame; with one move, the first frame from rest would cover 0.89 u, not 0.63.
MOVES_PER_FRAME = 2
MOVE_SECONDS = 1.0 / (FRAMES_PER_SECOND * MOVES_PER_FRAME)
ACCELERATION = 10.0
AIR_ACCELERATION = 1.0
FRICTION = 6.0
STOP_SPEED = 100.0
HALF_WIDTH = 15.0
DEGREES_PER_PIXEL = 0.1056
PITCH_LIMIT = 87.9


@register_jitable
def turn(yaw: float, pitch: float, look_right: float, look_down: float) -> tuple[float, float]:
    """Yaw in [-180, 180) and clamped pitch (positive down) after one frame of looking, in mouse units a frame."""
    yaw -= DEGREES_PER_PIXEL * look_right
    if yaw >= 180.0:
        yaw -= 360.0
    elif yaw < -180.0:
        yaw += 360.0
    pitch = min(max(pitch + DEGREES_PER_PIXEL * look_down, -PITCH_LIMIT), PITCH_LIMIT)
    return yaw, pitch


@register_jitable
def accelerate(
    vx: float, vy: float, yaw: float, forward: float, right: float, run_speed: float, grounded: bool
) -> tuple[float, float]:
    """Velocity after friction and acceleration of one move (bg_pmove.c: PM_Friction, PM_Accelerate).

    `forward` and `right` are in -1..1; a diagonal asks for the same speed as a straight run.
    """
    speed = math.sqrt(vx * vx + vy * vy)
    if grounded and speed > 0.0:
        kept = max(speed - max(speed, STOP_SPEED) * FRICTION * MOVE_SECONDS, 0.0) / speed
        vx *= kept
        vy *= kept
    length = math.sqrt(forward * forward + right * right)
    if length > 0.0:
        cos, sin = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
        wish_x = (forward * cos + right * sin) / length
        wish_y = (forward * sin - right * cos) / length
        missing = run_speed - (vx * wish_x + vy * wish_y)
        if missing > 0.0:
            rate = ACCELERATION if grounded else AIR_ACCELERATION
            gain = min(rate * MOVE_SECONDS * run_speed, missing)
            vx += gain * wish_x
            vy += gain * wish_y
    return vx, vy


@register_jitable
def slide_x(solids, x: float, y: float, vx: float) -> tuple[float, float]:
    """x and vx after one move along x among solids [K, 4] (x0, y0, x1, y1), which a player in contact slides along.

    The solids are already grown by the player's half width.
    """
    target = x + vx * MOVE_SECONDS
    for k in range(solids.shape[0]):
        if solids[k, 1] < y < solids[k, 3] and solids[k, 0] < target < solids[k, 2]:
            target = solids[k, 0] if x <= solids[k, 0] else solids[k, 2]
            vx = 0.0
    return target, vx


@register_jitable
def slide_y(solids, x: float, y: float, vy: float) -> tuple[float, float]:
    """y and vy after one move along y; see `slide_x`."""
    target = y + vy * MOVE_SECONDS
    for k in range(solids.shape[0]):
        if solids[k, 0] < x < solids[k, 2] and solids[k, 1] < target < solids[k, 3]:
            target = solids[k, 1] if y <= solids[k, 1] else solids[k, 3]
            vy = 0.0
    return target, vy
