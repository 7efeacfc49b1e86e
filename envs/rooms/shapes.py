"""The twelve shapes of the level's objects, as signed distances: glowing bodies with metal, made of boxes and tubes.

Sizes and proportions were measured on pictures of the real level; the shapes themselves are original. Lengths are in
units of 16 u at object scale 1; z is up and the spin axis. `render.py` places, spins and colors them.
"""

import math
from typing import NamedTuple

from numba.extending import register_jitable

NEAR = 0.02
"""Distance from a surface, in a shape's units, that counts as on it."""


class Shape(NamedTuple):
    """What is known of a shape without its surface."""

    number: int  # in `distances`
    radius: float  # of the bounding cylinder
    half_height: float
    metal: int  # brightness of the metal, 0..255
    body: float  # brightness of the body: a share of the color, or 1 and a share of white
    ball: float  # radius of the ball outside of which no distance is below NEAR


SHAPES: dict[str, Shape] = {
    "barbell": Shape(0, 0.47, 1.02, 75, 1.25, 1.05),
    "coil": Shape(1, 0.58, 1.09, 85, 0.78, 1.28),
    "cone": Shape(2, 0.78, 1.1, 55, 1.05, 1.36),
    "crossbar": Shape(3, 0.97, 1.06, 60, 1.1, 1.34),
    "cube": Shape(4, 1.16, 1.09, 70, 0.92, 1.61),
    "cylinder": Shape(5, 0.62, 1.54, 95, 1.32, 1.66),
    "double_prism": Shape(6, 1.02, 0.55, 80, 0.82, 1.12),
    "glow_ball": Shape(7, 1.04, 1.06, 185, 1.15, 1.1),
    "pot_cone": Shape(8, 0.98, 1.02, 70, 1.1, 1.25),
    "prism_jack": Shape(9, 1.0, 1.02, 65, 1.27, 1.05),
    "sphere": Shape(10, 0.98, 0.96, 115, 0.86, 0.99),
    "toroid": Shape(11, 1.02, 1.08, 130, 0.74, 1.14),
}


@register_jitable
def _length(a: float, b: float) -> float:
    """math.hypot without its care for overflow, which costs a library call."""
    return math.sqrt(a * a + b * b)


@register_jitable
def _box(x: float, y: float, z: float, a: float, b: float, c: float) -> float:
    """Signed distance to the box |x| <= a, |y| <= b, |z| <= c."""
    dx = abs(x) - a
    dy = abs(y) - b
    dz = abs(z) - c
    outside = math.sqrt(max(dx, 0.0) ** 2 + max(dy, 0.0) ** 2 + max(dz, 0.0) ** 2)
    inside = min(max(dx, max(dy, dz)), 0.0)
    return outside + inside


@register_jitable
def _tube(across: float, along: float, radius: float, half: float) -> float:
    """Signed distance to a cylinder, from the distance to its axis and the coordinate along it."""
    from_side = across - radius
    from_end = abs(along) - half
    if from_side <= 0.0 or from_end <= 0.0:
        return max(from_side, from_end)
    return math.sqrt(from_side * from_side + from_end * from_end)


