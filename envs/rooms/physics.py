"""Motion of the player: Quake 3's walking on a flat floor, as scalar functions over one environment.

Positions are in units (u), speeds in u/s, angles in degrees; yaw 0 looks along +x and grows to the left, so a positive
look action (to the right) lowers it.
"""

import math

from numba.extending import register_jitable

FRAMES_PER_SECOND = 60
#: Seconds of the engine's clock in a frame.
FRAME_SECONDS = 0.016
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
def slide(solids, axis: int, along: float, across: float, speed: float) -> tuple[float, float]:
    """Position and speed along an axis (0 x, 1 y) after one move among solids [K, 4] (x0, y0, x1, y1).

    The player stops at a solid and slides along it. The solids are already grown by the player's half width; `across`
    is the position along the other axis.
    """
    target = along + speed * MOVE_SECONDS
    for k in range(solids.shape[0]):
        low, high = solids[k, axis], solids[k, axis + 2]
        if solids[k, 1 - axis] < across < solids[k, 3 - axis] and low < target < high:
            target = low if along <= low else high
            speed = 0.0
    return target, speed