@register_jitable(forceinline=True)  # a call would cost as much as the least of the shapes
def distances(shape: int, x: float, y: float, z: float) -> tuple[float, float]:  # noqa: PLR0915 (a list of twelve)
    """Distances (a lower bound of each) from the point to the glowing body and to the metal of a shape."""
    r = math.sqrt(x * x + y * y)  # from the spin axis

    if shape == 0:  # barbell: a rod between two mushroom caps on dark plates
        end = abs(z) - 0.6
        caps = max(_length(r, 1.1 * end) - 0.45, -end) * 0.9
        rod = _tube(r, z, 0.17, 0.62)
        plates = _tube(r, abs(z) - 0.55, 0.32, 0.07)
        return min(caps, rod), plates

    if shape == 1:  # coil: a short stack with a helical rib, between dark caps
        height = abs(z + 0.11)
        stack = 0.8 * (r - 0.4 - 0.06 * math.sin(math.atan2(y, x) - 12.0 * z))
        caps = 0.95 * _tube(r + 0.35 * max(z - 0.65, 0.0), height - 0.75, 0.57, 0.23)
        knob = _box(x, y, z - 0.98, 0.2, 0.05, 0.1)
        return max(stack, height - 0.6), min(caps, knob)

    if shape == 2:  # cone: a flask on a wide dark base, with a dark neck
        side = 0.9 * (r - 0.25 - 0.48 * (0.44 - z))
        flask = max(side, abs(z - 0.05) - 0.41)
        base = _tube(r, z + 0.72, 0.74, 0.37)
        neck = _tube(r, z - 0.76, 0.24, 0.33)
        return flask, min(base, neck)

    if shape == 3:  # crossbar: a stout body on a dark foot, with two arms at its dark head
        body = _tube(r, z + 0.05, 0.36, 0.55)
        arms = _box(x, y, z - 0.73, 0.94, 0.15, 0.15)
        foot_and_head = _tube(r, abs(z + 0.04) - 0.77, 0.43, 0.27)
        return min(body, arms), foot_and_head

    if shape == 4:  # cube: a flat box with a dark lid and a thin dark base
        box = _box(x, y, z + 0.34, 0.97, 0.52, 0.7)
        lid = _box(x, y, z - 0.72, 1.0, 0.55, 0.36)
        base = _box(x, y, z + 1.04, 1.0, 0.55, 0.04)
        return box, min(lid, base)

    if shape == 5:  # cylinder: on a low dark foot, under a flange with a dome and a handle
        body = _tube(r, z + 0.47, 0.48, 0.88)
        dome = max(0.95 * (r + 0.3 * (z - 0.4) - 0.6), abs(z - 0.72) - 0.32)
        handle = _length(_length(x, 0.7 * (z - 1.02)) - 0.28, y) - 0.06
        foot = _tube(r, z + 1.44, 0.49, 0.1)
        return body, min(min(dome, handle), foot)

    if shape == 6:  # double prism: lying, tapered to both ends, with a dark belt and tips
        taper = 0.26 * abs(x)
        side = 0.94 * (max(abs(y), abs(z)) + taper - 0.51)
        prisms = max(side, abs(x) - 0.96)
        belt = _box(x, y, z, 0.1, 0.52, 0.53)
        tips = _box(abs(x) - 0.97, y, z, 0.04, 0.28, 0.28)
        return prisms, min(belt, tips)

    if shape == 7:  # glow ball: with gray studs on its axes and diagonals
        from_center = math.sqrt(r * r + z * z)
        a = abs(x)
        b = abs(y)
        c = abs(z)
        # Squared distances to the nearest stud of either sort.
        on_axis = from_center * from_center + 0.81 - 1.8 * max(a, max(b, c))
        on_diagonal = from_center * from_center + 0.81 - 1.04 * (a + b + c)
        studs = math.sqrt(max(min(on_axis, on_diagonal), 0.0)) - 0.15
        return from_center - 0.85, studs

    if shape == 8:  # pot cone: a cup that widens to the top, under a wide dark rim
        cup = max(0.95 * (r - 0.34 - 0.26 * (z + 1.0)), abs(z + 0.3) - 0.72)
        rim = max(0.87 * (r - 0.96 + 0.55 * (z - 0.42)), abs(z - 0.71) - 0.31)
        return cup, rim

    if shape == 9:  # prism jack: a thin upright cross with a dark hub
        across = _box(x, y, z, 0.97, 0.12, 0.12)
        upright = _box(x, y, z, 0.12, 0.12, 1.0)
        hub = _box(x, y, z, 0.19, 0.19, 0.17)
        return min(across, upright), hub

    if shape == 10:  # sphere: two lobes with a gray belt between them
        lobes = math.sqrt((abs(x) - 0.12) ** 2 + y * y + z * z) - 0.83
        belt = _tube(_length(y, z), x, 0.92, 0.1)
        return lobes, belt

    # toroid: an upright ring with a gray collar at its top and bottom
    ring = _length(_length(x, z) - 0.79, y) - 0.2
    collars = _box(x, y, abs(z) - 0.82, 0.17, 0.23, 0.24)
    return ring, collars


@register_jitable
def trace(
    kind: int, ball: float, x: float, y: float, z: float, dx: float, dy: float, dz: float, t0: float, t1: float
) -> tuple[bool, bool, float]:
    """Follows the ray (x, y, z) + t (dx, dy, dz), t in t0..t1, to a shape, all in the shape's units.

    `ball` is the radius of a ball that the ray has to meet.

    Returns (hit, glow, light): whether it meets the shape, whether at its glowing body rather than its metal, and about
    the cosine 0..1 between the surface's normal and the ray's reverse: the rate at which the distance fell last.
    """
    # Does the ray meet the ball? It does where a t^2 + 2 b t + c = 0 has a solution.
    length = dx * dx + dy * dy + dz * dz  # squared: a
    towards = x * dx + y * dy + z * dz  # b
    outside = x * x + y * y + z * z - ball * ball  # c
    if outside * length > towards * towards:
        return False, False, 0.0

    # Sphere tracing: nothing is nearer than the distance, so that a step of that length passes through nothing.
    inverse = 1.0 / math.sqrt(length)
    t = t0
    before = 1e9
    for _ in range(40):
        glow, metal = distances(kind, x + t * dx, y + t * dy, z + t * dz)
        near = min(glow, metal)
        if near < NEAR:
            light = min(max(1.0 - near / before, 0.0), 1.0)
            return True, glow <= metal, light
        t += near * inverse
        before = near
        if t > t1:
            break
    return False, False, 0.0
